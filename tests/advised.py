"""Read the advice of refusals, the part after "Try", so that tests can follow it."""

import ast
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from calibrant.types import InputError
from commands import Finished, run

VALUE = r"""('[^']*'|"[^"]*"|\[[^]]*\]|\((?:[^()]|\([^()]*\))*\)|[^\s,;()]*[^\s,;().])"""


class Advice(str):
    """The text after the first "Try" (or "try") of a message."""

    def keywords(self, **names: Any) -> dict[str, Any]:
        """Return the arguments `name=value` that the advice gives; `names` are what its values refer to."""
        parts: dict[str, Any] = {}
        for key, value in re.findall(rf"(?<![\w-])([a-z_]\w*)={VALUE}", self):
            try:
                parts.setdefault(key, ast.literal_eval(value))
            except (ValueError, SyntaxError):
                parts.setdefault(key, eval(value, dict(names)))
        assert parts, self
        return parts

    def options(self, **values: str) -> list[str]:
        """Return the options `--name value` that the advice gives; a placeholder in capitals takes its value."""
        parts = re.findall(r"(--[a-z][\w-]*)(?: ((?:[^\s()]*[^\s().,;])))?", self)
        assert parts, self
        words = {"", "for", "if", "or", "alone", "and", "with", "first", "by"}
        return [
            text
            for option, value in parts
            for text in (option, values.get(option.strip("-"), value))
            if text not in words
        ]

    def evaluate(self, expected: str = "", /, **names: Any) -> Any:
        """Evaluate the expression in the advice that begins with the expected text, such as a call."""
        start = self.index(expected)
        ends = range(len(self), start, -1)
        for end in ends:
            try:
                code = compile(self[start:end].strip(" ,"), "advice", "eval")
            except SyntaxError:
                continue
            try:
                return eval(code, dict(names))
            except NameError:  # a longer text that happens to be an expression, such as "a.b, or c"
                continue
        raise AssertionError(self)


class Case(NamedTuple):
    """A call that is refused, the code of the refusal, and a call that follows its advice."""

    code: str
    refused: Callable[[], object]
    follow: Callable[[Advice], object]


def advice_of(text: str) -> Advice:
    """Return the advice of a message."""
    return Advice(re.split(r"\b[Tt]ry ", text, maxsplit=1)[1])


def follow(case: Case) -> None:
    """Check that the call is refused with its code, and that what the message suggests works."""
    with pytest.raises((InputError, ValueError)) as caught:
        case.refused()
    assert getattr(caught.value, "code", "ValueError") == case.code, str(caught.value)
    case.follow(advice_of(str(caught.value)))


def refused_command(code: str, *arguments: object, folder: Any) -> Advice:
    """Run a command that must be refused, and return the advice."""
    finished = run(*arguments, folder=folder)
    assert (finished.returncode, finished.code) == (2, code), finished.stderr
    return advice_of(finished.stderr)


def succeed(*arguments: object, folder: Any, codes: tuple[int, ...] = (0,)) -> Finished:
    """Run a command that must do its work."""
    finished = run(*arguments, folder=folder)
    assert finished.returncode in codes, finished.stderr
    return finished
