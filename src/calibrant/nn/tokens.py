"""Calibrate next-token predictions of language models, streamed over vocabularies of any size."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant._core.arrays import to_numpy
from calibrant._core.numbers import format_percent, format_percent_range
from calibrant._core.types import InputError, OpenFraction, PositiveFloat, check_arguments
from calibrant.metrics import Interval, Sample, Summary
from calibrant.nn._linear_loss import chunked_logits
from calibrant.predictions import Predictions

__all__ = ["TokenBatch", "TokenCalibration", "fit_token_temperature", "measure_tokens"]

TokenBatch = tuple[Tensor, Tensor]  # hidden states (b, t, d) or logits (b, t, k), and next tokens (b, t)
MAX_PASSES = 20  # over the batches, to fit a temperature
_TOLERANCE = 1e-6  # relative, of the temperature
_LOGITS_AT_A_TIME = 1 << 23


@dataclass(frozen=True, eq=False)
class TokenCalibration:
    """Calibration of the most probable next token, and the loss of the true one.

    `calibrant.measure(result.summary)` is the table of all metrics, `metrics.tables.groups(result.summary)` that of
    positions or token frequencies. Sequences are clusters: their tokens depend on each other.
    """

    summary: Summary  # of whether the most probable token is right
    nll: Interval  # mean -log p of the true token, in nats
    temperature: float

    def __str__(self) -> str:
        gap = self.summary.interval("signed_gap")
        return (
            f"{len(self.summary):,} tokens: NLL {self.nll.value:.4f} ({self.nll.low:.4f} to {self.nll.high:.4f}), "
            f"confidence minus accuracy {format_percent(gap.value, sign='+')} "
            f"({format_percent_range(gap.low, gap.high, sign='+')}), "
            f"at temperature {self.temperature:.4g}"
        )


@check_arguments
def measure_tokens(
    batches: Iterable[TokenBatch],
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    temperature: PositiveFloat = 1.0,
    by: Literal["position", "frequency"] | None = None,
    counts: Tensor | None = None,
    ignore_index: int = -100,
    level: OpenFraction = 0.90,
) -> TokenCalibration:
    """Measure the calibration of next-token predictions, whose logits exist for a few tokens at a time.

    Args:
        batches: Batches of hidden states (b, t, d) with `weight`, or of logits (b, t, k), beside the next tokens
            (b, t). A row is a whole sequence. Any floating-point precision; probabilities are computed in at least
            float32.
        weight: Weight of the last layer (k, d).
        bias: Bias of the last layer (k).
        temperature: Number that divides the logits; see `fit_token_temperature`.
        by: "position" groups tokens by their place in the sequence, 0, 1, 2 to 3, 4 to 7 and so on; "frequency" by how
            often the most probable token occurs among `counts`.
        counts: Number of occurrences of each token in a text (k), for `by="frequency"`.
        ignore_index: Next token of positions to leave out.
        level: Level of the interval of the NLL.

    Raises:
        InputError: If shapes do not fit together, a setting is out of range, or there are no tokens.

    >>> hidden, weight = torch.randn(4, 8, 16, generator=torch.manual_seed(0)), torch.zeros(50, 16)
    >>> result = measure_tokens([(hidden, torch.zeros(4, 8, dtype=torch.int64))], weight=weight)
    >>> len(result.summary), round(result.nll.value, 3)  # log 50
    (32, 3.912)
    """
    if by == "frequency" and counts is None:
        raise InputError("Expected the number of occurrences of each token. Try counts=.", code="no_counts")
    summary, sequences = None, 0  # number of sequences in earlier batches, from which clusters are numbered
    sums = list[Tensor]()  # per sequence (3, b): count, NLL and squared NLL of its tokens
    for scores, labels in batches:
        used = _used_tokens(scores, labels, weight, ignore_index)
        if counts is not None:
            _check_counts(counts, _vocabulary_size(scores, weight))
        if not bool(used.any()):
            continue
        parts = [_token_statistics(*chunk, temperature) for chunk in _chunks(scores, labels, used, weight, bias)]
        confidence, predicted, loss = (torch.cat(columns) for columns in zip(*parts, strict=True))
        row, position = used.nonzero(as_tuple=True)
        groups = None if by is None else _group_names(by, position, predicted, counts)
        correct = (predicted == labels[used]).long()
        clusters = (row + sequences).cpu().numpy()
        p = Predictions.from_confidence(confidence, correct, groups=groups, clusters=clusters)
        summary = Summary.from_predictions(p) if summary is None else summary.add(p)
        columns = torch.stack([torch.ones_like(loss), loss, loss.square()])
        sums.append(torch.zeros(3, len(labels), dtype=torch.float64).index_add_(1, row.cpu(), columns.cpu()))
        sequences += len(labels)
    if summary is None:
        raise InputError("Expected at least one token, got none. Try other batches.", code="no_rows")
    tokens, total, square = torch.cat(sums, 1)  # of each sequence
    n, mean = float(tokens.sum()), float(total.sum() / tokens.sum())
    has_tokens = tokens > 0
    sample = Sample.from_sums(
        n, mean, float(square.sum()) - n * mean**2, (to_numpy(tokens[has_tokens]), to_numpy(total[has_tokens]))
    )
    return TokenCalibration(summary, sample.normal_interval(level), float(temperature))


def fit_token_temperature(
    batches: Callable[[], Iterable[TokenBatch]],
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    ignore_index: int = -100,
) -> float:
    """Fit the temperature of next-token predictions by NLL, in a few passes over the batches (Newton's method).

    Args:
        batches: Function that returns the batches again for each pass, as for `measure_tokens`.
        weight: Weight of the last layer (k, d).
        bias: Bias of the last layer (k).
        ignore_index: Next token of positions to leave out.

    Raises:
        InputError: If shapes do not fit together, or there are no tokens.
    """
    inverse = 1.0  # 1 / temperature, in which the NLL is convex
    for _ in range(MAX_PASSES):
        sums = torch.zeros(2, dtype=torch.float64)
        for scores, labels in batches():
            used = _used_tokens(scores, labels, weight, ignore_index)
            for logits, tokens in _chunks(scores, labels, used, weight, bias):
                p = (inverse * logits).softmax(1)
                possible = logits.where(p > 0, 0)  # logits of -inf have no effect
                mean = (p * possible).sum(1, keepdim=True)
                # First and second derivative of the loss of each token by `inverse`
                slope = mean.squeeze(1) - logits.gather(1, tokens[:, None]).squeeze(1)
                curvature = (p * (possible - mean).square()).sum(1)
                sums += torch.stack([slope.double().sum(), curvature.double().sum()]).cpu()
        slope_sum, curvature_sum = sums.tolist()
        if not math.isfinite(slope_sum):
            raise InputError(
                "Expected finite logits of next tokens, got NaN or infinite ones. Try ignore_index for these tokens.",
                code="not_finite",
            )
        if curvature_sum == slope_sum == 0:
            raise InputError("Expected tokens with different logits, got none. Try other batches.", code="no_rows")
        if curvature_sum == 0:  # all probabilities are 0 or 1 in this precision
            break
        previous, step = inverse, -slope_sum / curvature_sum
        # Far from the minimum, Newton's steps may be too long: at most a factor of 3
        inverse = min(max(previous + step, previous / 3), 3 * previous)
        if abs(inverse - previous) <= _TOLERANCE * inverse:
            break
    return 1 / inverse


def _used_tokens(scores: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """Return which positions count (b, t), after checking the shapes and the next tokens."""
    if scores.ndim != 3 or labels.shape != scores.shape[:2]:
        raise InputError(
            f"Expected hidden states or logits (b, t, d) and next tokens (b, t), got {tuple(scores.shape)} and "
            f"{tuple(labels.shape)}.",
            code="shape",
        )
    used, k = labels != ignore_index, _vocabulary_size(scores, weight)
    tokens = labels[used]
    if tokens.is_floating_point() or bool(((tokens < 0) | (tokens >= k)).any()):
        raise InputError(
            f"Expected next tokens as integers in 0 .. {k - 1}, got others. Try ignore_index for padding.",
            code="token_range",
        )
    return used


def _vocabulary_size(scores: Tensor, weight: Tensor | None) -> int:
    """Return the number of tokens that logits or the weight of the last layer have."""
    return scores.shape[-1] if weight is None else len(weight)


def _check_counts(counts: Tensor, k: int) -> None:
    """Raise `InputError` unless there is a count of each of k tokens, one of them positive."""
    if counts.shape != (k,) or not bool((counts >= 0).all() and (counts > 0).any()):
        raise InputError(
            f"Expected the number of occurrences of each of {k} tokens, got {tuple(counts.shape)} or negative numbers.",
            code="token_counts",
        )


def _chunks(
    scores: Tensor, labels: Tensor, used: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits (m, k) and next tokens (m) of the positions that count, a few at a time."""
    used_labels = labels[used]
    for rows, logits in chunked_logits(scores[used], weight, bias, _LOGITS_AT_A_TIME):
        yield logits, used_labels[rows]


def _token_statistics(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the confidence, the most probable token, and the loss of the true one, each (m)."""
    log_p = (logits / temperature).log_softmax(1)
    top = log_p.max(1)
    loss = -log_p.gather(1, tokens[:, None]).squeeze(1)
    return top.values.double().exp().clamp_max(1), top.indices, loss.double()


def _group_names(by: str, position: Tensor, predicted: Tensor, counts: Tensor | None) -> Any:
    """Return the name of each token's group, such as "00004 to 00007" for positions or "at least 1e-3" for shares."""
    if by == "position":  # 0 and 1 are groups by themselves, followed by groups from a power of 2 to the next
        bits = [i.bit_length() for i in position.tolist()]
        return [f"{1 << (b - 1):05d} to {(1 << b) - 1:05d}" if b > 1 else f"{b:05d}" for b in bits]
    assert counts is not None  # `by` is "frequency", which needs the counts
    share = counts.double()[predicted.cpu()] / counts.sum()
    exponents = share.clamp_min(1e-12).log10().floor().long().tolist()  # of shares of 0, which are "never", any number
    return [f"at least 1e{e:d}" if s > 0 else "never" for e, s in zip(exponents, share.tolist(), strict=True)]
