"""Copies and pickles of `InputError`, and its code in commands."""

import copy
import pickle

import pytest
from calibrant.types import InputError
from commands import run


def damaged_error() -> type[InputError]:
    pytest.importorskip("torch")
    from calibrant.lab.study.stored_files import DamagedError

    return DamagedError


def test_code_is_required():
    with pytest.raises(TypeError, match="code"):
        InputError("Expected labels, got nothing.")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error_class", [lambda: InputError, damaged_error])
def test_copies_and_pickles_have_message_code_and_notes(error_class, protocol):
    kind = error_class()
    error = kind("Expected 2 columns, got 3.", code="columns")
    error.add_note("in the second file")
    for copied in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error, protocol))):
        assert type(copied) is kind
        assert (str(copied), copied.code) == ("Expected 2 columns, got 3.", "columns")
        assert copied.__notes__ == error.__notes__


def test_command_reports_the_error_code(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text("")
    finished = run("measure", path)
    assert (finished.returncode, finished.code) == (2, "empty_file")
