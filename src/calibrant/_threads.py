"""How many threads a public call works in: decided once, at its door, by the size of the work."""

from collections.abc import Generator
from contextlib import contextmanager

import torch

ENOUGH = 4_000_000  # numbers from which on several threads may pay


@contextmanager
def threads_for(elements: int, enough: int = ENOUGH) -> Generator[None]:
    """Work on few numbers in one thread, on many in as many as torch has.

    An operation on a cacheful of numbers takes less time than handing it to a second thread, which waits, spinning, for
    a core that is busy: beside other work such a call takes several times as long.
    """
    before = torch.get_num_threads()
    if before == 1 or elements >= enough:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
