"""Threads: every public call decides once, by the size of its work, how many it uses."""

import math
import os
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from calibrant._core.kernels.dispatch import chunk_elements

MIN_PARALLEL_ELEMENTS = 4_000_000
PARALLEL_CHUNK_ELEMENTS = 1 << 19
_MIN_CHUNKS_PER_THREAD = 4

_current_limit: ContextVar[int] = ContextVar("thread_limit", default=0)  # of `map_chunks`; 0: `available_threads`

T = TypeVar("T")
R = TypeVar("R")


def _loaded_torch() -> Any:
    """Return the module torch if anything imported it, else None."""
    return sys.modules.get("torch")


def available_threads() -> int:
    """Return the number of threads: torch's if it is loaded, else OMP_NUM_THREADS, else that of the processors."""
    torch = _loaded_torch()
    if torch is not None:
        return torch.get_num_threads()
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdecimal() and int(setting) else os.cpu_count() or 1


@contextmanager
def thread_limit(elements: int, threshold: int = MIN_PARALLEL_ELEMENTS, *, in_chunks: bool = False) -> Generator[None]:
    """Use one thread below `threshold` elements, and all `available_threads` from there on.

    Torch hands every operation to all of its threads, which wait for each other. For small tensors that takes longer
    than the operation itself, and several times as long on a busy machine.

    Args:
        elements: Number of elements of the largest array of the work.
        threshold: Number of elements from which several threads are faster.
        in_chunks: Keep torch itself in one thread; only `map_chunks` uses several.
    """
    torch: Any = _loaded_torch()
    threads, outer_limit = available_threads(), _current_limit.get()
    limit = (outer_limit or threads) if elements >= threshold else 1
    torch_limit = 1 if in_chunks else limit
    _current_limit.set(limit)
    changed = torch if torch_limit != threads else None
    if changed is not None:
        changed.set_num_threads(torch_limit)
    try:
        yield
    finally:
        if changed is not None:
            changed.set_num_threads(threads)
        _current_limit.set(outer_limit)


def map_chunks(function: Callable[[T], R], chunks: Sequence[T], elements_per_chunk: int) -> list[R]:
    """Return `[function(chunk) for chunk in chunks]`, using several threads for large inputs.

    Input is large from 4 million elements and 8 chunks on. The number of threads is at most that of `thread_limit`.
    A thread takes the next chunk as soon as it is free, so that a busy machine delays only one chunk. The first
    exception cancels every chunk that has not started; if several chunks fail, the exception of the earliest is raised.
    """
    limit = _current_limit.get() or available_threads()
    threads = min(limit, len(chunks) // _MIN_CHUNKS_PER_THREAD)
    with thread_limit(0):  # below every threshold: torch, and maps inside `function`, use one thread
        if threads < 2 or elements_per_chunk * len(chunks) < MIN_PARALLEL_ELEMENTS:
            return [function(chunk) for chunk in chunks]
        call = _with_gradient_modes(function)
        pool = ThreadPoolExecutor(threads)
        try:
            futures = [pool.submit(copy_context().run, call, chunk) for chunk in chunks]
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(cancel_futures=True)
    return [future.result() for future in futures]


def map_row_chunks(f: Callable[..., R], *arrays: Any, elements: int = 1 << 17) -> list[R]:
    """Apply `f` to chunks of rows and return the results in order, using several threads for many chunks.

    `f` takes the same rows of all arrays. A chunk has about `elements` elements of the first array, so that it stays in
    cache; on a GPU chunks are larger.
    """
    elements = chunk_elements(arrays[0], elements)
    size = max(1, elements // math.prod(arrays[0].shape[1:]))
    starts = range(0, max(len(arrays[0]), 1), size)
    chunks = [tuple(array[first : first + size] for array in arrays) for first in starts]
    return map_chunks(function=lambda chunk: f(*chunk), chunks=chunks, elements_per_chunk=elements)


def _with_gradient_modes(function: Callable[[T], R]) -> Callable[[T], R]:
    """Return the function with the gradient modes of torch that this thread has, which a new one does not have."""
    torch = _loaded_torch()
    if torch is None:
        return function
    grad_enabled, inference_enabled = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def call(argument: T) -> R:
        with torch.inference_mode(inference_enabled), torch.set_grad_enabled(grad_enabled):
            return function(argument)

    return call
