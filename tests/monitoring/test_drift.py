"""`calibrant.drift`: estimates under one assumption, coverage of their limits, and the test of label shift."""

import json

import numpy as np
import polars
import pytest
from commands import run
from refusals import code_of
from rendered import assert_rendered
from scipy.special import softmax
from streams import draw

from calibrant import Predictions, drift, metrics
from calibrant.monitoring._estimates import build_targets
from calibrant.monitoring._label_shift import estimate_label_shift, label_shift_p_value

SCORES = {"accuracy": metrics.accuracy, "signed_gap": metrics.signed_gap, "event_brier": metrics.event_brier}


def by_class(n, seed, shares, scale=1.0, separation=2.0):
    """Draw labels by their shares, and logits given the label; with scale 1 they fit equal shares."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(shares), n, p=shares)
    z = rng.standard_normal((n, len(shares))) + separation * np.eye(len(shares))[labels]
    return Predictions(scale * separation * z, labels)


def limits_of(result):
    """Return the estimates by the name of the score, or of the class."""
    return {estimate.class_name or estimate.name: estimate for estimate in result.estimates}


def test_same_distribution_has_not_drifted_and_is_estimated_well():
    reference, new = draw(1500, seed=9), draw(1500, seed=10)
    result = drift(reference, new)
    assert not result.has_drifted
    assert result.label_shift_p_value > 0.01
    for name, metric in SCORES.items():
        estimate = limits_of(result)[name]
        assert abs(estimate.value - float(metric(new))) < 0.05
        assert estimate.low < estimate.value < estimate.high


@pytest.mark.parametrize("shares", [(0.5, 0.5), (1 / 3, 1 / 3, 1 / 3)])
def test_new_class_shares_give_accuracy_and_gap(shares):
    new_shares = (0.8, *(0.2 / (len(shares) - 1) for _ in shares[1:]))
    new = by_class(2000, 1, new_shares)
    result = drift(by_class(2000, 0, shares), new)
    assert result.has_drifted
    assert (result.assumption, {e.assumption for e in result.estimates}) == ("label shift", {"label shift"})
    assert result.label_shift_p_value > 0.01
    estimates = limits_of(result)
    for i, truth in enumerate(new_shares):
        assert estimates[str(i)].value == pytest.approx(truth, abs=0.05)
        assert estimates[str(i)].low <= truth <= estimates[str(i)].high
    new = new.with_default_event(None)
    for name, metric in SCORES.items():
        assert estimates[name].low <= float(metric(new)) <= estimates[name].high


@pytest.mark.parametrize("event", [1, 0])
def test_gap_is_the_mean_probability_minus_the_share(event):
    """Mean probability, share and gap are numbers of one assumption: the first minus the second is the third."""
    reference, new = by_class(300, 4, (0.5, 0.5)), by_class(300, 5, (0.9, 0.1), separation=2.0)
    result = drift(reference, new, of=event)
    estimates, mean = limits_of(result), float(softmax(new.logits, 1)[:, event].mean())
    share, gap = estimates[str(event)], estimates["signed_gap"]
    np.testing.assert_allclose(
        (gap.value, gap.low, gap.high), (mean - share.value, mean - share.high, mean - share.low), atol=1e-9
    )


@pytest.mark.parametrize("separation", [1.0, 4.0])
def test_limits_hold_under_label_shift(separation):
    """Also where only one of some hundred predictions is wrong (separation 4)."""
    covered, draws = dict.fromkeys(("1", *SCORES), 0), 40
    for seed in range(draws):
        reference, new = (
            by_class(n, 2 * seed + i, shares, separation=separation).with_default_event(None)
            for i, (n, shares) in enumerate(((300, (0.5, 0.5)), (200, (0.9, 0.1))))
        )
        estimates = estimate_label_shift(reference, new, build_targets(reference, new))
        truths = {name: float(metric(new)) for name, metric in SCORES.items()} | {"1": 0.1}
        for estimate in estimates:
            name = estimate.class_name or estimate.name
            covered[name] = covered.get(name, 0) + (estimate.low <= truths.get(name, 0.9) <= estimate.high)
    assert min(covered.values()) >= 30  # a binomial of 40 and 0.9 is below with probability 0.0015


def test_rejected_assumption_gives_no_estimate():
    reference, new = by_class(300, 2, (0.5, 0.5)), by_class(300, 3, (0.7, 0.3), scale=3.0)
    result = drift(reference, new, shift="label")
    assert result.label_shift_p_value <= 0.01
    assert (result.assumption, result.estimates) == ("label shift", ())
    assert "no estimate" in result.headline
    fallback = drift(reference, new)
    assert {e.assumption for e in fallback.estimates} == {"covariate shift"}
    assert "covariate shift" in fallback.headline


def test_new_rows_beyond_every_mixture_are_rejected():
    """No shares of at least 0 explain predictions that are surer than those of either class."""
    z = np.array([[3.0, 0.0], [0.0, 0.0], [0.0, 3.0]])
    reference = Predictions(np.tile(z, (200, 1)), [0, 0, 1] * 100 + [0, 1, 1] * 100)
    new = Predictions(np.tile(z[0], (300, 1)), [0] * 300)
    assert label_shift_p_value(reference, new) < 0.01


def test_labels_of_the_new_rows_are_not_used():
    reference, new = draw(300, seed=11), draw(200, seed=12)
    changed = Predictions(new.logits, (new.labels + 1) % new.k)
    a, b = (json.loads(drift(reference, p).json({"time": ""})) for p in (new, changed))
    assert a == b


def test_drift_without_label_shift_says_why():
    reference = draw(200, seed=13)
    clustered = Predictions(reference.logits, reference.labels, clusters=np.arange(200) // 2)
    result = drift(clustered, draw(200, seed=14))
    assert (result.assumption, result.label_shift_p_value) == ("covariate shift", None)
    assert len(result.notes) == 2
    constant = Predictions(np.zeros((100, 2)), [0, 1] * 50)
    for labeled in (clustered, constant):
        assert code_of(drift, labeled, labeled, shift="label") == "shift"


def test_impossible_drifts_are_refused():
    p = draw(50, seed=15)
    assert code_of(drift, p[:10], p) == "few_examples"
    assert code_of(drift, p, draw(50, seed=8, k=4)) == "num_classes"
    assert code_of(drift, p, p, by_group=True) == "no_groups"


def test_accuracy_of_stated_confidences_is_the_share_of_right_answers():
    confidence = np.linspace(0.05, 0.4, 200)
    old = Predictions.from_confidence(confidence, [0] * 180 + [1] * 20)
    estimate = drift(old, Predictions.from_confidence(confidence, [0] * 140 + [1] * 60)).estimates[0]
    assert (estimate.name, estimate.reference) == ("accuracy", pytest.approx(0.1))


def test_drift_command(tmp_path):
    for name, p in {"old": draw(600, seed=16), "later": draw(500, seed=17)}.items():
        probs = {f"prob_{j}": column for j, column in enumerate(softmax(p.logits, 1).T)}
        labels = {} if name == "later" else {"label": p.labels}
        polars.DataFrame(probs | labels).write_csv(tmp_path / f"{name}.csv")
    finished = run("drift", "old.csv", "later.csv", "--html", "d.html", "--json", "d.json", folder=tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert_rendered("drift", finished.stdout)
    assert max(map(len, finished.stdout.splitlines()[4:])) <= 100
    content = json.loads((tmp_path / "d.json").read_text())
    assert (content["has_drifted"], content["assumption"]) == (False, "label shift")
    assert {estimate["assumption"] for estimate in content["estimates"]} == {"label shift"}
    page = (tmp_path / "d.html").read_text()
    assert "<svg" in page
    assert page.count("<td>label shift</td>") == len(content["estimates"])
    assert run("drift", "old.csv", "later.csv", "--shift", "prior", folder=tmp_path).code == "shift"
