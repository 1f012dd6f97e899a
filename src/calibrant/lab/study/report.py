"""Build the HTML report of a study from tables, measurements and histories."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from markupsafe import Markup

from calibrant._grouping import group_pairs
from calibrant.lab.study.config import Study
from calibrant.lab.study.drawing import Drawing, group_by_place
from calibrant.lab.study.grids import Run
from calibrant.lab.study.learning_curves import learning_drawings
from calibrant.lab.study.measurements import FIGURE_BINS, Diagram, RunMeasurement, pooled_diagrams, primary_calibrator
from calibrant.lab.study.store import Store
from calibrant.lab.study.sweeps import sweep_drawings
from calibrant.lab.study.tables import Cell, ResultTable, describe_cells, main_calibration_error
from calibrant.metrics import MetricInfo, describe_metric
from calibrant.registry import CALIBRATORS, LOSSES
from calibrant.report import (
    BAR_EXPLANATION,
    CURVE_EXPLANATION,
    INFINITE_MEAN_EXPLANATION,
    Section,
    bar_diagram,
    curve_diagram,
    details,
    figure,
    join_html,
    join_names,
    method_label,
    note,
    page,
    render,
    table,
    term,
    typeset,
    version_facts,
)

SMALL_FIGURE_INCHES = 2.6
MAX_LISTED = 4  # places, losses or metrics that are shown without unfolding
MAX_OTHER_DIAGRAMS = 24  # diagrams of calibrators other than the primary one
MAX_BAR_DIAGRAM_PAIRS = 30  # with more pairs of curves, there are no classical bars
MAX_OPEN_TABLE_ROWS = 12  # with longer tables, only the first metrics are shown without unfolding
OVERCONFIDENT_TEMPERATURE, UNDERCONFIDENT_TEMPERATURE = 1.05, 0.95

SHIFT_READING = note(
    "The same networks and calibrators on other test sets. Corrupted images keep their labels; other data sets should "
    "only be detected as foreign. The ood_ metrics tell how well a score of the logits separates the test set from the "
    "shift; an AUROC of 50 % is chance."
)
SWEEP_READING = note("Points are means over seeds, shaded from minimum to maximum.")
LEARNING_READING = note(
    "Curves are means over seeds, shaded from minimum to maximum. Histograms hold the examples of all seeds."
)
SECONDARY_FIGURES_HEADING = "On the training data, by correct and wrong predictions, and by confidence bin"


def study_report(
    study: Study, tables: Sequence[ResultTable], measurements: Sequence[RunMeasurement], store: Store, command: str
) -> str:
    """Return a study's HTML report: findings, tables, reliability diagrams, sweeps and learning curves."""
    trained = [measurement.run for measurement in measurements if isinstance(measurement.run, Run)]
    curves, bars = _reliability_html(study, measurements)
    sections = [Section("Results", _folded_findings(tables) + result_tables(tables))]
    if len({row[:2] for row in tables[0].rows}) > 1:
        side_by_side_tables = join_html(side_by_side(t) for t in _main_tables(tables))
        sections.append(Section("Networks side by side", side_by_side_tables))
    sections.append(Section("Confidence against accuracy", curves + CURVE_EXPLANATION + bars))
    if shifted := [t for t in tables if t.shift]:
        sections.append(Section("Under shift", SHIFT_READING + _shift_tables(shifted)))
    swept_drawings = sweep_drawings(study, (row for measurement in measurements for row in measurement.rows))
    if sweep_figures := _figure_grid(swept_drawings, SWEEP_READING, "The other metrics"):
        sections.append(Section("Against a parameter", sweep_figures))
    if learning_figures := _figure_grid(learning_drawings(study, store), LEARNING_READING, SECONDARY_FIGURES_HEADING):
        sections.append(Section("Learning curves", learning_figures))
    facts = {"study": f"{study.name}: {len(measurements)} sets of predictions"}
    if trained:
        minutes = sum(store.record(run)["facts"]["seconds"] for run in trained) / 60
        facts = {"study": f"{study.name}: {len(trained)} networks, {minutes:.1f} minutes of training"}
        facts |= _recipe_texts(study, trained)
    title = study.title or study.name
    return page(title, findings(tables), sections, facts | version_facts(command), kicker="A calibration study")


def _recipe_texts(study: Study, runs: Sequence[Run]) -> dict[str, str]:
    """Describe the first recipe in full, and the others by their differences and networks."""
    labels = ((run.recipe, map(study.label, (run.loss, run.network, run.dataset))) for run in runs)
    trained = group_pairs((recipe, "{} of {} on {}".format(*names)) for recipe, names in labels)
    first = vars(next(iter(trained)))
    texts = {"recipe": ", ".join(f"{key} {value}" for key, value in first.items() if key != "averaged")}
    for i, (recipe, repeated_networks) in enumerate(list(trained.items())[1:], 2):
        differences = ", ".join(f"{key} {value}" for key, value in vars(recipe).items() if value != first[key])
        networks = list(dict.fromkeys(repeated_networks))
        names = join_names(networks)
        if len(networks) > MAX_LISTED:
            names = f"{len(networks)} kinds of networks, such as {networks[0]}"
        texts[f"recipe {i}"] = f"{differences}: {names}"
    return texts


# Findings


def findings(tables: Sequence[ResultTable]) -> list[str]:
    """Return the findings in words: over- and underconfident networks, and the best methods, place by place."""
    places = _findings_by_place(_main_calibration_table(tables))
    if len(places) == 1:
        return [places[0][1]]
    num_listed = _num_listed(len(places))
    parts = [f"{place}: {text}" for place, text in places[:num_listed]]
    return [*parts, f"The results list {len(places) - num_listed} more."] if num_listed < len(places) else parts


def _folded_findings(tables: Sequence[ResultTable]) -> Markup:
    """Return the findings that the opening does not list."""
    places = _findings_by_place(_main_calibration_table(tables))
    unlisted = places[_num_listed(len(places)) :]
    if not unlisted:
        return Markup()
    items = join_html(render("<dt>{}</dt><dd>{}</dd>", typeset(place), typeset(text)) for place, text in unlisted)
    return details(f"Findings for {len(unlisted)} more", render('<dl class="answers">{}</dl>', items))


def _num_listed(places: int) -> int:
    """Return the number of places to list; a single remaining one is listed, too."""
    return MAX_LISTED if places > MAX_LISTED + 1 else places


def _findings_by_place(table: ResultTable) -> list[tuple[str, str]]:
    """Return the findings of every pair of network and data set."""
    places = dict.fromkeys(row[:2] for row in table.rows)
    texts = (" ".join(_place_findings(table, [row for row in table.rows if row[:2] == place])) for place in places)
    return [(f"{network} on {dataset}", text) for (dataset, network), text in zip(places, texts, strict=True)]


def _place_findings(table: ResultTable, rows: Sequence[tuple[str, ...]]) -> list[str]:
    raw = _raw_column(table)
    sentences = _confidence_findings(table, rows)
    for label, columns in (("Without a calibrator", [raw]), ("With the best calibrator", table.columns)):
        cells = {(row, column): table.cells[row, column] for row in rows for column in columns}
        best = table.about.best([cell.mean for cell in cells.values()])
        for (row, column), cell in cells.items():
            if cell.mean == best:
                calibrator_text = "" if column == "Identity" else f" followed by {column}"
                superlative = "highest" if table.about.higher_is_better else "lowest"
                value = replace(cell, mark="", letters="").text(table.about)
                metric = describe_metric(table.metric)
                sentences.append(f"{label}, {row[2]}{calibrator_text} has the {superlative} {metric}: {value}.")
                break
    return sentences


def _confidence_findings(table: ResultTable, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Say by their temperatures which losses, or models trained elsewhere, are over- or underconfident."""
    scaled = next((c for c in table.columns if base_name(c) == "Temperature"), None)
    if scaled is None:
        return []
    temperatures = {row[2]: table.cells[row, scaled].temperature for row in rows}
    matching_by_direction = {
        "overconfident": {loss: t for loss, t in temperatures.items() if t > OVERCONFIDENT_TEMPERATURE},
        "underconfident": {loss: t for loss, t in temperatures.items() if t < UNDERCONFIDENT_TEMPERATURE},
    }
    sentences: list[str] = []
    for direction, matching in matching_by_direction.items():
        if len(matching) > MAX_LISTED:
            count = f"{len(matching)} of" if len(matching) < len(temperatures) else "All"
            subject = "{} losses yield {} networks" if table.has_trained_networks else "{} models are {}"
            subject = subject.format(f"{count} {len(temperatures)}", direction)
            sentences.append(f"{subject}: {_temperature_range(matching)}.")
        elif matching:
            names = join_names([f"{loss} (T = {t:.2f})" for loss, t in matching.items()])
            if table.has_trained_networks:
                sentences.append(f"Networks trained with {names} are {direction}.")
            else:
                sentences.append(f"{names} {'is' if len(matching) == 1 else 'are'} {direction}.")
    return sentences


def _temperature_range(temperatures: Mapping[str, float]) -> str:
    """Return the range of temperatures, with the names of the lowest and the highest."""
    lowest, highest = min(temperatures, key=temperatures.__getitem__), max(temperatures, key=temperatures.__getitem__)
    low, high = f"{temperatures[lowest]:.2f}", f"{temperatures[highest]:.2f}"
    return f"temperature {low}" if low == high else f"temperatures from {low} ({lowest}) to {high} ({highest})"


def _main_calibration_table(tables: Sequence[ResultTable]) -> ResultTable:
    by_metric = {t.metric: t for t in tables if not t.shift}
    return by_metric[main_calibration_error(by_metric)] if by_metric else tables[0]


def _main_tables(tables: Sequence[ResultTable]) -> list[ResultTable]:
    """Return the tables of the first metric, of NLL and of the main calibration error."""
    unshifted = [t for t in tables if not t.shift]
    nll_tables = [t for t in unshifted if base_name(t.metric) == "nll"]
    return list({t.metric: t for t in (unshifted[0], *nll_tables, _main_calibration_table(tables))}.values())


def base_name(text: str) -> str:
    """Return a method's name without its arguments."""
    return text.partition("(")[0]


def _raw_column(t: ResultTable) -> str:
    """Return the column without calibration."""
    return "Identity" if "Identity" in t.columns else t.columns[0]


# Tables


def result_tables(tables: Sequence[ResultTable]) -> Markup:
    """Return the tables of the test sets without shift, and their legend."""
    rendered = [(_table_html(t), len(t.rows)) for t in tables if not t.shift]
    first = MAX_LISTED if any(rows > MAX_OPEN_TABLE_ROWS for _, rows in rendered) else len(rendered)
    folded_tables = join_html(table_html for table_html, _ in rendered[first:])
    fold = details("The other metrics", folded_tables) if folded_tables else Markup()
    return join_html([*(table_html for table_html, _ in rendered[:first]), fold, _table_legend(tables)])


def _table_html(t: ResultTable) -> Markup:
    places = [f"{network} on {dataset}" for dataset, network, _ in t.rows]
    starts_place = [i == 0 or place != places[i - 1] for i, place in enumerate(places)]
    groups = {i: place for i, place in enumerate(places) if starts_place[i]} if len(set(places)) > 1 else {}
    rows = [
        [method_label(LOSSES.title(row[2]), row[2]), *(_cell_html(t.cells[row, c], t.about) for c in t.columns)]
        for row in t.rows
    ]
    best = [[t.cells[row, c].best for c in t.columns] for row in t.rows]
    head = [t.row_header, *(method_label(CALIBRATORS.title(c), c) for c in t.columns)]
    rendered = table(head, rows, bold=best, caption=t.heading, long_row_names=True, groups=groups)
    description = describe_metric(t.metric)
    description = description[:1].upper() + description[1:] + (f" on {t.shift}" if t.shift else "")
    return join_html([_metric_heading(description, t.metric), rendered, *map(note, t.table_notes)])


def _metric_heading(description: str, metric: str) -> Markup:
    return render("<h3>{}<code>{}</code></h3>", typeset(description), typeset(metric))


def _cell_html(cell: Cell, about: MetricInfo) -> Markup:
    """Return the number and, in small print below, the learned numbers and the paper's number."""
    number = cell.number_text(about)
    value = _unbroken_value(" ".join(filter(None, ["\N{EN DASH}" if number == "nan" else number, cell.significance])))
    small_lines = [f"({cell.learned_text})"] if cell.learned_text else []
    small_lines += [f"paper {cell.paper.text(about)}"] if cell.paper else []
    return value + join_html(render("<small>{}</small>", typeset(line)) for line in small_lines)


def _unbroken_value(value: str) -> Markup:
    """Allow a line break only before the deviation."""
    if value == "inf":
        return term(value, INFINITE_MEAN_EXPLANATION)
    mean, sign, deviation = value.partition(" ± ")
    if not sign:
        return typeset(value)
    return render("<span>{}</span> <span>{}</span>", typeset(mean), typeset(f"± {deviation}"))


def side_by_side(t: ResultTable) -> Markup:
    """Return a table of losses against networks: uncalibrated and, in small print, with the best calibrator.

    Args:
        t: Table whose rows are (dataset, network, loss).
    """
    networks = list(dict.fromkeys(row[:2] for row in t.rows))  # (dataset, network)
    loss_names = list(dict.fromkeys(row[2] for row in t.rows))
    rows: list[list[str]] = []
    best: list[list[bool]] = []
    for loss_name in loss_names:
        cells = [_best_cell_html(t, (*network, loss_name)) for network in networks]
        rows.append([method_label(LOSSES.title(loss_name), loss_name), *(cell for cell, _ in cells)])
        best.append([is_best for _, is_best in cells])
    head = [t.row_header, *(f"{network} on {dataset}" for dataset, network in networks)]
    rendered = table(head, rows, bold=best, caption=f"{t.heading}, side by side", long_row_names=True)
    reading = note("Without a calibrator, and below with the best one. Bold marks the best of a column.")
    return join_html([_metric_heading(describe_metric(t.metric), t.metric), rendered, reading])


def _best_cell_html(t: ResultTable, row: tuple[str, ...]) -> tuple[str, bool]:
    """Return a cell of `side_by_side`, and whether it is the best uncalibrated one of its column."""
    raw = _raw_column(t)
    if (row, raw) not in t.cells:
        return "\N{EN DASH}", False
    row_cells = {column: t.cells[row, column] for column in t.columns}
    best_mean = t.about.best([cell.mean for cell in row_cells.values()])
    best_column = next((column for column, cell in row_cells.items() if cell.mean == best_mean), raw)
    best_in_column = t.about.best([cell.mean for (r, c), cell in t.cells.items() if c == raw and r[:2] == row[:2]])
    best_text = f"{t.about.text(row_cells[best_column].mean)} by {best_column}"
    small_print = render("<small>{}</small>", typeset(best_text if best_column != raw else "best uncalibrated"))
    return _unbroken_value(row_cells[raw].number_text(t.about)) + small_print, row_cells[raw].mean == best_in_column


def _table_legend(tables: Sequence[ResultTable]) -> Markup:
    tests = " ".join(dict.fromkeys(t.significance_note for t in tables if t.significance_note))
    return note(
        f"Cells show {describe_cells(tables)}, measured on test examples that were not used for fitting. Brackets hold "
        "the mean temperature and other numbers that a calibrator learned. The best of each table is bold. "
        f"{tests}"
    )


def _shift_tables(tables: Sequence[ResultTable]) -> Markup:
    """Return the tables of every shift; all but ECE and AUROC are folded."""
    body = Markup()
    for shift in dict.fromkeys(t.shift for t in tables):
        shift_tables = [t for t in tables if t.shift == shift]
        first = {
            next((t.metric for t in shift_tables if base_name(t.metric) == name), "") for name in ("ece", "ood_auroc")
        }
        body += join_html(_table_html(t) for t in shift_tables if t.metric in first)
        folded_tables = join_html(_table_html(t) for t in shift_tables if t.metric not in first)
        body += details(f"The other metrics on {shift}", folded_tables)
    return body


# Figures


def _figure_grid(drawings: Iterable[Drawing], reading: Markup, folded_heading: str) -> Markup:
    """Return the main figures with their explanation, and the others folded; empty without figures."""
    rendered = [
        (d.is_main, figure(lambda f, d=d: d.draw(f.add_subplot()), d.description, caption=d.title, size=(4.2, 2.9)))
        for d in drawings
    ]
    first, folded_part = (join_html(part for is_main, part in rendered if is_main is main) for main in (True, False))
    grid = '<div class="figures wide">{}</div>'
    parts = [render(grid, first), reading] if first else []
    parts += [details(folded_heading, render(grid, folded_part))] if folded_part else []
    return join_html(parts)


def _reliability_html(study: Study, measurements: Sequence[RunMeasurement]) -> tuple[Markup, Markup]:
    """Return reliability diagrams of the pooled seeds before and after calibrators, as curves and as bars.

    The diagrams before and after the primary calibrator come first. Those after the other calibrators are folded, up to
    `MAX_OTHER_DIAGRAMS`.
    """
    places = group_by_place(study, ((measurement.run, measurement) for measurement in measurements))
    curves, num_other_diagrams = Markup(), 0
    primary = primary_calibrator(study).text
    bar_parts: list[tuple[str, Diagram]] = []
    for i, ((dataset, network), groups) in enumerate(places.items()):
        place = f"{network} on {dataset}"
        place_text = f", {place}" if len(places) > 1 else ""
        parts = [
            (f"{loss}{place_text}", d) for loss, group in groups.items() for d in pooled_diagrams(group, FIGURE_BINS)
        ]
        main_parts = [(title, d) for title, d in parts if d.calibrator in ("", primary)]
        other_parts = [(title, d) for title, d in parts if d.calibrator not in ("", primary)]
        bar_parts += main_parts
        main_curves = _curve_diagrams(main_parts)
        curves += main_curves if i < MAX_LISTED else details(place, main_curves)
        num_other_diagrams += len(other_parts)
        if other_parts and num_other_diagrams <= MAX_OTHER_DIAGRAMS:
            curves += details(f"After the other calibrators{place_text}", _curve_diagrams(other_parts))
    if num_other_diagrams > MAX_OTHER_DIAGRAMS:
        curves += _figures_command(study, "the diagrams after all calibrators")
    has_bars = sum(map(len, places.values())) <= MAX_BAR_DIAGRAM_PAIRS
    return curves, _bar_diagrams(bar_parts) if has_bars else _figures_command(study, "classical bars")


def _figures_command(study: Study, drawings: str) -> Markup:
    """Return a note with the command that draws what the page leaves out."""
    command = '<p class="note"><code>calibrant figures {}</code> draws {}.</p>'
    return render(command, typeset(study.name), drawings)


def _bar_diagrams(parts: Iterable[tuple[str, Diagram]]) -> Markup:
    bars = join_html(
        bar_diagram(f"{title}, {d.stage}, in bars", d.events.equal_width(FIGURE_BINS), d.ece, SMALL_FIGURE_INCHES)
        for title, d in parts
    )
    return details("The same in classical bars", render('<div class="figures">{}</div>', bars + BAR_EXPLANATION))


def _curve_diagrams(parts: Iterable[tuple[str, Diagram]]) -> Markup:
    rendered = join_html(
        curve_diagram(
            f"{title}, {d.stage}", d.events.ties, d.events.equal_width(FIGURE_BINS), d.ece, SMALL_FIGURE_INCHES
        )
        for title, d in parts
    )
    return render('<div class="figures">{}</div>', rendered)
