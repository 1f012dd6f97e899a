"""Traps: tables that nobody can understand as they are, each of which has to be refused."""

import numpy as np
from torture.kinds import class_columns, single_score
from torture.sheets import (
    CONFIDENCE,
    CORRECT,
    LABELS,
    LOGIT_PREFIXES,
    PREDICTED,
    PREFIXES,
    SCORES,
    WORDS,
    Sheet,
    Truth,
    draw_problem,
    draw_scores,
    pair,
    put_classes,
    put_label,
    rounded,
    softmax,
)


def trap_body_weight(s: Sheet) -> None:
    """A column `weight` of kilograms."""
    s.r.choice([class_columns, single_score])(s)
    s.add_column("weight", s.g.uniform(45, 120, s.n).round(1))
    s.truth = None


def trap_missing_column(s: Sheet) -> None:
    """One class has no column."""
    z, y = draw_problem(s, s.r.choice([4, 5, 6]))
    k = z.shape[1]
    p = rounded(s, softmax(z))
    y[y == k - 1] = 0
    names = s.r.choice([list(range(k)), list(WORDS[0][:k])])
    put_label(s, [names[j] for j in y])
    put_classes(s, s.r.choice(PREFIXES), names[:-1], p[:, :-1])


def trap_confidence_alone(s: Sheet) -> None:
    """Labels and confidences, and no word of what was predicted."""
    k = s.r.choice([3, 10])
    y = s.g.integers(0, k, s.n)
    y[:k] = range(k)
    put_label(s, [WORDS[0][j] for j in y] if s.r.random() < 0.5 else y)
    s.add_column((*CONFIDENCE, *SCORES), s.g.uniform(0.3, 1, s.n).round(3))


def trap_probabilities_as_logits(s: Sheet) -> None:
    """Probabilities under the name of logits."""
    if s.r.random() < 0.5:
        p, y = draw_scores(s)
        put_label(s, y)
        s.add_column(("logit", "logits"), p)
    else:
        z, y = draw_problem(s, k := s.r.choice([3, 10]))
        put_label(s, y)
        put_classes(s, s.r.choice(LOGIT_PREFIXES), range(k), softmax(z))


def trap_logits_as_probabilities(s: Sheet) -> None:
    """Logits under the name of probabilities."""
    z, y = draw_problem(s, k := s.r.choice([2, 3, 10]))
    put_label(s, y)
    if s.r.random() < 0.3:
        y = np.minimum(y, 1)
        s.add_column(SCORES[:3], z[:, 0])
    else:
        put_classes(s, s.r.choice(PREFIXES), range(k), z)


def trap_times_as_labels(s: Sheet) -> None:
    """Dates or times as the only label."""
    days = [f"2024-0{1 + i % 9}-1{i % 7}" for i in range(s.n)]
    put_label(s, [f"{day} 12:00:00" for day in days] if s.r.random() < 0.5 else days)
    if s.r.random() < 0.5:
        s.add_column(SCORES[:4], s.g.random(s.n))
    else:
        put_classes(s, "prob_", range(63), s.g.dirichlet(np.ones(63), s.n))


def trap_continuous_label(s: Sheet) -> None:
    """A target that is measured, not a class."""
    put_label(s, s.g.normal(3, 2, s.n).round(3))
    s.add_column(SCORES[:4], s.g.random(s.n))


def trap_nothing_to_measure(s: Sheet) -> None:
    """Predicted labels only, probabilities only, or labels only."""
    p, y = draw_scores(s)
    kind = s.r.randrange(3)
    if kind != 1:
        put_label(s, y)
    if kind == 0:
        s.add_column(PREDICTED, (p > 0.5).astype(int))
    if kind == 1:
        s.add_column(SCORES, p)


def trap_two_labels(s: Sheet) -> None:
    """Two columns that may be the label, and differ."""
    k = s.r.choice([3, 4])
    z, y = draw_problem(s, k)
    p = softmax(z)
    other_column = np.where(s.g.random(s.n) < 0.2, (y + 1) % k, y)
    name = s.add_column(LABELS[:9], y)
    second = s.add_column([label for label in LABELS if label != "labels"], other_column)
    put_classes(s, s.r.choice(PREFIXES), range(k), p)
    used_name = s.r.random() < 0.5
    s.needed["label"] = name if used_name else second
    s.truth = Truth(p, y if used_name else other_column)


def trap_two_scores(s: Sheet) -> None:
    """Two columns that may be the probability."""
    p, y = draw_scores(s)
    put_label(s, y)
    scores = {s.add_column(SCORES[:5], values): values for values in (p, s.g.random(s.n))}
    s.needed["probs"], used_name = s.r.choice(list(scores.items()))
    s.truth = Truth(pair(used_name), y, event=True)


def trap_unknown_label(s: Sheet) -> None:
    """A label that no column knows."""
    k = s.r.choice([3, 4])
    z, y = draw_problem(s, k + 1)
    words = s.r.sample(WORDS[0], k + 1)
    put_label(s, [words[j] for j in y])
    put_classes(s, s.r.choice(PREFIXES), words[:k], softmax(z[:, :k]))


def trap_not_complementary(s: Sheet) -> None:
    """Two probabilities that do not sum to 1."""
    put_label(s, s.g.integers(0, 2, s.n))
    put_classes(s, s.r.choice(PREFIXES), (0, 1), s.g.random((s.n, 2)))


def trap_credit_scores(s: Sheet) -> None:
    """A score of 300 .. 850."""
    put_label(s, s.g.integers(0, 2, s.n))
    s.add_column(("score", "y_score"), s.g.integers(300, 850, s.n))


def trap_correct_of_classes(s: Sheet) -> None:
    """A column `correct` with the right answer instead of whether it was given."""
    y = s.g.integers(0, 5, s.n)
    s.add_column(CORRECT, ["ABCDE"[j] for j in y] if s.r.random() < 0.5 else y)
    s.add_column(CONFIDENCE, s.g.random(s.n))


def trap_mixed_confidence(s: Sheet) -> None:
    """Binary y_true, y_pred, prob, where prob fits neither meaning."""
    y, guess = s.g.integers(0, 2, (2, s.n))
    put_label(s, y)
    s.add_column(PREDICTED, guess)
    s.add_column(("prob", "proba", "probability", "p"), s.g.uniform(0.02, 0.98, s.n))


def trap_fewer_words(s: Sheet) -> None:
    """Words as labels beside more numbered columns."""
    k = s.r.choice([4, 5])
    z, y = draw_problem(s, k)
    put_label(s, [WORDS[0][j % (k - 1)] for j in y])
    put_classes(s, s.r.choice(PREFIXES), range(k), softmax(z))


def trap_zero_based_labels(s: Sheet) -> None:
    """Columns from 1, labels from 0: read as positions with a word, or refused."""
    k = s.r.choice([3, 4, 10])
    z, y = draw_problem(s, k)
    put_label(s, y)
    put_classes(s, s.r.choice(PREFIXES), range(1, k + 1), softmax(z))
    s.conventions.append((Truth(softmax(z), y), "position"))


def trap_unquoted_commas(s: Sheet) -> None:
    """Decimal commas between separating commas, without quotes."""
    p, y = draw_scores(s)
    put_label(s, y)
    s.add_column(SCORES[:4], [f"{x:.3f}".replace(".", ",") for x in p])


def trap_label_confidence(s: Sheet) -> None:
    """A label of 0 and 1 beside a confidence: its two meanings give the same numbers, which have to be reported."""
    p, y = draw_scores(s)
    put_label(s, y)
    name = s.add_column(CONFIDENCE, p)
    s.conventions.append((Truth(pair(p), y, event=True), name))


def trap_words_for_numbers(s: Sheet) -> None:
    """Predicted labels in words, true ones in numbers: none agree."""
    k = s.r.choice([2, 3, 5])
    put_label(s, s.g.integers(0, k, s.n))
    s.add_column(PREDICTED, [WORDS[0][j] for j in s.g.integers(0, k, s.n)])
    s.add_column(CONFIDENCE, s.g.uniform(0.4, 1, s.n).round(2))


def trap_mixed_scales(s: Sheet) -> None:
    """Confidences of which some are percentages, or that go to 10."""
    c, hit = s.g.uniform(0.2, 1, s.n).round(2), s.g.integers(0, 2, s.n)
    s.add_column(CORRECT, hit)
    s.add_column(
        CONFIDENCE, np.where(s.g.random(s.n) < 0.3, c, np.round(c * 100)) if s.r.random() < 0.5 else np.round(10 * c)
    )


def trap_nothing_in_it(s: Sheet) -> None:
    """A header without rows."""
    put_label(s, [])
    put_classes(s, s.r.choice(PREFIXES), range(3), np.zeros((0, 3)))
    s.n = 0


def trap_no_labels_known(s: Sheet) -> None:
    """Labels that are all missing."""
    put_label(s, [None] * s.n)
    s.add_column(SCORES[:4], s.g.random(s.n).round(4))
    s.needed["drop"] = True


def trap_unlabeled(s: Sheet) -> None:
    """Rows without a label, marked by -1 or -100."""
    k = s.r.choice([3, 4])
    z, y = draw_problem(s, k)
    y[s.g.random(s.n) < 0.1] = s.r.choice([-1, -100])
    y[0] = min(y.min(), -1)
    put_label(s, y)
    put_classes(s, s.r.choice(PREFIXES), range(k), softmax(z))


def trap_negative_weights(s: Sheet) -> None:
    """Weights below zero."""
    s.r.choice([class_columns, single_score])(s)
    w = s.g.uniform(-0.5, 2.5, s.n)
    w[0] = -0.5
    s.add_column(("weight", "sample_weight"), w * s.n / w.sum())
    s.truth = None


def trap_one_decimal(s: Sheet) -> None:
    """Probabilities of one decimal, whose rows are far from 1."""
    z, y = draw_problem(s, k := 6)
    put_label(s, y)
    put_classes(s, s.r.choice(PREFIXES), range(k), np.round(softmax(z), 1))
