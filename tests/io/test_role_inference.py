"""Roles of columns: inferred and noted, or refused with a code."""

from typing import Any

import numpy as np
import polars
import pytest
from refusals import code_of
from scipy.special import softmax

from calibrant import InputError, Predictions
from calibrant.io import role_search
from calibrant.io.column_roles import TableOptions
from calibrant.io.frames import frame_to_contents
from calibrant.io.role_inference import infer_columns

N = 40
RNG = np.random.default_rng(7)
P = RNG.uniform(0.02, 0.98, N).round(3)
Y = (RNG.random(N) < P).astype(int)
GUESS = (P > 0.5).astype(int)
TOP = np.maximum(P, 1 - P)
ROWS = RNG.dirichlet(np.ones(3), N)
Y3 = np.array([RNG.choice(3, p=row) for row in ROWS])
GUESS3 = ROWS.argmax(1)
WORDS = np.array(["cat", "dog", "emu"])
PAIR = np.array(["benign", "malignant"])
CLASSES = {f"prob_{i}": ROWS[:, i] for i in range(3)}
NAMED = {f"prob_{name}": ROWS[:, i] for i, name in enumerate(WORDS)}


def read(columns: dict[str, Any], **options: Any) -> Predictions:
    return Predictions.from_table(polars.DataFrame(columns), **options)


def read_with_id(columns: dict[str, Any], **options: Any) -> Any:
    """Return the ids of a table, or None."""
    frame, table_options = polars.DataFrame(columns), TableOptions.from_keywords(options)
    return frame_to_contents(frame, infer_columns(frame, table_options), table_options).ids


def refused(columns: dict[str, Any], **options: Any) -> str:
    return code_of(read, columns, **options)


def is_answers(p: Predictions, confidence: np.ndarray, correct: np.ndarray) -> bool:
    same = np.exp(p.logits[:, 1]) == pytest.approx(confidence, abs=1e-9)
    return p.class_names == ("wrong", "correct") and same and p.labels.tolist() == list(correct)


def is_binary(p: Predictions, positive: np.ndarray, labels: np.ndarray) -> bool:
    same = softmax(p.logits, 1)[:, 1] == pytest.approx(positive, abs=1e-6)
    return p.of == 1 and p.class_names != ("wrong", "correct") and same and p.labels.tolist() == list(labels)


def is_classes(p: Predictions, labels: np.ndarray = Y3) -> bool:
    same = softmax(p.logits, 1) == pytest.approx(ROWS, abs=1e-6)
    return bool(same) and p.labels.tolist() == list(labels)


# Weights


@pytest.mark.parametrize("weight", [RNG.uniform(40, 110, N), np.full(N, 1 / N), RNG.normal(size=N), np.full(N, 2.0)])
def test_weights_found_by_name_must_sum_to_about_the_number_of_rows(weight, tmp_path):
    columns = {"label": Y, "score": P, "weight": weight}
    assert refused(columns) == "weights_sum"
    polars.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    assert code_of(lambda: list(Predictions.load_chunks(tmp_path / "a.parquet"))) == "weights_sum"


def test_named_weights_may_sum_to_anything_and_the_sum_is_noted():
    weight = np.full(N, 3.0)
    for p in (
        read({"label": Y, "score": P, "kg": weight}, weight="kg"),
        read({"label": Y, "score": P, "weight": weight}, weight="weight"),
    ):
        assert p.weights is not None
        assert f"{3 * N}" in p.notes[0]
    balanced = np.where(Y == 1, N / 2 / Y.sum(), N / 2 / (N - Y.sum()))
    assert read({"label": Y, "score": P, "sample_weight": balanced}).weights is not None


# Predicted labels


@pytest.mark.parametrize(
    "predicted", ["y_pred", "pred", "prediction", "predicted", "predicted_label", "Predicted Class", "yhat"]
)
@pytest.mark.parametrize("label", ["y_true", "label", "target", "Ground Truth", "y"])
def test_predicted_labels_beside_a_confidence_give_correctness(label, predicted):
    assert is_answers(read({label: Y3, predicted: GUESS3, "confidence": ROWS.max(1)}), ROWS.max(1), Y3 == GUESS3)
    words = {label: WORDS[Y3], predicted: WORDS[GUESS3], "conf": ROWS.max(1)}
    assert is_answers(read(words), ROWS.max(1), Y3 == GUESS3)
    floats = {label: Y3.astype(float), predicted: GUESS3, "confidence": ROWS.max(1)}
    assert is_answers(read(floats), ROWS.max(1), Y3 == GUESS3)


@pytest.mark.parametrize("name", ["prob", "score", "probability", "y_prob", "p"])
def test_values_decide_between_probability_and_confidence(name):
    assert is_answers(read({"y_true": Y, "y_pred": GUESS, name: TOP}), TOP, Y == GUESS)
    assert is_binary(read({"y_true": Y, "y_pred": GUESS, name: P}), P, Y)
    assert is_answers(read({"y_true": Y3, "y_pred": GUESS3, name: ROWS.max(1)}), ROWS.max(1), Y3 == GUESS3)
    words = read({"y_true": PAIR[Y], "y_pred": PAIR[GUESS], name: P})
    assert is_binary(words, P, Y)
    assert words.class_names == ("benign", "malignant")
    assert is_binary(read({"y_true": PAIR[1 - Y], "y_pred": PAIR[1 - GUESS], name: P}), P, Y)


def test_ambiguous_number_beside_predictions_is_refused():
    noise = np.where(np.arange(N) % 7 == 0, 1 - GUESS, GUESS)
    assert refused({"y_true": Y, "y_pred": noise, "prob": P}) == "ambiguous_reading"
    assert refused({"y_true": Y, "y_pred": 1 - GUESS, "prob": P}) == "ambiguous_reading"
    assert refused({"y_true": Y, "y_pred": np.zeros(N, int), "prob": TOP}) == "ambiguous_reading"
    assert refused({"y_true": Y, "y_pred": (TOP > 0.8).astype(int), "prob": TOP}) == "ambiguous_reading"
    assert refused({"y_true": Y, "y_pred": GUESS, "confidence": P}) == "ambiguous_reading"
    assert is_binary(read({"y_true": Y, "y_pred": noise, "prob": P}, probs="prob"), P, Y)
    assert is_answers(read({"y_true": Y, "y_pred": noise, "prob": P}, confidence="prob"), P, noise == Y)
    assert is_answers(read({"y_true": Y, "y_pred": GUESS, "confidence": P}, confidence="confidence"), P, Y == GUESS)


def test_class_columns_take_precedence_over_predictions():
    p = read({"label": Y3, "y_pred": GUESS3, **CLASSES})
    assert is_classes(p)
    assert "'y_pred'" in p.notes[0]


def test_fractions_named_predictions_are_probabilities():
    assert is_binary(read({"y_true": Y, "y_pred": P}), P, Y)


def test_label_is_never_taken_for_correctness():
    for label in ("label", "y_true", "target", "class", "outcome"):
        assert refused({label: Y, "confidence": P}) == "no_correct"
    assert is_answers(read({"label": Y, "confidence": P}, correct="label"), P, Y)
    assert refused({"confidence": P, "y_true": Y3}) == "no_correct"


def test_labels_and_predictions_of_different_classes_are_refused():
    assert refused({"y_true": Y3, "y_pred": WORDS[GUESS3], "confidence": ROWS.max(1)}) == "predicted_labels"
    assert refused({"y_true": Y3, "y_pred": GUESS3 + 1, "confidence": ROWS.max(1)}) == "predicted_labels"
    truth = {"y_true": Y, "y_pred": GUESS.astype(bool), "confidence": TOP}
    assert is_answers(read(truth), TOP, Y == GUESS)


def test_probability_beside_correct_is_a_confidence():
    assert is_answers(read({"prob": P, "correct": Y}), P, Y)
    assert is_answers(
        read({"label": WORDS[Y3], "prob": ROWS.max(1), "correct": Y3 == GUESS3}), ROWS.max(1), Y3 == GUESS3
    )
    assert is_binary(read({"label": Y, "prob": P, "correct": Y == GUESS}), P, Y)
    assert refused({"label": Y, "prob": P, "correct": 1 - GUESS}) == "ambiguous_reading"


def test_probability_beside_a_confidence():
    assert is_binary(read({"label": Y, "prob": P, "confidence": TOP}), P, Y)
    assert refused({"label": Y, "prob": P, "confidence": P[::-1]}) == "ambiguous_reading"
    assert is_answers(read({"confidence": P, "correct": Y, "prob": P[::-1]}), P, Y)


@pytest.mark.parametrize(
    ("dtype", "missing"),
    [
        (polars.List(polars.Float64), None),
        (polars.List(polars.Float32), float("nan")),
        (polars.Array(polars.Float64, 2), float("nan")),
        (polars.List(polars.Int8), None),
    ],
)
def test_lists_with_a_missing_score_are_incomplete_rows(dtype, missing):
    scores = polars.Series([[1, 0], [missing, 1], [0, 1], None, [1, 0]], dtype=dtype)
    table = polars.DataFrame({"label": [0, 1, 1, 1, 0], "probs": scores})
    assert code_of(Predictions.from_table, table) == "missing_values"
    assert Predictions.from_table(table, drop=True).labels.tolist() == [0, 1, 0]


def test_lists_are_no_ids():
    table = {"id": [[0], [1]], "label": [1, 0], "score": [0.75, 0.25]}
    assert read_with_id(table) is None
    assert code_of(read_with_id, table, id="id") == "label_kind"


def test_empty_name_of_scores_is_no_column():
    assert code_of(Predictions.from_table, {"label": [1, 0], "score": [0.75, 0.25]}, probs="") == "no_column"


@pytest.mark.parametrize("columns", [{"logit_0": [0, 2], "logit_1": [3, -1]}, {"logits": [[0, 3], [2, -1]]}])
def test_logits_may_be_integers_in_tables(columns):
    p = Predictions.from_table({"label": [1, 0], **columns})
    assert p.logits.tolist() == [[0.0, 3.0], [2.0, -1.0]]


def test_score_above_one_half_is_not_the_probability_of_a_rare_class():
    rare = (np.arange(N) % 3 == 0).astype(int)
    assert refused({"label": rare, "prob": TOP}) == "ambiguous_reading"
    assert is_binary(read({"label": rare, "prob": TOP}, probs="prob"), TOP, rare)


# Which columns


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"label": Y, "target": Y[::-1], "score": P}, "ambiguous_columns"),
        ({"label": Y, "target": 1 - Y, "score": P}, "ambiguous_columns"),
        ({"label": Y, "Label": np.where(Y, "false", "true"), "score": P}, "ambiguous_columns"),
        ({"label": Y, "pred": Y, "prediction": 1 - Y, "confidence": P}, "ambiguous_columns"),
        ({"label": Y, "prob": P, "proba": P[::-1]}, "ambiguous_columns"),
        ({"label": Y, "score": P, "weight": np.ones(N), "sample_weight": np.ones(N) + 0.1}, "ambiguous_columns"),
        ({"label": Y}, "no_scores"),
        ({"score": P}, "no_labels"),
        ({**CLASSES}, "no_labels"),
        ({"correct": Y}, "no_scores"),
        ({"y_true": Y, "y_pred": GUESS}, "no_scores"),
        ({"label": Y3, "prob": P}, "many_classes"),
        ({"label": Y, "age": P, "height": P}, "no_scores"),
    ],
)
def test_ambiguous_and_missing_columns_are_refused(columns, code):
    assert refused(columns) == code


@pytest.mark.parametrize(
    "columns",
    [
        {"Label": Y3, **{f"Prob {i}": ROWS[:, i] for i in range(3)}},
        {" label ": Y3, **{f"prob{i}": ROWS[:, i] for i in range(3)}},
        {"\ufefflabel": Y3, **{f"P({i})": ROWS[:, i] for i in range(3)}},
        {"Unnamed: 0": range(N), "class": Y3, **{str(i): ROWS[:, i] for i in range(3)}},
        {"": range(N), "y": Y3, **{f"y_proba_{i}": ROWS[:, i] for i in range(3)}},
        {"label": Y3.astype(float), **{f"prob_{i}.0": ROWS[:, i] for i in (2, 0, 1)}},
        {"label": Y3.astype(str), **CLASSES},
        {"label": Y3, **{f"prob_class_{i}": ROWS[:, i] for i in range(3)}},
        {"label": Y3, **{f"class_{i}_prob": ROWS[:, i] for i in range(3)}},
        {"label": Y3, "target": WORDS[Y3], **CLASSES},
        {"label": Y3, **CLASSES, "prob_max": ROWS.max(1), "confidence": ROWS.max(1), "correct": Y3 == GUESS3},
        {"label": Y3, **CLASSES, "p_value": P, "z_score": P, "x": P},
        {"label": Y3, "score_0": ROWS[:, 0], "score_1": ROWS[:, 1], "score_2": ROWS[:, 2]},
        {"label": WORDS[Y3], **{name: ROWS[:, i] for i, name in enumerate(WORDS)}, "age": P},
        {"label": WORDS[Y3], **{f"{name}_prob": ROWS[:, i] for i, name in enumerate(WORDS)}},
        {"label": np.char.upper(WORDS)[Y3], **NAMED},
    ],
    ids=lambda columns: "-".join(columns),
)
def test_common_class_columns_are_read(columns):
    assert is_classes(read(columns))


@pytest.mark.parametrize(
    "columns",
    [
        {"label": Y.astype(bool), "score": P},
        {"label": Y.astype(float), "Risk Score": P},
        {"label": np.array(["n", "y"])[Y], "prob": P},
        {"label": np.array(["False", "True"])[Y], "prob": P},
        {"label": np.array(["neg", "pos"])[Y], "p": P},
        {"label": Y.astype(str), "prob": P},
        {"label": 2 * Y - 1, "prob": P},
        {"outcome": Y, "prob_positive": P},
        {"label": Y, "prob_negative": 1 - P},
        {"label": Y, "prob_no": 1 - P},
        {"truth": Y, "p1": P},
        {"label": 2 * Y - 1, "prob_0": 1 - P, "prob_1": P},
        {"label": 2 * Y - 1, "margin": np.log(P / (1 - P))},
        {"label": Y, "prob": P, "score": P},
    ],
    ids=lambda columns: "-".join(columns),
)
def test_common_binary_tables_are_read(columns):
    p = read(columns)
    positive = softmax(p.logits, 1)[:, 1]
    if positive == pytest.approx(1 - P, abs=1e-6):
        assert p.labels.tolist() == list(1 - Y)
    else:
        assert positive == pytest.approx(P, abs=1e-6)
        assert p.labels.tolist() == list(Y)


# Labels


def test_order_of_word_labels_is_noted():
    p = read({"label": PAIR[Y], "prob_0": 1 - P, "prob_1": P})
    assert p.labels.tolist() == list(Y)
    assert any("benign" in note and "malignant" in note for note in p.notes)


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"label": Y3 + 1, **NAMED}, "labels_from"),
        ({"label": Y3 + 1, **CLASSES}, "labels_from"),
        ({"label": 10 * Y3, **NAMED}, "unknown_label"),
        ({"label": Y3, "prob_1": ROWS[:, 0], "prob_2": ROWS[:, 1], "prob_3": ROWS[:, 2]}, "unknown_label"),
        ({"label": Y + 1, "score": P}, "positive_class"),
        ({"label": PAIR[Y], "score": P}, "ambiguous_positive"),
        ({"label": np.array(["1", "2"])[Y], "score": P}, "positive_class"),
        ({"label": np.full(N, np.datetime64("2024-01-01T00:00", "ms")), **CLASSES}, "label_kind"),
        ({"label": polars.Series([0] * N).cast(polars.Date), "score": P}, "label_kind"),
    ],
)
def test_ambiguous_labels_are_refused(columns, code):
    assert refused(columns) == code


def test_labels_from_counts_labels_from_one():
    for columns in (CLASSES, NAMED):
        assert is_classes(read({"label": Y3 + 1, **columns}, labels_from=1))
    assert is_binary(read({"label": Y + 1, "score": P}, labels_from=1), P, Y)
    assert refused({"label": Y3, **CLASSES}, labels_from=1) == "labels_from"


def test_positive_names_the_class_of_a_single_score():
    for labels, positive in ((PAIR[Y], "malignant"), (Y + 1, "2"), (2 * Y - 1, "1"), (np.array([7, 3])[Y], 3)):
        assert is_binary(read({"label": labels, "score": P}, positive=positive), P, Y)
    assert is_binary(read({"label": Y, "score": 1 - P}, positive="0"), 1 - P, 1 - Y)
    assert is_binary(read({"label": 0 * Y, "score": P}, positive="cat"), P, 0 * Y)  # 0 is not the cat
    assert refused({"label": PAIR[Y], "score": P}, positive="cat") == "positive_class"
    assert refused({"label": Y3, **CLASSES}, positive="1") == "positive_class"


@pytest.mark.parametrize("ignored", [-1, -100, 255])
def test_ignored_rows_are_dropped_for_all_class_names(ignored):
    labels = np.where(np.arange(N) % 5 == 0, ignored, Y)
    is_used = labels != ignored
    for columns in ({"score": P}, {"prob_no": 1 - P, "prob_yes": P}, {"prob_0.0": 1 - P, "prob_1.0": P}):
        p = read({"label": labels, **columns}, ignore_index=ignored)
        assert p.labels.tolist() == Y[is_used].tolist()
        assert f"{(~is_used).sum()} rows" in p.notes[0]


@pytest.mark.parametrize(
    "words",
    [
        ("No", "Yes"),
        ("n", "Y"),
        ("FALSE", "true"),
        ("f", "T"),
        ("wrong", "Right"),
        ("0.0", "1.0"),
        ("incorrect", "Correct"),
    ],
)
def test_words_for_correctness(words):
    assert is_answers(read({"confidence": P, "correct": np.array(words)[Y]}), P, Y)


# Percentages, rounding, missing values


def test_cells_with_a_percent_sign_are_percentages():
    for form in ("{:.1f}%", "{:.1f} %"):
        cells = [form.format(100 * p) for p in P]
        assert is_binary(read({"label": Y, "score": cells}), P, Y)
        assert is_binary(read({"label": Y, "score": [cell.replace(".", ",") for cell in cells]}, percent=True), P, Y)
    assert refused({"label": Y, "score": [*cells[:-1], "0.5"]}) == "percent_mixed"


@pytest.mark.parametrize("drop", [False, True])
def test_numbers_from_0_to_100_require_percent(drop):
    for columns in (
        {"confidence": 100 * P, "correct": Y},
        {"label": Y, "score": 100 * P},
        {"label": Y3, **{name: 100 * part for name, part in CLASSES.items()}},
    ):
        assert refused(columns, drop=drop) == "percent"
        assert np.exp(read(columns, drop=drop, percent=True).logits).max() <= 1


def test_rows_rounded_to_two_decimals_are_normalized_on_request():
    rounded = {name: part.round(2) for name, part in CLASSES.items()}
    rounded["prob_0"] = rounded["prob_0"] + 0.01
    assert refused({"label": Y3, **rounded}) == "rounded_sums"
    p = read({"label": Y3, **rounded}, normalize=True)
    assert np.exp(p.logits).sum(1) == pytest.approx(np.ones(N))
    assert (
        refused({"label": Y3, **{name: 0.8 * part for name, part in CLASSES.items()}}, normalize=True)
        == "normalize_range"
    )


def test_errors_on_probabilities_have_the_code_of_the_likely_cause():
    assert refused({"label": np.minimum(Y3, 1), "prob_0": ROWS[:, 0], "prob_1": ROWS[:, 1]}) == "class_missing"
    assert refused({"label": Y3, **{name: 9 * part - 4 for name, part in CLASSES.items()}}) == "not_probabilities"
    for probs, labels in ((100 * ROWS, Y3), (100 * P, Y)):
        assert code_of(Predictions.from_probs, probs, labels) == "percent"


def test_dropping_most_rows_is_refused():
    half = [None if i % 5 else float(p) for i, p in enumerate(P)]
    assert refused({"confidence": half, "correct": Y}, drop=True) == "drop_most"


def test_repeated_ids_are_noted():
    (note,) = read({"id": np.arange(N) // 2, "label": Y, "score": P}).notes
    assert "cluster='id'" in note
    (note,) = read({"patient_id": np.arange(N) // 2, "label": Y, "score": P}).notes
    assert "cluster='patient_id'" in note
    assert "cluster=" not in read({"id": np.arange(N), "label": Y, "score": P}).notes[0]


def test_options_apply_to_array_files(tmp_path):
    np.savez(tmp_path / "a.npz", probs=100 * P, labels=Y + 1)
    assert is_binary(Predictions.load(tmp_path / "a.npz", percent=True, labels_from=1), P, Y)
    assert is_binary(Predictions.load(tmp_path / "a.npz", percent=True, positive="2"), P, Y)


def test_confidences_have_no_positive_class(tmp_path):
    np.savez(tmp_path / "a.npz", confidence=P, correct=Y, labels=Y)
    assert code_of(Predictions.load, tmp_path / "a.npz", positive="1") == "positive_class"


def test_classes_named_by_long_or_foreign_digits_are_names():
    for a, b in (("²", "a"), ("٣", "b"), ("9" * 5000, "c")):
        p = read({"label": np.array([a, b])[Y], f"prob_{a}": 1 - P, f"prob_{b}": P})
        assert p.labels.tolist() == list(Y)
        assert p.class_names == (a, b)


# Tables of other tools


@pytest.mark.parametrize(
    "columns",
    [
        {"truth": WORDS[Y3], ".pred_class": WORDS[GUESS3], **{f".pred_{w}": ROWS[:, i] for i, w in enumerate(WORDS)}},
        {"obs": WORDS[Y3], "pred": WORDS[GUESS3], **{w: ROWS[:, i] for i, w in enumerate(WORDS)}},
        {"class": WORDS[Y3], "p": WORDS[GUESS3], **{f"P (class={w})": ROWS[:, i] for i, w in enumerate(WORDS)}},
        {"Label": WORDS[Y3], **{f'Scored Probabilities for Class "{w}"': ROWS[:, i] for i, w in enumerate(WORDS)}},
        {
            "label": WORDS[Y3],
            "predicted_label": WORDS[GUESS3],
            **{f"{w}_score": ROWS[:, i] for i, w in enumerate(WORDS)},
        },
        {"TARGET": Y3, **{f"P_TARGET{i}": ROWS[:, i] for i in (2, 0, 1)}},
        {"label": Y3, "probs": [str(row) for row in ROWS.tolist()]},
        {"label": Y3, **CLASSES, **{f"logit_{i}": np.log(ROWS[:, i]) + 1 for i in range(3)}},
        {**CLASSES, **{f"label_{i}": (i == Y3).astype(int) for i in range(3)}},
        {"iris": WORDS[Y3], **NAMED},
    ],
    ids=lambda columns: "-".join(columns),
)
def test_tables_of_other_libraries_are_read(columns):
    p = read(columns)
    order = [2, 0, 1] if p.class_names == ("TARGET2", "TARGET0", "TARGET1") else [0, 1, 2]
    assert softmax(p.logits, 1) == pytest.approx(ROWS[:, order], abs=1e-6)
    assert [order[label] for label in p.labels.tolist()] == list(Y3)


@pytest.mark.parametrize(
    "columns",
    [
        {"died": Y, "risk": P},
        {"label": PAIR[Y], "malignant": P},
        {"label": PAIR[Y], "malignant_prob": P},
        {"label": Y, "fraud_probability": P},
        {"Label": Y, "Scored Labels": GUESS, "Scored Probabilities": P},
        {"label": Y, "prob_mean": P, "prob_std": P / 10},
    ],
    ids=lambda columns: "-".join(columns),
)
def test_single_scores_of_other_libraries_are_read(columns):
    assert is_binary(read(columns), P, Y)


def test_answers_of_other_libraries_are_read():
    right = Y3 == GUESS3
    assert is_answers(read({"gold": WORDS[Y3], "answer": WORDS[GUESS3], "confidence": ROWS.max(1)}), ROWS.max(1), right)
    assert is_answers(read({"answer": WORDS[Y3], "prediction": WORDS[GUESS3], "conf": ROWS.max(1)}), ROWS.max(1), right)
    assert is_answers(read({"confidence": P, "score": Y}), P, Y)
    assert is_answers(read({"confidence": P, "grade": np.array(["incorrect", "correct"])[Y]}), P, Y)
    assert refused({"confidence_pct": 100 * P, "correct": Y}) == "percent"


def test_columns_of_classes_that_do_not_sum_to_one_are_refused():
    assert refused({"label": Y3, "0": ROWS[:, 0] * 5, "1": ROWS[:, 1], "2": ROWS[:, 2]}) == "ambiguous_columns"
    assert is_classes(read({"label": Y3, **{str(i): np.log(ROWS[:, i]) for i in range(3)}}, logits=["0", "1", "2"]))


def test_multilabel_columns_may_have_the_names_of_classes():
    tags = {word: RNG.integers(0, 2, N) for word in WORDS}
    p = read({**NAMED, **tags})
    assert p.group_names == tuple(WORDS)
    assert len(p) == 3 * N


def test_too_few_rows_are_ambiguous():
    few_rows = {"y_true": [0, 3, 0], "y_pred": [0, 3, 0], "prob": [0.37, 0.72, 0.41]}  # of five classes
    assert refused(few_rows) == "ambiguous_reading"
    assert refused({"y_true": [1, 1], "y_pred": [0, 0], "prob": [0.4, 0.3]}) == "ambiguous_reading"
    low = {"y_true": [1, 1], "y_pred": [0, 0], "prob": [0.97, 0.75], "correct": [0, 0]}
    assert refused(low) == "ambiguous_reading"


def test_values_of_any_type_are_read_or_refused():
    generator = np.random.default_rng(3)
    cells: list[Any] = [0, 1, 0.5, 85.0, "cat", "yes", "85%", "[0.1, 0.9]", None, float("nan"), float("inf"), True]
    cells += [[0.1], {"a": 1}]
    names = [
        "label",
        "y",
        "class",
        "y_pred",
        "prob",
        "score",
        "prob_0",
        "prob_1",
        "prob_²",
        "correct",
        "conf",
        "id",
        "cat",
        "[a",
    ]
    codes: set[str] = set()
    for _ in range(300):
        drawn_columns = generator.choice(len(names), generator.integers(1, 6), replace=False)
        columns = {names[i]: [cells[generator.integers(len(cells))]] * 3 for i in drawn_columns}
        try:
            read(columns, drop=bool(generator.integers(2)), percent=bool(generator.integers(2)))
        except InputError as error:
            codes.add(error.code)
    assert len(codes) > 5


def test_classes_are_sought_among_distinct_labels(monkeypatch):
    lengths, class_keys = list[int](), role_search.class_keys
    monkeypatch.setattr(role_search, "class_keys", lambda column: lengths.append(len(column)) or class_keys(column))
    assert len(read({"p": P, "y": Y})) == N
    assert lengths
    assert max(lengths) <= 2
