"""Engines run the networks of a study, here or elsewhere, and tell what happens as it happens."""

import copy
import os
import pickle
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import load
from torch import nn

from calibrant import __version__, metrics, registry
from calibrant._text import to_one_line
from calibrant.backend.threads import thread_limit
from calibrant.lab.data import Split, Splits
from calibrant.lab.study.checkpoint import Checkpoint
from calibrant.lab.study.config import Run
from calibrant.lab.study.digests import NETWORK_FILE, DamagedError, DataDigest, data_digest, read_run_file
from calibrant.lab.study.methods import Methods, is_corruption
from calibrant.lab.study.mirror import MirrorError
from calibrant.lab.study.store import Store, StoredRun
from calibrant.predictions import Predictions
from calibrant.registry import Method
from calibrant.types import InputError

if TYPE_CHECKING:
    from calibrant.lab.study.train import Epoch

MIN_PARALLEL_BATCH_ELEMENTS = 100_000  # numbers in a batch from which several threads pay
MAX_PROCESS_DEATHS = 3  # of its process, after which a run has failed
RAY_OBJECT_STORE_BYTES = 100_000_000  # bytes of memory for what passes between processes: events, which are small


@dataclass(frozen=True)
class RunEvent:
    """Something happened to a run: an epoch ended, it is done, was found done, or failed.

    An error says why in its first line, and where in the rest. Or there is something to say of it: for whom it waits,
    why it begins anew.
    """

    kind: Literal["epoch", "done", "found", "failed", "said"]
    run: Run
    facts: dict[str, Any]


Work = Callable[[Run], Iterator[RunEvent]]
Engine = Callable[[Work, Iterable[Run], Store], Iterator[RunEvent]]


def run_locally(work: Work, runs: Iterable[Run], store: Store) -> Iterator[RunEvent]:
    """Run one after another in this process; leave what another process works on, and come back to it at the end.

    A run that fails is told of and does not stop the others; a full disk and a mirror out of reach do.
    """
    pending, announced_holders = list(runs), dict[Run, str]()
    while pending:
        busy: list[Run] = []
        for run in pending:
            with store.claim(run) as is_claimed:
                if not is_claimed:
                    busy.append(run)
                elif run in store:
                    yield RunEvent("found", run, {})
                else:
                    yield from _report_failure(work, run)
        if len(busy) == len(pending):
            for run in busy:
                if announced_holders.get(run) != (holder := store.holder(run)):
                    announced_holders[run] = holder
                    yield RunEvent("said", run, {"text": f"waits for {holder}, which works on it"})
            time.sleep(0.2)
        pending = busy


def _report_failure(work: Work, run: Run) -> Iterator[RunEvent]:
    try:
        yield from work(run)
    except (MirrorError, OSError):
        raise
    except Exception as error:
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        reason = f"{kind}{to_one_line(error)}"
        yield RunEvent("failed", run, {"error": f"{reason}\n\n{traceback.format_exc()}"})


@dataclass(frozen=True)
class Ray:
    """Run them on a Ray cluster, over its GPUs and machines; the store must be a folder that all of them share.

    Every run takes one core and `gpus` of a GPU: with 0.25, four networks share one. Without an address a cluster is
    started on this machine. A run whose process or machine dies goes on elsewhere, from its checkpoint.
    """

    address: str | None = None
    gpus: float | None = None  # for each run; None: a whole one where there are any

    def __call__(self, work: Work, runs: Iterable[Run], store: Store) -> Iterator[RunEvent]:
        """Tell what happens to the runs, wherever it happens.

        Raises `InputError` if the cluster is not there, or does not start.
        """
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise InputError("the Ray engine needs ray: pip install 'calibrant[ray]'", code="missing_package") from None
        _check_reachable(self.address)
        options: dict[str, Any] = (
            {} if self.address else {"object_store_memory": RAY_OBJECT_STORE_BYTES, "include_dashboard": False}
        )
        try:
            _start_ray(ray, self.address or "local", **options)
            yield from self._follow_tasks(ray, work, runs, store)
        finally:
            ray.shutdown()  # and with it all that this process started

    def _follow_tasks(self, ray: Any, work: Work, runs: Iterable[Run], store: Store) -> Iterator[RunEvent]:
        available_gpus = ray.cluster_resources().get("GPU", 0)
        gpus = min(1, available_gpus) if self.gpus is None else self.gpus
        if gpus > available_gpus:
            raise InputError(
                f"each run is to have {gpus:g} of a GPU, but the Ray cluster has {available_gpus:g}", code="ray_gpus"
            )
        start = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_run_in_worker).remote
        streams, deaths = dict[Any, Run](), Counter[Run]()
        for run in runs:
            if run in store:  # with a GPU every task is a process of its own
                yield RunEvent("found", run, {})
            else:
                streams[start(*_pickle_work(work, run, store))] = run
        while streams:
            (stream,), _ = ray.wait(list(streams), num_returns=1)
            try:
                yield ray.get(next(stream))
            except StopIteration:
                del streams[stream]
            except ray.exceptions.RayTaskError as error:  # what `local` does not handle either
                raise error.cause from None
            except ray.exceptions.RayError as error:
                run = streams.pop(stream)
                deaths[run] += 1
                if deaths[run] < MAX_PROCESS_DEATHS:
                    streams[start(*_pickle_work(work, run, store))] = run
                else:
                    yield RunEvent("failed", run, {"error": f"its process died {MAX_PROCESS_DEATHS} times: {error}"})


def _start_ray(ray: Any, address: str, **options: Any) -> None:
    working_folder = Path.cwd()
    try:
        os.chdir(Path(__file__).parents[3])  # workers look for modules where a driver starts
        ray.init(address, logging_level="ERROR", log_to_driver=False, **options)
    except Exception as error:  # of any type: a slow machine's is a plain one
        reason = to_one_line(error)
        raise InputError(
            f"Ray does not start ({type(error).__name__}: {reason}); try again, or train without", code="ray_start"
        ) from None
    finally:
        os.chdir(working_folder)


def _check_reachable(address: str | None) -> None:
    """Raise `InputError` if nobody listens at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    try:
        if port.isdigit():
            socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise InputError(
            f"no Ray cluster answers at {address}: {error.strerror or error}", code="ray_address"
        ) from None


def _pickle_work(work: Work, run: Run, store: Store) -> tuple[list[str], list[str], bytes]:
    """Wrap up what another process is to do: it must include one's own methods before it can unwrap it."""
    return list(registry.INCLUDED_SOURCES), list(filter(None, sys.path)), pickle.dumps((work, run, store))


def _run_in_worker(sources: list[str], path: list[str], payload: bytes) -> Iterator[RunEvent]:
    sys.path += [folder for folder in path if folder not in sys.path]
    registry.include(sources)
    work, run, store = pickle.loads(payload)
    yield from run_locally(work, [run], store)


class DatasetCache:
    """Loads what runs are trained and judged on, from a folder or the hub, and keeps the last of it for the next run.

    A copy in another process begins with nothing loaded.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = None if root is None else Path(root).absolute()
        self._splits_cache: tuple[Method, Splits] | None = None
        self._digest_cache: dict[Method, DataDigest] = {}
        self._shifted_cache: tuple[tuple[Method, Methods], dict[str, Split]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return DatasetCache, (self.root,)

    def splits(self, dataset: Method) -> Splits:
        """Return a data set. Raises `InputError` if that is not what its function returns."""
        if self._splits_cache is None or self._splits_cache[0] != dataset:
            loaded = dataset(self.root)
            if not isinstance(loaded, Splits):
                raise InputError(
                    f"{dataset.name} must return data.Splits, got {type(loaded).__name__}", code="not_splits"
                )
            self._splits_cache = dataset, loaded
        return self._splits_cache[1]

    def digest(self, dataset: Method) -> DataDigest:
        """Return what a data set is known by: the digests of what networks learn from and are judged on."""
        if dataset not in self._digest_cache:
            self._digest_cache[dataset] = data_digest(self.splits(dataset))
        return self._digest_cache[dataset]

    def shifted_splits(self, dataset: Method, shifts: Methods) -> dict[str, Split]:
        """Return the further test sets of a data set's runs, named shift0, shift1, ..."""
        if self._shifted_cache is None or self._shifted_cache[0] != (dataset, shifts):
            test = self.splits(dataset).test
            shifted_tests = {
                f"shift{i}": _build_shift(test, dataset.name, shift, self.root) for i, shift in enumerate(shifts)
            }
            self._shifted_cache = (dataset, shifts), shifted_tests
        return self._shifted_cache[1]


def _build_shift(test: Split, name: str, shift: Method, root: Path | None) -> Split:
    """Make a further test set; raises `InputError` if it does not fit.

    A corruption changes the images of the data set's own test set, which keep their labels. The test set of any other
    data set is out of distribution: its labels mean nothing here and are all 0.
    """
    inputs = test.inputs
    if is_corruption(shift):
        if not (isinstance(inputs, torch.Tensor) and inputs.dtype == torch.uint8 and inputs.ndim == 4):
            raise InputError(f"{shift} corrupts images of bytes, which {name} has not", code="shift_images")
        return Split(shift(inputs), test.labels)
    shifted_inputs = DatasetCache(root).splits(shift).test.inputs
    if not isinstance(shifted_inputs, torch.Tensor) or shifted_inputs.shape[1:] != inputs.shape[1:]:
        raise InputError(f"{shift} has inputs unlike those of {name}; choose another shift", code="shift_shape")
    return Split(shifted_inputs, torch.zeros(len(shifted_inputs), dtype=torch.long))


def execute(run: Run, store: Store, data: DatasetCache | None = None) -> Iterator[RunEvent]:
    """Train one run, keep its predictions, and tell of every epoch.

    Batches of few numbers are worked on in one thread, which is faster, and much faster beside other work.
    """
    if run.code != run.current_code:
        raise InputError("its code has changed since the study was started; start it again", code="code_changed")
    data = data or DatasetCache()
    store = _store_with_data(run, store, data)
    splits = data.splits(run.divided_dataset)
    num_elements = (
        splits.train.inputs[:1].numel()
        if isinstance(splits.train.inputs, torch.Tensor)
        else MIN_PARALLEL_BATCH_ELEMENTS
    )
    with thread_limit(run.recipe.batch_size * num_elements, threshold=MIN_PARALLEL_BATCH_ELEMENTS):
        shifts = data.shifted_splits(run.divided_dataset, run.shifts)
        try:
            yield from _train_or_reuse(run, store, splits, shifts, data.digest(run.divided_dataset).train_digest)
        except OSError as error:  # of a full disk, whichever file was written
            error.filename = error.filename or str(store.root)
            raise


def _store_with_data(run: Run, store: Store, data: DatasetCache) -> Store:
    """Return a store that knows the data of a run; raises `InputError` if it knew other data."""
    digests = {
        method: data.digest(method).full_digest for method in reversed(run.required_datasets)
    }  # the last is kept for the training
    for method, digest in digests.items():
        if store.data.get(method, digest) != digest:
            raise InputError(f"{method} holds other data here than where the study was started", code="data_changed")
    return store.with_data(digests)


def _train_or_reuse(
    run: Run, store: Store, splits: Splits, shifts: dict[str, Split], train_digest: str
) -> Iterator[RunEvent]:
    sets = {"val": splits.val, "test": splits.test} | shifts
    partial = store.partial(run)
    (partial / "error.txt").unlink(missing_ok=True)
    if (source_run := store.find_reusable_run(run, train_digest)) is not None:
        yield _reuse_network(run, store, splits, sets, source_run, train_digest)
        return
    checkpoint = Checkpoint(partial / "checkpoint.pt")
    try:
        yield from _train_run(run, store, splits, sets, checkpoint, train_digest)
    except DamagedError as error:
        place = store.set_aside(checkpoint.path)
        yield RunEvent("said", run, {"text": f"begins anew: {error}; set aside in {place}"})
        yield from _train_run(run, store, splits, sets, Checkpoint(checkpoint.path), train_digest)


def _train_run(
    run: Run, store: Store, splits: Splits, sets: dict[str, Split], checkpoint: Checkpoint, train_digest: str
) -> Iterator[RunEvent]:
    start_time = time.monotonic()
    torch.manual_seed(run.seed)
    network = build_network(splits, run.network)
    facts = _collect_facts(splits, network)
    try:
        yield from _train_epochs(run, network, splits, checkpoint)
        predictions = _predict_splits(network, splits, sets)
        facts |= {"device": str(next(network.parameters()).device)}
    except FloatingPointError as error:  # kept too: it would diverge again
        predictions, diverged_epoch = dict[str, Predictions](), min(len(checkpoint.rows) + 1, run.recipe.epochs)
        facts |= {"diverged": diverged_epoch, "why": f"diverged at epoch {diverged_epoch}: {error}"}
    if nonfinite := [count for row in checkpoint.rows if (count := row.get("nonfinite_losses"))]:
        facts |= {"nonfinite": {"losses": sum(nonfinite), "epochs": len(nonfinite)}}
    facts |= {"seconds": time.monotonic() - start_time}
    store.put(
        run,
        predictions,
        facts,
        checkpoint.rows,
        train_digest=train_digest,
        network=network.state_dict() if predictions else {},
    )
    yield RunEvent("done", run, facts) if predictions else RunEvent("failed", run, {"error": facts["why"]})


def _reuse_network(
    run: Run, store: Store, splits: Splits, sets: dict[str, Split], source_run: StoredRun, train_digest: str
) -> RunEvent:
    """Predict with a network that was trained already, for a run that judges it on more or on other examples."""
    from calibrant.lab.study.train import move_to_device

    start_time, (folder, record) = time.monotonic(), source_run
    network = build_network(splits, run.network)
    network.load_state_dict(load(read_run_file(folder, record, NETWORK_FILE)))
    predictions = _predict_splits(move_to_device(network, run.recipe), splits, sets)
    rows = store.epoch_rows(folder, record)
    if record["run"]["dataset"] != run.divided_dataset.canonical:  # they were validated elsewhere
        rows = [{key: value for key, value in row.items() if not key.startswith("val_")} for row in rows]
    facts = record["facts"] | _collect_facts(splits, network) | {"versions": record["facts"]["versions"]}
    facts |= {"seconds": time.monotonic() - start_time, "network of": folder.name}
    store.put(run, predictions, facts, rows, train_digest=train_digest)
    return RunEvent("done", run, facts)


def _predict_splits(network: nn.Module, splits: Splits, sets: dict[str, Split]) -> dict[str, Predictions]:
    from calibrant.lab.study.train import predict

    device = next(network.parameters()).device
    return {name: predict(network, split, splits.prepare, device=device) for name, split in sets.items()}


def _collect_facts(splits: Splits, network: nn.Module) -> dict[str, Any]:
    origin = getattr(network, "origin", None)  # of weights that were trained before
    return ({"network": origin} if isinstance(origin, str) else {}) | {
        "classes": list(splits.classes),
        "data": dict(splits.facts),
        "examples": {name: len(getattr(splits, name)) for name in ("train", "val", "test")},
        "parameters": sum(p.numel() for p in network.parameters()),
        "versions": {"calibrant": __version__, "torch": str(torch.__version__)},
    }


def _train_epochs(run: Run, network: nn.Module, splits: Splits, checkpoint: Checkpoint) -> Iterator[RunEvent]:
    from calibrant.lab.study.train import train

    loss = copy.deepcopy(run.loss.bound_function)  # one that changes itself must not reach the next run
    for epoch in train(network, splits, loss, run.recipe, seed=run.seed, checkpoint=checkpoint):
        row = _epoch_row(epoch, splits, run, checkpoint.rows)
        checkpoint.rows.append(row)
        yield RunEvent("epoch", run, row | {"images": len(splits.train)})


def _epoch_row(epoch: "Epoch", splits: Splits, run: Run, history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of an epoch that has ended, and what its run's traces see in it."""
    from calibrant.lab.study.traces import EpochContext

    row = {
        "epoch": epoch.number,
        "train_loss": epoch.train_loss,
        "nonfinite_losses": epoch.nonfinite_losses,
        "learning_rate": epoch.learning_rate,
        "val_error": float(metrics.error(epoch.val)),
        "val_nll": float(metrics.nll(epoch.val)),
        "seconds": epoch.seconds,
    }
    context = EpochContext(epoch, splits, epoch.number == run.recipe.epochs, history)
    for trace in run.traces:
        row |= trace(context)
    return row


def build_network(splits: Splits, network: Method) -> nn.Module:
    """Make a network for a data set.

    Raises `InputError` if it is no network, or does not return logits for these inputs.
    """
    model, k = network(*network_arguments(splits)), len(splits.classes)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{network.name} must be a torch.nn.Module, or return one, got {type(model).__name__}", code="not_a_network"
        )
    sample = splits.val[:2]
    with torch.no_grad():
        logits = model.eval()(splits.prepare(sample.inputs))
    if not isinstance(logits, torch.Tensor) or logits.shape != (len(sample), k):
        returned = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InputError(
            f"{network.name} must return logits {(len(sample), k)} for {len(sample)} examples, got {returned}",
            code="logits_shape",
        )
    return model


def network_arguments(splits: Splits) -> tuple[Any, ...]:
    """Return what a network is made for: the number of classes and, if it is text, the word vectors to start from."""
    return (len(splits.classes),) if splits.vectors is None else (len(splits.classes), splits.vectors)
