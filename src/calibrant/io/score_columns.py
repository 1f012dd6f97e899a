"""Find the columns of scores of a table by their names, and by their values where names are ambiguous."""

from calibrant._text import shorten_list
from calibrant.io.column_names import (
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
from calibrant.io.search import RoleSearch
from calibrant.io.single_scores import ambiguous_scores_error, resolve_single_score
from calibrant.types import InputError


def find_score_columns(search: RoleSearch) -> ScoreColumns | None:
    """Return the columns of scores, or None if the table has a confidence instead.

    The first of these that exist are the scores: the columns that the caller chose; a column per class, or of lists; a
    single score by its name; in a whole table without a confidence, columns named after their classes.

    Raises:
        InputError: If there are several, or a single score may be a confidence.
    """
    explicit_kinds = [kind for kind in SCORE_COLUMN_NAMES if kind in search.explicit_roles]
    answer_roles = [role for role in ("confidence", "correct") if role in search.explicit_roles]
    if len(explicit_kinds) > 1 or (explicit_kinds and answer_roles):
        conflicting_roles = " and ".join([*explicit_kinds, *answer_roles][:2])  # the first two suffice
        raise InputError(
            f"Expected probs, logits or confidence, got {conflicting_roles}. Try one of them.", code="two_readings"
        )
    if explicit_kinds:
        kind = explicit_kinds[0]
        return explicit_score_columns(search.frame.columns, kind, search.explicit_roles[kind])
    if answer_roles:
        scores = [group for group in _find_single_scores(search) if group.kind == "probs"]
        if "confidence" not in search.roles and len(scores) == 1:  # the caller chose the correctness alone
            search.roles["confidence"] = scores[0].columns[0]
        return None
    if (group := _choose_class_columns(search)) is not None:
        return group
    candidates = _find_single_scores(search)
    if not candidates and "confidence" not in search.roles and search.has_all_rows:
        if (group := _find_unprefixed_class_columns(search)) is not None:
            return group
        candidates = _find_columns_named_after_class(search)
    return resolve_single_score(search, candidates)


# One column per class


def _choose_class_columns(search: RoleSearch) -> ScoreColumns | None:
    """Return the columns with a score per class, or a list per row, or None without such a group.

    Names make some groups certain. Without these, the groups whose rows sum to 1 are certain, if no column is the
    confidence. Beside answers with a confidence, only columns of several labels make a group the scores.

    Raises:
        InputError: If two groups are certain, unless they are the logits and probabilities of the same classes.
    """
    has_answers = {"confidence", "correct"} <= search.roles.keys() and "label" not in search.roles
    list_groups = [g for g in find_single_score_columns(search.unassigned_columns) if search.is_list(g.columns[0])]
    groups = [*_find_class_column_groups(search), *list_groups]
    certain_groups = [group for group in groups if not group.is_weak]
    if not certain_groups and search.has_all_rows and "confidence" not in search.roles:
        certain_groups = [group for group in groups if search.rows_sum_to_one(group.columns)]
    if has_answers and not any(map(search.multilabel_columns, certain_groups)):
        return None
    if len(certain_groups) == 2 and search.probs_match_logits(*certain_groups):
        search.notes.append("Probabilities and logits agree, and the logits are read.")
        return next(group for group in certain_groups if group.kind == "logits")
    if len(certain_groups) > 1:
        raise ambiguous_scores_error(certain_groups)
    return certain_groups[0] if certain_groups else None


def _find_class_column_groups(search: RoleSearch) -> list[ScoreColumns]:
    """Return groups of one column per class.

    Classes may have names such as max. Therefore columns such as prob_max, even one that was taken for the confidence,
    extend a group if the rows then sum to 1, or if each class has a column of labels.
    """
    labels, unassigned = search.label_texts(), search.unassigned_columns
    groups = find_class_columns(unassigned, labels)
    if not search.has_all_rows:
        return groups
    is_confidence_inferred = "confidence" in search.roles and "confidence" not in search.explicit_roles
    confidence = search.roles["confidence"] if is_confidence_inferred else None
    candidates = [name for name in search.frame.columns if name in unassigned or name == confidence]
    for extended in find_class_columns(candidates, [*labels, *NON_CLASS_SUFFIXES]):
        contained = [group for group in groups if {*group.columns} < {*extended.columns}]
        is_known = extended.columns in [group.columns for group in groups]
        is_confirmed = search.multilabel_columns(extended) or (contained and search.rows_sum_to_one(extended.columns))
        if not is_known and is_confirmed:
            groups = [group for group in groups if group not in contained] + [extended]
            if search.roles.get("confidence") in extended.columns:
                del search.roles["confidence"]
    return groups


def _find_unprefixed_class_columns(search: RoleSearch) -> ScoreColumns | None:
    """Return columns named after their class alone whose rows are probabilities."""
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
    """Return a list of the float column named after a class. Raise `InputError` for several."""
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
