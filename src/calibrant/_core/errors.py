"""The error for bad input, in a module that does not load torch (import it from `calibrant._core.types`)."""

import copyreg
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


class InputError(ValueError):
    """Invalid input.

    The message is one line: "Expected X, got Y. Try Z." `code` is a short, stable word for the kind of error, such as
    "weights_sum"; compare it instead of the message.
    """

    __module__ = "calibrant.types"  # as in tracebacks, pickles and the documentation

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the message and attributes, without calling the constructor."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # pyright: ignore


@contextmanager
def prefix_errors(prefix: str) -> Generator[None]:
    """Prepend a name, such as that of a file, to the message of an `InputError`."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{prefix}: {error}", code=error.code) from None
