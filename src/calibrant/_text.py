"""What people wrote, made safe for where it is shown: a terminal, a page, Markdown, LaTeX, a spreadsheet."""

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
    "[": "{[}",  # after the end of a row it would begin an option
    "]": "{]}",
    "*": "{*}",
} | {mark: f"\\{mark}" for mark in "%_#&${}"}
LATEX_PRINTABLE = "±▲▼△▽–—‘’“”…ßæÆœŒøØłŁ"  # beside ASCII and accented letters
LATEX_LIGATURE_GAP = re.compile(r"(?<=[-'`?!,])(?=[-'`,])")  # inside --, '' and what else LaTeX sets as one character
MARKDOWN_SPECIAL = re.compile(r"[\\`*\[\]<>&|~!$@]|(?<!\w)_|_(?!\w)|(?<=:)/(?=/)|(?<=www)\.")
FORMULA_START = re.compile(r"'*\s*[=+\-@＝＋－＠]")
PLAIN_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{0,15})?([eE][+-]?[0-9]{1,2})?")  # longer ones are names
NUMBER_OR_DASH = re.compile(  # numbers, also with a decimal comma or a percent sign, and dashes for a missing value
    r"\s*[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?\s*%?\s*|\s*[+-]?(inf|nan)\s*|\s*--?\s*", re.IGNORECASE
)
RIGHT_TO_LEFT_RUN = re.compile(
    r"[{0}](?:[{0}\s]*[{0}])?".format(
        "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
    )
)
MAX_NAME_CHARACTERS = 100  # characters of a name that are shown
MAX_TEXT_CHARACTERS = 20_000  # characters of any other text on a page


def parse_integer(text: str) -> int | None:
    """Return the integer that a text spells in ASCII digits, or None.

    >>> parse_integer("10"), parse_integer("-1"), parse_integer("²"), parse_integer("1.0")
    (10, -1, None, None)
    """
    text = text.strip()
    return int(text) if PLAIN_NUMBER.fullmatch(text) and text.lstrip("+-").isdigit() else None


def parse_number(text: str) -> float | None:
    """Return the number that a text spells in ASCII digits, with or without decimals or exponent, or None.

    >>> parse_number("1.0"), parse_number("-1"), parse_number("٣"), parse_number("1e3")
    (1.0, -1.0, None, 1000.0)
    """
    text = text.strip()
    return float(text) if PLAIN_NUMBER.fullmatch(text) else None


def escape_invisible(text: str, *, keep: str = "") -> str:
    r"""Return text in which what cannot be seen can be: controls, marks of direction, joints and halves of characters.

    >>> escape_invisible("a\x1b[31m\u202eb")
    'a\\x1b[31m\\u202eb'
    """
    return INVISIBLE_CHARACTER.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


INVISIBLE_CHARACTER = re.compile(  # categories Cc, Cf, Cs, Zl and Zp, and letters without ink
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180e"
    "\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000110bd"
    "\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)


def abbreviate(text: str, limit: int = MAX_NAME_CHARACTERS) -> str:
    """Return a text's beginning and end, and its length, if it has more than `limit` characters.

    >>> abbreviate("a" * 5_000_000, 12)
    'aaaaaaaa…aaaa (5,000,000 characters)'
    """
    last = limit // 3
    return text if len(text) <= limit else f"{text[: limit - last]}…{text[-last:]} ({len(text):,} characters)"


def display_name(name: str) -> str:
    """Return a name as it is shown to people: not too long, and nothing in it hidden."""
    return escape_invisible(abbreviate(name))


def isolate_right_to_left(text: str) -> str:
    r"""Return text in which words written from right to left do not reorder what stands around them.

    >>> isolate_right_to_left("a \u05d0\u05d1 1") == "a \u2068\u05d0\u05d1\u2069 1"
    True
    """
    return RIGHT_TO_LEFT_RUN.sub("\u2068\\g<0>\u2069", text)


def shorten_repr(value: object, limit: int = 80) -> str:
    """Return the `repr` of what somebody wrote, cut in the middle where it is long: messages stay one readable line.

    >>> shorten_repr("focal"), len(shorten_repr("x" * 5000))
    ("'focal'", 80)
    """
    return cut_middle(repr(value), limit)


def shorten_list(names: Sequence[str], limit: int = 8) -> str:
    """Return the first `limit` names, each shortened and quoted, and how many there are.

    >>> shorten_list(["cat", "dog", "owl"], 2)
    "'cat', 'dog', ... (3 in all)"
    """
    text = ", ".join(shorten_repr(name) for name in names[:limit])
    return text if len(names) <= limit else f"{text}, ... ({len(names)} in all)"


def to_one_line(message: object) -> str:
    r"""Return a message, such as that of an exception, on one line, cut in the middle beyond 240 characters.

    >>> to_one_line(ValueError("no\n  luck"))
    'no luck'
    """
    return cut_middle(" ".join(str(message).split()), 240)


def cut_middle(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, with its beginning and its end."""
    return text if len(text) <= limit else f"{text[: limit - limit // 4 - 3]}...{text[-(limit // 4) :]}"


def escape_latex(text: str) -> str:
    r"""Return text that LaTeX sets as it stands.

    >>> print(escape_latex(r"50 % of {x_1}"))
    50 \% of \{x\_1\}
    """
    runs = groupby(escape_invisible(text), _is_latex_printable)
    return "".join(
        _escape_latex_ascii(marks) if is_printable else _escape_latex_other_script(marks)
        for is_printable, marks in runs
    )


def _is_latex_printable(mark: str) -> bool:
    """Whether pdfLaTeX sets a character without further packages: ASCII, and Latin letters with common accents."""
    if mark.isascii() or mark in LATEX_PRINTABLE:
        return True
    base, *accents = unicodedata.normalize("NFD", mark)
    return mark < "\u0180" and base.isascii() and bool(accents) and "\u0328" not in accents


def _escape_latex_ascii(marks: Iterable[str]) -> str:
    return LATEX_LIGATURE_GAP.sub("{}", "".join(LATEX_ESCAPES.get(mark, mark) for mark in marks))


def _escape_latex_other_script(marks: Iterable[str]) -> str:
    """Set characters of other scripts in LuaLaTeX and XeLaTeX, their code points in pdfLaTeX, which would stop."""
    run = "".join(marks)
    return rf"\ifdefined\Umathcode {run}\else {' '.join(f'U+{ord(mark):04X}' for mark in run)}\fi{{}}"


def escape_markdown(text: str) -> str:
    r"""Return text that Markdown shows as it stands, inside a table too.

    >>> print(escape_markdown("a|*b* c_d"))
    a\|\*b\* c_d
    """
    return MARKDOWN_SPECIAL.sub(lambda found: "\\" + found[0], escape_invisible(text))


def escape_cell(text: str) -> str:
    """Return text that no spreadsheet takes for a formula; numbers stay what they are.

    >>> escape_cell("=1+1"), escape_cell("-0.5")
    ("'=1+1", '-0.5')
    """
    return escape_formula(escape_invisible(text))


def escape_formula(text: str) -> str:
    """Return text with an apostrophe in front if a spreadsheet could take it for a formula; `unprotected` removes it.

    >>> escape_formula("@a"), escape_formula("'=a"), escape_formula("a=1")
    ("'@a", "''=a", 'a=1')
    """
    return f"'{text}" if FORMULA_START.match(text) and not NUMBER_OR_DASH.fullmatch(text) else text


def unescape_column(texts: Iterable[str]) -> list[str]:
    """Return the texts of a column without the apostrophes of `formula_safe`.

    Where any text that would need an apostrophe has none, the column was written by others and stays as it is.

    >>> unescape_column(["'=a", "b"]), unescape_column(["'=a", "=a"])
    (['=a', 'b'], ["'=a", '=a'])
    """
    texts = list(texts)
    marked = [text.startswith("'") and escape_formula(text[1:]) == text for text in texts]
    if any(not mark and escape_formula(text) != text for mark, text in zip(marked, texts, strict=True)):
        return texts
    return [text[1:] if mark else text for mark, text in zip(marked, texts, strict=True)]


def escape_markup(text: str) -> str:
    """Return text that rich prints as it stands."""
    from rich.markup import escape

    return escape(escape_invisible(text))
