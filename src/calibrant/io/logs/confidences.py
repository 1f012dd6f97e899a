"""Confidences and grades as texts state them: numbers, percentages, fractions, splits and words of probability."""

import math
import re
import unicodedata
from collections.abc import Mapping
from numbers import Real
from typing import Any

from calibrant._core.arguments import describe_argument
from calibrant._core.text import shorten_list, shorten_repr
from calibrant._core.types import Fraction, InputError
from calibrant.predictions.validation.words import normalize_word, outcome_scores

ProbabilityTable = Mapping[str, float]

# Tian et al. 2023 (arXiv 2305.14975), "Just Ask for Calibration", for expressions of Fagen-Ulmschneider's survey,
# "Perception of Probability Words"
_SURVEY = {
    "almost certain": 0.95, "almost certainly": 0.95, "highly likely": 0.9, "very good chance": 0.8, "likely": 0.7,
    "probably": 0.7, "better than even": 0.6, "about even": 0.5, "probably not": 0.25, "unlikely": 0.2,
    "little chance": 0.1, "chances are slight": 0.1, "highly unlikely": 0.05, "almost no chance": 0.02,
}  # fmt: skip
# Kent 1964, "Words of Estimative Probability", Studies in Intelligence: the centers of his ranges
_KENT = {
    "certain": 1.0, "almost certain": 0.93, "almost certainly": 0.93, "probable": 0.75, "probably": 0.75,
    "chances about even": 0.5, "probably not": 0.3, "almost certainly not": 0.07, "impossible": 0.0,
}  # fmt: skip
# US Intelligence Community Directive 203 (2015), D.6.e(2)(a): the centers of its ranges
_ICD_203 = {
    "almost no chance": 0.03, "remote": 0.03, "very unlikely": 0.125, "highly improbable": 0.125, "unlikely": 0.325,
    "improbable": 0.325, "roughly even chance": 0.5, "roughly even odds": 0.5, "likely": 0.675, "probable": 0.675,
    "probably": 0.675, "very likely": 0.875, "highly probable": 0.875, "almost certain": 0.97,
    "almost certainly": 0.97, "nearly certain": 0.97,
}  # fmt: skip
WORD_TABLES: Mapping[str, ProbabilityTable] = {"survey": _SURVEY, "kent": _KENT, "icd203": _ICD_203}
NUMBER = r"[+-]?(?:\d+(?:[.,]\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_PERCENT = r"\s*(?:\\?%|percent\b|per cent\b|pct\b|Prozent\b|pour ?cent\b|por ciento\b)"
_HEDGE = (
    r"(?:about|around|approximately|approx\.?|roughly|circa|ca\.|etwa|ungefähr|environ|alrededor de|约|大约|[~≈])\s*"
)
# A value, and what may follow it: words in parentheses or after a mark, without a further number. "90% or more" is none
_STATED = re.compile(
    rf"(?:{_HEDGE})?(?:(?P<prefix>百分之)?(?P<value>{NUMBER})(?P<percent>{_PERCENT})?"
    rf"(?:\s*(?P<sign>/|out of|of|von|sur|de)\s*(?P<total>{NUMBER})(?:{_PERCENT})?)?)"
    r"(?:\s*[(\[][^%]*|(?!\s*(?:or|oder|ou|o)\s)(?:\s*[*_\"'`.,;:!|}\]。，]+|\s+[-–—]+(?=\s)|\s+(?=[^\W\d]))[^\d%]*)?",
    re.IGNORECASE,
)
_IN_PARENTHESES = re.compile(r"[^\d%()]*[(\[]([^()\[\]]*)[)\]]\W*")  # as in "almost certain (95%)"
_LABEL = r"(?:confidence|konfidenz|sicherheit|confiance|certitude|confianza|certeza|certainty|置信度|信心|可信度)"
_PROBABILITY = r"(?:probability|likelihood|wahrscheinlichkeit|probabilité|probabilidad|概率|p\((?:correct|true|yes)\))"


def _patterns(label: str) -> tuple[re.Pattern[str], ...]:
    """Return patterns of the places where a response states the value of a label, with the groups scale and value."""
    word = rf"(?:(?<![^\W_])(?=[a-z])|(?![a-z])){label}(?:wert|grad)?"
    name = rf"{word}(?:[ _](?:score|level|rating|estimate|degree))?"
    scale = r"(?P<scale>[ \t]*\([^()\n]{1,60}\))?"
    marks = r"[ \t*_`\"'#|]*"
    return tuple(
        re.compile(pattern, re.IGNORECASE)
        for pattern in (
            # A key in JSON, a tag, a line such as "Confidence: 85%" or the next line, and a heading
            rf"\"[\w ]{{0,40}}{label}[\w ]{{0,40}}\"\s{{0,9}}:\s{{0,9}}(?P<scale>)(?P<value>\"[^\"\n]*\"|[^\s,}}\]]+)",
            rf"<[\w-]{{0,20}}{label}[\w-]{{0,20}}(?P<scale>)>\s{{0,9}}(?P<value>[^<\n]*)",
            rf"{name}{scale}{marks}(?:[:=|→]|[-–—][ \t](?=[ \t*]*\d)){marks}(?:\n\s{{0,9}})?{marks}(?P<value>[^\n]*)",
            rf"(?:^|\n)[ \t*_#]*{name}{scale}[ \t*_#]*\n\s{{0,9}}(?P<value>[^\n]*)",
            rf"{word}[^\n.:=<\"]{{0,60}}?(?:\b(?:is|ist|est|es|of)\b|为|是)(?P<scale>)\s{{0,9}}(?P<value>(?:{_HEDGE})?{NUMBER}[^\n]*)",
        )
    )


_SENTENCES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (  # "I am 85% sure", "with 85% confidence"
        rf"(?P<scale>)(?P<value>(?<![\d.,-]){NUMBER}{_PERCENT})\s{{0,9}}(?:confiden|certain|sure|sicher|sûr|segur)"
        r"(?!\w*\s+(?:intervals?|levels?|limits?|bands?|bounds?)\b)",
    )
)
_PLACES = (_patterns(_LABEL), _patterns(_PROBABILITY), _SENTENCES)  # the first with a value counts
_PERCENT_SCALE = re.compile(r"%|percent|\b100\b", re.IGNORECASE)
MAX_STATED = 500  # characters of a stated confidence
MAX_RESPONSE_TAIL = 200_000  # characters at the end of a response, where confidences are searched for


def probability_table(words: str | ProbabilityTable) -> ProbabilityTable:
    """Return the probabilities of words, given or from a named table. Raise `InputError` for unknown names."""
    if not isinstance(words, str):
        for word, value in words.items():
            if mismatch := describe_argument(f"the probability of {word!r}", value, Fraction, 0.9):
                raise InputError(mismatch, code="word_probability")
        return {_normalize(word): float(value) for word, value in words.items()}
    if words not in WORD_TABLES:
        raise InputError(
            f"Expected a table of words among {shorten_list(list(WORD_TABLES))}, got {words!r}.", code="unknown_words"
        )
    return WORD_TABLES[words]


def parse_confidence(stated: Any, *, percent: bool = False, words: str | ProbabilityTable = "survey") -> float | None:
    """Return a stated confidence as a probability, or None if it cannot be read.

    Ranges, bounds such as ">90%", and numbers outside [0, 1] are not read.

    Args:
        stated: A number, or a text such as "85%", "0.85", "8/10", "8 out of 10" or "highly likely".
        percent: Whether plain numbers, such as 85, are percentages.
        words: Probabilities of words: "survey" (Tian et al. 2023, by Fagen-Ulmschneider's survey), "kent" (Kent 1964),
            "icd203" (Intelligence Community Directive 203), or a mapping.

    >>> [parse_confidence(text) for text in ("85%", "0.85", "8/10", "Highly likely.", "80-90%", "I am sure")]
    [0.85, 0.85, 0.8, 0.9, None, None]
    """
    if isinstance(stated, Real) or stated is None:
        number = parse_plain_number(stated)
        return None if number is None else _to_share(number, 100.0 if percent else 1.0)
    text = _strip_marks(stated)
    in_parentheses = _IN_PARENTHESES.fullmatch(text)
    match = _STATED.fullmatch(in_parentheses[1] if in_parentheses else text)
    if match is None:
        return probability_table(words).get(_normalize(text))
    value = _parse_decimal(match["value"])
    if match["total"] is not None:
        return _to_share(value, _split_total(match) or _parse_decimal(match["total"]))
    return _to_share(value, 100.0 if percent or match["percent"] or match["prefix"] else 1.0)


def _split_total(match: re.Match[str]) -> float | None:
    """Return the sum of a split such as "40/60" or "0.4/0.6", or None for a fraction such as "8/10"."""
    a, b = _parse_decimal(match["value"]), _parse_decimal(match["total"])
    total = a + b
    is_split = total == 100 or (min(a, b) > 0 and math.isclose(total, 1.0))
    return total if match["sign"] == "/" and is_split else None


def parse_plain_number(stated: Any) -> float | None:
    """Return the number that `stated` is or spells, or None for other values, True and False."""
    if isinstance(stated, bool):
        return None
    if isinstance(stated, Real):
        try:
            return float(stated)
        except OverflowError:  # of an integer that is too large
            return math.inf
    match = _STATED.fullmatch(_strip_marks(stated))
    is_plain = match is not None and not (match["percent"] or match["prefix"] or match["total"])
    return _parse_decimal(match["value"]) if match is not None and is_plain else None


def is_missing(value: Any) -> bool:
    """Whether a value of a log is None, NaN or a blank text."""
    return value is None or value != value or str(value).strip() == ""  # NaN differs from itself


def read_grade(grade: Any, scores: Mapping[str, float | None] | None = None) -> float | None:
    """Return a grade in [0, 1], or None if it is missing, or raise `InputError` for any other value.

    It may be a number, its text, True or False, or a word in any case. No answer counts as wrong, 0.

    Args:
        grade: The grade.
        scores: Scores of words. Default: those of `outcome_scores` for the letters of Inspect.

    >>> read_grade("P"), read_grade("Yes"), read_grade(0.25), read_grade(None)
    (0.5, 1.0, 0.25, None)
    """
    if is_missing(grade):
        return None
    scores = outcome_scores((), are_letters=True) if scores is None else scores
    number, word = parse_grade(grade), normalize_word(grade)
    if number is None and word not in scores:
        raise InputError(
            f"Expected a grade in [0, 1] or a word such as correct, got {shorten_repr(grade)}.", code="grade"
        )
    return (scores[word] or 0.0) if number is None else number


def parse_grade(grade: Any) -> float | None:
    """Return a number, its text, True or False as a grade in [0, 1], or None for everything else."""
    if not isinstance(grade, str | int | float):
        return None
    number = float(grade) if isinstance(grade, bool) else parse_plain_number(grade)  # which returns None for True
    return number if number is not None and 0 <= number <= 1 else None


def _strip_marks(stated: Any) -> str:
    """Return a text without emphasis, quotes and the final period."""
    text = unicodedata.normalize("NFKC", str(stated)[:MAX_STATED]).strip()
    text = text.strip("*_\"'`$").strip()
    if text[:1] in ("(", "["):
        text = text.strip("()[]")
    return text.strip("*_\"'`$ ").removesuffix(".").strip("*_\"'`$ ")


def find_stated_confidence(response: str) -> str | None:
    r"""Return the last confidence that a response states with a number or a word of probability, or None without one.

    A confidence stands behind a label such as "Confidence:", "Konfidenz:" or "置信度：" on its line or the next one, in
    a key of JSON, in a tag, or in a sentence such as "I am 85% sure". Without one, a probability counts ("Probability:
    0.9", Tian et al. 2023). A confidence that cannot be read is returned if there is no other.

    >>> find_stated_confidence("Answer: Paris\n**Confidence:** 85%")
    '85%'
    >>> find_stated_confidence("<answer>Paris</answer><confidence>0.9</confidence>")
    '0.9'
    """
    text = unicodedata.normalize("NFKC", response[-MAX_RESPONSE_TAIL:])  # full-width digits and marks become plain
    unread_values: list[str] = []
    for patterns in _PLACES:
        matches = [match for pattern in patterns for match in pattern.finditer(text)]
        values = [_labeled_value(match) for match in sorted(matches, key=lambda match: match.start("value"))]
        values = [value for value in values if value]
        unread_values += values
        for value in reversed(values):
            if parse_plain_number(value) is not None or any(
                parse_confidence(value, words=table) is not None for table in WORD_TABLES.values()
            ):
                return value
    return unread_values[-1] if unread_values else None


def _labeled_value(match: re.Match[str]) -> str:
    """Return the value behind a label, in percent if the label says that its scale ends at 100."""
    value = match["value"].strip().strip("*_`\"'|$,}]").strip()
    is_percent = match["scale"] and _PERCENT_SCALE.search(match["scale"])
    return f"{value}%" if is_percent and re.fullmatch(NUMBER, value) else value


def stated_form(stated: object) -> str:
    """Return the form of a stated confidence: its text with N for every number.

    >>> stated_form("80 - 90 %")
    'N - N %'
    """
    return re.sub(rf"(?<![^\W\d_]){NUMBER}", "N", str(stated).strip())


def _parse_decimal(text: str) -> float:
    """Return the number that a text spells, with a decimal point or comma."""
    return float(text.replace(",", "."))


def _to_share(value: float, total: float) -> float | None:
    """Return a value as a share of a total, None unless it is in [0, 1]."""
    is_share = total > 0 and math.isfinite(value) and 0 <= value <= total
    return value / total if is_share else None


def _normalize(text: str) -> str:
    """Return the words of a text in lower case, without punctuation."""
    return " ".join(re.findall(r"[^\W_]+", text.casefold()))


def as_object(value: Any) -> Mapping[str, Any]:
    """Return a JSON value that is an object, and an empty object for any other value."""
    return value if isinstance(value, dict) else {}
