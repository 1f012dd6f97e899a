"""`calibrant list`: every method of every kind."""

import re
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.padding import Padding

from calibrant._text import escape_markup
from calibrant.cli._common import WithOption, console, include_sources


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list")(list_command)


def list_command(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="losses, metrics, calibrators, data, networks, corruptions, scores or traces; all if left out."
        ),
    ] = None,
    with_: WithOption = None,
) -> None:
    """List every loss, metric, calibrator, data set, network ..., with parameters and source, your own included."""
    from calibrant.registry import REGISTRIES, suggest
    from calibrant.types import InputError

    include_sources(with_)
    if kind is not None and kind not in REGISTRIES:
        raise InputError(f"no {kind!r} to list; {suggest(kind, REGISTRIES)}", code="unknown_kind")
    for name in REGISTRIES if kind is None else (kind,):
        console.print(f"[bold]{name}[/bold]")
        for method, text in registry_entries(REGISTRIES[name]):
            if console.width >= 160:
                console.print(f"{escape_markup(method):<56}  [dim]{escape_markup(text)}[/dim]", soft_wrap=True)
            else:
                console.print(escape_markup(method), soft_wrap=True)
                console.print(Padding(f"[dim]{escape_markup(text)}[/dim]", (0, 0, 0, 4)))
        console.print()


def registry_entries(registry: Any) -> Iterable[tuple[str, str]]:
    """Return (name with its parameters, first sentence of the docstring with the source) of a registry's methods."""
    from calibrant.types import InputError

    for name in registry:
        try:
            yield describe_method(name, registry[name])
        except InputError as error:  # of a package that enrolled it
            yield name, str(error)


def describe_method(name: str, method: Any) -> tuple[str, str]:
    """Spell a method out, and say what it is."""
    import inspect

    from calibrant import registry

    settings = registry.hyperparameters(getattr(method, "fit", method))
    defaults = {key: ... if value is inspect.Parameter.empty else value for key, value in settings.items()}
    return registry.format_call(name, defaults).replace("=Ellipsis", "=..."), summary_without_formulas(
        inspect.getdoc(method) or ""
    )


def summary_without_formulas(docstring: str) -> str:
    """Return the first paragraph of a docstring without its formulas."""
    text = " ".join(docstring.partition("\n\n")[0].split())
    return re.sub(r",?\s*\$[^$]*\$", "", text)
