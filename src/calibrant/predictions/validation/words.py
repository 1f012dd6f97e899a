"""Words for right, wrong and unanswered, in tables and logs, and words for yes and no among class names."""

from collections.abc import Iterable, Mapping, Sequence

from calibrant.predictions.events import BINARY_EVENTS

# Words in the languages that forms and models answer in
YES_WORDS = (
    *("true", "yes", "y", "t", "positive", "pos", "ja", "wahr", "richtig", "oui", "vrai", "sí", "si", "verdadero"),
    *("да", "是", "对", "正确"),
)
NO_WORDS = (
    *("false", "no", "n", "f", "negative", "neg", "nein", "falsch", "non", "faux", "falso", "нет", "否", "错", "错误"),
)
_WORD_SCORES = {
    **dict.fromkeys(("correct", "right", "pass", "passed", "1", "1.0", *YES_WORDS), 1.0),
    **dict.fromkeys(("incorrect", "wrong", "fail", "failed", "0", "0.0", *NO_WORDS), 0.0),
    **{name: float(outcome) for classes in BINARY_EVENTS for outcome, name in enumerate(classes)},
}
_LETTERS = {"c": 1.0, "p": 0.5, "i": 0.0, "n": None}  # correct, partially correct, incorrect and no answer in Inspect
_UNANSWERED = ("not attempted", "not_attempted", "no answer", "no_answer", "abstained", "refused")


def normalize_word(word: object) -> str:
    """Return a word without blanks around it, in lower case."""
    return str(word).strip().casefold()


def outcome_scores(words: Iterable[object], *, are_letters: bool = False) -> Mapping[str, float | None]:
    """Return the score of every word for an outcome, None for no answer, as the other words of a column tell.

    Beside "c" or "i", letters are the grades of Inspect: "p" is partially correct and "n" no answer. Otherwise "n" is
    "no", and "p" has no score: it may be "pass" or "positive".

    Args:
        words: The words of a column, or of a field in all records.
        are_letters: Whether the grades are known to be those of Inspect.

    >>> outcome_scores(["y", "n"])["n"], outcome_scores(["C", "N"])["n"]
    (0.0, None)
    """
    scores: dict[str, float | None] = {**_WORD_SCORES, **dict.fromkeys(_UNANSWERED)}
    if are_letters or not {"c", "i"}.isdisjoint(map(normalize_word, words)):
        scores |= _LETTERS
    return scores


def are_yes_and_no(labels: Sequence[str]) -> bool:
    """Return whether labels are a word for yes and a word for no, in this order and in any language."""
    words = [normalize_word(label) for label in labels]
    return len(words) == 2 and words[0] in YES_WORDS and words[1] in NO_WORDS


def opposite_of_no(labels: Iterable[str]) -> str | None:
    """Return the only label that is no word for no, if another label is one, else None."""
    labels = tuple(labels)
    possible_labels = [label for label in labels if normalize_word(label) not in NO_WORDS]
    return possible_labels[0] if len(possible_labels) == 1 < len(labels) else None
