import copy
import pickle

import pytest
from commands import run

from calibrant.types import InputError


def test_code_defaults_to_input():
    assert InputError("Expected labels, got nothing.").code == "input"


@pytest.mark.parametrize("clone", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_message_and_code_survive_copies_between_processes(clone):
    error = clone(InputError("Expected 2 columns, got 3.", code="columns"))
    assert (str(error), error.code) == ("Expected 2 columns, got 3.", "columns")


def test_command_reports_the_code_of_its_refusal(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text("")
    finished = run("measure", path)
    assert (finished.returncode, finished.code) == (2, "empty_file")
