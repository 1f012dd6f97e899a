"""Files, folders and patterns that predictions are read from, and outputs that replace none of them."""

import fnmatch
from collections.abc import Collection, Iterable
from contextlib import nullcontext
from pathlib import Path

from calibrant._core.errors import InputError, prefix_errors
from calibrant._core.files import format_suffix, is_case_insensitive, is_same_file
from calibrant.io.formats import BY_SUFFIX, TABLE_SUFFIXES, format_of, list_suffixes


def check_outputs(outputs: Iterable[str | Path | None], inputs: Iterable[str | Path | None]) -> None:
    """Raise `InputError` if an output would replace an input or another output, or be an input of the next call.

    Args:
        outputs: Files to be written; None is skipped.
        inputs: Files, folders of tables, and patterns; None is skipped.
    """
    sources = [Path(path) for path in inputs if path is not None]
    input_files = [file for source in sources for file in _list_input_files(source)]
    output_files: list[Path] = []
    for path in map(Path, filter(None, outputs)):
        if any(is_same_file(path, file) for file in input_files):
            raise InputError(f"Cannot write {path}: this command reads it. Try another name.", code="output_is_input")
        if source := next((source for source in sources if _matches_source(path, source)), None):
            raise InputError(
                f"Cannot write {path}: {source} would include it the next time. Try another folder or name.",
                code="output_among_inputs",
            )
        if any(is_same_file(path, file) for file in output_files):
            raise InputError(f"Cannot write {path} twice. Try another name for one of them.", code="output_twice")
        output_files.append(path)


def _list_input_files(source: Path) -> list[Path]:
    """Return every file that a command reads for a file, folder or pattern, including companion files."""
    if source.is_dir():
        return [file for file in source.iterdir() if format_suffix(file) in TABLE_SUFFIXES]
    if is_pattern(source):
        return list_matching_files(source)
    file_format = format_of(source)
    return [source, *(file_format.companions(source) if file_format else [])]


def _matches_source(path: Path, source: Path) -> bool:
    """Return whether a new file at `path` would be read as a table of the folder or pattern `source`."""
    if source.is_dir():
        return is_same_file(path.parent, source) and is_visible_table(path)
    if not is_pattern(source) or not is_same_file(path.parent, source.parent):
        return False
    name, pattern = path.name, source.name
    if is_case_insensitive(source.parent):
        name, pattern = name.casefold(), pattern.casefold()
    return fnmatch.fnmatchcase(name, pattern) and is_visible(path, source)


def list_table_files(path: str | Path) -> list[Path]:
    """Return the tables of a path: the file itself, the tables of a folder, or the files that match a pattern.

    Raises:
        InputError: If there is no file, one is empty or of an unknown format, or a folder has several formats.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(filter(is_visible_table, path.iterdir()))
        suffixes = sorted({format_suffix(file) for file in files})
        if len(suffixes) > 1:
            raise InputError(
                f"Expected tables of one format in this folder, got {', '.join(suffixes)}. Try a pattern such as "
                f"'*{suffixes[0]}'.",
                code="several_formats",
            )
        if not files:
            raise InputError(
                f"Expected tables in this folder, got none. Try files {list_suffixes(TABLE_SUFFIXES)}.", code="no_table"
            )
    elif is_pattern(path):
        files = require_matching_files(path)
    else:
        files = [path]
    for file in files:
        with prefix_errors(file.name) if file != path else nullcontext():
            check_file(file, BY_SUFFIX)
    return files


def is_pattern(path: Path) -> bool:
    """Whether a path is a pattern of files, such as *.csv, and not the name of a file."""
    return not path.exists() and any(wildcard in path.name for wildcard in "*?[")


def list_matching_files(pattern: Path) -> list[Path]:
    """Return the visible files that match a pattern."""
    return sorted(file for file in pattern.parent.glob(pattern.name) if is_visible(file, pattern))


def require_matching_files(pattern: Path) -> list[Path]:
    """Return the visible files that match a pattern, or raise `InputError` if there are none."""
    files = list_matching_files(pattern)
    if not files:
        raise InputError("Expected files that match this pattern, got none.", code="no_match")
    return files


def is_visible_table(path: Path) -> bool:
    """Whether a path has the suffix of a table, and a name that does not begin with a point or underscore."""
    return format_suffix(path) in TABLE_SUFFIXES and path.name[0] not in "._"


def is_visible(path: Path, pattern: Path) -> bool:
    """Whether a file is not hidden, as the drafts of interrupted writes are, or the pattern asks for hidden files."""
    return pattern.name.startswith(".") or not path.name.startswith(".")


def check_file(path: Path, suffixes: Collection[str]) -> None:
    """Raise `InputError` unless a file exists, is not empty, and has one of the suffixes."""
    suffix = format_suffix(path)
    if suffix not in suffixes:
        if suffix in BY_SUFFIX:  # only callers that read in chunks leave out known suffixes
            raise InputError(
                f"Expected a file {list_suffixes(suffixes)} to read in chunks, got {suffix}. Try to read it whole.",
                code="pieces",
            )
        raise InputError(
            f"Expected a file {list_suffixes(suffixes)}, got {suffix or 'no suffix'}. Try another suffix.",
            code="suffix",
        )
    if not path.is_file():
        raise InputError("There is no such file.", code="no_file")
    if path.stat().st_size == 0:
        raise InputError("The file is empty (0 bytes).", code="empty_file")
