"""Another device without one: tensors that meet only their own kind, and of which every byte that is fetched counts.

They say that they are on a GPU. Their numbers are kept, and worked on, by the processor; but as there, an operation
that meets tensors of both places is refused, numpy cannot read them, and what Python reads of them must come over.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("cuda", 0)
OURS = (DEVICE.type, "meta")  # torch itself takes them for tensors without numbers
aten = torch.ops.aten
CROSSING = {aten._to_copy.default, aten.copy_.default}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


@dataclass
class Fetched:
    """What was read from the other device."""

    bytes: int = 0
    times: int = 0


_counts: list[Fetched] = []


def _fetch(x: Tensor) -> Tensor:
    for count in _counts:
        count.bytes += x.numel() * x.element_size()
        count.times += 1
    return x


class Elsewhere(Tensor):
    """A tensor on the other device."""

    inner: Tensor  # its numbers
    device = property(lambda _: DEVICE)  # pyright: ignore
    is_cuda, is_meta = True, False  # pyright: ignore

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Elsewhere":
        """Keep its numbers."""
        made = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device="meta"
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:
        return f"Elsewhere({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Work on the numbers, and refuse those of the processor."""
        kwargs = dict(kwargs or {})
        if func is aten._local_scalar_dense.default:
            return func(_fetch(args[0].inner))
        tensors = _tensors((args, kwargs))
        indices = func in INDEXING and isinstance(args[0], Elsewhere)  # they may come from the processor
        strangers = [x for x in tensors if not isinstance(x, Elsewhere) and x.dim()]
        if strangers and not indices and func not in CROSSING:
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found cpu and {DEVICE}")
        given, named = tree_map(lambda x: x.inner if isinstance(x, Elsewhere) else x, (args, kwargs))
        if func is aten.copy_.default:
            func(given[0], given[1] if isinstance(args[0], Elsewhere) else _fetch(given[1]), **named)
            return args[0]
        stays = kwargs.get("device") is None or torch.device(kwargs["device"]).type in OURS
        if not stays:
            _fetch(given[0])
        made = func(*given, **(named | {"device": "cpu"} if "device" in named else named))
        written = [i for i, x in enumerate(func._schema.arguments) if x.alias_info and x.alias_info.is_write]
        if written and isinstance(made, Tensor):
            place = written[0]
            into = args[place] if place < len(args) else kwargs[func._schema.arguments[place].name]
            if into.shape != made.shape:  # squeezed in place: what torch itself knows of it, too
                with no_dispatch():
                    func(*args, **kwargs)
            return into
        return tree_map(lambda x: Elsewhere(x) if isinstance(x, Tensor) and stays else x, made)


def _tensors(parts: Any) -> list[Tensor]:
    return [x for x in tree_flatten(parts)[0] if isinstance(x, Tensor)]


class _Scalars(TorchDispatchMode):
    """Numbers that torch itself makes into tensors, for an operation on such a tensor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        to = kwargs.get("device")
        if to is not None and torch.device(to).type == "meta" and not _tensors(args):
            return Elsewhere(func(*args, **{**kwargs, "device": "cpu"}))
        return func(*args, **kwargs)


class _Calls(TorchFunctionMode):
    """What would ask for a GPU before any operation, or read the memory of one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        ours = bool(args) and isinstance(args[0], Elsewhere)
        if func is Tensor.to:
            return _to(*args, **kwargs)
        if ours and func is Tensor.tolist:
            return _fetch(args[0].inner).tolist()
        if ours and func is Tensor.cpu:
            return _to(args[0], "cpu")
        if ours and func is Tensor.untyped_storage:
            return args[0].inner.untyped_storage()
        if ours and func is Tensor.numpy:
            raise TypeError(f"can't convert {DEVICE} device type tensor to numpy")
        if ours and func is Tensor.new_tensor:
            return Elsewhere(args[0].inner.new_tensor(*args[1:], **kwargs))
        device = kwargs.get("device")
        if func is torch.as_tensor and device is not None:
            return _to(args[0] if isinstance(args[0], Tensor) else torch.as_tensor(args[0]), **kwargs)
        if device is not None and torch.device(device).type in OURS and not _tensors(args):
            return Elsewhere(func(*args, **{**kwargs, "device": "cpu"}))
        return func(*args, **kwargs)


def _to(x: Tensor, *where: Any, device: Any = None, dtype: Any = None, copy: bool = False, **_: Any) -> Tensor:
    for one in where:
        if isinstance(one, Tensor):
            device, dtype = one.device, one.dtype
        elif isinstance(one, torch.dtype):
            dtype = one
        elif isinstance(one, torch.device | str):
            device = one
    device = x.device if device is None else torch.device(device)
    if isinstance(x, Elsewhere):
        if device.type in OURS:
            return x if dtype in (None, x.dtype) and not copy else aten._to_copy(x, dtype=dtype)
        return aten._to_copy(x, dtype=dtype, device=device)
    changed = x if dtype in (None, x.dtype) and not copy else aten._to_copy(x, dtype=dtype)
    return Elsewhere(changed.clone()) if device.type in OURS else changed


@contextmanager
def elsewhere() -> Iterator[Fetched]:
    """Tensors of the other device may be worked with; says what was fetched of them."""
    count, generator = Fetched(), torch.Generator

    class OnTheProcessor:
        def __new__(cls, device: Any = "cpu") -> Any:
            return generator()

    _counts.append(count)
    with pytest.MonkeyPatch.context() as patch, _Calls(), _Scalars():
        patch.setattr(torch, "Generator", OnTheProcessor)
        try:
            yield count
        finally:
            _counts.remove(count)


def there(x: Tensor) -> Tensor:
    """The same numbers on the other device."""
    return Elsewhere(x.detach().clone())


@contextmanager
def on_a_gpu() -> Iterator[Fetched]:
    """The same on a real one, where nobody counts."""
    yield Fetched()


to_a_gpu = partial(Tensor.to, device="cuda")
