"""`Watch`: the order of rows, late and repeated labels, groups, joins, and truth."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from refusals import code_of, refused
from streams import draw, draw_groups

import calibrant
from calibrant import Predictions, Watch
from calibrant.monitoring._evidence import Wealth
from calibrant.monitoring._rows import MAX_RECENT_ROWS


def assert_same_state(first, second):
    """Assert that two watches have processed the same rows, bit by bit."""
    assert (first.rows, first.verdict.alarm) == (second.rows, second.verdict.alarm)
    for name in vars(Wealth.empty(0)):
        np.testing.assert_array_equal(getattr(first.evidence, name), getattr(second.evidence, name))
    assert first.group_names == second.group_names


def ids_of(p, start=0):
    return [f"row {i}" for i in range(start, start + len(p))]


# Order and labels


def test_event_of_two_classes_has_the_name_of_its_class():
    for of, name in ((0, "class 0"), (1, "class 1"), ("top", "top class")):
        assert Watch(of=of).add(draw(20, k=2)).verdict.event.name == name


def test_state_does_not_depend_on_batches_or_on_when_labels_arrive():
    rng = np.random.default_rng(0)
    p = draw(1237, scale=1.3, groups=draw_groups(1237))
    ids = ids_of(p)
    at_once = Watch().add(p, ids=ids)
    pieces = Watch()
    edges = [0, *np.sort(rng.choice(np.arange(1, 1237), 9, replace=False)), 1237]
    late = []
    for first, last in pairwise(edges):
        has_label = rng.random(last - first) < 0.7
        pieces = pieces.add(p[first:last], ids=ids[first:last], labeled=has_label)
        late += (first + np.flatnonzero(~has_label)).tolist()
        arrived, late = late[1::2], late[0::2]
        pieces = pieces.add_labels([ids[i] for i in arrived], p.labels[arrived]) if arrived else pieces
    rng.shuffle(late)
    pieces = pieces.add_labels([ids[i] for i in late], p.labels[late])
    assert at_once.rows == 1230
    assert_same_state(at_once, pieces)


def test_changing_later_labels_changes_no_earlier_verdict():
    p = draw(2000, scale=1.5)
    scrambled = Predictions(p.logits, np.append(p.labels[:900], np.roll(p.labels[900:], 7)))
    early, late = [Watch().add(x, ids=ids_of(x), labeled=np.arange(2000) < 900) for x in (p, scrambled)]
    assert early.rows == 900
    assert_same_state(early, late)
    assert_same_state(early, Watch().add(p[:900], ids=ids_of(p)[:900]))
    assert early.add_labels(ids_of(p)[900:], p.labels[900:]).rows == 2000


def test_row_without_label_holds_back_later_rows():
    p = draw(100)
    labeled = np.ones(100, dtype=bool)
    labeled[57] = False
    watch = Watch().add(p, ids=range(100), labeled=labeled)
    assert (watch.rows, watch.verdict.pending, watch.verdict.unlabeled) == (50, 50, 1)
    assert watch.give_up(7).rows == 50
    assert watch.give_up(8).rows == 90
    assert watch.add_labels([57], p.labels[57:58]).rows == 100


def test_rows_are_sorted_by_time():
    p = draw(200)
    order = np.random.default_rng(0).permutation(200)
    times = np.array(["2026-03-01"], dtype="datetime64[s]") + np.arange(200)
    sorted_watch = Watch().add(p, ids=range(200), times=times)
    shuffled = Watch().add(p[order], ids=order, times=times[order])
    assert_same_state(sorted_watch, shuffled)
    assert sorted_watch.periods.names == ("2026-03-01",)


def test_batch_given_twice_counts_once():
    p, second = draw(105), draw(95, seed=1)
    for first, last in (({"ids": ids_of(p)}, {"ids": ids_of(second, 105)}), ({"source": "a"}, {"source": "b"})):
        once = Watch().add(p, **first).add(second, **last)
        twice = once.add(p, **first).add(second, **last)
        assert twice.rows == once.rows == 200
        assert_same_state(once, twice)
        assert len(twice.periods) == 2


def test_equal_batches_without_ids_count_each():
    """Forty batches of ten answers at 60 %, all wrong, are 400 rows."""
    watch = Watch()
    for _ in range(40):
        watch = watch.add(Predictions.from_confidence([0.6] * 10, [0] * 10))
    assert (watch.rows, watch.verdict.alarm) == (400, True)
    assert watch.verdict.event.gap.value == pytest.approx(0.6)
    assert (watch + watch).rows == 800


def test_equal_batches_with_other_ids_count_each():
    p = Predictions.from_confidence([0.6] * 10, [0] * 10)
    assert Watch().add(p, ids=range(10)).add(p, ids=range(10, 20)).rows == 20


def test_forgotten_batch_given_again_counts_once(monkeypatch):
    monkeypatch.setattr("calibrant.monitoring._rows.MAX_RECENT_ROWS", 20)
    assert MAX_RECENT_ROWS > 20
    p = draw(100)
    watch = Watch().add(p, ids=range(100)).add(draw(100, seed=1), ids=range(100, 200))
    assert len(watch.recent.keys) == 20
    assert watch.add(p, ids=range(100)).rows == watch.rows == 200


def test_rows_without_label_need_an_id():
    assert code_of(Watch().add, draw(20), labeled=np.arange(20) > 0) == "missing_id"


def test_rows_that_are_given_up_are_counted():
    p = draw(30)
    watch = Watch().add(p, ids=range(30), labeled=np.arange(30) % 10 > 0)
    assert watch.give_up(15).given_up == 2
    watch = watch.give_up()
    assert (watch.given_up, watch.verdict.given_up, watch.rows) == (3, 3, 20)
    assert "calibrant_watch_given_up_rows_total 3" in watch.verdict.prometheus()
    assert watch.add_labels([0], p.labels[:1]).rows == 20


def test_labels_of_other_rows_are_left_out_if_asked():
    p = draw(20)
    watch = Watch().add(p, ids=range(20), labeled=[False] * 20)
    assert code_of(watch.add_labels, range(21), [*p.labels.tolist(), 0]) == "unknown_id"
    assert watch.add_labels(range(21), [*p.labels.tolist(), 0], skip_unknown=True).rows == 20


def test_brier_score_is_that_of_the_event():
    p = Predictions.from_probs(np.linspace(0.05, 0.95, 200), [0, 1] * 100).with_event(1)
    test = Watch().add(p).verdict.event
    assert test.brier.value == pytest.approx(float(calibrant.metrics.event_brier(p)), rel=1e-12)
    assert test.brier.low <= test.brier.value <= test.brier.high <= 1


# Refusals


def test_changed_and_unknown_rows_are_refused():
    p = draw(30)
    watch = Watch().add(p[:25], ids=range(25))
    relabeled = Predictions(p.logits, (p.labels + 1) % 3)
    assert code_of(watch.add, relabeled[:5], ids=range(5)) == "label_changed"  # processed
    assert code_of(watch.add, relabeled[20:25], ids=range(20, 25)) == "label_changed"  # waiting for a block
    assert code_of(watch.add_labels, [3], relabeled.labels[3:4]) == "label_changed"
    assert code_of(watch.add, p[:5], ids=range(20, 25)) == "row_changed"
    assert code_of(watch.add_labels, [99], [0]) == "unknown_id"
    with refused("labels", "got 3"):
        watch.add_labels([21], [3])
    assert code_of(watch.add, p[:2], ids=[50, 50]) == "repeated_id"
    with pytest.raises(calibrant.InputError, match=r"rows of '50', '51'\."):  # each id once
        watch.add(p[:5], ids=[50, 50, 50, 51, 51])
    assert code_of(watch.add, p[:2], ids=[50, None]) == "missing_id"
    assert code_of(watch.add, p[:2], ids=[50]) == "shape"
    assert code_of(watch.add, draw(20, k=4)) == "num_classes"
    assert code_of(watch.add, draw(20, groups=["a"] * 20)) == "partly_missing"
    assert code_of(Watch().add_labels, [1], [0]) == "no_rows"


def test_earlier_times_are_refused():
    watch = Watch().add(draw(20), times=np.arange(20.0))
    assert code_of(watch.add, draw(20, seed=1), times=np.arange(20.0) + 10) == "time_order"
    assert watch.add(draw(20, seed=1), times=np.arange(20.0) + 19).rows == 40
    with refused("time", "'soon'"):
        watch.add(draw(2, seed=2), times=["2026-01-01", "soon"])


def test_periods_of_numbers_have_all_their_digits():
    p = draw(10)
    for times in ([202601011530] * 10, np.array([202601011530] * 10, dtype=object), [1767225600000] * 10):
        assert Watch().add(p, times=times).periods.names == (str(times[0]),)
    assert Watch().add(p, times=np.array(["10000-01-01T10:05"] * 10, "M8[m]")).periods.names == ("10000-01-01 10:05",)


def test_values_that_are_no_times_are_refused():
    p = draw(10)
    times = (
        [True] * 10,
        [np.timedelta64(1, "h")] * 10,
        np.zeros(10, complex),
        np.array(["2026-01-01", *range(9)], "O"),
    )
    assert {code_of(Watch().add, p, times=values) for values in times} == {"time"}


def test_dependent_rows_and_bad_levels_are_refused():
    p = draw(20)
    assert code_of(Watch().add, Predictions(p.logits, p.labels, np.ones(20))) == "dependent_rows"
    assert code_of(Watch().add, Predictions(p.logits, p.labels, clusters=range(20))) == "dependent_rows"


# Tests and groups


def test_shares_of_alpha_sum_to_at_most_one():
    for p, options in (
        (draw(20), {}),
        (draw(20, groups=list("abcde" * 4)), {}),
        (draw(20, groups=list("abcde" * 4)), {"by_class": False}),
        (Predictions.from_confidence([0.5] * 20, [1] * 20), {}),
    ):
        weights = [test.weight for test in Watch(**options).add(p).verdict.tests]
        assert sum(weights) <= 1 + 1e-12
    assert weights == [1.0]


def test_group_has_the_same_evidence_whenever_it_is_first_given():
    """A group that appears late has bet nothing before, in one call or in many."""
    groups = np.where(np.arange(600) < 350, "old", "new")
    p = draw(600, groups=groups)
    at_once = Watch().add(p)
    pieces = Watch()
    for first in range(0, 600, 75):
        pieces = pieces.add(p[first : first + 75])
    assert at_once.group_names == ("old", "new")
    assert_same_state(at_once, pieces)


def test_sums_are_those_of_the_rows():
    p = draw(500, groups=draw_groups(500))
    verdict = Watch().add(p).verdict
    for test in verdict.tests:
        part = p if test.kind != "group" else p.select_group(test.name)
        part = part.with_event(int(test.name)) if test.kind == "class" else part
        assert test.rows == len(part)
        assert test.gap.value == pytest.approx(float(calibrant.metrics.signed_gap(part)), abs=1e-12)
        assert test.brier.value == pytest.approx(float(calibrant.metrics.event_brier(part)), rel=1e-12)
        assert test.gap.low <= test.gap.value <= test.gap.high


def test_alarm_names_the_group_the_direction_and_the_start():
    watch = Watch(by_class=False)
    for day in range(10):
        groups = draw_groups(1000, seed=day)
        p = draw(1000, seed=day, groups=groups)
        if day >= 6:
            p = p.with_logits(p.logits * np.where(groups == "south", 2.5, 1.0)[:, None])
        watch = watch.add(p, name=f"day {day}")
        assert watch.verdict.alarm == (day >= 6)
    south = watch.verdict.alarms[0]
    assert (south.kind, south.name, south.pattern) == ("group", "south", "too extreme")
    assert south.since == f"day {south.since_row // 1000}"
    assert south.since_row == pytest.approx(6000, abs=200)
    assert 6000 < south.alarm_row < 7000
    assert not any(test.alarm for test in watch.verdict.tests if test.name == "north")


@pytest.mark.parametrize(("scale", "limit"), [(1.5, 450), (2.0, 200)])
def test_overconfidence_is_found_soon(scale, limit):
    delays = [
        Watch(by_class=False).add(draw(2500, scale=scale, seed=seed)).verdict.event.alarm_row for seed in range(15)
    ]
    assert np.median([delay or np.inf for delay in delays]) <= limit


def test_impossible_event_is_finite_evidence():
    p = Predictions.from_probs([1.0] * 40, [1, 0] * 20)
    assert Watch().add(p).verdict.alarm
    assert np.isfinite(Watch().add(p).verdict.event.log10_evidence)


def test_names_as_labels_need_a_known_positive_class():
    watch = Watch().add(Predictions.from_probs([0.2, 0.6, 0.9], [0, 1, 1]), ids=range(3), labeled=[False] * 3)
    for labels in (["0", "1", "1"], ["no", "yes", "yes"], [b"no", b"yes", b"yes"], [False, True, True]):
        assert watch.add_labels(range(3), labels).pending.labels.tolist() == [0, 1, 1]
    assert watch.add_labels(range(3), [1, 0, 0], positive="0").pending.labels.tolist() == [0, 1, 1]
    sick = ["well", "sick", "sick"]
    assert watch.add_labels(range(3), sick, positive="sick").pending.labels.tolist() == [0, 1, 1]
    assert code_of(watch.add_labels, range(3), sick) == "ambiguous_positive"
    assert code_of(watch.add_labels, range(3), sick, positive="ill") == "positive_class"
    nameless = Watch().add(draw(3), ids=range(3), labeled=[False] * 3)
    assert code_of(nameless.add_labels, range(3), ["b", "a", "c"]) == "class_names"
    assert nameless.add_labels(range(3), ["1", "0", "2"]).pending.labels.tolist() == [1, 0, 2]


def test_masks_and_numbers_of_rows_are_not_guessed():
    p = draw(20)
    for labeled in (["False"] * 20, [math.nan] * 20, [2] * 20, np.ones((20, 1), dtype=bool)):
        assert code_of(Watch().add, p, labeled=labeled) == "labeled"


def test_classes_follow_their_names():
    p = draw(100)
    names = Predictions(p.logits, p.labels, class_names=["a", "b", "c"])
    turned = Predictions(p.logits[:, [2, 0, 1]], (p.labels + 1) % 3, class_names=["c", "a", "b"])
    once = Watch().add(names[:50], ids=range(50)).add(names[50:], ids=range(50, 100))
    mixed = Watch().add(names[:50], ids=range(50)).add(turned[50:], ids=range(50, 100))
    np.testing.assert_allclose(once.evidence.total, mixed.evidence.total, rtol=1e-12)
    watch = Watch().add(names, ids=range(100), labeled=np.zeros(100, dtype=bool))
    words = [("a", "b", "c")[i] for i in p.labels]
    assert_same_state(watch.add_labels(range(100), words), Watch().add(names, ids=range(100)))


# Reset and joins


def test_reset_starts_an_epoch_that_takes_corrected_labels():
    p = draw(40)
    corrected = Predictions(p.logits, (p.labels + 1) % 3)
    watch = Watch(alpha=0.1).add(p, ids=range(40))
    assert code_of(watch.add, corrected, ids=range(40)) == "label_changed"
    fresh = watch.reset().add(corrected, ids=range(40))
    assert (fresh.epoch, fresh.alpha, fresh.rows) == (2, 0.1, 40)


def test_joined_states_multiply_wealth_and_add_sums():
    parts = [draw(200, seed=seed, scale=1.2, groups=draw_groups(200, seed)) for seed in range(3)]
    a, b, c = (Watch().add(p) for p in parts)
    joined = a + b + c
    relabeled = a + (b + c)
    np.testing.assert_allclose(joined.evidence.total, relabeled.evidence.total, rtol=1e-12)
    np.testing.assert_allclose(joined.evidence.peak, relabeled.evidence.peak, rtol=1e-12)
    total = sum(w.evidence.total[0] for w in (a, b, c))
    assert joined.evidence.total[0] == pytest.approx(total)
    at_once = Watch().add(parts[0]).add(parts[1]).add(parts[2])
    by_name = {test.title: test for test in at_once.verdict.tests}
    assert joined.rows == at_once.rows == 600
    for test in joined.verdict.tests:
        assert test.rows == by_name[test.title].rows
        assert vars(test.gap) == pytest.approx(vars(by_name[test.title].gap))
    assert joined.periods.first_row.tolist() == [0, 200, 400]
    assert_same_state(Watch() + a, a)


@pytest.mark.slow
def test_joins_of_calibrated_states_raise_few_alarms():
    alarms = 0
    for seed in range(60):
        parts = [Watch(by_class=False).add(draw(150, seed=4 * seed + i)) for i in range(4)]
        alarms += sum(parts[1:], parts[0]).verdict.alarm
    assert alarms <= 9


def test_joins_of_unlike_states_are_refused():
    a = Watch().add(draw(20))
    assert code_of(a.__add__, Watch(alpha=0.01).add(draw(20))) == "settings"
    assert code_of(a.__add__, Watch().add(draw(20, groups=["a"] * 20))) == "settings"
    assert code_of(Watch().add(draw(25)).__add__, a) == "pending_rows"


# Outputs


def test_json_and_prometheus_hold_the_verdict():
    watch = Watch().add(draw(300, groups=['"a\\'] * 300))
    content = json.loads(watch.verdict.json())
    assert (content["rows"], content["alarm"], len(content["tests"])) == (300, False, 5)
    lines = watch.verdict.prometheus().splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(samples["calibrant_watch_rows_total"]) == 300
    gap = float(samples['calibrant_watch_gap{kind="event",name="top class"}'])
    assert gap == pytest.approx(watch.verdict.event.gap.value, rel=1e-6)
    assert gap == pytest.approx(float(calibrant.metrics.signed_gap(draw(300))), rel=1e-6)
    assert 'calibrant_watch_test_alarm{kind="group",name="\\"a\\\\"}' in samples


def test_verdict_of_no_rows_is_no_alarm():
    assert not Watch().verdict.alarm
    assert json.loads(Watch().verdict.json())["tests"] == []
    waiting = Watch().add(draw(5))
    assert json.loads(waiting.verdict.json())["tests"][0]["gap"] is None
    assert "NaN" in waiting.verdict.prometheus()
