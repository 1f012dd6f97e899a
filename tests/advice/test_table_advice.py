"""Following the advice of refused tables and logs works."""

import numpy as np
import polars as pl
import pytest
from advised import Case, follow, refused_command, succeed

from calibrant import Predictions

RNG = np.random.default_rng(0)
N = 120
Y = RNG.integers(0, 2, N)
Y3 = RNG.integers(0, 3, N)
PROBS = RNG.dirichlet([1, 1, 1], N)
PROBS = (PROBS + np.eye(3)[Y3]) / 2
ROWS = {f"prob_{j}": PROBS[:, j] for j in range(3)}
NAMED = {f"prob_{name}": PROBS[:, j] for j, name in enumerate(("cat", "dog", "owl"))}
LOGITS = np.log(PROBS) + RNG.normal(size=(N, 1))
SCORE = (RNG.random(N) + Y) / 2
WORDS = np.array(["benign", "malignant"])[Y]
DATES = np.full(N, np.datetime64("2024-01-01", "ms"))
TOP_CONFIDENCE = np.where(SCORE < 0.5, 1 - SCORE, SCORE)


def with_cells(values, replacement):
    """Replace a few values."""
    values = list(values)
    values[3] = values[7] = replacement
    return values


def read(columns, **options):
    return Predictions.from_table(pl.DataFrame(columns, strict=False), **options)


def case(code, columns, follow=None, /, **options):
    """Return a table that is refused, and how to follow: with the options of the advice, or with a change."""
    return Case(
        code,
        lambda: read(columns, **options),
        follow or (lambda advice: read(columns, **options | advice.keywords())),
    )


CASES = [
    case("missing_values", {"label": Y3, **ROWS, "prob_0": with_cells(PROBS[:, 0], None)}),
    case("labels_from", {"label": Y3 + 1, **ROWS}),
    case("labels_from", {"label": Y3 + 1, **NAMED}),
    case(
        "unknown_label",
        {"label": 10 * Y3, **NAMED},
        lambda t: read({"label": np.array(["cat", "dog", "owl"])[Y3], **NAMED}),
    ),
    case("labels_from", {"label": Y3, **ROWS}, lambda t: read({"label": Y3, **ROWS}), labels_from=1),
    case("labels_from", {"label": Y3 + 1, **{f"prob_c{j}": PROBS[:, i] for i, j in enumerate((1, 2, 5))}}),
    case("positive_class", {"label": Y + 1, "score": SCORE}),
    case(
        "ambiguous_positive",
        {"label": WORDS, "score": SCORE},
        lambda t: read({"label": WORDS, "score": SCORE}, positive=t.keywords(negative="", positive="")["positive"]),
    ),
    case(
        "ambiguous_positive",
        {"label": np.array(["nein", "ja"])[Y], "score": SCORE},
        lambda t: read(
            {"label": np.array(["nein", "ja"])[Y], "score": SCORE},
            positive=t.keywords(negative="", positive="")["positive"],
        ),
    ),
    case("positive_class", {"label": WORDS, "prob_malignant": SCORE}, positive="benign"),
    case("positive_class", {"label": Y3, **ROWS}, lambda t: read({"label": Y3, **ROWS}).with_event(1), positive="1"),
    case("label_kind", {"label": DATES, **ROWS}, lambda t: read({"label": DATES, "truth": Y3, **ROWS}, label="truth")),
    case(
        "many_classes",
        {"label": np.array(["a", "b", "c"])[Y3], "score": PROBS.max(1)},
        lambda t: read(
            {
                "label": np.array(["a", "b", "c"])[Y3],
                "score": PROBS.max(1),
                "guess": np.array(["a", "b", "c"])[PROBS.argmax(1)],
            },
            confidence="score",
            predicted="guess",
        ),
    ),
    case("percent", {"label": Y3, **{name: 100 * values for name, values in ROWS.items()}}, percent=False),
    case(
        "probability_range",
        {"label": Y, "p": 4 * SCORE - 2},
        lambda t: read({"label": Y, "p": 4 * SCORE - 2}, **t.keywords()),
        probs="p",
    ),
    case(
        "class_missing",
        {"label": Y3 % 2, "prob_0": PROBS[:, 0], "prob_1": PROBS[:, 1]},
        lambda t: read({"label": Y3 % 2, **ROWS}),
    ),
    case(
        "ambiguous_columns",
        {
            "label": np.array(["cat", "dog", "owl"])[Y3],
            **{name: LOGITS[:, j] for j, name in enumerate(("cat", "dog", "owl"))},
        },
        lambda t: read(
            {
                "label": np.array(["cat", "dog", "owl"])[Y3],
                **{name: LOGITS[:, j] for j, name in enumerate(("cat", "dog", "owl"))},
            },
            logits=t.options()[1].split(","),
        ),
    ),
    case(
        "no_scores",
        {"label": Y3, **{f"x{j}": PROBS[:, j] for j in range(3)}},
        lambda t: read({"label": Y3, **{f"x{j}": PROBS[:, j] for j in range(3)}}, probs=["x0", "x1", "x2"]),
    ),
    case(
        "ambiguous_reading",
        {"label": np.where(RNG.random(N) < 0.05, 1, 0), "probability": TOP_CONFIDENCE},
        lambda t: read(
            {"label": np.where(RNG.random(N) < 0.05, 1, 0), "probability": TOP_CONFIDENCE}, probs="probability"
        ),
    ),
    case(
        "ambiguous_reading",
        {"label": WORDS[:6], "predicted": WORDS[:6], "score": np.where(WORDS[:6] == "benign", 0.6, 0.4)},
        lambda t: [
            read({"label": WORDS[:6], "predicted": WORDS[:6], "score": 6 * [0.6]}, **options)
            for options in ({"confidence": "score"}, t.keywords() | {"confidence": None, "positive": "malignant"})
        ],
    ),
    case(
        "predicted_labels",
        {"label": WORDS, "predicted": Y, "confidence": TOP_CONFIDENCE},
        lambda t: read(
            {"predicted": Y, "right": Y, "confidence": TOP_CONFIDENCE}, correct="right", confidence="confidence"
        ),
    ),
    case("weights_sum", {"label": Y3, **ROWS, "weight": 2 + SCORE}),
    case(
        "weights_sum",
        {"label": Y3, **ROWS, "weight": np.full(N, 1 / N)},
        lambda t: read({"label": Y3, **ROWS, "weight": np.full(N, 1 / N) * N}),
    ),
    case(
        "percent_mixed",
        {"label": Y, "score": with_cells([f"{100 * p:.1f}%" for p in SCORE], "0.5")},
        lambda t: read({"label": Y, "score": [f"{100 * p:.1f}%" for p in SCORE]}),
    ),
    case(
        "no_correct",
        {"confidence": TOP_CONFIDENCE, "label": Y},
        lambda t: read({"confidence": TOP_CONFIDENCE, "label": Y}, correct="label"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_advice_on_tables_works(case):
    follow(case)


def write(path, content):
    path.write_text(content) if isinstance(content, str) else path.write_bytes(content)
    return path


TABLE = "label,prob_cat,prob_dog,note\n" + "cat,.7,.3,a\ndog,.4,.6,b\n" * 20
TEXTS = [
    ("quotes", "t.csv", TABLE.replace("a\n", '"a\n', 1), TABLE.replace("a\n", '"a"\n', 1)),
    ("ragged", "t.csv", TABLE.replace("a\n", "a,b\n", 1), TABLE.replace("a\n", '"a,b"\n', 1)),
    ("zero_bytes", "t.csv", TABLE.replace("a\n", "\0\n", 1), TABLE),
    (
        "too_deep",
        "t.jsonl",
        '{"label": 0, "prob_0": 0.6, "prob_1": 0.4, "x": ' + "[" * 200 + "]" * 200 + "}\n",
        '{"label": 0, "prob_0": 0.6, "prob_1": 0.4}\n',
    ),
    (
        "repeated_key",
        "t.jsonl",
        '{"label": 0, "prob_0": 0.6, "prob_1": 0.4, "label": 1}\n',
        '{"label": 0, "prob_0": 0.6, "prob_1": 0.4, "label_2": 1}\n',
    ),
    ("column_twice", "t.csv", TABLE.replace("note", "label"), TABLE),
]


@pytest.mark.parametrize(("code", "name", "wrong", "right"), TEXTS, ids=[row[0] for row in TEXTS])
def test_advice_on_text_works(tmp_path, code, name, wrong, right):
    follow(
        Case(
            code,
            lambda: Predictions.load(write(tmp_path / name, wrong)),
            lambda t: Predictions.load(write(tmp_path / name, right)),
        )
    )


def test_advice_on_files_works(tmp_path):
    p = Predictions(LOGITS, Y3)
    follow(
        Case(
            "encoding",
            lambda: Predictions.load(
                write(tmp_path / "t.csv", TABLE.replace("cat", "é").encode("cp1252")), encoding="utf-8"
            ),
            lambda t: Predictions.load(tmp_path / "t.csv", encoding=t.rstrip(".").split()[-1]),
        )
    )
    follow(
        Case(
            "event_in_table",
            lambda: p.with_event(1).save(tmp_path / "p.csv"),
            lambda t: (
                p.with_event(1).save(tmp_path / "p.npz"),
                t.evaluate("with_event", with_event=p.with_event(1).with_event).save(tmp_path / "p.csv"),
            ),
        )
    )
    follow(
        Case(
            "soft_labels",
            lambda: Predictions.from_soft_labels(LOGITS, PROBS).save(tmp_path / "s.csv"),
            lambda t: [
                Predictions.from_soft_labels(LOGITS, PROBS).save(tmp_path / f"s{suffix}")
                for suffix in (".npz", ".safetensors")
                if suffix in t
            ],
        )
    )
    np.save(tmp_path / "p.npy", LOGITS)
    (tmp_path / "folder").mkdir()
    follow(
        Case(
            "no_table",
            lambda: Predictions.load(tmp_path / "folder"),
            lambda t: (write(tmp_path / "folder" / "t.csv", TABLE), Predictions.load(tmp_path / "folder")),
        )
    )


def test_advice_on_files_of_tensors_works(torch, tmp_path):
    torch.save(tmp_path, tmp_path / "p.pt")
    names = {"torch": torch, "logits": torch.tensor(LOGITS), "labels": torch.tensor(Y3), "path": tmp_path / "p.pt"}
    follow(
        Case(
            "unreadable",
            lambda: Predictions.load(tmp_path / "p.pt"),
            lambda t: (t.evaluate("torch.save", **names), Predictions.load(tmp_path / "p.pt")),
        )
    )


def test_options_of_commands_in_advice_work(tmp_path):
    def measured(code, columns, *options, replaced=False):
        pl.DataFrame(columns, strict=False).write_csv(tmp_path / "t.csv")
        advice = refused_command(code, "measure", "t.csv", *options, folder=tmp_path)
        succeed("measure", "t.csv", *(() if replaced else options), *advice.options()[:2], folder=tmp_path)

    measured("missing_values", {"label": Y3, **ROWS, "prob_0": with_cells(PROBS[:, 0], None)})
    measured("labels_from", {"label": Y3 + 1, **ROWS})
    measured("ambiguous_positive", {"label": WORDS, "score": SCORE})
    measured("positive_class", {"label": WORDS, "prob_malignant": SCORE}, "--positive", "benign", replaced=True)
    measured("weights_sum", {"label": Y3, **ROWS, "weight": 2 + SCORE})
    measured("probability_range", {"label": Y, "p": 4 * SCORE - 2}, "--probs", "p", replaced=True)
