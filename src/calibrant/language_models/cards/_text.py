"""The card as text of at most 80 columns."""

import math
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from calibrant._core.text import cut_middle, display_name, format_percent
from calibrant.language_models import CONVENTIONS
from calibrant.language_models.cards._numbers import (
    MIN_TIE_RANGE,
    NO_RANKS,
    CoverageRow,
    PolicyRow,
    Ranking,
    SubjectRow,
    UngradedAnswers,
)
from calibrant.metrics import Interval

if TYPE_CHECKING:
    from calibrant.language_models.cards._card import Card, ModelCard

LABEL_WIDTH, TEXT_WIDTH = 32, 80
MAX_ROW_NAME_CHARACTERS = LABEL_WIDTH - 4  # two spaces before a name and two after it
MAX_TEXT_SUBJECTS = 8
MAX_TEXT_QUESTIONS = 10


def card_text(card: "Card") -> str:
    """Return the card as text."""
    blocks = [
        [card.title],
        *map(_ungraded_lines, card.ungraded),
        *(_model_lines(model, with_name=len(card.models) > 1) for model in card.models),
        *([[NO_RANKS]] if len(card.models) > 1 and not card.rankings else []),
        *map(_ranking_lines, card.rankings),
    ]
    return "\n\n".join(map("\n".join, blocks))


def _model_lines(model: "ModelCard", *, with_name: bool) -> list[str]:
    """Return the lines on a model, below its name and headline if `with_name`."""
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in model.outcomes.items() if count)
    numbers = model.numbers
    values = {
        "accuracy": _percent_interval(model.accuracy),
        "with a confidence": _percent_interval(model.with_confidence),
        "not answered": _percent_interval(model.not_answered),
        "confidence minus accuracy": _percent_interval(numbers["signed_gap"]),
        "calibration error, debiased": _percent_interval(numbers["debiased_l2"]),
        "ECE": f"{format_percent(numbers['ece'].value)}, calibrated up to {format_percent(model.noise_floor.high)}",
        "Brier score": str(numbers["event_brier"]),
        "AUROC": str(numbers["auroc"]),
    }
    subjects = [_subject_line(subject) for subject in model.subjects[:MAX_TEXT_SUBJECTS]]
    return [
        *([f"{display_name(model.name)}: {model.headline}"] if with_name else []),
        *textwrap.wrap(f"{model.answers:,} answers to {model.questions:,} questions: {counts}.", TEXT_WIDTH),
        "",
        *(_line(label, text) for label, text in values.items()),
        "",
        *_convention_lines(model),
        "",
        "accuracy of the most confident answers",
        *map(_coverage_line, model.coverage),
        "",
        "score per question if wrong answers cost t / (1 - t)",
        *map(_policy_line, model.policies),
        *(["", "subjects with the largest gaps", *subjects] if subjects else []),
    ]


def _coverage_line(row: CoverageRow) -> str:
    """Return the line of a share of the answers: its smallest confidence, and its accuracy with limits."""
    label = f"  {100 * row.coverage:.0f} %, confidence from {100 * row.threshold:.0f} %"
    return _line(label, f"{format_percent(row.accuracy)} [{format_percent(row.low)}, {format_percent(row.high)}]")


def _policy_line(row: PolicyRow) -> str:
    """Return the line of a policy: its smallest confidence t, answered share, score, and the score of answering all."""
    label = f"  t = {row.target:g}, answers {format_percent(row.answered, 0)}"
    score = f"{row.score.value:+.3f} [{row.score.low:+.3f}, {row.score.high:+.3f}]"
    return _line(label, f"{score}, always {row.always:+.3f}")


def _subject_line(row: SubjectRow) -> str:
    """Return the line of a subject: its name, gap and number of questions."""
    name = cut_middle(display_name(row.name), MAX_ROW_NAME_CHARACTERS)
    return _line(f"  {name}", f"{_percent_interval(row.gap)}, n = {row.questions:,}")


def _convention_lines(model: "ModelCard") -> Iterator[str]:
    """Yield each published convention, with its range if ties have one and its bounds if confidences are missing."""
    yield "published conventions" if model.conventions else "no published conventions, which take scores 0 or 1"
    for name, value in model.conventions.items():
        text = "none" if math.isnan(value.value) else f"{value.value:.4f}"
        if value.high - value.low >= MIN_TIE_RANGE:
            text += f", {value.low:.4f} to {value.high:.4f} over orders of ties"
        yield _line("  " + CONVENTIONS[name].title, text)
        bounds = model.bounds.get(name)
        if bounds is not None and value.filled:
            kind = "" if bounds.is_exact else " (outer bounds)"
            yield _line("", f"{bounds.low:.4f} to {bounds.high:.4f} over {value.filled:,} missing confidences{kind}")


def _ungraded_lines(estimate: UngradedAnswers) -> list[str]:
    """Return the estimates of a model with ungraded answers, if any is graded, and the questions to grade next."""
    questions = ", ".join(display_name(question) for _, question in estimate.grade_next[:MAX_TEXT_QUESTIONS])
    rest = "" if len(estimate.grade_next) <= MAX_TEXT_QUESTIONS else ", ... (all are in the JSON and on the page)"
    values = {"accuracy of all": estimate.accuracy, "confidence minus accuracy": estimate.gap}
    return [
        f"{display_name(estimate.name)}: answers without a grade",
        *textwrap.wrap(estimate.sentence, TEXT_WIDTH),
        *(_line(label, _percent_interval(x)) for label, x in values.items() if estimate.graded),
        *textwrap.wrap(f"Questions to grade next, in this order: {questions}{rest}", TEXT_WIDTH),
    ]


def _ranking_lines(ranking: Ranking) -> list[str]:
    """Return the title of a ranking, and the score and ranks of every model."""
    names = [cut_middle(display_name(row.model), MAX_ROW_NAME_CHARACTERS) for row in ranking.rows]
    return [
        f"ranks by {ranking.title}, {ranking.questions:,} shared questions",
        *(_line(f"  {name}", f"{row.score:.4f}   rank {row.ranks_text}") for name, row in zip(names, ranking.rows)),
    ]


def _line(label: str, text: str) -> str:
    """Return a line with a label and a text in two columns."""
    return f"{label:{LABEL_WIDTH}} {text}"


def _percent_interval(x: Interval) -> str:
    """Return a share and its interval in percent."""
    return f"{format_percent(x.value)} [{format_percent(x.low)}, {format_percent(x.high)}]"
