"""Fuse several signals of confidence, such as stated, token and judged ones, into one probability of being right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import calibrators
from calibrant._validation.columns import split_columns
from calibrant.metrics import Interval, Sample
from calibrant.predictions import Predictions
from calibrant.predictions.folds import split_folds
from calibrant.types import InputError

__all__ = ["Fusion", "FusionPrior"]

SIGNAL_PRECISION, GROUP_PRECISION, INTERCEPT_PRECISION = 3.0, 10.0, 1e-3  # of normal priors of the coefficients
OFF_DIAGONAL = 0.7  # share of the covariances that a prior keeps
MAX_POINTS = 513  # at which the ranks of a signal are stored
MIN_VARIANCE = 1e-3  # of a coefficient between models
_NUM_FOLDS = 5
_MAX_STEPS = 50


@dataclass(frozen=True, eq=False)
class FusionPrior:
    """What fusions of other models teach: mean and covariance of the coefficients, by their names."""

    names: tuple[str, ...]
    mean: Tensor  # (d) float64
    covariance: Tensor  # (d d) float64

    @classmethod
    def from_fits(cls, fits: "Sequence[Fusion]") -> "FusionPrior":
        """Learn a prior from fusions of the same signals for at least three other models.

        The covariance between models is that of the fitted coefficients less their mean sampling covariance, with
        off-diagonal elements shrunk by 30 % (empirical Bayes). Coefficients that some model lacks are left out.

        Raises:
            InputError: If there are fewer than three fusions, or they have no coefficient in common.
        """
        if len(fits) < 3:
            raise InputError(f"Expected fusions of at least 3 models, got {len(fits)}.", code="few_models")
        shared = [name for name in fits[0].names if all(name in fit.names for fit in fits[1:])]
        if not shared:
            raise InputError("Expected fusions with the same signals, got none in common.", code="signals")
        index = [[fit.names.index(name) for name in shared] for fit in fits]
        coefficients = torch.stack([fit.coefficients[rows] for fit, rows in zip(fits, index, strict=True)])
        sampling = torch.stack([fit.covariance[rows][:, rows] for fit, rows in zip(fits, index, strict=True)]).mean(0)
        between = torch.cov(coefficients.T).reshape(len(shared), len(shared)) - sampling
        between = OFF_DIAGONAL * between + (1 - OFF_DIAGONAL) * torch.diag(between.diagonal())
        values, vectors = torch.linalg.eigh(between)
        covariance = (vectors * values.clamp_min(MIN_VARIANCE)) @ vectors.T
        return cls(tuple(shared), coefficients.mean(0), covariance)


@dataclass(frozen=True, eq=False)
class Fusion:
    r"""A penalized logistic regression of being right on several signals of confidence.

    Each signal enters by the normal score of its rank r and by $r^2 - 1$, each pair of signals by its product, and
    values of 0 and missing ones by flags of their own. Groups have effects that are shrunken towards 0. The normal
    priors of the coefficients have fixed precisions, or are learned from other models (`FusionPrior`). Probabilities
    are averaged over the posterior of the coefficients (Laplace and MacKay's approximations), which keeps them moderate
    where few labels determine them.

    >>> g = torch.Generator().manual_seed(0)
    >>> stated, tokens = torch.rand(2, 400, generator=g)
    >>> correct = (torch.rand(400, generator=g) < (stated + tokens) / 2).long()
    >>> fused = Fusion.fit({"stated": stated, "tokens": tokens}, correct)
    >>> bool((fused.apply({"stated": [0.9, 0.1], "tokens": [0.9, 0.1]}).diff() < 0).all())
    True
    """

    signals: tuple[str, ...]
    points: Tensor  # (s m) increasing values of each signal
    scores: Tensor  # (s m) their normal scores
    groups: tuple[str, ...]
    names: tuple[str, ...]  # of the coefficients
    coefficients: Tensor  # (d) posterior mode
    covariance: Tensor  # (d d) of the posterior
    worth: tuple[tuple[str, Interval], ...] = ()  # log-likelihood per example that each signal adds, out of fold

    @classmethod
    def fit(
        cls,
        signals: Any,
        correct: Any,
        *,
        groups: Any = None,
        prior: FusionPrior | None = None,
        worth: bool = False,
        level: float = 0.90,
        seed: int = 0,
    ) -> "Fusion":
        """Fit to labeled answers.

        Args:
            signals: One column of numbers per signal: a mapping, a data frame, or an array (n, s). NaN is missing.
            correct: Whether each answer is right (n), 0 or 1.
            groups: Group of each answer (n), such as its category.
            prior: Prior from other models. Coefficients that it does not name have the fixed one.
            worth: Whether to compute what each signal is worth, by five-fold cross-fitting with and without it.
            level: Level of the intervals of the worth.
            seed: Seed of the folds.

        Raises:
            InputError: If lengths differ, or answers are not 0 or 1.
        """
        y = torch.from_numpy(np.asarray(correct, dtype=np.float64).copy())
        columns = _read_signals(signals, len(y))
        if not len(y) or not bool(((y == 0) | (y == 1)).all()):
            raise InputError("Expected whether each answer is right, 0 or 1, got other values.", code="correct_range")
        group_column = _read_groups(groups, len(y))
        points, scores = (torch.stack(parts) for parts in zip(*map(_rank_scores, columns.values()), strict=True))
        group_names = tuple(dict.fromkeys(group_column or ()))
        unfitted = cls(tuple(columns), points, scores, group_names, (), torch.empty(0), torch.empty(0, 0))
        names, x = unfitted._design(columns, group_column)
        coefficients, covariance = _fit_logistic(x, y, *_prior_moments(names, prior))
        gains = _signal_gains(columns, y, group_column, prior, seed) if worth else []
        intervals = [(name, Sample.from_values(gain, None, None).normal_interval(level)) for name, gain in gains]
        learned = {"names": names, "coefficients": coefficients, "covariance": covariance}
        return replace(unfitted, **learned, worth=tuple(intervals))

    def apply(self, signals: Any, groups: Any = None) -> Tensor:
        """Return the probability that each answer is right (n) float64.

        Args:
            signals: The signals of the fit, by name or in their order.
            groups: Group of each answer. Groups that the fit did not see have no effect of their own.

        Raises:
            InputError: If a signal is missing.
        """
        columns = _read_signals(signals, None, self.signals)
        if lacking := [name for name in self.signals if name not in columns]:
            raise InputError(f"Expected the signals {', '.join(self.signals)}, got no {lacking[0]!r}.", code="signals")
        columns = {name: columns[name] for name in self.signals}
        n = len(next(iter(columns.values())))
        _, x = self._design(columns, _read_groups(groups, n) if groups is not None else None)
        logit = x @ self.coefficients
        variance = ((x @ self.covariance) * x).sum(1)
        return (logit / (1 + torch.pi / 8 * variance).sqrt()).sigmoid()  # MacKay 1992, equation 10

    def predictions(self, signals: Any, correct: Any, groups: Any = None, **options: Any) -> Predictions:
        """Return the probabilities as predictions of being right, for `measure` and everything else.

        Args:
            signals: As for `apply`.
            correct: Whether each answer is right (n).
            groups: As for `apply`.
            **options: As for `Predictions.from_confidence`.
        """
        return Predictions.from_confidence(self.apply(signals, groups), correct, **options)

    def save(self, path: str | Path) -> None:
        """Write to a .safetensors file."""
        calibrators.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> "Fusion":
        """Read what `save` wrote.

        Raises:
            InputError: If the file is another one, or is damaged.
        """
        return calibrators.load_instance(path, cls, [Interval])

    @property
    def is_consistent(self) -> bool:
        """Whether the fields fit together, as in a file that is not damaged."""
        d = len(self.names)
        return self.coefficients.shape == (d,) and self.covariance.shape == (d, d)

    def _design(self, columns: Mapping[str, Tensor], groups: Sequence[str] | None) -> tuple[tuple[str, ...], Tensor]:
        """Return the names of the coefficients, and their variables (n, d)."""
        n = len(next(iter(columns.values())))
        parts: dict[str, Tensor] = {"intercept": torch.ones(n, dtype=torch.float64)}
        scores = dict[str, Tensor]()
        for name, points, normal in zip(self.signals, self.points, self.scores, strict=True):
            x, is_missing = columns[name], columns[name].isnan()
            r = torch.from_numpy(np.interp(x.nan_to_num().numpy(), points.numpy(), normal.numpy()))
            scores[name] = r.where(~is_missing, 0.0)
            parts[name] = scores[name]
            parts[f"{name} squared"] = (r.square() - 1).where(~is_missing, 0.0)
            parts[f"{name} is 0"] = (x == 0).double()
            parts[f"{name} is missing"] = is_missing.double()
        for i, first in enumerate(self.signals):
            for second in self.signals[i + 1 :]:
                parts[f"{first} x {second}"] = scores[first] * scores[second]
        for name in self.groups:
            is_member = [group == name for group in groups] if groups is not None else [False] * n
            parts[f"group {name}"] = torch.tensor(is_member, dtype=torch.float64)
        return tuple(parts), torch.stack(list(parts.values()), 1)


def _read_signals(signals: Any, n: int | None, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Return columns of numbers by name; those of an array are `names` in their order."""
    columns = split_columns(signals, names)
    lengths = {column.shape for column in columns.values()}
    if len(lengths) != 1 or len(next(iter(lengths))) != 1 or (n is not None and lengths != {(n,)}):
        raise InputError(
            f"Expected signals of one length{'' if n is None else f', {n:,}'}, got {lengths}.", code="shape"
        )
    try:
        return {name: torch.from_numpy(column.astype(np.float64)) for name, column in columns.items()}
    except (TypeError, ValueError):
        raise InputError("Expected numbers as signals, NaN where missing, got other values.", code="signals") from None


def _read_groups(groups: Any, n: int) -> list[str] | None:
    if groups is None:
        return None
    names = [str(group) for group in (groups.to_list() if hasattr(groups, "to_list") else np.asarray(groups).tolist())]
    if len(names) != n:
        raise InputError(f"Expected a group for each of {n:,} answers, got {len(names):,}.", code="shape")
    return names


def _rank_scores(column: Tensor) -> tuple[Tensor, Tensor]:
    """Return values of a signal, and the normal scores of their mean ranks, at `MAX_POINTS` points."""
    values, counts = column[~column.isnan()].unique(return_counts=True)
    if not len(values):
        values, counts = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.int64)
    end = counts.double().cumsum(0)
    scores = torch.special.ndtri((end - counts / 2) / end[-1])
    position = torch.linspace(0, len(values) - 1, MAX_POINTS, dtype=torch.float64).round().long()
    return values[position], scores[position]


def _prior_moments(names: Sequence[str], prior: FusionPrior | None) -> tuple[Tensor, Tensor]:
    """Return the mean (d) and the precision (d d) of the normal prior of the coefficients."""
    kinds = [
        INTERCEPT_PRECISION if n == "intercept" else GROUP_PRECISION if n.startswith("group ") else SIGNAL_PRECISION
        for n in names
    ]
    mean, precision = torch.zeros(len(names), dtype=torch.float64), torch.diag(torch.tensor(kinds, dtype=torch.float64))
    if prior is not None:
        pairs = [(i, prior.names.index(name)) for i, name in enumerate(names) if name in prior.names]
        places, rows = (torch.tensor(column) for column in zip(*pairs, strict=True))
        mean[places] = prior.mean[rows]
        inverse = torch.linalg.inv(prior.covariance[rows][:, rows])
        precision[places] = 0.0
        precision[places[:, None], places] = inverse
    return mean, precision


def _fit_logistic(x: Tensor, y: Tensor, mean: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Return the posterior mode and covariance of a logistic regression, by Newton's method with step halving."""

    def objective(beta: Tensor) -> float:
        z, d = x @ beta, beta - mean
        return float((torch.nn.functional.softplus(z) - y * z).sum() + d @ precision @ d / 2)

    beta = mean.clone()
    value = objective(beta)
    for _ in range(_MAX_STEPS):
        p = (x @ beta).sigmoid()
        gradient = x.T @ (p - y) + precision @ (beta - mean)
        hessian = (x * (p * (1 - p))[:, None]).T @ x + precision
        step = torch.linalg.solve(hessian, gradient)
        if float(step @ gradient) < 1e-10:
            break
        size = 1.0
        while (new := objective(beta - size * step)) > value and size > 1e-6:
            size /= 2
        beta, value = beta - size * step, new
    p = (x @ beta).sigmoid()
    return beta, torch.linalg.inv((x * (p * (1 - p))[:, None]).T @ x + precision)


def _signal_gains(
    columns: Mapping[str, Tensor], y: Tensor, groups: Sequence[str] | None, prior: FusionPrior | None, seed: int
) -> list[tuple[str, Tensor]]:
    """Return by how much each signal raises the log-likelihood of held-out examples (n)."""
    base = Predictions.from_confidence(torch.full_like(y, 0.5), y.long())

    def held_out(names: Sequence[str]) -> Tensor:
        out = torch.zeros_like(y)
        for _, inside in split_folds(base, _NUM_FOLDS, seed):
            rows = (~inside).nonzero().squeeze(1)
            selected, inner = (
                None if groups is None else [groups[i] for i in part.tolist()]
                for part in (rows, inside.nonzero().squeeze(1))
            )
            fitted = Fusion.fit({name: columns[name][rows] for name in names}, y[rows], groups=selected, prior=prior)
            p = fitted.apply({name: columns[name][inside] for name in names}, inner)
            out[inside] = torch.where(y[inside] == 1, p, 1 - p).log()
        return out

    everything = held_out(tuple(columns))
    if len(columns) == 1:
        return [(name, everything - _base_rate_likelihood(y)) for name in columns]
    return [(name, everything - held_out([left for left in columns if left != name])) for name in columns]


def _base_rate_likelihood(y: Tensor) -> Tensor:
    """Return the log-likelihood of each example under the share of right answers (n)."""
    share = (y.sum() + 0.5) / (len(y) + 1)
    return torch.where(y == 1, share, 1 - share).log()
