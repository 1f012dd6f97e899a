"""What commands for predictions have in common: options for tables, the user's own methods, and quick imports."""

import gc
import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from typer import Option

from calibrant.cli._common import WITH_OPTION, console

TableOptions = dict[str, tuple[Any, str | None, str]]  # type, placeholder and help by name
_ROLE_HELP = {
    "label": "Column of the true labels. Default: label, y_true, target and similar names.",
    "probs": "Columns of probabilities: a name, several (a,b,c), or a prefix. Default: prob_..., probs, score "
    "and similar names.",
    "logits": "Columns of logits: a name, several (a,b,c), or a prefix. Default: logit_..., logits and similar names.",
    "predicted": "Column of predicted labels, beside a confidence. Default: y_pred, prediction and similar names.",
    "confidence": "Column of stated confidences. Default: confidence and similar names.",
    "correct": "Column that tells whether the answer was correct. Default: correct and similar names.",
    "group": "Column of groups, which are measured separately. Default: group.",
    "weight": "Column that tells how often a row counts. Default: weight, if it sums to about the number of rows.",
    "cluster": "Column of clusters, whose rows depend on each other. Default: cluster.",
    "id": "Column of row names. Default: id and similar names.",
}
ROLE_OPTIONS: TableOptions = {role: (str | None, "NAME", text) for role, text in _ROLE_HELP.items()}
READING_OPTIONS: TableOptions = {
    "positive": (str | None, "NAME", "Positive class of a single score. Default: 1, yes, true and similar names."),
    "labels_from": (int | None, "N", "Number of the first class. Default: 0."),
    "percent": (bool | None, None, "Read probabilities as percentages from 0 to 100."),
    "normalize": (
        bool | None,
        None,
        "Divide rows of rounded probabilities, with sums from 0.97 to 1.03, by their sum.",
    ),
    "drop": (bool | None, None, "Leave out rows with missing values, or with confidences outside [0, 1]."),
    "na": (list[str] | None, "WORD", "Read this word as a missing value. Repeatable."),
    "encoding": (str | None, "NAME", "Encoding of a text file, such as cp1252. Default: detected."),
    "are_logits": (bool | None, None, "Read single scores as logits although all of them lie in [0, 1]."),
}
LOG_OPTIONS: TableOptions = {
    "task": (list[str] | None, "NAME", "Task of evaluation logs to keep. Repeatable. Default: all."),
    "filter": (list[str] | None, "NAME", "Filter of lm-evaluation-harness whose scores count. Repeatable."),
}


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return a keyword-only parameter of a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


TABLE_PARAMETERS = [
    _keyword(
        name,
        annotation,
        Option(None, f"--{name.replace('_', '-')}", metavar=metavar, help=text, rich_help_panel=panel_title),
    )
    for panel_title, options in (
        ("Columns of tables", ROLE_OPTIONS | READING_OPTIONS),
        ("Evaluation logs", LOG_OPTIONS),
    )
    for name, (annotation, metavar, text) in options.items()
]


def prediction_command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command that imports the modules for predictions, and then runs a function.

    With `--json -`, standard output is JSON alone: the console is quiet.

    A function with the parameter `options` reads tables: the command has the options of this module and `--with` in
    its place. The function receives those that the user set as one mapping, `options`, from their names to their
    values.
    """
    signature = inspect.signature(function)
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in signature.parameters.values() if p.name != "options"]
    reads_tables = "options" in signature.parameters
    if reads_tables:
        parameters += [_keyword("with_", list[str] | None, WITH_OPTION), *TABLE_PARAMETERS]

    @wraps(function)
    def run(**arguments: Any) -> None:
        import_prediction_modules()
        if reads_tables:
            from calibrant import registry

            registry.include(arguments.pop("with_") or ())
            values = {parameter.name: arguments.pop(parameter.name) for parameter in TABLE_PARAMETERS}
            arguments["options"] = {
                name: _split_names(name, value)
                for name, value in values.items()
                if value is not None and value is not False and value != []  # not `if value`: 0 is a number of a class
            }
        console.quiet = str(arguments.get("json_")) == "-"
        try:
            function(**arguments)
        finally:
            console.quiet = False

    # Typer reads the signature and the type hints, which `wraps` has copied from the function
    run.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return run


def _split_names(role: str, value: Any) -> Any:
    """Return the value of an option, or a list for several columns of scores separated by commas."""
    return value.split(",") if role in ("probs", "logits") and "," in value else value


def import_prediction_modules() -> None:
    """Import the modules for predictions once, without garbage collection.

    No imported object is garbage, and the collector would take as long as measuring a small file.
    """
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        import torch

        from calibrant import assessment  # noqa: F401  # pyright: ignore[reportUnusedImport]
        from calibrant.backend.dispatch import kernels

        kernels(torch.empty(0))  # imports the compiled kernels, which are otherwise imported on first use
    finally:
        gc.freeze()  # later collections skip the objects that exist now
        gc.enable()
