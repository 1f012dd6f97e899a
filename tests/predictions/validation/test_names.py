"""Classes are matched by name, in any order of the columns."""

import json

import numpy as np
import polars
import pytest
from refusals import code_of, refused
from scipy.special import log_softmax, softmax

from calibrant import Predictions, assess, calibrators, metrics
from calibrant.assessment import apply_to_file, load_checked_calibrator

GENERATOR = np.random.default_rng(3)
N, NAMES = 300, ("cat", "dog", "eel")
LOGITS = GENERATOR.normal(size=(N, 3)) * 2
TRUTH = np.exp(LOGITS + np.array([0.0, 1.5, -1.0]))  # "dog" is underpredicted
TRUTH /= TRUTH.sum(1, keepdims=True)
Y = np.array([GENERATOR.choice(3, p=row) for row in TRUTH])
REORDERED = [2, 0, 1]


def in_order(rows=slice(None)):
    return Predictions(LOGITS[rows], Y[rows], class_names=NAMES)


def reordered(rows=slice(None)):
    """Return the same predictions with the classes in another order."""
    names = [NAMES[i] for i in REORDERED]
    return Predictions(LOGITS[rows][:, REORDERED], np.array(NAMES)[Y[rows]], class_names=names)


def frame(p, kind="logit_"):
    return polars.DataFrame({f"{kind}{name}": p.logits[:, i] for i, name in enumerate(p.class_names)})


VAL, TEST = slice(0, 150), slice(150, N)


def test_reorder_classes_moves_logits_labels_and_event():
    p, q = in_order(), reordered().reorder_classes(NAMES)
    assert np.array_equal(p.logits, q.logits)
    assert np.array_equal(p.labels, q.labels)
    assert reordered().with_event("dog").reorder_classes(NAMES).of == 1
    assert in_order().reorder_classes(None) is not None
    assert np.array_equal(reordered().reorder_classes(list(NAMES)).logits, p.logits)
    with refused("class_names"):
        reordered().reorder_classes([*NAMES, NAMES[0]])
    with refused("class_names", "'cat', 'fox'"):
        p.reorder_classes(("cat", "fox"))


def test_assess_matches_classes_of_val_and_test():
    expected = assess(in_order(VAL), in_order(TEST), ["Vector"], of="dog").calibrated
    for test in (reordered(TEST), iter([reordered(TEST)])):
        calibrated = assess(in_order(VAL), test, ["Vector"], of="dog").calibrated
        assert calibrated["nll"].value == pytest.approx(expected["nll"].value, rel=1e-9)
        assert calibrated["ece"].value == pytest.approx(expected["ece"].value, rel=1e-9)
    with refused("class_names"):
        assess(in_order(VAL), Predictions(LOGITS[TEST], Y[TEST], class_names=("cat", "dog", "fox")), ["Vector"])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "saved.safetensors"
    assess(in_order(VAL), in_order(TEST), ["Vector"]).save(path)
    return path


def test_saved_calibrator_matches_class_names(file):
    assert calibrators.origin(file).class_names == NAMES
    expected = in_order(TEST).double().apply(calibrators.load(file))
    calibrated = load_checked_calibrator(file)(reordered(TEST))
    assert calibrated.class_names == reordered().class_names
    np.testing.assert_allclose(calibrated.reorder_classes(NAMES).logits, expected.logits, atol=1e-12)
    result = assess(reordered(TEST), reordered(slice(0, 50)).reorder_classes(None), ["Identity"])
    assert result.uncalibrated.names == reordered().class_names
    with refused("class_names", "'cat', 'dog', 'eel'"):
        load_checked_calibrator(file)(Predictions(LOGITS, Y, class_names=("a", "b", "c")))


def test_apply_matches_columns_by_class_name(file, tmp_path):
    expected = softmax(in_order(TEST).double().apply(calibrators.load(file)).logits, 1)
    frame(reordered(TEST)).write_csv(tmp_path / "turned.csv")
    apply_to_file(file, tmp_path / "turned.csv", tmp_path / "out.csv")
    out = polars.read_csv(tmp_path / "out.csv")
    for i, name in enumerate(NAMES):
        assert out[f"calibrated_prob_{name}"].to_numpy() == pytest.approx(expected[:, i], abs=1e-12)
    assert out["predicted"].to_list() == [NAMES[i] for i in expected.argmax(1).tolist()]


def test_assess_matches_class_names_of_a_saved_calibrator(file):
    expected, result = (assess(p, None, [str(file)]).calibrated for p in (in_order(TEST), reordered(TEST)))
    assert result["nll"].value == pytest.approx(expected["nll"].value, rel=1e-9)


def test_summaries_and_pools_match_class_names():
    summary = metrics.Summary.empty(of=1).add(in_order(VAL)).add(reordered(TEST))
    expected = metrics.Summary.empty(of=1).add(in_order())
    assert summary["ece"] == pytest.approx(expected["ece"])
    assert summary["nll"] == pytest.approx(expected["nll"])
    with refused("classes_differ"):
        metrics.Summary.from_predictions(in_order()) + metrics.Summary.from_predictions(reordered())
    np.testing.assert_allclose(
        calibrators.pool(in_order(), reordered()).logits, log_softmax(in_order().double().logits, 1), atol=1e-12
    )


# Labels and single scores

SCORE = np.array([0.9, 0.2, 0.7, 0.1])
FRAUD = np.array(["fraud", "legit", "fraud", "legit"])


@pytest.mark.parametrize(
    "columns",
    [
        {"label": FRAUD, "prob_fraud": SCORE},
        {"label": FRAUD, "prob_legit": 1 - SCORE},
        {"label": [1, 0, 1, 0], "prob_1": SCORE},
        {"label": [1, 0, 1, 0], "prob_0": 1 - SCORE},
        {"label": [2, 1, 2, 1], "prob_2": SCORE},
        {"label": [True, False, True, False], "prob_true": SCORE, "prob_false": 1 - SCORE},
        {"label": ["yes", "no", "yes", "no"], "prob": SCORE},
        {"label": FRAUD, "logit_fraud": np.log(SCORE / (1 - SCORE))},
    ],
    ids=lambda columns: "-".join(columns),
)
def test_score_belongs_to_the_class_in_its_name(columns):
    p = Predictions.from_table(polars.DataFrame(columns))
    assert np.exp(p.log_likelihood) == pytest.approx([0.9, 0.8, 0.7, 0.9], abs=1e-6)


@pytest.mark.parametrize(
    ("columns", "code", "part"),
    [
        ({"label": FRAUD, "prob": SCORE}, "ambiguous_positive", "fraud"),
        ({"label": [True, False] * 2, "prob_dog": SCORE, "prob_cat": 1 - SCORE}, "unknown_label", "'cat'"),
        ({"label": [0, 1, 0, 1], "prob_1": SCORE, "prob_2": 1 - SCORE}, "unknown_label", "'0'"),
        ({"label": ["0", "1"] * 2, "prob_0": ["x", "0.5"] * 2, "prob_1": SCORE}, "not_numbers", "2 entries"),
        ({"label": [0] * 4, "probs": [[0.5, 0.5]] * 3 + [[1.0]]}, "list_length", "1 to 2"),
        ({"label": [{"a": 1}] * 4, "prob_0": SCORE, "prob_1": 1 - SCORE}, "not_numbers", "Struct"),
    ],
)
def test_ambiguous_labels_and_scores_are_refused(columns, code, part):
    with refused(code, part):
        Predictions.from_table(polars.DataFrame(columns))


def test_text_labels_need_class_names_beside_single_scores():
    assert code_of(Predictions.from_probs, SCORE, FRAUD) == "ambiguous_positive"
    named = Predictions.from_probs(SCORE, FRAUD, class_names=["legit", "fraud"])
    assert named.labels.tolist() == [1, 0, 1, 0]
    z = np.log(SCORE / (1 - SCORE))
    assert Predictions.from_binary_logits(z, FRAUD, class_names=["legit", "fraud"]).labels.tolist() == [1, 0, 1, 0]
    assert Predictions(np.zeros((11, 11)), [str(i) for i in range(11)]).labels.tolist() == list(range(11))


@pytest.mark.parametrize("kind", [polars.Decimal(10, 6), polars.Float32, polars.String])
def test_scores_of_any_numeric_type_are_read(kind):
    columns = {"label": [1, 0, 1, 0], "prob_0": 1 - SCORE, "prob_1": SCORE}
    table = polars.DataFrame(columns).with_columns(polars.col("prob_0", "prob_1").cast(kind))
    assert np.exp(Predictions.from_table(table).logits)[:, 1] == pytest.approx(SCORE, abs=1e-6)


def test_apply_calibrates_each_of_several_labels(tmp_path):
    table = polars.DataFrame({"label_a": [0, 1], "label_b": [1, 1], "logit_a": [0.0, 2.0], "logit_b": [1.0, -1.0]})
    table.write_csv(tmp_path / "tags.csv")
    apply_to_file(calibrators.Temperature(2.0), tmp_path / "tags.csv", tmp_path / "out.csv")
    calibrated = polars.read_csv(tmp_path / "out.csv")["calibrated_prob_a"].to_numpy()
    assert calibrated == pytest.approx(1 / (1 + np.exp([-0.0, -1.0])))


# Files


def test_duplicate_columns_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("label,logit_0,logit_1,logit_1\n0,1,2,3\n1,2,3,4\n")
    with refused("column_twice", "'logit_1'"):
        Predictions.load(tmp_path / "a.csv")


def test_folder_of_several_formats_is_refused(tmp_path):
    table = polars.DataFrame({"label": [0, 1], "prob_0": [0.1, 0.2], "prob_1": [0.9, 0.8]})
    table.write_csv(tmp_path / "a.csv")
    table.write_parquet(tmp_path / "b.parquet")
    with refused("several_formats", ".csv, .parquet"):
        Predictions.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "code", "name"), [("", "empty_file", "b.csv"), ("x,score", "columns_differ", "'x'")]
)
def test_files_of_a_folder_that_do_not_fit_are_named(content, code, name, tmp_path):
    (tmp_path / "a.csv").write_text("label,score\n1,0.5\n")
    (tmp_path / "b.csv").write_text(content and f"{content}\n1,0.5\n")
    with refused(code, name):
        Predictions.load(tmp_path)


def test_files_of_a_folder_may_order_columns_differently(tmp_path):
    table = polars.DataFrame({"label": [0, 1], "prob_0": [0.1, 0.2], "prob_1": [0.9, 0.8]})
    table.write_parquet(tmp_path / "a.parquet")
    table.select("prob_1", "label", "prob_0").write_parquet(tmp_path / "b.parquet")
    p = Predictions.load(tmp_path)
    assert np.exp(p.log_likelihood) == pytest.approx([0.1, 0.8, 0.1, 0.8])
    (chunk,) = Predictions.load_chunks(tmp_path)
    assert np.array_equal(chunk.logits, p.logits)


def test_quoted_names_may_hold_separators(tmp_path):
    (tmp_path / "a.csv").write_text('"label"; "prob_a, b";"prob_c, d"\n"a, b";0,6;0,4\n"c, d";0,3;0,7\n')
    assert np.exp(Predictions.load(tmp_path / "a.csv").log_likelihood) == pytest.approx([0.6, 0.7])


def test_saved_calibrator_stores_class_names(file):
    from safetensors import safe_open

    with safe_open(file, "np") as opened:
        assert tuple(json.loads(opened.metadata()["class_names"])) == NAMES


# Labels and class names that are numbers


@pytest.mark.parametrize("labels", [np.array([2.0, 3.0, 1.0, 4.0]), ["2", "3", "1", "4"], ["2.0", "3.0", "1.0", "4"]])
def test_labels_match_numeric_class_names_by_value(labels):
    assert Predictions(np.eye(4), labels, class_names=("4.0", "2.0", "3.0", "1.0")).labels.tolist() == [1, 2, 3, 0]


def test_labels_that_may_be_positions_or_names_are_refused(torch):
    assert code_of(Predictions, np.eye(3), [1, 2, 0], class_names=("1", "2", "0")) == "ambiguous_labels"
    assert Predictions(np.eye(3), torch.tensor([1, 2, 0]), class_names=("1", "2", "0")).labels.tolist() == [1, 2, 0]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("names", [("1.0", "2.0", "0.0"), ("2", "0", "1"), ("-1", "1", "0"), ("10", "9", "1e3")])
def test_numeric_class_names_survive_a_file(tmp_path, suffix, names):
    p = Predictions(LOGITS, np.array(names)[Y], class_names=names)
    p.save(tmp_path / f"a{suffix}")
    loaded = Predictions.load(tmp_path / f"a{suffix}")
    assert loaded.log_likelihood == pytest.approx(p.log_likelihood)


def test_labels_of_plus_and_minus_1_are_two_classes_unless_ignored():
    for construct, scores in ((Predictions.from_probs, SCORE), (Predictions.from_binary_logits, SCORE - 0.5)):
        assert construct(scores, [1, -1, 1, -1]).labels.tolist() == [1, 0, 1, 0]
    assert Predictions(np.stack([0 * SCORE, SCORE], 1), [1, -1, 1, -1]).labels.tolist() == [1, 0, 1, 0]
    ignored = Predictions.from_probs(SCORE, [1, -1, 1, -1], ignore_index=-1)
    assert ignored.labels.tolist() == [1, 1]


@pytest.mark.parametrize("digit", ["²", "٣", "９"])
def test_digits_outside_ascii_are_names(digit, tmp_path):
    names = (digit, "a")
    p = Predictions(LOGITS[:4, :2], [digit, "a", "a", digit], class_names=names)
    assert p.labels.tolist() == [0, 1, 1, 0]
    p.save(tmp_path / "a.csv")
    assert Predictions.load(tmp_path / "a.csv").class_names == names
    assert Predictions(LOGITS[:2, :2], [digit, "a"]).k == 2
    columns = {f"prob_{digit}": [0.9, 0.1], "prob_" + "9" * 5000: [0.1, 0.9]}
    assert Predictions.from_table({"label": [digit, "9" * 5000], **columns}).labels.tolist() == [0, 1]


def test_note_says_which_label_name_has_which_column():
    p = Predictions(LOGITS[:2, :2], ["malignant", "benign"])
    (note,) = p.notes
    assert note.index("benign") < note.index("0") < note.index("malignant") < note.index("1")


def test_dates_as_labels_are_refused():
    labels = np.array(["2024-01-01", "2024-01-02"], "datetime64[D]")
    assert code_of(Predictions, LOGITS[:2, :2], labels) == "label_kind"


def test_class_names_match_up_to_case_and_punctuation():
    p = Predictions(LOGITS[:3], ["Cat", "new york", "DOG"], class_names=["cat", "dog", "New_York"])
    assert p.labels.tolist() == [0, 2, 1]
    assert code_of(Predictions, LOGITS[:3], ["Cat", "cat", "x"], class_names=["CAT", "dog", "x"]) == "unknown_label"
