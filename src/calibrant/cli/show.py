"""`calibrant list`: every method of every kind."""

import re
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.padding import Padding

from calibrant._text import markup
from calibrant.cli._common import With, include, out


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("list")(list_)


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="losses, metrics, calibrators, data, networks, corruptions, scores or traces; all if left out."
        ),
    ] = None,
    with_: With = None,
) -> None:
    """List every loss, metric, calibrator, data set, network ..., with parameters and source, your own included."""
    from calibrant.catalog import REGISTRIES, suggest
    from calibrant.types import InputError

    include(with_)
    if kind is not None and kind not in REGISTRIES:
        raise InputError(f"no {kind!r} to list; {suggest(kind, REGISTRIES)}", code="unknown_kind")
    for name in REGISTRIES if kind is None else (kind,):
        out.print(f"[bold]{name}[/bold]")
        for method, text in entries(REGISTRIES[name]):
            if out.width >= 160:
                out.print(f"{markup(method):<56}  [dim]{markup(text)}[/dim]", soft_wrap=True)
            else:
                out.print(markup(method), soft_wrap=True)
                out.print(Padding(f"[dim]{markup(text)}[/dim]", (0, 0, 0, 4)))
        out.print()


def entries(registry: Any) -> Iterable[tuple[str, str]]:
    """Return (name with its parameters, first sentence of the docstring with the source) of a registry's methods."""
    from calibrant.types import InputError

    for name in registry:
        try:
            yield described(name, registry[name])
        except InputError as error:  # of a package that enrolled it
            yield name, str(error)


def described(name: str, method: Any) -> tuple[str, str]:
    """Spell a method out, and say what it is."""
    import inspect

    from calibrant import catalog

    settings = catalog.hyperparameters(getattr(method, "fit", method))
    known = {key: ... if value is inspect.Parameter.empty else value for key, value in settings.items()}
    return catalog.spell(name, known).replace("=Ellipsis", "=..."), plain(inspect.getdoc(method) or "")


def plain(docstring: str) -> str:
    """Return the first paragraph of a docstring without its formulas."""
    text = " ".join(docstring.partition("\n\n")[0].split())
    return re.sub(r",?\s*\$[^$]*\$", "", text)
