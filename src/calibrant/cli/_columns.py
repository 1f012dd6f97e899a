"""Options that say which column of a table is what."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

HELP = {
    "label": "Column of the true labels; default: label, y_true, ...",
    "probs": "Column(s) of probabilities, a,b,c or what they begin with; default: prob_..., probs, score.",
    "logits": "Column(s) of logits; default: logit_..., logits.",
    "confidence": "Column of stated confidences; default: confidence.",
    "correct": "Column that says whether the answer was right; default: correct.",
    "group": "Column of groups, each judged apart; default: group.",
    "weight": "Column of weights; default: weight.",
    "cluster": "Column of examples that belong together; default: cluster.",
    "id": "Column that names the rows.",
}
PANEL = "Columns of tables"


def with_columns(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options; it gets those that were used as one mapping, `columns`, by role."""

    @wraps(function)
    def run(**given: Any) -> None:
        said = {role: given.pop(role) for role in HELP}
        function(**given, columns={role: _names(role, value) for role, value in said.items() if value is not None})

    own = inspect.signature(function)
    kept = [p for p in own.parameters.values() if p.name != "columns"]
    more = [
        inspect.Parameter(role, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(role)) for role in HELP
    ]
    kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in kept]
    run.__signature__ = own.replace(parameters=[*kept, *more])  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {p.name: p.annotation for p in (*kept, *more)} | {"return": None}
    return run


def _option(role: str) -> Any:
    return Annotated[str | None, typer.Option(f"--{role}", help=HELP[role], rich_help_panel=PANEL)]


def _names(role: str, value: str) -> Any:
    """One column, or those between commas where there may be several."""
    return value.split(",") if role in ("probs", "logits") and "," in value else value
