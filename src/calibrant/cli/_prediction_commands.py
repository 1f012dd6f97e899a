"""What commands for predictions have in common: options for tables, the user's own methods, and quick imports."""

import gc
import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from typer import Option

from calibrant.cli._common import WITH_OPTION, console


class TableOption(NamedTuple):
    """An option of commands that read tables."""

    type: Any
    help: str
    metavar: str | None = None  # placeholder of the value in the help; None: a flag


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
ROLE_OPTIONS = {role: TableOption(str | None, text, "NAME") for role, text in _ROLE_HELP.items()}
READING_OPTIONS = {
    "positive": TableOption(
        str | None, "Positive class of a single score. Default: 1, yes, true and similar names.", "NAME"
    ),
    "labels_from": TableOption(int | None, "Number of the first class. Default: 0.", "N"),
    "percent": TableOption(bool | None, "Read probabilities as percentages from 0 to 100."),
    "normalize": TableOption(
        bool | None, "Divide rows of rounded probabilities, with sums from 0.97 to 1.03, by their sum."
    ),
    "drop": TableOption(bool | None, "Leave out rows with missing values, or with confidences outside [0, 1]."),
    "na": TableOption(list[str] | None, "Read this word as a missing value. Repeatable.", "WORD"),
    "encoding": TableOption(str | None, "Encoding of a text file, such as cp1252. Default: detected.", "NAME"),
    "are_logits": TableOption(bool | None, "Read single scores as logits although all of them lie in [0, 1]."),
}
LOG_OPTIONS = {
    "task": TableOption(list[str] | None, "Task of evaluation logs to keep. Repeatable. Default: all.", "NAME"),
    "filter": TableOption(list[str] | None, "Filter of lm-evaluation-harness whose scores count. Repeatable.", "NAME"),
}


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return a keyword-only parameter, of which typer makes an option of the command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _table_parameter(name: str, option: TableOption, panel: str) -> inspect.Parameter:
    """Return the parameter of a table option, listed in the panel of the help with this title."""
    flag = f"--{name.replace('_', '-')}"
    default = Option(None, flag, metavar=option.metavar, help=option.help, rich_help_panel=panel)
    return _keyword(name, option.type, default)


TABLE_PARAMETERS = [
    *(_table_parameter(name, option, "Columns of tables") for name, option in (ROLE_OPTIONS | READING_OPTIONS).items()),
    *(_table_parameter(name, option, "Evaluation logs") for name, option in LOG_OPTIONS.items()),
]


def prediction_command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command that imports the modules for predictions, and then runs a function.

    With `--json -`, standard output is JSON alone: the console is quiet.

    A function with the parameter `options` reads tables: in place of this parameter, the command has `--with` and
    `TABLE_PARAMETERS`. The function receives the options that the user set as one mapping from names to values.
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
    """Return the names of several columns of scores, which commas separate, as a list, and other values unchanged."""
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
