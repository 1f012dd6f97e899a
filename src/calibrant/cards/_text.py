"""The card as text of at most 80 columns."""

import math
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from calibrant._text import cut_middle, display_name, format_percent
from calibrant.cards._numbers import MIN_TIE_RANGE
from calibrant.cards._ranks import Ranking
from calibrant.cards._ungraded import UngradedAnswers
from calibrant.language_models import CONVENTIONS
from calibrant.metrics import Interval

if TYPE_CHECKING:
    from calibrant.cards._card import Card, ModelCard

LABEL_WIDTH, TEXT_WIDTH = 32, 80
MAX_ROW_NAME_CHARACTERS = LABEL_WIDTH - 4  # two spaces before a name and two after it
MAX_TEXT_SUBJECTS = 8
MAX_TEXT_QUESTIONS = 10


def card_text(card: "Card") -> str:
    """Return the card as text."""
    lines = [card.title, ""]
    for estimate in card.ungraded:
        lines += [*_ungraded_lines(estimate), ""]
    for model in card.models:
        lines += [*_model_lines(model, with_name=len(card.models) > 1), ""]
    for ranking in card.rankings:
        lines += [*_ranking_lines(ranking), ""]
    return "\n".join(lines).rstrip()


def _model_lines(model: "ModelCard", *, with_name: bool) -> Iterator[str]:
    """Yield the lines on a model, below its name and headline if `with_name`."""
    if with_name:
        yield f"{display_name(model.name)}: {model.headline}"
    counts = ", ".join(f"{count:,} {outcome}" for outcome, count in model.outcomes.items() if count)
    yield from textwrap.wrap(f"{model.answers:,} answers to {model.questions:,} questions: {counts}.", TEXT_WIDTH)
    yield ""
    yield _line("accuracy", _percent_interval(model.accuracy))
    yield _line("with a confidence", _percent_interval(model.with_confidence))
    yield _line("not answered", _percent_interval(model.not_answered))
    gap = model.numbers["signed_gap"]
    yield _line("confidence minus accuracy", _percent_interval(gap))
    yield _line("calibration error, debiased", _percent_interval(model.numbers["debiased_l2"]))
    ece, floor = model.numbers["ece"].value, model.noise_floor.high
    yield _line("ECE", f"{format_percent(ece)}, calibrated up to {format_percent(floor)}")
    yield _line("Brier score", str(model.numbers["event_brier"]))
    yield _line("AUROC", str(model.numbers["auroc"]))
    yield ""
    yield from _convention_lines(model)
    yield ""
    yield "accuracy of the most confident answers"
    for row in model.coverage:
        label = f"  {100 * row.coverage:.0f} %, confidence from {100 * row.threshold:.0f} %"
        yield _line(label, f"{format_percent(row.accuracy)} [{format_percent(row.low)}, {format_percent(row.high)}]")
    yield ""
    yield "score per question if wrong answers cost t / (1 - t)"
    for row in model.policies:
        label = f"  t = {row.target:g}, answers {format_percent(row.answered, 0)}"
        score = f"{row.score.value:+.3f} [{row.score.low:+.3f}, {row.score.high:+.3f}]"
        yield _line(label, f"{score}, always {row.always:+.3f}")
    if model.subjects:
        yield ""
        yield "subjects with the largest gaps"
        for subject in model.subjects[:MAX_TEXT_SUBJECTS]:
            label = f"  {cut_middle(display_name(subject.name), MAX_ROW_NAME_CHARACTERS)}"
            yield _line(label, f"{_percent_interval(subject.gap)}, n = {subject.questions:,}")


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


def _ungraded_lines(estimate: UngradedAnswers) -> Iterator[str]:
    """Yield the estimates of a model with ungraded answers, if any is graded, and the questions to grade next."""
    yield f"{display_name(estimate.name)}: answers without a grade"
    yield from textwrap.wrap(estimate.sentence, TEXT_WIDTH)
    if estimate.graded:
        yield _line("accuracy of all", _percent_interval(estimate.accuracy))
        yield _line("confidence minus accuracy", _percent_interval(estimate.gap))
    questions = ", ".join(display_name(question) for _, question in estimate.grade_next[:MAX_TEXT_QUESTIONS])
    rest = "" if len(estimate.grade_next) <= MAX_TEXT_QUESTIONS else ", ... (all are in the JSON and on the page)"
    yield from textwrap.wrap(f"Questions to grade next, in this order: {questions}{rest}", TEXT_WIDTH)


def _ranking_lines(ranking: Ranking) -> Iterator[str]:
    """Yield the title of a ranking, and the score and ranks of every model."""
    yield f"ranks by {ranking.title}, {ranking.questions:,} shared questions"
    for row in ranking.rows:
        name = cut_middle(display_name(row.model), MAX_ROW_NAME_CHARACTERS)
        yield _line(f"  {name}", f"{row.score:.4f}   rank {row.ranks_text}")


def _line(label: str, text: str) -> str:
    """Return a line with a label and a text in two columns."""
    return f"{label:{LABEL_WIDTH}} {text}"


def _percent_interval(x: Interval) -> str:
    """Return a share and its interval in percent."""
    return f"{format_percent(x.value)} [{format_percent(x.low)}, {format_percent(x.high)}]"
