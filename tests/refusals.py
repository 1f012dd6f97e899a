"""Assert that input is refused, by the code of the error instead of its text."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from calibrant.types import InputError


@contextmanager
def refused(code: str) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Expect an `InputError` with this code and a message of one line; yield its `ExceptionInfo`."""
    with pytest.raises(InputError) as caught:
        yield caught
    assert caught.value.code == code, str(caught.value)
    assert len(str(caught.value).splitlines()) == 1, str(caught.value)


def code_of(function: Callable[..., object], /, *arguments: Any, **options: Any) -> str:
    """Call a function that must refuse its input, in a message of one line, and return the code."""
    with pytest.raises(InputError) as caught:
        function(*arguments, **options)
    assert len(str(caught.value).splitlines()) == 1, str(caught.value)
    return caught.value.code
