"""The command `sample-size`: how many labels an evaluation needs."""

from pathlib import Path
from typing import Any

import numpy as np
from typer import Argument, Option

from calibrant._core.errors import InputError
from calibrant.cli._common import (
    EVENT_OPTION,
    IGNORE_INDEX_OPTION,
    JSON_OPTION,
    check_output_paths,
    console,
    output_result,
    parse_event,
    print_input_notes,
    print_line,
    show_status,
)


def _assumption(default: Any, metavar: str, text: str) -> Any:
    """Return an option in the panel of assumptions."""
    return Option(default, metavar=metavar, help=text, rich_help_panel="Assumptions")


def sample_size_command(
    file: list[Path] | None = Argument(
        None,
        metavar="FILE [SECOND]",
        help="Predictions like the future ones, labeled or not; and those of a second model, for --difference.",
        show_default=False,
    ),
    detect: float | None = Option(None, metavar="X", help="Goal: detect a calibration error of X, such as 0.05."),
    bound: float | None = Option(None, metavar="X", help="Goal: show that the error of a calibrated model is below X."),
    difference: float | None = Option(None, metavar="X", help="Goal: tell apart two models whose metric differs by X."),
    slope: float | None = Option(None, metavar="X", help="Goal: interval of the calibration slope of width X, as 0.4."),
    observed_expected: float | None = Option(
        None, metavar="X", help="Goal: interval of observed/expected events of width X, as 0.2."
    ),
    net_benefit: float | None = Option(
        None, metavar="X", help="Goal: interval of the standardized net benefit of width X, with --threshold."
    ),
    threshold: float | None = Option(None, metavar="T", help="Risk from which on to act, for --net-benefit."),
    metric: str | None = Option(
        None,
        "--metric",
        "-m",
        metavar="NAME",
        help="Test, error or score of the goal. Default: omnibus, debiased_l2 or nll.",
    ),
    power: float = Option(0.8, metavar="P", help="Probability to reach the goal."),
    alpha: float = Option(0.05, metavar="P", help="Significance level, or error rate of the interval."),
    of: str | None = EVENT_OPTION,
    accuracy: float | None = _assumption(None, "P", "Expected accuracy, which is the mean confidence too."),
    distribution: str | None = _assumption(
        None, "TEXT", 'Expected distribution of confidences, "beta(9, 1)" or its mean.'
    ),
    correlation: float = _assumption(0.5, "R", "Correlation of the scores of two models, without a second file."),
    cluster_size: list[int] | None = _assumption(None, "N", "Examples per cluster. Repeat it for several sizes."),
    icc: float | None = _assumption(
        None, "R", "Correlation of outcomes within clusters. Default: estimated from labels."
    ),
    pattern: str = _assumption(
        "shift", "NAME", "Error to detect: shift (same size everywhere) or scale (logits too large)."
    ),
    exact: bool = Option(False, "--exact", help="Simulate thousands of data sets, which may take minutes."),
    draws: int | None = Option(
        None, metavar="N", help="Simulated data sets of --exact. Default: 2,000, and 500 of clusters."
    ),
    seed: int = Option(0, metavar="N", help="Seed of the simulation."),
    plot: Path | None = Option(None, metavar="FILE", help="Draw the power curve to this file: .png, .svg or .pdf."),
    json_: Path | None = JSON_OPTION,
    ignore_index: int | None = IGNORE_INDEX_OPTION,
    *,
    options: dict[str, Any],
) -> None:
    """Compute how many examples to label.

    Give one goal, and either predictions or assumptions. --exact simulates more; else a number is good to about 10 %.

    calibrant sample-size --accuracy 0.9 --detect 0.05

    calibrant sample-size predictions.csv --bound 0.05 --exact

    calibrant sample-size --distribution "beta(1.5, 3)" --slope 0.4
    """
    from calibrant import planning

    files = file or []
    if len(files) > 2:
        raise InputError(f"Expected at most two files, got {len(files)}.", code="num_files")
    check_output_paths(plot, json_, inputs=files, suffixes={plot: planning.FIGURE_SUFFIXES})
    needs_labels = difference is not None or ignore_index is not None
    options = {"ignore_index": ignore_index, **options} if needs_labels else options
    predictions = [_load_predictions(path, options, needs_labels=needs_labels, icc=icc) for path in files]
    print_input_notes(zip(files, predictions, strict=True))
    with show_status() as progress:
        result = planning.sample_size(
            *predictions,
            detect=detect,
            bound=bound,
            difference=difference,
            slope=slope,
            observed_expected=observed_expected,
            net_benefit=net_benefit,
            threshold=threshold,
            metric=metric,
            of=parse_event(of, predictions[0] if predictions else None),
            confidence=distribution,
            accuracy=accuracy,
            correlation=correlation,
            cluster_size=cluster_size or None,
            icc=icc,
            pattern=pattern,  # pyright: ignore[reportArgumentType]  checked by `sample_size`
            power=power,
            alpha=alpha,
            exact=exact,
            draws=draws,
            seed=seed,
            progress=progress,
        )
    if plot is not None:
        result.save(plot)
    output_result(result, json_, [plot], show=lambda: _show_result(result, predictions))


def _load_predictions(path: Path, options: dict[str, Any], *, needs_labels: bool, icc: float | None) -> Any:
    """Return the predictions in a file. Labels may be missing unless `needs_labels`.

    Raises:
        InputError: If labels are needed and missing. If there are clusters, labels are also needed to estimate the
            correlation of outcomes within clusters, unless it is given as `icc`.
    """
    from calibrant.io.predictions import read_file
    from calibrant.predictions import Predictions

    if needs_labels:
        return Predictions.load(path, **options)
    p, has_labels, _ = read_file(path, needs_labels=False, **options)
    if not has_labels and p.clusters is not None and icc is None:
        raise InputError(
            f"{path}: Expected labels, which show how alike the examples of a cluster are, got none. Try --icc 0.1.",
            code="no_icc",
        )
    return p


def _show_result(result: Any, predictions: list[Any]) -> None:
    """Print the result and, for a goal with a power and two units or more, the power of the first file."""
    console.print(result)
    for p in predictions[:1] if result.power is not None else ():
        clusters = () if p.clusters is None else np.unique(p.clusters)  # none if --cluster-size assumes them
        n = p.num_examples if result.unit == "example" else len(clusters)
        if n >= 2:
            print_line(f"The {n:,} {result.unit}s of the file have a power of {result.power_at(n):.2f}.")
