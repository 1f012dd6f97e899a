"""`calibrant watch`: files of predictions and labels, texts, pages, and exit status."""

import json

import numpy as np
import polars
import pytest
from commands import run
from refusals import code_of
from rendered import assert_rendered
from scipy.special import softmax
from streams import draw, draw_groups

from calibrant import Predictions, Watch
from calibrant.monitoring import add_file

NAMES = ("cat", "dog", "owl")


def frame_of(day, scale=1.0, n=300):
    """Return a day of predictions with ids, times, groups and labels."""
    p = draw(n, seed=day, scale=scale)
    probs = {f"prob_{name}": column for name, column in zip(NAMES, softmax(p.logits, 1).T, strict=True)}
    times = [f"2026-03-{day:02d}T{i // 60:02d}:{i % 60:02d}:00" for i in range(n)]
    return polars.DataFrame(
        {
            "id": [f"{day}-{i}" for i in range(n)],
            "time": times,
            "group": draw_groups(n, day),
            **probs,
            "label": [NAMES[i] for i in p.labels],
        }
    )


@pytest.fixture
def files(tmp_path):
    """Write four days of predictions, the last two overconfident, whose labels are partly missing, and the labels."""
    for day in range(1, 5):
        frame = frame_of(day, scale=1.0 if day < 3 else 2.5)
        has_label = polars.Series(np.random.default_rng(day).random(len(frame)) < 0.5)
        frame.with_columns(label=polars.when(has_label).then("label")).write_csv(tmp_path / f"day{day}.csv")
        frame.filter(~has_label).select("id", "label").write_csv(tmp_path / f"labels{day}.csv")
    return tmp_path


def test_level_widens_the_limits_and_changes_no_alarm(files):
    first = run("watch", "m.watch", "day1.csv", "labels1.csv", "--level", 0.5, "--json", "a.json", folder=files)
    again = run("watch", "m.watch", "--level", 0.99, "--json", "b.json", "--page", "b.html", folder=files)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    inner, outer = (json.loads((files / name).read_text()) for name in ("a.json", "b.json"))
    assert (inner["level"], outer["level"]) == (0.5, 0.99)
    inner_gap, outer_gap = (content["tests"][0]["gap"] for content in (inner, outer))
    assert outer_gap["low"] < inner_gap["low"] < inner_gap["high"] < outer_gap["high"]
    assert "99 % at all times" in (files / "b.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert inner["tests"][0]["log10_evidence"] == outer["tests"][0]["log10_evidence"]


def test_month_of_files(files):
    """Read predictions and late labels, print the verdict, and write every output."""
    first = run("watch", "m.watch", "day1.csv", folder=files)
    assert (first.returncode, first.stderr) == (0, "")
    quiet = run("watch", "m.watch", "labels1.csv", "day2.csv", "day2.csv", "labels2.csv", "day1.csv", folder=files)
    assert quiet.returncode == 0
    outputs = ("--page", "m.html", "--prometheus", "m.prom", "--json", "m.json")
    alarm = run("watch", "m.watch", "day3.csv", "labels3.csv", "day4.csv", *outputs, folder=files)
    assert alarm.returncode == 3
    assert_rendered("watch", "\n\n".join(part.stdout for part in (first, quiet, alarm)))
    content = json.loads((files / "m.json").read_text())
    assert (content["rows"], content["pending"], content["alarm"]) == (900, 300, True)
    assert content["tests"][0]["since"] == "2026-03-03"
    assert "calibrant_watch_alarm 1" in (files / "m.prom").read_text()
    page = (files / "m.html").read_text()
    assert page.count("<svg") == 1
    assert "2026-03-03" in page
    again = run("watch", "m.watch", folder=files)
    assert again.returncode == 3
    assert alarm.stdout.partition("wrote")[0].endswith(again.stdout)


def test_files_give_the_state_of_arrays(files):
    watch = Watch()
    for day in (1, 2):
        watch = add_file(add_file(watch, files / f"day{day}.csv"), files / f"labels{day}.csv")
    arrays = Watch()
    for day in (1, 2):
        frame = frame_of(day)
        p = Predictions.from_table(frame)
        arrays = arrays.add(p, ids=frame["id"], times=frame["time"].to_list())
    np.testing.assert_allclose(watch.evidence.total, arrays.evidence.total, rtol=1e-9)
    assert watch.rows == arrays.rows == 600


def test_confidences_and_late_answers(tmp_path):
    p = draw(60)
    frame = polars.DataFrame({"id": range(60), "confidence": p.events.confidence})
    frame.with_columns(correct=polars.lit(None, polars.Int64)).write_csv(tmp_path / "a.csv")
    correct = np.where(p.events.outcome == 1, "yes", "no")
    frame.select("id").with_columns(correct=polars.Series(correct)).write_csv(tmp_path / "b.csv")
    watch = add_file(Watch(), tmp_path / "a.csv")
    assert (watch.rows, watch.verdict.unlabeled) == (0, 60)
    watch = add_file(watch, tmp_path / "b.csv")
    assert watch.rows == 60
    assert watch.verdict.event.gap.value == pytest.approx(float((p.events.confidence - p.events.outcome).mean()))


def test_array_files_and_single_scores(tmp_path):
    p = draw(50)
    p.save(tmp_path / "a.npz")
    assert add_file(Watch(), tmp_path / "a.npz").rows == 50
    binary = polars.DataFrame({"id": range(40), "score": np.linspace(0.1, 0.9, 40), "label": [0, 1] * 20})
    binary.write_csv(tmp_path / "b.csv")
    watch = add_file(Watch(), tmp_path / "b.csv")
    assert (watch.rows, watch.of, len(watch.verdict.tests)) == (40, 1, 1)


def test_labels_without_predictions_have_a_note(files):
    notes = []
    watch = add_file(Watch(), files / "day1.csv")
    add_file(watch, files / "labels1.csv", on_note=notes.append)
    assert len(notes) == 1
    assert all(word in notes[0] for word in ("'label'", "'id'"))


def test_labels_have_the_column_of_the_most_common_name(tmp_path):
    watch = Watch().add(draw(4), ids=range(4), labeled=[False] * 4)
    for name, labels in (("target", ["a", "b", "c", "a"]), ("correct", [0, 1, 0, 1])):
        polars.DataFrame({"id": range(4), name: labels, "label": [0, 1, 2, 0]}).write_csv(tmp_path / "labels.csv")
        assert add_file(watch, tmp_path / "labels.csv").pending.labels.tolist() == [0, 1, 2, 0]


def test_whether_answers_were_correct_is_no_label_of_classes(tmp_path):
    polars.DataFrame({"id": range(4), "correct": [0, 1, 0, 1]}).write_csv(tmp_path / "labels.csv")
    for k in (2, 3):
        watch = Watch().add(draw(4, k=k), ids=range(4), labeled=[False] * 4)
        assert code_of(add_file, watch, tmp_path / "labels.csv") == "correct_with_classes"
        assert code_of(add_file, watch, tmp_path / "labels.csv", correct="correct") == "correct_with_classes"
        assert add_file(watch, tmp_path / "labels.csv", label="correct").pending.labels.tolist() == [0, 1, 0, 1]
    assert code_of(add_file, Watch(), tmp_path / "labels.csv") == "no_rows"


def test_late_names_of_classes_suit_the_single_score(tmp_path):
    probs = np.linspace(0.1, 0.9, 40)
    polars.DataFrame({"id": range(40), "prob_sick": probs}).write_csv(tmp_path / "day.csv")
    labels = np.where(probs > 0.5, "sick", "well")
    polars.DataFrame({"id": range(40), "label": labels}).write_csv(tmp_path / "labels.csv")
    watch = add_file(Watch(), tmp_path / "day.csv")
    assert code_of(add_file, watch, tmp_path / "labels.csv") == "ambiguous_positive"
    watch = add_file(watch, tmp_path / "labels.csv", positive="sick")
    assert watch.verdict.event.gap.value == pytest.approx(probs.mean() - (probs > 0.5).mean())


def test_single_score_of_class_0_needs_its_labels(tmp_path):
    frame = polars.DataFrame({"id": range(40), "label": [0, 1] * 20})
    for name in ("prob_0", "prob_no"):
        frame.with_columns(polars.Series(name, np.linspace(0.1, 0.9, 40))).write_csv(tmp_path / "both.csv")
        polars.read_csv(tmp_path / "both.csv").drop("label").write_csv(tmp_path / "day.csv")
        assert code_of(add_file, Watch(), tmp_path / "day.csv") == "positive_class"
        assert add_file(Watch(), tmp_path / "both.csv").rows == 40


def test_options_that_do_not_suit_a_file_are_refused(files):
    watch = add_file(Watch(), files / "day1.csv")
    assert code_of(add_file, watch, files / "labels1.csv", labels_from=1) == "labels_from"
    draw(50).save(files / "arrays.npz")
    assert code_of(add_file, Watch(), files / "arrays.npz", time="when") == "no_columns"


def test_give_up_and_reset(files):
    run("watch", "m.watch", "day1.csv", folder=files)
    waiting = run("watch", "m.watch", "day2.csv", "labels2.csv", "--give-up", "--json", "-", folder=files)
    content = json.loads(waiting.stdout)
    assert content["rows"] > 400
    assert content["unlabeled"] == 0
    reset = run("watch", "m.watch", "day3.csv", "labels3.csv", "--reset", "--json", "-", folder=files)
    content = json.loads(reset.stdout)
    assert (content["epoch"], content["rows"]) == (2, 300)


def test_bad_input_changes_no_state(files):
    run("watch", "m.watch", "day1.csv", "labels1.csv", folder=files)
    before = (files / "m.watch").read_bytes()
    frame_of(9).with_columns(label=polars.lit("bird")).write_csv(files / "bird.csv")
    frame_of(1).with_columns(label=polars.lit("cat")).select("id", "label").write_csv(files / "changed.csv")
    frame_of(1).select("time", "group").write_csv(files / "nothing.csv")
    for code, *arguments in (
        ("unknown_label", "bird.csv"),
        ("label_changed", "changed.csv"),
        ("unknown_id", "labels2.csv"),
        ("no_scores", "nothing.csv"),
        ("no_file", "missing.csv"),
        ("settings", "day2.csv", "--alpha", "0.01"),
        ("settings", "day2.csv", "--of", "cat"),
        ("suffix", "day2.csv", "--page", "page.txt"),
        ("no_column", "day2.csv", "--time", "when"),
    ):
        finished = run("watch", "m.watch", *arguments, folder=files)
        assert (finished.code, finished.returncode, finished.stderr.count("\n")) == (code, 2, 1), finished
        assert (files / "m.watch").read_bytes() == before
    assert run("watch", "m.state", folder=files).code == "suffix"
    assert code_of(add_file, Watch(), files / "day1.csv", drop=True, label="none") == "no_column"


def test_notes_tell_the_encoding_of_a_table(tmp_path):
    notes = []
    (tmp_path / "day.csv").write_bytes("id,label,prob_é,prob_b\n1,b,0.2,0.8\n2,é,0.7,0.3\n".encode("cp1252"))
    add_file(Watch(), tmp_path / "day.csv", on_note=notes.append)
    assert any("cp1252" in note for note in notes)


def test_refused_labels_leave_the_predictions(files):
    """Labels that another night contradicts are refused, and tonight's predictions and other labels count."""
    run("watch", "m.watch", "day1.csv", "labels1.csv", folder=files)
    frame_of(1).with_columns(label=polars.lit("cat")).select("id", "label").write_csv(files / "changed.csv")
    finished = run("watch", "m.watch", "changed.csv", "labels2.csv", "day2.csv", folder=files)
    assert (finished.returncode, finished.code) == (2, "label_changed")
    assert Watch.load(files / "m.watch").rows == 600


def test_options_of_predictions_do_not_refuse_labels(files):
    """The group and the time are columns of predictions, which files of labels lack."""
    options = ("--group", "site", "--time", "when")
    for day in (1, 2):
        frame = frame_of(day).rename({"group": "site", "time": "when"})
        frame.drop("label").write_csv(files / f"day{day}.csv")
        frame.select("id", "label").write_csv(files / f"labels{day}.csv")
    assert run("watch", "m.watch", "day1.csv", *options, folder=files).returncode == 0
    finished = run("watch", "m.watch", "labels1.csv", "day2.csv", *options, folder=files)
    assert (finished.returncode, finished.stderr) == (0, "")
    watch = Watch.load(files / "m.watch")
    assert (watch.rows, len(watch.pending), watch.group_names) == (300, 300, ("north", "south"))
    wrong = run("watch", "m.watch", "day2.csv", "--group", "region", folder=files)
    assert (wrong.returncode, wrong.code) == (2, "no_column")


def test_labels_of_unknown_rows_are_left_out_and_counted(files):
    frame = frame_of(1).select("id", "label")
    polars.concat([frame, polars.DataFrame({"id": ["x", "y"], "label": ["cat", "dog"]})]).write_csv(files / "l.csv")
    notes = []
    watch = add_file(add_file(Watch(), files / "day1.csv"), files / "l.csv", on_note=notes.append)
    assert (watch.rows, len(notes)) == (300, 2)
    frame_of(9).select("id", "label").write_csv(files / "other.csv")
    assert code_of(add_file, watch, files / "other.csv") == "unknown_id"


@pytest.mark.parametrize("name", ["empty.csv", "empty.jsonl", "labels.csv"])
def test_night_without_rows_is_no_error(files, name):
    text = {"empty.csv": "id,label,prob_a,prob_b\n", "empty.jsonl": "", "labels.csv": "id,label\n"}[name]
    (files / name).write_text(text)
    for _ in range(2):
        finished = run("watch", "m.watch", name, "--prometheus", "m.prom", "--page", "m.html", folder=files)
        assert (finished.returncode, finished.stderr) == (0, "")
        run("watch", "m.watch", "day1.csv", "labels1.csv", folder=files)
    assert Watch.load(files / "m.watch").rows == 300


def test_files_without_ids_count_once_by_their_name_and_content(tmp_path):
    watch = Watch()
    for name in ("a.csv", "b.csv", "a.csv"):
        polars.DataFrame({"confidence": [0.6] * 10, "correct": [0] * 10}).write_csv(tmp_path / name)
        watch = add_file(watch, tmp_path / name)
    assert watch.rows == 20
    polars.DataFrame({"confidence": [0.6] * 10, "correct": [1] * 10}).write_csv(tmp_path / "a.csv")
    assert add_file(watch, tmp_path / "a.csv").rows == 30


def test_number_of_rows_given_up_is_told(files):
    run("watch", "m.watch", "day1.csv", folder=files)
    finished = run("watch", "m.watch", "day2.csv", "--give-up", "--json", "m.json", folder=files)
    assert finished.returncode == 0
    content = json.loads((files / "m.json").read_text())
    assert content["given_up"] == 147
    assert "147 rows" in finished.stdout
    notes = []
    add_file(Watch.load(files / "m.watch"), files / "labels1.csv", on_note=notes.append)
    assert len(notes) == 2
