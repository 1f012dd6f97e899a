"""Render formulas as MathML, which browsers display without scripts, fonts or downloads."""

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

LOG = logging.getLogger(__name__)
REPLACEMENTS = {  # commands that the converter does not know, and the space after a function name
    r"\dots": r"\ldots",
    r"\Big(": "(",
    r"\Big)": ")",
    r"\!": "",
    r"\log ": r"\log\, ",
}


def write_inline(self: Any, node: nodes.math) -> None:
    """Write an inline formula."""
    _write(self, node, node.astext(), display=False)


def write_block(self: Any, node: nodes.math_block) -> None:
    """Write a displayed formula."""
    self.body.append('<div class="formula">')
    _write(self, node, node.astext(), display=True)


def _write(self: Any, node: nodes.Node, text: str, *, display: bool) -> None:
    for command, replacement in REPLACEMENTS.items():
        text = text.replace(command, replacement)
    text = f"{{}}{text}" if text.startswith(("_", "^")) else text  # an index of the preceding word
    try:
        self.body.append(tex2mathml(text, as_block=display))
    except (MathError, LookupError, AttributeError) as error:
        LOG.warning("formula %r: %s", text, error, location=node)
    if display:
        self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer for `html_math_renderer = "mathml"`."""
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
