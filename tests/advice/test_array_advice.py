"""Following the advice of refused arrays, calibrators and metrics works."""

import traceback

import numpy as np
import pytest
from advised import Case, follow
from refusals import refused

from calibrant import Predictions, calibrators, measure, metrics
from calibrant.assessment import summarize
from calibrant.calibrators import subgroups
from calibrant.metrics import Summary

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 120)
LOGITS = RNG.normal(size=(120, 3)) + 2 * np.eye(3)[LABELS]
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
SCORES = RNG.normal(size=120)
P = Predictions(LOGITS, LABELS)
BINARY = Predictions.from_binary_logits(SCORES, LABELS % 2)
GROUPED = Predictions(LOGITS, LABELS, groups=["a", "b"] * 60)
SOFT = Predictions.from_soft_labels(LOGITS, PROBS)
TEMPERATURE = calibrators.fit("Temperature", P)


def fit(name, p=P, **settings):
    return getattr(calibrators, name).fit(p, **settings)


def class_of(advice, name):
    assert name in advice
    return getattr(calibrators, name)


CASES = [
    Case(
        "one_hot_labels",
        lambda: Predictions(LOGITS, np.eye(3)[LABELS]),
        lambda t: Predictions(LOGITS, t.evaluate("labels.argmax(-1)", labels=np.eye(3)[LABELS])),
    ),
    Case(
        "negative_labels",
        lambda: Predictions(LOGITS, np.where(SCORES > 1, -1, LABELS)),
        lambda t: Predictions(LOGITS, np.where(SCORES > 1, -1, LABELS), **t.keywords()),
    ),
    Case(
        "labels_from",
        lambda: Predictions(LOGITS, LABELS + 1),
        lambda t: Predictions(LOGITS, t.evaluate("labels - 1", labels=LABELS + 1)),
    ),
    Case(
        "label_range",
        lambda: Predictions(LOGITS, np.where(SCORES > 1, 255, LABELS)),
        lambda t: Predictions(LOGITS, np.where(SCORES > 1, 255, LABELS), **t.keywords()),
    ),
    Case(
        "class_count",
        lambda: Predictions(LOGITS, np.array(["a", "b"])[LABELS % 2]),
        lambda t: Predictions(LOGITS, np.array(["a", "b"])[LABELS % 2], class_names=["a", "b", "c"]),
    ),
    Case(
        "names",
        lambda: Predictions(LOGITS, LABELS, class_names="abc"),
        lambda t: Predictions(LOGITS[:, :2], LABELS % 2, class_names=t.evaluate("[")),
    ),
    Case(
        "weights_are",
        lambda: Predictions(LOGITS, LABELS, np.ones(120), weights_are="copies"),
        lambda t: [Predictions(LOGITS, LABELS, np.ones(120), weights_are=kind) for kind in t.split('"')[1:4:2]],
    ),
    Case(
        "probs_as_logits",
        lambda: Predictions.from_binary_logits(PROBS[:, 1], LABELS % 2),
        lambda t: (
            Predictions.from_binary_logits(PROBS[:, 1], LABELS % 2, logits=True),
            t.evaluate("Predictions.from_probs", Predictions=Predictions)(PROBS[:, 1], LABELS % 2),
        ),
    ),
    Case(
        "single_logit",
        lambda: Predictions(PROBS[:, 1], LABELS % 2),
        lambda t: [
            t.evaluate("Predictions.from_probs", Predictions=Predictions)(PROBS[:, 1], LABELS % 2),
            t.evaluate("Predictions.from_binary_logits", Predictions=Predictions)(PROBS[:, 1], LABELS % 2, logits=True),
        ],
    ),
    Case(
        "one_class",
        lambda: Predictions(SCORES[:, None], LABELS % 2),
        lambda t: t.evaluate("Predictions.from_binary_logits", Predictions=Predictions)(SCORES[:, None], LABELS % 2),
    ),
    *(
        Case(
            code, lambda labels=labels: Predictions(LOGITS, labels), lambda t: Predictions(LOGITS[1:], list(LABELS[1:]))
        )
        for code, labels in (("missing", [None, *LABELS[1:]]), ("label_fractions", [np.nan, *LABELS[1:]]))
    ),
    Case(
        "ambiguous_positive",
        lambda: Predictions.from_probs(PROBS[:, 1], np.array(["x", "y"])[LABELS % 2]),
        lambda t: Predictions.from_probs(
            PROBS[:, 1],
            np.array(["x", "y"])[LABELS % 2],
            class_names=t.keywords(negative="x", positive="y")["class_names"],
        ),
    ),
    Case(
        "percent",
        lambda: Predictions.from_probs(100 * PROBS, LABELS),
        lambda t: Predictions.from_probs(t.evaluate("p / 100", p=100 * PROBS), LABELS),
    ),
    Case(
        "not_probabilities",
        lambda: Predictions.from_probs(LOGITS, LABELS),
        lambda t: t.evaluate("Predictions(", Predictions=Predictions, logits=LOGITS, labels=LABELS),
    ),
    Case(
        "rounded_sums",
        lambda: Predictions.from_probs(PROBS.round(2), LABELS),
        lambda t: Predictions.from_probs(PROBS.round(2), LABELS, **t.keywords()),
    ),
    Case(
        "not_probabilities",
        lambda: Predictions.from_probs(SCORES, LABELS % 2),
        lambda t: t.evaluate("Predictions.from_binary_logits", Predictions=Predictions)(SCORES, LABELS % 2),
    ),
    Case(
        "several_events",
        lambda: measure(P, of="classes"),
        lambda t: [measure(P, of=of) for of in (t.keywords()["of"], 0, 2)],
    ),
    Case(
        "summary_event",
        lambda: measure(summarize([P]), of=1),
        lambda t: measure(t.evaluate("Summary.empty", Summary=Summary).add(P), of=1),
    ),
    Case(
        "logits_shape",
        lambda: TEMPERATURE(LOGITS[0]),
        lambda t: TEMPERATURE(t.evaluate("logits[None]", logits=LOGITS[0])),
    ),
    Case("num_classes", lambda: fit("Platt"), lambda t: class_of(t, "StructuredMatrix").fit(P)),
    Case(
        "fractional_outcomes", lambda: fit("TopLabelBinning", SOFT), lambda t: class_of(t, "HistogramBinning").fit(SOFT)
    ),
    Case(
        "no_members", lambda: calibrators.pool(), lambda t: t.evaluate("pool", pool=calibrators.pool, first=P, second=P)
    ),
    Case("calibrator_kind", lambda: calibrators.fit(3, P), lambda t: calibrators.fit(t.evaluate("'"), P)),
    Case(
        "needs_features",
        lambda: calibrators.fit(subgroups.MultiCalibrated, P),
        lambda t: t.evaluate("MultiCalibrated.fit", MultiCalibrated=subgroups.MultiCalibrated)(P, {"age": SCORES}),
    ),
    Case(
        "no_groups",
        lambda: calibrators.GroupCalibrated.fit(GROUPED)(LOGITS),
        lambda t: t.evaluate("of_group", of_group=calibrators.GroupCalibrated.fit(GROUPED).of_group)(LOGITS),
    ),
    Case("prior", lambda: fit("PriorShift", prior=[1, 2]), lambda t: fit("PriorShift", prior=t.evaluate("'uniform'"))),
    Case(
        "fitted_on_same",
        lambda: calibrators.calibrate(TEMPERATURE, P),
        lambda t: (calibrators.calibrate(TEMPERATURE, P, **t.keywords()), calibrators.cross_fit("Temperature", P)),
    ),
    Case(
        "no_interval",
        lambda: metrics.ece.interval(P, bins=3),
        lambda t: t.evaluate("metrics.compare", metrics=metrics)(P, Predictions(LOGITS / 2, LABELS)),
    ),
    Case(
        "no_test",
        lambda: metrics.ece.test(P),
        lambda t: [getattr(metrics, name).test(P) for name in t.rstrip(".").split(", ")],
    ),
]


def test_area_under_the_roc_curve_is_found_by_its_usual_name():
    with pytest.raises(AttributeError) as caught:
        metrics.auc  # noqa: B018
    (line,) = traceback.format_exception_only(caught.value)
    name = line.split("did you mean ")[1].strip("?'\n")
    assert getattr(metrics, name)(BINARY) == metrics.auroc(BINARY)
    with refused("unknown_method") as refusal:
        measure(BINARY, metrics=["auc"])
    assert measure(BINARY, metrics=[str(refusal.value).split("did you mean ")[1].strip("?'")])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_advice_works(case):
    follow(case)
