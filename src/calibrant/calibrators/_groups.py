"""Groups that are miscalibrated in their own ways: a map of all, and corrections that small groups borrow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from calibrant.backend.solvers import Certificate
from calibrant.backend.threads import thread_limit
from calibrant.calibrators._affine import LOG_PROB_FLOOR, BiasCorrectedTemperature
from calibrant.calibrators._apply import check_num_classes
from calibrant.calibrators._compose import Chain
from calibrant.calibrators._fitting import certify, fit_function, fit_method
from calibrant.predictions import Predictions
from calibrant.predictions.folds import map_out_of_fold, num_units
from calibrant.registry import CALIBRATORS
from calibrant.types import FINITE_RANGE, CalibratorText, Categories, FiniteVector, InputError, Logits, Range

__all__ = ["GroupCalibrated"]

PRIOR_DEVIATIONS = (
    1e-4,
    0.1,
    0.25,
    0.6,
    1.5,
)  # standard deviations of slopes and of biases between groups; the first is none
MAX_BIAS_CLASSES = 64  # classes up to which groups have biases
PRIOR_NO_DIFFERENCE, PRIOR_COMMON_DEVIATION = (
    0.2,
    0.2,
)  # prior that no group differs, and that all differ by the same standard deviations
OUTLIER_SHARES = (0.05, 0.1, 0.2, 0.4)  # shares of groups that stand apart from the others, of the rest of the prior
MIN_GROUP_SLOPE = 0.01  # slope
NUM_FOLDS = 5
MAX_BLOCK_ELEMENTS = 1 << 22  # of a block

Biases = Annotated[Float[Tensor, "m k"], FINITE_RANGE]
Slopes = Annotated[FiniteVector, Range(gt=0)]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class GroupCalibrated:
    r"""One calibrator with a correction for every group: $a_g \log p + b_g$ of the calibrated p.

    How much groups differ is learned from them (partial pooling by hierarchical Bayes): slopes and biases are normal
    around 1 and 0, with standard deviations of their own on a grid for most groups and for a share of them that stand
    apart. All such pairs and shares are averaged by their marginal likelihood (Laplace's approximation), a fifth of the
    prior being that no group differs; every group gets its posterior mean. A group of few examples stays at what all
    have in common, one that is far off is believed.

    It maps predictions with groups (`predictions.mapped`, `calibrate`, `assess`, `cross_fit`): of bare logits it cannot
    know the group, and refuses them; `of_group(name)` is the map of one group. A group that it was not fitted on gets
    what all have in common. Without groups that is all there is. For several labels per example the label is the group.

    >>> number = lambda *x: torch.tensor(x, dtype=torch.float64)
    >>> from calibrant.calibrators import Identity
    >>> fitted = GroupCalibrated(Identity(), ("a",), number(2.0), number([0.0, 1.0]))
    >>> Predictions([[0.0, 1.0], [0.0, 1.0]], [0, 1], groups=["a", "new"]).apply(fitted).logits.tolist()
    [[0.0, 3.0], [0.0, 1.0]]
    """

    pooled: Any  # the fitted calibrator of all
    names: tuple[str, ...]  # of the groups
    slopes: Slopes  # (m) float64
    biases: Biases  # (m k) float64
    certificate: Certificate | None = None

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, calibrator: Literal[""] | CalibratorText = "") -> "GroupCalibrated":
        """Fit `calibrator` to all (left out: Platt for 2 classes, BiasCorrectedTemperature for more), then the groups.

        The groups correct what the calibrator makes of examples that it was not fitted on, if there are enough.
        """
        fit = fit_function(CALIBRATORS.method(calibrator or ("Platt" if p.k == 2 else "BiasCorrectedTemperature")))
        p = p.double()
        pooled = fit(p)
        names, groups = _nonempty_groups(p)
        if not names:
            fitted = cls(pooled, (), torch.ones(0, dtype=torch.float64), torch.zeros(0, p.k, dtype=torch.float64))
        else:
            out_of_fold = map_out_of_fold(fit, p, folds=NUM_FOLDS) if num_units(p) >= 2 * NUM_FOLDS else p.apply(pooled)
            theta = _posterior_means(out_of_fold, [groups == i for i in range(len(names))])
            slopes = (1 + theta[:, 0]).clamp_min(MIN_GROUP_SLOPE)
            biases = torch.zeros(len(names), p.k, dtype=torch.float64)
            biases[:, : theta.shape[1] - 1] = theta[:, 1:]
            fitted = cls(pooled, names, slopes, biases)
        certificate = getattr(pooled, "certificate", None)
        return certify(fitted, p, "converged" if certificate is None else certificate.status, slack=2 / p.total_weight)

    @check_num_classes(lambda self: self.biases.shape[1])
    def __call__(self, logits: Logits) -> Logits:
        """Return what the map of all makes of them, where there are no groups; else refuse."""
        if self.names:
            raise InputError(
                "GroupCalibrated needs to know the groups: map predictions that have groups=, or take one group's map, "
                f"of_group({self.names[0]!r})",
                code="no_groups",
            )
        return self.pooled(logits)

    def map_columns(self, logits: Logits, columns: Mapping[str, Categories]) -> Logits:
        """Map each row by the correction of its group."""
        if "groups" not in columns:
            return self(logits)
        if logits.shape[1] != self.biases.shape[1]:
            num_classes, got = self.biases.shape[1], logits.shape[1]
            raise InputError(
                f"GroupCalibrated was fitted on {num_classes} classes, got logits of {got}", code="num_classes"
            )
        groups, place = columns["groups"], {name: i for i, name in enumerate(self.names)}
        known = torch.tensor([place.get(name, len(place)) for name in groups.names], device=logits.device)
        group_index = known[groups.index]
        slopes = torch.cat([self.slopes, self.slopes.new_ones(1)]).to(logits.device)
        biases = torch.cat([self.biases, self.biases.new_zeros(1, logits.shape[1])]).to(logits.device)
        return (self.pooled(logits.double()) * slopes[group_index, None] + biases[group_index]).to(logits.dtype)

    def of_group(self, name: str) -> Chain:
        """Return the map of one group, for bare logits.

        Raises `InputError` if it was fitted on no such group.
        """
        if name not in self.names:
            raise InputError(
                f"no group {name!r}; there are {', '.join(map(repr, self.names[:20])) or 'none'}", code="unknown_group"
            )
        i = self.names.index(name)
        return Chain(self.pooled, BiasCorrectedTemperature(1 / self.slopes[i], self.biases[i]))

    def column_notes(self, columns: Mapping[str, Categories]) -> tuple[str, ...]:
        """Return a note if there are groups that the map was not fitted on."""
        groups = columns.get("groups")
        names = () if groups is None or not self.names else groups.used_names
        unknown = [name for name in names if name not in self.names]
        text = f"GroupCalibrated was not fitted on the groups {', '.join(unknown)}: they get the map of all"
        return (text,) if unknown else ()


def _nonempty_groups(p: Predictions) -> tuple[tuple[str, ...], Tensor]:
    """Names of the groups that have examples, and which of them each example belongs to."""
    if p.groups is None or p.group_names is None:
        return (), torch.zeros(len(p), dtype=torch.int64)
    codes, index = p.groups.unique(return_inverse=True)
    return tuple(p.group_names[i] for i in codes.tolist()), index


def _posterior_means(p: Predictions, groups: list[Tensor]) -> Tensor:
    """What slope and biases of every group differ by (m, 1 + k)."""
    biases = p.k <= MAX_BIAS_CLASSES
    pairs = [(a, b) for a in PRIOR_DEVIATIONS for b in (PRIOR_DEVIATIONS if biases else PRIOR_DEVIATIONS[:1])]
    size = p.k if biases else 0
    spread = torch.tensor([[a] + [b] * size for a, b in pairs], dtype=torch.float64)
    precision = spread**-2
    posteriors = [_group_posterior(p[rows], precision) for rows in groups]
    modes, evidence = (torch.stack(parts) for parts in zip(*posteriors, strict=True))  # (m c d), (m c)
    return (_posterior_weights((evidence - evidence.amax(1, keepdim=True)).exp())[:, :, None] * modes).sum(1)


def _posterior_weights(likelihood: Tensor) -> Tensor:
    """How probable each prior (c) is for each group (m), averaged over what could be common to the groups."""
    c = likelihood.shape[1]
    prior = torch.full((c,), PRIOR_COMMON_DEVIATION / c, dtype=torch.float64)
    prior[0] += PRIOR_NO_DIFFERENCE  # the first is that of no difference
    outlier_prior = (1 - prior.sum()) / (len(OUTLIER_SHARES) * c * c)
    mixed = [torch.lerp(likelihood[:, :, None], likelihood[:, None], share) for share in OUTLIER_SHARES]  # (m c c)
    logs = [
        likelihood.log().sum(0) + prior.log(),
        *((part.log().sum(0) + outlier_prior.log()).flatten() for part in mixed),
    ]
    common, *outlier_weights = torch.cat(logs).softmax(0).split([c] + [c * c] * len(OUTLIER_SHARES))
    weights = common.expand_as(likelihood).clone()
    for share, part, p in zip(OUTLIER_SHARES, mixed, outlier_weights, strict=True):
        of_pair = p.view(c, c) / part
        weights += likelihood * ((1 - share) * of_pair.sum(2) + share * of_pair.sum(1))
    return weights


def _group_posterior(p: Predictions, precision: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable differences (c d) of a group for priors of these precisions (c d), and log evidence (c)."""
    x = p.logits.log_softmax(-1).clamp_min(LOG_PROB_FLOOR)
    weights = torch.ones(len(p), dtype=torch.float64) if p.weights is None else p.weights
    weights = weights / _design_effect(x, p)
    step = max(1, MAX_BLOCK_ELEMENTS // x.numel())
    with thread_limit(x.numel() * min(step, len(precision))):
        parts = [_posterior_modes(x, p.labels, weights, prior) for prior in precision.split(step)]
    modes, evidence = (torch.cat(blocks) for blocks in zip(*parts, strict=True))
    return modes, evidence


def _design_effect(x: Tensor, p: Predictions) -> float:
    """By how much the examples of clusters count too much, if they depend on each other."""
    if p.clusters is None:
        return 1.0
    residuals = torch.nn.functional.one_hot(p.labels, p.k) - x.exp()
    residuals = residuals if p.weights is None else residuals * p.weights[:, None]
    index = p.clusters.unique(return_inverse=True)[1]
    sums = torch.zeros(int(index.max()) + 1, p.k, dtype=torch.float64).index_add_(0, index, residuals)
    return max(1.0, float(sums.square().sum() / residuals.square().sum().clamp_min(1e-300)))


def _posterior_modes(x: Tensor, y: Tensor, w: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's method for all priors at once, with steps that are halved where they lead down; it is concave."""
    count, size = precision.shape
    theta = torch.zeros(count, size, dtype=torch.float64)
    value, gradient, hessian = _log_posterior(theta, x, y, w, precision)
    for _ in range(100):
        step = torch.linalg.solve(hessian, gradient)
        if float((step * gradient).sum(1).max()) < 1e-9:
            break
        proposal = _log_posterior(theta + step, x, y, w, precision)
        while bool((worse := proposal[0] < value - 1e-12 * (1 + value.abs())).any()):
            step = step * torch.where(worse, 0.5, 1.0)[:, None]
            proposal = _log_posterior(theta + step, x, y, w, precision)
        theta = theta + step
        value, gradient, hessian = proposal
    evidence = value + (precision.log().sum(1) - torch.linalg.slogdet(hessian)[1]) / 2
    return theta, evidence


def _log_posterior(theta: Tensor, x: Tensor, y: Tensor, w: Tensor, precision: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log posterior, its gradient, and minus its Hessian, of every row of theta."""
    bias = theta[:, None, 1:] if theta.shape[1] > 1 else 0.0
    log_p = ((1 + theta[:, :1, None]) * x + bias).log_softmax(-1)  # (c n k)
    p = log_p.exp()
    value = (log_p[:, torch.arange(len(y)), y] * w).sum(1) - (precision * theta.square()).sum(1) / 2
    mean = (p * x).sum(-1)
    by_slope = ((x[torch.arange(len(y)), y] - mean) * w).sum(1, keepdim=True)
    centered = x - mean[..., None]
    curve = ((p * centered.square()).sum(-1) * w).sum(1)
    if theta.shape[1] == 1:
        hessian = curve[:, None, None]
        gradient = by_slope
    else:
        label_weights = torch.zeros(x.shape[1], dtype=torch.float64).index_add_(0, y, w)
        pw = p * w[:, None]
        gradient = torch.cat([by_slope, label_weights - pw.sum(1)], 1)
        cross = (pw * centered).sum(1)
        bias_hessian = torch.diag_embed(pw.sum(1)) - pw.mT @ p
        top = torch.cat([curve[:, None], cross], 1)[:, None]
        hessian = torch.cat([top, torch.cat([cross[:, :, None], bias_hessian], 2)], 1)
    return value, gradient - precision * theta, hessian + torch.diag_embed(precision)
