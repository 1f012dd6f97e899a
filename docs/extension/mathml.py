"""Formulas as MathML, which browsers set by themselves: no script, no font, nothing to fetch."""

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, wrap_math_code
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

LOG = logging.getLogger(__name__)


def set_inline(self: Any, node: nodes.math) -> None:
    """Write a formula of the text."""
    _write(self, node, node.astext(), display=False)


def set_block(self: Any, node: nodes.math_block) -> None:
    """Write a formula that stands alone."""
    self.body.append('<div class="math">')
    _write(self, node, wrap_math_code(node.astext(), as_block=True), display=True)
    self.body.append("</div>\n")


def _write(self: Any, node: nodes.Node, text: str, *, display: bool) -> None:
    try:
        self.body.append(tex2mathml(text, as_block=display))
    except MathError as error:
        LOG.warning("formula %r: %s", text, error, location=node)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Let HTML pages use it, as `html_math_renderer = "mathml"`."""
    app.add_html_math_renderer("mathml", (set_inline, None), (set_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
