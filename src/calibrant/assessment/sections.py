"""The report on somebody's own predictions: read from top to bottom it answers whether they can be believed."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant._text import display_name
from calibrant.assessment import lay_text
from calibrant.assessment._controls import (
    assessment_temperature_control,
    class_control,
    measurement_temperature_control,
    threshold_control,
)
from calibrant.assessment._results import AssessmentData, MeasurementData
from calibrant.assessment._table_cells import (
    change_cell,
    confidence_text,
    explain_terms,
    name_cell,
    row_cell,
    share_text,
    two_lines,
    value_cell,
)
from calibrant.assessment.expert_text import (
    Answer,
    assessment_answers,
    best_mask,
    cluster_sentence,
    decomposed_changes,
    fit_warnings,
    format_level,
    format_p_value,
    format_percent,
    group_headings,
    group_rows,
    headline,
    measurement_answers,
    metric_headings,
    miscalibration_cost_sentence,
)
from calibrant.metrics import Curve, Difference, MetricInfo
from calibrant.metrics.curves import risk_coverage_of
from calibrant.metrics.tables import thresholds_of
from calibrant.plots import risk_coverage
from calibrant.predictions import BINARY_EVENTS
from calibrant.registry import CALIBRATORS
from calibrant.report import (
    INFINITE_MEAN_EXPLANATION,
    Section,
    bar_diagram,
    curve_diagram,
    details,
    diagram_explanations,
    figure,
    join_html,
    method_label,
    note,
    page,
    render,
    reveal_hidden_characters,
    switchable_text,
    table,
    typeset,
    version_facts,
)

TABLE_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # thresholds
MAX_UNFOLDED_ROWS = 15  # rows of the tables of classes and mistakes before the rest is folded away
MAX_TABLE_ROWS = 1000  # of classes or groups on the page
KICKER = "Are these probabilities true?"

LabeledMeasurements = Mapping[str, MeasurementData]  # by what was done to the predictions: one, or before and after


def measurement_page(measurement: MeasurementData, extra_facts: Mapping[str, str]) -> str:
    """Return the HTML report on predictions as they are."""
    tables = {"value": measurement}
    sections = [
        Section(
            "The answer", _answer_list(measurement_answers(measurement), lay_text.measurement_answers(measurement))
        ),
        Section(
            measurement.event.diagram_heading,
            _diagrams({"As they are": measurement}) + measurement_temperature_control(measurement),
        ),
        Section("The numbers", _metrics_table(tables, {})),
        *_group_sections(tables),
        *_class_sections(tables),
        *_coverage_sections({"as they are": measurement}),
        *_threshold_sections({"as they are": measurement}),
    ]
    lead = (
        f"{measurement.n:,} {measurement.population}, as they are: nothing was fitted. {_event_sentence(measurement)}"
    )
    tiles = _tiles(measurement, measurement, measurement["nll"].interval)
    opening = [lead.strip(), *measurement.remarks]
    return page(headline(measurement), opening, sections, _report_facts(extra_facts), kicker=KICKER, tiles=tiles)


def assessment_page(
    assessment: AssessmentData, extra_facts: Mapping[str, str], calibrator_path: str | Path | None = None
) -> str:
    """Return the HTML report of calibrators on somebody's own predictions."""
    uncalibrated, calibrated = assessment.uncalibrated, assessment.calibrated
    measurements = _label_measurements(assessment)
    changes = {row.name: row for row in assessment.changes or ()}
    sections = [
        Section("The answer", _answer_list(assessment_answers(assessment), lay_text.assessment_answers(assessment))),
        Section(
            uncalibrated.event.diagram_heading,
            _diagrams({_capitalize(name): measurement for name, measurement in measurements.items()})
            + assessment_temperature_control(assessment),
        ),
        *(
            [Section("What it costs, and what is left", _decomposition_table(assessment))]
            if decomposed_changes(assessment)
            else []
        ),
        Section("The numbers", _metrics_table(measurements, changes)),
        Section("Every calibrator", _calibrators_table(assessment)),
        *_group_sections(measurements),
        *_class_sections(measurements),
        *_coverage_sections(measurements),
        *_threshold_sections(measurements),
        *([Section("Confident mistakes", _mistakes_table(assessment))] if assessment.mistakes else []),
        Section("Use the calibrator", _usage_instructions(assessment, calibrator_path, "command" in extra_facts)),
    ]
    lead = f"{uncalibrated.n:,} {uncalibrated.population}. {assessment.protocol} {_event_sentence(uncalibrated)}"
    tiles = _tiles(uncalibrated, calibrated, f"by {assessment.chosen_label}" if calibrated is not uncalibrated else "")
    opening = [lead.strip(), *uncalibrated.remarks]
    return page(headline(uncalibrated), opening, sections, _report_facts(extra_facts), kicker=KICKER, tiles=tiles)


def measurement_notebook_html(measurement: MeasurementData) -> str:
    """Return what a notebook shows."""
    return _notebook_html(measurement, measurement_answers(measurement), {"value": measurement}, {})


def assessment_notebook_html(assessment: AssessmentData) -> str:
    """Return what a notebook shows."""
    tables = {"before": assessment.uncalibrated} | (
        {} if assessment.chosen_name == "Identity" else {f"after {assessment.chosen_label}": assessment.calibrated}
    )
    changes = {row.name: row for row in assessment.changes or ()}
    return _notebook_html(assessment.uncalibrated, assessment_answers(assessment), tables, changes)


def _label_measurements(assessment: AssessmentData) -> LabeledMeasurements:
    calibrated = (
        {} if assessment.chosen_name == "Identity" else {f"after {assessment.chosen_label}": assessment.calibrated}
    )
    return {"before": assessment.uncalibrated} | calibrated


def _notebook_html(
    measurement: MeasurementData,
    question_answers: Sequence[Answer],
    measurements: LabeledMeasurements,
    changes: Mapping[str, Difference],
) -> str:
    words = [render("<p><b>{}</b> {}</p>", question, typeset(text)) for question, text in question_answers]
    words += [render("<p>{}</p>", typeset(remark)) for remark in measurement.remarks]
    title = render("<h3>{}</h3>", typeset(headline(measurement)))
    return reveal_hidden_characters(
        join_html([title, *words, _metrics_table(measurements, changes, plain_words=False)])
    )


def _report_facts(extra_facts: Mapping[str, str]) -> dict[str, str]:
    automatic_facts = version_facts(extra_facts.get("command", "calibrant, from Python"))
    return {name: text for name, text in extra_facts.items() if name != "command"} | automatic_facts


def _event_sentence(measurement: MeasurementData) -> str:
    cluster_note = f" {cluster_sentence(measurement)}" if measurement.clusters else ""
    return ("" if measurement.event.selector == "top" else f"Judged is {measurement.event.claim}.") + cluster_note


def _capitalize(text: str) -> str:
    return text[0].upper() + text[1:]


def _tiles(uncalibrated: MeasurementData, calibrated: MeasurementData, nll_note: str) -> Markup:
    noise_floor_note, observed_frequency = (
        f"chance explains up to {format_percent(calibrated['noise_floor'].high)}",
        uncalibrated.observed_frequency,
    )
    tiles = {
        "Says, on average": (
            format_percent(uncalibrated.mean_confidence, 1),
            f"mean {uncalibrated.event.probability_label}",
        ),
        _capitalize(uncalibrated.event.occurrence_phrase): (
            format_percent(observed_frequency.value, 1),
            f"[{100 * observed_frequency.low:.2f}, {100 * observed_frequency.high:.2f}]",
        ),
        "ECE, in %": (
            _change_text(100 * uncalibrated["ece"].value, 100 * calibrated["ece"].value, 2),
            noise_floor_note,
        ),
        "NLL": (_change_text(uncalibrated["nll"].value, calibrated["nll"].value, 3), nll_note),
    }
    tile_elements = [
        render("<div><dt>{}</dt><dd>{}</dd></div>", explain_terms(name), two_lines(big, small))
        for name, (big, small) in tiles.items()
    ]
    return render('<dl class="tiles">{}</dl>', join_html(tile_elements))


def _change_text(start_value: float, end_value: float, digits: int) -> str:
    start_text, end_text = (MetricInfo("").text(value, digits) for value in (start_value, end_value))
    return start_text if start_text == end_text else f"{start_text} → {end_text}"


def _answer_list(question_answers: Sequence[Answer], lay_answers: Sequence[str]) -> Markup:
    parts = [
        render("<dt>{}</dt><dd>{}</dd>", question, switchable_text(explain_terms(text), typeset(lay_answer)))
        for (question, text), lay_answer in zip(question_answers, lay_answers, strict=True)
    ]
    return render('<dl class="answers">{}</dl>', join_html(parts))


def _diagrams(measurements: LabeledMeasurements) -> Markup:
    event = next(iter(measurements.values())).event
    labels = event.probability_label, event.frequency_label, f"{event.unit}s"
    curve_reading, bar_reading = diagram_explanations(labels)
    curves = bars = Markup()
    for name, measurement in measurements.items():
        error = (
            f"ECE {format_percent(measurement['ece'].value)}, Kuiper {format_p_value(measurement['kuiper'].p_value)}"
        )
        curves += curve_diagram(name, measurement.ties, measurement.reliability_bins, error, labels=labels)
        bars += bar_diagram(
            name,
            measurement.reliability_bins,
            error,
            labels=labels,
            level=None if measurement.clusters else measurement.level,
        )
    if len(measurements) == 1:
        return join_html([_place_side_by_side(curves + bars), curve_reading, bar_reading])
    classical = details("The same in classical bars", _place_side_by_side(bars) + bar_reading)
    return join_html([_place_side_by_side(curves), curve_reading, classical])


def _place_side_by_side(figures: Markup) -> Markup:
    """Place figures side by side."""
    return render('<div class="pair">{}</div>', figures)


def _decomposition_table(assessment: AssessmentData) -> Markup:
    """NLL and Brier as refinement + calibration: what the chosen calibrator leaves, and what it takes off."""
    rows = [
        [
            assessment.uncalibrated[part.name].info.heading(),
            row_cell(assessment.uncalibrated[part.name]),
            row_cell(assessment.calibrated[part.name]),
            change_cell(assessment.uncalibrated[part.name].info, -part.difference, -part.high, -part.low),
            format_percent(-part.difference / part.first, 1),
        ]
        for part in decomposed_changes(assessment)
    ]
    head = ["", "score", "refinement", "calibration", "share"]
    reading = (
        f"The score is the sum of both. Refinement is what {assessment.chosen_label} leaves, which has not seen the "
        "examples "
        "that it is judged on; calibration is what it takes off, a lower bound on average (Berta et al. 2025), and its "
        f"share of the score. In brackets: {format_level(assessment.uncalibrated.level)} intervals."
    )
    body = table(head, rows, caption="refinement and calibration")
    return join_html([render("<p>{}</p>", typeset(miscalibration_cost_sentence(assessment))), body, note(reading)])


def _metrics_table(
    measurements: LabeledMeasurements, changes: Mapping[str, Difference], *, plain_words: bool = True
) -> Markup:
    """All rows, before and after, with everything that says how surely they are known."""
    first_measurement, has_comparison = next(iter(measurements.values())), len(measurements) > 1
    rows: list[list[str]] = []
    for row in first_measurement:
        cells = [
            row_cell(measurement[row.name]) if row.name in measurement else "–" for measurement in measurements.values()
        ]
        change = changes.get(row.name)
        if has_comparison:
            change_interval = None if change is None else (change.difference, change.low, change.high)
            cells.append("" if change_interval is None else change_cell(row.info, *change_interval, show_plus=True))
        rows.append([name_cell(row, plain_words=plain_words), *cells])
    head = ["", *measurements, *(["change"] if has_comparison else [])]
    reading = f"In brackets: {format_level(first_measurement.level)} intervals."
    if has_comparison:
        reading += " The change is measured on the same examples, which tells much smaller differences from chance "
        reading += "than comparing the two intervals."
    caption = "all numbers, before and after" if has_comparison else "all numbers"
    return table(head, rows, caption=caption) + note(reading)


def _calibrators_table(assessment: AssessmentData) -> Markup:
    held_out_nll, tables = assessment.held_out_nll, list(assessment.tables.values())
    lowest = min((nll for nll in held_out_nll.values() if not math.isnan(nll)), default=math.nan)
    names = [explain_terms(text) for text in metric_headings(assessment.calibrated, assessment.metrics)]
    head = ["calibrator", *([explain_terms("held-out NLL")] if held_out_nll else []), *names]
    rows: list[list[str]] = []
    bold: list[list[bool]] = []
    for (name, measurement), best_row in zip(
        assessment.tables.items(), best_mask(tables, assessment.metrics), strict=True
    ):
        nll_cells = [value_cell(assessment.calibrated["nll"].info, held_out_nll[name])] if held_out_nll else []
        rows.append(
            [
                method_label(CALIBRATORS.title(name), display_name(name)),
                *nll_cells,
                *(value_cell(measurement[m].info, measurement[m].value) for m in assessment.metrics),
            ]
        )
        bold.append([*([held_out_nll[name] == lowest] if held_out_nll else []), *best_row])
    selection_note = (
        "The chosen one is marked: it has the lowest NLL on held-out folds of the fitting data. The other columns are "
        "measured on the judged data, which had no say in the choice"
        if held_out_nll
        else "The chosen one is marked; the columns are measured on the judged data"
    )
    highlighted = [name == assessment.chosen_name for name in assessment.tables]
    body = table(head, rows, bold=bold, highlighted=highlighted, caption="every calibrator")
    infinite = (
        f" inf: {INFINITE_MEAN_EXPLANATION}."
        if any(math.isinf(row.value) for measurement in tables for row in measurement)
        else ""
    )
    cautions = [note(line) for line in fit_warnings(assessment)]
    return join_html([body, note(f"{selection_note}. The best value of a column is bold.{infinite}"), *cautions])


def _class_sections(measurements: LabeledMeasurements) -> list[Section]:
    class_tables = [class_table.classes for class_table in measurements.values() if class_table.classes is not None]
    if not class_tables or next(iter(measurements.values())).names in BINARY_EVENTS:
        return []
    uncalibrated = class_tables[0]
    head = ["class", "examples", "is", "said to be", "right if predicted", "said if predicted", "ECE (%)"]
    rows: list[list[str]] = []
    for j in uncalibrated.worst_first[:MAX_TABLE_ROWS].tolist():
        row = [
            next(iter(measurements.values())).class_name(j),
            f"{int(uncalibrated.count[j]):,}",
            share_text(uncalibrated.frequency[j]),
            share_text(uncalibrated.forecast[j]),
        ]
        row += [share_text(uncalibrated.precision[j]), share_text(uncalibrated.confidence[j])]
        rows.append(row + [f"{100 * float(class_table.ece[j]):.2f}" for class_table in class_tables])
    head += ["ECE after (%)"] if len(class_tables) > 1 else []
    bins, control = next(iter(measurements.values())).bins, class_control(measurements, class_tables)
    reading = (
        f'ECE of the class\'s own probability as a forecast of the label, in {bins} bins. "Is" and "said to be": its '
        'frequency, and the mean probability it is given; "if predicted": its accuracy and mean confidence among the '
        "examples for which it is predicted."
    )
    listed = _foldable_table(head, rows, "classes, worst first", "classes") + _truncation_note(
        len(uncalibrated.ece), "classes"
    )
    return [Section("Classes, worst first", join_html([listed, control, note(reading)]))]


def _group_sections(measurements: LabeledMeasurements) -> list[Section]:
    """Return the tables of all groups, and of groups of rows beside those of labels, before and after."""
    row_grouped = {
        name: measurement
        for name, table in measurements.items()
        if (measurement := table.with_row_groups()) is not None
    }
    return _group_section(measurements) + _group_section(row_grouped)


def _group_section(measurements: LabeledMeasurements) -> list[Section]:
    """What is known of every group, before and after."""
    grouped = {name: measurement for name, measurement in measurements.items() if measurement.groups is not None}
    if not grouped:
        return []
    body, event = Markup(), next(iter(grouped.values())).event
    head, group_noun = group_headings(event), f"{event.group}s"
    for name, measurement in grouped.items():
        rows = group_rows(measurement)
        title = render("<h3>{}</h3>", typeset(_capitalize(name))) if len(grouped) > 1 else Markup()
        caption = f"{group_noun} {name}, worst first" if len(grouped) > 1 else f"{group_noun}, worst first"
        together = table(head, rows[-2:], caption=caption.replace("worst first", "together"))
        listed = _foldable_table(head, rows[:-2][:MAX_TABLE_ROWS], caption, group_noun) + _truncation_note(
            len(rows) - 2, group_noun, "The JSON file has all."
        )
        body += title + listed + together
    first_measurement = next(iter(grouped.values()))
    reading = (
        f"The gap is what is said minus what happens; its {format_level(first_measurement.level)} intervals hold for "
        f"all {group_noun} together, "
        f'and {group_noun} whose gap is furthest beyond chance come first. "By chance": the ECE that a calibrated '
        f"model with "
        f"these {first_measurement.event.probabilities_label} shows, on average and at the "
        f"{50 * (1 + first_measurement.level):g} % quantile."
    )
    return [Section(f"{_capitalize(group_noun)}, worst first", body + note(reading))]


def _coverage_sections(measurements: LabeledMeasurements) -> list[Section]:
    """The error of the most confident predictions, where confidence is what is judged."""
    first_measurement = next(iter(measurements.values()))
    if "aurc" not in first_measurement:
        return []
    curves = {name.partition(" ")[0]: risk_coverage_of(measurement.ties) for name, measurement in measurements.items()}
    risks = next(iter(curves.values()))
    points = ", ".join(
        f"{format_percent(_risk_at_coverage(risks, c))} at {format_percent(c, 0)}" for c in (0.5, 0.8, 0.9, 1.0)
    )

    def draw(drawing: Figure) -> None:
        risk_coverage(curves, ax=drawing.add_subplot())

    name = " before" if len(measurements) > 1 else ""
    picture = figure(draw, f"Risk-coverage curve. Error{name}, by coverage: {points}.", size=(4.6, 2.9))
    text = (
        f"If only the most confident predictions are acted on, the error is {points} of the "
        f"{first_measurement.event.unit}s."
    )
    if "confident_accuracy" in first_measurement:
        confident_share, confident_accuracy = (
            first_measurement["confident_share"].value,
            first_measurement["confident_accuracy"].value,
        )
        share_phrase, accuracy_phrase = (
            f"{format_percent(confident_share, 1)} of the {first_measurement.event.unit}s",
            f"{format_percent(confident_accuracy)} of them {first_measurement.event.outcome_phrase}",
        )
        text += f" Confidences of 99 % and more: {share_phrase}, {accuracy_phrase}."
    body = join_html([render("<p>{}</p>", typeset(text)), picture, threshold_control(_reverse_order(measurements))])
    return [Section("Acting only when sure", body)]


def _threshold_sections(measurements: LabeledMeasurements) -> list[Section]:
    """What acting on probabilities from a threshold on amounts to, where a probability of one event is judged."""
    name, measurement = list(measurements.items())[-1]
    if measurement.event.selector == "top":
        return []
    calibrator_note = f", {name}" if len(measurements) > 1 else ""
    thresholds = thresholds_of(measurement.ties, TABLE_THRESHOLDS)
    head = [
        "from",
        f"share of {measurement.event.unit}s",
        "said",
        measurement.event.frequency_label,
        "share of all events found",
        "of others spared",
    ]
    columns = (
        thresholds.threshold,
        thresholds.share,
        thresholds.said,
        thresholds.precision,
        thresholds.recall,
        thresholds.specificity,
    )
    rows = [[format_percent(float(first), 0), *map(share_text, more)] for first, *more in zip(*columns, strict=True)]
    reading = (
        f"If one acts on {measurement.event.probabilities_label} of at least so much{calibrator_note}: on how many, "
        "how often it should "
        "and does turn out so (precision), which share of all that turn out so is found (recall, sensitivity), and "
        "which share of the others is spared (specificity)."
    )
    more = Markup() if "aurc" in measurement else threshold_control(_reverse_order(measurements))
    body = join_html([table(head, rows, caption="thresholds"), note(reading), more])
    return [Section("Acting from a threshold on", body)]


def _reverse_order(measurements: LabeledMeasurements) -> LabeledMeasurements:
    """What is judged last first, since that is what one would use."""
    return dict(list(measurements.items())[::-1])


def _mistakes_table(assessment: AssessmentData) -> Markup:
    has_calibrator, name = assessment.chosen_name != "Identity", assessment.uncalibrated.class_name
    head = ["row", "true class", "predicted", "said", *([f"after {assessment.chosen_label}"] if has_calibrator else [])]
    rows = [
        [
            f"{m.row}",
            name(m.label),
            name(m.predicted),
            confidence_text(m.probability),
            *([confidence_text(m.calibrated_probability)] if has_calibrator else []),
        ]
        for m in assessment.mistakes
    ]
    reading = (
        "Rows of the judged data, counted from 0: the wrong predictions of the highest confidence. Often it is the "
        "recorded class that is wrong, not the model."
    )
    return _foldable_table(head, rows, "confident mistakes", "mistakes") + note(reading)


def _usage_instructions(
    assessment: AssessmentData, calibrator_path: str | Path | None, from_command_line: bool
) -> Markup:
    if assessment.chosen_name == "Identity":
        return render("<p>There is nothing to apply: the predictions are best left as they are.</p>")
    path = str(calibrator_path or "calibrator.safetensors")
    code = (
        "from calibrant import calibrators\n"
        f"calibrate = calibrators.load({path!r})\n"
        "probs = calibrate(logits).softmax(-1)"
    )
    save_instruction = (
        render("give <code>--save {}</code> to the command below", path)
        if from_command_line
        else render("say <code>found.save({})</code> of what <code>assess</code> returned", repr(path))
    )
    parts = [] if calibrator_path else [render("<p>It was not saved: {}.</p>", save_instruction)]
    parts += [render("<pre><code>{}</code></pre>", code)]
    file = "<p>Or for a file of predictions: <code>calibrant apply {} new.npz -o calibrated.npz</code></p>"
    return join_html([*parts, render(file, path)])


def _foldable_table(head: list[str], rows: list[list[str]], caption: str, row_noun: str) -> Markup:
    body = table(head, rows[:MAX_UNFOLDED_ROWS], caption=caption)
    if len(rows) <= MAX_UNFOLDED_ROWS:
        return body
    folded_rows = details(
        f"{len(rows) - MAX_UNFOLDED_ROWS} more {row_noun}",
        table(head, rows[MAX_UNFOLDED_ROWS:], caption=f"more {caption}"),
    )
    return render('<div class="long">{}{}</div>', body, folded_rows)


def _truncation_note(total: int, row_noun: str, full_list_hint: str = "") -> Markup:
    """Say that a long table is cut off."""
    if total <= MAX_TABLE_ROWS:
        return Markup()
    return note(f"The worst {MAX_TABLE_ROWS:,} of {total:,} {row_noun} are listed. {full_list_hint}")


def _risk_at_coverage(curve: Curve, share: float) -> float:
    at_ = int((curve.x < share - 1e-12).sum())
    return float(curve.y[min(at_, len(curve.y) - 1)])
