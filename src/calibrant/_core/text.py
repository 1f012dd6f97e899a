"""Escape and shorten text for terminals, pages, Markdown, LaTeX and spreadsheets."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import groupby

LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",  # would begin an option after the end of a row
    "]": "{]}",
    "*": "{*}",
} | {mark: f"\\{mark}" for mark in "%_#&${}"}
LATEX_PRINTABLE = "±▲▼△▽–—‘’“”…ßæÆœŒøØłŁ"  # besides ASCII and accented letters
LATEX_LIGATURE_GAP = re.compile(r"(?<=[-'`?!,])(?=[-'`,])")  # inside --, '' and other pairs that LaTeX joins
MARKDOWN_SPECIAL = re.compile(r"[\\`*\[\]<>&|~!$@]|(?<!\w)_|_(?!\w)|(?<=:)/(?=/)|(?<=www)\.")
FORMULA_START = re.compile(r"'*\s*[=+\-@＝＋－＠]")
# longer numbers are names
PLAIN_NUMBER = re.compile(r"[+-]?([0-9]{1,15}(\.[0-9]{0,15})?|\.[0-9]{1,15})([eE][+-]?[0-9]{1,2})?")
NUMBER_OR_DASH = re.compile(  # decimal commas, percent signs and dashes for missing values included
    r"\s*[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?\s*%?\s*|\s*[+-]?(inf|nan)\s*|\s*--?\s*", re.IGNORECASE
)
RIGHT_TO_LEFT_RUN = re.compile(
    r"[{0}](?:[{0}\s]*[{0}])?".format(
        "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
    )
)
MAX_NAME_CHARACTERS = 100
MAX_TEXT_CHARACTERS = 20_000  # of a text on a page that is not a name


def parse_integer(text: str) -> int | None:
    """Parse an integer in ASCII digits, or return None for any other text.

    >>> parse_integer("10"), parse_integer("-1"), parse_integer("²"), parse_integer("1.0")
    (10, -1, None, None)
    """
    text = text.strip()
    return int(text) if PLAIN_NUMBER.fullmatch(text) and text.lstrip("+-").isdigit() else None


def parse_number(text: str) -> float | None:
    """Parse a number in ASCII digits, with or without decimals or exponent, or return None for other texts.

    >>> parse_number("1.0"), parse_number("-.5"), parse_number("٣"), parse_number("1e3")
    (1.0, -0.5, None, 1000.0)
    """
    text = text.strip()
    return float(text) if PLAIN_NUMBER.fullmatch(text) else None


def escape_invisible(text: str, *, allowed: str = "") -> str:
    r"""Replace invisible characters, such as controls and direction marks, by their escapes.

    Characters in `allowed` are unchanged.

    >>> escape_invisible("a\x1b[31m\u202eb")
    'a\\x1b[31m\\u202eb'
    """
    return INVISIBLE_CHARACTER.sub(lambda match: match[0] if match[0] in allowed else ascii(match[0])[1:-1], text)


INVISIBLE_CHARACTER = re.compile(  # categories Cc, Cf, Cs, Zl and Zp, blank letters and noncharacters
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180e"
    "\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\u3164\ud800-\udfff\ufdd0-\ufdef\ufeff\uffa0\ufff9-\ufffb\ufffe\uffff\U000110bd"
    "\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)


def abbreviate(text: str, limit: int = MAX_NAME_CHARACTERS) -> str:
    """Cut the middle of a text with more than `limit` characters, and append its length.

    >>> abbreviate("a" * 5_000_000, 12)
    'aaaaaaaa…aaaa (5,000,000 characters)'
    """
    last = limit // 3
    return text if len(text) <= limit else f"{text[: limit - last]}…{text[-last:]} ({len(text):,} characters)"


def display_name(name: str) -> str:
    """Shorten a name and escape its invisible characters, for display."""
    return escape_invisible(abbreviate(name))


def isolate_right_to_left(text: str) -> str:
    r"""Isolate words written from right to left, so that they do not reorder the text around them.

    >>> isolate_right_to_left("a \u05d0\u05d1 1") == "a \u2068\u05d0\u05d1\u2069 1"
    True
    """
    return RIGHT_TO_LEFT_RUN.sub("\u2068\\g<0>\u2069", text)


def shorten_repr(value: object, limit: int = 80) -> str:
    """Return a `repr` on one line, of at most `limit` characters, cut in the middle.

    >>> shorten_repr("focal"), len(shorten_repr("x" * 5000))
    ("'focal'", 80)
    """
    return cut_middle(re.sub(r"\n\s*", " ", repr(value)), limit)  # arrays have several lines


def shorten_list(names: Sequence[str], limit: int = 8) -> str:
    """Return the first `limit` names, each shortened and quoted, and how many there are.

    >>> shorten_list(["cat", "dog", "owl"], 2)
    "'cat', 'dog', ... (3 in all)"
    """
    text = ", ".join(shorten_repr(name) for name in names[:limit])
    return text if len(names) <= limit else f"{text}, ... ({len(names)} in all)"


def to_one_line(message: object) -> str:
    r"""Join the lines of a message, such as an exception, and cut its middle beyond 240 characters.

    >>> to_one_line(ValueError("no\n  luck"))
    'no luck'
    """
    return cut_middle(" ".join(str(message).split()), 240)


def describe_error(error: BaseException) -> str:
    """Return the type and the message of an exception, on one line.

    >>> describe_error(ValueError("no luck"))
    'ValueError: no luck'
    """
    return f"{type(error).__name__}: {to_one_line(error)}"


def cut_middle(text: str, limit: int) -> str:
    """Cut the middle of a text with more than `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - limit // 4 - 3]}...{text[-(limit // 4) :]}"


def escape_latex(text: str) -> str:
    r"""Escape text for LaTeX.

    >>> print(escape_latex(r"50 % of {x_1}"))
    50 \% of \{x\_1\}
    """
    runs = groupby(escape_invisible(text), _is_latex_printable)
    return "".join(
        _escape_latex_ascii(marks) if is_printable else _escape_latex_other_script(marks)
        for is_printable, marks in runs
    )


def _is_latex_printable(mark: str) -> bool:
    """Whether pdfLaTeX prints a character without packages: ASCII, and Latin letters with common accents."""
    if mark.isascii() or mark in LATEX_PRINTABLE:
        return True
    base, *accents = unicodedata.normalize("NFD", mark)
    # Later blocks than Latin Extended-A, and the ogonek, need packages
    return mark < "\u0180" and base.isascii() and bool(accents) and "\u0328" not in accents


def _escape_latex_ascii(marks: Iterable[str]) -> str:
    """Escape characters that pdfLaTeX prints, and keep it from joining pairs such as --."""
    return LATEX_LIGATURE_GAP.sub("{}", "".join(LATEX_ESCAPES.get(mark, mark) for mark in marks))


def _escape_latex_other_script(marks: Iterable[str]) -> str:
    """Print other scripts in LuaLaTeX and XeLaTeX, and code points in pdfLaTeX, where the characters are errors."""
    run = "".join(marks)
    return rf"\ifdefined\Umathcode {run}\else {' '.join(f'U+{ord(mark):04X}' for mark in run)}\fi{{}}"


def escape_markdown(text: str) -> str:
    r"""Escape text for Markdown, also inside a table.

    >>> print(escape_markdown("a|*b* c_d"))
    a\|\*b\* c_d
    """
    return MARKDOWN_SPECIAL.sub(lambda match: "\\" + match[0], escape_invisible(text))


def escape_cell(text: str) -> str:
    """Escape a cell of a spreadsheet: invisible characters and formulas, but not numbers.

    >>> escape_cell("=1+1"), escape_cell("-0.5")
    ("'=1+1", '-0.5')
    """
    return escape_formula(escape_invisible(text))


def escape_formula(text: str) -> str:
    """Prepend an apostrophe, which `unescape_column` removes, if a spreadsheet could read a formula.

    >>> escape_formula("@a"), escape_formula("'=a"), escape_formula("a=1")
    ("'@a", "''=a", 'a=1')
    """
    return f"'{text}" if FORMULA_START.match(text) and not NUMBER_OR_DASH.fullmatch(text) else text


def unescape_column(texts: Iterable[str]) -> list[str]:
    """Remove the apostrophes of `escape_formula` from a column.

    If a text that needs an apostrophe has none, another program wrote the column, and it is unchanged.

    >>> unescape_column(["'=a", "b"]), unescape_column(["'=a", "=a"])
    (['=a', 'b'], ["'=a", '=a'])
    """
    texts = list(texts)
    marked = [text.startswith("'") and escape_formula(text[1:]) == text for text in texts]
    if any(not mark and escape_formula(text) != text for mark, text in zip(marked, texts, strict=True)):
        return texts
    return [text[1:] if mark else text for mark, text in zip(marked, texts, strict=True)]


def escape_markup(text: str) -> str:
    """Escape text for rich."""
    from rich.markup import escape

    return escape(escape_invisible(text))


def join_names(names: Sequence[str]) -> str:
    """Return "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
