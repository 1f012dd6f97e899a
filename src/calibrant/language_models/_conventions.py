"""Calibration numbers of published evaluations, each with its treatment of missing confidences and ties."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from calibrant.language_models._block_bounds import block_error_bounds
from calibrant.language_models._log import Answers, EvaluationLog, check_binary

BLOCK_SIZE = 100  # answers per block of the HLE error
BROWSECOMP_EDGES = np.linspace(0.0, 1.0, 11)  # of its ten bins
ValueAndRange = tuple[float, float, float]  # value, and least and greatest value over all orders of equal confidences


@dataclass(frozen=True)
class PublishedValue:
    """The value of a published convention, and its range over all orders of answers with equal confidences."""

    name: str
    value: float  # NaN if the published code fails
    low: float
    high: float
    n: int  # answers that count
    filled: int  # answers among them whose missing confidence was filled in


@dataclass(frozen=True)
class Convention:
    """A published convention: its definition, source and computation."""

    name: str
    title: str
    definition: str
    source: str
    compute: Callable[[np.ndarray, np.ndarray, np.ndarray], ValueAndRange]  # confidence, correct, is_answered
    missing: str = "A missing confidence counts as 100 %."  # treatment of missing confidences
    higher_is_better: bool = False
    uses_confidence: bool = True

    def __call__(self, log: EvaluationLog) -> PublishedValue:
        """Return the value of this convention for a log, and its range over all orders of equal confidences.

        The value takes equal confidences in the order of the rows.

        Raises:
            InputError: If scores are fractional.
        """
        answers = Answers.from_rows(log.rows)
        answers = answers[answers.is_graded]
        check_binary(answers.correct)
        is_missing = np.isnan(answers.confidence)
        confidence = np.where(is_missing, 1.0, answers.confidence)  # as the published evaluations do
        value, low, high = self.compute(confidence, answers.correct, answers.is_answered)
        filled = int(is_missing.sum()) if self.uses_confidence else 0
        return PublishedValue(self.name, value, low, high, n=len(answers), filled=filled)


def conventions(log: EvaluationLog) -> dict[str, PublishedValue]:
    """Return the value of every published convention, by name.

    `CONVENTIONS` describes them. Only graded answers count. The evaluations grade a missing answer as wrong, and give
    it a confidence of 100 %.

    Args:
        log: The log of an evaluation.

    Raises:
        InputError: If scores are fractional.
    """
    return {name: convention(log) for name, convention in CONVENTIONS.items()}


def block_ends(n: int, size: int) -> np.ndarray:
    """Return the ends of blocks of equal size. The last block takes the rest. There are no blocks if n < size.

    >>> block_ends(350, 100)
    array([100, 200, 350])
    """
    ends = size * np.arange(1, n // size + 1)
    ends[-1:] = n  # a slice, which may be empty
    return ends


def hle_error(
    confidence: np.ndarray, correct: np.ndarray, *, size: int = BLOCK_SIZE, with_last_block: bool = False
) -> float:
    r"""Return the error of Humanity's Last Exam, $\sqrt{\sum_b n_b / n \, (conf_b - acc_b)^2}$ over blocks.

    Block b has $n_b$ of the n answers, the mean confidence $conf_b$ and the accuracy $acc_b$. Answers are sorted by
    confidence and divided into blocks of 100, of which the last takes the rest (the function `calib_err` of
    centerforaisafety/hle). The published code leaves out the last block, with the highest confidences, and fails for
    fewer answers than a block: the value is then NaN. Equal confidences are in the order of numpy's default sort, which
    depends on their order in the file and on the processor.

    Args:
        confidence: Confidences (n,).
        correct: 0 or 1 (n,).
        size: Answers per block.
        with_last_block: Whether the last block counts.

    >>> hle_error(np.array([0.25, 0.5, 0.75, 1.0]), np.array([0, 1, 1, 1]), size=2)  # a gap of 1/8 in half of all
    0.08838834764831845
    """
    ends = block_ends(len(confidence), size)
    if len(ends) == 0:
        return math.nan
    order = np.argsort(confidence)  # not stable, as in the published code
    starts = np.concatenate([[0], ends[:-1]])
    gap_sums = np.add.reduceat(confidence[order], starts) - np.add.reduceat(correct[order], starts)
    squares = gap_sums**2 / (ends - starts) / len(confidence)  # n_b / n (gap_sum / n_b)^2
    return math.sqrt(squares[: None if with_last_block else -1].sum())


def browsecomp_error(confidence: np.ndarray, correct: np.ndarray, *, keeps_zero: bool = True) -> float:
    r"""Return the error of BrowseComp, $\sum_b n_b / n \, |conf_b - acc_b|$ over ten bins (lo, hi] of equal width.

    Bin b has $n_b$ of the n answers, the mean confidence $conf_b$ and the accuracy $acc_b$.

    Args:
        confidence: Confidences (n,).
        correct: 0 or 1 (n,).
        keeps_zero: Whether a confidence of 0 belongs to the first bin. In inspect_evals before 0.25.0 it belonged to
            none, and still counted in n.

    >>> c, a = np.array([0.0, 0.5]), np.array([1, 1])
    >>> browsecomp_error(c, a), browsecomp_error(c, a, keeps_zero=False)
    (0.75, 0.25)
    """
    if len(confidence) == 0:
        return math.nan
    # n_b |conf_b - acc_b| is the absolute sum of confidence minus outcome. Element 0 is for confidences of 0
    gap_sums = np.bincount(browsecomp_bin(confidence) + 1, confidence - correct, len(BROWSECOMP_EDGES))
    if keeps_zero:
        gap_sums[1] += gap_sums[0]
    return float(np.abs(gap_sums[1:]).sum() / len(confidence))


def browsecomp_bin(confidence: np.ndarray) -> np.ndarray:
    """Return the index of each confidence's bin among `BROWSECOMP_EDGES`, or -1 for a confidence of 0."""
    return np.digitize(confidence, BROWSECOMP_EDGES, right=True) - 1


def simpleqa_f(correct: np.ndarray, is_answered: np.ndarray) -> float:
    """Return SimpleQA's F-score, the harmonic mean of the accuracies over all and over attempted questions.

    A missing answer is not attempted. The score is 0 without a correct answer, and nan without any questions.

    >>> simpleqa_f(np.array([1, 0, 0]), np.array([True, True, False]))
    0.4
    """
    hits, attempted = correct[is_answered].sum(), is_answered.sum()
    # The harmonic mean of hits / n and hits / attempted is 2 hits / (n + attempted)
    return float(2 * hits / (len(correct) + attempted)) if len(correct) else math.nan


def _hle(
    confidence: np.ndarray,
    correct: np.ndarray,
    is_answered: np.ndarray,
    *,
    with_last_block: bool = True,
    size: int = BLOCK_SIZE,
) -> ValueAndRange:
    """Return the HLE error and its range over all orders of equal confidences, NaN for fewer answers than a block.

    `is_answered` has no influence: it is a parameter because all conventions are called with it.
    """
    value = hle_error(confidence, correct, size=size, with_last_block=with_last_block)
    if math.isnan(value):
        return _same_for_all_orders(value)
    ends = block_ends(len(confidence), size)
    low, high = block_error_bounds(confidence, correct, ends, with_last_block=with_last_block)
    return value, min(low, value), max(high, value)  # rounding may put the value outside of the range


def _inspect_hle(confidence: np.ndarray, correct: np.ndarray, is_answered: np.ndarray) -> ValueAndRange:
    """Return the HLE error of inspect_evals, and its range over all orders of equal confidences.

    Confidences are rounded down to whole percents, and fewer than 100 answers are one block. `is_answered` has no
    influence: it is a parameter because all conventions are called with it.
    """
    whole_percents = np.floor(np.round(100 * confidence, 9)) / 100  # rounded, since 100 * 0.29 is 28.999999999999996
    return _hle(whole_percents, correct, is_answered, size=max(1, min(BLOCK_SIZE, len(confidence))))


def _same_for_all_orders(value: float) -> ValueAndRange:
    """Return a value that does not depend on the order of answers, and so is its own range."""
    return value, value, value


_HLE_DEFINITION = "sorted by confidence into blocks of 100, root of the mean square gap"

CONVENTIONS = {
    convention.name: convention
    for convention in (
        Convention(
            name="hle",
            title="HLE calibration error",
            definition=f"{_HLE_DEFINITION}; the block of highest confidences is left out, as in the published code",
            source="https://github.com/centerforaisafety/hle, hle_eval/run_judge_results.py",
            compute=partial(_hle, with_last_block=False),
        ),
        Convention(
            name="hle_all_blocks",
            title="HLE error, all blocks",
            definition=f"{_HLE_DEFINITION}; with the last block",
            source="https://github.com/centerforaisafety/hle, hle_eval/run_judge_results.py",
            compute=_hle,
        ),
        Convention(
            name="inspect_hle",
            title="HLE error of inspect_evals",
            definition=f"{_HLE_DEFINITION}; with the last block, confidences cut to whole percents, one block for fewer"
            " than 100",
            source="inspect_evals 0.26.0, hle/metrics.py",
            compute=_inspect_hle,
        ),
        Convention(
            name="browsecomp",
            title="BrowseComp calibration error",
            definition="ten bins of equal width, mean absolute gap",
            source="inspect_evals from 0.25.0 on, browse_comp/browse_comp.py",
            compute=lambda confidence, correct, _: _same_for_all_orders(browsecomp_error(confidence, correct)),
        ),
        Convention(
            name="browsecomp_without_zero",
            title="BrowseComp error, old version",
            definition="ten bins of equal width, mean absolute gap; a confidence of 0 is in no bin",
            source="inspect_evals before 0.25.0, browse_comp/browse_comp.py",
            compute=lambda confidence, correct, _: _same_for_all_orders(
                browsecomp_error(confidence, correct, keeps_zero=False)
            ),
        ),
        Convention(
            name="simpleqa_f",
            title="SimpleQA F-score",
            definition="harmonic mean of the shares correct of all and correct of those attempted",
            source="https://github.com/openai/simple-evals, simpleqa_eval.py; inspect_evals 0.26.0, simpleqa/scorer.py",
            compute=lambda _, correct, is_answered: _same_for_all_orders(simpleqa_f(correct, is_answered)),
            missing="Confidences do not count.",
            higher_is_better=True,
            uses_confidence=False,
        ),
    )
}
