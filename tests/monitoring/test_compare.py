"""`calibrant.compare` and `calibrant.drift`: error rates, agreement with known truth, files and exit status."""

import json

import numpy as np
import polars
import pytest
from calibrant.registry import METRICS
from commands import run
from refusals import code_of
from rendered import assert_rendered
from scipy.special import softmax
from streams import draw

from calibrant import Predictions, compare, drift, metrics
from calibrant.monitoring._permutation import holm


def noisy_pair(n, seed, scale=1.0, **options):
    """Return two models that add noise of the same distribution to the same logits; the second is scaled."""
    p, rng = draw(n, seed=seed), np.random.default_rng(seed + 10**6)  # independent of the draw of the logits
    old, new = p.logits + rng.normal(scale=0.5, size=(2, n, p.k))
    return Predictions(old, p.labels, **options), Predictions(scale * new, p.labels, **options)


def rows_of(result):
    return {(row.name, row.group): row for row in result.rows}


# Comparisons


def test_identical_models_do_not_differ():
    p = draw(400, seed=0)
    result = compare(p, p)
    assert not result.differs
    assert {row.adjusted_p_value for row in result.rows} == {1.0}


def test_overconfident_model_differs_in_confidence_but_not_in_accuracy():
    p = draw(1000, seed=1)
    result = compare(p, Predictions(2 * p.logits, p.labels))
    rows = rows_of(result)
    assert {row.name for row in result.differing} >= {"signed_gap", "nll", "ece", "confidences"}
    assert rows["accuracy", None].p_value == 1.0
    assert rows["predicted classes", None].p_value == 1.0


def test_numbers_are_those_of_the_metrics():
    old, new = noisy_pair(500, 2)
    rows = rows_of(compare(old, new))
    for name in ("accuracy", "nll", "signed_gap", "event_brier", "ece"):
        metric = getattr(metrics, name)
        row = rows[name, None]
        assert (row.old, row.new) == (pytest.approx(float(metric(old))), pytest.approx(float(metric(new))))
        assert row.difference == pytest.approx(row.new - row.old)


def test_gap_of_a_class_is_not_called_that_of_the_accuracy():
    """The probability of class 1 minus its frequency stands beside an accuracy of the predicted class."""
    rng = np.random.default_rng(0)
    probs, labels = rng.uniform(0.1, 0.6, 300), (rng.random(300) < 0.3).astype(int)
    old = Predictions.from_probs(probs, labels, class_names=["well", "sick"])
    new = Predictions.from_probs(0.9 * probs, labels, class_names=["well", "sick"])
    titles = {event: rows_of(compare(old, new, of=event))["signed_gap", None].title for event in ("sick", "top")}
    stated = compare(Predictions.from_confidence(probs, labels), Predictions.from_confidence(0.9 * probs, labels))
    assert titles["top"] == rows_of(stated)["signed_gap", None].title != titles["sick"]
    result = compare(old, new)
    assert "sick" in result.event
    assert json.loads(result.json())["event"] == result.event
    row = rows_of(result)["signed_gap", None]
    assert row.old == pytest.approx(probs.mean() - labels.mean())
    by_name = {e.name: e for e in drift(old, new).estimates}
    assert (by_name["signed_gap"].title, by_name["accuracy"].title) == (titles["sick"], "accuracy")
    assert drift(old, new).event == result.event


@pytest.mark.parametrize("n", [25, 400])
def test_limits_and_p_values_are_those_of_metrics_compare(n):
    old, new = noisy_pair(n, 3)
    rows = rows_of(compare(old, new))
    for name in ("accuracy", "nll", "signed_gap", "event_brier", "ece"):
        row, expected = rows[name, None], metrics.compare(old, new, names=[name], level=0.95)[name]
        assert (row.low, row.high, row.p_value) == pytest.approx((expected.low, expected.high, expected.p_value))
        assert (row.p_value <= 0.05) == (not row.low <= 0 <= row.high)


@pytest.mark.parametrize("alpha", [0.02, 0.3])
def test_p_value_of_two_samples_is_the_level_at_which_their_limits_reach_0(alpha):
    method = METRICS.method("nll")
    difference = metrics.ModelDifferences(draw(300, seed=1), draw(200, seed=2, scale=1.4), is_paired=False)
    p_value = difference.estimate(method).p_value
    interval = difference.estimate(method).interval(1 - alpha)
    assert (p_value <= alpha) == (not interval.low <= 0 <= interval.high)


def test_adjusted_p_values_are_those_of_holm():
    assert holm(np.array([0.01, 0.04, 0.03, 0.5])).tolist() == pytest.approx([0.04, 0.09, 0.09, 0.5])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pairs", "samples", "unlabeled"])
def test_models_that_are_alike_rarely_differ(kind):
    """At level .2, at most 37 % of 60 comparisons of exchangeable predictions find a difference."""
    alarms = 0
    for seed in range(60):
        if kind == "pairs":
            alarms += compare(*noisy_pair(60, seed), alpha=0.2).differs
        else:
            samples = draw(60, seed=2 * seed), draw(90, seed=2 * seed + 1)
            alarms += compare(*samples, alpha=0.2).differs if kind == "samples" else drift_alarm(*samples)
    assert alarms <= 22  # a binomial with 0.2 exceeds it with probability 0.001


def drift_alarm(reference, new):
    """Return whether the tests of drift raise an alarm, without the estimates that take longer."""
    from calibrant.monitoring._compare import compared_rows
    from calibrant.monitoring._pairing import ModelPair

    rows = compared_rows(ModelPair(reference, new, None, ""), has_labels=False, by_group=False, seed=0)
    return any(row.adjusted_p_value <= 0.2 for row in rows)


def test_clusters_count_as_one():
    """Copies of the same examples within clusters add no evidence."""
    old, new = noisy_pair(40, 3, scale=1.2)
    copies = np.tile(np.arange(40), 20)
    clustered = [Predictions(p.logits[copies], p.labels[copies], clusters=copies) for p in (old, new)]
    single, copied = rows_of(compare(old, new)), rows_of(compare(*clustered))
    assert copied["accuracy", None].p_value == pytest.approx(single["accuracy", None].p_value)
    assert copied["nll", None].p_value == pytest.approx(single["nll", None].p_value)


def test_integer_weights_count_as_copies():
    """Scores take the copies as independent; the swaps of distributions keep those of an example together."""
    old, new = noisy_pair(50, 4, scale=2.0)
    weights = np.arange(50) % 3 + 1
    index = np.repeat(np.arange(50), weights)
    weighted = rows_of(compare(*[Predictions(p.logits, p.labels, weights) for p in (old, new)]))
    copied = rows_of(compare(old[index], new[index]))
    for name in ("nll", "signed_gap", "event_brier"):
        a, b = weighted[name, None], copied[name, None]
        assert (a.difference, a.low, a.high, a.p_value) == pytest.approx((b.difference, b.low, b.high, b.p_value))
        assert a.p_value < 0.9  # else any two would be 1
    clustered = rows_of(compare(*[Predictions(p.logits[index], p.labels[index], clusters=index) for p in (old, new)]))
    assert weighted["predicted classes", None].p_value == clustered["predicted classes", None].p_value < 0.9


def test_one_changed_group_is_named():
    old, new = noisy_pair(1200, 5)
    groups = np.arange(1200) % 3
    changed = new.logits * np.where(groups == 2, 4.0, 1.0)[:, None]
    result = compare(
        Predictions(old.logits, old.labels, groups=groups),
        Predictions(changed, old.labels, groups=groups),
        by_group=True,
    )
    assert {row.group for row in result.differing} <= {None, "2"}
    assert ("signed_gap", "2") in {(row.name, row.group) for row in result.differing}


def test_two_samples_compare_labels_too():
    p = draw(900, seed=6)
    subset = p[p.labels != 0]
    result = compare(p, subset)
    assert result.pair.paired_by is None
    assert rows_of(result)["labels", None] in result.differing
    assert rows_of(result)["labels", None].detail


def test_infinite_likelihoods_are_noted_and_left_out():
    p = draw(50, seed=7)
    logits = p.logits.copy()
    logits[0, p.labels[0]] = -np.inf
    result = compare(p, Predictions(logits, p.labels))
    assert ("nll", None) not in rows_of(result)
    assert len(result.notes) == 2


def test_impossible_comparisons_are_refused():
    p = draw(50, seed=8)
    assert code_of(compare, p, p, by_group=True) == "no_groups"
    assert code_of(compare, p[:1], p[:1]) == "one_unit"
    assert code_of(compare, p, draw(50, seed=8, k=4)) == "num_classes"
    assert code_of(compare(p, p).save, "c.txt") == "suffix"


# Drift


@pytest.mark.parametrize(
    "form", [float, str, " {} ".format, lambda i: float(i) if i else None, lambda i: i if i else float("nan")]
)
def test_ids_pair_whatever_their_form(form):
    old, new = noisy_pair(50, 4)
    order = np.random.default_rng(0).permutation(50)
    result = compare(old, new[order], old_ids=range(50), new_ids=[form(i) for i in order.tolist()])
    assert result.pair.paired_by == "id"
    assert len(result.pair.old) == (50 if form(0) in (0.0, "0", " 0 ") else 49)


def test_rows_without_an_id_have_no_partner(tmp_path):
    old, new = noisy_pair(50, 4)
    paths = [tmp_path / "old.csv", tmp_path / "new.csv"]
    for p, path, missing in zip((old, new), paths, ((3, 4), (5, 6, 7)), strict=True):
        frame = polars.DataFrame({f"logit_{j}": p.logits[:, j] for j in range(p.k)} | {"label": p.labels})
        ids = [None if i in missing else i for i in range(50)]
        frame.with_columns(id=polars.Series(ids)).write_csv(path)
    finished = run("compare", *paths)
    assert finished.code is None
    assert "Paired 45 examples by id; 10 rows have no partner." in finished.stdout
    finished = run("check", paths[1], "-r", "nll < old + 9", "--against", paths[0])
    assert finished.code is None
    assert "Paired 45 examples by id" in finished.stdout


# Commands


@pytest.fixture
def folder(tmp_path):
    """Write predictions of an old and an overconfident new model, and new predictions without labels."""
    p = draw(600, seed=16)
    sources = {"old": p, "new": Predictions(1.6 * p.logits, p.labels), "later": draw(500, seed=17)}
    for name, q in sources.items():
        probs = {f"prob_{j}": column for j, column in enumerate(softmax(q.logits, 1).T)}
        rows = {"id": range(len(q)), "site": [f"s{i % 2}" for i in range(len(q))], **probs}
        rows |= {} if name == "later" else {"label": q.labels}
        polars.DataFrame(rows).write_csv(tmp_path / f"{name}.csv")
    return tmp_path


def test_compare_command(folder):
    finished = run("compare", "old.csv", "new.csv", "--html", "c.html", "--json", "c.json", folder=folder)
    assert (finished.returncode, finished.stderr) == (3, "")
    assert_rendered("compare", finished.stdout)
    assert max(map(len, finished.stdout.splitlines()[4:])) <= 80
    content = json.loads((folder / "c.json").read_text())
    assert (content["differs"], content["paired_by"]) == (True, "id")
    assert (folder / "c.html").read_text().count("<svg") == 3
    same = run("compare", "old.csv", "old.csv", "--by", "site", folder=folder)
    assert same.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("compare", "old.csv", "new.csv", "--html", "a.txt"), "suffix"),
        (("compare", "old.csv", "later.csv"), "no_labels"),
        (("drift", "old.csv", "later.csv", "--json", "old.csv"), "output_is_input"),
        (("drift", "later.csv", "old.csv"), "no_labels"),
        (("compare", "old.csv", "new.csv", "--seed", -1), "seed_range"),
    ],
)
def test_commands_refuse_in_one_line(folder, arguments, code):
    finished = run(*arguments, folder=folder)
    assert (finished.returncode, len(finished.stderr.splitlines())) == (2, 1)
    assert finished.code == code


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["label", "correct"])
def test_new_files_may_have_an_empty_column_of_labels(tmp_path, labels):
    scores = {"prob": [0.2, 0.8] * 20} if labels == "label" else {"confidence": [0.6, 0.8] * 20}
    polars.DataFrame(scores | {labels: [0, 1] * 20}).write_csv(tmp_path / "old.csv")
    polars.DataFrame(scores | {labels: [None] * 40}).write_csv(tmp_path / "new.csv")
    assert run("drift", "old.csv", "new.csv", folder=tmp_path).returncode == 0
    assert run("sample-size", "new.csv", "--detect", 0.2, "--draws", 100, folder=tmp_path).returncode == 0


def test_headline_counts_the_measures_that_it_does_not_list():
    from calibrant.monitoring._compare import list_titles

    rows = compare(draw(30), draw(30, seed=1)).rows
    assert "more" not in list_titles(rows[:2])
    for n, hidden in ((3, "1 more measure"), (4, "2 more measures")):
        assert list_titles(rows[:n]).endswith(f" and {hidden}")


def test_accuracy_of_stated_confidences_is_the_share_of_right_answers():
    """Wrong answers with a low confidence are wrong, not right predictions of the class "incorrect"."""
    confidence = np.linspace(0.05, 0.4, 200)
    old = Predictions.from_confidence(confidence, [0] * 180 + [1] * 20)
    new = Predictions.from_confidence(confidence, [0] * 140 + [1] * 60)
    for result in (compare(old, new), compare(old, old[:100])):
        row = result.rows[0]
        assert (row.name, row.old, row.new) == ("accuracy", 0.1, result.pair.new.labels.astype(float).mean())
        assert row.low <= row.difference <= row.high


def test_fractional_outcomes_count_as_one_example():
    p = Predictions.from_confidence([0.6, 0.8] * 20, [0.5, 1.0] * 20)
    result = compare(p, p)
    assert (len(p), result.n_old, result.n_new) == (60, 40, 40)
    assert drift(p, p).n_new == 40
    assert any("40 examples" in note for note in result.notes)


@pytest.mark.slow
def test_commands_tell_how_tables_were_read(folder):
    """Weights, alphabetical names of classes and other readings may be wrong, so they are never silent."""
    for arguments in (
        ("check", "old.csv", "-r", "ece < 0.9"),
        ("compare", "old.csv", "old.csv"),
        ("drift", "old.csv", "old.csv"),
        ("sample-size", "old.csv", "--detect", 0.3, "--draws", 100),
        ("watch", "m.watch", "old.csv"),
    ):
        lines = run(*arguments, folder=folder).stdout.splitlines()
        assert "label from 'label'" in lines[0], arguments
    json_alone = run("check", "old.csv", "-r", "ece < 0.9", "--json", "-", folder=folder).stdout
    assert json.loads(json_alone)
    again = run("watch", "m.watch", "old.csv", folder=folder)
    assert again.stdout.splitlines()[1].endswith("rows were given before, and count once.")
