"""Find the columns of scores of a table by their names, and by their values where names are ambiguous.

The words role, score, group and weak are explained in `column_roles`. A table of answers has no scores: it has a
confidence, and a column that tells whether the answer was correct, or labels and predictions to compare.
"""

from dataclasses import dataclass, replace

import numpy as np

from calibrant._core.text import shorten_list
from calibrant._core.types import InputError
from calibrant.io.cells import class_keys, comparable_class_keys, to_numbers
from calibrant.io.column_roles import (
    NON_CLASS_SUFFIXES,
    SCORE_COLUMN_NAMES,
    ScoreColumns,
    explicit_score_columns,
    find_affixed_class_columns,
    find_class_columns,
    find_columns_named_after_class,
    find_role_columns,
    find_single_score_columns,
)
from calibrant.io.role_search import RoleSearch, ambiguous_score_error
from calibrant.predictions.validation.labels import positive_word

MIN_TOP_CLASS_ROWS = 20  # rows that suffice to doubt a single score that is never below 1/2
MIN_SEPARATED_ROWS = 5  # rows on each side of a threshold that is no coincidence
MIN_BINARY_ROWS, MIN_ROWS_BELOW_HALF = 8, 3  # rows, and rows below 1/2, that show that there are two classes


def find_score_columns(search: RoleSearch) -> tuple[RoleSearch, ScoreColumns | None]:
    """Return the search with the roles that scores decide, and the columns of scores, None if there is a confidence.

    The first of these that exist are the scores: the columns that the caller chose; a column per class, or of lists; a
    single score by its name; in a whole table without a confidence, columns named after their classes.

    Raises:
        InputError: If there are several, or a single score may be a confidence.
    """
    explicit_kinds = [kind for kind in SCORE_COLUMN_NAMES if kind in search.explicit_roles]  # probs or logits
    answer_roles = [role for role in ("confidence", "correct") if role in search.explicit_roles]
    if len(explicit_kinds) > 1 or (explicit_kinds and answer_roles):
        conflicting_roles = " and ".join([*explicit_kinds, *answer_roles][:2])  # the first two suffice
        raise InputError(
            f"Expected probs, logits or confidence, got {conflicting_roles}. Try one of them.", code="two_readings"
        )
    if explicit_kinds:
        kind = explicit_kinds[0]
        return search, explicit_score_columns(search.frame.columns, kind, search.explicit_roles[kind])
    if answer_roles:  # then the table is one of answers
        scores = [group for group in _find_single_scores(search) if group.kind == "probs"]
        # If the caller chose the correctness alone, a single score is the confidence
        if "confidence" not in search.roles and len(scores) == 1:
            search = search.with_role("confidence", scores[0].columns[0])
        return search, None
    search, group = _choose_class_columns(search)
    if group is not None:
        return search, group
    candidates = _find_single_scores(search)
    if not candidates and "confidence" not in search.roles and search.has_all_rows:
        if (group := _find_unprefixed_class_columns(search)) is not None:
            return search, group
        candidates = _find_columns_named_after_class(search)
    return resolve_single_score(search, candidates)


# One column per class


def _choose_class_columns(search: RoleSearch) -> tuple[RoleSearch, ScoreColumns | None]:
    """Return the group of columns with a score per class, or the column with a list per row, or None without one.

    The search that is returned with it lacks a confidence that is a column of the group.

    A group with weak names, such as score_cat and score_dog, needs values that confirm it: rows that sum to 1. The
    values decide only if the whole table is known, no column is the confidence, and no group has better names.

    A table with confidence and correctness of answers, but without labels, has no scores of classes, unless each class
    has a column of labels (label_cat, label_dog, ...).

    Raises:
        InputError: If two groups are certain, unless they are the logits and probabilities of the same classes.
    """
    has_answers = {"confidence", "correct"} <= search.roles.keys() and "label" not in search.roles
    list_groups = [g for g in find_single_score_columns(search.unassigned_columns) if search.is_list(g.columns[0])]
    search, class_groups = _find_class_column_groups(search)
    groups = [*class_groups, *list_groups]
    certain_groups = [group for group in groups if not group.is_weak]
    if not certain_groups and search.has_all_rows and "confidence" not in search.roles:
        certain_groups = [group for group in groups if search.rows_sum_to_one(group.columns)]
    has_multilabels = any(search.multilabel_columns(group) for group in certain_groups)
    if has_answers and not has_multilabels:
        return search, None
    if len(certain_groups) == 2 and search.probs_match_logits(*certain_groups):
        search = search.with_note("Probabilities and logits agree, and the logits are read.")
        return search, next(group for group in certain_groups if group.kind == "logits")
    if len(certain_groups) > 1:
        raise ambiguous_scores_error(certain_groups)
    return search, certain_groups[0] if certain_groups else None


def _find_class_column_groups(search: RoleSearch) -> tuple[RoleSearch, list[ScoreColumns]]:
    """Return groups of one column per class.

    A class may be named max. Therefore columns such as prob_max, even one that was taken for the confidence, extend a
    group if the rows then sum to 1, or if each class has a column of labels. The search that is returned lacks such a
    confidence.
    """
    labels, unassigned = search.label_texts(), search.unassigned_columns
    groups = find_class_columns(unassigned, labels)
    if not search.has_all_rows:
        return search, groups
    is_confidence_inferred = "confidence" in search.roles and "confidence" not in search.explicit_roles
    confidence = search.roles["confidence"] if is_confidence_inferred else None
    names: set[str | None] = {*unassigned, confidence}
    candidates = [str(name) for name in search.frame.columns if name in names]
    for extended in find_class_columns(candidates, [*labels, *NON_CLASS_SUFFIXES]):
        contained = [group for group in groups if {*group.columns} < {*extended.columns}]
        is_known = extended.columns in [group.columns for group in groups]
        is_confirmed = search.multilabel_columns(extended) or (contained and search.rows_sum_to_one(extended.columns))
        if not is_known and is_confirmed:
            groups = [group for group in groups if group not in contained] + [extended]
    if any(confidence in group.columns for group in groups):
        search = replace(search, roles={role: name for role, name in search.roles.items() if role != "confidence"})
    return search, groups


def _find_unprefixed_class_columns(search: RoleSearch) -> ScoreColumns | None:
    """Return the first group of columns that are named after a class and whose rows sum to 1, or None."""
    groups = find_affixed_class_columns(search.unassigned_columns, search.label_texts())
    return next((group for group in groups if search.rows_sum_to_one(group.columns)), None)


# A single score


def _find_single_scores(search: RoleSearch) -> list[ScoreColumns]:
    """Return the columns that may be a single score.

    A weak name, such as p_cat, needs a label or number as its class. As the last resort, a column named after
    predictions counts if it has fractions.
    """
    labels = {label.lower() for label in search.label_texts()}
    groups = [
        group
        for group in find_single_score_columns(search.unassigned_columns)
        if not group.is_weak or group.names[0].lower() in labels or group.names[0].isdigit()
    ]
    predicted = find_role_columns("predicted", search.unassigned_columns)
    return groups or [ScoreColumns("probs", (name,)) for name in predicted if search.has_fractions(name)]


def _find_columns_named_after_class(search: RoleSearch) -> list[ScoreColumns]:
    """Return the only float column named after a class as a list of one group, [] without any.

    Raises:
        InputError: If there are several.
    """
    groups = find_columns_named_after_class(search.unassigned_columns, search.label_texts())
    float_groups = [group for group in groups if search.frame[group.columns[0]].dtype.is_float()]
    # `_find_unprefixed_class_columns` has already taken several columns that sum to 1
    if len(float_groups) > 1:
        names = [group.columns[0] for group in float_groups]
        raise InputError(
            f"Expected rows of probabilities that sum to 1 in {shorten_list(names)}, got other sums. Try logits= with "
            f"these columns (--logits {','.join(names[:8])}) if they are logits.",
            code="ambiguous_columns",
        )
    return float_groups


# The meaning of a single score


@dataclass(frozen=True)
class ScoreMeaning:
    """The meaning of a single number per row: the probability of the positive class, or a confidence if it is None."""

    positive: str | None
    has_positive_word: bool = False  # the positive class has a name such as "yes", and no other class can be meant


CONFIDENCE = ScoreMeaning(None)


def resolve_single_score(search: RoleSearch, candidates: list[ScoreColumns]) -> tuple[RoleSearch, ScoreColumns | None]:
    """Decide whether a single number per row is the probability of a class or the confidence of an answer.

    A candidate is a probability, unless the predictions or the correctness beside it show that it is a confidence.
    Without candidates, a column that is named as a confidence is checked: it must not be a probability.

    Args:
        search: The table, and the roles found so far.
        candidates: Columns that may be a single score, as groups of one column.

    Returns:
        The search, in which a candidate that is a confidence has this role, and the column of the probability, or None
        without one.

    Raises:
        InputError: If several candidates differ, or the values do not decide.
    """
    roles = search.roles
    if "confidence" in roles and "correct" in roles:  # these answers are complete without a score
        return search, None
    if not candidates:
        if {"confidence", "label", "predicted"} <= roles.keys() and search.has_all_rows:
            _check_not_positive_class(search, roles["confidence"])
        return search, None
    score = _require_one_score(search, candidates)
    if "confidence" in roles:
        return _resolve_beside_confidence(search, score)
    has_evidence = "predicted" in roles or "correct" in roles
    # Logits are no confidences of answers, and only a probability has a positive class
    if score.kind == "logits" or search.options.positive is not None or not has_evidence:
        return search, score
    name = score.columns[0]
    meaning = _infer_from_predicted(search, name) if "predicted" in roles else _infer_from_correct(search, name)
    if meaning.positive is None:
        return search.with_role("confidence", name, f"The column {name!r} is the confidence of the prediction."), None
    # A class with a word such as "yes" is found again when the labels are read
    search = replace(search, positive=None if meaning.has_positive_word else meaning.positive)
    note = f"The column {name!r} is the probability of {meaning.positive!r}, as the predictions show."
    return search.with_note(note), score


def _require_one_score(search: RoleSearch, candidates: list[ScoreColumns]) -> ScoreColumns:
    """Return the first of several scores with equal values and one kind, or raise `InputError` if they differ."""
    first, *alternatives = candidates
    are_equal = search.has_all_rows and all(
        group.kind == first.kind and search.have_equal_values(first.columns[0], group.columns[0])
        for group in alternatives
    )
    if alternatives and not are_equal:
        raise ambiguous_scores_error(candidates)
    return first


def _resolve_beside_confidence(search: RoleSearch, score: ScoreColumns) -> tuple[RoleSearch, ScoreColumns | None]:
    """Return a score if the confidence beside it is the larger of p and 1 - p for its probability p, else None.

    None means that the score is the confidence under another name, or tells whether answers were correct, a role that
    it has in the search that is returned. Raises `InputError` if the score has neither meaning.
    """
    roles, name = search.roles, score.columns[0]
    if _is_confidence_of_score(search, score):  # the probability also tells which class is meant
        return search, score
    if {"label", "predicted"} <= roles.keys() and search.have_equal_values(name, roles["confidence"]):
        return search, None  # labels and predictions tell which answers were correct
    is_zero_one = {*np.unique(search.read_probabilities(name)).tolist()} <= {0, 1}
    if "label" in roles or not is_zero_one:
        raise ambiguous_score_error(name, f"{roles['confidence']!r} holds other confidences")
    return search.with_role("correct", name), None  # a score of answers, such as accuracy


def ambiguous_scores_error(groups: list[ScoreColumns]) -> InputError:
    """Return the error for several groups of columns that may be the scores."""
    scores_text = " or ".join(f"{group.kind} in {shorten_list(group.columns)}" for group in groups)
    return InputError(
        f"Expected one kind of scores, got {scores_text}. Try probs= or logits= with the columns (--probs or "
        "--logits).",
        code="ambiguous_columns",
    )


def _is_confidence_of_score(search: RoleSearch, score: ScoreColumns) -> bool:
    """Whether the confidence c is the larger of p and 1 - p for the probability p of a score.

    False if p is never below 1/2: then p and c would be equal, which tells nothing.
    """
    p, c = search.read_probabilities(score.columns[0]), search.read_probabilities(search.roles["confidence"])
    if score.kind == "logits":  # which p holds so far
        p = 1 / (1 + np.exp(-p))
    is_present = ~(np.isnan(p) | np.isnan(c))
    p, c = p[is_present], c[is_present]
    # Up to 1e-3, as the columns may be rounded
    return len(p) > 0 and bool((p < 0.5).any()) and bool((abs(np.maximum(p, 1 - p) - c) < 1e-3).all())


def _check_not_positive_class(search: RoleSearch, name: str) -> None:
    """Raise `InputError` if a confidence is high exactly where one class of two is predicted, as its probability is."""
    try:
        meaning = _infer_from_predicted(search, name)
    except InputError:  # without evidence, the name of the column decides
        return
    if meaning.positive is not None:
        raise ambiguous_score_error(name, f"it is higher exactly where {meaning.positive!r} is predicted")


def _infer_from_predicted(search: RoleSearch, name: str) -> ScoreMeaning:
    """Return the meaning of a column beside predicted labels: a confidence, or a class probability."""
    p, (*_, predicted), classes = _read_score_and_classes(search, name)  # after the labels, if there are any
    return _infer_meaning(name, p, predicted, classes)


def _infer_from_correct(search: RoleSearch, name: str) -> ScoreMeaning:
    """Return the meaning of a column beside `correct`: a confidence, or a class probability.

    It is a confidence without labels, and for labels of other than two classes. With two classes, the predicted class
    follows from the label: it is the label if the answer is correct, and otherwise the other class.
    """
    if "label" not in search.roles:
        return CONFIDENCE
    p, (labels,), classes = _read_score_and_classes(search, name)
    if len(classes) != 2:
        return CONFIDENCE
    # The rows that `_read_score_and_classes` keeps
    is_present = ~np.isnan(search.read_probabilities(name)) & ~search.frame[search.roles["label"]].is_null().to_numpy()
    correct = to_numbers(search.frame[search.roles["correct"]], accept_truth_words=True).to_numpy()[is_present] > 0.5
    other_class = np.where(labels == classes[0], classes[1], classes[0])
    return _infer_meaning(name, p, np.where(correct, labels, other_class), classes)


def _read_score_and_classes(search: RoleSearch, name: str) -> tuple[np.ndarray, list[np.ndarray], list[str]]:
    """Return a score p (n), the classes in the columns beside it, each (n), and the sorted names of all classes.

    The columns are the labels and the predictions, as far as the table has them. Rows with missing values are left out.
    """
    p = search.read_probabilities(name)
    columns = [search.frame[search.roles[role]] for role in ("label", "predicted") if role in search.roles]
    keys = comparable_class_keys(*columns) if len(columns) > 1 else [class_keys(columns[0])]
    is_present = ~np.isnan(p)
    for column in columns:
        is_present &= ~column.is_null().to_numpy()
    p, keys = p[is_present], [column_keys[is_present] for column_keys in keys]
    return p, keys, sorted({str(label) for column_keys in keys for label in np.unique(column_keys)})


def _infer_meaning(name: str, p: np.ndarray, predicted: np.ndarray, classes: list[str]) -> ScoreMeaning:
    """Return whether a score is a confidence or a class probability, judged by the predictions.

    The probability of one class is above 1/2 where this class is predicted, and below 1/2 where the other is. A
    confidence does not depend on which class is predicted. Scores outside [0, 1] count as confidences, which are
    refused later for their range.

    Args:
        name: The column of the score, for errors.
        p: The score, (n).
        predicted: Predicted classes, (n).
        classes: All classes.

    Raises:
        InputError: If the values do not decide.
    """
    if len(classes) > 2 or ((p < 0) | (p > 1)).any():
        return CONFIDENCE
    word = positive_word(classes)
    above_half, below_half = set(predicted[p > 0.5]), set(predicted[p < 0.5])  # classes that are predicted there
    if not below_half:
        return _infer_meaning_above_half(name, p, predicted, word)
    has_few_rows = len(p) < MIN_BINARY_ROWS or (p < 0.5).sum() < MIN_ROWS_BELOW_HALF
    # If the positive class is never predicted, only its name and many rows can tell
    if has_few_rows or (not above_half and (word is None or len(p) < MIN_TOP_CLASS_ROWS)):
        raise ambiguous_score_error(name, "too few rows show which")
    # Only one class is predicted above 1/2, if any, and only the other one below
    has_threshold_at_half = len(above_half) <= 1 and len(below_half) == 1 and not above_half & below_half
    if has_threshold_at_half:
        positive = str(next(iter(above_half), word))
    elif (positive := _find_separated_class(p, predicted, MIN_SEPARATED_ROWS)) is None:  # by another threshold
        raise ambiguous_score_error(name, "it is below 1/2 for some predictions of each class")
    if word is not None and positive != word:
        raise ambiguous_score_error(name, f"it seems to be the probability of {positive!r}")
    return ScoreMeaning(positive, has_positive_word=word is not None)


def _infer_meaning_above_half(name: str, p: np.ndarray, predicted: np.ndarray, word: str | None) -> ScoreMeaning:
    """Return `CONFIDENCE` for a score that is never below 1/2, or raise `InputError` if it may be a probability.

    `word` is the class with a name such as "yes", which would be the positive one. The score may be a probability if
    only the other class is predicted, or if it is above some threshold exactly where the positive class is predicted,
    or without `word` either class.
    """
    classes = sorted(set(predicted))
    if len(classes) == 1:
        if word in (None, classes[0]):
            return CONFIDENCE  # both readings are the same here
        raise ambiguous_score_error(name, f"only {classes[0]} is predicted")
    positive = _find_separated_class(p, predicted, 1)
    if positive is not None and word in (None, positive):
        raise ambiguous_score_error(name, "a threshold above 1/2 separates the predictions")
    return CONFIDENCE


def _find_separated_class(p: np.ndarray, predicted: np.ndarray, min_rows: int) -> str | None:
    """Return the class, of two, that is predicted for exactly the rows whose score p is above some threshold, or None.

    Each class must be predicted for at least `min_rows` rows, because few rows can be separated by chance.
    """
    classes = sorted(set(predicted))
    if len(classes) != 2:
        return None
    for upper, lower in (classes, classes[::-1]):
        upper_scores, lower_scores = p[predicted == upper], p[predicted == lower]
        if min(len(upper_scores), len(lower_scores)) >= min_rows and upper_scores.min() > lower_scores.max():
            return str(upper)
    return None
