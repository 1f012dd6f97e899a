"""The one place that decides whether compiled kernels work, or torch, and on how much at a time."""

import importlib
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from torch import Tensor

GPU_CHUNK_ELEMENTS = 1 << 24  # elements that a GPU is given at a time: 128 MB in float64


def kernels(x: Tensor) -> Any:
    """Return the compiled kernels, `calibrant.backend.compiled`, or None where torch does the work: on other devices
    than the
    processor, and without numba (`calibrant[fast]`), switched off by its own NUMBA_DISABLE_JIT=1.

    A process takes one way for all sizes, so that summaries of any sharding agree to the last bit.
    """
    return _load_once() if x.device.type == "cpu" else None


def chunk_elements(x: Tensor, cpu_elements: int) -> int:
    """Return how many elements to work on at a time: what stays in cache here, and on a GPU what keeps it busy."""
    return cpu_elements if x.device.type == "cpu" else max(cpu_elements, GPU_CHUNK_ELEMENTS)


@cache
def _load_once() -> Any:
    try:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_import_kernels).result()
    except (ImportError, RuntimeError):  # none, a broken one, or one without a folder for what it compiles
        return None


def _import_kernels() -> Any:
    """Load numba and the kernels: in a thread of its own, since an interrupt half way would break it for good."""
    config: Any = importlib.import_module("numba").config
    if config.DISABLE_JIT:
        return None
    compiled = importlib.import_module("calibrant.backend.compiled")
    target: Any = importlib.import_module("numba.core.registry").cpu_target
    target.typing_context.refresh()
    target.target_context.refresh()
    return compiled
