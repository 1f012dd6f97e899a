"""Tables that a page requests by an empty fence of their name, and that are written when the site is built."""

import re
from collections.abc import Callable

from extension import exports, file_formats, measured

TABLES: dict[str, Callable[[], str]] = {
    "export-formats": exports.markdown_table,
    "file-formats": file_formats.markdown_table,
    "measured-calibrators": measured.tables,
}
FENCE = re.compile(rf"^```{{({'|'.join(TABLES)})}}\n```$", re.MULTILINE)


def insert_tables(text: str) -> str:
    """Return the text of a page with its tables."""
    return FENCE.sub(lambda fence: TABLES[fence[1]](), text)
