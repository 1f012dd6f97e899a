"""A fake GPU: its tensors refuse operations with CPU tensors, and every byte read from them is counted.

The tensors report the device cuda:0, but the CPU holds and computes their numbers. As on a GPU, numpy cannot read them,
and values that Python reads are transfers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import Tensor  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._mode_utils import no_dispatch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_map  # noqa: E402

DEVICE = torch.device("cuda", 0)
FAKE_TYPES = (DEVICE.type, "meta")  # torch itself takes the tensors for meta tensors
aten = torch.ops.aten
TRANSFER_OPS = {aten._to_copy.default, aten.copy_.default}
INDEX_OPS = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


@dataclass
class Transfers:
    """Bytes that were read from the device, and in how many transfers."""

    bytes: int = 0
    count: int = 0


_open_counters: list[Transfers] = []


def _transfer(x: Tensor) -> Tensor:
    for counter in _open_counters:
        counter.bytes += x.numel() * x.element_size()
        counter.count += 1
    return x


class FakeTensor(Tensor):
    """A tensor on the fake device."""

    inner: Tensor  # the numbers, on the CPU
    device = property(lambda _: DEVICE)  # pyright: ignore
    is_cuda, is_meta = True, False  # pyright: ignore

    @staticmethod
    def __new__(cls, inner: Tensor) -> "FakeTensor":
        """Wrap a CPU tensor."""
        wrapper = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device="meta"
        )
        wrapper.inner = inner
        return wrapper

    def __repr__(self) -> str:
        return f"FakeTensor({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the CPU, and refuse CPU tensors."""
        kwargs = dict(kwargs or {})
        if func is aten._local_scalar_dense.default:
            return func(_transfer(args[0].inner))
        takes_cpu_index = func in INDEX_OPS and isinstance(args[0], FakeTensor)
        cpu_tensors = [x for x in _tensors((args, kwargs)) if not isinstance(x, FakeTensor) and x.dim()]
        if cpu_tensors and not takes_cpu_index and func not in TRANSFER_OPS:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found cpu and {DEVICE}")
        inner_args, inner_kwargs = tree_map(lambda x: x.inner if isinstance(x, FakeTensor) else x, (args, kwargs))
        if func is aten.copy_.default:
            source = inner_args[1] if isinstance(args[0], FakeTensor) else _transfer(inner_args[1])
            func(inner_args[0], source, **inner_kwargs)
            return args[0]
        stays = kwargs.get("device") is None or torch.device(kwargs["device"]).type in FAKE_TYPES
        if not stays:
            _transfer(inner_args[0])
        result = func(*inner_args, **(inner_kwargs | {"device": "cpu"} if "device" in inner_kwargs else inner_kwargs))
        written = [i for i, x in enumerate(func._schema.arguments) if x.alias_info and x.alias_info.is_write]
        if written and isinstance(result, Tensor):
            i = written[0]
            target = args[i] if i < len(args) else kwargs[func._schema.arguments[i].name]
            if target.shape != result.shape:  # squeezed in place: update the shape of the wrapper, too
                with no_dispatch():
                    func(*args, **kwargs)
            return target
        return tree_map(lambda x: FakeTensor(x) if isinstance(x, Tensor) and stays else x, result)


def _tensors(values: Any) -> list[Tensor]:
    return [x for x in tree_flatten(values)[0] if isinstance(x, Tensor)]


class _ScalarMode(TorchDispatchMode):
    """Wrap scalars that torch converts to tensors for an operation with a fake tensor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "meta" and not _tensors(args):
            return FakeTensor(func(*args, **{**kwargs, "device": "cpu"}))
        return func(*args, **kwargs)


class _FunctionMode(TorchFunctionMode):
    """Replace functions that would initialize a GPU, or read its memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.to:
            return _to(*args, **kwargs)
        if args and isinstance(args[0], FakeTensor):
            if func is Tensor.tolist:
                return _transfer(args[0].inner).tolist()
            if func is Tensor.cpu:
                return _to(args[0], "cpu")
            if func is Tensor.untyped_storage:
                return args[0].inner.untyped_storage()
            if func is Tensor.numpy:
                if kwargs.get("force"):
                    return _to(args[0].detach(), "cpu").numpy()
                raise TypeError(f"can't convert {DEVICE} device type tensor to numpy")
            if func is Tensor.new_tensor:
                return FakeTensor(args[0].inner.new_tensor(*args[1:], **kwargs))
            if func in (Tensor.__getitem__, Tensor.__setitem__):  # torch would make an array of indices a meta tensor
                args = tree_map(lambda x: torch.from_numpy(x) if isinstance(x, np.ndarray) else x, args)
        device = kwargs.get("device")
        if func is torch.as_tensor and device is not None:
            return _to(args[0] if isinstance(args[0], Tensor) else torch.as_tensor(args[0]), **kwargs)
        if device is not None and torch.device(device).type in FAKE_TYPES and not _tensors(args):
            return FakeTensor(func(*args, **{**kwargs, "device": "cpu"}))
        return func(*args, **kwargs)


def _to(x: Tensor, *targets: Any, device: Any = None, dtype: Any = None, copy: bool = False, **_: Any) -> Tensor:
    """Replace `Tensor.to`."""
    for target in targets:
        if isinstance(target, Tensor):
            device, dtype = target.device, target.dtype
        elif isinstance(target, torch.dtype):
            dtype = target
        elif isinstance(target, torch.device | str):
            device = target
    device = x.device if device is None else torch.device(device)
    if isinstance(x, FakeTensor) and device.type not in FAKE_TYPES:
        return aten._to_copy(x, dtype=dtype, device=device)
    converted = x if dtype in (None, x.dtype) and not copy else aten._to_copy(x, dtype=dtype)
    is_moved = device.type in FAKE_TYPES and not isinstance(x, FakeTensor)
    return FakeTensor(converted.clone()) if is_moved else converted


@contextmanager
def fake_device() -> Iterator[Transfers]:
    """Allow fake tensors; yield the counter of transfers."""
    counter, generator = Transfers(), torch.Generator

    class CpuGenerator:
        def __new__(cls, device: Any = "cpu") -> Any:
            return generator()

    _open_counters.append(counter)
    with pytest.MonkeyPatch.context() as patch, _FunctionMode(), _ScalarMode():
        patch.setattr(torch, "Generator", CpuGenerator)
        try:
            yield counter
        finally:
            _open_counters.remove(counter)


def to_fake_device(x: Tensor) -> Tensor:
    """Copy a tensor to the fake device."""
    return FakeTensor(x.detach().clone())


@contextmanager
def real_device() -> Iterator[Transfers]:
    """Use a real GPU, whose transfers are not counted."""
    yield Transfers()


to_real_device = partial(Tensor.to, device="cuda")
