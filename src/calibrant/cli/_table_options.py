"""Options that say how a table is read: which column plays which role, and what its cells mean."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

ROLE_HELP = {
    "label": "Column of the true labels; default: label, y_true, ...",
    "probs": "Column(s) of probabilities, a,b,c or what they begin with; default: prob_..., probs, score.",
    "logits": "Column(s) of logits; default: logit_..., logits.",
    "predicted": "Column of predicted labels, beside a confidence; default: y_pred, prediction, ...",
    "confidence": "Column of stated confidences; default: confidence.",
    "correct": "Column that says whether the answer was right; default: correct.",
    "group": "Column of groups, each judged apart; default: group.",
    "weight": "Column of weights: how often a row counts; default: weight, if it sums to the number of rows.",
    "cluster": "Column of examples that belong together; default: cluster.",
    "id": "Column that names the rows.",
}
READING_OPTIONS: dict[str, tuple[Any, str]] = {
    "positive": (str | None, "Name of the positive class, where there is a single score."),
    "labels_from": (int | None, "Number of the first class, such as 1; default: 0."),
    "percent": (bool | None, "Probabilities are given in percent, 0 to 100."),
    "normalize": (bool | None, "Divide rows of rounded probabilities, which sum to .97 .. 1.03, by their sum."),
    "drop": (bool | None, "Leave out rows with missing values, or confidences outside [0, 1]."),
    "na": (list[str] | None, "Word for a missing value. Repeatable."),
    "encoding": (str | None, "Encoding of a text file, such as cp1252; default: detected."),
    "are_logits": (bool | None, "Scores of one per label are logits although all of them lie in [0, 1]."),
}
TABLE_PANEL_TITLE = "Columns of tables"


def add_table_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options; it receives those that were used as one mapping, `options`."""

    @wraps(function)
    def run(**arguments: Any) -> None:
        table_arguments = {name: arguments.pop(name) for name in (*ROLE_HELP, *READING_OPTIONS)}
        table_arguments = {name: value for name, value in table_arguments.items() if value not in (None, False, [])}
        options = {
            name: _split_column_names(name, value) if name in ROLE_HELP else value
            for name, value in table_arguments.items()
        }
        function(**arguments, options=options)

    signature = inspect.signature(function)
    command_parameters = [p for p in signature.parameters.values() if p.name != "options"]
    table_parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option_annotation(name, kind, text)
        )
        for name, (kind, text) in (
            {role: (str | None, text) for role, text in ROLE_HELP.items()} | READING_OPTIONS
        ).items()
    ]
    command_parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in command_parameters]
    run.__signature__ = signature.replace(parameters=[*command_parameters, *table_parameters])  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {p.name: p.annotation for p in (*command_parameters, *table_parameters)} | {"return": None}
    return run


def _option_annotation(name: str, kind: Any, text: str) -> Any:
    return Annotated[kind, typer.Option(f"--{name.replace('_', '-')}", help=text, rich_help_panel=TABLE_PANEL_TITLE)]


def _split_column_names(role: str, value: str) -> Any:
    """One column, or those between commas where there may be several."""
    return value.split(",") if role in ("probs", "logits") and "," in value else value
