"""What a study found, as a document: findings, tables, reliability diagrams, sweeps and learning curves.

A table has one metric, a row per loss, network and data set, and a column per calibrator. A setup is a network on a
data set.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from calibrant._core.grouping import group_pairs
from calibrant._core.registry import LOSSES
from calibrant._core.text import join_names
from calibrant.lab.study import significance
from calibrant.lab.study.config import Study
from calibrant.lab.study.drawing import Drawing
from calibrant.lab.study.grids import Run, RunNames, Setup
from calibrant.lab.study.measurements import Diagram, RunMeasurement, diagrams_over_seeds, primary_calibrator
from calibrant.lab.study.overview import overview_picture
from calibrant.lab.study.tables import (
    ResultCell,
    ResultTable,
    best_keys,
    describe_cells,
    first_rows,
    main_calibration_error,
)
from calibrant.metrics import describe_metric
from calibrant.reports import document as doc
from calibrant.reports.diagrams import BAR_EXPLANATION, CURVE_EXPLANATION, bar_diagram, curve_diagram

FIGURE_INCHES = 4.2, 2.9
SMALL_FIGURE_INCHES = 2.6
MAX_LISTED = 4  # setups or losses that are shown without unfolding
MAX_OTHER_DIAGRAMS = 24  # diagrams of calibrators other than the primary one
MAX_BAR_DIAGRAM_PAIRS = 30  # with more pairs of curves, there are no classical bars
OVERCONFIDENT_TEMPERATURE, UNDERCONFIDENT_TEMPERATURE = 1.05, 0.95

SHIFT_EXPLANATION = doc.Note(
    "The same networks and calibrators on other test sets. Corrupted images keep their labels; other data sets should "
    "only be detected as foreign. The ood_ metrics tell how well a score of the logits separates the test set from the "
    "shift; an AUROC of 50 % is chance."
)
SWEEP_EXPLANATION = doc.Note("Points are means over seeds, shaded from minimum to maximum.")
LEARNING_EXPLANATION = doc.Note(
    "Curves are means over seeds, shaded from minimum to maximum. Histograms hold the examples of all seeds."
)
SECONDARY_FIGURES_HEADING = "On the training data, by correct and wrong predictions, and by confidence bin"


def study_document(
    study: Study,
    tables: Sequence[ResultTable],
    measurements: Sequence[RunMeasurement] = (),
    *,
    sweeps: Iterable[Drawing] = (),
    learning_curves: Iterable[Drawing] = (),
    notes: Sequence[str] = (),
    facts: Mapping[str, str] | None = None,
) -> doc.Document:
    """Return what a study found. Sections without content are left out.

    Args:
        study: The study.
        tables: One table per shift and metric.
        measurements: Measurements of its runs, for the reliability diagrams.
        sweeps: Figures of metrics against a parameter.
        learning_curves: Figures of the histories of the trainings.
        notes: Sentences on the data.
        facts: What was trained and how.
    """
    listed, unlisted = _divide_findings(tables)
    shifted = [table for table in tables if table.shift]
    has_several_setups = bool(tables) and len(first_rows(tables[0].rows)) > 1
    parts_by_heading: dict[str, Sequence[doc.Part]] = {
        "At a glance": _overviews(tables),
        "Results": [*_folded_findings(unlisted), *_result_parts(tables)],
        "Networks side by side": [side_by_side(t) for t in _main_tables(tables)] if has_several_setups else [],
        "Confidence against accuracy": _reliability_parts(study, measurements),
        "Under shift": [SHIFT_EXPLANATION, *_shift_parts(shifted)] if shifted else [],
        "Against a parameter": _figure_parts(sweeps, SWEEP_EXPLANATION, "The other metrics"),
        "Learning curves": _figure_parts(learning_curves, LEARNING_EXPLANATION, SECONDARY_FIGURES_HEADING),
    }
    answers = [doc.Answer(f"{setup}:" if len(listed) > 1 else "In short:", text) for setup, text in listed]
    if unlisted:
        answers.append(doc.Answer("Further results:", f"The tables list {len(unlisted)} more networks and data sets."))
    return doc.Document(
        kind="A calibration study",
        title=study.title or study.name,
        answers=answers,
        notes=[*notes, *dict.fromkeys(note for table in tables if table.shift == "" for note in table.table_notes)],
        sections=[
            doc.Section(
                heading,
                parts,
                is_detail=heading != "Results",
                legend=_table_legend(tables) if heading == "Results" else "",
                is_captioned=heading == "Results",
            )
            for heading, parts in parts_by_heading.items()
            if parts
        ],
        facts=facts or {},
    )


def recipe_texts(study: Study, runs: Sequence[Run]) -> dict[str, str]:
    """Return the recipes of runs as texts under "recipe", "recipe 2", ...

    The first one is described in full, the others by their differences from it and the networks that they trained.
    """
    trained = group_pairs(
        (run.recipe, f"{study.label(run.loss)} of {study.label(run.network)} on {study.label(run.dataset)}")
        for run in runs
    )
    first, *further_recipes = trained
    # `averaged` is empty, as `Run` has applied it to the loss
    texts = {"recipe": ", ".join(f"{key} {value}" for key, value in vars(first).items() if key != "averaged")}
    for i, recipe in enumerate(further_recipes, 2):
        differences = [f"{key} {value}" for key, value in vars(recipe).items() if value != getattr(first, key)]
        networks = list(dict.fromkeys(trained[recipe]))  # without the repetitions by seed
        names = join_names(networks)
        if len(networks) > MAX_LISTED:
            names = f"{len(networks)} kinds of networks, such as {networks[0]}"
        texts[f"recipe {i}"] = f"{', '.join(differences)}: {names}"
    return texts


# Findings


def findings(tables: Sequence[ResultTable]) -> dict[Setup, str]:
    """Return for every setup which losses made it over- or underconfident, and the best methods, in sentences."""
    if not tables:
        return {}
    table = main_calibration_table(tables)
    return {
        setup: " ".join([*_confidence_findings(table, rows), *_best_method_findings(table, rows)])
        for setup, rows in group_pairs((row.setup, row) for row in table.rows).items()
    }


Findings = list[tuple[Setup, str]]


def _divide_findings(tables: Sequence[ResultTable]) -> tuple[Findings, Findings]:
    """Return the findings that are listed, and those that are folded.

    At most `MAX_LISTED` are listed if others are folded; a single finding is never folded.
    """
    pairs = list(findings(tables).items())
    num_listed = MAX_LISTED if len(pairs) > MAX_LISTED + 1 else len(pairs)
    return pairs[:num_listed], pairs[num_listed:]


def _folded_findings(unlisted: Findings) -> list[doc.Part]:
    """Return the findings that the answers do not list, folded."""
    if not unlisted:
        return []
    return [
        doc.Fold(f"Findings for {len(unlisted)} more", [doc.Paragraph(text, f"{setup}:") for setup, text in unlisted])
    ]


def _best_method_findings(table: ResultTable, rows: Sequence[RunNames]) -> Iterator[str]:
    """Yield sentences on the best mean without a calibrator, if that was measured, and with any calibrator.

    A method is called the best only if it differs significantly from all others, and if its calibration error is above
    its noise floor. `rows` are the rows of one setup in the table of a metric.
    """
    superlative = "highest" if table.metric_info.higher_is_better else "lowest"
    uncalibrated_columns = [column for column in table.columns if base_name(column) == "Identity"]
    for label, columns in (("Without a calibrator", uncalibrated_columns), ("With the best calibrator", table.columns)):
        cells = {(row, column): table.cells[row, column] for row in rows for column in columns}
        cells = {key: cell for key, cell in cells.items() if math.isfinite(cell.mean)}
        for row, column in best_keys(table.metric_info, {key: cell.mean for key, cell in cells.items()})[:1]:
            name = row.loss if column in uncalibrated_columns else f"{row.loss} followed by {column}"
            yield f"{label}, {_best_mean_finding(table, name, cells.pop((row, column)), cells.values(), superlative)}."


def _best_mean_finding(
    table: ResultTable, name: str, best: ResultCell, contenders: Collection[ResultCell], superlative: str
) -> str:
    """Return the clause on the cell with the best mean, which calls a method the best only if it clearly is.

    Args:
        table: The table of the metric.
        name: The loss and calibrator of the cell.
        best: The cell.
        contenders: The cells that it is compared with.
        superlative: "highest" or "lowest".
    """
    info, metric = table.metric_info, describe_metric(table.metric)
    value, floor = best.mean_text(info), best.floor_text(info)
    within_floor = best.mean <= best.floor  # false without a floor
    floor_clause = f"; its noise floor is {floor}" if floor else ""
    if not contenders:
        return f"{name} has {metric} {value}{floor_clause}"
    if not significance.is_significantly_different(best.tested_values, [cell.tested_values for cell in contenders]):
        lowest = f"the {superlative} mean {metric} is {value} by {name}"
        return f"no result is significantly the {superlative}; {lowest}{floor_clause}"
    if within_floor:
        return f"the {superlative} mean {metric}, {value} by {name}, is within its noise floor of {floor}"
    return f"{name} has the {superlative} {metric}: {value}{floor_clause}"


def _confidence_findings(table: ResultTable, rows: Sequence[RunNames]) -> Iterator[str]:
    """Yield sentences that say which losses, or models trained elsewhere, are over- or underconfident.

    A fitted temperature above 1 softens overconfident predictions. `rows` are the rows of one setup in the table.
    """
    column = next((column for column in table.columns if base_name(column) == "Temperature"), None)
    if column is None:
        return
    temperatures = {row.loss: table.cells[row, column].temperature for row in rows}
    is_trained = table.has_trained_networks  # else the rows are models, whose names stand in place of losses
    matching_by_direction = {
        "overconfident": {loss: t for loss, t in temperatures.items() if t > OVERCONFIDENT_TEMPERATURE},
        "underconfident": {loss: t for loss, t in temperatures.items() if t < UNDERCONFIDENT_TEMPERATURE},
    }
    for direction, matching in matching_by_direction.items():
        if len(matching) > MAX_LISTED:
            total = len(temperatures)
            count = f"All {total}" if len(matching) == total else f"{len(matching)} of {total}"
            finding = f"{count} losses yield {direction} networks" if is_trained else f"{count} models are {direction}"
            yield f"{finding}: {_temperature_range(matching)}."
        elif matching:
            names = join_names([f"{loss} (T = {t:.2f})" for loss, t in matching.items()])
            subject = f"Networks trained with {names}" if is_trained else names
            verb = "are" if is_trained or len(matching) > 1 else "is"
            yield f"{subject} {verb} {direction}."


def _temperature_range(temperatures: Mapping[str, float]) -> str:
    """Return the range of temperatures, with the names of the lowest and the highest."""
    lowest, highest = min(temperatures, key=temperatures.__getitem__), max(temperatures, key=temperatures.__getitem__)
    low, high = f"{temperatures[lowest]:.2f}", f"{temperatures[highest]:.2f}"
    return f"temperature {low}" if low == high else f"temperatures from {low} ({lowest}) to {high} ({highest})"


def main_calibration_table(tables: Sequence[ResultTable]) -> ResultTable:
    """Return the unshifted table of the main calibration error, or the first if all have a shift."""
    unshifted_by_metric = {table.metric: table for table in tables if not table.shift}
    return unshifted_by_metric[main_calibration_error(unshifted_by_metric)] if unshifted_by_metric else tables[0]


def _main_tables(tables: Sequence[ResultTable]) -> list[ResultTable]:
    """Return the tables of the first metric, the NLL and the main calibration error, each once."""
    unshifted = [table for table in tables if not table.shift]
    nll_tables = [table for table in unshifted if base_name(table.metric) == "nll"]
    main_tables = (unshifted[0], *nll_tables, main_calibration_table(tables))
    return list({table.metric: table for table in main_tables}.values())


def base_name(text: str) -> str:
    """Return a method's name without its arguments."""
    return text.partition("(")[0]


# Tables


def _result_parts(tables: Sequence[ResultTable]) -> list[doc.Part]:
    """Return the table of the main calibration error, and the tables of the other metrics, folded."""
    unshifted = [table for table in tables if not table.shift]
    if not unshifted:
        return []
    main = main_calibration_table(tables)
    other_tables = [table for table in unshifted if table is not main]
    folds = [doc.Fold(table.description, [table.as_table()]) for table in other_tables]
    return [main.as_table(), *folds]


def side_by_side(table: ResultTable) -> doc.Table:
    """Return a table of losses (rows) against networks with their data sets (columns).

    A cell has the metric without calibration, and in small print with the best calibrator. In a study without the
    calibrator `Identity`, the first calibrator stands for no calibration.
    """
    setups = list(dict.fromkeys(row.setup for row in table.rows))  # data set and network
    losses = list(dict.fromkeys(row.loss for row in table.rows))
    cells = {loss: [_best_cell(table, RunNames(*setup, loss)) for setup in setups] for loss in losses}
    baseline = _baseline_column(table)
    large_print = "Without a calibrator" if base_name(baseline) == "Identity" else f"With {baseline}"
    return doc.Table(
        caption=describe_metric(table.metric),
        head=[table.row_header, *map(str, setups)],
        rows=[[doc.Cell(loss, LOSSES.title(loss)), *(cell for cell, _ in cells[loss])] for loss in losses],
        bold=[[is_best for _, is_best in cells[loss]] for loss in losses],
        note=f"{large_print}, and below with the calibrator of the best mean. Bold marks the best mean of a column.",
    )


def _baseline_column(table: ResultTable) -> str:
    """Return the column without calibration, or the first one if there is none."""
    return next((column for column in table.columns if base_name(column) == "Identity"), table.columns[0])


def _best_cell(table: ResultTable, row: RunNames) -> tuple[doc.Cell, bool]:
    """Return the cell of a row in `side_by_side`, and whether its value is the best of its network.

    The value is uncalibrated, and the detail has the value with the best calibrator. A loss that was not trained with
    this network has a dash. There is no detail if no calibrator is the best.
    """
    if row not in table.rows:
        return doc.Cell("\N{EN DASH}"), False
    baseline, metric_info = _baseline_column(table), table.metric_info
    cell = table.cells[row, baseline]
    means = {column: table.cells[row, column].mean for column in table.columns}
    best_columns = best_keys(metric_info, means)
    details = [cell.bracketed_floor(metric_info)]
    if baseline in best_columns:
        details.append("best uncalibrated" if base_name(baseline) == "Identity" else "the best")
    elif best_columns:
        best = best_columns[0]
        floor = table.cells[row, best].bracketed_floor(metric_info)
        details.append(f"{metric_info.text(means[best])} {floor}".strip() + f" by {best}")
    network_means = [table.cells[r, baseline].mean for r in table.rows if r.setup == row.setup]
    is_best = bool(best_columns) and means[baseline] == metric_info.best(network_means)
    return doc.Cell(cell.mean_text(metric_info), "; ".join(filter(None, details))), is_best


def _table_legend(tables: Sequence[ResultTable]) -> str:
    """Return the meaning of the cells of all tables, with each explanation of the tests once."""
    tests = " ".join(dict.fromkeys(sentence for table in tables for sentence in table.significance_sentences))
    return (
        f"Cells show {describe_cells(tables)}, measured on test examples that were not used for fitting. Square "
        "brackets hold the noise floor: the mean calibration error of a calibrated model with the same confidences. "
        "Round brackets hold the mean temperature and other fitted parameters of a calibrator. The best mean of each "
        f"network on a data set is marked. {tests}".strip()
    )


def _shift_parts(tables: Sequence[ResultTable]) -> Iterator[doc.Part]:
    """Yield the tables of every shift. All but the first ECE and the first AUROC are folded."""
    for shift, shift_tables in group_pairs((table.shift, table) for table in tables).items():
        # of several metrics with one base name, such as ece(bins=10) and ece, the first stays, as it is written last
        first_metrics = {base_name(table.metric): table.metric for table in reversed(shift_tables)}
        main_metrics = first_metrics.get("ece"), first_metrics.get("ood_auroc")
        yield from (table.as_table() for table in shift_tables if table.metric in main_metrics)
        other_tables = [table.as_table() for table in shift_tables if table.metric not in main_metrics]
        yield doc.Fold(f"The other metrics on {shift}", other_tables)


# Figures


def _overviews(tables: Sequence[ResultTable]) -> list[doc.Part]:
    """Return the picture of every setup: the main calibration error of each loss with each calibrator."""
    if not tables:
        return []
    table = main_calibration_table(tables)
    pictures = [overview_picture(table, setup) for setup in first_rows(table.rows)]
    folded = [doc.Fold(f"Pictures of {len(pictures) - MAX_LISTED} more", [doc.SideBySide(pictures[MAX_LISTED:])])]
    return [doc.SideBySide(pictures[:MAX_LISTED]), *(folded if len(pictures) > MAX_LISTED else [])]


def _figure_parts(drawings: Iterable[Drawing], explanation: doc.Note, folded_heading: str) -> list[doc.Part]:
    """Return the main figures with their explanation, and the others folded under a heading."""
    pictures = group_pairs(
        (drawing.is_main, doc.Picture(drawing.draw, drawing.description, drawing.title, size=FIGURE_INCHES))
        for drawing in drawings
    )
    main: list[doc.Part] = [doc.SideBySide(pictures[True]), explanation] if True in pictures else []
    return [*main, doc.Fold(folded_heading, [doc.SideBySide(pictures[False])])] if False in pictures else main


def _reliability_parts(study: Study, measurements: Sequence[RunMeasurement]) -> list[doc.Part]:
    """Return reliability diagrams of the examples of all seeds before and after calibrators, as curves and as bars.

    The diagrams before and after the primary calibrator come first. The diagrams after other calibrators are folded,
    up to `MAX_OTHER_DIAGRAMS`.
    """
    by_setup = group_pairs((diagram.names.setup, diagram) for diagram in diagrams_over_seeds(study, measurements))
    if not by_setup:
        return []
    parts: list[doc.Part] = []
    num_other_diagrams = 0
    main_stages = "", primary_calibrator(study).text  # "": before calibration
    all_main_diagrams: list[Diagram] = []
    for i, (setup, diagrams) in enumerate(by_setup.items()):
        main_diagrams = [diagram for diagram in diagrams if diagram.calibrator in main_stages]
        other_diagrams = [diagram for diagram in diagrams if diagram.calibrator not in main_stages]
        all_main_diagrams += main_diagrams
        pairs = group_pairs((diagram.names.loss, diagram) for diagram in main_diagrams).values()
        main_curves = [_curve_diagrams(pair) for pair in pairs]  # before and after stand side by side
        parts += main_curves if i < MAX_LISTED else [doc.Fold(str(setup), main_curves)]
        num_other_diagrams += len(other_diagrams)
        if other_diagrams and num_other_diagrams <= MAX_OTHER_DIAGRAMS:
            heading = f"After the other calibrators{study.setup_suffix(setup)}"
            parts.append(doc.Fold(heading, [_curve_diagrams(other_diagrams)]))
    if num_other_diagrams > MAX_OTHER_DIAGRAMS:
        parts.append(_figures_command(study, "the diagrams after all calibrators"))
    has_many = len(all_main_diagrams) > 2 * MAX_BAR_DIAGRAM_PAIRS  # a pair is before and after the primary calibrator
    bars = _figures_command(study, "classical bars") if has_many else _bar_diagrams(all_main_diagrams)
    return [*parts, doc.Note(CURVE_EXPLANATION), bars]


def _figures_command(study: Study, drawings: str) -> doc.Note:
    """Return a note with the command that draws what the page leaves out."""
    return doc.Note(f"`calibrant figures {study.name}` draws {drawings}.")


def _bar_diagrams(diagrams: Iterable[Diagram]) -> doc.Fold:
    """Return classical reliability diagrams, folded."""
    bars = [bar_diagram(f"{d.title}, in bars", d.bins, d.ece, SMALL_FIGURE_INCHES) for d in diagrams]
    return doc.Fold("The same in classical bars", [doc.SideBySide(bars), doc.Note(BAR_EXPLANATION)])


def _curve_diagrams(diagrams: Iterable[Diagram]) -> doc.SideBySide:
    """Return reliability diagrams with curves."""
    return doc.SideBySide(
        [curve_diagram(d.title, d.events.by_score, d.bins, d.ece, SMALL_FIGURE_INCHES) for d in diagrams]
    )
