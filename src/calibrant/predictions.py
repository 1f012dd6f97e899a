"""What a classifier said and what was true: the one value that everything consumes, checked once at the door."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from calibrant import _rows as _rows_
from calibrant import _softmax, io
from calibrant._bins import Events
from calibrant._softmax import Outcomes, Visit
from calibrant.types import InputError, Map

Of = Literal["top", "classes"] | int  # the event that is judged


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Predictions:
    """Logits with the labels they should have predicted, and what is known of them; checked once, here.

    Takes anything array-like: torch, numpy, jax, nested lists. Logits are any unnormalized log-probabilities; -inf is
    allowed and means probability 0. Segmentation and token predictions of shape (n, k, d1, ...) with labels
    (n, d1, ...) become one row per position; positions labeled `ignore_index` are left out.

    - `weights`: how often each example counts; an integer weight is that many copies.
    - `of`: the event that calibration metrics judge. "top": that the predicted class is right; the index of a class:
      that it is the true one; "classes": each class's own, of which metrics give the mean.
    What it holds is its own: what becomes of the given arrays later changes nothing here. The copy takes a tenth of the
    time in which they are measured; logits that go to a metric directly, which keeps none of them, are not copied.

    - `groups`: examples of one group are never divided between folds, such as the frames of one film.

    Raises `InputError` with one line for wrong shapes, types, NaN, labels out of range, or logits that are plainly
    probabilities (use `Predictions.from_probs` for those).

    >>> Predictions([[0.0, 1.0, 2.0]], [3])
    Traceback (most recent call last):
    calibrant.types.InputError: labels must lie in [0, 3), got 3 .. 3; are they 1-based? then subtract 1
    """

    logits: Tensor  # (n k) float
    labels: Tensor  # (n) int64
    weights: Tensor | None  # (n) float64, non-negative
    groups: Tensor | None  # (n) int64
    of: Of

    def __init__(
        self,
        logits: Any,
        labels: Any,
        weights: Any = None,
        *,
        of: str | int = "top",
        groups: Any = None,
        ignore_index: int | None = None,
    ) -> None:
        z, y, w, codes, event = _entered(logits, labels, weights, of=of, groups=groups, ignore_index=ignore_index)
        self._set(_own(z, logits), _own(y, labels), None if w is None else _own(w, weights), codes, event)

    def _set(self, logits: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor | None, of: Of) -> None:
        values = {"logits": logits, "labels": labels, "weights": weights, "groups": groups, "of": of}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_probs(cls, probs: Any, labels: Any, weights: Any = None, **more: Any) -> "Predictions":
        """Enter from probabilities (n, k), rows summing to 1, or (n,) for the probability of class 1 of 2.

        log p is as good a logit as any; it is taken in float64. `more`: `of`, `groups`, `ignore_index`.

        >>> Predictions.from_probs([[0.25, 0.75]], [1]).logits.exp()
        tensor([[0.2500, 0.7500]], dtype=torch.float64)
        """
        return cls(_log_probs(probs), labels, weights, **more)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.logits.shape[1]

    def __iter__(self) -> Iterator[Any]:
        """Refuse to be unpacked, which would lose the weights."""
        raise TypeError("predictions do not unpack: pass them whole, as in nll(predictions); they carry their weights")

    def __repr__(self) -> str:
        n, k = len(self), self.k
        weighted = "" if self.weights is None else ", weighted"
        judged = "" if self.of == "top" else f", of={self.of!r}"
        return f"Predictions(n={n}, k={k}, {str(self.logits.dtype).removeprefix('torch.')}{weighted}{judged})"

    def __getitem__(self, rows: Any) -> "Predictions":
        """Some of the rows, by slice, mask or indices, with what is already known of them."""
        rows = slice(rows, rows + 1 or None) if isinstance(rows, int) else rows
        weights, groups = (None if part is None else part[rows] for part in (self.weights, self.groups))
        some = _trusted(self.logits[rows], self.labels[rows], weights, groups, self.of)
        for name in ("outcomes", "events"):
            if name in self.__dict__:
                some.__dict__[name] = self.__dict__[name][rows]
        if not len(some):
            raise InputError(f"no examples: none of the {len(self)} rows was chosen")
        return some

    def judging(self, of: str | int) -> "Predictions":
        """The same, with another event to be judged."""
        if _event(of, self.k) == self.of:
            return self
        same = _trusted(self.logits, self.labels, self.weights, self.groups, _event(of, self.k))
        if "outcomes" in self.__dict__ and not isinstance(same.of, int):
            same.__dict__["outcomes"] = self.outcomes
        return same

    def double(self) -> "Predictions":
        """The same in float64, in which everything is fitted and measured."""
        if self.logits.dtype == torch.float64:
            return self
        return _trusted(self.logits.double(), self.labels, self.weights, self.groups, self.of)

    def mapped(self, calibrator: Map) -> "Predictions":
        """The same examples with the logits that a map makes of theirs.

        Raises `InputError` if it makes something else of them than as many logits.
        """
        logits = mapped_logits(calibrator, self.logits)
        return _trusted(logits, self.labels, self.weights, self.groups, self.of)

    # What everything is a function of: made once, when it is first asked for

    @cached_property
    def outcomes(self) -> Outcomes:
        """Confidence, correctness, log-likelihood and Brier score of every example, by one pass over the logits."""
        return self._passed(None)

    def survey(self, visit: Visit | None = None) -> Outcomes:
        """The outcomes, shown on the way (rows, probabilities) to `visit`: one pass for both."""
        if visit is not None:
            self.__dict__["outcomes"] = self._passed(visit)
        return self.outcomes

    def _passed(self, visit: Visit | None) -> Outcomes:
        index = self.of if isinstance(self.of, int) else None
        return _softmax.outcomes(self.logits, self.labels, index=index, visit=visit)

    @cached_property
    def events(self) -> Events:
        """The event that is judged: how probable it was said to be, whether it happened, how often it counts.

        Raises `InputError` where every class is judged: take one after the other, `judging(j).events`.
        """
        if self.of == "classes":
            raise InputError("each class has its own events: take predictions.judging(j).events")
        if isinstance(self.of, int):
            known = self.__dict__.get("outcomes")
            said = _softmax.one_class(self.logits, self.of) if known is None else known.probability
            return Events(said, (self.labels == self.of).double(), self.weights)
        return Events(*self._top_label, self.weights)

    @property
    def _top_label(self) -> tuple[Tensor, Tensor]:
        if "outcomes" in self.__dict__:
            return self.outcomes.confidence, self.outcomes.correct
        return _softmax.top_label(self.logits, self.labels)  # less work, where that is all

    @property
    def predicted(self) -> Tensor:
        """The predicted class of every example, the lowest index that attains the maximum: (n) int64."""
        return self.logits.argmax(1)

    @property
    def correct(self) -> Tensor:
        """Whether the predicted class is right: (n) float64, 0 or 1."""
        if "outcomes" in self.__dict__:
            return self.outcomes.correct
        return (self.predicted == self.labels).double()

    @property
    def log_likelihood(self) -> Tensor:
        """log p_y of every example, in float64."""
        if "outcomes" in self.__dict__:
            return self.outcomes.log_likelihood
        return _softmax.log_likelihood(self.logits, self.labels)

    @property
    def mass(self) -> float:
        """How many examples there are, each counted as often as its weight says."""
        return float(len(self)) if self.weights is None else float(self.weights.sum())

    @cached_property
    def row_hashes(self) -> np.ndarray:
        """A 64-bit hash of every row, logits and label; float64 logits count as their float32 rounding."""
        return _rows_.hashes(self.logits, self.labels)

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that identify these rows, in whatever order and file."""
        return hashlib.sha256(np.sort(self.row_hashes).astype("<u8").data).hexdigest()[:16]

    # Files

    def save(self, path: str | Path) -> None:
        """Write .npz, .safetensors, .csv or .parquet, readable by `Predictions.load`."""
        arrays: dict[str, Tensor] = {"logits": self.logits.cpu().contiguous(), "labels": self.labels.cpu()}
        arrays |= {} if self.weights is None else {"weights": self.weights.cpu()}
        arrays |= {} if self.groups is None else {"groups": self.groups.cpu()}
        io.write(path, arrays)

    @classmethod
    def load(cls, path: str | Path, *, ignore_index: int | None = None) -> "Predictions":
        """Read predictions from a file.

        .npz, .safetensors, .pt (a dict of tensors): keys `logits` or `probs`, and `labels`; `weights` and `groups` if
        there. .npy: NAME_logits.npy or NAME_probs.npy, with NAME_labels.npy beside it. .csv, .parquet: one column
        `label` (or `labels`), columns `logit_0`, `logit_1`, ... or `prob_0`, ...; parquet may instead have a list
        column `logits` or `probs`.
        """
        try:
            return cls._enter(io.read(path), ignore_index)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    @classmethod
    def load_pieces(
        cls, path: str | Path, *, rows: int | None = None, ignore_index: int | None = None
    ) -> Iterator["Predictions"]:
        """Read a .parquet, .safetensors or .npy file of any size in pieces, each checked at the door.

        Pieces hold about 64 MB unless `rows` says otherwise. Those in which every position is ignored are left out.
        """
        classes, seen = 0, 0
        pieces = io.read_pieces(path, rows)
        while True:
            try:
                if (arrays := next(pieces, None)) is None:
                    break
                labels = arrays[io.kind_of(arrays)[1]]
            except InputError as error:
                raise InputError(f"{path}: {error}") from None
            first, seen = seen, seen + len(labels)
            if ignore_index is not None and bool((np.asarray(labels) == ignore_index).all()):
                continue
            try:
                part = cls._enter(arrays, ignore_index)
            except InputError as error:
                raise InputError(f"{path}, rows {first} .. {seen - 1}: {error}") from None
            if classes not in (0, part.logits.shape[1]):
                raise InputError(f"{path}: rows of {classes} classes are followed by rows of {part.logits.shape[1]}")
            classes = part.logits.shape[1]
            yield part
        if classes == 0:
            raise InputError(f"{path}: no examples")

    @classmethod
    def _enter(cls, arrays: Mapping[str, Any], ignore_index: int | None) -> "Predictions":
        kind, labels = io.kind_of(arrays)
        enter: Callable[..., Predictions] = cls if kind == "logits" else cls.from_probs
        weights, groups = arrays.get("weights"), arrays.get("groups")
        return enter(arrays[kind], arrays[labels], weights, groups=groups, ignore_index=ignore_index)


def predictions_of(predictions: Any, labels: Any = None, weights: Any = None) -> Predictions:
    """Return predictions as they are, or enter logits with their labels and weights."""
    if isinstance(predictions, Predictions):
        if labels is not None or weights is not None:
            raise InputError("predictions carry their labels and weights: give them alone, or logits with their labels")
        return predictions
    if labels is None:
        raise InputError("need predictions, or logits with their labels: give Predictions(logits, labels)")
    return _trusted(*_entered(predictions, labels, weights))


def mapped_logits(calibrator: Map, logits: Tensor) -> Tensor:
    """What a map makes of logits; raises `InputError` unless they are as many, with some probability in every row."""
    made = calibrator(logits)
    name = getattr(calibrator, "__name__", type(calibrator).__name__)
    if not isinstance(made, Tensor) or made.shape != logits.shape:  # pyright: ignore
        got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__  # pyright: ignore
        raise InputError(f"{name} must return logits {tuple(logits.shape)}, as it was given, got {got}")
    try:
        _finite(made)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return made.detach()


def load_unlabeled(path: str | Path) -> tuple[Predictions, bool]:
    """Read a file whose labels may not be known yet, 0 then, and say whether they are. Formats as `load`."""
    try:
        arrays = dict(io.read(path))
        known = "labels" in arrays or "label" in arrays
        if not known:
            some = next((arrays[kind] for kind in ("logits", "probs") if kind in arrays), np.zeros((0, 2)))
            shape = np.shape(some)
            arrays["labels"] = np.zeros(shape[:1] + shape[2:], dtype=np.int64)
        found = Predictions._enter(arrays, None)  # pyright: ignore[reportPrivateUsage]
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return found, known


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

REAL = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
MOST = 2.0**53  # examples, above which counts are no whole numbers
FEW = 2  # rows with shares in them from which sums of 1 are no accident


def _trusted(logits: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor | None, of: Of) -> Predictions:
    """Predictions of what was checked before."""
    made = object.__new__(Predictions)
    made._set(logits, labels, weights, groups, of)  # pyright: ignore[reportPrivateUsage]
    return made


def _entered(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    of: Any = "top",
    groups: Any = None,
    ignore_index: int | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Of]:
    """Check what predictions are made of, at the door."""
    logits, labels = _tensor(logits, "logits"), _whole(_tensor(labels, "labels"))
    weights = None if weights is None else _tensor(weights, "weights").double()
    groups = None if groups is None else _codes(groups)
    logits, labels, (weights, groups) = _rows(logits, labels, {"weights": weights, "groups": groups})
    if ignore_index is not None:
        keep = labels != ignore_index
        logits, labels = logits[keep], labels[keep]
        weights, groups = (None if part is None else part[keep] for part in (weights, groups))
    _check(logits, labels, weights)
    return logits, labels, weights, groups, _event(of, logits.shape[1])


def _own(part: Tensor, given: Any) -> Tensor:
    """Return a tensor that shares no memory with the caller's."""
    if not isinstance(given, Tensor):
        return part
    shared = part.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    return part.clone() if shared else part


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        plain = value.layout == torch.strided and not (value.is_nested or value.is_meta or value.is_quantized)
        odd = (value.is_floating_point() and value.dtype not in REAL) or value.is_complex()
        if not plain or odd:
            kind = str(value.dtype if plain else "meta" if value.is_meta else value.layout).removeprefix("torch.")
            raise InputError(f"{name} must be a plain tensor of numbers, got a {kind} one; convert it first")
        return value.detach()
    try:
        array = np.asarray(value)
        found = torch.from_numpy(np.ascontiguousarray(array).copy())
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{name} must be an array of numbers, got {type(value).__name__}: {reason}") from None
    return _tensor(found, name)


def _codes(groups: Any) -> Tensor:
    """Number the groups, whatever they are called."""
    if isinstance(groups, Tensor):
        return _tensor(groups, "groups").unique(return_inverse=True)[1]
    try:
        named = np.asarray(groups)
        return torch.from_numpy(np.unique(named, return_inverse=True)[1].reshape(named.shape))
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"groups must be an array of names or numbers: {reason}") from None


def _event(of: Any, k: int) -> Of:
    if of in ("top", "classes") or (isinstance(of, int) and not isinstance(of, bool) and 0 <= of < k):
        return of
    raise InputError(f"of must be 'top', 'classes' or the index of one of {k} classes, got {of!r}")


def _whole(labels: Tensor) -> Tensor:
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise InputError(f"labels must be whole numbers (class indices), got {labels.dtype} with fractions or NaN")
    return labels.long()


def _rows(
    logits: Tensor, labels: Tensor, more: Mapping[str, Tensor | None]
) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    shape = (logits.shape[0], *logits.shape[2:]) if logits.ndim else ()
    got = f"got {tuple(logits.shape)} and {tuple(labels.shape)}"
    if logits.ndim < 2:
        raise InputError(
            f"need logits (n, k) and labels (n,), {got}; a single logit s of a binary classifier is the pair [0, s]"
        )
    if labels.shape == logits.shape and logits.ndim == 2:
        raise InputError(f"need class indices as labels (n,), {got}; for one-hot labels use labels.argmax(-1)")
    if tuple(labels.shape) != shape:
        raise InputError(f"need logits (n, k) and labels (n,), {got}")
    for name, part in more.items():
        if part is not None and tuple(part.shape) != shape:
            one = name.removesuffix("s")
            raise InputError(f"need one {one} per label, got {name} {tuple(part.shape)}, labels {tuple(labels.shape)}")
    parts = list(more.values())
    if logits.ndim > 2:
        logits = logits.movedim(1, -1).flatten(0, -2)
        labels = labels.flatten()
        parts = [None if part is None else part.flatten() for part in parts]
    return logits, labels, parts


def _check(logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
    n, k = logits.shape
    if n == 0:
        raise InputError("no examples: logits and labels are empty")
    if k < 2:
        raise InputError("need at least 2 classes, got 1; a single logit s of a binary classifier is the pair [0, s]")
    if not logits.is_floating_point():
        raise InputError(f"logits must be floating point, got {logits.dtype}; are logits and labels swapped?")
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= k:
        hint = "are they 1-based? then subtract 1" if low >= 1 and high == k else "negative ones need ignore_index"
        hint = hint if high == k or low < 0 else "are there classes without a column?"
        raise InputError(f"labels must lie in [0, {k}), got {low} .. {high}; {hint}")
    _finite(logits)
    if _like_probabilities(logits):
        raise InputError(
            f"logits look like probabilities (all {n} rows are non-negative and sum to 1); "
            "use Predictions.from_probs, or the key 'probs' in a file"
        )
    if weights is not None:
        _check_weights(weights)


def _finite(logits: Tensor) -> None:
    """Refuse NaN, +inf, and rows without any probability; all of them survive a sum: one cheap pass finds them."""
    if bool(logits.sum(dtype=torch.float64 if logits.dtype == torch.float64 else torch.float32).isfinite()):
        return
    n = len(logits)
    if logits.isnan().any():
        raise InputError(f"{_nan_rows(logits)} of {n} rows of logits contain NaN; drop or repair them first")
    if logits.isposinf().any():
        raise InputError(
            f"{int(logits.isposinf().any(1).sum())} of {n} rows of logits contain +inf; only -inf "
            "(probability 0) has a meaning"
        )
    if bool(logits.isneginf().all(1).any()):
        raise InputError("a row of logits is -inf everywhere: no class has any probability")


def _like_probabilities(logits: Tensor) -> bool:
    """Whether all rows are non-negative and sum to 1, and enough of them are not one-hot to be no accident."""
    if not _sum_to_one(logits[:32]) or not _sum_to_one(logits):
        return False
    return int(((logits > 0) & (logits < 1)).any(1).sum()) >= FEW


def _sum_to_one(rows: Tensor) -> bool:
    return bool((rows >= 0).all()) and bool(((rows.double().sum(1) - 1).abs() < 1e-3).all())


def _check_weights(weights: Tensor) -> None:
    total = float(weights.sum())
    if not bool((weights >= 0).all()) or not 0 < total <= MOST:
        raise InputError(f"weights must be non-negative, finite, not all zero and at most {MOST:.0e} together")
    if total < 1 + 1e-3 and int((weights > 0).sum()) > 1:
        raise InputError(
            f"weights say how often an example counts, but all {len(weights)} together count as {total:.4g}; "
            "multiply normalized ones by the number of examples"
        )


def _log_probs(probs: Any) -> Tensor:
    p = _tensor(probs, "probs")
    narrow = p.dtype in (torch.float16, torch.bfloat16)
    p = p.double()
    if p.ndim == 1:
        p = torch.stack([1 - p, p], dim=-1)
    if p.ndim < 2 or not p.numel():
        raise InputError(f"need probs (n, k), or (n,) for the probability of class 1 of 2, got {tuple(p.shape)}")
    if p.isnan().any():
        raise InputError(f"{_nan_rows(p)} of {len(p)} rows of probs contain NaN; drop or repair them first")
    total = p.sum(1)
    if bool((p < 0).any()) or bool(((total - 1).abs() > (2e-2 if narrow else 1e-3)).any()):
        raise InputError(
            f"rows of probs must be non-negative and sum to 1, got minimum {p.min():.4g} and sums "
            f"{total.min():.4g} .. {total.max():.4g}; if these are logits, say logits"
        )
    return p.log()


def _nan_rows(x: Tensor) -> int:
    return int(x.isnan().flatten(1).any(1).sum())
