"""Run a network over batches and collect its predictions."""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from calibrant._core.files import atomic_write
from calibrant._core.lazy import polars
from calibrant._core.text import shorten_list
from calibrant._core.types import InputError
from calibrant.predictions import Predictions
from calibrant.predictions.validation.arrays import to_column
from calibrant.predictions.validation.scores import RowScoreEvidence, SingleScoreEvidence

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
    names: Sequence[str] | None = None,
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
    names: Sequence[str] | None = None,
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
    names: Sequence[str] | None = None,
    progress: bool | None = None,
    to: str | Path | None = None,
) -> Predictions | Path:
    """Run a network over batches and collect its predictions on the CPU, or in a file.

    The network is in evaluation mode meanwhile, and restored at the end.

    Args:
        network: The network.
        batches: Any iterable of batches, such as a DataLoader. A batch is a pair (inputs, labels), or a mapping with
            the key labels, label, targets, target or y whose other entries are keywords of the network.
        device: Where to run the network; default: the device of its first parameter.
        unpack: Function that returns (inputs, labels) of any other batch; a mapping of inputs becomes keywords.
        output: Name, index or function of the logits in the network's output; default: the output itself if it is a
            tensor, else its `logits`.
        binary: Whether each logit of the network is an event of its own: (n,) or (n, 1), or (n, m) for m labels per
            sample.
        logits: Accept single logits that all lie in [0, 1]; by default they are refused as the output of a sigmoid.
        ignore_index: Label of positions to leave out.
        names: Names of the classes, or with `binary` of the m labels, which then are groups as in
            `Predictions.multilabel`. Not for a file, which holds none.
        progress: Whether to show a progress bar; default: on a terminal.
        to: A .parquet file to write batch by batch, which `assess` and `measure` read.

    Returns:
        The predictions, or the path `to`.

    Raises:
        InputError: If there are no batches, or a batch or an output has an unknown form.
    """
    if logits and not binary:
        raise InputError("Expected logits=True only with binary=True. Try binary=True, or leave it out.", code="logits")
    if names is not None and to is not None:
        raise InputError("Expected names without a file, got both. Try leaving out names or to.", code="names")
    first_parameter = next(network.parameters(), torch.empty(0))  # without parameters, run on the CPU
    outputs = _predict_batches(
        network,
        _track_batches(batches, progress),
        device=torch.device(device or first_parameter.device),
        unpack=unpack,
        output=output,
    )
    parts = predictions_of_batches(outputs, binary=binary, logits=logits, ignore_index=ignore_index, names=names)
    with _evaluation_mode(network):
        return join_predictions(parts) if to is None else _write_parquet(parts, Path(to))


def predictions_of_batches(
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    binary: bool,
    logits: bool,
    ignore_index: int | None,
    names: Sequence[str] | None = None,
) -> Iterator[Predictions]:
    """Yield the predictions of each batch of logits and labels, then raise `InputError` if all are probabilities.

    Batches whose labels are all ignored are left out. With `logits`, scores that look like probabilities are accepted.
    """
    parts: Iterator[Predictions] = (
        _batch_predictions(scores, labels, binary=binary, ignore_index=ignore_index, names=names)
        for scores, labels in batches
        if ignore_index is None or bool((labels != ignore_index).any())  # other batches have no examples
    )
    return parts if logits else _refuse_probabilities(parts, binary)


def _batch_predictions(
    scores: Tensor, labels: Tensor, *, binary: bool, ignore_index: int | None, names: Sequence[str] | None
) -> Predictions:
    """Return the predictions of a batch. Any logits are accepted: `_refuse_probabilities` judges by all batches.

    Raises:
        InputError: As the constructors, with `binary=True` as the remedy for single logits and several labels.
    """
    options: dict[str, Any] = {"ignore_index": ignore_index}
    if binary and names is not None and scores.ndim == 2 and scores.shape[1] > 1:
        return Predictions.multilabel(scores, labels, names=names, logits=True, **options)
    options |= {"clusters": _batch_clusters(scores, labels), "class_names": names}
    if binary:
        return Predictions.from_binary_logits(scores, labels, logits=True, **options)
    try:
        return Predictions(scores, labels, **options)
    except InputError as error:
        if error.code not in ("one_class", "single_logit", "one_hot_labels"):
            raise
        problem = str(error).partition(" Try ")[0]
        raise InputError(
            f"{problem} Try binary=True for one logit per event or several labels per sample.", code=error.code
        ) from None


def _refuse_probabilities(parts: Iterable[Predictions], binary: bool) -> Iterator[Predictions]:
    """Yield all batches, then raise `InputError` if all together are evidently probabilities."""
    single, rows = SingleScoreEvidence(), RowScoreEvidence()
    add = single.add_pairs if binary else rows.add
    for p in parts:
        add(p.logits)
        yield p
    if binary:
        single.check("a network without its last sigmoid (output=lambda p: p.logit() inverts it)")
    else:
        rows.check()


def _predict_batches(
    network: nn.Module, batches: Iterable[Any], *, device: torch.device, unpack: Unpack | None, output: Any
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits and labels of each batch on the CPU."""
    for batch in batches:
        inputs, labels = (unpack or _unpack_batch)(batch)
        inputs = _move_to_device(inputs, device)
        with torch.no_grad():
            result = network(**inputs) if isinstance(inputs, Mapping) else network(inputs)
        yield _extract_logits(result, output).float().cpu(), to_tensor(labels, "labels")


def to_tensor(values: Any, name: str) -> Tensor:
    """Return an array-like of numbers as a tensor on the CPU. Errors call it `name`."""
    return torch.from_numpy(to_column(values, name))


def _batch_clusters(logits: Tensor, labels: Tensor) -> Tensor | None:
    """Return a cluster per image or text if there is a label at every position."""
    has_positions = labels.ndim > 1 and labels.shape[1:].numel() > 1 and logits.ndim > 1  # more than one in a sample
    return torch.arange(len(labels)) if has_positions else None


def _unpack_batch(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and labels of a batch: a pair, or a mapping with one key for labels."""
    if isinstance(batch, Mapping):
        names = [name for name in LABEL_KEYS if name in batch]
        if len(names) != 1:
            raise InputError(
                f"Expected a batch with one of the keys {', '.join(LABEL_KEYS)}, got {', '.join(map(str, batch))}. Try "
                "unpack=lambda batch: (inputs, labels).",
                code="batch_keys",
            )
        return {name: part for name, part in batch.items() if name != names[0]}, batch[names[0]]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    kind = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
    raise InputError(
        f"Expected a batch as a pair (inputs, labels), got {kind}. Try unpack=lambda batch: (batch[0], batch[1]).",
        code="batch",
    )


def _move_to_device(inputs: Any, device: torch.device) -> Any:
    """Move a tensor, or each entry of a mapping, to a device. Return anything else as it is."""
    if isinstance(inputs, Mapping):
        return {name: _move_to_device(part, device) for name, part in inputs.items()}
    return inputs.to(device) if hasattr(inputs, "to") else inputs


def _extract_logits(result: Any, output: Any) -> Tensor:
    """Return the logits in the result of a network.

    With `output`, they are what this function returns, or the attribute or item of this name or index. Without, they
    are the result itself if it is a tensor, else its attribute or item "logits".
    """
    logits: Any = None
    if callable(output):
        logits = output(result)
    elif output is not None:
        with suppress(LookupError, TypeError):  # a result without this place has no logits
            logits = getattr(result, output) if isinstance(output, str) and hasattr(result, output) else result[output]
    else:
        logits = result if isinstance(result, Tensor) else getattr(result, "logits", None)
        if logits is None and isinstance(result, Mapping):
            logits = result.get("logits")  # pyright: ignore[reportUnknownMemberType]
    if not isinstance(logits, Tensor):
        keys: list[Any] = list(result) if isinstance(result, Mapping) else []  # pyright: ignore[reportUnknownArgumentType]
        places = range(len(result)) if isinstance(result, Sequence) else keys  # pyright: ignore[reportUnknownArgumentType]
        # A loss has no rows
        of_rows = [place for place in places if isinstance(result[place], Tensor) and result[place].ndim > 1]
        contents = f" with the keys {shorten_list(keys)}" if keys else ""
        raise InputError(
            f"Expected a tensor of logits from the network, got {type(result).__name__}{contents}. Try "
            f"output={next(iter(of_rows), 0)!r}, or another place of the logits.",
            code="no_logits",
        )
    return logits


@contextmanager
def _evaluation_mode(network: nn.Module) -> Generator[None]:
    """Switch to evaluation mode, and afterwards each module back to its mode, such as that of a frozen BatchNorm."""
    was_training = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        network.train(was_training[network])  # first, because modules may do more in it than set the mode
        for module, mode in was_training.items():
            module.training = mode


def join_predictions(parts: Iterable[Predictions]) -> Predictions:
    """Join the batches. A single cluster is left out, as it does not show how much clusters differ.

    Raises:
        InputError: If there are no batches, or they differ in the number of classes.
    """
    batches, cluster_parts = zip(*_number_clusters(parts), strict=True)
    if len(sizes := {p.k for p in batches}) > 1:
        raise InputError(f"Expected equally many classes in all batches, got {sorted(sizes)}.", code="num_classes")
    group_parts: list[Any] = [np.asarray(p.group_names)[p.groups] for p in batches if p.groups is not None]
    with_clusters = [clusters for clusters in cluster_parts if clusters is not None]
    clusters = np.concatenate(with_clusters) if with_clusters else None
    return Predictions(
        np.concatenate([p.logits for p in batches]),
        np.concatenate([p.labels for p in batches]),
        of=batches[0].of,
        class_names=batches[0].class_names,
        groups=np.concatenate(group_parts) if group_parts else None,
        clusters=None if clusters is None or int(clusters.max()) == 0 else clusters,
    )


def _number_clusters(parts: Iterable[Predictions]) -> Iterator[tuple[Predictions, np.ndarray | None]]:
    """Yield each batch with its cluster numbers, which differ from those of other batches.

    Raises:
        InputError: If there are no batches.
    """
    p, start = None, 0
    for p in parts:
        yield p, None if p.clusters is None else p.clusters + start
        start += 0 if p.clusters is None else int(p.clusters.max()) + 1
    if p is None:
        raise InputError(
            "Expected at least one batch with labels, got none. Try a DataLoader, or a new generator.",
            code="no_batches",
        )


def _write_parquet(parts: Iterable[Predictions], path: Path) -> Path:
    """Write batch by batch to one file, which exists only after the last batch."""
    from polars.io.plugins import register_io_source

    if path.suffix != ".parquet":
        raise InputError(f"Expected a .parquet file, got {path}.", code="suffix")
    numbered_parts = _number_clusters(parts)
    first_part, first_clusters = next(numbered_parts)
    schema: dict[str, Any] = {"label": polars.Int64, "logits": polars.List(polars.Float32)}
    if first_clusters is not None:
        schema["cluster"] = polars.Int64
    errors: list[BaseException] = []

    def frames(*_: Any) -> Iterator[polars.DataFrame]:
        """Yield the table of each batch, and keep any exception. Polars passes columns, rows and filters."""
        try:
            for p, clusters in chain([(first_part, first_clusters)], numbered_parts):
                columns = {"label": p.labels, "logits": p.logits}
                if clusters is not None:
                    columns["cluster"] = clusters
                yield polars.DataFrame(columns).cast({"logits": schema["logits"]})
        except BaseException as error:  # polars raises an exception of its own in its place
            errors.append(error)
            raise

    with atomic_write(path) as draft:
        try:
            register_io_source(io_source=frames, schema=schema).sink_parquet(draft)
        except BaseException:
            if errors:  # the cause, in place of the exception of polars
                raise errors[0] from None
            raise
    return path


def _track_batches(batches: Iterable[Any], progress: bool | None) -> Iterable[Any]:
    """Return the batches, with a progress bar if `progress`, or by default if standard error is a terminal."""
    if not (sys.stderr.isatty() if progress is None else progress):
        return batches
    from rich.console import Console
    from rich.progress import track

    return track(batches, "collecting predictions", console=Console(stderr=True), transient=True)
