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


def map_chunks(f: Callable[[T], R], chunks: Sequence[T], elements: int) -> list[R]:
    """Map `f` over chunks of at most `elements` numbers each, preserving order.

    Large work is shared among the granted threads: each takes the next chunk when it has finished one, so that other
    load on the machine delays none of them for long. After a failure no further chunk begins, and the failure of the
    first chunk is raised, as in one thread.
    """
    granted = _granted.get() or torch.get_num_threads()
    threads = min(granted, len(chunks) // _EACH) if elements * len(chunks) >= ENOUGH else 1
    with threads_for(0):
        if threads < 2:
            return [f(chunk) for chunk in chunks]
        remaining, results, failures = deque(enumerate(chunks)), dict[int, R](), dict[int, Exception]()
        graph, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def work() -> None:
            with torch.inference_mode(inference), torch.set_grad_enabled(graph):  # both are set per thread
                while True:
                    try:
                        i, chunk = remaining.popleft()
                    except IndexError:  # none remain
                        return
                    try:
                        results[i] = f(chunk)
                    except BaseException as failure:
                        remaining.clear()
                        if not isinstance(failure, Exception):  # an interrupt, which comes before any failure
                            raise
                        failures[i] = failure
                        return

        with ThreadPoolExecutor(threads - 1) as pool:
            try:
                others = [pool.submit(work) for _ in range(threads - 1)]
                work()
            finally:
                remaining.clear()  # after an interrupt between chunks
        for other in others:
            other.result()
        if failures:
            raise failures.pop(min(failures))
        return [results[i] for i in range(len(chunks))]
