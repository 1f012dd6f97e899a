"""Import the user's Python files and packages, whose methods register themselves."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from calibrant._core.text import describe_error, shorten_repr
from calibrant._core.types import InputError

INCLUDED_SOURCES: list[str] = []  # for processes that start later, which include the same sources


def include(sources: Iterable[str]) -> None:
    """Import Python files (`mine.py`) or packages (`mypackage`), each once, so that they can register methods.

    This runs their code: include only sources that you trust. A file can import modules of its own folder, and a
    package is found in the current folder. Installed modules of the same name take precedence. If a source changes the
    current folder, the change is undone.

    Raises:
        InputError: If a file or package does not exist or fails.
    """
    for source in sources:
        path, is_file = Path(source), source.endswith(".py")
        identity = str(path.resolve()) if is_file else source
        if identity in INCLUDED_SOURCES:
            continue
        label = f"--with {shorten_repr(source, 200)[1:-1]}"  # without the quotes
        if is_file and not path.is_file():
            raise InputError(f"{label}: no such file.", code="no_file")
        working_folder = Path.cwd()
        folder = str(path.resolve().parent if is_file else working_folder)
        if folder not in sys.path:
            sys.path.append(folder)  # at the end, so that installed modules take precedence
        try:
            if is_file:
                _import_file(path)
            else:
                importlib.import_module(source)
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # a script may call sys.exit
            raise InputError(f"{label}: cannot be imported ({describe_error(error)}).", code="import") from None
        finally:
            os.chdir(working_folder)
        INCLUDED_SOURCES.append(identity)


def _import_file(path: Path) -> None:
    """Import a file as the module of its name, unless that module is this file.

    Raises:
        InputError: If another module has the name.
    """
    name, file = path.stem, str(path.resolve())
    loaded_file = getattr(sys.modules.get(name), "__file__", None)
    if loaded_file is not None and str(Path(loaded_file).resolve()) == file:
        return
    if name in sys.modules:
        raise InputError(
            f"--with {path}: a module {name!r} exists already. Try another file name.", code="module_exists"
        )
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # for the suffix .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, as `import` does: dataclasses look their module up
    try:
        # Not by the loader, which may run bytecode of an earlier file of the same size and second
        exec(compile(path.read_bytes(), file, "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
