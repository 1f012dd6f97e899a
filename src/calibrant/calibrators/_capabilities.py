"""Capabilities of calibrators, and the checks on every call of a fitted one.

Learned arrays lie in memory and are copied to the device of the logits.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from calibrant._core.arrays import is_torch_array, namespace
from calibrant._core.kernels.threads import map_row_chunks
from calibrant._core.types import Array, InputError
from calibrant.calibrators.fields import move_beside

CHUNK_ELEMENTS = 1 << 16  # logits that numpy maps at a time: 512 kB in float64, so that steps stay in cache
MIN_CHUNK_ROWS = 1024  # of maps that may loop over classes, where a short chunk costs as much as a long one
Call = Callable[[Any, Array], Array]
NETWORK_EXPORTS = ("torch.export", "ONNX")


def certified_classes(calibrator: Any) -> int:
    """Return the number of classes in a calibrator's certificate, 0 if unknown."""
    return 0 if calibrator.certificate is None else calibrator.certificate.classes


@dataclass(frozen=True)
class Capabilities:
    """The promises of a calibrator class, which has them as its attribute `capabilities`.

    An attribute that depends on the fit is a function of the fitted calibrator.
    """

    preserves_argmax: bool | Callable[[Any], bool] = False  # never changes a predicted class
    num_classes: int | Callable[[Any], int] = certified_classes  # number of classes that it accepts, 0 for any
    repairs_overconfidence: bool = True  # whether its fit lowers the Brier score of overconfident predictions
    takes_groups: bool = False  # maps each group differently
    # Whether permuted logits give permuted results, so that the fit learns no frequencies of classes, which the labels
    # of a single class would make 0 and 1. For two classes, p(a beats b) = 1 - p(b beats a)
    treats_classes_alike: bool | Callable[[Any], bool] = False
    is_differentiable: bool = True  # False for step functions
    exports: tuple[str, ...] = NETWORK_EXPORTS  # beside numpy, which takes every calibrator that has a map there


def capabilities(calibrator: Any) -> Capabilities:
    """Return a calibrator's capabilities, or the defaults for any number of classes if its class declares none."""
    return getattr(calibrator, "capabilities", Capabilities(num_classes=0))


def num_classes(calibrator: Any) -> int:
    """Return the number of classes that a fitted calibrator accepts, 0 for any number."""
    promised = capabilities(calibrator).num_classes
    return promised if isinstance(promised, int) else promised(calibrator)


def preserves_argmax(calibrator: Any) -> bool:
    """Return whether a fitted calibrator, as its class promises, never changes a predicted class."""
    promised = capabilities(calibrator).preserves_argmax
    return promised if isinstance(promised, bool) else promised(calibrator)


def treats_classes_alike(calibrator: Any) -> bool:
    """Return whether a fitted calibrator, as its class promises, maps permuted logits to permuted results."""
    promised = capabilities(calibrator).treats_classes_alike
    return promised if isinstance(promised, bool) else promised(calibrator)


def calibrator_call(call: Call) -> Call:
    """Decorate the `__call__` of a calibrator.

    Checks the logits, computes in their library and on their device, returns their precision, and undoes changes of the
    argmax by rounding if the calibrator promises to preserve it. Arrays of numpy are mapped in chunks of rows.
    """

    @wraps(call)
    def checked(self: Any, logits: Array) -> Array:
        check_logits(self, logits)
        keeps_argmax = preserves_argmax(self)

        def map_rows(z: Array) -> Array:
            return like_logits(call(move_beside(self, z), z), z, keeps_argmax=keeps_argmax)

        return in_chunks(map_rows, logits, min_rows=1 if treats_classes_alike(self) else MIN_CHUNK_ROWS)

    return checked


def in_chunks(function: Callable[[Array], Array], logits: Array, *, min_rows: int = 1) -> Array:
    """Apply a function of logits to chunks of rows that stay in cache, or at once to tensors and few rows."""
    elements = max(CHUNK_ELEMENTS, min_rows * logits.shape[-1])
    if not isinstance(logits, np.ndarray):
        return function(logits)
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        if logits.size <= elements:
            return function(logits)
        out = np.empty_like(logits)

        def fill(rows: np.ndarray, out_rows: np.ndarray) -> None:
            with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):  # of this thread
                out_rows[:] = function(rows)

        map_row_chunks(fill, logits, out, elements=elements)
        return out


def like_logits(calibrated: Array, logits: Array, *, keeps_argmax: bool) -> Array:
    """Return calibrated logits in the precision of the given ones, and with their argmax if that is to stay."""
    calibrated = namespace(logits).astype(calibrated, logits.dtype, copy=False)
    return restore_argmax(calibrated, logits) if keeps_argmax else calibrated


def check_logits(calibrator: Any, logits: Any) -> None:
    """Refuse logits that a calibrator does not accept.

    Raises:
        InputError: "num_classes" for another number of classes, "tensor_kind" for meta tensors, integers and lists,
            "logits_shape" for anything but rows of logits.
    """
    is_array = isinstance(logits, np.ndarray) or is_torch_array(logits)
    if not is_array or not _is_floating(logits):
        kind = logits.dtype if is_array else type(logits).__name__
        raise InputError(
            f"Expected a floating point array or tensor of logits, got {kind}. Try np.asarray(logits, dtype=float).",
            code="tensor_kind",
        )
    if logits.ndim != 2:
        raise InputError(
            f"Expected logits (n, k), got {tuple(logits.shape)}. Try logits[None] for one row, and "
            "nn.CalibratedNetwork for pixels and tokens.",
            code="logits_shape",
        )
    k, logit_classes = num_classes(calibrator), logits.shape[-1]
    if k not in (0, logit_classes):  # 0 accepts any number
        raise InputError(
            f"Expected logits of {k} classes, as {type(calibrator).__name__} was fitted on, got {logit_classes}. "
            "Try fitting it on predictions of these classes.",
            code="num_classes",
        )
    if is_torch_array(logits) and logits.device.type == "meta":
        raise InputError(
            "Expected logits with values, got a tensor on the meta device. Try a network on the CPU or a GPU.",
            code="tensor_kind",
        )


def _is_floating(x: Array) -> bool:
    """Return whether an array or tensor holds floating point numbers."""
    return x.dtype.kind == "f" if isinstance(x, np.ndarray) else x.is_floating_point()


def restore_argmax(calibrated: Array, logits: Array) -> Array:
    """Raise the class that `logits` predict one rounding step above the others, in rows where it lost the argmax."""
    xp = namespace(calibrated)
    top, new_top = (xp.argmax(x, axis=-1)[:, None] for x in (logits, calibrated))
    changed = new_top != top
    # A compiled graph cannot branch on values
    if not (is_torch_array(logits) and sys.modules["torch"].compiler.is_compiling()) and not xp.any(changed):
        return calibrated
    float_info, row_max = xp.finfo(calibrated.dtype), xp.max(calibrated, axis=-1, keepdims=True)
    tiny = float_info.smallest_normal  # in case the maximum is 0
    raised = row_max + (xp.abs(row_max) * float_info.eps + tiny)
    is_top = xp.arange(logits.shape[-1], device=logits.device) == top
    return xp.where(changed & is_top, raised, calibrated)
