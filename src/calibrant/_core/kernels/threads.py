"""Threads: every public call decides once, by the size of its work, how many it uses."""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

MIN_PARALLEL_ELEMENTS = 4_000_000
PARALLEL_CHUNK_ELEMENTS = 1 << 19
_MIN_CHUNKS_PER_THREAD = 4

_current_limit: ContextVar[int] = ContextVar("thread_limit", default=0)  # of `map_chunks`; 0: as many as torch has

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def thread_limit(elements: int, threshold: int = MIN_PARALLEL_ELEMENTS, *, in_chunks: bool = False) -> Generator[None]:
    """Use one thread below `threshold` elements, and all of torch's threads from there on.

    Torch hands every operation to all of its threads, which wait for each other. For small tensors that takes longer
    than the operation itself, and several times as long on a busy machine.

    Args:
        elements: Number of elements of the largest array of the work.
        threshold: Number of elements from which several threads are faster.
        in_chunks: Keep torch itself in one thread; only `map_chunks` uses several.
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


def map_chunks(function: Callable[[T], R], chunks: Sequence[T], elements_per_chunk: int) -> list[R]:
    """Return `[function(chunk) for chunk in chunks]`, using several threads for large inputs.

    Input is large from 4 million elements and 8 chunks on. The number of threads is at most that of `thread_limit`.
    A thread takes the next chunk as soon as it is free, so that a busy machine delays only one chunk. The first
    exception cancels every chunk that has not started; if several chunks fail, the exception of the earliest is raised.
    """
    limit = _current_limit.get() or torch.get_num_threads()
    threads = min(limit, len(chunks) // _MIN_CHUNKS_PER_THREAD)
    with thread_limit(0):  # below every threshold: torch, and maps inside `function`, use one thread
        if threads < 2 or elements_per_chunk * len(chunks) < MIN_PARALLEL_ELEMENTS:
            return [function(chunk) for chunk in chunks]
        grad_enabled, inference_enabled = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def call(chunk: T) -> R:
            """Call the function with the caller's gradient modes, which a new thread does not have."""
            with torch.inference_mode(inference_enabled), torch.set_grad_enabled(grad_enabled):
                return function(chunk)

        pool = ThreadPoolExecutor(threads)
        try:
            futures = [pool.submit(call, chunk) for chunk in chunks]
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(cancel_futures=True)
    return [future.result() for future in futures]
