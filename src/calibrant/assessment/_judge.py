"""Judging fitted maps: on predictions that are there as a whole, or on pieces of which only summaries are kept."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from calibrant import metrics
from calibrant._folds import units
from calibrant.assessment._mapped import Mapped
from calibrant.calibrators import Identity
from calibrant.catalog import METRICS
from calibrant.metrics import Comparison, Difference, Metric, Summary, difference_of_cluster_means, difference_of_means
from calibrant.predictions import Of, Predictions
from calibrant.types import InputError, Map

GROUPS = 50  # of the jackknife
MISTAKES = 20
MEANS = ("accuracy", "nll", "event_brier", "brier", "signed_gap")  # whose change is tested without a second pass


@dataclass(frozen=True)
class Mistake:
    """An example that was predicted wrongly, and how probable the wrong class was said to be."""

    row: int  # index in the judged data
    label: int
    predicted: int
    before: float  # probability of the predicted class
    after: float  # the same, by the chosen calibrator


@dataclass(frozen=True, eq=False)
class Whole:
    """Predictions as they came, and as every map makes them."""

    before: Predictions
    after: dict[str, Predictions]

    @classmethod
    def of(cls, p: Predictions, maps: Mapping[str, Map]) -> "Whole":
        """Apply the maps, in float64, when it is asked what they make of the logits."""
        return cls(p, {name: p if isinstance(each, Identity) else Mapped(p, each) for name, each in maps.items()})

    def changes(self, name: str, paired: tuple[str, ...]) -> Comparison | None:
        """Test the change of some metrics on the same examples; None for a single one, or a single cluster."""
        n = units(self.before)
        if n < 2:
            return None
        return metrics.compare(self.before, self.after[name], names=paired, groups=min(GROUPS, n))

    def mistakes(self, name: str) -> tuple[Mistake, ...]:
        """The wrong predictions of the highest confidence, with what a map makes of it."""
        return tuple(mistakes(self.before, self.after[name], worst(self.before)))


@dataclass(eq=False)
class Pieces:
    """Summaries of predictions read in pieces, as they came and as every map makes them."""

    maps: Mapping[str, Map]
    of: Of
    before: Summary = field(init=False)
    after: dict[str, Summary] = field(init=False)
    _sums: dict[str, Tensor] = field(init=False)  # of the differences d of MEANS: w, w d, w d^2, and as `_sums` says
    _worst: dict[str, list[Mistake]] = field(init=False)

    def __post_init__(self) -> None:
        self.before = Summary.empty(of=self.of, by_class=True)
        self.after = dict.fromkeys(self.maps, self.before)
        self._sums = {name: torch.zeros(len(MEANS), 9, dtype=torch.float64) for name in self.maps}
        self._worst = {name: [] for name in self.maps}

    def add(self, part: Predictions) -> None:
        """Take in a piece: one pass over its logits, and one over those of every map."""
        part, seen = part.judging(self.of).double(), len(self.before)
        self.before = _with(self.before, part)
        rows = worst(part)
        for name, each in self.maps.items():
            made = mapped(part, each)
            self.after[name] = _with(self.after[name], made)
            self._sums[name] += _sums(part, made)
            more = [replace(m, row=m.row + seen) for m in mistakes(part, made, rows)]
            self._worst[name] = sorted(self._worst[name] + more, key=lambda m: -m.before)[:MISTAKES]

    def changes(self, name: str, paired: tuple[str, ...]) -> Comparison | None:
        """Test the change of the means; None for a single example."""
        if len(self.before) < 2:
            return None
        before, after, sums = self.before, self.after[name], self._sums[name].tolist()
        pairs = [(m, part) for m, part in zip(MEANS, sums, strict=True) if m in paired]
        dependent = before.clustered

        def row(m: str, part: list[float]) -> Difference:
            if dependent:
                return difference_of_cluster_means(m, before[m], after[m], part[3:])
            return difference_of_means(m, before[m], after[m], part[:3])

        rows = [row(m, part) for m, part in pairs]
        return Comparison(len(before), 0.90, tuple(rows))

    def mistakes(self, name: str) -> tuple[Mistake, ...]:
        """The wrong predictions of the highest confidence, with what a map makes of it."""
        return tuple(self._worst[name])


def in_pieces(pieces: Iterable[Predictions], maps: Mapping[str, Map], of: Of) -> Pieces:
    """Judge piece after piece."""
    judged = Pieces(maps, of)
    for part in pieces:
        judged.add(part)
    if len(judged.before) == 0:
        raise InputError(
            "no predictions to judge: the iterable was empty (a generator used twice?)", code="no_predictions"
        )
    return judged


def mapped(p: Predictions, calibrator: Map) -> Predictions:
    """What a map makes of predictions; they themselves, with all that is known of them, where it changes nothing."""
    return p if isinstance(calibrator, Identity) else p.mapped(calibrator)


def worst(p: Predictions, most: int = MISTAKES) -> Tensor:
    """Rows of the wrong predictions of the highest confidence, among equals those of the highest loss first."""
    seen = p.outcomes
    wrong = (seen.correct == 0).nonzero().squeeze(1)
    keys = seen.log_likelihood[wrong].cpu().numpy(), -seen.confidence[wrong].cpu().numpy()
    return wrong[torch.from_numpy(np.lexsort(keys)[:most]).to(wrong.device)]


def mistakes_of(p: Predictions, classes: list[int], most: int) -> dict[int, tuple[Mistake, ...]]:
    """The most confident mistakes with each of some classes: taken for another, or another taken for it."""
    rows, predicted = worst(p, len(p)), p.predicted
    found: dict[int, tuple[Mistake, ...]] = {}
    for j in classes:
        own = rows[((p.labels[rows] == j) | (predicted[rows] == j)).nonzero().squeeze(1)[:most]]
        columns = own, p.labels[own], predicted[own], p.outcomes.confidence[own], p.outcomes.confidence[own]
        found[j] = tuple(Mistake(*row) for row in zip(*(column.tolist() for column in columns), strict=True))
    return found


def mistakes(before: Predictions, after: Predictions, rows: Tensor) -> list[Mistake]:
    """Wrong predictions before and after a map, which keeps their odds against its own prediction."""
    if not len(rows):
        return []
    predicted = before[rows].predicted
    z = after[rows].logits.double()
    odds = (z.gather(1, predicted[:, None]).squeeze(1) - z.amax(1)).exp()
    said = after.outcomes.confidence[rows] * odds
    columns = rows, before.labels[rows], predicted, before.outcomes.confidence[rows], said
    return [Mistake(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _with(summary: Summary, part: Predictions) -> Summary:
    if part.k > Summary.CLASSES:
        part.outcomes  # noqa: B018  made once, here, for the slices that the summary takes and for what follows
    return summary.add(part)


def _sums(before: Predictions, after: Predictions) -> Tensor:
    """Per mean: w, w d, w d^2; and over clusters 1, n, s, n^2, n s, s^2 of their masses n and sums s of w d."""
    w = torch.ones_like(before.outcomes.correct) if before.weights is None else before.weights
    rows: list[Tensor] = []
    for name in MEANS:
        metric = METRICS[name]
        assert isinstance(metric, Metric)
        assert metric.each is not None
        d = metric.each(metric.view(after)) - metric.each(metric.view(before))
        sums = [w.sum(), (w * d).sum(), (w * d * d).sum()]
        if before.clusters is None:
            sums += [torch.zeros_like(sums[0])] * 6
        else:
            n, s = (torch.bincount(before.clusters, v) for v in (w, w * d))
            sums += [(n > 0).sum(), n.sum(), s.sum(), n.square().sum(), (n * s).sum(), s.square().sum()]
        rows.append(torch.stack([part.double() for part in sums]))
    return torch.stack(rows)
