"""Tokens of a response with their log-probabilities, as servers return them.

Shapes: OpenAI's chat completions, completions and Responses API, Ollama and Gemini. vLLM's `prompt_logprobs` are of the
prompt, not of the response, and are ignored.
"""

import math
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calibrant._core.foreign import check_shape

TOKEN_SOURCES = ("tokens", "mean_token", "choices")  # see `token_confidence`
CLIPPED_LOG_PROB = -100.0  # of servers that clip
SENTINEL_LOG_PROB = -9999.0  # of a token that is not among the most likely ones, as OpenAI documents; others write -inf
UNKNOWN_TOKEN = "unknown token probability"  # reasons of a missing confidence
NO_CHOICE_TOKEN = "no token is a choice"
INVALID_TOKEN = "invalid token probability"
MARKS = " \t\n.,:;()[]{}*_\"'`\u2581\u0120\u010a"  # around a choice; the last three are blanks of tokenizers
_NUMBER = (int, float, type(None))
_ENTRY = {"token": (str, type(None)), "logprob": _NUMBER, "logProbability": _NUMBER}
_ENTRIES = [_ENTRY | {"top_logprobs": [_ENTRY]}]
_GEMINI = {"chosenCandidates": [_ENTRY], "topCandidates": [{"candidates": [_ENTRY]}]}
_COMPLETIONS = {"token_logprobs": [_NUMBER], "tokens": [str], "top_logprobs": list}


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a response."""

    text: str
    log_prob: float  # NaN if unknown
    top: Mapping[str, float] = field(default_factory=dict[str, float])  # log-probabilities of the most likely tokens


def find_tokens(record: Any) -> list[Token] | None:
    """Return the tokens of a response, or None if there are none.

    The response is the record itself, its first choice or candidate, or the response in its field `response`, `body`
    or `output`.

    Raises:
        InputError: If log-probabilities have another type than in the shape that their fields show ("json_type").
    """
    for part in nested_responses(record):
        log_probs, candidates = part.get("logprobs"), part.get("logprobsResult")
        if isinstance(log_probs, dict) and log_probs.get("content"):
            return _read_entries(log_probs["content"], "logprobs.content")
        if isinstance(log_probs, dict) and log_probs.get("token_logprobs"):
            return _read_completion(log_probs)
        if isinstance(log_probs, list) and log_probs:
            return _read_entries(log_probs, "logprobs")
        if isinstance(candidates, dict) and candidates.get("chosenCandidates"):
            check_shape(candidates, _GEMINI, "logprobsResult")
            tops = [_to_top(top.get("candidates")) for top in candidates.get("topCandidates") or ()]
            chosen = candidates["chosenCandidates"]
            tops += [{}] * (len(chosen) - len(tops))
            return [_to_token(entry, top) for entry, top in zip(chosen, tops, strict=False)]
    return None


def has_tokens(record: Any) -> bool:
    """Whether a JSON object has the fields of token log-probabilities, perhaps with values of another type."""
    for part in nested_responses(record):
        log_probs = part.get("logprobs")
        if isinstance(log_probs, dict) and (log_probs.get("content") or log_probs.get("token_logprobs")):
            return True
        if isinstance(log_probs, list) and log_probs and all(isinstance(entry, dict) for entry in log_probs):
            return True
        if part.get("logprobsResult") or "avgLogprobs" in part:
            return True
    return False


def _read_entries(entries: Any, where: str) -> list[Token]:
    """Return a list of tokens in the shape {token, logprob, top_logprobs}."""
    check_shape(entries, _ENTRIES, where)
    return [_to_token(entry, _to_top(entry.get("top_logprobs"))) for entry in entries]


def _read_completion(log_probs: Mapping[str, Any]) -> list[Token]:
    """Return the tokens of a completion, whose fields are lists. The first may be of a prompt, without one."""
    check_shape(log_probs, _COMPLETIONS, "logprobs")
    values = log_probs["token_logprobs"]
    texts = log_probs.get("tokens") or [""] * len(values)
    tops = log_probs.get("top_logprobs") or []
    tops = [top if isinstance(top, dict) else {} for top in tops] + [{}] * (len(values) - len(tops))
    check_shape(tops, [dict], "logprobs.top_logprobs")
    tokens = [
        Token(text, to_log_prob(value), {name: to_log_prob(number) for name, number in top.items()})
        for text, value, top in zip(texts, values, tops, strict=False)
    ]
    return tokens[1:] if values[0] is None else tokens


def _to_token(entry: Mapping[str, Any], top: Mapping[str, float]) -> Token:
    """Return an entry of any shape as a token."""
    return Token(entry.get("token") or "", to_log_prob(entry.get("logprob", entry.get("logProbability"))), top)


def _to_top(entries: Sequence[Mapping[str, Any]] | None) -> dict[str, float]:
    """Return the log-probabilities of the most likely tokens by their texts, the largest of equal texts."""
    tokens = [_to_token(entry, {}) for entry in entries or ()]
    return {token.text: token.log_prob for token in sorted(tokens, key=lambda token: token.log_prob)}


def to_log_prob(value: Any) -> float:
    """Return a log-probability, NaN if it is missing: null, infinite or another sentinel."""
    number = math.nan if not isinstance(value, int | float) or isinstance(value, bool) else _to_float(value)
    return math.nan if number <= SENTINEL_LOG_PROB or number == CLIPPED_LOG_PROB else number


def _to_float(value: float) -> float:
    """Return a number as a float, NaN for an integer that is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.nan


def find_response_text(record: Any) -> str | None:
    """Return the text of the first response in a record, or None without one.

    The response is searched for as in `find_tokens`. The content of a message may be a list of pieces.
    """
    for part in nested_responses(record):
        message = part.get("message") or part.get("content")  # the second of Gemini
        content = part.get("text", part.get("response"))
        if isinstance(message, dict):
            content = message.get("content", message.get("parts"))
        if isinstance(content, list):
            pieces = [piece for piece in content if isinstance(piece, dict) and not piece.get("thought")]
            content = "".join(str(piece.get("text", "")) for piece in pieces)
        if isinstance(content, str):
            return content
    return None


def nested_responses(record: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects that may be a response: a record, its first choice, and the objects nested in known fields."""
    if not isinstance(record, dict):
        return
    yield record
    for name in ("choices", "candidates"):
        alternatives = record.get(name)
        if isinstance(alternatives, list) and alternatives:
            yield from nested_responses(alternatives[0])
    for name in ("response", "body", "output"):
        part = record.get(name)
        yield from nested_responses(_join_items(part) if isinstance(part, list) else part)


def _join_items(items: Sequence[Any]) -> dict[str, Any] | None:
    """Return the texts and tokens in the messages of OpenAI's Responses API as one response, or None without any."""
    contents = [item["content"] for item in items if isinstance(item, dict) and isinstance(item.get("content"), list)]
    pieces = [piece for content in contents for piece in content if isinstance(piece, dict) and "text" in piece]
    if not pieces:
        return None
    log_probs = [piece.get("logprobs") for piece in pieces]
    are_complete = all(isinstance(tokens, list) and tokens for tokens in log_probs)
    tokens = [token for tokens in log_probs for token in tokens] if are_complete else None  # pyright: ignore
    return {"text": "".join(str(piece["text"]) for piece in pieces), "logprobs": tokens}


# Confidences


@dataclass(frozen=True, slots=True)
class TokenConfidence:
    """A confidence from tokens, or the reason why there is none."""

    value: float | None
    reason: str = ""
    outside: float | None = None  # probability outside the choices


def token_confidence(record: Any, source: str) -> TokenConfidence:
    """Return the confidence of a response from its tokens.

    It is None without tokens, and if the log-probability of one is a sentinel or, beyond rounding, positive.

    Args:
        record: A JSON object with a response; see `find_tokens`.
        source: "tokens", the probability of the whole response; "mean_token", the geometric mean of its token
            probabilities; or "choices", the probability of the choice, such as A, that it names, as a share of all
            choices among the most likely tokens.
    """
    tokens = find_tokens(record)
    if not tokens:
        return _mean_of_gemini(record) if source == "mean_token" else TokenConfidence(None)
    if source == "choices":
        return _choice_confidence(tokens)
    values = [token.log_prob for token in tokens]
    if any(value != value for value in values):
        return TokenConfidence(None, UNKNOWN_TOKEN)
    if any(value > 1e-6 for value in values):
        return TokenConfidence(None, INVALID_TOKEN)
    total = math.fsum(values)
    return TokenConfidence(min(1.0, math.exp(total if source == "tokens" else total / len(values))))


def _mean_of_gemini(record: Any) -> TokenConfidence:
    """Return the geometric mean of token probabilities that Gemini states without the tokens."""
    means = (part["avgLogprobs"] for part in nested_responses(record) if "avgLogprobs" in part)
    value = to_log_prob(next(means, None))
    return TokenConfidence(math.exp(value) if value <= 1e-6 else None)


def _choice_confidence(tokens: Sequence[Token]) -> TokenConfidence:
    """Return the share of the first token that is a choice in the probability of all choices beside it."""
    for token in tokens:
        name = token.text.strip(MARKS)
        choices = next((names for names in (string.ascii_uppercase, string.digits) if name and name in names), None)
        log_probs = {token.text: token.log_prob, **token.top}
        if choices is None or len(name) > 1:
            continue
        if name == "I" and {"H", "J"}.isdisjoint(text.strip(MARKS) for text in log_probs):  # as in "I think"
            continue
        shares, outside = choice_probabilities(log_probs, choices)
        value = shares.get(name)
        return TokenConfidence(value, UNKNOWN_TOKEN if value is None else "", outside)
    return TokenConfidence(None, NO_CHOICE_TOKEN)


def choice_probabilities(log_probs: Mapping[str, float], choices: Sequence[str]) -> tuple[dict[str, float], float]:
    """Return the probability of each choice as a share of all of them, and the probability outside the choices.

    The probability of a choice is the sum over its spellings, such as "A", " A" and "A.". A choice that is not among
    the tokens is left out: its probability is at most the one outside the choices.

    Args:
        log_probs: Log-probabilities of the most likely tokens at one place, by their texts. Sentinels are left out.
        choices: Names of the choices.

    >>> tokens = {"A": math.log(0.5), " A": math.log(0.25), "B": math.log(0.05), "The": math.log(0.2)}
    >>> shares, outside = choice_probabilities(tokens, "ABCD")
    >>> {name: round(share, 4) for name, share in shares.items()}, round(outside, 4)
    ({'A': 0.9375, 'B': 0.0625}, 0.2)
    """
    sums: dict[str, float] = {}
    names = {*choices}
    for text, log_prob in log_probs.items():
        name, value = text.strip(MARKS), to_log_prob(log_prob)
        if value <= 1e-6 and name in names:
            sums[name] = sums.get(name, 0.0) + min(1.0, math.exp(value))
    total = math.fsum(sums.values())
    return {name: value / total for name, value in sums.items() if total}, max(0.0, 1.0 - total)
