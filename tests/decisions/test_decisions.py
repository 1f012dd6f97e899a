"""Prediction sets, certified thresholds, and decisions by cost."""

import math
import re

import numpy as np
import pytest
from drawn import drawn_labels
from refusals import code_of, refused
from scipy.special import expit, softmax

from calibrant import Predictions, calibrators, measure
from calibrant._core.numbers import format_percent
from calibrant.calibrators import Identity
from calibrant.decisions import (
    CrossSets,
    Sets,
    certify_threshold,
    choose_actions,
    decision_loss,
    expected_costs,
    net_benefit,
)
from calibrant.decisions._certified_thresholds import GRID, START_SHARES
from calibrant.deployment import export
from calibrant.predictions.folds import assign_folds

SCORES = ["lac", "aps", "raps", "saps"]


def draw(n, seed, k=6, scale=1.0, **options):
    """Draw labels from the softmax of normal logits, which are then multiplied by `scale`."""
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.standard_normal((n, k))
    return Predictions(scale * z, drawn_labels(z, rng), **options)


# Sets


@pytest.mark.slow
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("by", [None, "class", "groups"])
def test_sets_cover_as_promised(score, by):
    """Over 60 draws of the fit, mean coverage lies between 1 - alpha and 1 - alpha + 1 / (n + 1), up to chance."""
    n, alpha = 240, 0.1
    test = draw(4000, seed=10**6, scale=2.0, groups=np.arange(4000) % 3)
    coverage = []
    for seed in range(60):
        sets = Sets.fit(draw(n, seed, scale=2.0, groups=np.arange(n) % 3), alpha=alpha, score=score, by=by)
        coverage.append(sets.evaluate(test).coverage.value)
    error = np.std(coverage) / math.sqrt(len(coverage)) + 0.005  # of the draws, and of the test data
    excess = 1 / (min(sets.counts) + 1)
    assert 1 - alpha - 4 * error < np.mean(coverage) < 1 - alpha + excess + 4 * error


def test_threshold_is_the_conformal_quantile():
    p = draw(99, seed=0)
    scores = np.sort(1 - softmax(p.logits, 1)[range(99), p.labels])
    assert Sets.fit(p, alpha=0.1).thresholds == (pytest.approx(scores[89], abs=1e-12),)  # of 99, the 90th


@pytest.mark.parametrize("score", SCORES)
def test_cross_conformal_sets_cover_at_least_as_guaranteed(score):
    """Over draws of 60 examples, coverage is far above the guarantee, and near 1 - alpha."""
    test = draw(2000, seed=10**6, scale=2.0)
    sets = [CrossSets.fit_folds(draw(60, seed, scale=2.0), score=score, folds=5, seed=seed) for seed in range(15)]
    coverage = np.mean([part.evaluate(test).coverage.value for part in sets])
    assert sets[0].guaranteed_coverage == pytest.approx(0.8 - min(2 * 0.8 / 13, (1 - 5 / 60) / 6))
    assert 0.86 < coverage < 0.96


def test_cross_conformal_sets_are_those_of_the_definition():
    """A class is in the set unless its rank among the scores, each under its fold's calibrator, is too extreme."""
    p, q = draw(40, seed=5), draw(3, seed=6)
    fitted = CrossSets.fit_folds(p, alpha=0.3, folds=4)
    fold = assign_folds(p, 4)
    for i in range(3):
        for j in range(p.k):
            count = 1
            for f in range(4):
                temperature = calibrators.fit("Temperature", p[fold != f])
                held_out = p[fold == f]
                probs = softmax(held_out.apply(temperature).logits, 1)[range(len(held_out)), held_out.labels]
                count += (probs <= softmax(temperature(q.logits), 1)[i, j] + 1e-12).sum()
            assert fitted(q.logits)[i, j] == (count > 0.3 * 41)


def test_cross_conformal_files_keep_every_bit(tmp_path):
    p = draw(60, seed=7, class_names=tuple("abcdef"))
    fitted = CrossSets.fit_folds(p, "StructuredVector", folds=3)
    fitted.save(tmp_path / "s.safetensors")
    loaded = CrossSets.load(tmp_path / "s.safetensors")
    assert np.array_equal(loaded.apply(p), fitted.apply(p))
    assert loaded.guaranteed_coverage == fitted.guaranteed_coverage
    calibrators.save(calibrators.fit("Temperature", p), tmp_path / "c.safetensors")
    assert code_of(CrossSets.load, tmp_path / "c.safetensors") == "file_content"
    assert code_of(fitted.save, tmp_path / "s.json") == "suffix"
    assert code_of(CrossSets.fit_folds, draw(60, 7, clusters=np.arange(60) // 2)) == "dependent_rows"


def test_integer_weights_are_copies():
    p = draw(80, seed=1)
    weights = np.arange(80) % 3 + 1
    weighted = Predictions(p.logits, p.labels, weights)
    copies = p[np.arange(80).repeat(weights)]
    assert Sets.fit(weighted, alpha=0.2).thresholds == Sets.fit(copies, alpha=0.2).thresholds


def test_copies_within_clusters_add_no_confidence():
    p = draw(60, seed=2)
    clustered = Predictions(np.tile(p.logits, (5, 1)), np.tile(p.labels, 5), clusters=np.tile(np.arange(60), 5))
    assert Sets.fit(clustered).thresholds == Sets.fit(p).thresholds
    assert Sets.fit(clustered).counts == (60,)


def test_too_few_examples_give_all_classes_and_a_note():
    sets = Sets.fit(draw(8, seed=0), alpha=0.1)
    assert sets.thresholds == (math.inf,)
    assert sets(np.zeros((3, 6))).all()
    assert sets.notes == ("All sets contain all classes: at alpha 0.1 a threshold needs at least 9 examples.",)
    by_class = Sets.fit(draw(40, seed=0), alpha=0.02, by="class")
    assert by_class.notes[0].startswith("All sets contain '0', ")
    by_group = Sets.fit(draw(60, seed=0, groups=["a"] * 55 + ["b"] * 5), alpha=0.1, by="groups")
    assert by_group.notes[0].startswith("Sets of 'b' contain all classes: ")


def test_groups_that_were_not_seen_have_the_threshold_of_all():
    p = draw(600, seed=3, groups=np.arange(600) % 2)
    sets, marginal = Sets.fit(p, by="groups"), Sets.fit(p)
    new = draw(50, seed=4, groups=["new"] * 50)
    assert np.array_equal(sets.apply(new), marginal.apply(new))
    assert sets.unseen_groups(new) == ("new",)
    assert sets.names == ("0", "1", "")
    assert code_of(sets, p.logits) == "no_groups"


def test_groups_are_the_same_in_any_form(tmp_path):
    p = draw(600, seed=3, groups=np.arange(600) % 2)
    sets = Sets.fit(p, by="groups")
    for groups in (p.groups, p.groups.astype(float), p.groups.tolist(), np.array(["0", "1"] * 300, dtype="S1")):
        assert np.array_equal(sets(p.logits, groups), sets.apply(p))
    nameless = Sets.fit(draw(600, seed=3, groups=["", "a"] * 300), by="groups")
    assert nameless.names == ("a", "")
    nameless.save(tmp_path / "sets.safetensors")
    assert Sets.load(tmp_path / "sets.safetensors") == nameless


@pytest.mark.parametrize("score", SCORES)
def test_sets_do_not_depend_on_the_order_of_rows_and_grow_as_alpha_falls(score):
    p = draw(300, seed=5)
    order = np.random.default_rng(0).permutation(300)
    sets = Sets.fit(p, score=score)
    assert sets == Sets.fit(p[order], score=score)
    assert np.array_equal(sets.apply(p)[order], sets.apply(p[order]))
    assert (sets.apply(p) <= Sets.fit(p, alpha=0.05, score=score).apply(p)).all()


@pytest.mark.parametrize("by", [None, "class", "groups"])
def test_saved_sets_are_the_same(tmp_path, by):
    p = draw(40, seed=6, groups=["x"] * 35 + ["y"] * 5, class_names=list("abcdef"))
    sets = Sets.fit(p, score="raps", by=by)
    sets.save(tmp_path / "sets.safetensors")
    assert Sets.load(tmp_path / "sets.safetensors") == sets
    with refused("suffix", "sets.json"):
        sets.save(tmp_path / "sets.json")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"thresholds": ()}, "file_content"),
        ({"thresholds": (float("nan"),)}, "file_content"),
        ({"score": "x"}, "field_value"),
        ({"k": 5}, "file_content"),
        ({"alpha": 2.0}, "field_value"),
    ],
)
def test_damaged_files_are_refused(tmp_path, change, code):
    path = tmp_path / "sets.safetensors"
    sets = Sets.fit(draw(40, seed=6, class_names=list("abcdef")))
    for name, value in change.items():
        object.__setattr__(sets, name, value)
    sets.save(path)
    with refused(code, "sets.safetensors"):
        Sets.load(path)


def test_table_counts_sizes():
    p = draw(500, seed=7)
    sets = Sets.fit(p, by="class")
    table = sets.evaluate(p)
    members = sets.apply(p)
    assert table.mean_size == pytest.approx(float(members.sum(1).mean()))
    assert table.coverage.value == pytest.approx(float(members[range(500), p.labels].mean()))
    assert [row.name for row in table.rows] == ["all", *map(str, range(6))]
    assert sum(row.n for row in table.rows[1:]) == 500
    assert len(table.document().sections[0].parts[0].rows) == 7


def test_settings_of_sets_are_checked():
    p = draw(30, seed=0)
    assert code_of(Sets.fit, p, by="groups") == "no_groups"
    for fitted in (Sets.fit(p), CrossSets.fit_folds(p)):
        assert code_of(fitted, [[0.0] * 3]) == "num_classes"
        assert code_of(fitted, np.full((2, p.k), np.nan)) == "nan"
        assert code_of(fitted, softmax(p.logits, 1)) == "probs_as_logits"
    assert np.array_equal(Sets.fit(p)(p.logits), Sets.fit(p)(p.logits))


# Thresholds


def test_a_threshold_acts_by_the_event_that_it_was_certified_for(tmp_path):
    p = draw(2000, seed=0, k=3)
    named = Predictions(p.logits, p.labels, class_names=["a", "b", "c"])
    reversed_classes = Predictions(np.fliplr(p.logits), 2 - p.labels, class_names=["c", "b", "a"])
    for certified, new in (
        (certify_threshold(p, risk=0.4, of=1), p),
        (certify_threshold(named, risk=0.4, of="b"), reversed_classes),
    ):
        assert certified.is_certified
        expected = softmax(p.logits, 1)[:, 1] >= certified.threshold
        assert np.array_equal(certified.acts_on(new), expected)
    assert code_of(export, Identity(), tmp_path / "a.py", threshold=certified) == "threshold_event"  # unknown order


def confident(n, seed):
    """Draw stated confidences that are true, with an error of exactly 5 % above .9."""
    rng = np.random.default_rng(seed)
    confidence = np.where(rng.random(n) < 0.4, 0.95, rng.uniform(0.5, 0.9, n))
    return Predictions.from_confidence(confidence, (rng.random(n) < confidence).astype(int))


@pytest.mark.slow
def test_threshold_rarely_exceeds_its_risk():
    """Confidences of 95 % have a risk of 5 %: a threshold at or below .95 breaks a promise of 4.9 %."""
    broken = sum(certify_threshold(confident(300, s), risk=0.049, delta=0.1).threshold <= 0.95 for s in range(1000))
    assert broken <= 130  # a binomial with .1 exceeds it with probability .001


def test_threshold_is_found_where_there_is_one():
    certified = certify_threshold(confident(3000, 0), risk=0.1, delta=0.1)
    assert certified.is_certified
    assert 0.73 <= certified.threshold <= 0.85  # the risk is 10 % above .737
    acted = certified.acts_on(confident(3000, 0))
    assert (int(acted.sum()), certified.share) == (certified.n, certified.n / 3000)


@pytest.mark.parametrize("confidence", [0.995, 0.97, 0.9, 0.83, 0.74, 0.65, 0.57])
def test_threshold_between_starts_is_certified(confidence):
    """One of 39 is wrong above, p = .0018 for a risk of 20 %, and half of the rows below."""
    rows = [confidence] * 39 + [confidence - 0.05] * 200
    p = Predictions.from_confidence(rows, [0] + [1] * 38 + [0, 1] * 100)
    certified = certify_threshold(p, risk=0.2, delta=0.1)
    assert (certified.n, certified.errors) == (39, 1)


def test_shares_of_starts_sum_to_one():
    assert sum(START_SHARES.values()) == pytest.approx(1)
    assert set(START_SHARES) <= set(GRID)


def test_reason_names_the_event():
    rng = np.random.default_rng(0)
    probs = rng.random(2000)
    p = Predictions.from_probs(probs, (rng.random(2000) < probs).astype(int), class_names=["well", "sick"])
    for risk in (0.2, 0.01):
        assert "sick" in certify_threshold(p, risk=risk, of="sick").reason


def test_stated_threshold_is_reached():
    """A stated confidence of .9 reaches a threshold of .9, whatever its logarithm is rounded to."""
    p = Predictions.from_confidence([0.9] * 400, [1] * 400)
    assert certify_threshold(p).n == 400


def test_impossible_certificates_are_refused_in_a_sentence():
    tiny = certify_threshold(confident(20, 0), risk=0.01)
    assert (tiny.is_certified, tiny.share) == (False, 0.0)
    assert "too few" in str(tiny)
    wrong = certify_threshold(Predictions.from_confidence([0.9] * 500, [0, 1] * 250))
    assert not wrong.is_certified
    assert not wrong.acts_on(confident(20, 0)).any()


def test_settings_of_thresholds_are_checked():
    weighted = Predictions.from_confidence([0.9] * 3, [1] * 3, [1.0, 2.0, 3.0])
    assert code_of(certify_threshold, weighted) == "dependent_rows"
    clustered = Predictions.from_confidence([0.9] * 3, [1] * 3, clusters=[0, 0, 1])
    assert code_of(certify_threshold, clustered) == "dependent_rows"


# Costs


def test_actions_minimize_the_expected_cost():
    p = draw(200, seed=8, k=3)
    costs = [[0, 2, 5], [3, 0, 1], [9, 4, 0]]
    expected = softmax(p.logits, 1) @ np.array(costs)
    assert np.array_equal(choose_actions(p, costs), expected.argmin(1))
    zero_one = 1 - np.eye(3)
    assert np.array_equal(choose_actions(p, zero_one), p.predicted)


def test_costs_of_true_probabilities_are_as_stated():
    p = draw(20_000, seed=9, k=3)
    table = expected_costs(p, [[0, 1], [5, 1], [10, 1]])
    assert table.stated in table.model
    assert table.perfect.value <= table.model.value <= table.fixed[table.best_fixed].value
    assert table.saving.value == pytest.approx(table.fixed[table.best_fixed].value - table.model.value)
    assert sum(table.action_shares) == pytest.approx(1)


@pytest.mark.slow
def test_interval_of_the_saving_covers():
    truth = expected_costs(draw(200_000, seed=99, k=3), [[0, 1], [5, 1], [10, 1]])
    difference = truth.fixed[1].value - truth.model.value
    tables = [expected_costs(draw(100, seed=s, k=3), [[0, 1], [5, 1], [10, 1]]) for s in range(300)]
    assert sum(difference in table.saving for table in tables if table.best_fixed == 1) >= 0.85 * len(tables)


def test_net_benefit_is_that_of_the_definition():
    p = draw(500, seed=10, k=2)
    curve = net_benefit(p, thresholds=[0.1, 0.5, 0.9])
    c, y = softmax(p.logits, 1)[:, 1], p.labels
    for i, t in enumerate(curve.threshold.tolist()):
        acted = c >= t
        hits, alarms = int((acted & (y == 1)).sum()) / 500, int((acted & (y == 0)).sum()) / 500
        assert float(curve.model[i]) == pytest.approx(hits - alarms * t / (1 - t), abs=1e-12)
        assert curve.low[i] <= curve.model[i] <= curve.high[i]
        frequency = (y == 1).mean()
        assert float(curve.treat_all[i]) == pytest.approx(frequency - (1 - frequency) * t / (1 - t), abs=1e-12)


def test_settings_of_costs_are_checked():
    p = draw(20, seed=0, k=3)
    assert code_of(choose_actions, p, [[0, 1]]) == "costs"
    assert code_of(choose_actions, p, [[0, 1], [1], [2, 3]]) == "costs"
    assert code_of(expected_costs, p, [[0, math.inf]] * 3) == "costs"
    for thresholds in ([1.0], [], [[0.1]], [math.nan]):
        assert code_of(net_benefit, p, thresholds=thresholds) == "threshold_range"
    assert code_of(net_benefit, p, thresholds=["high"]) == "not_numbers"
    for logits, code in ((np.zeros(3), "shape"), ([[0.0, math.nan, 1.0]], "nan"), ([["a", "b", "c"]], "not_numbers")):
        assert code_of(choose_actions, logits, np.eye(3)) == code
    assert code_of(choose_actions, softmax(p.logits, 1), np.eye(3)) == "probs_as_logits"
    assert choose_actions([[0.0, 5.0, 1.0]], np.eye(3)).tolist() == [0]


def test_sets_refuse_infinite_logits():
    p = draw(50, seed=0, k=3)
    assert code_of(Sets.fit(p), [[0.0, math.inf, 1.0]]) == "infinite"
    assert "50 % intervals" in " ".join(str(Sets.fit(p).evaluate(p, level=0.5)).split())


def test_net_benefit_takes_one_threshold_or_an_array():
    p = draw(20, seed=0, k=2)
    expected = net_benefit(p, thresholds=[0.1]).model
    assert np.array_equal(net_benefit(p, thresholds=0.1).model, expected)
    assert np.array_equal(net_benefit(p, thresholds=np.array([0.1])).model, expected)


# Decision loss


def binary(confidence, truth, seed=0, **options):
    rng = np.random.default_rng(seed)
    return Predictions.from_probs(confidence, (rng.random(len(confidence)) < truth).astype(int), **options)


def test_decision_loss_of_one_confidence_is_the_definition():
    p = Predictions.from_probs(np.full(10, 0.6), [1] * 4 + [0] * 6)
    for t, loss in {0.3: 0.0, 0.45: 0.05 / 0.55, 0.6: 0.2 / 0.6, 0.7: 0.0}.items():
        assert decision_loss(p, threshold=t).loss.value == pytest.approx(loss, abs=1e-12)
    worst = decision_loss(p)
    assert (worst.threshold, worst.loss.value) == (0.6, pytest.approx(1 / 3, abs=1e-12))


def test_decision_loss_is_the_swap_regret_of_soft_bins():
    """The loss at a threshold is what the best action in each soft bin gains over the one that its mean suggests."""
    rng, bins, t = np.random.default_rng(1), 5, 0.35
    c = rng.random(400)
    p = binary(c, np.clip(1.4 * c - 0.1, 0, 1), seed=2)
    y, gain = p.labels, 0.0
    for j in range(bins + 1):
        w = np.maximum(1 - np.abs(bins * c - j), 0) / 400
        act, wait = (w * (y * (1 - t) - (1 - y) * t)).sum(), 0.0
        suggested = act if (w * c).sum() / w.sum() >= t else wait
        gain += max(act, wait) - suggested
    assert decision_loss(p, threshold=t, bins=bins).loss.value == pytest.approx(gain / (1 - t), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("slope", [1.0, 2.0, 0.6])
@pytest.mark.parametrize("n", [20, 300])
def test_intervals_of_the_decision_loss_cover(n, slope):
    """Confidences whose log-odds are `slope` times too large; the truth is the loss of many examples."""
    rng, covered = np.random.default_rng(n), 0
    z = rng.logistic(size=(60, n))
    population = np.random.default_rng(5).logistic(size=200_000)
    bins = decision_loss(binary(expit(z[0]), expit(z[0] / slope))).bins
    exact = decision_loss(binary(expit(population), expit(population / slope)), bins=bins).loss.value
    for i, row in enumerate(z):
        interval = decision_loss(binary(expit(row), expit(row / slope), seed=i), bins=bins).loss
        covered += interval.low - 1e-9 <= exact <= interval.high
    assert covered >= 54


def test_decision_loss_counts_clusters_and_weights():
    c = np.random.default_rng(3).random(300)
    p = binary(c, c**2)
    columns = np.tile(c, 4), np.tile(p.labels, 4)
    copies, clustered = (
        Predictions.from_probs(*columns),
        Predictions.from_probs(*columns, clusters=np.arange(1200) % 300),
    )
    once, fourfold, clustered = (decision_loss(q, bins=5).loss for q in (p, copies, clustered))
    assert clustered.value == pytest.approx(once.value, abs=1e-12)
    assert clustered.high - clustered.low > 1.4 * (fourfold.high - fourfold.low)
    weighted = Predictions.from_probs(c, p.labels, np.arange(300) % 3 + 1)
    repeated = p[np.arange(300).repeat(np.arange(300) % 3 + 1)]
    values = [decision_loss(q, bins=5).loss.value for q in (weighted, repeated)]
    assert values[0] == pytest.approx(values[1], abs=1e-12)


@pytest.mark.parametrize("of", ["top", 1])
def test_reports_show_the_decision_loss_of_their_event(of):
    c = np.random.default_rng(4).random(500)
    p = binary(c, c**2)
    loss = decision_loss(p, of=of).loss
    page = re.sub(r"\s", " ", re.sub("<[^>]*>", "", measure(p, of=of).html()))
    assert f"{format_percent(loss.value)} of its largest payoff" in page


def test_results_of_decisions_name_their_event():
    p = Predictions.from_probs([0.2, 0.7, 0.4, 0.9] * 20, [0, 1, 0, 1] * 20, class_names=["well", "sick"])
    for result in (net_benefit(p), decision_loss(p)):
        assert "sick" in result.event
    for result in (net_benefit(p, of="well"), decision_loss(p, of="well")):
        assert "well" in result.event
