"""scikit-learn: classifiers with calibrated probabilities, scorers, and a reliability display."""

from numbers import Integral
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, check_cv, cross_validate
from sklearn.utils import get_tags, indexable
from sklearn.utils._array_api import (
    _max_precision_float_dtype,  # pyright: ignore[reportPrivateUsage]  as scikit-learn's own estimators
    get_namespace_and_device,
)
from sklearn.utils.metadata_routing import (
    MetadataRequest,
    MetadataRouter,
    MethodMapping,
    get_routing_for_object,
    process_routing,
)
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    _check_sample_weight,  # pyright: ignore[reportPrivateUsage]  scikit-learn's own way for estimators
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
)

from calibrant import calibrators, metrics
from calibrant._core import registry
from calibrant._core.kernels.softmax import probabilities
from calibrant._core.numbers import format_percent
from calibrant._core.types import InputError
from calibrant.predictions import Predictions, column_names
from calibrant.predictions.validation.arrays import to_column
from calibrant.predictions.validation.labels import Positions
from calibrant.predictions.validation.names import factorize

__all__ = ["CalibratedClassifier", "ReliabilityDisplay", "predictions", "scorer"]

SKLEARN_CALIBRATORS = {"sigmoid": "Platt", "isotonic": "Isotonic", "temperature": "Temperature"}
SKLEARN_METRICS = {"neg_log_loss": "nll", "neg_brier_score": "event_brier", "roc_auc": "auroc", "roc_auc_ovr": "auroc"}


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier whose probabilities are calibrated on out-of-fold predictions.

        CalibratedClassifier(model, "Auto", cv=5)
        CalibratedClassifier(FrozenEstimator(model))  # fitted already: calibrated on all given examples

    The logits are log `predict_proba`, or `decision_function` for a classifier without probabilities. Sample weights
    are passed to the classifier, and count in the calibrator, divided by their mean. With scikit-learn's metadata
    routing enabled, weights and other arguments of `fit` go to the classifier, or the step of a pipeline, that requests
    them by `set_fit_request`; groups are requested. With its `array_api_dispatch`, the classifier receives arrays of
    the features' kind and device, and predictions are such arrays.

    Args:
        estimator: The classifier; a logistic regression by default.
        calibrator: The calibrator, named as in a study file.
        cv: Number of folds, or a splitter of scikit-learn or pairs of training and test rows. A number makes stratified
            folds, as in scikit-learn, so that every training part has every class; a class with fewer examples lowers
            it, to at least 2. The class frequencies of stratified folds are all alike: they do not show how uncertain
            the frequencies of the data are, so that the calibrator learns them as they are. A splitter need not test
            every row, and may test one several times, as `ShuffleSplit` or `TimeSeriesSplit` do. The calibrator is then
            fitted to the rows that are tested. A row that is tested m times enters with each of its predictions and a
            weight of 1/m, because the average of several models is less confident than the one that is calibrated.
        method: Name in scikit-learn's `CalibratedClassifierCV`; refused with the name of the calibrator to use.
    """

    __metadata_request__fit = {"groups": True}  # noqa: RUF012  # scikit-learn reads a dict

    def __init__(self, estimator: Any = None, calibrator: Any = "Auto", *, cv: Any = 5, method: Any = None) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.method = method

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, **fit_params: Any
    ) -> "CalibratedClassifier":
        """Fit the classifier on all examples, and the calibrator on out-of-fold predictions.

        Args:
            X: Features, as the classifier takes them.
            y: Labels.
            sample_weight: Weight of each example, in the classifier and in the calibrator.
            groups: Group of each example, such as a patient. No group is divided between folds.
            fit_params: Further arguments of the classifier's `fit`.

        Raises:
            InputError: If folds divide groups or test training rows, a classifier that is fitted to the training part
                of a fold lacks a class, or the classifier takes no sample weights.
        """
        _check_settings(self.calibrator, self.cv, self.method)
        frozen = isinstance(self.estimator, FrozenEstimator)
        x = X if frozen else indexable(X)[0]  # the classifier checks it: columns, texts, missing values
        check_classification_targets(y)
        if type_of_target(y).startswith("multilabel"):
            raise InputError(
                "Expected one label per example, got several. Try MultiOutputClassifier(CalibratedClassifier(model)).",
                code="several_outputs",
            )
        y = _to_numpy(column_or_1d(y, warn=True))
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, x)
        if weights is not None and (weights < 0).any():
            raise InputError("Expected sample_weight of at least 0, got negative weights.", code="weights")
        check_consistent_length(None if frozen else x, y, groups)  # ignores None
        clusters = None if groups is None else factorize(_to_numpy(groups), "groups")[0]
        if frozen:  # a class may be missing among these examples
            check_is_fitted(self.estimator)
            self.estimator_, scores = self.estimator, _scores(self.estimator, x)
            self.classes_ = _to_numpy(self.estimator.classes_)
            labels = _label_indices(y, self.classes_)
            rows = np.arange(len(labels))
        else:
            self.classes_, labels = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                raise ValueError("Classifier can't train when only one class is present.")
            model: Any = clone(self._classifier())
            scores, rows, final_fit_params = self._out_of_fold(model, x, labels, weights, groups, clusters, fit_params)
            self.estimator_ = model.fit(x, _to_kind_of(x, labels), **final_fit_params)
        weights, clusters = _per_prediction(rows, None if weights is None else _to_numpy(weights), clusters)
        p = _to_predictions(scores, labels[rows], weights, clusters=clusters)
        self.calibrator_ = calibrators.fit(self.calibrator, p)
        for name in ("n_features_in_", "feature_names_in_"):  # not every classifier has them
            vars(self).pop(name, None)  # of an earlier fit
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags, with the inputs that the classifier takes, such as sparse matrices."""
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self._classifier()).input_tags
        return tags

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the arguments of `fit` that go to the classifier and to the folds."""
        router = MetadataRouter(owner=self).add_self_request(self)
        if not isinstance(self.estimator, FrozenEstimator):
            to_fit = MethodMapping().add(caller="fit", callee="fit")
            router.add(estimator=self._classifier(), method_mapping=to_fit)
        return router.add(splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))

    def _classifier(self) -> Any:
        """Return the classifier, or a logistic regression, which requests weights if metadata is routed."""
        if self.estimator is not None:
            return self.estimator
        routing = get_config()["enable_metadata_routing"]
        return LogisticRegression().set_fit_request(sample_weight=True) if routing else LogisticRegression()

    def _out_of_fold(
        self, model: Any, x: Any, labels: Any, weights: Any, groups: Any, clusters: Any, fit_params: dict[str, Any]
    ) -> tuple[tuple[str, np.ndarray], np.ndarray, dict[str, Any]]:
        """Return out-of-fold scores with their name, their rows, and the arguments of the classifier's final fit.

        `groups` go to a given splitter. `clusters`, their indices, keep rows together in the folds that are made here.
        With scikit-learn's metadata routing, the classifier and the splitter receive the arguments that they request.
        """
        metadata = {"sample_weight": weights, "groups": groups, **fit_params}
        metadata = {name: value for name, value in metadata.items() if value is not None}
        if get_config()["enable_metadata_routing"]:
            routed: Any = process_routing(self, "fit", **metadata)
            # `cross_validate` refuses arguments that the model did not request
            requested = get_routing_for_object(model).consumes("fit", list(metadata))
            fold_params = {name: metadata[name] for name in requested}
            final_fit_params, split_params = routed.estimator.fit, dict(routed.splitter.split)
        else:
            fold_params = final_fit_params = _fit_arguments(model, weights, fit_params)
            split_params = {} if groups is None else {"groups": groups}
        splits = self._splits(x, labels, clusters, split_params)
        method = _score_method(model)
        _refuse_pair_scores(model, method, len(self.classes_))
        held_out: list[np.ndarray] = []  # the scores of each fold

        def keep_scores(fitted: Any, x_test: Any, _: Any) -> float:
            """Keep the scores of the test rows, as the scorer of a fold, whose own number is not used."""
            if len(getattr(fitted, "classes_", self.classes_)) < len(self.classes_):
                raise self._missing_class_error(labels, splits[len(held_out)][0])
            held_out.append(_to_numpy(getattr(fitted, method)(x_test)))
            return 0.0

        raise_errors: Any = "raise"  # a text, which scikit-learn's annotations lack
        params = fold_params or None
        y = _to_kind_of(x, labels)
        cross_validate(model, x, y, scoring=keep_scores, cv=splits, params=params, error_score=raise_errors)
        rows = np.concatenate([test for _, test in splits])
        order = rows.argsort(kind="stable")  # the given order of the rows
        return (method, np.concatenate(held_out)[order]), rows[order], dict(final_fit_params)

    def _missing_class_error(self, labels: np.ndarray, train: np.ndarray) -> InputError:
        """Return the error for training rows that lack a class, whose column the classifier therefore lacks."""
        missing = np.setdiff1d(np.arange(len(self.classes_)), labels[train])
        names = self.classes_[missing].tolist()[:10]
        return InputError(
            f"Expected every class in the training part of every fold, got one without {names}. Try cv=5, whose folds "
            "are stratified, or leaving out rare classes.",
            code="folds",
        )

    def _splits(self, x: Any, labels: Any, clusters: Any, split_params: dict[str, Any]) -> list[Any]:
        """Return the training rows and the test rows of each fold.

        Raises:
            InputError: If test rows, or their groups, are among the training rows of their fold, or there is only one
                class in these, on which most classifiers cannot be fitted.
        """
        if not isinstance(self.cv, Integral):  # a splitter, or pairs of rows
            user_splitter: Any = check_cv(self.cv, labels, classifier=True)
            splits = list(user_splitter.split(x, labels, **split_params))
        else:
            smallest_class = int(np.bincount(labels).min())
            folds = max(2, min(int(self.cv), smallest_class))  # each fold has examples of every class
            if clusters is None:
                return list(StratifiedKFold(folds, shuffle=True, random_state=0).split(x, labels))
            if clusters.max() == 0:
                raise InputError("Expected at least 2 groups to make folds of, got 1.", code="one_group")
            folds = min(folds, int(clusters.max()) + 1)
            splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=0)
            splits = list(splitter.split(x, labels, clusters))
        rows = np.arange(len(labels))
        splits = [(rows[train], rows[test]) for train, test in splits]  # a custom splitter may yield masks
        _check_folds(splits, rows if clusters is None else clusters, self.cv)
        for train, _ in splits:
            if len(np.unique(labels[train])) < 2:
                raise self._missing_class_error(labels, train)
        return splits

    def predict_proba(self, X: Any) -> Any:
        """Return calibrated probabilities, (n, k)."""
        return _to_kind_of(X, self._probs(X))

    def _probs(self, X: Any) -> np.ndarray:
        """Return calibrated probabilities in numpy."""
        check_is_fitted(self)
        method, values = _scores(self.estimator_, X)
        unused_labels = np.zeros(len(values), dtype=np.int64)  # required, but without effect on the logits
        logits = _to_predictions((method, values), unused_labels).logits
        return probabilities(self.calibrator_(logits))

    def predict(self, X: Any) -> Any:
        """Return the most probable classes, (n)."""
        best = self._probs(X).argmax(1)  # raises unless fitted
        return _to_kind_of(X, self.classes_[best])


def predictions(estimator: Any, X: Any, y: Any, sample_weight: Any = None, *, pos_label: Any = None) -> Predictions:
    """Return the predictions of a fitted classifier, with the names of its classes.

    For a classifier without `predict_proba`, the scores of its decision function are the logits.

    Args:
        estimator: The fitted classifier.
        X: Features.
        y: Labels.
        sample_weight: Weights of the examples.
        pos_label: The event, one of the labels; the second of two classes by default.
    """
    return _named_predictions(estimator, _scores(estimator, X), y, sample_weight, pos_label)


def _named_predictions(estimator: Any, scores: Any, y: Any, sample_weight: Any, pos_label: Any) -> Predictions:
    """Return predictions with the names of the classifier's classes, and the event `pos_label` if it is given."""
    classes = _to_numpy(estimator.classes_)
    labels = _label_indices(_to_numpy(y), classes)
    p = _to_predictions(scores, labels, sample_weight, [str(name) for name in classes])
    return p if pos_label is None else p.with_event(_positive_index(pos_label, classes))


def scorer(metric: str, *, pos_label: Any = None) -> "_Scorer":
    """Return a metric as a scorer for `cross_val_score` and `GridSearchCV`.

        GridSearchCV(model, grid, scoring=scorer("smooth_ece"))

    As in scikit-learn, greater scores are better: the sign of errors and losses is changed. For "nll" and
    "refinement_nll", probabilities are clipped to [eps, 1 - eps] as in scikit-learn's `log_loss`, since random forests
    give exact zeros.

    Args:
        metric: Name as in a study file, such as "ece" or "nll".
        pos_label: The event, one of the labels; the second of two classes by default.
    """
    if metric in SKLEARN_METRICS:
        calibrant_name = SKLEARN_METRICS[metric]
        raise InputError(
            f"Expected a metric of calibrant, got {metric!r}. Try scorer({calibrant_name!r}).", code="sklearn_name"
        )
    return _Scorer(registry.METRICS.method(metric).text, pos_label)


class _Scorer:
    """A scorer that returns a metric of a classifier's predictions, negated if lower is better."""

    def __init__(self, metric: str, pos_label: Any = None) -> None:
        self.metric, self.pos_label = metric, pos_label
        self._request = MetadataRequest(owner=repr(self))
        self.set_score_request(sample_weight=None)

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the metric of a fitted classifier, with the sign changed unless higher values are better."""
        method, values = _scores(estimator, X)
        info = metrics.metric_info(self.metric)
        # A log loss, which probabilities of 0 would make infinite, as random forests give them
        if method == "predict_proba" and info.unit == "nats" and info.higher_is_better is False:
            eps = np.finfo(values.dtype).eps if values.dtype.kind == "f" else np.finfo(np.float64).eps
            values = values.clip(eps, 1 - eps)
        p = _named_predictions(estimator, (method, values), y, sample_weight, self.pos_label)
        value = float(registry.METRICS.method(self.metric)(p))
        return value if info.higher_is_better else -value

    def set_score_request(self, *, sample_weight: bool | str | None) -> "_Scorer":
        """Request sample weights, for scikit-learn's metadata routing."""
        self._request.score.add_request(param="sample_weight", alias=sample_weight)
        return self

    def get_metadata_routing(self) -> MetadataRequest:
        """Return the requested metadata."""
        return self._request

    def __repr__(self) -> str:
        return f"scorer({self.metric!r})"


class ReliabilityDisplay:
    """A reliability diagram with the interface of scikit-learn's displays.

    `predictions` are the predictions shown; `ax_` and `figure_` are matplotlib's axes and figure.
    """

    def __init__(self, predictions: Predictions, name: str = "") -> None:
        self.predictions, self.name = predictions, name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        pos_label: Any = None,
        name: str = "",
        ax: Any = None,
    ) -> "ReliabilityDisplay":
        """Draw the diagram of a fitted classifier for the event `pos_label`, or the second of two classes."""
        p = predictions(estimator, X, y, sample_weight, pos_label=pos_label)
        return cls(p, name or type(estimator).__name__).plot(ax)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_prob: Any,
        *,
        sample_weight: Any = None,
        pos_label: Any = None,
        name: str = "",
        ax: Any = None,
    ) -> "ReliabilityDisplay":
        """Draw the diagram of probabilities of all classes (n, k), or of one class (n,).

        The event is `pos_label`, by default the second of two classes. Columns of a data frame are matched by name.
        """
        if column_names(y_prob) is not None:
            p = Predictions.from_probs(y_prob, y_true, sample_weight)
            return cls(p.with_default_event(None if pos_label is None else str(pos_label)), name).plot(ax)
        y, y_prob = np.asarray(y_true), np.asarray(y_prob)
        y_prob = y_prob[:, 0] if y_prob.shape[1:] == (1,) else y_prob
        classes, labels = np.unique(y, return_inverse=True)
        names = [str(class_label) for class_label in classes]
        if pos_label is not None and y_prob.ndim == 1:  # any other label is the negative class
            index = _positive_index(pos_label, classes)
            negative_name = names[1 - index] if len(names) == 2 else f"not {names[index]}"
            is_positive = (labels == index).astype(np.int64).view(Positions)
            p = Predictions.from_probs(y_prob, is_positive, sample_weight, class_names=[negative_name, names[index]])
            return cls(p, name).plot(ax)
        num_columns = y_prob.shape[1] if y_prob.ndim > 1 else 2
        if num_columns == len(names):
            p = Predictions.from_probs(y_prob, labels.view(Positions), sample_weight, class_names=names)
        else:  # some class does not occur: labels must be indices of columns
            p, classes = Predictions.from_probs(y_prob, y_true, sample_weight), np.arange(num_columns)
        if pos_label is not None:
            p = p.with_event(_positive_index(pos_label, classes))
        elif p.k == 2:
            p = p.with_event(1)
        return cls(p, name).plot(ax)

    def plot(self, ax: Any = None) -> "ReliabilityDisplay":
        """Draw the diagram into `ax`, by default pyplot's current axes."""
        from calibrant.metrics import ece
        from calibrant.reports.plots import reliability

        title = f"{self.name}, ECE {format_percent(float(ece(self.predictions)))}".removeprefix(", ")
        self.ax_ = reliability(self.predictions, ax=ax, title=title)
        self.figure_ = self.ax_.figure
        return self


def _to_numpy(values: Any) -> np.ndarray:
    """Return the values as a numpy array, also those of a GPU."""
    is_foreign = hasattr(values, "__dlpack__") and not isinstance(values, np.ndarray)
    return to_column(values, "values") if is_foreign else np.asarray(values)


def _to_kind_of(x: Any, values: np.ndarray) -> Any:
    """Return numbers as an array of the kind and device of x, if scikit-learn's `array_api_dispatch` is on."""
    if not get_config()["array_api_dispatch"] or values.dtype.kind not in "iufb":
        return values
    namespace, _, device = get_namespace_and_device(x)
    dtype = _max_precision_float_dtype(namespace, device) if values.dtype.kind == "f" else None
    return namespace.asarray(values, dtype=dtype, device=device)


def _score_method(model: Any) -> str:
    """Return the method whose scores are calibrated: `predict_proba`, or else `decision_function`.

    Raises:
        InputError: If the model has neither.
    """
    name = next((name for name in ("predict_proba", "decision_function") if hasattr(model, name)), None)
    if name is None:
        raise InputError(
            f"Expected a classifier with predict_proba or decision_function, got {type(model).__name__}.",
            code="no_scores",
        )
    return name


def _scores(model: Any, x: Any) -> tuple[str, np.ndarray]:
    """Return the name of the method that scores examples, and the scores of a fitted classifier.

    Raises:
        InputError: If there are no scores of classes, or several outputs.
    """
    method = _score_method(model)
    _refuse_pair_scores(model, method, len(model.classes_))
    values = getattr(model, method)(x)
    if isinstance(values, list):
        raise InputError(
            f"Expected a classifier of one output, got {len(values)} outputs. Try one classifier per output.",
            code="several_outputs",
        )
    return method, _to_numpy(values)


def _refuse_pair_scores(model: Any, method: str, num_classes: int) -> None:
    """Raise `InputError` if a support vector machine scores pairs of classes: 3 classes have 3 pairs."""
    classifier = model.steps[-1][1] if hasattr(model, "steps") else model
    are_pairs = getattr(classifier, "decision_function_shape", None) == "ovo"
    if method == "decision_function" and num_classes > 2 and are_pairs:
        raise InputError(
            "Expected scores of classes, got those of pairs of classes. Try decision_function_shape='ovr'.",
            code="pair_scores",
        )


def _to_predictions(
    scores: tuple[str, np.ndarray], labels: Any, weights: Any = None, names: Any = None, *, clusters: Any = None
) -> Predictions:
    """Build predictions from probabilities, or from decision scores as logits.

    Args:
        scores: Name of the method that returned the scores, and the scores: (n, k), or (n) of a decision function for
            two classes.
        labels: Class indices, (n).
        weights: Weights of the examples, (n).
        names: Names of the classes.
        clusters: Cluster of each example, (n).
    """
    method, values = scores
    labels = np.asarray(labels).view(Positions)  # even if the names are numbers
    if method == "predict_proba":
        p = Predictions.from_probs(values, labels, weights, class_names=names, clusters=clusters)
    elif values.ndim == 1:
        p = Predictions.from_binary_logits(values, labels, weights, class_names=names, clusters=clusters)
    else:
        p = Predictions(values, labels, weights, class_names=names, clusters=clusters)
    return p.with_event(1) if p.k == 2 else p  # scikit-learn's positive class is the second


def _label_indices(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the index of each label among the unsorted classes, or raise `InputError` for unknown labels."""
    order = classes.argsort()
    index = order[np.searchsorted(classes[order], y).clip(max=len(classes) - 1)]
    if len(unknown := y[classes[index] != y]):
        raise InputError(
            f"Expected labels among the classifier's classes {classes.tolist()[:10]}, got {unknown.tolist()[0]!r}.",
            code="unknown_label",
        )
    return index


def _positive_index(pos_label: Any, classes: np.ndarray) -> int:
    """Return the index of a label among the classes, or raise `InputError` if it is unknown."""
    matches = [i for i, name in enumerate(classes.tolist()) if name == pos_label]
    if not matches:
        raise InputError(
            f"Expected pos_label to be one of {classes.tolist()[:10]}, got {str(pos_label)[:50]!r}.", code="pos_label"
        )
    return matches[0]


def _check_settings(calibrator: Any, cv: Any, method: Any) -> None:
    """Raise `InputError` for settings that only scikit-learn's `CalibratedClassifierCV` has, and for less than 2 folds.

    These are `method`, its names of calibrators, and cv="prefit". The error names what to use instead.
    """
    sklearn_name = str(calibrator if method is None else method)
    if method is not None or sklearn_name in SKLEARN_CALIBRATORS:
        calibrant_name = SKLEARN_CALIBRATORS.get(sklearn_name, "Auto")
        raise InputError(
            f"Expected a calibrator of calibrant, got {sklearn_name[:50]!r}. Try CalibratedClassifier(model, "
            f"{calibrant_name!r}).",
            code="sklearn_name",
        )
    if isinstance(cv, bool) or (isinstance(cv, Integral) and int(cv) < 2):
        raise InputError(f"Expected at least 2 folds, got cv={cv}. Try cv=5.", code="folds")
    if isinstance(cv, str) and cv == "prefit":  # an array of folds has no truth value
        raise InputError(
            "Expected folds, got cv='prefit'. Try CalibratedClassifier(FrozenEstimator(model)).", code="cv_prefit"
        )


def _fit_arguments(model: Any, weights: Any, fit_params: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the classifier's `fit` where metadata is not routed."""
    if weights is None:
        return dict(fit_params)
    if has_fit_parameter(model, "sample_weight"):
        return {**fit_params, "sample_weight": weights}
    if any(name.endswith("__sample_weight") for name in fit_params):  # the caller has passed them to a pipeline's step
        return dict(fit_params)
    raise InputError(
        f"Expected a classifier whose fit takes sample_weight, got {type(model).__name__}. For a pipeline, try "
        "sklearn.set_config(enable_metadata_routing=True) and set_fit_request(sample_weight=True) on its step.",
        code="sample_weight",
    )


def _check_folds(splits: list[Any], clusters: np.ndarray, cv: Any) -> None:
    """Raise `InputError` if no row is tested, or a cluster, which is a group or a row, is in both parts of a fold."""
    text = " ".join(str(cv).split())[:80]
    if not sum(len(test) for _, test in splits):
        raise InputError(f"Expected folds with test rows, got cv={text}. Try cv=5.", code="folds")
    if any(np.intersect1d(clusters[train], clusters[test]).size for train, test in splits):
        raise InputError(
            f"Expected folds whose training parts have no row and no group of their test parts, got cv={text}. Try "
            "cv=5 or, for groups, GroupKFold().",
            code="groups_divided",
        )


def _per_prediction(rows: np.ndarray, weights: Any, clusters: Any) -> tuple[Any, Any]:
    """Return the weights and clusters of the predictions of rows, or None where all count alike or are independent.

    A row with m predictions, which form a cluster, has a weight of 1 / m in each. Calibrators count weights as numbers
    of examples, so that weights in any unit are divided by their mean over rows.

    Args:
        rows: Row of each prediction, sorted.
        weights: Weight of each row, or None.
        clusters: Cluster of each row, or None.
    """
    times = np.bincount(rows)[rows]
    if times.max() > 1:
        clusters = rows if clusters is None else clusters[rows]
        shares = 1 / times if weights is None else weights[rows] / times
    else:
        clusters = None if clusters is None else clusters[rows]
        shares = None if weights is None else weights[rows]
    return None if shares is None else shares * (len(np.unique(rows)) / shares.sum()), clusters
