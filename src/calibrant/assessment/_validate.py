"""Internal validation: the performance of a modeling procedure on new examples, without setting data aside."""

import math
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import numpy as np

from calibrant._core.kernels.bins import GroupedScores
from calibrant._core.types import InputError, NonNegativeInt, OpenFraction, Range, check_arguments
from calibrant.assessment._validation import MEASURES, Center, Heterogeneity, Measures, Method, Optimism, Validation
from calibrant.metrics import Interval, auroc_of, fit_logistic, student_quantile

NUM_FITS = 200  # by default
MIN_CENTERS = 3
MIN_FITTED_SHARE = 0.5  # of the resamples, from which on a mean over them is taken


@check_arguments
def validate(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    method: Method = "bootstrap",
    repeats: Annotated[int, Range(ge=2)] | None = None,
    folds: Annotated[int, Range(ge=2)] = 10,
    clusters: Any = None,
    centers: Any = None,
    level: OpenFraction = 0.90,
    seed: NonNegativeInt = 0,
    progress: Callable[[str], object] | None = None,
) -> Validation:
    r"""Validate a modeling procedure for a binary outcome on the data that it is fitted to, corrected for optimism.

    "bootstrap" fits clones of the estimator to samples with replacement. Its optimism is the mean difference of
    the performance in the sample and in the original data (Harrell et al. 1996, section 4.3.4; Efron 1983).
    "cross-fitting" predicts each example by a clone that was fitted to the other folds, and averages the performance
    over repeats (Steyerberg et al. 2001). Every modeling step must be part of the estimator, such as the choice of
    variables in a `Pipeline`.

    The calibration slope is b of $\mathrm{logit}\,P(y) = a + b\,\mathrm{logit}\,p$: below 1, risks are too extreme.
    The calibration intercept is a of $\mathrm{logit}\,P(y) = a + \mathrm{logit}\,p$: above 0, risks are too low (Cox
    1958; Steyerberg 2019, section 15.3). The Brier score is the mean of $(p - y)^2$.

    With `centers`, each center is predicted by a clone that was fitted to the others. Slopes and intercepts differ
    between centers by a normal random effect of the variance $\tau^2$ (restricted maximum likelihood). The value in a
    new center lies in $\hat\mu \pm t_{k-2} \sqrt{\hat\tau^2 + SE(\hat\mu)^2}$ for k centers (Higgins et al. 2009,
    eq. 12).

    Args:
        estimator: Classifier of scikit-learn with `predict_proba`. It is cloned, and keeps its state.
        X: Features (n, d), an array, sparse matrix or data frame.
        y: Outcomes (n) of two classes. The event is the last class in sorted order.
        method: "bootstrap" or "cross-fitting".
        repeats: Bootstrap samples, by default 200, or repeats of cross-fitting, by default as many as make 200 fits.
        folds: Folds of cross-fitting.
        clusters: Patient or other unit of each example (n). Units are drawn and divided into folds as a whole.
        centers: Center of each example (n), for the leave-one-center-out validation.
        level: Level of the intervals over centers.
        seed: Seed of the resampling.
        progress: Function that is called with a text before each fit.

    Raises:
        InputError: If y has other than two classes, the estimator gives no probabilities, there are fewer than 3
            centers or fewer units than folds, or most resamples give no model.
    """
    from sklearn.base import clone
    from sklearn.utils import _safe_indexing, indexable  # pyright: ignore[reportPrivateUsage]

    if not hasattr(estimator, "predict_proba"):
        raise InputError(
            f"Expected an estimator with predict_proba, got {type(estimator).__name__}. Try CalibratedClassifier.",
            code="no_probabilities",
        )
    rows, labels = typing.cast("tuple[Any, Any]", indexable(X, np.asarray(y)))
    if labels.ndim != 1 or len(classes := np.unique(labels)) != 2:
        raise InputError("Expected outcomes of two classes, (n). Try y == 1.", code="num_outcomes")
    outcome = (labels == classes[1]).astype(np.float64)

    def fit(training: np.ndarray) -> Callable[[np.ndarray], np.ndarray] | None:
        """Return the function from indices of examples to their risks, or None without both outcomes."""
        if len(np.unique(labels[training])) < 2:
            return None
        model: Any = clone(estimator)
        model.fit(_safe_indexing(rows, training), labels[training])
        column = list(model.classes_).index(classes[1])
        return lambda index: np.asarray(model.predict_proba(_safe_indexing(rows, index)))[:, column].astype(np.float64)

    everyone, units = np.arange(len(labels)), _codes(clusters, len(labels), "clusters")
    rng, report = np.random.default_rng(seed), progress or (lambda text: None)
    if method == "bootstrap":
        resamples = partial(_bootstrap, fit, outcome, units, repeats or NUM_FITS, rng, report)
    else:
        if units.max() + 1 < folds:
            raise InputError(
                f"Expected at least {folds} units, got {units.max() + 1}. Try folds=2.", code="folds_range"
            )
        resamples = partial(_cross_fit, fit, outcome, units, repeats or max(2, NUM_FITS // folds), folds, rng, report)
    report("fitting the model")
    predict = fit(everyone)
    if predict is None:
        raise InputError("Expected outcomes of two classes, (n). Try y == 1.", code="num_outcomes")
    apparent = performance(predict(everyone), outcome)
    differences = list(resamples(apparent))
    failed = sum(difference is None for difference in differences)
    if failed > (1 - MIN_FITTED_SHARE) * len(differences):
        raise InputError("Expected resamples with both outcomes, got few. Try more data.", code="resamples")
    center_results, effects = (
        _leave_centers_out(fit, outcome, centers, level, report) if centers is not None else ((), ())
    )
    return Validation(
        rows=tuple(_optimism(name, apparent[name][0], differences) for name in MEASURES),
        method=method,
        n=len(labels),
        events=int(min(outcome.sum(), (1 - outcome).sum())),
        variables=getattr(rows, "shape", (0, None))[1],
        failed=failed,
        centers=center_results,
        heterogeneity=effects,
    )


Fit = Callable[[np.ndarray], Callable[[np.ndarray], np.ndarray] | None]
Difference = dict[str, float] | None  # of the apparent performance and that on other examples; None for no model


def _bootstrap(
    fit: Fit,
    outcome: np.ndarray,
    units: np.ndarray,
    repeats: int,
    rng: np.random.Generator,
    report: Callable[[str], object],
    apparent: Measures,
) -> Iterator[Difference]:
    """Yield performance in a sample of units minus performance of the same model in the original data."""
    everyone, order = np.arange(len(outcome)), np.argsort(units, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(units))[:-1])  # examples of each unit
    for i in range(repeats):
        report(f"bootstrap sample {i + 1} of {repeats}")
        training = np.concatenate([members[unit] for unit in rng.integers(len(members), size=len(members))])
        if (predict := fit(training)) is None:
            yield None
            continue
        risk = predict(everyone)
        sample, original = performance(risk[training], outcome[training]), performance(risk, outcome)
        yield {name: sample[name][0] - original[name][0] for name in apparent}


def _cross_fit(
    fit: Fit,
    outcome: np.ndarray,
    units: np.ndarray,
    repeats: int,
    folds: int,
    rng: np.random.Generator,
    report: Callable[[str], object],
    apparent: Measures,
) -> Iterator[Difference]:
    """Yield apparent performance minus performance of out-of-fold risks. Folds do not know the outcomes."""
    for i in range(repeats):
        fold = (rng.permutation(units.max() + 1) % folds)[units]
        risk = np.full(len(outcome), np.nan)
        for j in range(folds):
            report(f"fold {j + 1} of {folds}, repeat {i + 1} of {repeats}")
            if (predict := fit(np.flatnonzero(fold != j))) is not None:
                risk[fold == j] = predict(np.flatnonzero(fold == j))
        if np.isnan(risk).any():
            yield None
            continue
        out_of_fold = performance(risk, outcome)
        yield {name: apparent[name][0] - out_of_fold[name][0] for name in apparent}


def _optimism(name: str, apparent: float, differences: list[Difference]) -> Optimism:
    """Return the mean of the differences of a measure that could be computed, and its standard error."""
    values = np.array([d[name] for d in differences if d is not None])
    values = values[np.isfinite(values)]
    if len(values) < MIN_FITTED_SHARE * len(differences):
        return Optimism(name, apparent, math.nan, math.nan, math.nan, len(values))
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    return Optimism(name, apparent, mean, apparent - mean, error, len(values))


def performance(risk: np.ndarray, outcome: np.ndarray) -> Measures:
    """Return slope, intercept, Brier score and AUROC of risks (n), the first two with standard errors."""
    slope, intercept = (math.nan, math.nan), (math.nan, math.nan)
    if bool(((risk > 0) & (risk < 1)).all()):
        logit, constant = np.log(risk) - np.log1p(-risk), np.ones((len(risk), 1))
        with suppress(InputError):  # separated outcomes
            fitted = fit_logistic(constant, outcome, offset=logit)
            intercept = float(fitted.coefficients[0]), math.sqrt(fitted.covariance[0, 0])
        with suppress(InputError):  # separated outcomes
            fitted = fit_logistic(np.column_stack([constant, logit]), outcome)
            slope = float(fitted.coefficients[1]), math.sqrt(fitted.covariance[1, 1])
    scores = GroupedScores.from_scores(risk, outcome, None)
    return {
        "slope": slope,
        "intercept": intercept,
        "brier": (float(np.mean((risk - outcome) ** 2)), math.nan),
        "auroc": (float(auroc_of(scores)), math.nan),
    }


def _leave_centers_out(
    fit: Fit, outcome: np.ndarray, centers: Any, level: float, report: Callable[[str], object]
) -> tuple[tuple[Center, ...], tuple[Heterogeneity, ...]]:
    """Return performance in each center of the model of the other centers, and the random effects of centers."""
    codes, names = _codes(centers, len(outcome), "centers"), np.unique(np.asarray(centers))
    if len(names) < MIN_CENTERS:
        raise InputError(
            f"Expected at least {MIN_CENTERS} centers, got {len(names)}. Try without centers.", code="num_centers"
        )
    results = list[Center]()
    for j, name in enumerate(names.tolist()):
        report(f"leaving out center {j + 1} of {len(names)}")
        inside, predict = np.flatnonzero(codes == j), fit(np.flatnonzero(codes != j))
        measured = {} if predict is None else performance(predict(inside), outcome[inside])
        values = {key: measured.get(key, (math.nan, math.nan)) for key in ("slope", "intercept")}
        results.append(Center(str(name), n=len(inside), events=int(outcome[inside].sum()), values=values))
    effects = list[Heterogeneity]()
    for key in ("slope", "intercept"):
        value, error = np.array([center.values[key] for center in results]).T
        is_estimated = np.isfinite(value)
        effects.append(random_effects(key, value[is_estimated], error[is_estimated], level))
    return tuple(results), tuple(effects)


def random_effects(name: str, value: np.ndarray, error: np.ndarray, level: float) -> Heterogeneity:
    r"""Fit normal random effects by restricted maximum likelihood (Viechtbauer 2005, section 2).

    The interval of the mean has k - 1 degrees of freedom, that of a new center k - 2 (Higgins et al. 2009).

    Args:
        name: Name of the measure.
        value: Estimate in each of k centers (k).
        error: Standard errors (k).
        level: Level of the intervals.
    """
    k = len(value)
    if k < MIN_CENTERS:
        unknown = Interval(math.nan, -math.inf, math.inf, level)
        return Heterogeneity(name, unknown, math.nan, unknown, k)
    from scipy.optimize import minimize_scalar

    def pooled(variance: float) -> tuple[float, float]:
        """Return the weighted mean of the centers and the sum of the weights."""
        w = 1 / (variance + error**2)
        return float(w @ value / w.sum()), float(w.sum())

    def deviance(deviation: float) -> float:
        """Return -2 times the restricted log-likelihood, up to a constant."""
        total = deviation**2 + error**2
        mean, weight = pooled(deviation**2)
        return float(np.log(total).sum() + math.log(weight) + ((value - mean) ** 2 / total).sum())

    largest = 3 * float(value.std(ddof=1)) + 1e-12
    options = {"xatol": 1e-10 * largest}
    optimum: Any = minimize_scalar(deviance, bounds=(0, largest), method="bounded", options=options)
    tau = float(optimum.x)
    tau = 0.0 if deviance(0.0) <= deviance(tau) else tau
    mean, weight = pooled(tau**2)
    half = student_quantile(level, k - 1) / math.sqrt(weight)
    new_half = student_quantile(level, k - 2) * math.sqrt(tau**2 + 1 / weight)
    return Heterogeneity(
        name=name,
        mean=Interval(mean, mean - half, mean + half, level),
        deviation=tau,
        prediction=Interval(mean, mean - new_half, mean + new_half, level),
        centers=k,
    )


def _codes(names: Any, n: int, title: str) -> np.ndarray:
    """Return a number 0, 1, ... for each name (n), or for each example without names."""
    if names is None:
        return np.arange(n)
    array = np.asarray(names)
    if array.shape != (n,):
        raise InputError(f"Expected {n} {title}, got an array of shape {array.shape}. Try one per row.", code="shape")
    return np.unique(array, return_inverse=True)[1]
