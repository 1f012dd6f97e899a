"""Options for reading a table: the roles of its columns, and the meaning of its cells."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

ROLE_HELP = {
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
READING_OPTIONS: dict[str, tuple[Any, str, str]] = {  # type, placeholder, help
    "positive": (str | None, "NAME", "Positive class of a single score. Default: 1, yes, true and similar names."),
    "labels_from": (int | None, "N", "Number of the first class. Default: 0."),
    "percent": (bool | None, "", "Read probabilities as percentages from 0 to 100."),
    "normalize": (bool | None, "", "Divide rows of rounded probabilities, with sums from 0.97 to 1.03, by their sum."),
    "drop": (bool | None, "", "Leave out rows with missing values, or with confidences outside [0, 1]."),
    "na": (list[str] | None, "WORD", "Read this word as a missing value. Repeatable."),
    "encoding": (str | None, "NAME", "Encoding of a text file, such as cp1252. Default: detected."),
    "are_logits": (bool | None, "", "Read single scores as logits although all of them lie in [0, 1]."),
}
LOG_OPTIONS: dict[str, tuple[Any, str, str]] = {
    "task": (list[str] | None, "NAME", "Task of evaluation logs to keep. Repeatable. Default: all."),
    "filter": (list[str] | None, "NAME", "Filter of lm-evaluation-harness whose scores count. Repeatable."),
}
TABLE_PANEL_TITLE = "Columns of tables"
LOG_PANEL_TITLE = "Evaluation logs"


def add_table_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of this module in place of its parameter `options`.

    The command receives those that the user set as one mapping, `options`, from their names to their values.
    """

    @wraps(function)
    def run(**arguments: Any) -> None:
        table_arguments = {name: arguments.pop(name) for name in (*ROLE_HELP, *READING_OPTIONS, *LOG_OPTIONS)}
        given_options = {
            name: value
            for name, value in table_arguments.items()
            if value is not None and value is not False and value != []  # 0 equals False, but is the number of a class
        }
        function(**arguments, options={name: _split_names(name, value) for name, value in given_options.items()})

    signature = inspect.signature(function)
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
        if parameter.name != "options"
    ]
    roles = {role: (str | None, "NAME", text) for role, text in ROLE_HELP.items()}
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name, *option))
        for name, option in (roles | READING_OPTIONS | LOG_OPTIONS).items()
    ]
    # Typer reads the signature and the type hints; `wraps` has set both to those of the undecorated command
    run.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return run


def _annotation(name: str, option_type: Any, metavar: str, text: str) -> Any:
    flag = f"--{name.replace('_', '-')}"
    panel = LOG_PANEL_TITLE if name in LOG_OPTIONS else TABLE_PANEL_TITLE
    return Annotated[option_type, typer.Option(flag, help=text, metavar=metavar or None, rich_help_panel=panel)]


def _split_names(role: str, value: Any) -> Any:
    """Return the names of several columns of scores, which are separated by commas."""
    return value.split(",") if role in ("probs", "logits") and "," in value else value
