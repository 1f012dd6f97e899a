"""Columns with ambiguous names or values: read as a person would, or refused with a code."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from refusals import code_of, refused
from scipy.special import softmax

from calibrant import Predictions

N = 40
RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), N)
Y = RNG.permutation(np.arange(N) % 3)
WORDS = np.array(["ant", "bee", "cat"])
BINARY = RNG.permutation(np.arange(N) % 2)
CONFIDENCE = RNG.uniform(0.4, 1, N)


def by_class(prefix: str) -> dict[str, np.ndarray]:
    return {f"{prefix}{j}": P[:, j] for j in range(3)}


def refusal(table: Mapping[str, object], **options: object) -> str:
    return code_of(Predictions.from_table, table, **options)


@pytest.mark.parametrize("prefix", [" prob_", "PROB_", " Prob_"])
def test_column_names_ignore_blanks_and_case(prefix: str) -> None:
    p = Predictions.from_table({" Label": Y, **by_class(prefix)})
    np.testing.assert_allclose(softmax(p.logits, 1), P)
    assert p.labels.tolist() == Y.tolist()


def test_explicit_names_ignore_blanks_and_case() -> None:
    table = {" Species": Y, " Out_0": P[:, 0], " Out_1": P[:, 1], " Out_2": P[:, 2]}
    p = Predictions.from_table(table, label="species", probs="out_")
    np.testing.assert_allclose(softmax(p.logits, 1), P)


@pytest.mark.parametrize("prefixes", [("PROB_", "LABEL_"), (" prob_", " label_"), ("Prob_", "Label_")])
def test_multilabel_columns_ignore_case(prefixes: tuple[str, str]) -> None:
    scores, labels = RNG.random((2, N)), RNG.integers(0, 2, (2, N))
    columns = [(prefix, values) for prefix, values in zip(prefixes, (scores, labels), strict=True)]
    table = {f"{prefix}{name}": values[j] for prefix, values in columns for j, name in enumerate(("fever", "rash"))}
    p = Predictions.from_table(table)
    assert len(p) == 2 * N
    assert p.group_names == ("fever", "rash")


@pytest.mark.parametrize("word", ["-", "NA", "?", "None"])
@pytest.mark.parametrize("role", ["label", "predicted"])
def test_missing_word_beside_predictions_is_refused_instead_of_counted_as_wrong(word: str, role: str) -> None:
    columns = {"label": WORDS[Y].astype("U4"), "predicted": WORDS[Y].astype("U4")}
    columns[role][:3] = word
    assert refusal({**columns, "confidence": CONFIDENCE}) == "missing_word"


def test_missing_word_that_is_also_predicted_is_a_class() -> None:
    words = np.array(["None", "scratch", "dent"])
    table = {"label": words[Y], "predicted": words[np.roll(Y, 1)], "confidence": CONFIDENCE}
    p = Predictions.from_table(table)
    assert p.labels.tolist() == (np.roll(Y, 1) == Y).astype(int).tolist()


@pytest.mark.parametrize("second_name", ["class", "actual", "outcome"])
def test_two_columns_of_the_same_classes_are_ambiguous(second_name: str) -> None:
    assert refusal({"label": Y, second_name: np.roll(Y, 1), **by_class("prob_")}) == "ambiguous_columns"
    p = Predictions.from_table({"label": Y, second_name: np.roll(Y, 1), **by_class("prob_")}, label=second_name)
    assert p.labels.tolist() == np.roll(Y, 1).tolist()


def test_feature_with_other_values_is_not_a_second_label() -> None:
    p = Predictions.from_table({"label": Y, "class": Y + 1, **by_class("prob_")})
    assert p.labels.tolist() == Y.tolist()


@pytest.mark.parametrize("text", ["2024-01-1{}", "2024-01-1{} 12:00:00", "1{}/02/2024", "1{}.02.2024"])
def test_dates_as_words_beside_numbered_columns_are_refused(text: str) -> None:
    assert refusal({"label": [text.format(j) for j in Y], **by_class("prob_")}) == "label_kind"
    assert refusal({"label": [text.format(j) for j in BINARY], "prob": CONFIDENCE}) == "label_kind"


def test_single_score_outside_the_unit_interval_is_refused_and_read_as_logit_when_given() -> None:
    z = RNG.normal(size=N)
    assert refusal({"label": BINARY, "score": z}) == "probability_range"
    p = Predictions.from_table({"label": BINARY, "score": z}, logits="score")
    np.testing.assert_allclose(p.logits[:, 1], z, rtol=1e-6)


@pytest.mark.parametrize("names", [("min", "max", "gap"), ("pred", "margin", "value"), ("fever", "max", "rash")])
def test_classes_named_like_statistics_are_confirmed_by_values(names: tuple[str, ...]) -> None:
    several = {f"prob_{name}": P[:, j] for j, name in enumerate(names)}
    labels = {f"label_{name}": RNG.integers(0, 2, N) for name in names}
    assert Predictions.from_table({**several, **labels}).group_names == names


@pytest.mark.parametrize("last", ["max", "value", "gap"])
def test_absent_class_named_like_a_statistic_is_kept(last: str) -> None:
    names = ("fever", "rash", last)
    table = {"label": [names[j] for j in BINARY], **{f"prob_{name}": P[:, j] for j, name in enumerate(names)}}
    assert Predictions.from_table(table).class_names == names


def test_statistics_beside_class_columns_are_not_classes() -> None:
    p = Predictions.from_table({"label": Y, **by_class("prob_"), "prob_max": P.max(1), "prob_min": P.min(1)})
    assert p.k == 3
    table = {"label": BINARY, "prob": CONFIDENCE, "prob_max": CONFIDENCE, "prob_min": 1 - CONFIDENCE}
    assert refusal(table) in ("ambiguous_reading", "ambiguous_columns")


@pytest.mark.parametrize("word", ["?", "NULL", "nan", "N/A"])
def test_missing_word_error_names_the_options(word: str, tmp_path: Path) -> None:
    answers = ["yes" if hit else "no" for hit in BINARY]
    labels = ["True" if hit else "False" for hit in BINARY]
    for name, values, score, code in (
        ("correct", answers, "confidence", "not_numbers"),
        ("label", labels, "prob", "many_classes"),
    ):
        cells = [word, *values[1:]]
        path = tmp_path / f"{name}.csv"
        lines = [f"{cell},{c:.3f}" for cell, c in zip(cells, CONFIDENCE, strict=True)]
        path.write_text("\n".join([f"{name},{score}", *lines]))
        with refused(code) as caught:
            Predictions.load(path)
        assert "--na" in str(caught.value)
        assert len(Predictions.load(path, na=[word], drop=True)) == N - 1
    table = {"label": [word, *WORDS[Y][1:]], **{f"prob_{name}": P[:, j] for j, name in enumerate(WORDS)}}
    assert refusal(table) == "missing_word"


IGNORED = np.arange(N) < 10


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        ({"prob_no": 1 - P[:, 0], "prob_yes": P[:, 0]}, BINARY),
        ({"prob_yes": P[:, 0], "prob_no": 1 - P[:, 0]}, BINARY),
        ({"prob_2": P[:, 0]}, BINARY + 1),
        ({"prob": P[:, 0]}, 2 * BINARY - 1),
        ({"prob_c0": P[:, 0], "prob_c2": P[:, 2], "prob_c1": P[:, 1]}, Y),
        ({"prob_c1": P[:, 0], "prob_c2": P[:, 1], "prob_c3": P[:, 2]}, Y + 1),
        ({"prob_10": P[:, 0], "prob_30": P[:, 2], "prob_20": P[:, 1]}, 10 * Y + 10),
    ],
)
def test_ignored_rows_are_dropped_and_change_no_other_label(
    scores: Mapping[str, np.ndarray], labels: np.ndarray
) -> None:
    table = {**scores, "label": labels}
    used_rows = Predictions.from_table({name: column[~IGNORED] for name, column in table.items()})
    table["label"] = np.where(IGNORED, -100, labels)
    p = Predictions.from_table(table, ignore_index=-100)
    assert p.labels.tolist() == used_rows.labels.tolist()
    assert p.class_names == used_rows.class_names
    np.testing.assert_array_equal(p.logits, used_rows.logits)


@pytest.mark.parametrize(
    ("table", "options"),
    [
        ({"prob_2": P[:, 0], "label": np.where(IGNORED, 0, BINARY + 1)}, {}),
        ({"prob_1": P[:, 0], "prob_2": 1 - P[:, 0], "label": Y}, {}),
        ({**by_class("prob_"), "label": np.where(IGNORED, 0, Y + 1)}, {"labels_from": 1}),
    ],
)
def test_ignored_label_that_is_a_class_index_is_refused(
    table: Mapping[str, np.ndarray], options: Mapping[str, int]
) -> None:
    assert refusal(table, ignore_index=0, **options) == "ignore_index"


@pytest.mark.parametrize("roles", [{"label": 3}, {"label": ["label"]}, {"probs": [1, 2]}, {"probs": 1}])
def test_explicit_roles_must_be_column_names(roles: Mapping[str, object]) -> None:
    assert refusal({"label": Y, **by_class("prob_")}, **roles) == "option_value"
