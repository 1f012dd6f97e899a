"""Formulas as MathML, which browsers set by themselves: no script, no font, nothing to fetch."""

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

LOG = logging.getLogger(__name__)


def set_inline(self: Any, node: nodes.math) -> None:
    """Write a formula of the text."""
    _write(self, node, node.astext(), display=False)


def set_block(self: Any, node: nodes.math_block) -> None:
    """Write a formula that stands alone."""
    self.body.append('<div class="formula">')
    _write(self, node, node.astext(), display=True)


SPELLED = {  # what the converter does not know, and the space after a function's name
    r"\dots": r"\ldots",
    r"\Big(": "(",
    r"\Big)": ")",
    r"\!": "",
    r"\log ": r"\log\, ",
}


def _write(self: Any, node: nodes.Node, text: str, *, display: bool) -> None:
    for word, known in SPELLED.items():
        text = text.replace(word, known)
    text = f"{{}}{text}" if text.startswith(("_", "^")) else text  # an index of the word before
    try:
        self.body.append(tex2mathml(text, as_block=display))
    except (MathError, LookupError, AttributeError) as error:
        LOG.warning("formula %r: %s", text, error, location=node)
    if display:
        self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Let HTML pages use it, as `html_math_renderer = "mathml"`."""
    app.add_html_math_renderer("mathml", (set_inline, None), (set_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
