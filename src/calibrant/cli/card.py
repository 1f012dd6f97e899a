"""The command `card`: the calibration of language models, from the logs of their evaluations."""

from pathlib import Path
from typing import Any

from typer import Argument, Option

from calibrant._core.errors import InputError
from calibrant.cli._common import (
    HTML_OPTION,
    JSON_OPTION,
    LEVEL_OPTION,
    check_output_paths,
    command_line,
    output_result,
    show_status,
)


def card_command(
    log: list[Path] = Argument(
        ..., metavar="LOG...", help="Evaluation logs: a file, folder or pattern in quotes for each model."
    ),
    name: list[str] | None = Option(
        None, metavar="NAME", help="Name of a model, in the order of the logs. Repeatable. Default: from the log."
    ),
    task: list[str] | None = Option(None, metavar="NAME", help="Task of the logs to keep. Repeatable. Default: all."),
    filter_: list[str] | None = Option(
        None, "--filter", metavar="NAME", help="Filter of lm-evaluation-harness whose scores count. Repeatable."
    ),
    correct: list[str] | None = Option(
        None, metavar="NAME", help="What grades the answers: a metric, scorer, statistic or field. Repeatable."
    ),
    confidence: str | None = Option(
        None, metavar="NAME", help="Field of confidences, or stated, tokens or mean_token."
    ),
    group: str | None = Option(None, metavar="NAME", help="Field of the question that names its subject."),
    percent: bool = Option(False, "--percent", help="Read plain numbers as percentages from 0 to 100."),
    level: float = LEVEL_OPTION,
    html: Path | None = HTML_OPTION,
    json_: Path | None = JSON_OPTION,
) -> None:
    """Compute the calibration card of language models from their evaluation logs.

    Accuracy and abstention, calibration with intervals, every published convention with its range, bounds over missing
    confidences, accuracy at coverage, the score of answering only when sure, subjects, and ranks of several models.

    calibrant card samples_mmlu.jsonl --html card.html

    calibrant card runs/small runs/large --confidence stated --json card.json
    """
    from calibrant.language_models import EvaluationLog
    from calibrant.language_models.cards import card

    check_output_paths(html, json_, inputs=log, suffixes={html: (".html",)})
    if name is not None and len(name) != len(log):
        raise InputError(f"Expected one name for each of {len(log)} logs, got {len(name)}.", code="num_names")
    options: dict[str, Any] = {"task": task, "filter": filter_, "score": correct, "confidence": confidence}
    options |= {"subject": group, "percent": percent or None}  # None: by the format of the log
    logs: list[EvaluationLog] = []
    with show_status() as progress:
        for path in log:
            progress(f"reading {path.name}")
            logs.append(EvaluationLog.read(path, **options))
        progress("computing")
        result = card(_name_by_option(log, logs, name), level=level)
    output_result(result, json_, html=html, page=lambda: result.html({"command": command_line()}))


def _name_by_option(paths: list[Path], logs: list[Any], names: list[str] | None) -> Any:
    """Return the logs under the names given, else under their models, else under their file names.

    Raises:
        InputError: Two logs have the same name.
    """
    chosen_names = names or [log.model or path.stem for path, log in zip(paths, logs, strict=True)]
    repeated = sorted({text for text in chosen_names if chosen_names.count(text) > 1})
    if repeated:
        raise InputError(
            f"Expected a different name for each model, got {repeated[0]!r} several times. Try --name for each log.",
            code="repeated_names",
        )
    return dict(zip(chosen_names, logs, strict=True))
