"""`calibrant.check`: verdicts, their error rates, groups, comparisons with an old model, files and exit status."""

import json
import time
from xml.etree import ElementTree

import numpy as np
import polars
import pytest
from commands import run
from refusals import code_of, refused
from rendered import assert_rendered
from scipy.special import softmax
from streams import draw

from calibrant import Predictions, check, metrics
from calibrant.monitoring import read_requirements
from calibrant.planning import quick_sample_size


def status(p, requirement, **options):
    """Return the status of the first condition."""
    return check(p, requirement, **options).conditions[0].status


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("accuracy > 0.5", "holds"),
        ("accuracy >= 50 %", "holds"),
        ("accuracy > 0.99", "broken"),
        ("ece < 0.1", "holds"),
        ("ece(bins=10) < 10%", "holds"),
        ("ece < 0.001", "too_little_data"),
        ("signed_gap < 0.05", "holds"),
        ("signed_gap > -0.05", "holds"),
        ("abs(signed_gap) < 0.05", "holds"),
        ("abs( signed_gap ) < 0.001", "too_little_data"),
        ("nll<2", "holds"),
        ("brier < 0.1", "broken"),
        ("auroc > 0.6", "holds"),
        ("confident_share > 0.9", "broken"),
    ],
)
def test_verdicts_of_a_calibrated_model(requirement, expected):
    assert status(draw(3000, seed=1), requirement) == expected


def test_overconfident_model_breaks_its_ece_by_the_signed_gap():
    p = draw(3000, seed=1, scale=3.0)
    condition = check(p, "ece < 0.05").conditions[0]
    assert (condition.status, condition.needed) == ("broken", None)
    gap = metrics.signed_gap.interval(p, level=0.95)
    assert condition.low == pytest.approx(gap.low, abs=0.01)
    assert condition.high > condition.low


def test_value_is_the_one_that_its_bound_is_about():
    """An ECE holds by the bound of the L2 error, and is broken by that of the gap, whose values stand beside them."""
    for p in (draw(3000, seed=1), draw(400, seed=2), draw(3000, seed=1, scale=3.0)):
        for requirement in ("ece < 0.2", "ece < 0.05", "adaptive_ece < 0.01"):
            condition = check(p, requirement).conditions[0]
            assert condition.low <= condition.value <= condition.high or condition.status == "broken"
            if condition.status == "broken":
                assert condition.metric == "abs(signed_gap)"
                assert condition.value == pytest.approx(abs(float(metrics.signed_gap(p))))
                assert condition.low <= condition.value
            elif condition.status == "holds":
                assert condition.metric == "debiased_l2"
                assert condition.value == pytest.approx(float(metrics.debiased_l2(p)))
    assert check(p, "accuracy > 0.1").conditions[0].metric == "accuracy"


def test_absolute_gap_holds_on_both_sides_only():
    """A gap of -16.73 % is below 5 %, and its absolute value is not."""
    p = Predictions.from_confidence([0.6] * 1000, [1] * 767 + [0] * 233)
    assert status(p, "signed_gap < 0.05") == "holds"
    condition = check(p, "abs(signed_gap) < 0.05").conditions[0]
    assert (condition.status, condition.value) == ("broken", pytest.approx(0.167))
    assert condition.low > 0.05
    one_sided, two_sided = (
        check(p, texts).notes for texts in ("signed_gap < 0.2", ["signed_gap < 0.2", "signed_gap > -0.2"])
    )
    assert len(one_sided) == len(two_sided) + 1


def test_gates_that_a_constant_passes_are_told():
    """Fraud of 1.26 %: a model that says 1e-6 of every payment has a small ECE."""
    p = Predictions.from_probs(np.full(20_000, 1e-6), (np.arange(20_000) < 252).astype(int))
    result = check(p, ["ece < 0.02", "accuracy > 90%"])
    assert (result.status, result.passing_constants, len(result.notes)) == ("holds", ("base rate", "0"), 1)
    assert check(p, "ece < 0.01").passing_constants == ("base rate",)
    assert check(p, ["ece < 0.02", "auroc > 0.7"]).passing_constants == ()
    assert check(draw(500), ["ece < 0.02", "accuracy > 0.6"]).passing_constants == ()
    groups = Predictions.from_probs([0.2, 0.8] * 500, [0, 0, 0, 0, 1, 1, 1, 1, 0, 1] * 100, groups=["a", "b"] * 500)
    assert check(groups, "ece < 0.05").passing_constants == ("base rate",)
    turned = Predictions(groups.logits, np.arange(1000) % 2, groups=["a", "b"] * 500)
    assert check(turned, "ece < 0.05", by_group=True).passing_constants == ()


def test_result_names_its_event():
    p = Predictions.from_probs([0.2, 0.8] * 50, ["well", "sick"] * 50, class_names=["well", "sick"])
    assert "sick" in check(p, "ece < 0.5").event
    assert "sick" in json.loads(check(p, "ece < 0.5").json())["event"]
    assert check(p, "ece < 0.5", of="top").event != check(p, "ece < 0.5").event


def test_hints_of_many_groups_take_no_search():
    """Every group of an undecided ECE has a hint, close to the simulated one."""
    p = draw(2000, groups=np.arange(2000) % 40)
    start = time.process_time()
    conditions = check(p, "ece < 0.02", by_group=True).conditions
    assert time.process_time() - start < 10  # 80 s with a search for each
    assert all(condition.needed for condition in conditions)
    needed = conditions[0].needed
    assert needed == pytest.approx(quick_sample_size(p.events, bound=0.02, alpha=0.05), rel=0.3)


@pytest.mark.parametrize("accuracy", [0.7, 0.95])
def test_model_at_the_limit_rarely_holds_and_rarely_is_broken(accuracy):
    """Of 2,000 samples of 40 with the accuracy at the limit, at most 6 % hold and at most 6 % are broken."""
    hits = np.random.default_rng(0).binomial(40, accuracy, 2000)
    statuses = {
        int(h): status(Predictions.from_confidence([0.8] * 40, [1] * h + [0] * (40 - h)), f"accuracy > {accuracy}")
        for h in np.unique(hits)
    }
    for verdict in ("holds", "broken"):
        assert np.mean([statuses[int(h)] == verdict for h in hits]) <= 0.06


def test_bounds_of_a_share_hold_those_of_clopper_and_pearson():
    from scipy.stats import beta

    condition = check(Predictions.from_confidence([0.8] * 30, [1] * 27 + [0] * 3), "accuracy > 0.5").conditions[0]
    assert beta.ppf(0.05, 27, 4) - 0.01 < condition.low <= beta.ppf(0.05, 27, 4)
    assert beta.ppf(0.95, 28, 3) <= condition.high < beta.ppf(0.95, 28, 3) + 0.01


def test_too_little_data_names_a_size_that_decides():
    p = draw(300, seed=3)
    condition = check(p, "accuracy > 0.5").conditions[0]
    limit = condition.value - 0.02
    needed = check(p, f"accuracy > {limit}").conditions[0].needed
    assert needed is not None
    decided = [
        status(draw(needed, seed=s), f"accuracy > {float(metrics.accuracy(draw(200_000, seed=9))) - 0.02}")
        for s in range(10)
    ]
    assert decided.count("holds") >= 6


def test_groups_must_all_hold_and_one_broken_group_is_named():
    p = draw(4000, seed=4)
    names = np.random.default_rng(0).choice(["a", "b", "c"], 4000)
    logits = p.logits * np.where(names == "c", 4.0, 1.0)[:, None]
    result = check(Predictions(logits, p.labels, groups=names), "signed_gap < 0.12", by_group=True)
    statuses = {condition.group: condition.status for condition in result.conditions}
    assert list(statuses) == [None, "a", "b", "c"]
    assert (statuses["a"], statuses["c"], result.status, result.exit_status) == ("holds", "broken", "broken", 3)


def test_accuracy_of_stated_confidences_is_the_share_of_right_answers():
    p = Predictions.from_confidence([0.2, 0.9] * 100, [0, 1] * 100)
    old = Predictions.from_confidence([0.2, 0.9] * 100, [0, 1] * 100)
    assert check(p, "accuracy > 0.3").conditions[0].value == 0.5
    assert check(p, "error < 0.7").conditions[0].value == 0.5
    assert check(p, "accuracy > old - 0.1", old=old).conditions[0].value == 0


@pytest.mark.slow
def test_many_groups_rarely_break_together():
    """A calibrated model with twenty groups at the limit is called broken anywhere in at most 6 % + noise of draws."""
    broken = 0
    for seed in range(200):
        hits = (np.random.default_rng(seed).random(800) < 0.8).astype(int)
        p = Predictions.from_confidence([0.8] * 800, hits, groups=np.arange(800) % 20)
        broken += check(p, "accuracy > 0.8", by_group=True).status == "broken"
    assert broken <= 19  # a binomial with 0.05 exceeds it with probability 0.003


def pair(n=2000, seed=0, scale=1.3):
    """Return predictions of a calibrated model and of an overconfident one, for the same examples."""
    p = draw(n, seed=seed)
    return p, Predictions(scale * p.logits, p.labels)


def test_relative_requirement_uses_pairs():
    old, new = pair()
    result = check(new, "nll < old + 0.1", old=old)
    condition = result.conditions[0]
    assert condition.status == "holds"
    assert condition.value == pytest.approx(float(metrics.nll(new) - metrics.nll(old)), abs=1e-12)
    unpaired = check(new[:999], "nll < old + 0.1", old=old[999:]).conditions[0]
    assert unpaired.high - unpaired.low > 4 * (condition.high - condition.low)


@pytest.mark.parametrize(("confidence", "n"), [(0.995, 25), (1.0, 25), (0.995, 60)])
def test_errors_that_are_not_seen_yet_leave_it_open(confidence, n):
    """Sixty right answers do not show that a surer model is better: errors of 2 % make both equal."""
    old, new = (Predictions.from_confidence([c] * n, [1] * n) for c in (0.95, confidence))
    for requirement in ("nll < old", "event_brier < old", "brier < old", "ece < old"):
        condition = check(new, requirement, old=old).conditions[0]
        assert condition.status == "too_little_data"
        assert condition.low <= condition.value < 0 < condition.high
        assert condition.high < 10


def test_range_of_a_difference_is_that_of_the_rows():
    """Confidences of .9 and .95 differ by at most .0925 in the Brier score of the event."""
    answers = np.arange(400) % 10 > 0
    old, new = (Predictions.from_confidence([c] * 400, answers) for c in (0.9, 0.95))
    condition = check(new, "event_brier < old + 0.02", old=old).conditions[0]
    assert condition.status == "holds"
    assert condition.high < 0.006


def test_calibration_errors_are_compared_with_the_old_model():
    old, new = pair(scale=2.0)
    assert status(new, "ece < old", old=old) == "broken"
    assert status(old, "ece < old", old=new) == "holds"
    assert status(old, "ece(bins=10) < old + 0.01", old=Predictions(old.logits.copy(), old.labels)) == "holds"
    assert status(old[:1000], "ece < old", old=new[1000:]) == "holds"


def test_ids_decide_the_pairing():
    old, new = pair()
    order = np.random.default_rng(0).permutation(2000)
    ids = np.arange(2000)
    direct = check(new, "accuracy > old - 0.01", old=old, ids=ids, old_ids=ids)
    shuffled = check(new[order], "accuracy > old - 0.01", old=old, ids=ids[order], old_ids=ids)
    a, b = direct.conditions[0], shuffled.conditions[0]
    assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), abs=1e-12)
    subset = check(new[:500], "accuracy > old - 0.01", old=old, ids=ids[:500], old_ids=ids)
    assert subset.conditions[0].n == 500
    assert "1,500" in subset.notes[0]
    assert code_of(check, new, "nll < old", old=old, ids=ids % 7, old_ids=ids) == "repeated_ids"
    assert code_of(check, new[order], "nll < old", old=old, ids=ids, old_ids=ids) == "different_labels"


@pytest.mark.parametrize(
    ("requirement", "code"),
    [
        ("ece", "requirement"),
        ("ece < a lot", "requirement_limit"),
        ("accuracy > 90", "requirement_limit"),
        ("ece < 1", "requirement_limit"),
        ("accuracy > old - 1", "requirement_limit"),
        ("ece > 0.02", "requirement_direction"),
        ("accuracy < 0.9", "requirement_direction"),
        ("abs(signed_gap) > 0.02", "requirement_direction"),
        ("abs(signed_gap) < old", "requirement_metric"),
        ("kuiper < 0.1", "requirement_metric"),
        ("ece(norm=2) < 0.1", "requirement_metric"),
        ("auroc > old", "requirement_metric"),
        ("ece(norm=2) < old", "requirement_metric"),
        ("eec < 0.1", "unknown_method"),
        ([], "no_requirement"),
        ("nll < old + 0.1", "no_old"),
    ],
)
def test_requirements_that_cannot_be_meant_are_refused(requirement, code):
    assert code_of(check, draw(50, seed=0), requirement) == code


def test_auc_leads_to_auroc():
    with refused("unknown_method", "'auroc'"):
        check(draw(50), "auc > 0.7")


def test_options_out_of_range_are_refused():
    p = draw(50, seed=0)
    assert code_of(check, p, "ece < 1%", by_group=True) == "no_groups"


@pytest.mark.parametrize("n", [1, 2, 3])
def test_very_few_examples_are_too_few(n):
    p = draw(n, seed=0)
    # three right answers of three show an accuracy above .05^(1/3) = .37
    for requirement in ("ece < 0.1", "accuracy > 0.4", "nll < 1.0", "signed_gap < 0.1", "debiased_l2 < 0.2"):
        assert status(p, requirement) == "too_little_data"


@pytest.fixture
def folder(tmp_path):
    """Write predictions of an old and a new model with ids and groups, and requirements."""
    old, new = pair()
    for name, p in (("old", old), ("new", new)):
        probs = {f"prob_{j}": column for j, column in enumerate(softmax(p.logits, 1).T)}
        rows = {"id": range(2000), "site": [f"s{i % 3}" for i in range(2000)], **probs, "label": p.labels}
        polars.DataFrame(rows).write_csv(tmp_path / f"{name}.csv")
    (tmp_path / "gate.toml").write_text('level = 0.9\nrequire = ["accuracy > 0.5", "nll < old + 0.1"]\n')
    return tmp_path


def test_command_prints_one_line_per_condition_and_writes_reports(folder):
    arguments = ("check", "new.csv", "--against", "old.csv", "--requirements", "gate.toml", "-r", "ece < 0.15")
    finished = run(*arguments, "--junit", "out.xml", "--json", "out.json", folder=folder)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert_rendered("check", finished.stdout)
    content = json.loads((folder / "out.json").read_text())
    assert (content["status"], content["level"], content["n"], len(content["conditions"])) == ("holds", 0.9, 2000, 3)
    suite = ElementTree.parse(folder / "out.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "0", "0")


def test_exit_status_tells_the_verdict(folder):
    assert run("check", "new.csv", "-r", "accuracy > 0.99", "-r", "ece < 0.001", folder=folder).returncode == 3
    assert run("check", "new.csv", "-r", "ece < 0.06", folder=folder).returncode == 4
    by = run("check", "new.csv", "-r", "accuracy > 0.3", "--by", "site", "--json", "-", folder=folder)
    assert by.returncode == 0
    assert [c["group"] for c in json.loads(by.stdout)["conditions"]] == [None, "s0", "s1", "s2"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("new.csv",), "no_requirement"),
        (("new.csv", "-r", "nll < old"), "no_old"),
        (("new.csv", "-r", "ece < 0.9", "--junit", "a.txt"), "suffix"),
        (("new.csv", "-r", "ece < 0.9", "--by", "nothing"), "no_column"),
        (("new.csv", "-r", "ece < 0.9", "--by", "site", "--group", "label"), "groups_twice"),
        (("new.csv", "-r", "ece < 0.9", "--json", "new.csv"), "output_is_input"),
    ],
)
def test_command_refuses_in_one_line(folder, arguments, code):
    finished = run("check", *arguments, folder=folder)
    assert (finished.returncode, finished.code, len(finished.stderr.splitlines())) == (2, code, 1)


@pytest.mark.parametrize(
    ("text", "code"), [("require = 1", "toml_value"), ("requires = []", "toml_key"), ("require = [", "toml")]
)
def test_requirement_files_are_checked(tmp_path, text, code):
    path = tmp_path / "gate.toml"
    path.write_text(text)
    with refused(code, "gate.toml"):
        read_requirements(path)


def test_whole_level_in_a_requirement_file_is_a_number(folder):
    (folder / "level.toml").write_text("require = ['ece < 0.9']\nlevel = 95")
    assert run("check", "new.csv", "--requirements", "level.toml", folder=folder).code == "level_range"


def test_names_of_groups_cannot_break_the_report():
    p = draw(200, seed=0)
    hostile = Predictions(p.logits, p.labels, groups=['<a b="\x1b">', "]]>\ufffe\uffff"] * 100)
    result = check(hostile, "accuracy > 0.99", by_group=True)
    root = ElementTree.fromstring(result.junit())
    assert len(root.findall(".//testcase")) == 3
