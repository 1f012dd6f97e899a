"""What results have in common: each says what it has to say by `document()`, and shows and saves itself by that."""

from collections.abc import Callable, Mapping
from functools import singledispatch
from importlib import import_module
from pathlib import Path
from typing import Any

from calibrant._core.files import encode_nonfinite, result_json, write_by_suffix
from calibrant.reports.document import Document
from calibrant.reports.text import render_text, text_lines


@singledispatch
def describe(result: Any, **options: Any) -> Document:
    """Return what a result says, by the function that the file `_document` beside its class registers for it."""
    raise TypeError(f"no document of {type(result).__name__}")


class Reportable:
    """A result. Print it, show it in a notebook, or save it as .html or .json."""

    def document(self) -> Document:
        """Return what the result says: title, answers, tables, pictures, numbers and notes."""
        return self._describe()

    def _describe(self, **options: Any) -> Document:
        """Load the file `_document` beside the class, which draws and so is loaded late, and describe the result."""
        import_module(f"{type(self).__module__.rpartition('.')[0]}._document")
        return describe(self, **options)

    def __str__(self) -> str:
        return render_text(self.document())

    def __rich__(self) -> Any:
        from rich.text import Text

        lines = text_lines(self.document())
        return Text("\n").join(Text(line.text, line.style, no_wrap=True) for line in lines)

    def _repr_html_(self) -> str:
        from calibrant.reports.page import render_cell

        return render_cell(self.document())

    def html(self, facts: Mapping[str, str] | None = None) -> str:
        """Return a self-contained HTML page.

        Args:
            facts: Names and values to list at the end, such as "command".
        """
        from calibrant.reports.page import render_page

        return render_page(self.document(), facts or {})

    def json(self, source: Mapping[str, Any] | None = None) -> str:
        """Return all numbers as JSON, with null for missing numbers and "inf" for infinite ones.

        Args:
            source: Entries that replace those of the same name in the block "provenance" (version, time).
        """
        return result_json(encode_nonfinite(self.numbers()), {**self.sources(), **(source or {})})

    def numbers(self) -> dict[str, Any]:
        """Return all numbers for programs, as builtin types."""
        raise NotImplementedError

    def sources(self) -> dict[str, Any]:
        """Return what the numbers were computed from, for the block "provenance"."""
        return {}

    def writers(self) -> dict[str, Callable[[], str]]:
        """Return the function that returns the text of a file, by suffix."""
        return {".html": self.html, ".json": self.json}

    def save(self, path: str | Path) -> None:
        """Write the page (.html), the numbers (.json) or another form that the result has, by the suffix."""
        write_by_suffix(path, self.writers())
