"""What people wrote, made safe for where it is shown: a terminal, a page, Markdown, LaTeX, a spreadsheet."""

import re
import unicodedata
from collections.abc import Iterable

LATEX = {
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
JOINED = re.compile(r"(?<=[-'`?!,])(?=[-'`,])")  # inside --, '' and what else LaTeX sets as one character
MARKDOWN = re.compile(r"[\\`*\[\]<>&|~!$@]|(?<!\w)_|_(?!\w)|(?<=:)/(?=/)|(?<=www)\.")
FORMULA = re.compile(r"'*\s*[=+\-@＝＋－＠]")
PLAIN_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{0,15})?([eE][+-]?[0-9]{1,2})?")  # longer ones are names
NO_FORMULA = re.compile(  # numbers, also with a decimal comma or a percent sign, and dashes for a missing value
    r"\s*[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?\s*%?\s*|\s*[+-]?(inf|nan)\s*|\s*--?\s*", re.IGNORECASE
)


def plain_integer(text: str) -> int | None:
    """Return the integer that a text spells in ASCII digits, or None.

    >>> plain_integer("10"), plain_integer("-1"), plain_integer("²"), plain_integer("1.0")
    (10, -1, None, None)
    """
    text = text.strip()
    return int(text) if PLAIN_NUMBER.fullmatch(text) and text.lstrip("+-").isdigit() else None


def plain_number(text: str) -> float | None:
    """Return the number that a text spells in ASCII digits, with or without decimals or exponent, or None.

    >>> plain_number("1.0"), plain_number("-1"), plain_number("٣"), plain_number("1e3")
    (1.0, -1.0, None, 1000.0)
    """
    text = text.strip()
    return float(text) if PLAIN_NUMBER.fullmatch(text) else None


def visible(text: str, *, but: str = "") -> str:
    r"""Return text in which what cannot be seen can be: controls, marks of direction, joints and halves of characters.

    >>> visible("a\x1b[31m\u202eb")
    'a\\x1b[31m\\u202eb'
    """
    return "".join(mark if mark in but or not _hidden(mark) else _spelled(mark) for mark in text)


def _hidden(mark: str) -> bool:
    return (not mark.isascii() and unicodedata.category(mark) in HIDDEN) or mark < " " or mark == "\x7f"


HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def _spelled(mark: str) -> str:
    return ascii(mark)[1:-1]


def shorten(value: object, limit: int = 80) -> str:
    """Return the `repr` of what somebody wrote, cut in the middle where it is long: messages stay one readable line.

    >>> shorten("focal"), len(shorten("x" * 5000))
    ("'focal'", 80)
    """
    return cut_middle(repr(value), limit)


def cut_middle(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters, with its beginning and its end."""
    return text if len(text) <= limit else f"{text[: limit - limit // 4 - 3]}...{text[-(limit // 4) :]}"


def latex(text: str) -> str:
    r"""Return text that LaTeX sets as it stands.

    >>> print(latex(r"50 % of {x_1}"))
    50 \% of \{x\_1\}
    """
    return JOINED.sub("{}", "".join(LATEX.get(mark, mark) for mark in visible(text)))


def markdown(text: str) -> str:
    r"""Return text that Markdown shows as it stands, inside a table too.

    >>> print(markdown("a|*b* c_d"))
    a\|\*b\* c_d
    """
    return MARKDOWN.sub(lambda found: "\\" + found[0], visible(text))


def cell(text: str) -> str:
    """Return text that no spreadsheet takes for a formula; numbers stay what they are.

    >>> cell("=1+1"), cell("-0.5")
    ("'=1+1", '-0.5')
    """
    return formula_safe(visible(text))


def formula_safe(text: str) -> str:
    """Return text with an apostrophe in front if a spreadsheet could take it for a formula; `unprotected` removes it.

    >>> formula_safe("@a"), formula_safe("'=a"), formula_safe("a=1")
    ("'@a", "''=a", 'a=1')
    """
    return f"'{text}" if FORMULA.match(text) and not NO_FORMULA.fullmatch(text) else text


def unprotected(texts: Iterable[str]) -> list[str]:
    """Return the texts of a column without the apostrophes of `formula_safe`.

    Where any text that would need an apostrophe has none, the column was written by others and stays as it is.

    >>> unprotected(["'=a", "b"]), unprotected(["'=a", "=a"])
    (['=a', 'b'], ["'=a", '=a'])
    """
    texts = list(texts)
    marked = [text.startswith("'") and formula_safe(text[1:]) == text for text in texts]
    if any(not mark and formula_safe(text) != text for mark, text in zip(marked, texts, strict=True)):
        return texts
    return [text[1:] if mark else text for mark, text in zip(marked, texts, strict=True)]


def markup(text: str) -> str:
    """Return text that rich prints as it stands."""
    from rich.markup import escape

    return escape(visible(text))
