"""Confidences of answers: numbers, fractions and words of probability in texts, and log-probabilities of tokens.

Those of tokens have the shape of OpenAI's API: `logprobs.content[] = {token, logprob, top_logprobs}`.
"""

import math
import re
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

from calibrant._text import shorten_list, shorten_repr
from calibrant._validation import check_range
from calibrant.types import InputError

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
GRADE_WORDS = {
    **dict.fromkeys(("c", "correct", "yes", "true", "right"), 1.0),
    "p": 0.5,  # partially correct
    **dict.fromkeys(("i", "incorrect", "no", "false", "wrong", "n"), 0.0),
}
NUMBER = r"[+-]?(?:\d+(?:[.,]\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_PERCENT = re.compile(rf"({NUMBER})\s*(?:\\?%|percent|per cent)", re.IGNORECASE)
_FRACTION = re.compile(rf"({NUMBER})\s*(?:/|out of)\s*({NUMBER})", re.IGNORECASE)
_NUMBER = re.compile(NUMBER)
# The word confidence at the begin of a word, perhaps in Markdown, then : or =, then the rest of the line
_RESPONSE = re.compile(r"(?<![^\W_])confidence(?: (?:score|level))?[ \t*_]*[:=][ \t*_]*([^\n]*)", re.IGNORECASE)
TOKEN_SOURCES = ("tokens", "mean_token")  # probability of the whole response, and its geometric mean per token


def probability_table(words: str | ProbabilityTable) -> ProbabilityTable:
    """Return the probabilities of words, given or from a named table. Raise `InputError` for unknown names."""
    if not isinstance(words, str):
        for word, value in words.items():
            check_range(f"the probability of {word!r}", value, "[0, 1]", 0.9, code="word_probability")
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
    number, text = parse_plain_number(stated), _strip_marks(stated)
    if number is not None:
        return _to_share(number, 100.0 if percent else 1.0)
    if match := _PERCENT.fullmatch(text):
        return _to_share(_parse_decimal(match[1]), 100.0)
    if match := _FRACTION.fullmatch(text):
        return _to_share(_parse_decimal(match[1]), _parse_decimal(match[2]))
    return probability_table(words).get(_normalize(text))


def parse_plain_number(stated: Any) -> float | None:
    """Return the number that `stated` is or spells, or None for other values, True and False."""
    if isinstance(stated, bool):
        return None
    if isinstance(stated, Real):
        try:
            return float(stated)
        except OverflowError:  # of an integer that is too large
            return math.inf
    match = _NUMBER.fullmatch(_strip_marks(stated))
    return _parse_decimal(match[0]) if match else None


def is_missing(value: Any) -> bool:
    """Whether a value of a log is None, NaN or a blank text."""
    return value is None or value != value or str(value).strip() == ""  # NaN differs from itself


def read_grade(grade: Any) -> float | None:
    """Return a grade in [0, 1], or None if it is missing, or raise `InputError` for any other value.

    It may be a number, its text, True or False, or one of `GRADE_WORDS` in any case.

    >>> read_grade("P"), read_grade("Yes"), read_grade(0.25), read_grade(None)
    (0.5, 1.0, 0.25, None)
    """
    if is_missing(grade):
        return None
    number = GRADE_WORDS.get(str(grade).strip().casefold(), parse_grade(grade))
    if number is None:
        raise InputError(
            f"Expected a grade in [0, 1] or a word such as correct, got {shorten_repr(grade)}.", code="grade"
        )
    return number


def parse_grade(grade: Any) -> float | None:
    """Return a number, its text, True or False as a grade in [0, 1], or None for everything else."""
    if not isinstance(grade, str | int | float):
        return None
    number = float(grade) if isinstance(grade, bool) else parse_plain_number(grade)  # which returns None for True
    return number if number is not None and 0 <= number <= 1 else None


def _strip_marks(stated: Any) -> str:
    """Return a text without emphasis, quotes and the final period."""
    return str(stated).strip().strip("*_\"'`()[]").strip().removesuffix(".").strip()


def find_stated_confidence(response: str) -> str | None:
    r"""Return what the last line such as "Confidence: 85%" of a response states, or None without one.

    >>> find_stated_confidence("Answer: Paris\n**Confidence:** 85%")
    '85%'
    """
    matches = _RESPONSE.findall(response)
    return matches[-1].strip() if matches else None


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


# Probabilities of tokens


def as_object(value: Any) -> Mapping[str, Any]:
    """Return a JSON value that is an object, and an empty object for any other value."""
    return value if isinstance(value, dict) else {}


def find_token_log_probs(record: Any) -> list[float] | None:
    """Return the log-probabilities of the tokens of a response, or None if there are none.

    The response is the record itself, its first choice, or the response in its field `response`, `body` or `output`.
    """
    for part in _nested_responses(record):
        log_probs = as_object(part.get("logprobs"))
        if content := log_probs.get("content"):
            # An unknown log-probability makes the probability of the response unknown
            return [math.nan if token["logprob"] is None else float(token["logprob"]) for token in content]
        # Completions, in which the first token may have none because nothing comes before it
        if log_probs.get("token_logprobs"):
            return [float(value) for value in log_probs["token_logprobs"] if value is not None]
    return None


def find_response_text(record: Any) -> str | None:
    """Return the text of the first response in a record, or None without one.

    The response is searched for as in `find_token_log_probs`. The content of a message may be a list of pieces.
    """
    for part in _nested_responses(record):
        message = part.get("message")
        content = message.get("content") if isinstance(message, dict) else part.get("text")
        if isinstance(content, list):
            content = "".join(str(piece.get("text", "")) for piece in content if isinstance(piece, dict))
        if isinstance(content, str):
            return content
    return None


def _nested_responses(record: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects that may be a response: a record, its first choice, and the objects nested in known fields."""
    if not isinstance(record, dict):
        return
    yield record
    choices = record.get("choices")
    if isinstance(choices, list) and choices:
        yield from _nested_responses(choices[0])
    for name in ("response", "body", "output"):
        yield from _nested_responses(record.get(name))


def token_confidence(log_probs: list[float] | None, source: str) -> float | None:
    """Return the probability of a response, or for "mean_token" the geometric mean of its token probabilities.

    It is None without tokens, and if a log-probability is NaN or, beyond rounding, positive.

    >>> round(token_confidence([math.log(0.5), math.log(0.125)], "mean_token"), 6)
    0.25
    """
    if not log_probs or any(value != value or value > 1e-6 for value in log_probs):
        return None
    total = math.fsum(log_probs)
    return min(1.0, math.exp(total if source == "tokens" else total / len(log_probs)))
