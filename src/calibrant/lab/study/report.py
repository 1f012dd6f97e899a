"""Build the HTML report of a study from tables, measurements and histories.

A table has one metric, a row per loss, network and data set, and a column per calibrator. A setup is a network on a
data set. `Markup` is HTML; folded parts of the page are shown on a click.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from markupsafe import Markup

from calibrant._core.grouping import group_pairs
from calibrant._core.registry import CALIBRATORS, LOSSES
from calibrant._core.text import join_names
from calibrant.lab.study import significance
from calibrant.lab.study.config import Study
from calibrant.lab.study.drawing import Drawing
from calibrant.lab.study.grids import Run, RunNames, Setup
from calibrant.lab.study.learning_curves import learning_drawings
from calibrant.lab.study.measurements import Diagram, RunMeasurement, diagrams_over_seeds, primary_calibrator
from calibrant.lab.study.store import Store
from calibrant.lab.study.sweeps import sweep_drawings
from calibrant.lab.study.tables import Cell, ResultTable, best_keys, describe_cells, first_rows, main_calibration_error
from calibrant.metrics import MetricInfo, describe_metric
from calibrant.reports import html
from calibrant.reports.html import join_html, render, typeset

FIGURE_INCHES = 4.2, 2.9
SMALL_FIGURE_INCHES = 2.6
MAX_LISTED = 4  # setups, losses or metrics that are shown without unfolding
MAX_OTHER_DIAGRAMS = 24  # diagrams of calibrators other than the primary one
MAX_BAR_DIAGRAM_PAIRS = 30  # with more pairs of curves, there are no classical bars
MAX_OPEN_TABLE_ROWS = 12  # with longer tables, only the first metrics are shown without unfolding
OVERCONFIDENT_TEMPERATURE, UNDERCONFIDENT_TEMPERATURE = 1.05, 0.95

SHIFT_EXPLANATION = html.note(
    "The same networks and calibrators on other test sets. Corrupted images keep their labels; other data sets should "
    "only be detected as foreign. The ood_ metrics tell how well a score of the logits separates the test set from the "
    "shift; an AUROC of 50 % is chance."
)
SWEEP_EXPLANATION = html.note("Points are means over seeds, shaded from minimum to maximum.")
LEARNING_EXPLANATION = html.note(
    "Curves are means over seeds, shaded from minimum to maximum. Histograms hold the examples of all seeds."
)
SECONDARY_FIGURES_HEADING = "On the training data, by correct and wrong predictions, and by confidence bin"


def study_report(
    study: Study, tables: Sequence[ResultTable], measurements: Sequence[RunMeasurement], store: Store, command: str
) -> str:
    """Return a study's HTML report: findings, tables, reliability diagrams, sweeps and learning curves.

    Sections without content are left out. The origin, at the end, says what was trained and with which `command`.
    """
    trained = [measurement.run for measurement in measurements if isinstance(measurement.run, Run)]
    curves, bars = _reliability_html(study, measurements)
    has_several_setups = len(first_rows(tables[0].rows)) > 1  # it returns a row per setup
    shifted = [table for table in tables if table.shift]
    sweeps = sweep_drawings(study, (row for measurement in measurements for row in measurement.rows))
    learning_curves = learning_drawings(study, store)
    bodies = {
        "Results": _folded_findings(tables) + result_tables(tables),
        "Networks side by side": join_html(side_by_side(t) for t in _main_tables(tables) if has_several_setups),
        "Confidence against accuracy": curves + html.CURVE_EXPLANATION + bars,
        "Under shift": SHIFT_EXPLANATION + _shift_tables(shifted) if shifted else Markup(),
        "Against a parameter": _figure_grid(sweeps, SWEEP_EXPLANATION, "The other metrics"),
        "Learning curves": _figure_grid(learning_curves, LEARNING_EXPLANATION, SECONDARY_FIGURES_HEADING),
    }
    sections = [html.Section(title, body) for title, body in bodies.items() if body]
    origin = {"study": f"{study.name}: {len(measurements)} sets of predictions"}
    if trained:
        minutes = sum(store.record(run)["facts"]["seconds"] for run in trained) / 60
        origin = {"study": f"{study.name}: {len(trained)} networks, {minutes:.1f} minutes of training"}
        origin |= _recipe_texts(study, trained)
    origin |= html.version_facts(command)
    return html.page(study.title or study.name, findings(tables), sections, origin, kicker="A calibration study")


def _recipe_texts(study: Study, runs: Sequence[Run]) -> dict[str, str]:
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


def findings(tables: Sequence[ResultTable]) -> list[str]:
    """Return a line for every setup: which losses made it over- or underconfident, and the best methods.

    If there are many setups, only the first `MAX_LISTED` have lines, and a last line counts the others.
    """
    listed, unlisted = _divide_findings(tables)
    if len(listed) == 1:  # a single network on a data set needs no name
        return [text for _, text in listed]
    lines = [f"{setup}: {text}" for setup, text in listed]
    return [*lines, f"The results list {len(unlisted)} more."] if unlisted else lines


def _folded_findings(tables: Sequence[ResultTable]) -> Markup:
    """Return the findings that the top of the page does not list, folded, or nothing if it lists all."""
    _, unlisted = _divide_findings(tables)
    if not unlisted:
        return Markup()
    items = join_html(render("<dt>{}</dt><dd>{}</dd>", typeset(str(setup)), typeset(text)) for setup, text in unlisted)
    return html.details(f"Findings for {len(unlisted)} more", render('<dl class="answers">{}</dl>', items))


def _divide_findings(tables: Sequence[ResultTable]) -> tuple[list[tuple[Setup, str]], list[tuple[Setup, str]]]:
    """Return pairs of a setup and its finding: first the listed ones, then the folded ones.

    At most `MAX_LISTED` are listed if others are folded; a single finding is never folded.
    """
    table = _main_calibration_table(tables)
    findings_by_setup = [
        (setup, " ".join([*_confidence_findings(table, rows), *_best_method_findings(table, rows)]))
        for setup, rows in group_pairs((row.setup, row) for row in table.rows).items()
    ]
    num_listed = MAX_LISTED if len(findings_by_setup) > MAX_LISTED + 1 else len(findings_by_setup)
    return findings_by_setup[:num_listed], findings_by_setup[num_listed:]


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
    table: ResultTable, name: str, best: Cell, contenders: Collection[Cell], superlative: str
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


def _main_calibration_table(tables: Sequence[ResultTable]) -> ResultTable:
    """Return the unshifted table of the main calibration error, or the first if all have a shift."""
    unshifted_by_metric = {table.metric: table for table in tables if not table.shift}
    return unshifted_by_metric[main_calibration_error(unshifted_by_metric)] if unshifted_by_metric else tables[0]


def _main_tables(tables: Sequence[ResultTable]) -> list[ResultTable]:
    """Return the tables of the first metric, the NLL and the main calibration error, each once."""
    unshifted = [table for table in tables if not table.shift]
    nll_tables = [table for table in unshifted if base_name(table.metric) == "nll"]
    main_tables = (unshifted[0], *nll_tables, _main_calibration_table(tables))
    return list({table.metric: table for table in main_tables}.values())


def base_name(text: str) -> str:
    """Return a method's name without its arguments."""
    return text.partition("(")[0]


# Tables


def result_tables(tables: Sequence[ResultTable]) -> Markup:
    """Return the tables of the test sets without shift, and their legend.

    If a table is long, only the first `MAX_LISTED` are open, and the others are folded.
    """
    unshifted = [table for table in tables if not table.shift]
    has_long_table = any(len(table.rows) > MAX_OPEN_TABLE_ROWS for table in unshifted)
    num_open = MAX_LISTED if has_long_table else len(unshifted)
    folded_tables = join_html(map(_table_html, unshifted[num_open:]))
    fold = html.details("The other metrics", folded_tables) if folded_tables else Markup()
    return join_html([*map(_table_html, unshifted[:num_open]), fold, _table_legend(tables)])


def _table_html(table: ResultTable) -> Markup:
    """Return a table with its heading and notes, and a line above each network and data set if there are several."""
    columns, cells, metric_info = table.columns, table.cells, table.metric_info
    # titles of setups by the index of their first row
    setup_titles = {table.rows.index(row): str(setup) for setup, row in first_rows(table.rows).items()}
    groups = setup_titles if len(setup_titles) > 1 else {}
    head = [table.row_header, *(html.method_label(CALIBRATORS.title(column), column) for column in columns)]
    rows = [[_loss_label(row.loss), *(_cell_html(cells[row, c], metric_info) for c in columns)] for row in table.rows]
    best = [[cells[row, column].best for column in columns] for row in table.rows]
    rendered = html.table(head, rows, bold=best, caption=table.heading, long_row_names=True, groups=groups)
    return join_html([_metric_heading(table.description, table.metric), rendered, *map(html.note, table.table_notes)])


def _loss_label(loss: str) -> Markup:
    """Return the title of a loss or external model, and its spelling in the study."""
    return html.method_label(LOSSES.title(loss), loss)


def _metric_heading(description: str, metric: str) -> Markup:
    """Return a heading with the metric in words, and as the study spells it."""
    return render("<h3>{}<code>{}</code></h3>", typeset(description), typeset(metric))


def _cell_html(cell: Cell, metric_info: MetricInfo) -> Markup:
    """Return a cell: its mean with test results, and in small print the fitted parameters and the paper's value."""
    mean_text = cell.mean_text(metric_info)
    if mean_text == "nan":  # the metric has no value, such as the entropy of wrong predictions if none is wrong
        mean_text = "\N{EN DASH}"
    html_lines = [
        _unbroken_value(" ".join(filter(None, [mean_text, cell.test_results]))),
        _floor_html(cell, metric_info),
    ]
    if cell.parameters_text:
        html_lines.append(_small_print(f"({cell.parameters_text})"))
    if cell.paper:
        html_lines.append(_small_print(f"paper {cell.paper.text(metric_info)}"))
    return join_html(html_lines)


def _floor_html(cell: Cell, metric_info: MetricInfo) -> Markup:
    """Return the noise floor of a calibration error in small print, or nothing without one."""
    floor = cell.floor_text(metric_info)
    return _small_print(f"noise floor {floor}") if floor else Markup()


def _small_print(text: str) -> Markup:
    """Return a text that is set small below the value of a cell."""
    return render("<small>{}</small>", typeset(text))


def _unbroken_value(value: str) -> Markup:
    """Return a value that may break only before its deviation, with an explanation of infinity."""
    if value == "inf":
        return html.term(value, html.INFINITE_MEAN_EXPLANATION)
    mean, sign, deviation = value.partition(" ± ")
    if not sign:
        return typeset(value)
    return render("<span>{}</span> <span>{}</span>", typeset(mean), typeset(f"± {deviation}"))


def side_by_side(table: ResultTable) -> Markup:
    """Return a table of losses (rows) against networks with their data sets (columns).

    A cell has the metric without calibration, and in small print with the best calibrator. In a study without the
    calibrator `Identity`, the first calibrator stands for no calibration.
    """
    setups = list(dict.fromkeys(row.setup for row in table.rows))  # data set and network
    losses = list(dict.fromkeys(row.loss for row in table.rows))
    cells = {loss: [_best_cell_html(table, RunNames(*setup, loss)) for setup in setups] for loss in losses}
    head = [table.row_header, *map(str, setups)]
    rows = [[_loss_label(loss), *(cell_html for cell_html, _ in cells[loss])] for loss in losses]
    best = [[is_best for _, is_best in cells[loss]] for loss in losses]
    rendered = html.table(head, rows, bold=best, caption=f"{table.heading}, side by side", long_row_names=True)
    baseline = _baseline_column(table)
    large_print = "Without a calibrator" if base_name(baseline) == "Identity" else f"With {baseline}"
    explanation = html.note(
        f"{large_print}, and below with the calibrator of the best mean. Bold marks the best mean of a column."
    )
    return join_html([_metric_heading(describe_metric(table.metric), table.metric), rendered, explanation])


def _baseline_column(table: ResultTable) -> str:
    """Return the column without calibration, or the first one if there is none."""
    return next((column for column in table.columns if base_name(column) == "Identity"), table.columns[0])


def _best_cell_html(table: ResultTable, row: RunNames) -> tuple[str, bool]:
    """Return the cell of a row in `side_by_side`, and whether its large value is the best of its network.

    The large value is uncalibrated, and the small print has the value with the best calibrator. A loss that was not
    trained with this network has a dash. There is no small print if no calibrator is the best.
    """
    if row not in table.rows:
        return "\N{EN DASH}", False
    baseline, metric_info = _baseline_column(table), table.metric_info
    large_print = _unbroken_value(table.cells[row, baseline].mean_text(metric_info))
    large_print += _floor_html(table.cells[row, baseline], metric_info)
    means = {column: table.cells[row, column].mean for column in table.columns}
    best_columns = best_keys(metric_info, means)
    if not best_columns:
        return large_print, False
    small_text = f"{metric_info.text(means[best_columns[0]])} by {best_columns[0]}"
    if floor := table.cells[row, best_columns[0]].floor_text(metric_info):
        small_text += f", noise floor {floor}"
    if baseline in best_columns:
        small_text = "best uncalibrated" if base_name(baseline) == "Identity" else "the best"  # replaces the value
    network_means = [table.cells[r, baseline].mean for r in table.rows if r.setup == row.setup]
    is_best = means[baseline] == metric_info.best(network_means)
    return large_print + _small_print(small_text), is_best


def _table_legend(tables: Sequence[ResultTable]) -> Markup:
    """Return a note on the cells of all tables, with each explanation of the tests once."""
    tests = " ".join(dict.fromkeys(table.significance_note for table in tables if table.significance_note))
    return html.note(
        f"Cells show {describe_cells(tables)}, measured on test examples that were not used for fitting. Brackets hold "
        "the mean temperature and other fitted parameters of a calibrator. A noise floor is the mean calibration error "
        "of a calibrated model with the same confidences. The best mean of each network on a data set is bold. "
        f"{tests}"
    )


def _shift_tables(tables: Sequence[ResultTable]) -> Markup:
    """Return the tables of every shift. All but the first ECE and the first AUROC are folded."""
    body = Markup()
    for shift, shift_tables in group_pairs((table.shift, table) for table in tables).items():
        # of several metrics with one base name, such as ece(bins=10) and ece, the first stays, as it is written last
        first_metrics = {base_name(table.metric): table.metric for table in reversed(shift_tables)}
        main_metrics = first_metrics.get("ece"), first_metrics.get("ood_auroc")
        body += join_html(_table_html(table) for table in shift_tables if table.metric in main_metrics)
        folded_tables = join_html(_table_html(table) for table in shift_tables if table.metric not in main_metrics)
        body += html.details(f"The other metrics on {shift}", folded_tables)
    return body


# Figures


def _figure_grid(drawings: Iterable[Drawing], explanation: Markup, folded_heading: str) -> Markup:
    """Return the main figures with their explanation, and the others folded under a heading.

    A part without figures is left out.
    """
    figures = group_pairs(
        (drawing.is_main, html.figure(drawing.draw, drawing.description, caption=drawing.title, size=FIGURE_INCHES))
        for drawing in drawings
    )
    grids = {
        is_main: render('<div class="figures wide">{}</div>', join_html(htmls)) for is_main, htmls in figures.items()
    }
    main = grids[True] + explanation if True in grids else Markup()
    return main + html.details(folded_heading, grids[False]) if False in grids else main


def _reliability_html(study: Study, measurements: Sequence[RunMeasurement]) -> tuple[Markup, Markup]:
    """Return reliability diagrams of the examples of all seeds before and after calibrators, as curves and as bars.

    The diagrams before and after the primary calibrator come first. The diagrams after other calibrators are folded,
    up to `MAX_OTHER_DIAGRAMS`.
    """
    by_setup = group_pairs((diagram.names.setup, diagram) for diagram in diagrams_over_seeds(study, measurements))
    curves, num_other_diagrams = Markup(), 0
    main_stages = "", primary_calibrator(study).text  # "": before calibration
    all_main_diagrams: list[Diagram] = []
    for i, (setup, diagrams) in enumerate(by_setup.items()):
        main_diagrams = [diagram for diagram in diagrams if diagram.calibrator in main_stages]
        other_diagrams = [diagram for diagram in diagrams if diagram.calibrator not in main_stages]
        all_main_diagrams += main_diagrams
        main_curves = _curve_diagrams(main_diagrams)
        curves += main_curves if i < MAX_LISTED else html.details(str(setup), main_curves)
        num_other_diagrams += len(other_diagrams)
        if other_diagrams and num_other_diagrams <= MAX_OTHER_DIAGRAMS:
            heading = f"After the other calibrators{study.setup_suffix(setup)}"
            curves += html.details(heading, _curve_diagrams(other_diagrams))
    if num_other_diagrams > MAX_OTHER_DIAGRAMS:
        curves += _figures_command(study, "the diagrams after all calibrators")
    has_many = len(all_main_diagrams) > 2 * MAX_BAR_DIAGRAM_PAIRS  # a pair is before and after the primary calibrator
    bars = _figures_command(study, "classical bars") if has_many else _bar_diagrams(all_main_diagrams)
    return curves, bars


def _figures_command(study: Study, drawings: str) -> Markup:
    """Return a note with the command that draws what the page leaves out."""
    return render('<p class="note"><code>calibrant figures {}</code> draws {}.</p>', typeset(study.name), drawings)


def _bar_diagrams(diagrams: Iterable[Diagram]) -> Markup:
    """Return classical reliability diagrams, folded."""
    bars = join_html(html.bar_diagram(f"{d.title}, in bars", d.bins, d.ece, SMALL_FIGURE_INCHES) for d in diagrams)
    grid = render('<div class="figures">{}</div>', bars + html.BAR_EXPLANATION)
    return html.details("The same in classical bars", grid)


def _curve_diagrams(diagrams: Iterable[Diagram]) -> Markup:
    """Return reliability diagrams with curves."""
    curves = join_html(
        html.curve_diagram(d.title, d.events.by_score, d.bins, d.ece, SMALL_FIGURE_INCHES) for d in diagrams
    )
    return render('<div class="figures">{}</div>', curves)
