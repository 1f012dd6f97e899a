"""The command `list`: every method of every kind."""

import inspect
import re
from collections.abc import Iterable
from typing import Any

from rich.padding import Padding
from typer import Argument

from calibrant._core.errors import InputError
from calibrant._core.text import escape_markup
from calibrant.cli._common import WITH_OPTION, console

MIN_ONE_LINE_WIDTH = 160  # columns of a terminal


def list_command(
    kind: str | None = Argument(
        None,
        metavar="KIND",
        help="Kind to list: losses, metrics, calibrators, data, networks, corruptions, scores or traces. "
        "Default: all kinds.",
        show_default=False,
    ),
    with_: list[str] | None = WITH_OPTION,
) -> None:
    """List methods with their parameters and sources."""
    from calibrant._core import registry
    from calibrant._core.registry import REGISTRIES, suggest

    registry.include(with_ or ())
    if kind is not None and kind not in REGISTRIES:
        raise InputError(f"Expected a kind to list, got {kind!r}; {suggest(kind, REGISTRIES)}.", code="unknown_kind")
    for name in REGISTRIES if kind is None else (kind,):
        console.print(f"[bold]{name}[/bold]")
        for method, text in _entries(REGISTRIES[name], is_required=kind is not None):
            if console.width >= MIN_ONE_LINE_WIDTH:
                console.print(f"{escape_markup(method):<56}  [dim]{escape_markup(text)}[/dim]", soft_wrap=True)
            else:
                console.print(escape_markup(method), soft_wrap=True)
                console.print(Padding(f"[dim]{escape_markup(text)}[/dim]", (0, 0, 0, 4)))
        console.print()


def _entries(registry: Any, *, is_required: bool) -> Iterable[tuple[str, str]]:
    """Return the entries of a registry, or a line that says which package they need, unless they are required."""
    try:
        return list(registry_entries(registry))
    except InputError as error:
        if is_required:
            raise
        return [("", str(error))]


def registry_entries(registry: Any) -> Iterable[tuple[str, str]]:
    """Yield the call and summary of each method, or its name and the error if its package does not load."""
    for name in registry:
        try:
            yield describe_method(name, registry[name])
        except InputError as error:
            yield name, str(error)


def describe_method(name: str, method: Any) -> tuple[str, str]:
    """Return the call of a method with its defaults, such as focal(gamma=3), and the summary of its docstring.

    Formulas between dollar signs are left out of the summary.
    """
    from calibrant._core import registry

    settings = registry.hyperparameters(getattr(method, "fit", method))  # calibrators are made by their `fit`
    # a setting without a default is shown as "name=..."
    defaults = {key: ... if value is inspect.Parameter.empty else value for key, value in settings.items()}
    call = registry.format_call(name, defaults).replace("=Ellipsis", "=...")
    first_paragraph, _, _ = (inspect.getdoc(method) or "").partition("\n\n")
    summary = " ".join(first_paragraph.split())  # on one line
    return call, re.sub(r",?\s*\$[^$]*\$", "", summary)
