"""The report of a study: the pieces of a page, made of numbers that exist already."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from markupsafe import Markup

from calibrant.lab.study.config import Recipe, Run, Study
from calibrant.lab.study.drawing import Drawing
from calibrant.lab.study.learning_curves import learning_drawings
from calibrant.lab.study.measurements import Diagram, RunMeasurement, pooled_diagrams, primary_calibrator
from calibrant.lab.study.store import Store
from calibrant.lab.study.sweeps import sweep_drawings
from calibrant.lab.study.tables import Cell, ResultTable, central_metric
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
    reveal_hidden_characters,
    table,
    term,
    typeset,
    version_facts,
)

NUM_BINS = 15
SMALL_FIGURE_INCHES = 2.6  # inches, where there are many
MAX_LISTED = 4  # places, or losses, or metrics, that are told one by one
MAX_OTHER_DIAGRAMS = 24  # after calibrators beside the one that is drawn first
MAX_BAR_DIAGRAM_PAIRS = 30  # pairs of curves, before and after, of which all are not drawn once more as bars
MAX_OPEN_TABLE_ROWS = 12  # rows of a table from which not all metrics stand open

SHIFT_READING = note(
    "The networks and calibrators of above on other test sets: corrupted images, whose labels still "
    "hold, and other data sets, of which one wants to know only that they are foreign. ood_ tells how well a score of "
    "the logits divides the test set from the shift: AUROC 50 % is chance."
)
SWEEP_READING = note("Points are means over seeds, shaded from the least to the greatest.")
LEARNING_READING = note(
    "Curves are means over seeds, shaded from the least to the greatest; histograms hold the examples of all seeds."
)

SECONDARY_FIGURES_HEADING = "On the training data, by correct and wrong predictions, and by bin of confidence"


def study_report(
    study: Study, tables: Sequence[ResultTable], measured: Sequence[RunMeasurement], store: Store, command: str
) -> str:
    """Return a study's HTML report: what was found, the tables, reliability diagrams before and after."""
    trained = [measurement.run for measurement in measured if isinstance(measurement.run, Run)]
    seconds = sum(store.record(run)["facts"]["seconds"] for run in trained)
    curves, bars = _reliability_html(study, measured)
    sections = [
        Section("Results", _folded_findings(tables) + result_tables(study, tables)),
        Section("Confidence against accuracy", curves + CURVE_EXPLANATION + bars),
    ]
    if len({row[:2] for row in tables[0].rows}) > 1:
        main_tables = _main_tables(tables)
        sections.insert(1, Section("Networks side by side", join_html(side_by_side(t) for t in main_tables)))
    if shifted := [t for t in tables if t.shift]:
        sections.append(Section("Under shift", SHIFT_READING + _shift_tables(shifted)))
    swept_drawings = sweep_drawings(study, (row for measurement in measured for row in measurement.rows))
    if sweep_figures := _figure_grid(swept_drawings, SWEEP_READING, "The other metrics"):
        sections.append(Section("Against a parameter", sweep_figures))
    if learning_figures := _figure_grid(learning_drawings(study, store), LEARNING_READING, SECONDARY_FIGURES_HEADING):
        sections.append(Section("How they learned", learning_figures))
    run_facts = {"study": f"{study.name}: {len(trained)} networks, {seconds / 60:.1f} minutes of training"}
    run_facts |= (
        _recipe_texts(study, trained) if trained else {"study": f"{study.name}: {len(measured)} sets of predictions"}
    )
    return page(
        study.title or study.name,
        findings(tables),
        sections,
        run_facts | version_facts(command),
        kicker="A calibration study",
    )


def _folded_findings(tables: Sequence[ResultTable]) -> Markup:
    """What was found where the opening does not say it."""
    unlisted = findings_by_place(_central_table(tables))
    unlisted = unlisted[_num_listed(len(unlisted)) :]
    if not unlisted:
        return Markup()
    items = join_html(render("<dt>{}</dt><dd>{}</dd>", typeset(place), typeset(words)) for place, words in unlisted)
    return details(f"What was found in {len(unlisted)} more places", render('<dl class="answers">{}</dl>', items))


def _recipe_texts(study: Study, runs: Sequence[Run]) -> dict[str, str]:
    """Say each recipe that trained, and what: all of the first, of the others what differs from it."""
    trained: dict[Recipe, dict[str, None]] = {}
    for run in runs:
        loss, network, dataset = map(study.label, (run.loss, run.network, run.dataset))
        trained.setdefault(run.recipe, {})[f"{loss} of {network} on {dataset}"] = None
    first = vars(next(iter(trained)))
    texts = {"recipe": ", ".join(f"{key} {value}" for key, value in first.items() if key != "averaged")}
    for i, (recipe, networks) in enumerate(list(trained.items())[1:], 2):
        differences = ", ".join(f"{key} {value}" for key, value in vars(recipe).items() if value != first[key])
        networks_text = (
            join_names(list(networks))
            if len(networks) <= MAX_LISTED
            else f"{len(networks)} kinds of networks, such as {next(iter(networks))}"
        )
        texts[f"recipe {i}"] = f"{differences}: {networks_text}"
    return texts


def result_cell(study: Study, tables: Sequence[ResultTable]) -> str:
    """Return what a notebook shows of a study."""
    return reveal_hidden_characters(result_tables(study, tables))


def result_tables(study: Study, tables: Sequence[ResultTable]) -> Markup:
    """Return the tables of a study without those of its shifts, and what stands in them."""
    rendered = [(_table_html(t), len(t.rows)) for t in tables if not t.shift]
    first = MAX_LISTED if any(rows > MAX_OPEN_TABLE_ROWS for _, rows in rendered) else len(rendered)
    folded_tables = join_html(table for table, _ in rendered[first:])
    fold = details("The other metrics", folded_tables) if folded_tables else Markup()
    return join_html([*(table for table, _ in rendered[:first]), fold, _table_legend(study, tables)])


def _main_tables(tables: Sequence[ResultTable]) -> list[ResultTable]:
    """The tables of the first metric, of NLL and of ECE: how good the networks are, and how true."""
    unshifted = [t for t in tables if not t.shift]
    nll_tables = [t for t in unshifted if base_name(t.metric) == "nll"]
    return list({t.metric: t for t in (unshifted[0], *nll_tables, _central_table(tables))}.values())


def findings_text(tables: Sequence[ResultTable]) -> str:
    """Say in words what a study found, a line for each place."""
    return "\n".join(findings(tables))


def _central_table(tables: Sequence[ResultTable]) -> ResultTable:
    by_metric = {t.metric: t for t in tables if not t.shift}
    return by_metric[central_metric(by_metric)] if by_metric else tables[0]


def findings(tables: Sequence[ResultTable]) -> list[str]:
    """Say in words what a study found, place by place: who is over- and underconfident, and what is best."""
    table = _central_table(tables)
    places = list(dict.fromkeys(row[:2] for row in table.rows))
    if len(places) == 1:
        return [" ".join(_place_findings(table, table.rows))]
    num_listed, num_unlisted = _num_listed(len(places)), len(places) - _num_listed(len(places))
    parts = [f"{place}: {words}" for place, words in findings_by_place(table)[:num_listed]]
    return [*parts, f"So it goes on for {num_unlisted} more, place by place."] if num_unlisted else parts


def _num_listed(places: int) -> int:
    """How many are told one by one: `SAID`, and not all but one."""
    return MAX_LISTED if places > MAX_LISTED + 1 else places


def findings_by_place(table: ResultTable) -> list[tuple[str, str]]:
    """Say of every place what was found there."""
    places = dict.fromkeys(row[:2] for row in table.rows)
    texts = (" ".join(_place_findings(table, [row for row in table.rows if row[:2] == place])) for place in places)
    return [(f"{network} on {dataset}", words) for (dataset, network), words in zip(places, texts, strict=True)]


def _place_findings(table: ResultTable, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Say what was found in one place: numbers of different data sets are not compared."""
    raw = "Identity" if "Identity" in table.columns else table.columns[0]
    sentences = _confidence_findings(table, rows)
    for label, columns in (("Without a calibrator", [raw]), ("With the best calibrator", table.columns)):
        cells = {(row, column): table.cells[row, column] for row in rows for column in columns}
        best = table.about.best([cell.mean for cell in cells.values()])
        for (row, column), cell in cells.items():
            if cell.mean == best:
                calibrator_text = "" if column == "Identity" else f" followed by {column}"
                superlative = "highest" if table.about.higher_is_better else "lowest"
                value = replace(cell, mark="", letters="").text(table.about)
                sentences.append(
                    f"{label}, {row[2]}{calibrator_text} has the {superlative} {describe_metric(table.metric)}: "
                    f"{value}."
                )
                break
    return sentences


def _confidence_findings(table: ResultTable, rows: Sequence[tuple[str, ...]]) -> list[str]:
    scaled = next((c for c in table.columns if base_name(c) == "Temperature"), None)
    temperatures = {row[2]: table.cells[row, scaled].temperature for row in rows} if scaled else {}
    sentences: list[str] = []
    for direction, matching in (
        ("overconfident", {loss: t for loss, t in temperatures.items() if t > 1.05}),
        ("underconfident", {loss: t for loss, t in temperatures.items() if t < 0.95}),
    ):
        prefix = "Networks trained with " if table.has_trained_networks else ""
        if len(matching) > MAX_LISTED:
            least, greatest = min(matching, key=matching.__getitem__), max(matching, key=matching.__getitem__)
            count_text = f"{'All' if len(matching) == len(temperatures) else f'{len(matching)} of'} {len(temperatures)}"
            predicate = f"ways to train left networks {direction}" if prefix else f"models came out {direction}"
            low, high = f"{matching[least]:.2f}", f"{matching[greatest]:.2f}"
            range_text = f"s from {low} ({least}) to {high} ({greatest})" if low != high else f" {low}"
            sentences.append(f"{count_text} {predicate}: temperature{range_text}.")
        elif matching:
            names = join_names([f"{loss} (T = {t:.2f})" for loss, t in matching.items()])
            sentences.append(f"{prefix}{names} came out {direction}.")
    return sentences


def base_name(text: str) -> str:
    """Return a method's name without its arguments."""
    return text.partition("(")[0]


def _table_html(t: ResultTable) -> Markup:
    places = [f"{network} on {dataset}" for dataset, network, _ in t.rows]
    several = len(set(places)) > 1
    groups = {i: place for i, place in enumerate(places) if several and (i == 0 or place != places[i - 1])}
    rows = [
        [method_label(LOSSES.title(row[2]), row[2]), *(_cell_html(t.cells[row, c], t.about) for c in t.columns)]
        for row in t.rows
    ]
    best = [[t.cells[row, c].best for c in t.columns] for row in t.rows]
    head = [t.row_header, *(method_label(CALIBRATORS.title(c), c) for c in t.columns)]
    rendered = table(head, rows, bold=best, caption=t.heading, long_row_names=True, groups=groups)
    notes = join_html(map(note, t.table_notes))
    words = describe_metric(t.metric)
    words = words[:1].upper() + words[1:] + (f" on {t.shift}" if t.shift else "")
    return join_html([_metric_heading(words, t.metric), rendered, notes])


def _metric_heading(words: str, metric: str) -> Markup:
    return render("<h3>{}<code>{}</code></h3>", typeset(words), typeset(metric))


def _cell_html(cell: Cell, about: MetricInfo) -> Markup:
    """Return our number and, small below it, what the calibrator learned and the paper's number."""
    value, opening, learned = cell.text(about).partition(" (")
    learned, _, mark = learned.rpartition(")")
    ours = _unbroken_value("\N{EN DASH}" if value == "nan" else value + mark)
    small_lines = [f"({learned})"] if opening else []
    small_lines += [f"paper {cell.paper.text(about)}"] if cell.paper else []
    return ours + join_html(render("<small>{}</small>", typeset(line)) for line in small_lines)


def _unbroken_value(value: str) -> Markup:
    """Let a line end before the deviation, and nowhere else."""
    if value == "inf":
        return term(value, INFINITE_MEAN_EXPLANATION)
    mean, sign, deviation = value.partition(" ± ")
    if not sign:
        return typeset(value)
    return render("<span>{}</span> <span>{}</span>", typeset(mean), typeset(f"± {deviation}"))


def side_by_side(t: ResultTable) -> Markup:
    """Return a table of the losses against the networks: without a calibrator and, small below it, with the best."""
    places = list(dict.fromkeys(row[:2] for row in t.rows))
    names = list(dict.fromkeys(row[2] for row in t.rows))
    raw = "Identity" if "Identity" in t.columns else t.columns[0]
    rows: list[list[str]] = []
    best: list[list[bool]] = []
    for name in names:
        cells = [_best_cell_html(t, (*place, name), raw) for place in places]
        rows.append([method_label(LOSSES.title(name), name), *(cell for cell, _ in cells)])
        best.append([is_best for _, is_best in cells])
    head = [t.row_header, *(f"{network} on {dataset}" for dataset, network in places)]
    rendered = table(head, rows, bold=best, caption=f"{t.heading}, side by side", long_row_names=True)
    reading = note("Without a calibrator and, below, with the best of them; bold is the best of a column.")
    return join_html([_metric_heading(describe_metric(t.metric), t.metric), rendered, reading])


def _best_cell_html(t: ResultTable, row: tuple[str, ...], raw: str) -> tuple[str, bool]:
    """A cell of the losses against the networks, and whether it is the best without a calibrator."""
    if (row, raw) not in t.cells:
        return "\N{EN DASH}", False
    row_cells = {column: t.cells[row, column] for column in t.columns}
    least = t.about.best([cell.mean for cell in row_cells.values()])
    best_column = next((column for column, cell in row_cells.items() if cell.mean == least), raw)
    best_in_column = t.about.best([cell.mean for (r, c), cell in t.cells.items() if c == raw and r[:2] == row[:2]])
    ours = _unbroken_value(
        replace(row_cells[raw], mark="", letters="", temperature=math.nan, learned_values={}).text(t.about)
    )
    best_text = (
        f"{t.about.text(row_cells[best_column].mean)} by {best_column}" if best_column != raw else "the best as it is"
    )
    return ours + render("<small>{}</small>", typeset(best_text)), row_cells[raw].mean == best_in_column


def _table_legend(study: Study, tables: Sequence[ResultTable]) -> Markup:
    tested = " ".join(dict.fromkeys(t.significance_note for t in tables if t.significance_note))
    seeds = max((len(cell.values) for t in tables for cell in t.cells.values()), default=1)
    words = f"Mean ± standard deviation over {seeds} seeds" if seeds > 1 else "One seed"
    return note(
        f"{words}, judged on test examples that no fit has seen; in brackets the mean temperature, and what else a "
        f"calibrator learned; the best of each table is bold. {tested}"
    )


def _shift_tables(tables: Sequence[ResultTable]) -> Markup:
    """Return the tables of every shift, the first metric and detection of each open."""
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


def _figure_grid(drawings: Iterable[Drawing], reading: Markup, folded_heading: str) -> Markup:
    """Return the main drawings with what is to be said of them, and the others folded; nothing if there are none."""
    rendered = [(drawing.is_main, _drawing_html(drawing)) for drawing in drawings]
    first, folded_part = (join_html(part for main, part in rendered if main is wanted) for wanted in (True, False))
    grid = '<div class="figures wide">{}</div>'
    parts = [render(grid, first), reading] if first else []
    parts += [details(folded_heading, render(grid, folded_part))] if folded_part else []
    return join_html(parts)


def _drawing_html(drawing: Drawing) -> Markup:
    return figure(lambda f: drawing.draw(f.add_subplot()), drawing.description, caption=drawing.title, size=(4.2, 2.9))


def _reliability_html(study: Study, measured: Sequence[RunMeasurement]) -> tuple[Markup, Markup]:
    """Draw the events of all seeds together, before and after each calibrator; in bars, too, unless they are many."""
    places: dict[str, dict[str, list[RunMeasurement]]] = {}
    for measurement in measured:
        dataset, network, loss = study.names(measurement.run)
        places.setdefault(f"{network} on {dataset}", {}).setdefault(loss, []).append(measurement)
    curves, bars, num_other_diagrams, has_many_diagrams = (
        Markup(),
        Markup(),
        0,
        sum(map(len, places.values())) > MAX_BAR_DIAGRAM_PAIRS,
    )
    first = primary_calibrator(study).text
    for i, (place, groups) in enumerate(places.items()):
        place_text = f", {place}" if len(places) > 1 else ""
        parts = [(f"{loss}{place_text}", d) for loss, runs in groups.items() for d in pooled_diagrams(runs, NUM_BINS)]
        main = [(title, d) for title, d in parts if d.calibrator in ("", first)]
        rendered = _curve_diagrams(main)
        curves += rendered if i < MAX_LISTED else details(place, rendered)
        other_parts = [part for part in parts if part not in main]
        num_other_diagrams += len(other_parts)
        if other_parts and num_other_diagrams <= MAX_OTHER_DIAGRAMS:
            curves += details(f"After the other calibrators{place_text}", _curve_diagrams(other_parts))
        if not has_many_diagrams:
            bars += join_html(
                bar_diagram(f"{title}, {d.stage}, in bars", d.events.equal_width(NUM_BINS), d.ece, SMALL_FIGURE_INCHES)
                for title, d in main
            )
    if num_other_diagrams > MAX_OTHER_DIAGRAMS:
        template = '<p class="note"><code>calibrant figures {}</code> draws the diagrams after all calibrators.</p>'
        curves += render(template, typeset(study.name))
    if has_many_diagrams:
        reading = '<p class="note"><code>calibrant figures {}</code> draws classical bars.</p>'
        return curves, render(reading, typeset(study.name))
    return curves, details(
        "The same in classical bars", render('<div class="figures">{}</div>', bars + BAR_EXPLANATION)
    )


def _curve_diagrams(parts: Iterable[tuple[str, Diagram]]) -> Markup:
    rendered = join_html(
        curve_diagram(f"{title}, {d.stage}", d.events.ties, d.events.equal_width(NUM_BINS), d.ece, SMALL_FIGURE_INCHES)
        for title, d in parts
    )
    return render('<div class="figures">{}</div>', rendered)
