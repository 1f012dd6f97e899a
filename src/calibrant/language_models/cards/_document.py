"""What a card says."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from calibrant._core.numbers import format_level, format_percent, format_percent_range
from calibrant._core.text import display_name
from calibrant.language_models import CONVENTIONS, Bounds, PublishedValue
from calibrant.language_models.cards._numbers import MIN_TIE_RANGE, NO_RANKS, Ranking, UngradedAnswers
from calibrant.metrics import Interval
from calibrant.reports.diagrams import reliability_figure
from calibrant.reports.document import (
    Answer,
    Deferred,
    Document,
    Fold,
    Note,
    Paragraph,
    Part,
    Picture,
    Section,
    SideBySide,
    Table,
)

if TYPE_CHECKING:
    from calibrant.language_models.cards._card import Card, ModelCard

MAX_DIAGRAMS = 12
MAX_TEXT_SUBJECTS = 8
MAX_TEXT_QUESTIONS = 3


def card_document(card: "Card") -> Document:
    """Return what a card says: the tables of all models, their reliability diagrams, and how logs were read."""
    models = card.models
    without_grades = [estimate for estimate in card.ungraded if not estimate.graded]  # these are not in `models`
    num_models = len(models) + len(without_grades)
    num_answers = sum(model.answers for model in models) + sum(estimate.ungraded for estimate in without_grades)
    note = (
        f"{num_answers:,} answers of {num_models} model{'s' if num_models > 1 else ''}. Intervals hold with "
        f"probability {format_level(card.level)}; every question counts once, whatever its number of repeats."
    )
    answers = [Answer(f"How often is {display_name(x.name)} right?", _ungraded_answer(x)) for x in card.ungraded]
    sections = [Section("Answers without a grade", _ungraded(card.ungraded))] if card.ungraded else []
    sections += _model_sections(card) if models else []
    return Document("Calibration card", card.title, answers, notes=[note], sections=sections)


def _ungraded_answer(estimate: UngradedAnswers) -> str:
    """Return what the grades tell of the accuracy of all answers, and the first answers to grade next."""
    questions = ", ".join(display_name(question) for _, question in estimate.grade_next[:MAX_TEXT_QUESTIONS])
    rest = "." if len(estimate.grade_next) <= MAX_TEXT_QUESTIONS else ", ... (the page and the JSON file list all)."
    return f"{estimate.sentence} Grade next: {questions}{rest}"


def _model_sections(card: "Card") -> list[Section]:
    """Return the sections on models with graded answers, without ranks or subjects if there are none."""
    models = card.models
    no_ranks: list[Part] = [Note(NO_RANKS)] if len(models) > 1 else []
    sections = [
        Section("Accuracy and calibration", _summary(models)),
        Section("Reliability", Deferred(lambda: _diagrams(models)), is_detail=True),
        Section("Ranks", _ranks(card.rankings) or no_ranks),
        Section("Published conventions", _conventions(models)),
        Section("Accuracy of the most confident answers", [_coverage(models)]),
        Section("Answer, or say nothing", [_policies(models)]),
        Section("Subjects", _subjects(models)),
        Section("How the logs were read", _notes(models), is_detail=True),
    ]
    return [section for section in sections if section.parts]


def _ungraded(estimates: Sequence[UngradedAnswers]) -> list[Part]:
    """Return the estimates for models with ungraded answers, and the answers to grade next."""
    head = ["model", "graded", "not graded", "mean confidence", "accuracy of all", "confidence − accuracy"]
    rows = [
        [
            display_name(estimate.name),
            f"{estimate.graded:,}",
            f"{estimate.ungraded:,}",
            format_percent(estimate.confidence, 1),
            _percents(estimate.accuracy) if estimate.graded else "unknown",
            _percents(estimate.gap) if estimate.graded else "unknown",
        ]
        for estimate in estimates
    ]
    return [Table("answers without a grade", head, rows), *map(_answers_to_grade, estimates)]


def _answers_to_grade(estimate: UngradedAnswers) -> Fold:
    """Return the answers to grade next, folded, as a table that can be downloaded."""
    rows = [[display_name(question), display_name(task)] for task, question in estimate.grade_next]
    note = "Grade them in this order, and stop when you like: the first of them are a random sample too."
    summary = f"{display_name(estimate.name)}: {len(rows):,} answers to grade next"
    return Fold(summary, [Table("answers to grade", ["question", "task"], rows, note=note)])


def _summary(models: "Sequence[ModelCard]") -> list[Part]:
    """Return two tables with a row per model, one of answers and accuracy, and one of calibration."""
    head = ["model", "answers", "without a confidence", "not answered", "accuracy", "confidence − accuracy"]
    answers = [
        [
            display_name(m.name),
            f"{m.answers:,}",
            format_percent(max(0.0, 1 - m.with_confidence.value - m.not_answered.value), 1),  # may round below 0
            format_percent(m.not_answered.value, 1),
            _percents(m.accuracy),
            _percents(m.numbers["signed_gap"]),
        ]
        for m in models
    ]
    calibration_head = ["model", "calibration error", "ECE", "if calibrated", "Brier", "AUROC"]
    calibration = [
        [
            display_name(m.name),
            _percents(m.numbers["debiased_l2"]),
            format_percent(m.numbers["ece"].value),
            f"up to {format_percent(m.noise_floor.high)}",
            _numbers(m.numbers["event_brier"]),
            _numbers(m.numbers["auroc"]),
        ]
        for m in models
    ]
    text = (
        "All graded answers count in the accuracy, and the answers with a confidence in the other values. The "
        "calibration error is the root of the mean squared gap without the bias of ECE; a calibrated model would show "
        "an ECE up to the value “if calibrated” by chance. The Brier score and AUROC take confidences as probabilities "
        "of a right answer; AUROC tells how well they separate right from wrong answers."
    )
    return [Table("answers", head, answers), Table("calibration", calibration_head, calibration, note=text)]


def _diagrams(models: "Sequence[ModelCard]") -> list[Part]:
    """Return the reliability diagrams of the first `MAX_DIAGRAMS` models."""
    text = "Blue: accuracy by stated confidence. Red: the gap to the confidence. Fainter bars have fewer answers."
    num_hidden = len(models) - MAX_DIAGRAMS
    if num_hidden > 0:
        text += f" {num_hidden} more models are not drawn."
    return [SideBySide([_diagram(model) for model in models[:MAX_DIAGRAMS]]), Note(text)]


def _diagram(model: "ModelCard") -> Picture:
    """Return the reliability diagram of a model."""
    name = display_name(model.name)
    return reliability_figure(model.predictions, f"Reliability diagram of {name}: {model.headline}.", name)


def _ranks(rankings: Sequence[Ranking]) -> list[Part]:
    """Return a table of ranks for each score."""
    parts: list[Part] = []
    for ranking in rankings:
        rows = [[display_name(row.model), f"{row.score:.4f}", row.ranks_text] for row in ranking.rows]
        explanation = (
            f"Paired on {ranking.questions:,} questions that all models answered. All ranks lie in their intervals "
            f"with probability {format_level(ranking.level)}."
        )
        head = ["model", ranking.title, "rank"]
        parts.append(Table(f"ranks by {ranking.title}", head, rows, note=explanation))
    return parts


def _conventions(models: "Sequence[ModelCard]") -> list[Part]:
    """Return the published conventions, their bounds over missing confidences, and definitions.

    Models with fractional scores are left out. If no model remains, say why.
    """
    models = [m for m in models if m.conventions]
    if not models:
        return [Note("Published conventions take scores 0 or 1, not fractional ones.")]
    titles = {name: convention.title for name, convention in CONVENTIONS.items()}
    rows = [[display_name(m.name), *map(_convention_text, m.conventions.values())] for m in models]
    bound_titles = {"signed_gap": "confidence − accuracy", "brier": "Brier"} | titles
    bound_head = ["model", "missing", *(bound_titles[name] for name in models[0].bounds)]
    bound_rows: list[list[str]] = []
    for m in models:
        num_missing = max(value.filled for value in m.conventions.values())  # 0 if a convention takes no confidences
        bound_rows.append([display_name(m.name), f"{num_missing:,}", *map(_bounds_text, m.bounds.values())])
    definition_head = ["number", "definition", "missing confidences", "source"]
    definitions = [[c.title, c.definition, c.missing, c.source] for c in CONVENTIONS.values()]
    explanation = (
        "Each number as its published code computes it, in the order of the file; in parentheses, its range over all "
        "orders of answers with equal confidences. A missing confidence counts as 100 % there. The next table has the "
        "least and the greatest value over everything that the missing confidences could have been. Bounds marked "
        "(outer) contain these two values, and can be wider."
    )
    return [
        Table("published conventions", ["model", *titles.values()], rows, note=explanation),
        Table("bounds over missing confidences", bound_head, bound_rows),
        Fold("Definitions and sources", [Table("definitions", definition_head, definitions)]),
    ]


def _convention_text(value: PublishedValue) -> str:
    """Return a number, with its range over orders of equal confidences if it has one, or "none" if it is undefined."""
    if math.isnan(value.value):
        return "none"
    text = f"{value.value:.4f}"
    return text if value.high - value.low < MIN_TIE_RANGE else f"{text} ({value.low:.4f} to {value.high:.4f})"


def _bounds_text(bounds: Bounds) -> str:
    """Return the bounds over missing confidences as text, which marks outer bounds, or "none" if they are undefined."""
    if math.isnan(bounds.low):
        return "none"
    return f"{bounds.low:.4f} to {bounds.high:.4f}{'' if bounds.is_exact else ' (outer)'}"


def _coverage(models: "Sequence[ModelCard]") -> Table:
    """Return the table of accuracy at coverage. The name of a model stands in its first row."""
    head = ["model", "answers", "confidence from", "accuracy"]
    rows = [
        [
            display_name(model.name) if i == 0 else "",
            format_percent(row.coverage, 0),
            format_percent(row.threshold, 0),
            f"{format_percent(row.accuracy, 1)} ({format_percent_range(row.low, row.high, 1)})",
        ]
        for model in models
        for i, row in enumerate(model.coverage)
    ]
    text = (
        "Each row has the most confident of the answers that have a confidence. Answers of equal confidence belong "
        "together. The limits of a model hold for all shares at once."
    )
    return Table("accuracy at coverage", head, rows, note=text)


def _policies(models: "Sequence[ModelCard]") -> Table:
    """Return the table of mean scores if only questions with a confidence of at least t are answered.

    Only the first row of a model has its name.
    """
    head = ["model", "t", "answered", "score", "always answering"]
    rows = [
        [
            display_name(model.name) if i == 0 else "",
            f"{row.target:g}",
            format_percent(row.answered, 0),
            f"{row.score.value:+.3f} ({row.score.low:+.3f} to {row.score.high:+.3f})",
            f"{row.always:+.3f}",
        ]
        for model in models
        for i, row in enumerate(model.policies)
    ]
    text = (
        "The mean score per question if the model answers only with a confidence of at least t: a right answer counts "
        "1, no answer 0, a wrong answer −t / (1 − t). With true confidences no other rule is better, and the score is "
        "never below 0 or the score of always answering, up to chance."
    )
    return Table("score by smallest confidence t", head, rows, note=text)


def _subjects(models: "Sequence[ModelCard]") -> list[Part]:
    """Return a table of subjects for each model that has them, folded if there are several models, else nothing."""
    head = ["subject", "questions", "accuracy", "confidence", "confidence − accuracy"]
    parts: list[Part] = []
    for m in [model for model in models if model.subjects]:
        name, rows = display_name(m.name), list[list[str]]()
        for s in m.subjects:
            accuracy, confidence = format_percent(s.accuracy, 1), format_percent(s.confidence, 1)
            rows.append([display_name(s.name), f"{s.questions:,}", accuracy, confidence, _percents(s.gap)])
        highlighted = [s.gap.low > 0 or s.gap.high < 0 for s in m.subjects]
        table = Table(f"subjects of {name}", head, rows, marked=highlighted, max_text_rows=MAX_TEXT_SUBJECTS)
        parts.append(table if len(models) == 1 else Fold(name, [table]))
    text = "Marked subjects have a gap beyond chance; the intervals of all subjects of a model hold together."
    return [*parts, Note(text)] if parts else []


def _notes(models: "Sequence[ModelCard]") -> list[Part]:
    """Return the remarks on how each log was read, or that there are none."""
    parts = [Paragraph(" ".join(model.notes), display_name(model.name)) for model in models if model.notes]
    return [*parts] if parts else [Note("No remarks.")]


def _percents(x: Interval) -> str:
    """Return a share and its interval in percent."""
    return f"{format_percent(x.value)} ({format_percent_range(x.low, x.high)})"


def _numbers(x: Interval) -> str:
    """Return a value and its interval."""
    return f"{x.value:.3f} ({x.low:.3f} to {x.high:.3f})"
