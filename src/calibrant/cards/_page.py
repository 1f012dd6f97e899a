"""The page of a card."""

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from markupsafe import Markup

from calibrant import report
from calibrant._text import display_name, format_percent, format_percent_range
from calibrant.cards._numbers import MIN_TIE_RANGE
from calibrant.cards._ranks import Ranking
from calibrant.cards._ungraded import UngradedAnswers
from calibrant.language_models import CONVENTIONS, Bounds, PublishedValue
from calibrant.metrics import Interval

if TYPE_CHECKING:
    from calibrant.cards._card import Card, ModelCard

MAX_DIAGRAMS = 12


def card_page(card: "Card", command: str) -> str:
    """Return the HTML page of a card."""
    models = card.models
    without_grades = [estimate for estimate in card.ungraded if not estimate.graded]  # these are not in `models`
    num_models = len(models) + len(without_grades)
    num_answers = sum(model.answers for model in models) + sum(estimate.ungraded for estimate in without_grades)
    lead = (
        f"{num_answers:,} answers of {num_models} model{'s' if num_models > 1 else ''}. Intervals hold with "
        f"probability {100 * card.level:g} %; every question counts once, whatever its number of repeats."
    )
    sections = [
        *([report.Section("Answers without a grade", _ungraded(card.ungraded))] if card.ungraded else []),
        *(_model_sections(card) if models else []),
    ]
    return report.page(card.title, [lead], sections, report.version_facts(command), kicker="Calibration card")


def _model_sections(card: "Card") -> list[report.Section]:
    """Return the sections on models with graded answers, without ranks or subjects if there are none."""
    models = card.models
    return [
        report.Section("Accuracy and calibration", _summary(models)),
        report.Section("Reliability", _diagrams(models)),
        *([report.Section("Ranks", _ranks(card.rankings))] if card.rankings else []),
        report.Section("Published conventions", _conventions(models)),
        report.Section("Accuracy of the most confident answers", _coverage(models)),
        report.Section("Answer, or say nothing", _policies(models)),
        *([report.Section("Subjects", _subjects(models))] if any(model.subjects for model in models) else []),
        report.Section("How the logs were read", _notes(models)),
    ]


def _ungraded(estimates: Sequence[UngradedAnswers]) -> Markup:
    """Return the estimates for models with ungraded answers, what they mean, and the answers to grade next."""
    rows = [
        [
            display_name(x.name),
            f"{x.graded:,}",
            f"{x.ungraded:,}",
            format_percent(x.confidence, 1),
            _percents(x.accuracy) if x.graded else "unknown",
            _percents(x.gap) if x.graded else "unknown",
        ]
        for x in estimates
    ]
    head = ["model", "graded", "not graded", "mean confidence", "accuracy of all", "confidence − accuracy"]
    sentences = [report.render("<p><strong>{}</strong> {}</p>", display_name(x.name), x.sentence) for x in estimates]
    table = report.table(head, rows, caption="answers without a grade", long_row_names=True)
    return report.join_html([table, *sentences, *(_answers_to_grade(x) for x in estimates)])


def _answers_to_grade(estimate: UngradedAnswers) -> Markup:
    """Return the answers to grade next, folded, with a link that downloads them as JSON."""
    content = json.dumps([{"task": task, "question": question} for task, question in estimate.grade_next])
    return report.render(
        "<details><summary>{}: {} answers to grade next</summary><p>Grade them in this order, and stop when you like: "
        'the first of them are a random sample too. <a href="{}" download="answers_to_grade.json">Download the list</a>'
        "</p><p>{}</p></details>",
        display_name(estimate.name),
        f"{len(estimate.grade_next):,}",
        "data:application/json," + quote(content),
        ", ".join(display_name(question) for _, question in estimate.grade_next),
    )


def _summary(models: "Sequence[ModelCard]") -> Markup:
    """Return two tables with a row per model, one of answers and accuracy, and one of calibration."""
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
    head = ["model", "answers", "without a confidence", "not answered", "accuracy", "confidence − accuracy"]
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
    calibration_head = ["model", "calibration error", "ECE", "if calibrated", "Brier", "AUROC"]
    text = (
        "Accuracy is that of all graded answers. The other numbers are those of the answers with a confidence. The "
        "calibration error is the root of the mean squared gap without the bias of ECE; true confidences would show an "
        "ECE up to the next number by chance. The Brier score is that of the confidences. AUROC tells how well they "
        "separate right from wrong answers."
    )
    return report.join_html(
        [
            report.table(head, answers, caption="answers", long_row_names=True),
            report.table(calibration_head, calibration, caption="calibration", long_row_names=True),
            report.note(text),
        ]
    )


def _diagrams(models: "Sequence[ModelCard]") -> Markup:
    """Return the reliability diagrams of the first `MAX_DIAGRAMS` models."""
    figures = report.join_html(map(_diagram, models[:MAX_DIAGRAMS]))
    text = "Blue: accuracy by stated confidence. Red: the gap to the confidence. Fainter bars have fewer answers."
    num_hidden = len(models) - MAX_DIAGRAMS
    text += f" {num_hidden} more models are not drawn." if num_hidden > 0 else ""
    return report.join_html([report.render('<div class="figures">{}</div>', figures), report.note(text)])


def _diagram(model: "ModelCard") -> Markup:
    """Return the reliability diagram of a model."""
    name = display_name(model.name)
    return report.reliability_figure(model.predictions, f"Reliability diagram of {name}: {model.headline}.", name)


def _ranks(rankings: Sequence[Ranking]) -> Markup:
    """Return a table of ranks for each score."""
    parts: list[Markup] = []
    for ranking in rankings:
        head, caption = ["model", ranking.title, "rank"], f"ranks by {ranking.title}"
        rows = [[display_name(row.model), f"{row.score:.4f}", row.ranks_text] for row in ranking.rows]
        parts.append(report.table(head, rows, caption=caption, long_row_names=True))
        explanation = (
            f"Paired on {ranking.questions:,} questions that all models answered. All ranks lie in their intervals "
            f"with probability {100 * ranking.level:g} %."
        )
        parts.append(report.note(explanation))
    return report.join_html(parts)


def _conventions(models: "Sequence[ModelCard]") -> Markup:
    """Return the published conventions, their bounds over missing confidences, and definitions.

    Models with fractional scores have none; if all models have, say so.
    """
    models = [m for m in models if m.conventions]
    if not models:
        return report.note("Published conventions take scores 0 or 1, not fractional ones.")
    head = ["model", *(convention.title for convention in CONVENTIONS.values())]
    rows = [[display_name(m.name), *map(_convention_text, m.conventions.values())] for m in models]
    titles = {"signed_gap": "confidence − accuracy", "brier": "Brier"}
    titles |= {name: convention.title for name, convention in CONVENTIONS.items()}
    bound_head = ["model", "missing", *(titles[name] for name in models[0].bounds)]
    bound_rows = [
        [
            display_name(m.name),
            f"{max(value.filled for value in m.conventions.values()):,}",
            *map(_bounds_text, m.bounds.values()),
        ]
        for m in models
    ]
    definition_head = ["number", "definition", "missing confidences", "source"]
    definitions = [[c.title, c.definition, c.missing, c.source] for c in CONVENTIONS.values()]
    definition_table = report.table(definition_head, definitions, caption="definitions", long_row_names=True)
    explanation = (
        "Each number as its published code computes it, in the order of the file; in parentheses, its range over all "
        "orders of answers with equal confidences. A missing confidence counts as 100 % there. The next table has the "
        "least and the greatest value over everything that the missing confidences could have been. Bounds marked "
        "(outer) contain these two values, and can be wider."
    )
    parts = [
        report.table(head, rows, caption="published conventions", long_row_names=True),
        report.note(explanation),
        report.table(bound_head, bound_rows, caption="bounds over missing confidences", long_row_names=True),
        report.details("Definitions and sources", definition_table),
    ]
    return report.join_html(parts)


def _convention_text(value: PublishedValue) -> str:
    """Return a number, with its range over orders of equal confidences if it has one, or "none" if it is undefined."""
    if math.isnan(value.value):
        return "none"
    text = f"{value.value:.4f}"
    return text if value.high - value.low < MIN_TIE_RANGE else f"{text} ({value.low:.4f} to {value.high:.4f})"


def _bounds_text(bounds: Bounds) -> str:
    """Return the bounds over missing confidences as text, which marks outer bounds."""
    return f"{bounds.low:.4f} to {bounds.high:.4f}{'' if bounds.is_exact else ' (outer)'}"


def _coverage(models: "Sequence[ModelCard]") -> Markup:
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
    body = report.table(head, rows, caption="accuracy at coverage", long_row_names=True)
    return report.join_html([body, report.note(text)])


def _policies(models: "Sequence[ModelCard]") -> Markup:
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
        "never below 0 or that of answering always, up to chance."
    )
    body = report.table(head, rows, caption="score by smallest confidence t", long_row_names=True)
    return report.join_html([body, report.note(text)])


def _subjects(models: "Sequence[ModelCard]") -> Markup:
    """Return a table of subjects for each model that has them, folded if there are several models."""
    head = ["subject", "questions", "accuracy", "confidence", "confidence − accuracy"]
    parts: list[Markup] = []
    for m in models:
        name, rows = display_name(m.name), list[list[str]]()
        for s in m.subjects:
            accuracy, confidence = format_percent(s.accuracy, 1), format_percent(s.confidence, 1)
            rows.append([display_name(s.name), f"{s.questions:,}", accuracy, confidence, _percents(s.gap)])
        highlighted = [s.gap.low > 0 or s.gap.high < 0 for s in m.subjects]
        if rows:
            body = report.table(head, rows, caption=f"subjects of {name}", highlighted=highlighted, long_row_names=True)
            parts.append(body if len(models) == 1 else report.details(name, body))
    text = "Marked subjects have a gap beyond chance; the intervals of all subjects of a model hold together."
    return report.join_html([*parts, report.note(text)])


def _notes(models: "Sequence[ModelCard]") -> Markup:
    """Return the remarks on how each log was read."""
    parts = [
        report.render("<p><strong>{}</strong> {}</p>", display_name(m.name), " ".join(m.notes))
        for m in models
        if m.notes
    ]
    return report.join_html(parts) if parts else report.note("No remarks.")


def _percents(x: Interval) -> str:
    """Return a share and its interval in percent."""
    return f"{format_percent(x.value)} ({format_percent_range(x.low, x.high)})"


def _numbers(x: Interval) -> str:
    """Return a number and its interval."""
    return f"{x.value:.3f} ({x.low:.3f} to {x.high:.3f})"
