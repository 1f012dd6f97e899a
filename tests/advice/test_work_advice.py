"""Following the advice of refused plans, gates, watches and exports works."""

import re
from unittest.mock import Mock

import advised
import numpy as np
import polars as pl
import pytest
from advised import Case, follow, refused_command, succeed
from scipy.special import softmax
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

from calibrant import Predictions, Watch, calibrators, check, decisions, drift, sample_size
from calibrant.deployment import export
from calibrant.integrations import sklearn
from calibrant.language_models.fusion import Fusion
from calibrant.metrics import Summary

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 400)
LOGITS = RNG.normal(size=(400, 3)) + 2 * np.eye(3)[LABELS]
P = Predictions(LOGITS, LABELS)
OTHER_MODEL = Predictions(LOGITS / 2, LABELS)
SOFT = Predictions.from_soft_labels(LOGITS, np.full((400, 3), 1 / 3))
SMALL_SOFT = SOFT[:90]
IDS = np.arange(400)
WAITING = Watch().add(P[:25], ids=IDS[:25], labeled=[False] * 25)
TEMPERATURE = calibrators.fit("Temperature", P)
X, CLASSES = make_classification(60, n_informative=4, random_state=0)


def is_planned(*predictions, **options):
    """Check that the arguments of a plan are accepted: that the search for n, which takes seconds, begins."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calibrant.planning._search.PowerCurve.simulate", Mock(side_effect=StopIteration))
        with pytest.raises(StopIteration):
            sample_size(*predictions, **options)


def plan(code, *predictions, **options):
    """Return a plan that is refused, and follow the arguments of the advice."""
    return Case(
        code,
        lambda: sample_size(*predictions, **options),
        lambda t: is_planned(*predictions, **options | t.keywords()),
    )


def replan(code, options, change, *predictions):
    return Case(code, lambda: sample_size(*predictions, **options), lambda t: is_planned(**change(t)))


def gate(code, requirement):
    """Return a requirement that is refused, and check the one that the advice gives."""
    return Case(code, lambda: check(P, requirement), lambda t: check(P, t.evaluate("'")))


COUNTED = Predictions(LOGITS, LABELS, 1 + IDS % 2)
IMPORTANT = Predictions(LOGITS, LABELS, 1 + IDS % 2 / 2)
BETA = {"detect": 0.1}

CASES = [
    plan("num_goals", accuracy=0.9),
    plan("no_icc", accuracy=0.9, detect=0.1, cluster_size=5),
    plan("no_clusters", accuracy=0.9, detect=0.1, icc=0.1),
    replan("num_goals", {"accuracy": 0.9, "detect": 0.1, "bound": 0.1}, lambda t: {"accuracy": 0.9, **t.keywords()}),
    replan("source", {"detect": 0.1}, lambda t: {"detect": 0.1, **t.keywords()}),
    replan("unreachable", {"detect": 0.95}, lambda t: {"predictions": P, "detect": float(t.rstrip("."))}, P),
    replan("confidence", {"confidence": "high", **BETA}, lambda t: {"confidence": t.evaluate("'"), **BETA}),
    replan("confidence", {"confidence": "beta(0, 1)", **BETA}, lambda t: {"confidence": t.rstrip("."), **BETA}),
    replan(
        "cluster_size",
        {"accuracy": 0.9, "cluster_size": 0, "icc": 0.1, **BETA},
        lambda t: {"accuracy": 0.9, "cluster_size": int(t.rstrip(".")), "icc": 0.1, **BETA},
    ),
    replan(
        "metric_from_assumption",
        {"accuracy": 0.9, "difference": 0.02, "metric": "auroc"},
        lambda t: {"accuracy": 0.9, "difference": 0.02, "metric": t.rstrip(".")},
    ),
    replan(
        "two_models",
        {"second": OTHER_MODEL, **BETA},
        lambda t: {"predictions": P, "second": OTHER_MODEL, **t.keywords()},
        P,
    ),
    gate("requirement_limit", "ece < a lot"),
    gate("requirement_direction", "ece > 0.9"),
    gate("requirement_direction", "accuracy < 0.9"),
    Case("requirement_limit", lambda: check(P, "accuracy > 90"), lambda t: check(P, f"accuracy > {t.rstrip('.')}")),
    Case("no_requirement", lambda: check(P, []), lambda t: check(P, t.evaluate('"'))),
    Case(
        "shift",
        lambda: drift(SMALL_SOFT, SMALL_SOFT, shift="label"),
        lambda t: drift(SMALL_SOFT, SMALL_SOFT, **t.keywords()),
    ),
    Case(
        "unknown_id",
        lambda: WAITING.add_labels([1, 99], [0, 0]),
        lambda t: WAITING.add_labels([1, 99], [0, 0], **t.keywords()),
    ),
    Case(
        "threshold_range",
        lambda: decisions.net_benefit(P.with_event(1), thresholds=[0, 2]),
        lambda t: decisions.net_benefit(P.with_event(1), thresholds=t.evaluate("[")),
    ),
    Case(
        "partly_missing",
        lambda: Summary.empty().add(COUNTED).add(IMPORTANT),
        lambda t: Summary.empty().add(Predictions(LOGITS, LABELS, COUNTED.weights, **t.keywords())).add(IMPORTANT),
    ),
    Case(
        "signal_range",
        lambda: Fusion.fit({"a": 4 * LOGITS[:, 0]}, LABELS > 0, scale="probability"),
        lambda t: Fusion.fit({"a": 4 * LOGITS[:, 0]}, LABELS > 0, **t.keywords()),
    ),
    Case(
        "sklearn_name", lambda: sklearn.scorer("neg_brier_score"), lambda t: t.evaluate("scorer", scorer=sklearn.scorer)
    ),
    Case(
        "sklearn_name",
        lambda: sklearn.CalibratedClassifier(LogisticRegression(), "isotonic").fit(X, CLASSES),
        lambda t: t.evaluate(
            "CalibratedClassifier", CalibratedClassifier=sklearn.CalibratedClassifier, model=LogisticRegression()
        ).fit(X, CLASSES),
    ),
    Case(
        "folds",
        lambda: sklearn.CalibratedClassifier(LogisticRegression(), "Platt", cv=1).fit(X, CLASSES),
        lambda t: sklearn.CalibratedClassifier(LogisticRegression(), "Platt", **t.keywords()).fit(X, CLASSES),
    ),
    Case(
        "groups_divided",
        lambda: sklearn.CalibratedClassifier(LogisticRegression(), "Platt", cv=[(np.arange(60), np.arange(30))]).fit(
            X, CLASSES
        ),
        lambda t: [
            sklearn.CalibratedClassifier(LogisticRegression(), "Platt", **t.keywords()).fit(X, CLASSES),
            t.evaluate("GroupKFold", GroupKFold=GroupKFold),
        ],
    ),
]


def test_advice_of_notes_works():
    events = P.with_event(1)
    one_sided, constant = map(advised.advice_of, check(events, "signed_gap < 0.9").notes)
    result = check(events, [one_sided.rstrip("."), *re.findall('"(.*?)"', constant)[:2]])
    assert not result.passing_constants
    assert not result.notes
    assert "larger risk" in advised.advice_of(str(decisions.certify_threshold(P, risk=0.02)))
    assert decisions.certify_threshold(P, risk=0.5).is_certified


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_advice_works(case):
    follow(case)


def test_advice_on_exports_works(tmp_path):
    path = tmp_path / "map.pt2"
    follow(Case("suffix", lambda: P.save(tmp_path / "p.docx"), lambda t: P.save(tmp_path / "p.csv")))
    grouped = calibrators.fit("GroupCalibrated", Predictions(LOGITS, LABELS, groups=["a", "b"] * 200))
    follow(Case("not_exportable", lambda: export(grouped, path), lambda t: export(grouped, tmp_path / "map.py")))
    follow(
        Case(
            "to",
            lambda: export(TEMPERATURE, tmp_path / "map.py", to="java"),
            lambda t: export(TEMPERATURE, tmp_path / "map.py"),
        )
    )
    names: dict = {}
    exec((tmp_path / "map.py").read_text(), names)
    probs = softmax(P.logits, 1)
    follow(
        Case(
            "ValueError",
            lambda: names["probabilities"](probs),
            lambda t: t.evaluate("from_probs", from_probs=names["from_probs"], probs=probs),
        )
    )
    follow(
        Case(
            "ValueError",
            lambda: names["probabilities"](LOGITS[0]),
            lambda t: names["probabilities"](t.evaluate("logits[None]", logits=LOGITS[0])),
        )
    )
    follow(
        Case(
            "ValueError",
            lambda: names["from_probs"](0.5 * probs),
            lambda t: names["from_probs"](0.5 * probs / (0.5 * probs).sum(1, keepdims=True)),
        )
    )


def test_options_of_commands_in_advice_work(tmp_path):
    frame = pl.DataFrame(
        {"id": IDS, "label": LABELS, "site": ["a", "b"] * 200, **{f"logit_{j}": LOGITS[:, j] for j in range(3)}}
    )
    frame.write_csv(tmp_path / "new.csv")
    rules = ("new.csv", "-r", "ece < 0.9")
    refused_command("groups_twice", "check", *rules, "--by", "site", "--group", "label", folder=tmp_path)
    succeed("check", *rules, "--by", "site", folder=tmp_path, codes=(0, 3, 4))
    refused_command("no_old", "check", "new.csv", "-r", "nll < old", folder=tmp_path)
    succeed("check", "new.csv", "-r", "nll < old + 0.1", "--against", "new.csv", folder=tmp_path, codes=(0, 3, 4))
    succeed("watch", "m.watch", "new.csv", folder=tmp_path, codes=(0, 1, 3))
    refused_command("settings", "watch", "m.watch", "new.csv", "--alpha", "0.01", folder=tmp_path)
    succeed("watch", "other.watch", "new.csv", "--alpha", "0.01", folder=tmp_path, codes=(0, 1, 3))
    calibrators.save(TEMPERATURE, tmp_path / "t.safetensors")
    advice = refused_command("no_output", "apply", "t.safetensors", "new.csv", folder=tmp_path)
    succeed("apply", "t.safetensors", "new.csv", *advice.options(), folder=tmp_path)
    p = softmax(P.logits, 1)[:, 1]
    night = pl.DataFrame({"id": IDS, "prob_0": 1 - p, "label": LABELS == 1})
    night.drop("label").write_csv(tmp_path / "night.csv")
    refused_command("positive_class", "watch", "n.watch", "night.csv", folder=tmp_path)
    for columns in night, night.drop("label").with_columns(prob_1=p).drop("prob_0"):
        columns.write_csv(tmp_path / "night.csv")
        succeed("watch", f"{len(columns.columns)}.watch", "night.csv", folder=tmp_path, codes=(0, 1, 3))
