"""Scores: the mean of a proper loss is a metric already."""

from typing import Literal

from torch import Tensor

from calibrant.backend.bins import Events
from calibrant.backend.softmax import entropies
from calibrant.metrics._intervals import Interval, Sample, share_interval
from calibrant.metrics._metric import metric
from calibrant.metrics._moments import NUM_INTERVAL_BINS, expected_score
from calibrant.predictions import Predictions
from calibrant.types import OpenFraction, PerExample, Scalar

__all__ = [
    "accuracy",
    "brier",
    "confident_accuracy",
    "confident_share",
    "entropy",
    "error",
    "event_brier",
    "nll",
    "signed_gap",
]

PredictionSubset = Literal["all", "correct", "wrong"]


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Mean in float64, weighted if there are weights; nan of nothing."""
    values = values.double()
    return values.mean() if weights is None else (values * weights).sum() / weights.sum()


def _is_correct(p: Predictions) -> PerExample:
    return p.correct


def _accuracy_interval(p: Predictions, *, level: float) -> Interval:
    return share_interval(p.correct, p.weights, level, p.clusters)


@metric(
    "accuracy",
    unit="share",
    higher_is_better=True,
    meaning="share of predictions that are right",
    plain="how often the prediction is right",
    takes="predictions",
    per_example=_is_correct,
    interval=_accuracy_interval,
)
def accuracy(p: Predictions) -> Scalar:
    """Share of examples whose predicted class, the lowest index that attains the maximum, is right.

    Its interval is that of `mean_limits`, which for a share is the mid-p interval.

    >>> accuracy(torch.eye(2), torch.tensor([0, 0]))
    tensor(0.5000, dtype=torch.float64)
    >>> print(accuracy.interval(torch.eye(2), torch.tensor([0, 0])))
    0.5000 [0.0000, 1.0000]
    """
    return weighted_mean(p.correct, p.weights)


def _is_wrong(p: Predictions) -> PerExample:
    return 1 - p.correct


def _error_interval(p: Predictions, *, level: float) -> Interval:
    return share_interval(1 - p.correct, p.weights, level, p.clusters)


@metric(
    "error",
    unit="share",
    meaning="share of predictions that are wrong",
    plain="how often the prediction is wrong",
    takes="predictions",
    per_example=_is_wrong,
    interval=_error_interval,
)
def error(p: Predictions) -> Scalar:
    """Share of examples whose predicted class is wrong: 1 - accuracy.

    >>> error(torch.eye(2), torch.tensor([0, 0]))
    tensor(0.5000, dtype=torch.float64)
    """
    return 1 - weighted_mean(p.correct, p.weights)


def _nll(p: Predictions) -> PerExample:
    return 0.0 - p.log_likelihood


def _class_score_interval(name: str, values: PerExample, p: Predictions, level: float) -> Interval:
    statistics = (p.with_event("top") if p.of == "classes" else p).events
    return Sample.from_values(values, p.weights, p.clusters).bounded_interval(
        expected_score(name, statistics.moments(NUM_INTERVAL_BINS), p.k), level
    )


def _nll_interval(p: Predictions, *, level: float) -> Interval:
    return _class_score_interval("nll", _nll(p), p, level)


@metric(
    "negative log-likelihood",
    unit="nats",
    short="NLL",
    meaning="mean −log p of the true class, in nats; lower is better",
    plain="surprise at the truth, large where what came true was called unlikely",
    takes="predictions",
    per_example=_nll,
    interval=_nll_interval,
)
def nll(p: Predictions, *, among: PredictionSubset = "all") -> Scalar:
    r"""Mean negative log-likelihood, $-\log p_y$, in nats; of all, correct or wrong predictions.

    Mukhoti et al. (2020, Figures 1 and 3) follow it over the epochs for correct and for wrong ones. nan where there
    are none. Its interval is that of `mean_limits`.

    >>> nll(torch.zeros(1, 4), torch.tensor([2]))
    tensor(1.3863, dtype=torch.float64)
    >>> print(nll.interval(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])))
    0.6931 [0.6931, 0.6931]
    """
    return _mean_among(_nll(p), p, among)


def _brier(p: Predictions) -> PerExample:
    return p.outcomes.brier


def _brier_interval(p: Predictions, *, level: float) -> Interval:
    return _class_score_interval("brier", _brier(p), p, level)


@metric(
    "Brier score (sum over classes)",
    short="Brier",
    meaning="squared distance of the probabilities from the truth, added up over the classes, 0 to 2",
    plain="distance of the probabilities from what came true",
    takes="predictions",
    per_example=_brier,
    interval=_brier_interval,
)
def brier(p: Predictions) -> Scalar:
    r"""Mean Brier score, $\lVert p - e_y \rVert^2$ summed over classes, in [0, 2] (Brier 1950).

    >>> brier(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.5000, dtype=torch.float64)
    """
    return weighted_mean(p.outcomes.brier, p.weights)


def _event_brier(events: Events) -> PerExample:
    return (events.confidence - events.outcome).square()


def _event_score_interval(name: str, values: PerExample, events: Events, level: float) -> Interval:
    return Sample.from_values(values, events.weights, events.clusters).bounded_interval(
        expected_score(name, events.moments(NUM_INTERVAL_BINS)), level
    )


def _event_brier_interval(events: Events, *, level: float) -> Interval:
    return _event_score_interval("event_brier", _event_brier(events), events, level)


@metric(
    "Brier score of the event",
    short="event Brier",
    meaning="squared distance of what is said from what happens, 0 to 1",
    plain="distance of what is said from what happens",
    takes="events",
    per_example=_event_brier,
    interval=_event_brier_interval,
)
def event_brier(events: Events) -> Scalar:
    r"""Mean Brier score of the judged event, $(c - 1[happened])^2$, in [0, 1]: the one of binary forecasts.

    Half of `brier` for two classes. scikit-learn's `brier_score_loss`.

    >>> event_brier(Predictions.from_confidence([0.9, 0.2], [1, 1]))
    tensor(0.3250, dtype=torch.float64)
    """
    return weighted_mean(_event_brier(events), events.weights)


@metric(
    "entropy",
    unit="nats",
    higher_is_better=None,
    meaning="mean entropy of the predicted distributions, in nats",
    takes="predictions",
)
def entropy(p: Predictions, *, among: PredictionSubset = "all") -> Scalar:
    r"""Mean entropy of the predicted distributions, $-\sum_j p_j \log p_j$, in nats; of all, correct or wrong ones.

    As in Mukhoti et al. (2020, Figure 1). nan where there are none.

    >>> entropy(torch.zeros(1, 4), torch.tensor([2]))
    tensor(1.3863, dtype=torch.float64)
    """
    return _mean_among(entropies(p.logits), p, among)


def _confident_interval(events: Events, *, level: float, above: OpenFraction = 0.99) -> Interval:
    return share_interval(events.confidence >= above, events.weights, level, events.clusters)


@metric(
    "highly confident predictions",
    unit="share",
    higher_is_better=None,
    short="at least 99 % confident",
    meaning="how many predictions are that sure",
    plain="how many predictions claim to be all but certain",
    takes="events",
    interval=_confident_interval,
)
def confident_share(events: Events, *, above: OpenFraction = 0.99) -> Scalar:
    """Share of predictions with confidence of at least `above` (Mukhoti et al. 2020, Table 7).

    >>> confident_share(torch.tensor([[0.0, 9.0], [0.0, 1.0]]), torch.tensor([1, 1]))
    tensor(0.5000, dtype=torch.float64)
    """
    return weighted_mean(events.confidence >= above, events.weights)


def _confident_accuracy_interval(events: Events, *, level: float, above: OpenFraction = 0.99) -> Interval:
    confident = events[events.confidence >= above]
    return share_interval(confident.outcome, confident.weights, level, confident.clusters)


@metric(
    "accuracy of highly confident predictions",
    unit="share",
    higher_is_better=True,
    meaning="how many of those are right",
    plain="how often those are right",
    takes="events",
    interval=_confident_accuracy_interval,
)
def confident_accuracy(events: Events, *, above: OpenFraction = 0.99) -> Scalar:
    """Accuracy of the predictions with confidence of at least `above` (Mukhoti et al. 2020, Table 7); nan of none.

    >>> confident_accuracy(torch.tensor([[0.0, 9.0], [0.0, 1.0]]), torch.tensor([1, 0]))
    tensor(1., dtype=torch.float64)
    """
    confident = events[events.confidence >= above]
    return weighted_mean(confident.outcome, confident.weights)


def _gap(events: Events) -> PerExample:
    return events.confidence - events.outcome


def _gap_interval(events: Events, *, level: float) -> Interval:
    return _event_score_interval("signed_gap", _gap(events), events, level)


@metric(
    "confidence minus accuracy",
    unit="share",
    higher_is_better=None,
    meaning="above 0: overconfident on the whole",
    plain="what is said minus what happens, on average",
    takes="events",
    per_example=_gap,
    interval=_gap_interval,
)
def signed_gap(events: Events) -> Scalar:
    """Mean confidence minus accuracy: positive if overconfident, negative if underconfident.

    Its interval is that of `mean_limits`: it does not collapse when all examples are right.

    >>> signed_gap(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(-0.2500, dtype=torch.float64)
    >>> print(signed_gap.interval(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])))
    -0.2500 [-0.4953, 0.3280]
    """
    return weighted_mean(_gap(events), events.weights)


def _mean_among(values: Tensor, p: Predictions, among: PredictionSubset) -> Tensor:
    if among == "all":
        return weighted_mean(values, p.weights)
    selected = (p.correct == 1) == (among == "correct")
    return weighted_mean(values[selected], None if p.weights is None else p.weights[selected])
