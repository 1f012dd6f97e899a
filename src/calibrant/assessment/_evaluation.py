"""Judging fitted maps: on predictions that are there as a whole, or on pieces of which only summaries are kept."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from calibrant import metrics
from calibrant.assessment._calibrated_predictions import CalibratedPredictions
from calibrant.calibrators import Identity
from calibrant.metrics import Comparison, Difference, Metric, Summary, difference_of_cluster_means, difference_of_means
from calibrant.predictions import EventSelector, Predictions
from calibrant.predictions.folds import num_units
from calibrant.registry import METRICS
from calibrant.types import InputError, Map

JACKKNIFE_GROUPS = 50  # of the jackknife
MAX_MISTAKES = 20
MEAN_METRICS = ("accuracy", "nll", "event_brier", "brier", "signed_gap")  # whose change is tested without a second pass


@dataclass(frozen=True)
class Mistake:
    """An example that was predicted wrongly, and how probable the wrong class was said to be."""

    row: int  # index in the judged data
    label: int
    predicted: int
    probability: float  # probability of the predicted class
    calibrated_probability: float  # the same, by the chosen calibrator


@dataclass(frozen=True, eq=False)
class InMemoryEvaluation:
    """Predictions as they came, and as every map makes them."""

    uncalibrated: Predictions
    calibrated: dict[str, Predictions]

    @classmethod
    def from_maps(cls, p: Predictions, maps: Mapping[str, Map]) -> "InMemoryEvaluation":
        """Apply the maps, in float64, when it is asked what they make of the logits."""
        return cls(
            p,
            {
                name: p if isinstance(calibrator, Identity) else CalibratedPredictions(p, calibrator)
                for name, calibrator in maps.items()
            },
        )

    def compare_metrics(self, name: str, metric_names: tuple[str, ...]) -> Comparison | None:
        """Test the change of some metrics on the same examples; None for a single one, or a single cluster."""
        n = num_units(self.uncalibrated)
        if n < 2:
            return None
        return metrics.compare(
            self.uncalibrated, self.calibrated[name], names=metric_names, groups=min(JACKKNIFE_GROUPS, n)
        )

    def mistakes(self, name: str) -> tuple[Mistake, ...]:
        """The wrong predictions of the highest confidence, with what a map makes of it."""
        return tuple(
            describe_mistakes(self.uncalibrated, self.calibrated[name], most_confident_errors(self.uncalibrated))
        )


@dataclass(eq=False)
class StreamedEvaluation:
    """Summaries of predictions read in pieces, as they came and as every map makes them."""

    maps: Mapping[str, Map]
    event: EventSelector
    uncalibrated: Summary = field(init=False)
    calibrated: dict[str, Summary] = field(init=False)
    _difference_sums: dict[str, Tensor] = field(
        init=False
    )  # of the differences d of MEANS: w, w d, w d^2, and as `_sums` says
    _mistakes: dict[str, list[Mistake]] = field(init=False)

    def __post_init__(self) -> None:
        self.uncalibrated = Summary.empty(of=self.event, by_class=True)
        self.calibrated = dict.fromkeys(self.maps, self.uncalibrated)
        self._difference_sums = {name: torch.zeros(len(MEAN_METRICS), 9, dtype=torch.float64) for name in self.maps}
        self._mistakes = {name: [] for name in self.maps}

    def add(self, part: Predictions) -> None:
        """Take in a piece: one pass over its logits, and one over those of every map."""
        part, num_examples = part.with_event(self.event).double(), len(self.uncalibrated)
        self.uncalibrated = _add_to_summary(self.uncalibrated, part)
        rows = most_confident_errors(part)
        for name, calibrator in self.maps.items():
            calibrated = apply_calibrator(part, calibrator)
            self.calibrated[name] = _add_to_summary(self.calibrated[name], calibrated)
            self._difference_sums[name] += _difference_sums(part, calibrated)
            new_mistakes = [replace(m, row=m.row + num_examples) for m in describe_mistakes(part, calibrated, rows)]
            self._mistakes[name] = sorted(self._mistakes[name] + new_mistakes, key=lambda m: -m.probability)[
                :MAX_MISTAKES
            ]

    def compare_metrics(self, name: str, metric_names: tuple[str, ...]) -> Comparison | None:
        """Test the change of the means; None for a single example."""
        if len(self.uncalibrated) < 2:
            return None
        uncalibrated, calibrated, sums = self.uncalibrated, self.calibrated[name], self._difference_sums[name].tolist()
        pairs = [(m, part) for m, part in zip(MEAN_METRICS, sums, strict=True) if m in metric_names]
        clustered = uncalibrated.has_clusters

        def row(m: str, part: list[float]) -> Difference:
            if clustered:
                return difference_of_cluster_means(m, uncalibrated[m], calibrated[m], part[3:])
            return difference_of_means(m, uncalibrated[m], calibrated[m], part[:3])

        rows = [row(m, part) for m, part in pairs]
        return Comparison(len(uncalibrated), 0.90, tuple(rows))

    def mistakes(self, name: str) -> tuple[Mistake, ...]:
        """The wrong predictions of the highest confidence, with what a map makes of it."""
        return tuple(self._mistakes[name])


def evaluate_pieces(pieces: Iterable[Predictions], maps: Mapping[str, Map], event: EventSelector) -> StreamedEvaluation:
    """Judge piece after piece."""
    evaluation = StreamedEvaluation(maps, event)
    for part in pieces:
        evaluation.add(part)
    if len(evaluation.uncalibrated) == 0:
        raise InputError(
            "no predictions to judge: the iterable was empty (a generator used twice?)", code="no_predictions"
        )
    return evaluation


def apply_calibrator(p: Predictions, calibrator: Map) -> Predictions:
    """What a map makes of predictions; they themselves, with all that is known of them, where it changes nothing."""
    return p if isinstance(calibrator, Identity) else p.apply(calibrator)


def most_confident_errors(p: Predictions, limit: int = MAX_MISTAKES) -> Tensor:
    """Rows of the wrong predictions of the highest confidence, among equals those of the highest loss first."""
    outcomes = p.outcomes
    wrong = (outcomes.correct == 0).nonzero().squeeze(1)
    keys = outcomes.log_likelihood[wrong].cpu().numpy(), -outcomes.confidence[wrong].cpu().numpy()
    return wrong[torch.from_numpy(np.lexsort(keys)[:limit]).to(wrong.device)]


def mistakes_by_class(p: Predictions, classes: list[int], limit: int) -> dict[int, tuple[Mistake, ...]]:
    """The most confident mistakes with each of some classes: taken for another, or another taken for it."""
    rows, predicted = most_confident_errors(p, len(p)), p.predicted
    mistakes_found: dict[int, tuple[Mistake, ...]] = {}
    for j in classes:
        class_rows = rows[((p.labels[rows] == j) | (predicted[rows] == j)).nonzero().squeeze(1)[:limit]]
        columns = (
            class_rows,
            p.labels[class_rows],
            predicted[class_rows],
            p.outcomes.confidence[class_rows],
            p.outcomes.confidence[class_rows],
        )
        mistakes_found[j] = tuple(Mistake(*row) for row in zip(*(column.tolist() for column in columns), strict=True))
    return mistakes_found


def describe_mistakes(uncalibrated: Predictions, calibrated: Predictions, rows: Tensor) -> list[Mistake]:
    """Wrong predictions before and after a map, which keeps their odds against its own prediction."""
    if not len(rows):
        return []
    predicted = uncalibrated[rows].predicted
    z = calibrated[rows].logits.double()
    odds = (z.gather(1, predicted[:, None]).squeeze(1) - z.amax(1)).exp()
    calibrated_probability = calibrated.outcomes.confidence[rows] * odds
    columns = rows, uncalibrated.labels[rows], predicted, uncalibrated.outcomes.confidence[rows], calibrated_probability
    return [Mistake(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _add_to_summary(summary: Summary, part: Predictions) -> Summary:
    if part.k > Summary.MAX_CLASSES:
        part.outcomes  # noqa: B018  made once, here, for the slices that the summary takes and for what follows
    return summary.add(part)


def _difference_sums(uncalibrated: Predictions, calibrated: Predictions) -> Tensor:
    """Per mean: w, w d, w d^2; and over clusters 1, n, s, n^2, n s, s^2 of their masses n and sums s of w d."""
    w = torch.ones_like(uncalibrated.outcomes.correct) if uncalibrated.weights is None else uncalibrated.weights
    rows: list[Tensor] = []
    for name in MEAN_METRICS:
        metric = METRICS[name]
        assert isinstance(metric, Metric)
        assert metric.per_example is not None
        d = metric.per_example(metric.view(calibrated)) - metric.per_example(metric.view(uncalibrated))
        sums = [w.sum(), (w * d).sum(), (w * d * d).sum()]
        if uncalibrated.clusters is None:
            sums += [torch.zeros_like(sums[0])] * 6
        else:
            n, s = (torch.bincount(uncalibrated.clusters, v) for v in (w, w * d))
            sums += [(n > 0).sum(), n.sum(), s.sum(), n.square().sum(), (n * s).sum(), s.square().sum()]
        rows.append(torch.stack([part.double() for part in sums]))
    return torch.stack(rows)
