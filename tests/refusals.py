"""Assert that input is refused, by the code of the error instead of its text."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from calibrant.types import InputError


@contextmanager
def refused(code: str, *names: str) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Expect an `InputError` with this code and a message of one line; yield its `ExceptionInfo`.

    The message must mention the names, such as those of a column or file, and numbers.
    """
    with pytest.raises(InputError) as caught:
        yield caught
    assert caught.value.code == code, str(caught.value)
    assert len(str(caught.value).splitlines()) == 1, str(caught.value)
    assert all(name in str(caught.value) for name in names), (str(caught.value), names)


def code_of(function: Callable[..., object], /, *arguments: Any, **options: Any) -> str:
    """Call a function that must refuse its input, in a message of one line, and return the code."""
    with pytest.raises(InputError) as caught:
        function(*arguments, **options)
    assert len(str(caught.value).splitlines()) == 1, str(caught.value)
    return caught.value.code
