import os
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from refusals import refused
from scipy.sparse import csr_matrix
from sklearn import clone, config_context
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    GroupShuffleSplit,
    KFold,
    PredefinedSplit,
    RepeatedStratifiedKFold,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
    cross_val_score,
    cross_validate,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from calibrant import Predictions, metrics
from calibrant._core.tensors import logit_tensor
from calibrant.calibrators import Temperature
from calibrant.integrations.sklearn import CalibratedClassifier, ReliabilityDisplay, predictions, scorer


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([CalibratedClassifier(calibrator="Temperature", cv=2)])
def test_scikit_learn_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [CalibratedClassifier(LogisticRegression(), "Auto", cv=5)],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": "copies of a row fall into several folds, a weight into one",
        "check_sample_weight_equivalence_on_sparse_data": "the same",
    },
)
def test_scikit_learn_estimator_checks_with_auto(estimator, check):
    check(estimator)


def test_calibration_improves_probabilities():
    X, y = make_classification(2000, 20, n_informative=6, n_redundant=10, n_classes=3, random_state=0)
    names = np.array(["a", "b", "c"])[y]
    raw = GaussianNB().fit(X[:1000], names[:1000])
    calibrated = CalibratedClassifier(GaussianNB(), "StructuredMatrix", cv=3).fit(X[:1000], names[:1000])
    assert log_loss(names[1000:], calibrated.predict_proba(X[1000:])) < 0.9 * log_loss(
        names[1000:], raw.predict_proba(X[1000:])
    )
    assert set(calibrated.predict(X)) <= set("abc")


@pytest.fixture(scope="module")
def problem():
    X, y = make_classification(1500, 12, n_informative=5, n_redundant=5, n_classes=3, random_state=1)
    return X, np.array(["ant", "bee", "cow"])[y]


def test_frozen_model_is_not_refitted(problem):
    X, y = problem
    model = GaussianNB().fit(X[:500], y[:500])
    calibrated = CalibratedClassifier(FrozenEstimator(model), "Temperature").fit(X[500:1000], y[500:1000])
    p = Predictions.from_probs(model.predict_proba(X[500:1000]), np.searchsorted(model.classes_, y[500:1000]))
    before = Predictions.from_probs(model.predict_proba(X), np.zeros(len(X), int))
    expected = Temperature.fit(p)(logit_tensor(before))
    np.testing.assert_allclose(calibrated.predict_proba(X), expected.softmax(1).numpy(), atol=1e-9)
    assert log_loss(y[1000:], calibrated.predict_proba(X[1000:])) < log_loss(y[1000:], model.predict_proba(X[1000:]))
    small_fit = CalibratedClassifier(FrozenEstimator(model), "Temperature").fit(
        X[500:1000][y[500:1000] != "cow"], y[500:1000][y[500:1000] != "cow"]
    )
    assert small_fit.predict_proba(X[:5]).shape == (5, 3)  # a class without examples is still one


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_without_probabilities_are_calibrated(classes):
    X, y = make_classification(1200, 12, n_informative=6, n_classes=classes, random_state=2)
    classifier = CalibratedClassifier(LinearSVC(), "StructuredMatrix", cv=3).fit(X[:600], y[:600])
    probs = classifier.predict_proba(X[600:])
    assert probs.shape == (600, classes)
    prior = np.bincount(y[:600]) / 600
    assert log_loss(y[600:], probs) < 0.9 * log_loss(y[600:], np.tile(prior, (600, 1)))


def test_integer_weights_equal_repeated_rows(problem):
    X, y = problem
    weights = np.random.default_rng(0).integers(1, 4, 600)
    model = FrozenEstimator(GaussianNB().fit(X[600:], y[600:]))
    rows = np.repeat(np.arange(600), weights)
    fitted = CalibratedClassifier(model, "Temperature").fit(X[:600], y[:600], sample_weight=weights / 7)
    repeated = CalibratedClassifier(model, "Temperature").fit(X[rows], y[rows])
    assert float(fitted.calibrator_.temperature) == pytest.approx(float(repeated.calibrator_.temperature), rel=1e-6)


def test_scorers_select_models(problem):
    X, y = problem
    scores = cross_val_score(GaussianNB(), X, y, scoring=scorer("nll"), cv=3)
    expected = cross_val_score(GaussianNB(), X, y, scoring="neg_log_loss", cv=3)
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    np.testing.assert_allclose(
        cross_val_score(GaussianNB(), X, y, scoring=scorer("accuracy"), cv=3), cross_val_score(GaussianNB(), X, y, cv=3)
    )
    search = GridSearchCV(GaussianNB(), {"var_smoothing": [1e-9, 1.0]}, scoring=scorer("smooth_ece"), cv=3).fit(X, y)
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])


@pytest.mark.parametrize("pos_label", [1, 2])
def test_diagram_of_a_class_is_that_of_its_column_if_another_class_does_not_occur(pos_label):
    probs = [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7], [0.2, 0.2, 0.6]]
    display = ReliabilityDisplay.from_predictions([0, 2, 2], probs, pos_label=pos_label, ax=Figure().add_subplot())
    assert display.predictions.of == pos_label


def test_display_from_estimator_and_predictions(problem):
    X, y = problem
    model = GaussianNB().fit(X, y)
    display = ReliabilityDisplay.from_estimator(model, X, y, ax=Figure().add_subplot())
    bins = metrics.tables.bins(display.predictions)
    assert len(display.ax_.patches) == 2 * int((bins.count > 0).sum())
    two = ReliabilityDisplay.from_predictions(["no", "yes", "yes"], [0.2, 0.9, 0.4], ax=Figure().add_subplot())
    assert two.ax_.get_xlabel() == "probability of yes"
    assert display.predictions.class_names == ("ant", "bee", "cow")


class Remembers(GaussianNB):
    """A classifier that records the rows and weights of every fit."""

    fits = list[tuple]()  # noqa: RUF012

    def fit(self, X, y, sample_weight=None):
        self.fits.append((X[:, 0].copy(), sample_weight))
        return super().fit(X, y, sample_weight)


@pytest.fixture
def rows(problem):
    """Forty groups of fifteen rows whose first feature is the group."""
    X, y = problem
    X, groups = X[:600].copy(), np.arange(600) % 40
    X[:, 0] = groups
    Remembers.fits.clear()
    return X, y[:600], np.array([f"patient {group}" for group in groups])


@pytest.mark.parametrize("cv", [3, GroupKFold(3)])
@pytest.mark.parametrize("routing", [False, True])
def test_groups_are_not_divided_between_folds(rows, cv, routing):
    X, y, groups = rows
    with config_context(enable_metadata_routing=routing):
        CalibratedClassifier(Remembers(), "Temperature", cv=cv).fit(X, y, groups=groups)
    *folds, last = [set(first.tolist()) for first, _ in Remembers.fits]
    assert len(last) == 40
    assert len(folds) == 3
    assert [len(first) for first, _ in Remembers.fits[:3]] == [15 * len(fold) for fold in folds]
    assert sum(40 - len(fold) for fold in folds) == 40


@pytest.mark.parametrize(
    ("cv", "groups", "code"),
    [
        (StratifiedKFold(3), np.arange(600) % 40, "groups_divided"),
        (3, np.zeros(600), "one_group"),
    ],
)
@pytest.mark.filterwarnings("ignore:The groups parameter is ignored")
def test_folds_that_divide_groups_are_refused(rows, cv, groups, code):
    with refused(code):
        CalibratedClassifier(GaussianNB(), "Temperature", cv=cv).fit(rows[0], rows[1], groups=groups)


@pytest.fixture(scope="module")
def late_class():
    """Rows in whose order one of three classes comes last."""
    g = np.random.default_rng(0)
    y = np.repeat([0, 1, 0, 1, 2], [50, 50, 50, 50, 40])
    return g.normal(size=(240, 3)) + np.eye(3)[y], np.array(["cat", "dog", "elk"])[y]


@pytest.mark.parametrize("groups", [None, np.arange(240) // 2])
@pytest.mark.parametrize("cv", [KFold(5), TimeSeriesSplit(3), [(np.arange(200), np.arange(200, 240))]])
@pytest.mark.filterwarnings("ignore:The groups parameter is ignored")
def test_training_parts_that_lack_a_class_are_refused(late_class, cv, groups):
    """Probabilities of 0 for the rows of the missing class made the log loss twice as large."""
    with refused("folds"):
        CalibratedClassifier(GaussianNB(), "Temperature", cv=cv).fit(*late_class, groups=groups)


@pytest.mark.parametrize("model", [LogisticRegression(), GaussianNB()])
def test_training_parts_of_one_class_are_refused(late_class, model):
    with refused("folds"):
        CalibratedClassifier(model, "Temperature", cv=[(np.arange(50), np.arange(50, 240))]).fit(*late_class)


def test_a_class_may_be_missing_where_nothing_is_fitted_to_it(late_class):
    """A test part may lack a class, and a final step that is not fitted again has the columns of all classes."""
    x, y = late_class
    hold_out = [(np.arange(1, 240, 2), np.arange(0, 200, 2))]
    calibrated = CalibratedClassifier(GaussianNB(), "StructuredVector", cv=hold_out).fit(x, y)
    assert calibrated.predict_proba(x)[200:, 2].mean() > 0.1
    indices = np.unique(y, return_inverse=True)[1]
    fixed = make_pipeline(
        StandardScaler(), FrozenEstimator(GaussianNB().fit(StandardScaler().fit_transform(x), indices))
    )
    refitted = CalibratedClassifier(fixed, "Temperature", cv=KFold(5)).fit(x, y)
    assert refitted.predict_proba(x).shape == (240, 3)


@pytest.mark.parametrize(
    ("cv", "num_tested", "num_predictions"),
    [
        (TimeSeriesSplit(3), 180, 180),
        (ShuffleSplit(4, test_size=60, random_state=0), None, 240),
        (RepeatedStratifiedKFold(n_splits=3, n_repeats=2, random_state=0), 240, 480),
        (PredefinedSplit(np.where(np.arange(240) % 3 == 0, 0, -1)), 80, 80),
        ([(np.arange(240) % 2 == 0, np.arange(240) % 2 == 1)], 120, 120),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_splitters_need_not_partition_the_rows(late_class, monkeypatch, cv, num_tested, num_predictions, weighted):
    """They ended in a ValueError. Each tested row counts once, however often it is tested."""
    x, y = late_class
    order = np.random.default_rng(1).permutation(240)
    weights = np.arange(240) % 4 + 1.0 if weighted else None
    fits = []
    monkeypatch.setattr("calibrant.calibrators.fit", lambda _, p: fits.append(p) or Temperature.fit(p))
    CalibratedClassifier(GaussianNB(), "Temperature", cv=cv).fit(x[order], y[order], sample_weight=weights)
    (p,) = fits
    assert len(p) == num_predictions
    tested = np.unique(np.concatenate([test for _, test in cv.split(x, y)])) if num_tested is None else num_tested
    assert p.total_weight == pytest.approx(num_tested or len(tested))
    repeated = num_predictions > (num_tested or len(tested))
    assert (p.clusters is not None) == (repeated or weighted)  # scaled weights are importance weights
    if repeated and not weighted:
        shares = np.bincount(p.clusters, p.weights)
        np.testing.assert_allclose(shares[shares > 0], 1)


def test_repeated_folds_of_equal_models_change_nothing(problem):
    """The same folds twice give each row the same prediction twice, with half of the weight."""
    X, y = problem
    once = list(StratifiedKFold(3).split(X, y))
    fitted = [CalibratedClassifier(GaussianNB(), "StructuredMatrix", cv=cv).fit(X, y) for cv in (once, once + once)]
    np.testing.assert_allclose(fitted[0].predict_proba(X), fitted[1].predict_proba(X), atol=1e-6)


@pytest.mark.parametrize(
    ("cv", "code"),
    [([(np.arange(240), np.arange(120))], "groups_divided"), ([(np.arange(240), np.arange(0))], "folds")],
)
def test_folds_hold_rows_out(late_class, cv, code):
    with refused(code):
        CalibratedClassifier(GaussianNB(), "Temperature", cv=cv).fit(*late_class)


def test_several_labels_are_refused(late_class):
    x, _ = late_class
    with refused("several_outputs"):
        CalibratedClassifier(GaussianNB()).fit(x, (x > 0).astype(int))


def test_groups_may_be_tested_several_times(rows):
    X, y, groups = rows
    cv = GroupShuffleSplit(4, test_size=0.5, random_state=0)
    calibrated = CalibratedClassifier(GaussianNB(), "Temperature", cv=cv).fit(X, y, groups=groups)
    assert calibrated.calibrator_.certificate.is_optimal


def test_outer_folds_route_groups(rows):
    X, y, groups = rows
    with config_context(enable_metadata_routing=True):
        model = CalibratedClassifier(Remembers(), "Temperature", cv=2)
        cross_validate(model, X, y, cv=GroupKFold(2), params={"groups": groups})
    assert len(Remembers.fits) == 2 * 3
    assert all(len(first) == 15 * len(set(first.tolist())) for first, _ in Remembers.fits)


def test_weights_reach_the_step_of_a_pipeline_that_requests_them(rows):
    X, y, _ = rows
    weights = np.arange(600) % 3 + 1.0
    with config_context(enable_metadata_routing=True):
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        model = make_pipeline(scaler, Remembers().set_fit_request(sample_weight=True))
        routed = CalibratedClassifier(model, "Temperature", cv=2).fit(X, y, sample_weight=weights)
    assert [len(used) for _, used in Remembers.fits] == [300, 300, 600]
    model = make_pipeline(StandardScaler(), Remembers())
    by_name = CalibratedClassifier(model, "Temperature", cv=2)
    by_name.fit(X, y, sample_weight=weights, remembers__sample_weight=weights)
    np.testing.assert_array_equal(by_name.predict_proba(X), routed.predict_proba(X))


@pytest.mark.parametrize("model", [make_pipeline(StandardScaler(), GaussianNB()), KNeighborsClassifier()])
def test_weights_that_a_classifier_cannot_take_are_refused(rows, model):
    with refused("sample_weight"):
        CalibratedClassifier(model, "Temperature").fit(rows[0], rows[1], sample_weight=np.ones(600))


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: CalibratedClassifier(GaussianNB(), "sigmoid"), "sklearn_name"),
        (lambda: CalibratedClassifier(GaussianNB(), "isotonic"), "sklearn_name"),
        (lambda: CalibratedClassifier(GaussianNB(), method="sigmoid"), "sklearn_name"),
        (lambda: CalibratedClassifier(GaussianNB(), cv="prefit"), "cv_prefit"),
        (lambda: scorer("neg_log_loss"), "sklearn_name"),
    ],
)
def test_scikit_learn_names_are_refused_with_ours(rows, make, code):
    with refused(code):
        make().fit(rows[0], rows[1])


def test_log_scores_are_clipped_as_by_scikit_learn(problem):
    X, y = problem
    model = RandomForestClassifier(5, random_state=0).fit(X[:500], y[:500])
    assert (model.predict_proba(X[500:]) == 0).any()
    expected = -log_loss(y[500:], model.predict_proba(X[500:]))
    assert scorer("nll")(model, X[500:], y[500:]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("routing", [False, True])
def test_scorers_accept_weights(rows, routing):
    X, y, _ = rows
    weights = np.arange(600) % 3 + 1.0
    with config_context(enable_metadata_routing=routing):
        if not routing:
            model = GaussianNB().fit(X, y)
            expected = -log_loss(y, model.predict_proba(X), sample_weight=weights)
            assert scorer("nll")(model, X, y, sample_weight=weights) == pytest.approx(expected, rel=1e-9)
            return
        model = Remembers().set_fit_request(sample_weight=True)
        weighted = scorer("nll").set_score_request(sample_weight=True)
        search = cross_val_score(model, X, y, scoring=weighted, cv=2, params={"sample_weight": weights})
        unweighted = scorer("nll").set_score_request(sample_weight=False)
        assert (
            search != cross_val_score(model, X, y, scoring=unweighted, cv=2, params={"sample_weight": weights})
        ).all()


def test_the_positive_label_is_the_event(problem):
    X, y = problem
    two = np.where(y == "ant", "ill", "well")
    model = GaussianNB().fit(X, two)
    ill = predictions(model, X, two, pos_label="ill")
    assert float(ill.events.outcome.mean()) == pytest.approx((two == "ill").mean())
    assert float(predictions(model, X, two).events.outcome.mean()) == pytest.approx((two == "well").mean())
    probs = model.predict_proba(X)
    for y_prob in (probs, probs[:, 1], probs[:, 1:]):
        display = ReliabilityDisplay.from_predictions(two, y_prob, ax=Figure().add_subplot())
        assert display.ax_.get_xlabel() == "probability of well"
    for y_prob in (probs, probs[:, 0], probs[:, :1]):
        display = ReliabilityDisplay.from_predictions(two, y_prob, pos_label="ill", ax=Figure().add_subplot())
        np.testing.assert_allclose(display.predictions.events.confidence, ill.events.confidence, atol=1e-12)
        assert display.ax_.get_xlabel() == "probability of ill"
    assert scorer("event_brier", pos_label="ill")(model, X, two) == pytest.approx(
        scorer("event_brier", pos_label="well")(model, X, two)
    )
    with refused("pos_label"):
        predictions(model, X, two, pos_label="sick")


@pytest.mark.parametrize(
    ("cv", "options", "code"),
    [
        (0, {}, "folds"),
        (1, {}, "folds"),
        (True, {}, "folds"),
        (np.int64(1), {}, "folds"),
        (3, {"sample_weight": -np.ones(60)}, "weights"),
        (3, {"groups": np.where(np.arange(60) < 3, np.nan, np.arange(60) // 4)}, "not_names"),
    ],
)
def test_folds_weights_and_groups_are_checked(cv, options, code):
    """One fold was read as two, weights of -1 became 1, and rows without a group became one group."""
    x, y = make_classification(60, random_state=0)
    with refused(code):
        CalibratedClassifier(GaussianNB(), "Temperature", cv=cv).fit(x, y, **options)


def test_folds_may_be_an_integer_of_numpy(problem):
    X, y = problem
    models = [CalibratedClassifier(GaussianNB(), "Temperature", cv=cv).fit(X, y) for cv in (3, np.int64(3))]
    np.testing.assert_array_equal(models[0].predict_proba(X), models[1].predict_proba(X))


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (LinearRegression(), "no_scores"),
        (SVC(decision_function_shape="ovo"), "pair_scores"),
        (make_pipeline(StandardScaler(), SVC(decision_function_shape="ovo")), "pair_scores"),
    ],
)
def test_models_without_scores_of_classes_are_refused(model, code):
    """The three columns for the pairs of three classes were read as classes."""
    x, y = make_classification(90, n_informative=3, n_classes=3, random_state=0)
    for classifier in model, FrozenEstimator(clone(model).fit(x, y)):
        with refused(code):
            CalibratedClassifier(classifier, "Temperature", cv=3).fit(x, y)


def test_outputs_and_labels_that_do_not_fit_are_refused(problem):
    X, y = problem
    with refused("several_outputs"):
        predictions(KNeighborsClassifier().fit(X, np.stack([y, y], 1)), X, y)
    with refused("unknown_label"):
        predictions(GaussianNB().fit(X, y), X, np.full(len(y), "dog"))
    with pytest.raises(NotFittedError):
        CalibratedClassifier(FrozenEstimator(GaussianNB())).fit(X, y)


def test_classifiers_get_the_features_as_they_are():
    """Columns by name, texts, missing values and sparse matrices reach the classifier, as in scikit-learn's own."""
    pandas = pytest.importorskip("pandas")
    x, y = make_classification(200, 4, random_state=0)
    frame = pandas.DataFrame(x, columns=list("abcd")).assign(color=np.where(y == 1, "red", "blue"))
    by_name = make_column_transformer((OneHotEncoder(), ["color"]), ("passthrough", ["a", "b"]))
    gaps = np.where(x > 1.5, np.nan, x)
    for model, features in (
        (make_pipeline(by_name, LogisticRegression()), frame),
        (make_pipeline(CountVectorizer(), LogisticRegression()), frame["color"].tolist()),
        (HistGradientBoostingClassifier(max_iter=2), gaps),
        (LogisticRegression(), csr_matrix(x)),
    ):
        fitted = CalibratedClassifier(model, "Temperature", cv=3).fit(features, y)
        assert fitted.predict_proba(features).shape == (200, 2)
    fitted = CalibratedClassifier(LogisticRegression(), "Temperature", cv=3).fit(frame[["a", "b"]], y)
    assert (fitted.n_features_in_, fitted.feature_names_in_.tolist()) == (2, ["a", "b"])
    assert not hasattr(fitted.fit(x, y), "feature_names_in_")


DISPATCHED = """
import numpy as np, sklearn, torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.frozen import FrozenEstimator
from calibrant.integrations.sklearn import CalibratedClassifier, scorer

rng = np.random.default_rng(0)
x = rng.standard_normal((300, 3))
y = (x[:, 0] + rng.standard_normal(300) > 0).astype(int)
for frozen in (False, True):
    values = []
    for kind in (np.asarray, torch.from_numpy):
        with sklearn.config_context(array_api_dispatch=True):
            model = LinearDiscriminantAnalysis()
            model = FrozenEstimator(model.fit(kind(x), kind(y))) if frozen else model
            fitted = CalibratedClassifier(model, "Temperature").fit(kind(x), kind(y))
            probs, labels = fitted.predict_proba(kind(x)), fitted.predict(kind(x))
            assert type(probs) is type(labels) is type(kind(x))
            values.append((float(fitted.score(kind(x), kind(y))), scorer("nll")(fitted, kind(x), kind(y)), *probs[0]))
    assert np.allclose(*values, atol=1e-6), values
"""


@pytest.mark.slow
def test_tensors_pass_through_by_the_array_api():
    environment = os.environ | {"SCIPY_ARRAY_API": "1"}  # read when scipy is imported
    finished = subprocess.run([sys.executable, "-c", DISPATCHED], env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
