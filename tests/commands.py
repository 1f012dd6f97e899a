"""Run command lines in the process of the tests."""

import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from calibrant.types import InputError

from calibrant import registry
from calibrant.cli import main

ROOT = Path(__file__).resolve().parents[1]


class Finished(CompletedProcess[str]):
    """A finished command; `code` is that of its `InputError`, or None."""

    code: str | None = None


def run(*arguments: object, folder: Path | None = None) -> Finished:
    """Run a command line in a folder, as `subprocess.run` would, and forget the methods that it includes."""
    command = ["calibrant", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, restored_registries(), redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", command)
        if folder is not None:
            patch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            main()
    finished = Finished(command, int(ended.value.code or 0), out.getvalue(), err.getvalue())
    cause = ended.value.__context__
    finished.code = cause.code if isinstance(cause, InputError) else None
    return finished


@contextmanager
def restored_registries() -> Iterator[None]:
    """Unregister the methods and files that were included within the block.

    Modules of temporary folders, which an earlier test may have imported, are removed before and after.
    """
    _forget_temporary_modules()
    with pytest.MonkeyPatch.context() as patch:
        for method_registry in registry.REGISTRIES.values():
            with suppress(InputError):  # its methods need torch
                len(method_registry)  # fills it
            patch.setattr(method_registry, "_methods", dict(method_registry._methods))
        included_sources = list(registry.INCLUDED_SOURCES)
        patch.setattr(sys, "path", list(sys.path))
        try:
            yield
        finally:
            registry.INCLUDED_SOURCES[:] = included_sources
    _forget_temporary_modules()


def _forget_temporary_modules() -> None:
    """Remove modules of temporary files, but none of this project or its environment, which may be there too."""
    folder, kept_folders = Path(tempfile.gettempdir()).resolve(), (ROOT, Path(sys.prefix).resolve())
    for name, module in list(sys.modules.items()):
        path = Path(str(getattr(module, "__file__", None)))
        if path.is_relative_to(folder) and not any(map(path.is_relative_to, kept_folders)):
            del sys.modules[name]
