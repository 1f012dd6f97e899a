"""Running a network over batches, and gathering what it says."""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from calibrant._validation.scores import RowScoreEvidence, SingleScoreEvidence
from calibrant.io import atomic_write
from calibrant.predictions import Predictions
from calibrant.types import InputError

LABEL_KEYS = ("labels", "label", "targets", "target", "y")  # of a batch that is a mapping

Unpack = Callable[[Any], tuple[Any, Any]]


@overload
def collect(
    network: nn.Module,
    batches: Iterable[Any],
    *,
    device: torch.device | str | None = None,
    unpack: Unpack | None = None,
    output: str | int | Callable[[Any], Tensor] | None = None,
    binary: bool = False,
    logits: bool = False,
    ignore_index: int | None = None,
    progress: bool | None = None,
    to: None = None,
) -> Predictions: ...


@overload
def collect(
    network: nn.Module,
    batches: Iterable[Any],
    *,
    device: torch.device | str | None = None,
    unpack: Unpack | None = None,
    output: str | int | Callable[[Any], Tensor] | None = None,
    binary: bool = False,
    logits: bool = False,
    ignore_index: int | None = None,
    progress: bool | None = None,
    to: str | Path,
) -> Path: ...


def collect(
    network: nn.Module,
    batches: Iterable[Any],
    *,
    device: torch.device | str | None = None,
    unpack: Unpack | None = None,
    output: str | int | Callable[[Any], Tensor] | None = None,
    binary: bool = False,
    logits: bool = False,
    ignore_index: int | None = None,
    progress: bool | None = None,
    to: str | Path | None = None,
) -> Predictions | Path:
    """Run a network over batches and gather its predictions on the CPU, or in a file where they do not fit.

    Works for anything that yields batches, such as a DataLoader. The network is put in evaluation mode meanwhile and
    given back as it was.

    - A batch is a pair (inputs, labels), or a mapping with labels (labels, label, targets, target, y) whose other
      entries are the network's keywords, as in Transformers. Anything else is taken apart by `unpack`, which returns
      (inputs, labels); inputs that are a mapping become keywords.
    - `output`: where the logits are in what the network returns: a name, an index or a function; default: the tensor
      itself, or its `logits`.
    - `binary`: the network has one logit, (n,) or (n, 1). Where all that were collected lie in [0, 1], as those of a
      network that ends in a sigmoid, they are refused, unless `logits` says that they are logits all the same.
    - `ignore_index`: labels of positions that are left out.
    - `device`: default: where its first parameter lives. `progress`: show it; default: on a terminal.
    - `to`: a .parquet file to write batch after batch; its path is returned, which `assess` and `measure` read.

    Raises `InputError` where a batch or an output is of no such kind, or there is none.
    """
    first_parameter = next(network.parameters(), None)
    target_device = (
        torch.device(device)
        if device is not None
        else torch.device("cpu")
        if first_parameter is None
        else first_parameter.device
    )
    if logits and not binary:
        raise InputError("expected logits=True only with binary=True. Try binary=True, or leave it out.", code="logits")
    make_predictions: Any = partial(Predictions.from_binary_logits, logits=True) if binary else Predictions
    check = None if logits else _probability_check(binary)
    parts = (
        make_predictions(scores, labels, ignore_index=ignore_index, clusters=_batch_clusters(scores, labels))
        for scores, labels in _predict_batches(
            network, _track_batches(batches, progress), target_device, unpack, output
        )
        if ignore_index is None or bool((labels != ignore_index).any())
    )
    with _evaluation_mode(network):
        checked_parts = parts if check is None else _check_after_last_batch(parts, *check)
        return _gather_predictions(checked_parts) if to is None else _write_parquet(checked_parts, Path(to))


def _probability_check(binary: bool) -> tuple[Callable[[Predictions], Any], Callable[[], None]]:
    """Return what adds a batch to the evidence that the network returns probabilities, and what refuses them."""
    if not binary:
        rows = RowScoreEvidence()
        return lambda p: rows.add(p.logits), rows.check
    scores = SingleScoreEvidence()
    alternative = "a network without its last sigmoid (output=lambda p: p.logit() takes it back)"
    return lambda p: scores.add_pairs(p.logits), lambda: scores.check(alternative)


def _check_after_last_batch(
    parts: Iterable[Predictions], add: Callable[[Predictions], Any], check: Callable[[], None]
) -> Iterator[Predictions]:
    """Yield all batches, then refuse them if all together are evidently probabilities."""
    for p in parts:
        add(p)
        yield p
    check()


def _predict_batches(
    network: nn.Module, batches: Iterable[Any], device: torch.device, unpack: Unpack | None, output: Any
) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in batches:
        inputs, labels = (unpack or _unpack_batch)(batch)
        inputs = _move_to_device(inputs, device)
        with torch.no_grad():
            result = network(**inputs) if isinstance(inputs, Mapping) else network(inputs)
        yield _extract_logits(result, output).float().cpu(), torch.as_tensor(labels).cpu()


def _batch_clusters(logits: Tensor, labels: Tensor) -> Tensor | None:
    """The clusters of a batch: its images or texts, where it has a label at every position."""
    dense = labels.ndim > 1 and labels.shape[1:].numel() > 1 and logits.ndim > 1
    return torch.arange(len(labels)) if dense else None


def _unpack_batch(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        names = [name for name in LABEL_KEYS if name in batch]
        if len(names) != 1:
            raise InputError(
                f"a batch with {', '.join(map(str, batch))} needs one of {', '.join(LABEL_KEYS)}; or say "
                "unpack=lambda batch: (inputs, labels)",
                code="batch_keys",
            )
        return {name: part for name, part in batch.items() if name != names[0]}, batch[names[0]]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    got = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
    raise InputError(
        f"a batch must be a pair (inputs, labels), got {got}; say unpack=lambda batch: (batch[0], batch[1])",
        code="batch",
    )


def _move_to_device(inputs: Any, device: torch.device) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _move_to_device(part, device) for name, part in inputs.items()}
    return inputs.to(device) if hasattr(inputs, "to") else inputs


def _extract_logits(result: Any, output: Any) -> Tensor:
    if callable(output):
        logits: Any = output(result)
    elif output is not None:
        logits = getattr(result, output) if isinstance(output, str) and hasattr(result, output) else result[output]
    else:
        logits = result if isinstance(result, Tensor) else getattr(result, "logits", None)
        logits = result["logits"] if logits is None and isinstance(result, Mapping) and "logits" in result else logits
    if not isinstance(logits, Tensor):
        raise InputError(
            f"the network returns {type(result).__name__}: say where its logits are, such as output=0", code="no_logits"
        )
    return logits


@contextmanager
def _evaluation_mode(network: nn.Module) -> Generator[None]:
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


def _gather_predictions(parts: Iterable[Predictions]) -> Predictions:
    numbered_parts = list(_number_clusters(parts))
    if not numbered_parts:
        raise InputError(NO_BATCHES_MESSAGE, code="no_batches")
    cluster_parts = [codes for _, codes in numbered_parts if codes is not None]
    clusters = torch.cat(cluster_parts) if cluster_parts else None
    return Predictions(
        torch.cat([p.logits for p, _ in numbered_parts]),
        torch.cat([p.labels for p, _ in numbered_parts]),
        of=numbered_parts[0][0].of,
        clusters=None if clusters is None or int(clusters.max()) == 0 else clusters,
    )


NO_BATCHES_MESSAGE = "no batches to collect predictions from: the iterable was empty (a generator used twice?)"


def _number_clusters(parts: Iterable[Predictions]) -> Iterator[tuple[Predictions, Tensor | None]]:
    """Each batch with its clusters, numbered so that they are not those of other batches."""
    start = 0
    for p in parts:
        yield p, None if p.clusters is None else p.clusters + start
        start += 0 if p.clusters is None else int(p.clusters.max()) + 1


def _write_parquet(parts: Iterable[Predictions], path: Path) -> Path:
    """Write batch after batch to one file, which is there when all are."""
    import polars
    from polars.io.plugins import register_io_source

    if path.suffix != ".parquet":
        raise InputError(f"predictions are collected to a .parquet file, got {path}", code="suffix")
    numbered_parts = _number_clusters(parts)
    if (first := next(numbered_parts, None)) is None:
        raise InputError(NO_BATCHES_MESSAGE, code="no_batches")
    schema: dict[str, Any] = {"label": polars.Int64, "logits": polars.List(polars.Float32)}
    schema |= {} if first[1] is None else {"cluster": polars.Int64}
    errors: list[BaseException] = []

    def frames(*_: Any) -> Iterator[polars.DataFrame]:
        try:
            for p, codes in chain([first], numbered_parts):
                columns = {"label": p.labels.numpy(), "logits": p.logits.numpy()}
                columns |= {} if codes is None else {"cluster": codes.numpy()}
                yield polars.DataFrame(columns).cast({"logits": schema["logits"]})
        except BaseException as error:  # which polars would wrap in one of its own
            errors.append(error)
            raise

    with atomic_write(path) as draft:
        try:
            register_io_source(io_source=frames, schema=schema).sink_parquet(draft)
        except BaseException:
            if errors:
                raise errors[0] from None
            raise
    return path


def _track_batches(batches: Iterable[Any], progress: bool | None) -> Iterator[Any]:
    """The batches, with a bar that says how many there were."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield from batches
        return
    from rich.console import Console
    from rich.progress import Progress

    total = len(batches) if hasattr(batches, "__len__") else None  # pyright: ignore[reportArgumentType]
    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(batches, total=total, description="collecting predictions")
