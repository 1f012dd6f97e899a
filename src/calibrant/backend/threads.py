"""How many threads a public call works in: decided once, at its door, by the size of the work."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

MIN_PARALLEL_ELEMENTS = 4_000_000  # numbers from which on several threads may pay
PARALLEL_CHUNK_ELEMENTS = 1 << 19  # and of a piece of what is passed over
_MIN_CHUNKS_PER_THREAD = 4  # pieces that a thread is worth

_current_limit: ContextVar[int] = ContextVar("granted", default=0)  # threads to what is shared; 0: as many as torch has

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def thread_limit(elements: int, threshold: int = MIN_PARALLEL_ELEMENTS, *, in_chunks: bool = False) -> Generator[None]:
    """Work on few numbers in one thread, on many in as many as torch has; `in_pieces`, by what is `shared` alone.

    Torch hands every operation to all of its threads, which wait for each other, spinning: one on a cacheful of numbers
    takes less time than handing it over, and beside other work a call takes several times as long.
    """
    torch_threads, outer_limit = torch.get_num_threads(), _current_limit.get()
    limit = (outer_limit or torch_threads) if elements >= threshold else 1
    torch_limit = 1 if in_chunks else limit
    _current_limit.set(limit)
    if torch_limit != torch_threads:
        torch.set_num_threads(torch_limit)
    try:
        yield
    finally:
        if torch_limit != torch_threads:
            torch.set_num_threads(torch_threads)
        _current_limit.set(outer_limit)


def map_chunks(function: Callable[[T], R], chunks: Sequence[T], elements: int) -> list[R]:
    """Map `f` over chunks of at most `elements` numbers each, preserving order.

    Large work is shared among the granted threads: each takes the next chunk when it has finished one, so that other
    load on the machine delays none of them for long. After a failure no further chunk begins, and the failure of the
    first chunk is raised, as in one thread.
    """
    limit = _current_limit.get() or torch.get_num_threads()
    threads = (
        min(limit, len(chunks) // _MIN_CHUNKS_PER_THREAD) if elements * len(chunks) >= MIN_PARALLEL_ELEMENTS else 1
    )
    with thread_limit(0):
        if threads < 2:
            return [function(chunk) for chunk in chunks]
        remaining, results, failures = deque(enumerate(chunks)), dict[int, R](), dict[int, Exception]()
        grad_enabled, inference_enabled = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def work() -> None:
            with (
                torch.inference_mode(inference_enabled),
                torch.set_grad_enabled(grad_enabled),
            ):  # both are set per thread
                while True:
                    try:
                        i, chunk = remaining.popleft()
                    except IndexError:  # none remain
                        return
                    try:
                        results[i] = function(chunk)
                    except BaseException as failure:
                        remaining.clear()
                        if not isinstance(failure, Exception):  # an interrupt, which comes before any failure
                            raise
                        failures[i] = failure
                        return

        with ThreadPoolExecutor(threads - 1) as pool:
            try:
                futures = [pool.submit(work) for _ in range(threads - 1)]
                work()
            finally:
                remaining.clear()  # after an interrupt between chunks
        for future in futures:
            future.result()
        if failures:
            raise failures.pop(min(failures))
        return [results[i] for i in range(len(chunks))]
