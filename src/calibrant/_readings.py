"""Decide which column of a table plays which role: by name, and by value where names have more than one reading."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from calibrant._arrays import MIN_TOP_CLASS, is_list, keys_of, numbers_of, probabilities_of
from calibrant._columns import (
    MAX_NAMED_COLUMNS,
    NO_CLASSES,
    OF_LABEL,
    SINGLE,
    WHOLE,
    Columns,
    ScoreColumns,
    TableOptions,
    affixed_classes,
    candidates,
    class_columns,
    given_scores,
    is_index,
    key_of,
    named_after_a_class,
    ordered,
    single_scores,
    suffix_of,
    weak_candidates,
)
from calibrant._door import positive_word, some
from calibrant.types import InputError

MIN_SEPARATED = 5  # rows on either side of a threshold that is no accident
MIN_ROWS, MIN_BELOW = 8, 3  # rows, and rows below one half, from which two classes are no accident
SUM_TOLERANCE = 0.03


@np.errstate(invalid="ignore", over="ignore")  # infinities are refused later
def columns_of(frame: Any, options: TableOptions | None = None, *, whole: bool = True) -> Columns:
    """Find the role of each column of a polars frame.

    `whole` is false where the frame is only the head of a table: then nothing is decided by values.

    Raises `InputError` where a given column is missing, or columns have more than one reading.
    """
    options = options or TableOptions()
    given = {role: _resolved(value, frame.columns) for role, value in options.columns.items()}
    return _Search(frame, replace(options, columns=given), whole).columns()


def _resolved(given: Any, columns: Sequence[str]) -> Any:
    """Return given names as the table has them, where they differ in capitals and blanks around them alone."""
    if not isinstance(given, str):
        return tuple(_resolved(name, columns) for name in given)
    alike = [name for name in columns if name.strip().lower() == given.strip().lower()]
    return alike[0] if given not in columns and len(alike) == 1 else given


@dataclass
class _Search:
    frame: Any
    options: TableOptions
    whole: bool
    roles: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[str] = field(default_factory=list[str])
    positive: str | None = None  # the class whose probability a single score evidently is

    @property
    def given(self) -> Mapping[str, Any]:
        return self.options.columns

    @property
    def free(self) -> list[str]:
        """Return the columns that have no role yet."""
        taken = {name for value in self.given.values() for name in ([value] if isinstance(value, str) else value)}
        taken |= set(self.roles.values())
        return [name for name in self.frame.columns if name not in taken and not is_index(name)]

    def columns(self) -> Columns:
        """Return the role of every column."""
        _check_given(self.frame.columns, self.given)
        self.roles |= {role: str(self.given[role]) for role in SINGLE if role in self.given}
        for role in SINGLE:
            if role not in self.roles and (name := self._by_name(role)) is not None:
                self.roles[role] = name
        scores = self._scores()
        if scores is None:
            return self._built("", (), None, None)
        columns, names = ordered(scores)
        one = len(columns) == 1 and not self._nested(columns[0])
        if one:
            if not self._has_label():
                self._only_other_column(scores)
            positive = self.positive or (scores.names[0] if scores.names else None)
            return self._built(scores.kind, columns, None, positive)
        labels = () if self._has_label() else self._several(scores)
        if not labels and not self._has_label():
            self._only_other_column(scores)
        if labels:
            return self._built(scores.kind, scores.columns, scores.names, None, labels)
        return self._built(scores.kind, columns, names, None)

    def _several(self, scores: ScoreColumns) -> tuple[str, ...]:
        """Return the columns of several labels per example, called as with a prefix or as the classes alone."""
        import polars

        found = _several(self.frame.columns, scores)
        bare = tuple(scores.names)
        if found or not self.whole or not bare or not set(bare) <= set(self.free) - set(scores.columns):
            return found
        columns = [self.frame[name].drop_nulls() for name in bare]
        tags = all(column.dtype.is_numeric() or column.dtype == polars.Boolean for column in columns)
        return bare if tags and all(set(column.unique().to_list()) <= {0, 1} for column in columns) else ()

    def _only_other_column(self, scores: ScoreColumns) -> None:
        """Take the only other column of a table for the label if it holds classes."""
        others = [name for name in self.free if name not in scores.columns]
        if not self.whole or len(others) != 1 or self._nested(others[0]) or self._has_fractions(others[0]):
            return
        kinds = np.unique(keys_of(self.frame[others[0]].drop_nulls())).tolist()
        names = {name.lower() for name in scores.names}
        binary = len(kinds) == 2 and positive_word(kinds) is not None and len(scores.columns) < 3
        if binary or (names and {kind.lower() for kind in kinds} <= names):
            self.roles["label"] = others[0]
            self.notes.append(f"label is the only other column, {others[0]!r}")

    def _has_label(self) -> bool:
        return "label" in self.roles

    def _built(
        self,
        kind: str,
        scores: tuple[str, ...],
        names: tuple[str, ...] | None,
        positive: str | None,
        labels: tuple[str, ...] = (),
    ) -> Columns:
        dropped = ("confidence", "correct", "predicted") if kind else ("label", "predicted")
        if not kind and "correct" not in self.roles and {"label", "predicted"} <= self.roles.keys():
            dropped = ()
        roles = {role: name for role, name in self.roles.items() if role not in dropped}
        used = {*roles.values(), *scores, *labels}
        if twice := [
            name for name in self.frame.columns if name in used and f"{name}_duplicated_0" in self.frame.columns
        ]:
            raise InputError(f"two columns are called {twice[0]!r}: rename one of them", code="column_twice")
        unused = tuple(name for name in self.frame.columns if name not in used and not is_index(name))
        more: dict[str, Any] = {"kind": kind, "scores": scores, "names": names, "positive": positive}
        more |= {"given": frozenset(self.given), "notes": tuple(self.notes)}
        return Columns(**roles, labels=labels, unused=unused, **more)

    # Single columns

    def _by_name(self, role: str) -> str | None:
        found = candidates(role, self.free)
        if role == "label":
            found, weak = self._can_be_labels(found), self._weak_labels()
            found = [*found, *(name for name in weak if self._of_classes(name, found[0]))] if found else weak
        if role == "predicted":
            found = [name for name in found if not self._has_fractions(name)] or self._weak_predicted()
        if role in ("predicted", "correct", "confidence"):
            found = [name for name in found if not self._nested(name)]
        return found[0] if (len(found) < 2 and found) or (role == "id" and found) else self._same(role, found)

    def _weak_labels(self) -> list[str]:
        """Return columns such as `class`; `answer` only beside predictions."""
        found = self._can_be_labels(weak_candidates("label", self.free))
        predicted = candidates("predicted", self.free)
        return [name for name in found if key_of(name) != "answer" or predicted]

    def _weak_predicted(self) -> list[str]:
        """Return columns such as `answer` that hold nothing but labels."""
        words = set(self._label_words())
        found = [name for name in weak_candidates("predicted", self.free) if words and not self._nested(name)]
        return [name for name in found if {*np.unique(keys_of(self.frame[name].drop_nulls())).tolist()} <= words]

    def _can_be_labels(self, names: list[str]) -> list[str]:
        """Leave out columns of fractions, dates and lists where others remain."""
        fit = [n for n in names if not (self._has_fractions(n) or self._nested(n) or self.frame[n].dtype.is_temporal())]
        return fit or names

    def _of_classes(self, name: str, label: str) -> bool:
        """Whether a column holds classes of the label only, and so may be the label as well."""
        if not self.whole or self._nested(name) or self._nested(label):
            return False
        values, classes = ({*np.unique(keys_of(self.frame[each].drop_nulls()))} for each in (name, label))
        return len(values) > 1 and values <= classes

    def _same(self, role: str, names: list[str]) -> str | None:
        """Return the first of several columns that say the same; raises `InputError` where they do not."""
        if not names:
            return None
        first, *others = names
        likely = next((name for name in names if re.search("true|truth|gold|actual", key_of(name))), first)
        if self.whole and all(self._alike(role, first, other) for other in others):
            return first
        option = role.replace("_", "-")
        raise InputError(
            f"columns {some(names)} could each be the {role}. Try {role}={likely!r} (on the command line, "
            f"--{option} {likely})",
            code="ambiguous_columns",
        )

    def _alike(self, role: str, one: str, other: str) -> bool:
        a, b = self.frame[one], self.frame[other]
        if role in ("label", "predicted"):
            return a.n_unique() == b.n_unique() == self.frame.select(one, other).n_unique()
        return bool((keys_of(a) == keys_of(b)).all())

    def _has_fractions(self, name: str) -> bool:
        column = self.frame[name]
        return column.dtype.is_float() and bool((column != column.round(0)).any())

    def _nested(self, name: str) -> bool:
        return is_list(self.frame[name])

    # Scores

    def _scores(self) -> ScoreColumns | None:
        """Return the columns of scores; None where a confidence stands in their place."""
        given = [kind for kind in WHOLE if kind in self.given]
        answers = [role for role in ("confidence", "correct") if role in self.given]
        if len(given) > 1 or (given and answers):
            both = " and ".join([*given, *answers][:2])
            raise InputError(f"expected probs, logits or confidence, got {both}. Try one of them.", code="two_readings")
        if given:
            return given_scores(self.frame.columns, given[0], self.given[given[0]])
        if answers:
            self._confidence_given()
            return None
        if (group := self._class_columns()) is not None:
            return group
        singles = self._singles()
        if not singles and "confidence" not in self.roles and self.whole:
            if (group := self._bare_classes()) is not None:
                return group
            singles = self._named_after_a_class()
        return self._single(singles)

    def _confidence_given(self) -> None:
        if "confidence" in self.roles:
            return
        singles = [group for group in self._singles() if group.kind == "probs"]
        if len(singles) == 1:
            self.roles["confidence"] = singles[0].columns[0]

    def _class_columns(self) -> ScoreColumns | None:
        """Return the columns with a score of each class, or of a list per row, where there is one such group."""
        answers = {"confidence", "correct"} <= self.roles.keys() and not self._has_label()
        lists = [group for group in single_scores(self.free) if self._nested(group.columns[0])]
        groups = [*self._by_class(), *lists]
        sure = [group for group in groups if not group.weak]
        if not sure and self.whole and "confidence" not in self.roles:
            sure = [group for group in groups if self._sums_to_one(group.columns)]
        if answers and not self._any_labels(sure):
            return None
        if len(sure) == 2 and self._agree(*sure):
            self.notes.append("probabilities and logits agree; the logits are read")
            return next(group for group in sure if group.kind == "logits")
        if len(sure) > 1:
            shown = " or ".join(f"{group.kind} in {some(group.columns)}" for group in sure)
            raise InputError(
                f"found {shown}; say which: probs= or logits= (on the command line, --probs or --logits)",
                code="ambiguous_columns",
            )
        return sure[0] if sure else None

    def _agree(self, one: ScoreColumns, other: ScoreColumns) -> bool:
        """Whether one group holds the probabilities of the other's logits."""
        if not self.whole or {one.kind, other.kind} != {*WHOLE} or one.names != other.names or not one.names:
            return False
        logits, probs = (one, other) if one.kind == "logits" else (other, one)
        z = np.stack([numbers_of(self.frame[name]).to_numpy() for name in logits.columns], 1).astype(float)
        p = np.stack([probabilities_of(self.frame[name], self.options) for name in probs.columns], 1)
        shifted = np.exp(z - z.max(1, keepdims=True))
        return bool((abs(shifted / shifted.sum(1, keepdims=True) - p) < 1e-2).all())

    def _by_class(self) -> list[ScoreColumns]:
        """Return groups of one column per class; prob_max and the like belong to them where the values show it."""
        words, free = self._label_words(), self.free
        groups = class_columns(free, words)
        found = "confidence" in self.roles and "confidence" not in self.given
        maximum = self.roles["confidence"] if found else None
        called = [name for name in self.frame.columns if name in free or name == maximum]
        for full in class_columns(called, [*words, *NO_CLASSES]) if self.whole else []:
            parts = [group for group in groups if {*group.columns} < {*full.columns}]
            new = full.columns not in [group.columns for group in groups]
            if new and (_several(self.frame.columns, full) or (parts and self._sums_to_one(full.columns))):
                groups = [group for group in groups if group not in parts] + [full]
                if self.roles.get("confidence") in full.columns:
                    del self.roles["confidence"]
        return groups

    def _any_labels(self, groups: Sequence[ScoreColumns]) -> bool:
        return any(_several(self.frame.columns, group) for group in groups)

    def _bare_classes(self) -> ScoreColumns | None:
        """Return columns named after their class alone, which rows of probabilities show."""
        groups = affixed_classes(self.free, self._label_words())
        return next((group for group in groups if self._sums_to_one(group.columns)), None)

    def _label_words(self) -> list[str]:
        """Return the labels where they are words, or numbers as such."""
        if "label" not in self.roles or not self.whole or self._nested(self.roles["label"]):
            return []
        return [str(value) for value in np.unique(keys_of(self.frame[self.roles["label"]].drop_nulls()))[:1000]]

    def _sums_to_one(self, names: Sequence[str]) -> bool:
        """Whether rows of these columns are probabilities, or percentages, of classes."""
        try:
            rows = np.stack([probabilities_of(self.frame[name], self.options) for name in names], 1)
        except InputError:
            return False
        rows = rows[~np.isnan(rows).any(1)]
        sums = rows.sum(1)
        return (
            len(rows) > 0
            and bool((rows >= 0).all())
            and any(bool((abs(sums - total) <= SUM_TOLERANCE * total).all()) for total in (1, 100))
        )

    def _singles(self) -> list[ScoreColumns]:
        """Return the columns that may be a single score, fractions among predictions too."""
        words = {word.lower() for word in self._label_words()}
        found = [
            group
            for group in single_scores(self.free)
            if not group.weak or group.names[0].lower() in words or group.names[0].isdigit()
        ]
        floats = [name for name in candidates("predicted", self.free) if self._has_fractions(name)]
        return found or [ScoreColumns("probs", (name,)) for name in floats]

    def _named_after_a_class(self) -> list[ScoreColumns]:
        """Return the column that is named after a class, such as spam; raises `InputError` for more than one."""
        named = named_after_a_class(self.free, self._label_words())
        found = [group for group in named if self.frame[group.columns[0]].dtype.is_float()]
        if len(found) > 1:
            names = [group.columns[0] for group in found]
            raise InputError(
                f"expected probabilities of the classes in {some(names)}, but rows do not sum to 1. If they are "
                f"logits, try logits= with these columns (on the command line, --logits {','.join(names[:8])}).",
                code="ambiguous_columns",
            )
        return found

    def _single(self, singles: list[ScoreColumns]) -> ScoreColumns | None:
        """Return the single score, or None where it is a confidence, which then has its role."""
        if "confidence" in self.roles and "correct" in self.roles:
            return None
        compared = {"label", "predicted"} <= self.roles.keys()
        if not singles:
            if "confidence" in self.roles and compared and self._evidently_positive(self.roles["confidence"]):
                name = self.roles["confidence"]
                raise _ambiguous(name, f"it is above 1/2 exactly where {self.positive!r} is predicted")
            return None
        score = self._one_score(singles)
        name = score.columns[0]
        if "confidence" in self.roles:
            if self._is_top_of(name, score.kind):
                return score
            if compared and self._equal(name, self.roles["confidence"]):
                return None
            if not self._has_label() and set(np.unique(self._values(name)).tolist()) <= {0, 1}:
                self.roles["correct"] = name
                return None
            raise _ambiguous(name, f"{self.roles['confidence']!r} holds other confidences")
        if score.kind == "logits" or self.options.positive is not None:
            return score
        reading = "probs"
        if "predicted" in self.roles:
            reading = self._reading_beside_prediction(name)
        elif "correct" in self.roles:
            reading = self._reading_beside_correct(name)
        if reading == "probs":
            return score
        self.roles["confidence"] = name
        self.notes.append(f"{name!r} is the confidence of the prediction")
        return None

    def _one_score(self, singles: list[ScoreColumns]) -> ScoreColumns:
        first, *others = singles
        same = self.whole and all(
            other.kind == first.kind and self._equal(first.columns[0], other.columns[0]) for other in others
        )
        if others and not same:
            shown = " or ".join(f"{group.kind} in {some(group.columns)}" for group in singles)
            raise InputError(
                f"found {shown}; say which: probs= or logits= (on the command line, --probs or --logits)",
                code="ambiguous_columns",
            )
        return first

    # Readings that values decide

    def _values(self, name: str) -> np.ndarray:
        if not self.whole:
            raise _ambiguous(name, "only the whole table tells")
        return probabilities_of(self.frame[name], self.options)

    def _equal(self, one: str, other: str) -> bool:
        a, b = self._values(one), self._values(other)
        known = ~(np.isnan(a) | np.isnan(b))
        return bool(known.any()) and bool((abs(a - b)[known] < 1e-6).all())

    def _is_top_of(self, name: str, kind: str) -> bool:
        """Whether the confidence is the larger of p and 1 - p, or p itself only above one half."""
        p, c = self._values(name), self._values(self.roles["confidence"])
        p = 1 / (1 + np.exp(-p)) if kind == "logits" else p
        known = ~(np.isnan(p) | np.isnan(c))
        p, c = p[known], c[known]
        return len(p) > 0 and bool((p < 0.5).any()) and bool((abs(np.maximum(p, 1 - p) - c) < 1e-3).all())

    def _evidently_positive(self, name: str) -> bool:
        """Whether a number is above one half exactly where one class of two is predicted."""
        if not self.whole:
            return False
        try:
            return self._reading_beside_prediction(name) == "probs"
        except InputError:
            return False

    def _reading_beside_prediction(self, name: str) -> str:
        """Return "probs" where a number is the probability of one of two classes, "confidence" where it is that of
        the predicted class; raises `InputError` where it may be either.
        """
        return self._decide(name, *self._beside(name, "predicted"))

    def _decide(self, name: str, p: np.ndarray, guess: np.ndarray, kinds: list[str]) -> str:
        """Return the reading of a number beside predictions of the given classes."""
        if len(kinds) > 2:
            return "confidence"
        word = positive_word(kinds)
        above, below = set(guess[p > 0.5]), set(guess[p < 0.5])
        if not below:
            return self._decide_above_half(name, p, guess, word)
        if len(p) < MIN_ROWS or (p < 0.5).sum() < MIN_BELOW or (not above and (word is None or len(p) < MIN_TOP_CLASS)):
            raise _ambiguous(name, "too few rows show which")
        if len(above) <= 1 and len(below) == 1 and not above & below:
            return self._positive(name, str(next(iter(above), word)), word)
        if (positive := _separated(p, guess, MIN_SEPARATED)) is not None:
            return self._positive(name, positive, word)
        raise _ambiguous(name, "it is below 1/2 for some predictions of each class")

    def _decide_above_half(self, name: str, p: np.ndarray, guess: np.ndarray, word: str | None) -> str:
        """Return the reading of a number that is never below one half."""
        predicted = sorted(set(guess))
        if len(predicted) == 1:
            if word in (None, predicted[0]):
                return "confidence"  # both readings are the same here
            raise _ambiguous(name, f"only {predicted[0]} is predicted")
        positive = _separated(p, guess, 1)
        if positive is not None and word in (None, positive):
            raise _ambiguous(name, "a threshold above 1/2 separates the predictions")
        return "confidence"

    def _positive(self, name: str, positive: str | None, word: str | None) -> str:
        if positive is None or (word is not None and positive != word):
            raise _ambiguous(name, f"it seems to be the probability of {positive!r}")
        self.positive = positive if word is None else None
        if name != self.roles.get("confidence"):
            self.notes.append(f"{name!r} is the probability of {positive!r}, as the predictions show")
        else:
            self.positive = positive
        return "probs"

    def _reading_beside_correct(self, name: str) -> str:
        """Return what a number beside `correct` is; of two classes, labels and `correct` tell what was predicted."""
        if "label" not in self.roles:
            return "confidence"
        p, truth, kinds = self._beside(name, "label")
        if len(kinds) != 2:
            return "confidence"
        known = ~np.isnan(self._values(name)) & ~self.frame[self.roles["label"]].is_null().to_numpy()
        right = numbers_of(self.frame[self.roles["correct"]], words=True).to_numpy()[known] > 0.5
        other = np.where(truth == kinds[0], kinds[1], kinds[0])
        return self._decide(name, p, np.where(right, truth, other), kinds)

    def _beside(self, name: str, role: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Return a score and the predictions or labels beside it, and all classes that occur."""
        p = self._values(name)
        columns = [self.frame[self.roles[each]] for each in ("label", "predicted") if each in self.roles]
        index = 0 if role == "label" or len(columns) == 1 else 1
        keys = keys_of(*columns) if len(columns) > 1 else (keys_of(columns[0]),)
        known = ~np.isnan(p)
        for column in columns:
            known &= ~column.is_null().to_numpy()
        kinds = sorted({str(kind) for part in keys for kind in np.unique(part[known])})
        if len(p[known]) and not 0 <= p[known].min() <= p[known].max() <= 1:
            return p[known], keys[index][known], [*kinds, "", " "]  # refused later, for its range
        return p[known], keys[index][known], kinds


def _separated(p: np.ndarray, guess: np.ndarray, least: int) -> str | None:
    """Return the class that is predicted above a threshold only, with at least so many rows on either side."""
    kinds = sorted(set(guess))
    if len(kinds) != 2:
        return None
    for upper, lower in (kinds, kinds[::-1]):
        high, low = p[guess == upper], p[guess == lower]
        if min(len(high), len(low)) >= least and high.min() > low.max():
            return str(upper)
    return None


def _ambiguous(name: str, reason: str) -> InputError:
    return InputError(
        f"column {name!r} may hold the confidence of the predicted class or the probability of one class: {reason}. "
        f"Try confidence={name!r} or probs={name!r} (on the command line, --confidence {name} or --probs {name})",
        code="ambiguous_reading",
    )


def _check_given(columns: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise `InputError` where a given column is missing, or given for two roles."""
    roles: dict[str, str] = {}
    for role, value in given.items():
        for name in [value] if isinstance(value, str) else value:
            begun = role in WHOLE and isinstance(value, str) and any(suffix_or_rest(each, name) for each in columns)
            if name not in columns and not begun:
                raise InputError(f"no column {name!r} for {role}; there are {some(columns)}", code="no_column")
            if name in roles and roles[name] != role:
                raise InputError(
                    f"column {name!r} is given for {roles[name]} and for {role}. Try one role per column.",
                    code="column_twice",
                )
            roles[name] = role


def suffix_or_rest(name: str, prefix: str) -> str:
    """Return what follows a given prefix in the name of a column."""
    plain = name.lstrip()
    return plain[len(prefix) :] if plain.lower().startswith(prefix.lower()) else suffix_of(name, prefix)


def _several(columns: Sequence[str], scores: ScoreColumns) -> tuple[str, ...]:
    """Return the columns of several labels per example, one beside each score; none where they are not all there."""
    free = [name for name in columns if name not in scores.columns]
    for prefix in OF_LABEL:
        begun = {name: name.lstrip() for name in free if name.lstrip().lower().startswith(prefix)}
        found = {plain[len(prefix) :]: name for name, plain in begun.items()}
        if scores.names and set(scores.names) <= found.keys():
            return tuple(found[name] for name in scores.names)
    return ()


def roles_of(columns: Columns, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the columns of a table with a role each, in their order."""
    roles = {getattr(columns, role): role for role in SINGLE if getattr(columns, role) is not None}
    classes = columns.names or tuple(map(str, range(len(columns.scores))))
    for name, called in zip(columns.scores, classes, strict=True):
        roles[name] = f"{columns.kind} of class {called}" if len(columns.scores) > 1 else columns.kind
    roles |= dict.fromkeys(columns.labels, "label of its class")
    return [(name, roles.get(name, "not used")) for name in names]


def require_labels(columns: Columns, frame: Any) -> None:
    """Raise `InputError` where a table has no scores, or nothing that says what was true."""
    names = [name for name in frame.columns if not is_index(name)]
    if columns.scores:
        if columns.label is None and not columns.labels:
            raise InputError(
                f"expected a column of true labels beside {some(columns.scores)}, got columns {some(names)}. "
                "Try label= with its name (on the command line, --label NAME)",
                code="no_labels",
            )
        return
    if columns.confidence is not None:
        if columns.correct is None and columns.predicted is None:
            raise InputError(_no_correct(columns), code="no_correct")
        return
    raise InputError(_no_scores(columns, names), code="no_scores")


def _no_correct(columns: Columns) -> str:
    label = next((name for name in columns.unused if name in {*candidates("label", columns.unused)}), None)
    text = f"expected a column beside {columns.confidence!r} that says whether the answer was right"
    if label is None:
        return f"{text}. Try correct= or predicted= with label= (on the command line, --correct NAME)"
    return (
        f"{text}, or what was predicted. Try predicted= (on the command line, --predicted NAME); "
        f"--correct {label} if {label!r} is 1 where the answer was right; --probs {columns.confidence} if that is the "
        "probability of class 1"
    )


def _no_scores(columns: Columns, names: Sequence[str]) -> str:
    got = f"got columns {some(names, MAX_NAMED_COLUMNS)}"
    if columns.correct is not None:
        return (
            f"expected a column of confidences beside {columns.correct!r}, {got}. Try confidence= (--confidence NAME)"
        )
    return (
        "expected a column of labels with probabilities (prob_0, prob_1, ... or prob_cat, ...), logits (logit_0, ...) "
        f"or a confidence with whether it was correct; {got}. Say which is which: label=, probs=, logits=, "
        "confidence=, correct= (on the command line, --label and so on)"
    )
