"""Checks of fitting against evaluation data: common rows, and different class frequencies."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from calibrant._core.kernels.overlap import Overlap, Sketch
from calibrant._core.text import display_name
from calibrant._core.types import InputError
from calibrant.assessment._sentences import capitalize
from calibrant.predictions import Predictions
from calibrant.predictions.events import CORRECTNESS

MAX_SHIFT_P_VALUE = 1e-3
MIN_SHIFT_DISTANCE = 0.02  # total variation distance of class frequencies below which a shift is not reported


@dataclass(frozen=True)
class FittingRecord:
    """The known facts about the data that a calibrator was fitted on."""

    calibrator_name: str
    digests: frozenset[str] = frozenset()
    sketch: Sketch | None = None  # of the rows, if the file of the calibrator has one
    class_names: tuple[str, ...] | None = None

    def overlap_message(self, p: Predictions) -> str:
        """Return a message if the calibrator was fitted on these predictions or many of their rows, else ""."""
        if p.digest in self.digests:
            return f"{self.calibrator_name} was fitted on these predictions ({p.digest})"
        if self.sketch is None:  # nothing to compare hashes of the rows with
            return ""
        return self.row_overlap_message(Sketch.from_hashes(p.row_hashes))

    def row_overlap_message(self, evaluation_sketch: Sketch) -> str:
        """Return a message if the calibrator was fitted on too many rows of a sketch, or "" if not or if unknown."""
        if self.sketch is None:
            return ""
        overlap = Overlap.compare(evaluation_sketch, self.sketch)
        return f"{self.calibrator_name} was fitted on some of these rows: {overlap.text}" if overlap.too_large else ""

    def check_overlap(self, p: Predictions) -> None:
        """Refuse predictions that the calibrator was fitted on."""
        _refuse_overlap(self.overlap_message(p))


def _refuse_overlap(message: str) -> None:
    """Raise an `InputError` with a message about common rows, unless it is empty."""
    if message:
        raise InputError(f"{message}. Try other evaluation data.", code="fitted_on_same")


class OverlapGuard:
    """Collects evaluation data, chunk by chunk, and refuses data that a calibrator was fitted on."""

    def __init__(self, val: Predictions, records: Sequence[FittingRecord]) -> None:
        self.val, self.records = val, records
        self.evaluation_sketch: Sketch | None = None  # of the rows of all chunks so far
        self.evaluation_counts: np.ndarray = np.zeros(val.k)  # of their labels

    def inspect(self, chunk: Predictions) -> None:
        """Check and record a chunk of the evaluation data."""
        if self.val.k != chunk.k:
            raise InputError(
                f"Expected fitting and evaluation data with the same classes, got {self.val.k} and {chunk.k} classes.",
                code="num_classes",
            )
        saved_names = {r.class_names for r in self.records if r.class_names is not None}
        if chunk.class_names and saved_names - {chunk.class_names}:
            raise InputError(
                "Expected saved calibrators with the same order of classes. Try one calibrator at a time.",
                code="class_order",
            )
        for record in self.records:
            record.check_overlap(chunk)
        if self.evaluation_sketch is None:
            self.evaluation_sketch = Sketch.from_hashes(chunk.row_hashes)
        else:
            self.evaluation_sketch = self.evaluation_sketch.add(chunk.row_hashes)
        self.evaluation_counts += class_counts(chunk)

    @cached_property
    def report(self) -> str:
        """Sentences about common rows and class frequencies, each with a leading space, once all data are recorded.

        Raises:
            InputError: The data sets share too many rows.
        """
        if self.evaluation_sketch is None:  # cross-fitting has no evaluation data
            return ""
        overlap = Overlap.compare(self.evaluation_sketch, Sketch.from_hashes(self.val.row_hashes))
        if overlap.too_large:
            raise InputError(
                f"Expected evaluation data that differs from the fitting data, got common rows: {overlap.text}. Try "
                "other data, or cross-fit: leave out the second data set (on the command line, one file and --cv 5).",
                code="same_data",
            )
        for record in self.records:
            _refuse_overlap(record.row_overlap_message(self.evaluation_sketch))
        report = f" {capitalize(overlap.text)}." if overlap.excess else ""
        # The test of class frequencies needs independent rows; stated confidences have no classes of their own
        if self.val.clusters is not None or self.val.class_names == CORRECTNESS.classes:
            return report
        return report + label_shift_sentence(class_counts(self.val), self.evaluation_counts, self.val.class_names)


def class_counts(p: Predictions) -> np.ndarray:
    """Return the total weight of each label, (k,) float64, on the CPU."""
    return np.bincount(p.labels, p.weights, minlength=p.k).astype(float)


def label_shift_sentence(fitted: np.ndarray, evaluated: np.ndarray, names: tuple[str, ...] | None) -> str:
    """Return a sentence with a leading space if class frequencies differ significantly and noticeably, else "".

    The test is Pearson's chi-squared test of homogeneity of the two sets of counts.

    Args:
        fitted: Counts of the classes in the fitting data.
        evaluated: Counts of the classes in the evaluation data.
        names: Class names.
    """
    from scipy.special import chdtrc  # survival function of the chi-squared distribution; slow to import

    n, m = float(fitted.sum()), float(evaluated.sum())
    is_present = fitted + evaluated > 0
    difference = fitted / n - evaluated / m
    pooled_frequency = (fitted + evaluated) / (n + m)
    distance = float(abs(difference).sum()) / 2  # total variation
    # Chi-squared with k - 1 degrees of freedom without a shift, for k present classes
    statistic = float((np.square(difference[is_present]) / pooled_frequency[is_present]).sum()) / (1 / n + 1 / m)
    degrees = int(is_present.sum()) - 1
    if distance < MIN_SHIFT_DISTANCE or degrees < 1 or chdtrc(degrees, statistic) > MAX_SHIFT_P_VALUE:
        return ""
    worst = int(abs(difference).argmax())
    name = worst if names is None else repr(display_name(names[worst]))
    return (
        f" Class frequencies differ by {100 * distance:.0f} points in total, most for class {name}: "
        f"{float(fitted[worst]) / n:.1%} of the fitting data, {float(evaluated[worst]) / m:.1%} of the evaluation "
        "data. A calibrator learns the frequencies of its fitting data; PriorShift corrects for others."
    )
