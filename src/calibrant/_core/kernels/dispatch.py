"""Choose between compiled kernels and plain versions, and how many elements to process at a time."""

import importlib
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

from calibrant._core.arrays import is_on_cpu

GPU_CHUNK_ELEMENTS = 1 << 24  # 128 MB in float64

_IMPORT_LOCK = Lock()
_settings = {"compile": True}


def kernels(x: Any) -> Any:
    """Return the module `calibrant._core.kernels.compiled`, or None if the plain versions do the work.

    They do if the array x is on a GPU, if numba (`calibrant[fast]`) is not installed, with NUMBA_DISABLE_JIT=1, and
    within `without_compiler`. The size of x plays no part, so that batches of any size give the same sums to the last
    bit.
    """
    return cpu_kernels() if _settings["compile"] and is_on_cpu(x) else None


@contextmanager
def without_compiler() -> Generator[None]:
    """Let the plain versions do all work of this block, in all threads.

    It is for commands on small files, which take less time than the compiler to start.
    """
    before = _settings["compile"]
    _settings["compile"] = False
    try:
        yield
    finally:
        _settings["compile"] = before


def chunk_elements(x: Any, cpu_elements: int) -> int:
    """Return the elements of a chunk: `cpu_elements` to stay in cache, or more to keep a GPU busy."""
    return cpu_elements if is_on_cpu(x) else max(cpu_elements, GPU_CHUNK_ELEMENTS)


@cache
def cpu_kernels() -> Any:
    """Return the compiled kernels, or None without numba.

    They are imported in a thread of their own, which an interrupt does not stop: a half imported numba stays broken.
    """
    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_import_kernels).result()
    except (ImportError, RuntimeError):  # numba is missing or broken, or cannot write its cache
        return None


def _import_kernels() -> Any:
    """Import the compiled kernels and prepare numba's compiler. Return None if compilation is switched off.

    The lock lets one thread at a time do this: numba's preparation fails in two at once, and an interrupt can leave
    the first thread running.
    """
    with _IMPORT_LOCK:
        config: Any = importlib.import_module("numba").config
        if config.DISABLE_JIT:
            return None
        compiled = importlib.import_module("calibrant._core.kernels.compiled")
        # The preparation, which numba otherwise starts when it first compiles
        target: Any = importlib.import_module("numba.core.registry").cpu_target
        target.typing_context.refresh()
        target.target_context.refresh()
        return compiled
