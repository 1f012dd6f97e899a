"""Kinds of tables that a person understands, with or without an option."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torture.dialects import NumberText
from torture.sheets import (
    CONFIDENCE,
    CORRECT,
    LOGIT_PREFIXES,
    LOGITS,
    PAIRS,
    PREDICTED,
    PREFIXES,
    RIGHT_WRONG,
    SCORES,
    UNUSUAL_LOGIT_PREFIXES,
    UNUSUAL_PREFIXES,
    UNUSUAL_SCORES,
    WORDS,
    YES_NO,
    Sheet,
    Truth,
    binary_labels,
    draw_confidences,
    draw_naming,
    draw_prefix,
    draw_problem,
    draw_scores,
    naming_from_one,
    naming_positions,
    naming_words,
    pair,
    put_classes,
    put_label,
    rounded,
    softmax,
)


def class_columns(s: Sheet, *, decimals: int | None = None, scale: float = 1.0, sign: str = "") -> None:
    """Probabilities of every class."""
    k = s.r.choice([2, 3, 3, 4, 5, 7, 10, 12])
    z, y = draw_problem(s, k)
    if decimals is None and scale == 1:
        p = rounded(s, softmax(z))
    else:
        p = np.round(scale * softmax(z), 2 if decimals is None else decimals) / scale
    names, values = draw_naming(s, k)
    put_label(s, [values[j] for j in y])
    cells = np.round(p * scale, 6)
    put_classes(s, draw_prefix(s, "probs", PREFIXES, UNUSUAL_PREFIXES), names, cells if scale != 1 else p)
    if sign:
        for name in list(s.columns)[1:]:
            s.columns[name] = [NumberText(f"{x:g}{sign}") for x in s.columns[name]]
    s.truth = Truth(p / p.sum(1, keepdims=True), y)


def logit_columns(s: Sheet) -> None:
    """Logits of every class."""
    k = s.r.choice([2, 3, 4, 5, 10, 12])
    z, y = draw_problem(s, k)
    names, values = draw_naming(s, k)
    put_label(s, [values[j] for j in y])
    prefix = draw_prefix(s, "logits", LOGIT_PREFIXES, UNUSUAL_LOGIT_PREFIXES)
    z = np.log(softmax(z)) if prefix == "logprob_" else rounded(s, z)
    put_classes(s, prefix, names, z)
    s.truth = Truth(softmax(z), y)


def single_score(s: Sheet) -> None:
    """One probability, of the positive class."""
    p, y = draw_scores(s)
    binary_labels(s, y)
    s.put_role("probs", SCORES, UNUSUAL_SCORES, p)
    s.truth = Truth(pair(p), y, event=True)


def single_named_score(s: Sheet) -> None:
    """One probability, under the name of its class: prob_fraud, prob_1."""
    p, y = draw_scores(s)
    words = s.r.choice(PAIRS)
    values = words if s.r.random() < 0.5 else (0, 1)
    name = values[1] if s.r.random() < 0.7 else words[1]
    put_label(s, [values[j] for j in y])
    prefix = s.r.choice(PREFIXES)
    column = s.add_column(f"{prefix}{name}", p)
    if prefix == "p_":  # as p_value
        s.needed["probs"] = column
    s.truth = Truth(pair(p), y, event=True)


def single_score_of_the_first_class(s: Sheet) -> None:
    """One probability, under the name of the class that is not the positive one: prob_0, prob_benign."""
    p, y = draw_scores(s)
    values: Any = s.r.choice([(0, 1), (0.0, 1.0), *PAIRS])
    label = put_label(s, [values[j] for j in y])
    s.add_column(f"{s.r.choice(PREFIXES)}{values[0]:g}" if values[0] == 0 else f"prob_{values[0]}", p)
    s.needed.setdefault("label", label)
    s.truth, s.fair = Truth(pair(p), 1 - y, event=True), False


def styled_columns(s: Sheet) -> None:
    """Columns whose names spell the probability of a class in other ways."""
    k = s.r.choice([3, 4, 5])
    z, y = draw_problem(s, k)
    p = rounded(s, softmax(z))
    names, values = s.r.choice([naming_words, naming_positions, naming_from_one])(s, k)
    label = put_label(s, [values[j] for j in y])
    styles = (
        "{}_prob",
        "P({})",
        "prob({})",
        "Probability of {}",
        "prob[{}]",
        "{} probability",
        "prob_class_{}",
        "p {}",
    )
    style = s.r.choice((*styles, "class_{}_prob", "pred_proba_{}", "prob-{}", "Prob: {}", "P(y={})", "softmax{}"))
    for j in range(k):
        s.columns[style.format(names[j])] = p[:, j].tolist()
    s.ordered = True
    s.needed |= {"probs": [style.format(name) for name in names], "label": label}
    s.truth, s.fair = Truth(p / p.sum(1, keepdims=True), y), False


def score_and_logit(s: Sheet) -> None:
    """One probability and its logit."""
    z, y = draw_problem(s, 2)
    x = np.round(z[:, 1] - z[:, 0], 9)
    binary_labels(s, y)
    p = softmax(np.stack([0 * x, x], 1))
    names = {"probs": s.add_column(SCORES[:3], p[:, 1]), "logits": s.add_column(LOGITS, x)}
    role = s.r.choice(list(names))
    s.needed[role] = names[role]
    s.truth = Truth(p, y, event=True)


def graded_answers(s: Sheet) -> None:
    """True and predicted answers with a grade that is not their equality, and a confidence."""
    predicted_confidence(s)
    grade = s.g.integers(0, 2, s.n)
    assert s.truth is not None
    s.needed["correct"] = s.add_column(CORRECT, grade)
    s.truth, s.fair = replace(s.truth, labels=grade), False


def constant_label(s: Sheet) -> None:
    """Labels that are all the same."""
    p, _ = draw_scores(s)
    words: Any = s.r.choice([(0, 1), (False, True), *PAIRS])
    j = s.r.randrange(2)
    put_label(s, [words[j]] * s.n)
    if s.r.random() < 0.5:
        s.add_column(SCORES[:4], p)
        s.needed["positive"] = str(words[1])
        s.truth = Truth(pair(p), np.full(s.n, j), event=True)
    else:
        put_classes(s, "prob_", words, np.round(pair(p), 12))
        s.truth = Truth(pair(p), np.full(s.n, j))
    s.fair = False


def missing_targets(s: Sheet) -> None:
    """Several labels per example, some unknown: left out one by one, by rows, or refused."""
    multilabel(s)
    s.fair = False
    column = s.r.choice([name for name in s.columns if name.strip().lower().startswith("label_")])
    s.columns[column] = [None if s.r.random() < 0.05 else v for v in s.columns[column]]
    s.columns[column][0] = None
    gone = np.array([v is None for v in s.columns[column]])
    assert s.truth is not None
    assert s.truth.label_names is not None
    is_here = np.array([column.strip().endswith(f"_{name}") for name in s.truth.label_names])
    s.complete_rows = ~(np.repeat(gone, len(is_here) // s.n) & is_here)
    s.needed["drop"] = True


def bare_columns(s: Sheet) -> None:
    """Columns that carry the names of the classes and nothing else."""
    k = s.r.choice([3, 4, 10])
    z, y = draw_problem(s, k)
    p = rounded(s, softmax(z))
    names, values = s.r.choice([naming_words, naming_positions])(s, k)
    put_label(s, [values[j] for j in y])
    put_classes(s, "", names, p)
    s.case = str
    s.needed["probs"] = [name for name in s.columns if s.columns[name] is not next(iter(s.columns.values()))]
    s.truth = Truth(p / p.sum(1, keepdims=True), y)


def signs_beside_numbers(s: Sheet) -> None:
    """Labels -1 and 1, or false and true, or no and yes, beside columns 0 and 1."""
    p, y = draw_scores(s)
    p = np.round(p, 12)
    values: Any = s.r.choice([(-1, 1), (-1.0, 1.0), (False, True), *YES_NO])
    put_label(s, [values[j] for j in y])
    put_classes(s, s.r.choice(PREFIXES), (0, 1), np.round(pair(p), 12))
    s.needed["positive"] = str(values[1])
    s.truth, s.fair = Truth(pair(p), y), isinstance(values[0], bool)


def other_capitals(s: Sheet) -> None:
    """Predicted words in other capitals than the true ones, or padded: never simply wrong."""
    predicted_confidence(s)
    label, guess = list(s.columns)[:2]
    change = s.r.choice([str.upper, str.title, lambda word: f"{word} "])
    s.columns[label] = [f"class {v}" for v in s.columns[label]]
    s.columns[guess] = [change(f"class {v}") for v in s.columns[guess]]
    s.fair = False


def one_hot_labels(s: Sheet) -> None:
    """A column of 0 and 1 per class, of which one is 1, beside probabilities that sum to 1."""
    k = s.r.choice([3, 4, 5])
    z, y = draw_problem(s, k)
    p = softmax(z)
    put_classes(s, "label_", WORDS[0][:k], np.eye(k, dtype=int)[y])
    put_classes(s, "prob_", WORDS[0][:k], p)
    s.truth, s.fair = Truth(p, y), False
    s.conventions.append((several(p, np.eye(k, dtype=int)[y], WORDS[0][:k]), "labels from"))


def single_logit(s: Sheet) -> None:
    """One logit, of the positive class."""
    z, y = draw_problem(s, 2)
    x = rounded(s, z[:, 1] - z[:, 0])
    binary_labels(s, y)
    if s.r.random() < 0.15:
        s.needed["logits"] = s.add_column(("score", "y_score", "output", "f_x"), x)
    else:
        s.add_column(LOGITS, x)
    s.truth = Truth(softmax(np.stack([0 * x, x], 1)), y, event=True)


def two_columns(s: Sheet) -> None:
    """Two probabilities, of classes that are words, booleans, signs, or numbers."""
    z, y = draw_problem(s, 2)
    p = rounded(s, softmax(z))
    p[:, 0] = np.round(1 - p[:, 1], 12)
    names: Any = s.r.choice([(0, 1), (False, True), (-1, 1), *PAIRS, *YES_NO])
    put_label(s, [names[j] for j in y])
    put_classes(s, s.r.choice(PREFIXES), names, p)
    s.truth = Truth(p, y)


def words_beside_numbers(s: Sheet) -> None:
    """Words as labels beside numbered columns: in alphabetical order, which has to be reported."""
    k = s.r.choice([2, 2, 3, 4, 5])
    z, y = draw_problem(s, k)
    p = rounded(s, softmax(z))
    words = sorted(s.r.choice(PAIRS)) if k == 2 else sorted(s.r.sample(WORDS[s.r.choice([0, 1, 7])], k))
    put_label(s, [words[j] for j in y])
    put_classes(s, s.r.choice(PREFIXES), range(k), p)
    s.truth = Truth(p / p.sum(1, keepdims=True), y)
    s.noted = words[-1]


def numbers_beside_words(s: Sheet) -> None:
    """Positions as labels beside columns of words: reported, or refused where the order of the columns is none."""
    k = s.r.choice([3, 4, 5])
    z, y = draw_problem(s, k)
    p = rounded(s, softmax(z))
    words = s.r.sample(WORDS[0], k)
    s.ordered = True
    put_label(s, y if s.r.random() < 0.5 else y.astype(float))
    for j, word in enumerate(words):
        s.columns[f"prob_{word}"] = p[:, j].tolist()
    s.kind += " (sorted)" if words == sorted(words) else ""
    s.conventions.append((Truth(p / p.sum(1, keepdims=True), y), "position"))


def stated_confidence(s: Sheet, *, scale: float = 1.0, sign: str = "") -> None:
    """A confidence, and whether the answer was right."""
    c, hit = draw_confidences(s)
    c = np.round(c, s.r.choice([1, 2, 2, 3, 17]) if scale == 1 else 2)
    values = s.r.choice([(0, 1), (0, 1), (0.0, 1.0), (False, True), *RIGHT_WRONG])
    s.put_role("correct", CORRECT, ("was_right", "passed", "hit"), [values[j] for j in hit])
    cells: list[Any] = np.round(c * scale, 6).tolist() if scale != 1 else c.tolist()
    cells = [NumberText(f"{x:g}{sign}") for x in cells] if sign else cells
    s.put_role("confidence", CONFIDENCE, ("verbal", "stated", "sureness"), cells)
    s.truth = Truth(pair(c), hit, event=True)


def predicted_confidence(s: Sheet) -> None:
    """The true class, the predicted one, and how sure it is, of three classes or more or of free answers."""
    k = s.r.choice([3, 4, 5, 10, 12])
    y = s.g.integers(0, k, s.n)
    c = np.round(s.g.uniform(1 / k, 1, s.n), s.r.choice([2, 3, 17]))
    hit = s.g.random(s.n) < c
    hit[:2] = [False, True]
    guess = np.where(hit, y, (y + s.g.integers(1, k, s.n)) % k)
    words: list[Any] = s.r.choice([list(range(k)), list(range(1, k + 1)), s.r.sample(s.r.choice(WORDS), k)])
    put_label(s, [words[j] for j in y])
    number = float if isinstance(words[0], int) and s.r.random() < 0.2 else (lambda value: value)
    s.put_role("predicted", PREDICTED, ("model_answer", "top1", "guess"), [number(words[j]) for j in guess])
    names = (*CONFIDENCE, "prob", "probability", "score", "proba")
    s.put_role("confidence", names, ("max_prob", "top_prob", "pred_prob"), c)
    s.truth = Truth(pair(c), hit.astype(int), event=True)


def predicted_and_score(s: Sheet) -> None:
    """Binary y_true, y_pred, prob, where prob is the probability of class 1 and y_pred tells its threshold."""
    p, y = draw_scores(s)
    p[p == 0.5] = 0.51
    threshold = s.r.choice([0.5, 0.5, 0.5, 0.5, 0.3, 0.7, 0.95])
    guess = (p > threshold).astype(int)
    values = binary_labels(s, y)
    s.add_column(PREDICTED, [values[j] for j in guess])
    name = s.add_column((*SCORES[:5], *CONFIDENCE[:1]) if threshold == 0.5 else SCORES[:5], p)
    s.needed["probs"] = name
    s.truth = Truth(pair(p), y, event=True)


def predicted_and_sureness(s: Sheet) -> None:
    """Binary y_true, y_pred, prob, where prob is that of the predicted class, never below one half."""
    p, y = draw_scores(s)
    guess = (p > 0.5).astype(int)
    c = np.maximum(p, np.round(1 - p, 12))
    values = s.r.choice([(0, 1), (False, True), (-1, 1), *PAIRS, *YES_NO])
    put_label(s, [values[j] for j in y])
    s.add_column(PREDICTED, [values[j] for j in guess])
    s.needed["confidence"] = s.add_column((*SCORES[:5], *CONFIDENCE), c)
    s.truth = Truth(pair(c), (guess == y).astype(int), event=True)


def predicted_beside_columns(s: Sheet) -> None:
    """Class columns with the predicted label, its confidence and whether it is right beside them."""
    k = s.r.choice([2, 3, 5, 10])
    z, y = draw_problem(s, k)
    p = rounded(s, softmax(z))
    names, values = s.r.choice([naming_words, naming_positions, naming_from_one])(s, k)
    label = put_label(s, [values[j] for j in y])
    prefix = s.r.choice(PREFIXES[:4])
    put_classes(s, prefix, names, p)
    s.add_column(PREDICTED, [values[j] for j in p.argmax(1)])
    if s.r.random() < 0.5:
        s.add_column((*CONFIDENCE, "max_prob"), p.max(1))
    if s.r.random() < 0.3:
        s.add_column(CORRECT, (p.argmax(1) == y).astype(int))
    s.needed |= {"probs": s.case(prefix).strip(), "label": label}
    s.conventions.append((Truth(pair(p.max(1)), (p.argmax(1) == y).astype(int), event=True), "correct from"))
    s.truth = Truth(p / p.sum(1, keepdims=True), y)


def probabilities_and_logits(s: Sheet) -> None:
    """Logits and probabilities of the same classes."""
    k = s.r.choice([3, 4])
    z, y = draw_problem(s, k)
    z = np.round(z, 8)
    label = put_label(s, y)
    prob, logit = s.r.choice(PREFIXES), s.r.choice(LOGIT_PREFIXES)
    put_classes(s, prob, range(k), softmax(z))
    put_classes(s, logit, range(k), z)
    s.needed |= {s.r.choice(["probs", "logits"]): "", "label": label}
    s.needed |= {role: s.case(prob if role == "probs" else logit).strip() for role in s.needed if role != "label"}
    s.truth = Truth(softmax(z), y)


def several(p: np.ndarray, y: np.ndarray, names: Sequence[str]) -> Truth:
    """Return the truth of several labels per example, one row per label."""
    examples = np.repeat(np.arange(len(p)), len(names))
    extra: dict[str, Any] = {"clusters": examples, "examples": examples, "label_names": np.tile(names, len(p))}
    return Truth(pair(p.ravel()), y.ravel(), event=True, **extra)


def multilabel(s: Sheet) -> None:
    """Several labels per example."""
    names = s.r.sample(
        s.r.choice([("fever", "cough", "rash", "pain", "nausea"), WORDS[8], WORDS[1]]), s.r.randint(2, 5)
    )
    z = s.g.normal(size=(s.n, len(names))) * 2
    p = 1 / (1 + np.exp(-z))
    y = (s.g.random(p.shape) < p).astype(int)
    logits = s.r.random() < 0.3
    cells = rounded(s, z if logits else p)
    values = s.r.choice([(0, 1), (0, 1), (0.0, 1.0), (False, True)])
    for prefix, at in [("logit_" if logits else s.r.choice(PREFIXES[:4]), cells), ("label_", y)]:
        for j in s.r.sample(range(len(names)), len(names)):
            s.columns[f"{s.case(prefix)}{names[j]}"] = [values[t] for t in at[:, j]] if at is y else at[:, j].tolist()
    p = 1 / (1 + np.exp(-cells)) if logits else cells
    s.truth = several(p, y, names)


def lists(s: Sheet) -> None:
    """A column of lists."""
    k = s.r.choice([2, 3, 5, 10])
    z, y = draw_problem(s, k)
    put_label(s, y)
    logits = s.r.random() < 0.5
    s.columns["logits" if logits else "probs"] = (z if logits else softmax(z)).tolist()
    s.truth = Truth(softmax(z), y)


def percent_columns(s: Sheet) -> None:
    """Percentages per class, 0 .. 100."""
    class_columns(s, scale=100)
    s.needed |= {"percent": True, "normalize": True}


def percent_signs(s: Sheet) -> None:
    """Cells such as 85.3%."""
    sign = s.r.choice(["%", " %"])
    if s.r.random() < 0.5:
        class_columns(s, scale=100, sign=sign)
        s.needed["normalize"] = True
    else:
        stated_confidence(s, scale=100, sign=sign)


def percent_scores(s: Sheet) -> None:
    """One percentage, 0 .. 100: a confidence or a probability."""
    if s.r.random() < 0.5:
        stated_confidence(s, scale=100)
    else:
        p, y = draw_scores(s)
        p = np.round(p, 3)
        binary_labels(s, y)
        s.add_column(SCORES, np.round(p * 100, 6))
        s.truth = Truth(pair(p), y, event=True)
    s.needed["percent"] = True


def two_decimals(s: Sheet) -> None:
    """Probabilities of two decimals, which need not sum to 1."""
    class_columns(s, decimals=2)
    sums = np.sum([np.asarray(v) for v in list(s.columns.values())[1:]], axis=0)
    if abs(sums - 1).max() > 0.03:
        s.columns.clear()
        s.needed.clear()
        class_columns(s, decimals=3)
    s.needed["normalize"] = True


def repeated_ids(s: Sheet) -> None:
    """Rows that occur several times under one id, which has to be reported, or are named as clusters."""
    s.r.choice([class_columns, single_score, stated_confidence])(s)
    times = s.r.randint(2, 4)
    s.columns = {name: [v for v in values for _ in range(times)] for name, values in s.columns.items()}
    rows = np.repeat(np.arange(s.n), times)
    assert s.truth is not None
    s.truth = s.truth.take(rows)
    s.conventions = [(t.take(rows), word) for t, word in s.conventions]
    s.n *= times
    name = s.add_column(("id", "ids", "row_id", "uid"), [f"q{i:04d}" for i in rows] if s.r.random() < 0.5 else rows)
    if s.r.random() < 0.4:
        s.explicit_options["cluster"] = name
        s.truth = replace(s.truth, clusters=rows)
        s.conventions = [(replace(t, clusters=rows), word) for t, word in s.conventions]
    else:
        s.noted = "cluster"


def integer_weights(s: Sheet) -> None:
    """Weights that are numbers of copies, and sum to something else than the number of rows."""
    s.r.choice([class_columns, single_score, stated_confidence])(s)
    w = s.g.integers(1, 9, s.n)
    s.needed["weight"] = s.add_column(("weight", "weights", "sample_weight"), w)
    s.attach(weights=w.astype(float))


def missing_cells(s: Sheet) -> None:
    """Missing cells in the columns that matter."""
    s.r.choice([class_columns, single_score, stated_confidence, predicted_confidence])(s)
    role = s.r.choice(list(s.columns))
    gone = s.g.random(s.n) < 0.04
    gone[0] = True
    s.columns[role] = [None if lost else v for v, lost in zip(s.columns[role], gone, strict=True)]
    s.complete_rows = ~gone
    s.needed["drop"] = True


def class_called_none(s: Sheet) -> None:
    """A class whose name is a word for missing values: read in full, or refused."""
    k = s.r.choice([3, 4])
    z, y = draw_problem(s, k)
    p = rounded(s, softmax(z))
    words = [s.r.choice(["None", "NA", "null", "nan", "-"]), *s.r.sample(WORDS[0], k - 1)]
    put_label(s, [words[j] for j in y])
    put_classes(s, "prob_", words, p)
    s.truth, s.fair = Truth(p / p.sum(1, keepdims=True), y), False


def confusing_extras(s: Sheet) -> None:
    """Class columns beside columns whose names begin alike."""
    k = s.r.choice([3, 5])
    z, y = draw_problem(s, k)
    p = rounded(s, softmax(z))
    words = s.r.sample(WORDS[0], k)
    label = s.add_column("label", [words[j] for j in y])
    put_classes(s, "prob_", words, p)
    extras: dict[str, Any] = {
        "label_source": s.r.choices(["expert", "crowd"], k=s.n),
        "label_id": y,
        "class_weight": s.g.uniform(0.5, 2, s.n).round(2),
        "p_value": s.g.random(s.n).round(4),
        "target_date": [f"2024-0{1 + i % 9}-11" for i in range(s.n)],
        "entropy": s.g.random(s.n).round(4),
        "loss": s.g.random(s.n).round(4),
        "correct": (p.argmax(1) == y).astype(int),
        "score": p.max(1),
        "margin": s.g.random(s.n).round(4),
        "confidence": p.max(1),
        "group_size": s.g.integers(1, 9, s.n),
        "prediction_time": s.g.random(s.n).round(3),
        "weight_kg": s.g.uniform(50, 99, s.n).round(1),
    }
    for name in s.r.sample(list(extras), s.r.randint(1, 4)):
        s.add_column(name, extras[name])
    s.needed = {"probs": [f"{s.case('prob_')}{word}".strip() for word in words], "label": label}
    s.truth = Truth(p / p.sum(1, keepdims=True), y)


def scores_as_predictions(s: Sheet) -> None:
    """Columns y_true and y_pred, the second with probabilities, as Keras and competitions have them."""
    p, y = draw_scores(s)
    put_label(s, y)
    s.needed["probs"] = s.add_column(PREDICTED[:4], p)
    s.truth = Truth(pair(p), y, event=True)


def absent_class(s: Sheet) -> None:
    """A class that has columns and no example."""
    k = s.r.choice([4, 5, 10])
    z, y = draw_problem(s, k)
    p = rounded(s, softmax(z))
    y[y == (gone := s.r.choice([0, k - 1]))] = 1
    names, values = s.r.choice([naming_words, naming_positions, naming_from_one])(s, k)
    put_label(s, [values[j] for j in y])
    put_classes(s, s.r.choice(PREFIXES), names, p)
    if gone == 0 and names == list(range(k)):
        s.needed["labels_from"] = 0  # labels 1 .. k-1 may be numbered from 1: to ask is fair
    s.truth = Truth(p / p.sum(1, keepdims=True), y)
