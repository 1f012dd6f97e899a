"""Token log-probabilities in the shape of OpenAI's API: `logprobs.content[] = {token, logprob, top_logprobs}`."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

TOKEN_SOURCES = ("tokens", "mean_token")  # probability of the whole response, and its geometric mean per token


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
            # An unknown one makes the probability of the response unknown
            return [math.nan if token["logprob"] is None else float(token["logprob"]) for token in content]
        # Completions, in which the first token may have none because nothing comes before it
        if log_probs.get("token_logprobs"):
            return [float(value) for value in log_probs["token_logprobs"] if value is not None]
    return None


def find_response_text(record: Any) -> str | None:
    """Return the text of a response, found where log-probabilities are, or None without one."""
    for part in _nested_responses(record):
        message = part.get("message")
        content = message.get("content") if isinstance(message, dict) else part.get("text")
        if isinstance(content, list):
            content = "".join(str(piece.get("text", "")) for piece in content if isinstance(piece, dict))
        if isinstance(content, str):
            return content
    return None


def _nested_responses(record: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects that may be a response: a record, its first choice, and those nested in known fields."""
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
