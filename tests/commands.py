"""Command lines in the process of the tests, for tests that are not about a process of their own."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from calibrant import catalog
from calibrant.cli import main


def run(*arguments: object, folder: Path | None = None) -> CompletedProcess[str]:
    """Run a command line, in a folder, as `subprocess.run` would; the methods that it includes are forgotten."""
    command = ["calibrant", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, forgetting(), redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", command)
        if folder is not None:
            patch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            main()
    return CompletedProcess(command, int(ended.value.code or 0), out.getvalue(), err.getvalue())


@contextmanager
def forgetting() -> Iterator[None]:
    """Forget at the end which methods were registered meanwhile, and the files that were included."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in catalog.REGISTRIES.values():
            len(registry)  # fills it
            patch.setattr(registry, "_methods", dict(registry._methods))
        before = list(catalog.INCLUDED)
        patch.setattr(catalog, "INCLUDED", list(before))
        patch.setattr(sys, "path", list(sys.path))
        yield
        folders = tuple(str(Path(place).parent) for place in catalog.INCLUDED if place not in before)
        for name, module in list(sys.modules.items()):
            if folders and str(getattr(module, "__file__", None)).startswith(folders):
                del sys.modules[name]
