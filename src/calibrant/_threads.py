"""How many threads a public call works in: decided once, at its door, by the size of the work."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

ENOUGH = 4_000_000  # numbers from which on several threads may pay
PIECE = 1 << 19  # and of a piece of what is passed over
_EACH = 4  # pieces that a thread is worth

_granted: ContextVar[int] = ContextVar("granted", default=0)  # threads to what is shared; 0: as many as torch has

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def threads_for(elements: int, enough: int = ENOUGH, *, in_pieces: bool = False) -> Generator[None]:
    """Work on few numbers in one thread, on many in as many as torch has; `in_pieces`, by what is `shared` alone.

    Torch hands every operation to all of its threads, which wait for each other, spinning: one on a cacheful of numbers
    takes less time than handing it over, and beside other work a call takes several times as long.
    """
    before, further_out = torch.get_num_threads(), _granted.get()
    granted = (further_out or before) if elements >= enough else 1
    told = 1 if in_pieces else granted
    _granted.set(granted)
    if told != before:
        torch.set_num_threads(told)
    try:
        yield
    finally:
        if told != before:
            torch.set_num_threads(before)
        _granted.set(further_out)


def shared(f: Callable[[T], R], pieces: Sequence[T], elements: int) -> list[R]:
    """What f makes of pieces of work, of up to so many numbers each, in order.

    Many are shared among as many threads as are granted, each of which works alone and takes the next piece when it is
    done with one: beside other work none waits for long.
    """
    granted = _granted.get() or torch.get_num_threads()
    threads = min(granted, len(pieces) // _EACH) if elements * len(pieces) >= ENOUGH else 1
    with threads_for(0):
        if threads < 2:
            return [f(piece) for piece in pieces]
        left, made = deque(enumerate(pieces)), dict[int, R]()
        graph, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def work() -> None:
            with torch.inference_mode(inference), torch.set_grad_enabled(graph):  # each thread has its own
                while True:
                    try:
                        i, piece = left.popleft()
                    except IndexError:  # none is left
                        return
                    made[i] = f(piece)

        with ThreadPoolExecutor(threads - 1) as pool:
            try:
                others = [pool.submit(work) for _ in range(threads - 1)]
                work()
                for other in others:
                    other.result()
            finally:
                left.clear()
        return [made[i] for i in range(len(pieces))]
