"""What a classifier said and what was true: the one value that everything consumes, checked once at the door."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant._types import InputError

SUFFIXES = (".npz", ".npy", ".csv", ".parquet", ".safetensors", ".pt", ".pth")


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Predictions:
    """Logits with the labels they should have predicted, and optionally a weight for every example.

    Takes anything array-like: torch, numpy, jax, nested lists. Logits are any unnormalized log-probabilities; -inf is
    allowed and means probability 0. Segmentation and token predictions of shape (n, k, d1, ...) with labels
    (n, d1, ...) become one row per position; positions labeled `ignore_index` are left out.

    Raises `InputError` with one line for wrong shapes, types, NaN, labels out of range, or logits that look like
    probabilities (use `Predictions.from_probs` for those).

    >>> Predictions([[0.0, 1.0, 2.0]], [3])
    Traceback (most recent call last):
    calibrant._types.InputError: labels must lie in [0, 3), got 3 .. 3; are they 1-based? then subtract 1
    """

    logits: Tensor  # (n k) float
    labels: Tensor  # (n) int64
    weights: Tensor | None  # (n) float64, non-negative

    def __init__(self, logits: Any, labels: Any, weights: Any = None, *, ignore_index: int | None = None) -> None:
        logits, labels = _tensor(logits, "logits"), _whole(_tensor(labels, "labels"))
        weights = None if weights is None else _tensor(weights, "weights").double()
        logits, labels, weights = _rows(logits, labels, weights)
        if ignore_index is not None:
            keep = labels != ignore_index
            logits, labels = logits[keep], labels[keep]
            weights = None if weights is None else weights[keep]
        _check(logits, labels, weights)
        for name, value in ("logits", logits), ("labels", labels), ("weights", weights):
            object.__setattr__(self, name, value)

    @classmethod
    def from_probs(
        cls, probs: Any, labels: Any, weights: Any = None, *, ignore_index: int | None = None
    ) -> "Predictions":
        """Enter from probabilities (n, k), rows summing to 1, or (n,) for the probability of class 1 of 2.

        log p is as good a logit as any; it is taken in float64.

        >>> Predictions.from_probs([[0.25, 0.75]], [1]).logits.exp()
        tensor([[0.2500, 0.7500]], dtype=torch.float64)
        """
        p = _tensor(probs, "probs")
        narrow = p.dtype in (torch.float16, torch.bfloat16)
        p = p.double()
        if p.ndim == 1:
            p = torch.stack([1 - p, p], dim=-1)
        if p.isnan().any():
            raise InputError(f"{_nan_rows(p)} of {len(p)} rows of probs contain NaN; drop or repair them first")
        total = p.sum(1)
        if bool((p < 0).any()) or bool(((total - 1).abs() > (2e-2 if narrow else 1e-3)).any()):
            raise InputError(
                f"rows of probs must be non-negative and sum to 1, got minimum {p.min():.4g} and sums "
                f"{total.min():.4g} .. {total.max():.4g}; if these are logits, say logits"
            )
        return cls(p.log(), labels, weights, ignore_index=ignore_index)

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Tensor]:
        """Unpack to logits and labels, so that `ece(*predictions)` reads well."""
        return iter((self.logits, self.labels))

    def __repr__(self) -> str:
        n, k = self.logits.shape
        weighted = "" if self.weights is None else ", weighted"
        return f"Predictions(n={n}, k={k}, {str(self.logits.dtype).removeprefix('torch.')}{weighted})"

    def __getitem__(self, rows: Any) -> "Predictions":
        """Some of the rows, by slice, mask or indices."""
        weights = None if self.weights is None else self.weights[rows]
        return Predictions(self.logits[rows], self.labels[rows], weights)

    def double(self) -> "Predictions":
        """The same in float64, in which everything is fitted and measured."""
        return Predictions(self.logits.double(), self.labels, self.weights)

    @property
    def digest(self) -> str:
        """Sixteen hex digits that identify these logits and labels, whatever file they came from."""
        return digest(self.logits, self.labels)

    def save(self, path: str | Path) -> None:
        """Write .npz, .safetensors, .csv or .parquet, readable by `Predictions.load`."""
        path = Path(path)
        arrays: dict[str, Tensor] = {"logits": self.logits.cpu().contiguous(), "labels": self.labels.cpu()}
        if self.weights is not None:
            arrays["weights"] = self.weights.cpu()
        _write(path, arrays)

    @classmethod
    def load(cls, path: str | Path) -> "Predictions":
        """Read predictions from a file.

        .npz, .safetensors, .pt (a dict of tensors): keys `logits` or `probs`, and `labels`; `weights` if there.
        .npy: NAME_logits.npy or NAME_probs.npy, with NAME_labels.npy beside it.
        .csv, .parquet: one column `label` (or `labels`), columns `logit_0`, `logit_1`, ... or `prob_0`, ...; parquet
        may instead have a list column `logits` or `probs`.
        """
        path = Path(path)
        try:
            return _enter(cls, _read(path))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


def load_logits(path: str | Path) -> tuple[Tensor, Tensor | None]:
    """Read the logits of a file whose labels may not be known yet; labels are None then. Formats as `load`."""
    path = Path(path)
    try:
        arrays = dict(_read(path))
        known = "labels" in arrays or "label" in arrays
        if not known:
            some = next((arrays[kind] for kind in ("logits", "probs") if kind in arrays), np.zeros((0, 2)))
            arrays["labels"] = np.zeros(len(some), dtype=np.int64)
        found = _enter(Predictions, arrays)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return found.logits, found.labels if known else None


def digest(logits: Tensor, labels: Tensor) -> str:
    """Sixteen hex digits that identify logits and labels; float64 logits count as their float32 rounding."""
    h = hashlib.sha256()
    for part in (logits.detach().float(), labels.long()):
        h.update(np.ascontiguousarray(part.cpu().numpy()).data)
    return h.hexdigest()[:16]


def collect(network: nn.Module, batches: Iterable[Any], *, device: torch.device | str | None = None) -> Predictions:
    """Run a network over batches of (inputs, labels) and gather its predictions on the CPU.

    Works for anything that yields pairs, such as a DataLoader. The network is put in evaluation mode meanwhile and
    given back as it was. `device` defaults to where its first parameter lives.
    """
    first = next(network.parameters(), None)
    where = device if device is not None else ("cpu" if first is None else first.device)
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            parts = [(network(inputs.to(where)).float().cpu(), labels.cpu()) for inputs, labels in batches]
    finally:
        network.train(was_training)
    if not parts:
        raise InputError("no batches to collect predictions from: the iterable was empty (a generator used twice?)")
    logits, labels = zip(*parts, strict=True)
    return Predictions(torch.cat(logits), torch.cat(labels))


# The door


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        array = np.asarray(value)
        return torch.from_numpy(np.ascontiguousarray(array).copy())
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers, got {type(value).__name__}: {error}") from None


def _whole(labels: Tensor) -> Tensor:
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise InputError(f"labels must be whole numbers (class indices), got {labels.dtype} with fractions or NaN")
    return labels.long()


def _rows(logits: Tensor, labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    shape = (logits.shape[0], *logits.shape[2:])
    got = f"got {tuple(logits.shape)} and {tuple(labels.shape)}"
    if logits.ndim < 2:
        raise InputError(
            f"need logits (n, k) and labels (n,), {got}; a single logit s of a binary classifier is the pair [0, s]"
        )
    if labels.shape == logits.shape and logits.ndim == 2:
        raise InputError(f"need class indices as labels (n,), {got}; for one-hot labels use labels.argmax(-1)")
    if tuple(labels.shape) != shape:
        raise InputError(f"need logits (n, k) and labels (n,), {got}")
    if weights is not None and tuple(weights.shape) != shape:
        raise InputError(f"need one weight per label, got weights {tuple(weights.shape)}, labels {tuple(labels.shape)}")
    if logits.ndim > 2:
        logits = logits.movedim(1, -1).flatten(0, -2)
        labels = labels.flatten()
        weights = None if weights is None else weights.flatten()
    return logits, labels, weights


def _check(logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
    n, k = logits.shape
    if n == 0:
        raise InputError("no examples: logits and labels are empty")
    if k < 2:
        raise InputError("need at least 2 classes, got 1; a single logit s of a binary classifier is the pair [0, s]")
    if not logits.is_floating_point():
        raise InputError(f"logits must be floating point, got {logits.dtype}; are logits and labels swapped?")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= k:
        hint = "are they 1-based? then subtract 1" if low >= 1 and high == k else "negative ones need ignore_index"
        hint = hint if high == k or low < 0 else "are there classes without a column?"
        raise InputError(f"labels must lie in [0, {k}), got {low} .. {high}; {hint}")
    total = logits.sum(1)  # NaN and +inf survive a sum: one cheap pass finds them
    if not bool(total.isfinite().all()):
        if logits.isnan().any():
            raise InputError(f"{_nan_rows(logits)} of {n} rows of logits contain NaN; drop or repair them first")
        if logits.isposinf().any():
            raise InputError(
                f"{int(logits.isposinf().any(1).sum())} of {n} rows of logits contain +inf; only -inf "
                "(probability 0) has a meaning"
            )
        if bool(logits.isneginf().all(1).any()):
            raise InputError("a row of logits is -inf everywhere: no class has any probability")
    elif bool(((total - 1).abs() < 1e-3).all()) and bool((logits >= 0).all()):
        raise InputError(
            f"logits look like probabilities (all {n} rows are non-negative and sum to 1); "
            "use Predictions.from_probs, or the key 'probs' in a file"
        )
    if weights is not None and not (bool((weights >= 0).all()) and float(weights.sum()) > 0):
        raise InputError("weights must be non-negative, finite and not all zero")


def _nan_rows(x: Tensor) -> int:
    return int(x.isnan().flatten(1).any(1).sum())


# Files


def _enter(cls: type[Predictions], arrays: Mapping[str, Any]) -> Predictions:
    kinds = [kind for kind in ("logits", "probs") if kind in arrays]
    labels = [name for name in ("labels", "label") if name in arrays]
    if len(kinds) != 1 or len(labels) != 1:
        got = ", ".join(map(repr, sorted(arrays))) or "nothing"
        raise InputError(f"expected 'labels' and either 'logits' or 'probs', got {got}")
    enter: Callable[..., Predictions] = cls if kinds == ["logits"] else cls.from_probs
    return enter(arrays[kinds[0]], arrays[labels[0]], arrays.get("weights"))


def _read(path: Path) -> Mapping[str, Any]:
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"cannot tell the format from {path.suffix or 'no suffix'!r}; expected one of {', '.join(SUFFIXES)}"
        )
    if not path.is_file():
        raise InputError("no such file")
    if path.stat().st_size == 0:
        raise InputError("the file is empty (0 bytes)")
    try:
        return _READERS[path.suffix](path)
    except InputError:
        raise
    except Exception as error:  # third-party readers raise anything; the reason matters, their type does not
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"not a readable {path.suffix} file ({type(error).__name__}: {reason})") from None


def _read_npz(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def _read_npy(path: Path) -> Mapping[str, Any]:
    for kind in "logits", "probs":
        if path.stem.endswith(kind):
            beside = path.with_name(path.stem.removesuffix(kind) + "labels.npy")
            labels = {"labels": np.load(beside, allow_pickle=False)} if beside.is_file() else {}
            return {kind: np.load(path, allow_pickle=False)} | labels
    raise InputError("expected a name that ends in logits.npy or probs.npy, with its labels.npy beside it")


def _read_safetensors(path: Path) -> Mapping[str, Any]:
    from safetensors.torch import load_file

    return load_file(path)


def _read_torch(path: Path) -> Mapping[str, Any]:
    value = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(value, Mapping):
        raise InputError(f"expected a dict with 'logits' and 'labels', got {type(value).__name__}")
    return value  # pyright: ignore[reportUnknownVariableType]


def _read_table(path: Path) -> Mapping[str, Any]:
    import polars

    return table_arrays(polars.read_csv(path) if path.suffix == ".csv" else polars.read_parquet(path))


def table_arrays(frame: Any) -> Mapping[str, Any]:
    """Arrays of a polars frame with columns as `Predictions.load` describes them."""
    arrays: dict[str, Any] = {}
    for name in ("label", "labels", "weights", "logits", "probs"):
        if name in frame.columns:
            column = frame[name]
            arrays[name] = np.array(column.to_list()) if column.dtype.is_nested() else column.to_numpy()
    for kind, prefix in ("logits", "logit_"), ("probs", "prob_"):
        columns = [c for c in frame.columns if c.startswith(prefix) and c.removeprefix(prefix).isdigit()]
        if columns:
            wanted = [f"{prefix}{i}" for i in range(len(columns))]
            if set(columns) != set(wanted):
                raise InputError(f"expected columns {wanted[0]} .. {wanted[-1]}, got {', '.join(sorted(columns))}")
            arrays[kind] = frame.select(wanted).to_numpy()
    if not arrays:
        raise InputError(
            f"expected columns label and logit_0, logit_1, ... (or prob_0, ...), got {', '.join(frame.columns)}"
        )
    return arrays


_READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".safetensors": _read_safetensors,
    ".pt": _read_torch,
    ".pth": _read_torch,
    ".csv": _read_table,
    ".parquet": _read_table,
}


def _write(path: Path, arrays: Mapping[str, Tensor]) -> None:
    if path.suffix == ".npz":
        np.savez_compressed(path, **{key: value.numpy() for key, value in arrays.items()})  # pyright: ignore
    elif path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(dict(arrays), path)
    elif path.suffix in (".csv", ".parquet"):
        import polars

        logits = arrays["logits"].numpy()
        columns = {f"logit_{i}": logits[:, i] for i in range(logits.shape[1])}
        columns |= {"label": arrays["labels"].numpy()}
        columns |= {"weights": arrays["weights"].numpy()} if "weights" in arrays else {}
        frame = polars.DataFrame(columns)
        frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
    else:
        raise InputError(f"{path}: can write .npz, .safetensors, .csv and .parquet, not {path.suffix or 'no suffix'!r}")
