"""Checks of fitting against evaluation data: common rows, and different class frequencies."""

from collections.abc import Sequence

import torch
from torch import Tensor

from calibrant._text import display_name
from calibrant.assessment._candidates import CandidateCalibrator
from calibrant.assessment.expert_text import capitalize
from calibrant.backend.overlap import Overlap, Sketch
from calibrant.events import CORRECTNESS
from calibrant.predictions import Predictions
from calibrant.types import InputError

MAX_SHIFT_P_VALUE = 1e-3
MIN_SHIFT_DISTANCE = 0.02  # total variation distance of class frequencies below which a shift is not reported


class OverlapGuard:
    """Collects evaluation data, chunk by chunk, and refuses data that a calibrator was fitted on."""

    def __init__(self, val: Predictions, candidates: Sequence[CandidateCalibrator]) -> None:
        self.val, self.candidates = val, candidates
        self.evaluation_sketch: Sketch | None = None  # of the rows of all chunks so far
        self.evaluation_counts: Tensor = torch.zeros(val.k, dtype=torch.float64)  # of their labels

    def check_fitted(self, chunk: Predictions) -> None:
        """Refuse data that a loaded calibrator was fitted on."""
        for c in self.candidates:
            c.check_overlap(chunk)

    def inspect(self, chunk: Predictions) -> None:
        """Check and record a chunk of the evaluation data."""
        if self.val.k != chunk.k:
            raise InputError(
                f"Expected fitting and evaluation data with the same classes, got {self.val.k} and {chunk.k} classes.",
                code="num_classes",
            )
        saved_names = {c.class_names for c in self.candidates if c.class_names is not None}
        if chunk.class_names and saved_names - {chunk.class_names}:
            raise InputError(
                "Expected saved calibrators with the same order of classes. Try one calibrator at a time.",
                code="class_order",
            )
        self.check_fitted(chunk)
        if self.evaluation_sketch is None:
            self.evaluation_sketch = Sketch.from_hashes(chunk.row_hashes)
        else:
            self.evaluation_sketch = self.evaluation_sketch.add(chunk.row_hashes)
        self.evaluation_counts += class_counts(chunk)

    def overlap_report(self) -> str:
        """Return sentences about common rows and class frequencies, each with a leading space.

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
        for candidate in self.candidates:
            if message := candidate.row_overlap_message(self.evaluation_sketch):
                raise InputError(f"{message}. Try other evaluation data.", code="fitted_on_same")
        report = f" {capitalize(overlap.text)}." if overlap.excess else ""
        # The test of class frequencies needs independent rows; stated confidences have no classes of their own
        if self.val.clusters is not None or self.val.class_names == CORRECTNESS.classes:
            return report
        return report + label_shift_sentence(class_counts(self.val), self.evaluation_counts, self.val.class_names)


def class_counts(p: Predictions) -> Tensor:
    """Return the total weight of each label, (k,) float64, on the CPU."""
    return torch.bincount(p.labels, p.weights, minlength=p.k).double().cpu()


def label_shift_sentence(fitted: Tensor, evaluated: Tensor, names: tuple[str, ...] | None) -> str:
    """Return a sentence with a leading space if class frequencies differ significantly, else "".

    Args:
        fitted: Counts of the classes in the fitting data.
        evaluated: Counts of the classes in the evaluation data.
        names: Class names.
    """
    from scipy.special import chdtrc  # slow to import

    n, m = float(fitted.sum()), float(evaluated.sum())
    is_present = fitted + evaluated > 0
    difference = fitted / n - evaluated / m
    pooled_frequency = (fitted + evaluated) / (n + m)
    distance = float(difference.abs().sum()) / 2  # total variation
    # Chi-squared with k - 1 degrees of freedom without a shift, for k present classes
    statistic = float((difference.square() / pooled_frequency)[is_present].sum()) / (1 / n + 1 / m)
    degrees = int(is_present.sum()) - 1
    if distance < MIN_SHIFT_DISTANCE or degrees < 1 or chdtrc(degrees, statistic) > MAX_SHIFT_P_VALUE:
        return ""
    worst = int(difference.abs().argmax())
    name = worst if names is None else repr(display_name(names[worst]))
    return (
        f" Class frequencies differ by {100 * distance:.0f} points in total, most for class {name}: "
        f"{float(fitted[worst]) / n:.1%} of the fitting data, {float(evaluated[worst]) / m:.1%} of the evaluation "
        "data. A calibrator learns the frequencies of its fitting data; PriorShift corrects for others."
    )
