"""Train the runs of a study, in this process or on a Ray cluster, and report events as they happen."""

import copy
import os
import pickle
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import torch
from safetensors.torch import load
from torch import nn

from calibrant import metrics
from calibrant._core import registry
from calibrant._core.kernels.threads import thread_limit
from calibrant._core.lazy import import_optional
from calibrant._core.registry import Method
from calibrant._core.text import describe_error, to_one_line
from calibrant._core.types import InputError
from calibrant._core.version import __version__
from calibrant.lab.data import Split, Splits
from calibrant.lab.study.datasets import DatasetCache
from calibrant.lab.study.grids import Run, error_text
from calibrant.lab.study.store import HISTORY_FILE, Store, parse_history
from calibrant.lab.study.stored_files import (
    NETWORK_FILE,
    Checkpoint,
    DamagedError,
    move_to_damaged,
    name_in_errors,
    read_run_file,
    read_run_files,
    try_lock,
)
from calibrant.lab.study.traces import EpochContext
from calibrant.lab.study.train import Epoch, move_to_device, predict, train
from calibrant.predictions import Predictions

MIN_PARALLEL_BATCH_ELEMENTS = 100_000  # smaller batches train faster in one thread
MAX_PROCESS_DEATHS = 3  # a run fails after its process died this often
RAY_OBJECT_STORE_BYTES = 100_000_000  # only small events pass between processes
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class RunEvent:
    """Something that happened to a run, by kind, and its `content`.

    - "epoch": an epoch ended; its row of the history, and the number of "images" that it trained on.
    - "done": the "facts" in the record of the finished run.
    - "found": the store has the run already; empty.
    - "failed": the "error", with the reason in its first line.
    - "note": the "text".
    - "files": the "name" and "files" of a finished run, from a worker that does not share the store's folder.
    """

    kind: Literal["epoch", "done", "found", "failed", "note", "files"]
    run: Run
    content: dict[str, Any]


Work = Callable[[Run], Iterator[RunEvent]]
Engine = Callable[[Work, Iterable[Run], Store], Iterator[RunEvent]]


def run_locally(work: Work, runs: Iterable[Run], store: Store) -> Iterator[RunEvent]:
    """Train runs one after another, and wait at the end for runs that other processes work on.

    Failed runs are reported. A full disk aborts.
    """
    pending = list(runs)
    announced_holders: dict[Run, str] = {}
    while pending:
        busy: list[Run] = []  # claimed by other processes
        for run in pending:
            with store.claim(run) as is_claimed:
                if not is_claimed:
                    busy.append(run)
                elif run in store:
                    yield RunEvent("found", run, {})
                else:
                    yield from _report_failure(work, run)
        if len(busy) == len(pending):  # no run was free
            for run in busy:
                if announced_holders.get(run) != (holder := store.holder(run)):
                    announced_holders[run] = holder
                    yield RunEvent("note", run, {"text": f"waits for {holder}, which works on it"})
            time.sleep(POLL_SECONDS)
        pending = busy


def _report_failure(work: Work, run: Run) -> Iterator[RunEvent]:
    """Work on a run and yield its events. An error becomes an event.

    Errors of the disk would also stop the other runs, so they are raised.
    """
    try:
        yield from work(run)
    except OSError:
        raise
    except Exception as error:
        yield RunEvent("failed", run, {"error": f"{error_text(error)}\n\n{traceback.format_exc()}"})


@dataclass(frozen=True)
class Ray:
    """Train on the GPUs and machines of a Ray cluster.

    Every run takes one core and `gpus` of a GPU; with 0.25, four networks share one. Without an address, a cluster is
    started on this machine. A run whose process or machine dies continues elsewhere from its checkpoint, if the
    machines share the store's folder. Otherwise it starts again, and workers send the files of finished runs.
    """

    address: str | None = None
    gpus: float | None = None  # per run; None: one GPU if the cluster has any

    def __call__(self, work: Work, runs: Iterable[Run], store: Store) -> Iterator[RunEvent]:
        """Train runs and yield their events. Raises `InputError` if the cluster cannot be reached or started."""
        ray = import_optional("ray", "ray", "The Ray engine")
        _check_reachable(self.address)
        try:
            _start_ray(ray, self.address)
            with _marker(store.root) as marker:
                start = partial(_pickle_work, work, store=store, marker=marker)
                for event in self._follow_tasks(ray, start, runs, store):
                    if event.kind == "files":
                        store.add(**event.content)
                    else:
                        yield event
        finally:
            ray.shutdown()  # also stops a cluster that was started here

    def _follow_tasks(
        self, ray: Any, task_arguments: Callable[[Run], tuple[Any, ...]], runs: Iterable[Run], store: Store
    ) -> Iterator[RunEvent]:
        """Start a task per run on the cluster, and yield their events as they arrive.

        A run whose process dies is started again, and fails when that has happened `MAX_PROCESS_DEATHS` times.
        """
        available_gpus = ray.cluster_resources().get("GPU", 0)
        gpus = min(1, available_gpus) if self.gpus is None else self.gpus
        if gpus > available_gpus:
            raise InputError(
                f"Expected {gpus:g} of a GPU per run, but the Ray cluster has {available_gpus:g}.", code="ray_gpus"
            )
        # without Ray's retries, which would not count the deaths of a run
        start_task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_run_in_worker).remote
        streams: dict[Any, Run] = {}  # generators of references to events, with their runs
        deaths = Counter[Run]()
        for run in runs:
            if run in store:  # saves a process, which every task with a GPU needs
                yield RunEvent("found", run, {})
            else:
                streams[start_task(*task_arguments(run))] = run
        while streams:
            (stream,), _ = ray.wait(list(streams), num_returns=1)  # the first that has an event or has ended
            try:
                yield ray.get(next(stream))  # `next` returns a reference to the event
            except StopIteration:
                del streams[stream]
            except ray.exceptions.RayTaskError as error:  # an error that aborts `run_locally`
                raise error.cause from None
            except ray.exceptions.RayError as error:
                run = streams.pop(stream)
                deaths[run] += 1
                if deaths[run] < MAX_PROCESS_DEATHS:
                    streams[start_task(*task_arguments(run))] = run
                else:
                    yield RunEvent("failed", run, {"error": f"its process died {MAX_PROCESS_DEATHS} times: {error}"})


def _start_ray(ray: Any, address: str | None) -> None:
    """Connect to a cluster, or start one if there is no address. Raises `InputError` if Ray does not start."""
    new_cluster_options = {"object_store_memory": RAY_OBJECT_STORE_BYTES, "include_dashboard": False}
    options = new_cluster_options if address is None else {}
    working_folder = Path.cwd()
    try:
        os.chdir(Path(__file__).parents[3])  # workers import modules from the folder where the driver starts
        ray.init(address or "local", logging_level="ERROR", log_to_driver=False, **options)
    except Exception as error:  # Ray raises a plain Exception on slow machines
        raise InputError(
            f"Ray does not start ({describe_error(error)}). Try again, or train without Ray.", code="ray_start"
        ) from None
    finally:
        os.chdir(working_folder)


def _check_reachable(address: str | None) -> None:
    """Raise `InputError` if HOST:PORT does not answer. Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    try:
        if port.isdigit():
            socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise InputError(
            f"No Ray cluster answers at {address}: {error.strerror or error}.", code="ray_address"
        ) from None


@contextmanager
def _marker(root: Path) -> Generator[str]:
    """Yield a file that exists during the block, by which workers see whether they share the folder of a store.

    It is a lock among the drafts, which is deleted with stale drafts if its process was killed.
    """
    path = root / "drafts" / f"driver-{uuid4().hex[:12]}.lock"
    try:
        with try_lock(path):
            yield str(path)
    finally:
        path.unlink(missing_ok=True)


def _pickle_work(work: Work, run: Run, store: Store, marker: str) -> tuple[list[str], list[str], bytes, str]:
    """Return the arguments of `_run_in_worker`: sources of methods, folders of modules, the pickled work, the marker.

    The work is pickled here, as its methods must be imported in the worker before it is read.
    """
    return list(registry.INCLUDED_SOURCES), list(filter(None, sys.path)), pickle.dumps((work, run, store)), marker


def _run_in_worker(sources: list[str], path: list[str], pickled: bytes, marker: str) -> Iterator[RunEvent]:
    """Yield the events of pickled work in a process of the cluster.

    It imports the files and packages in `sources` (given by --with), and searches modules in the folders of `path`, as
    the process does that started it. Both must happen before unpickling, which needs their methods. On a machine
    without the `marker`, the run is stored in a temporary folder, and its files are sent before the last event.
    """
    sys.path += [folder for folder in path if folder not in sys.path]
    registry.include(sources)
    work, run, store = pickle.loads(pickled)
    if Path(marker).is_file():
        yield from run_locally(work, [run], store)
        return
    with tempfile.TemporaryDirectory(prefix="calibrant-") as folder:
        store.move_to(Path(folder))  # also that of `work`, which is the same object
        for event in run_locally(work, [run], store):
            if event.kind in ("done", "failed") and run in store:  # a diverged run has failed, and is stored
                finished = store.folder(run)
                yield RunEvent("files", run, {"name": finished.name, "files": read_run_files(finished)})
            yield event


# Training one run


def execute(run: Run, store: Store, data: DatasetCache | None = None) -> Generator[RunEvent]:
    """Train one run, store its predictions, and yield an event after every epoch.

    A training that is closed after an epoch continues from there in the next call.
    Small batches train in one thread, which is faster, and much faster on a busy machine.

    Raises:
        InputError: If the code of methods or the data differ from the start of the study.
    """
    if run.code != run.current_code:
        raise InputError(
            "Expected the code of methods as it was when the study started, got changed code. Try starting it again.",
            code="code_changed",
        )
    data = data or DatasetCache()
    store = _store_with_data(run, store, data)
    splits = data.splits(run.divided_dataset)
    inputs = splits.train.inputs
    # examples of unknown size, such as trees, count as large, and train in all threads
    example_elements = inputs[:1].numel() if isinstance(inputs, torch.Tensor) else MIN_PARALLEL_BATCH_ELEMENTS
    with thread_limit(run.recipe.batch_size * example_elements, threshold=MIN_PARALLEL_BATCH_ELEMENTS):
        shifts = data.shifted_splits(run.divided_dataset, run.shifts)
        evaluated_splits = {"val": splits.val, "test": splits.test} | shifts
        train_digest = data.digest(run.divided_dataset).train_digest
        task = _Task(run, store, splits, evaluated_splits=evaluated_splits, train_digest=train_digest)
        with name_in_errors(store.root):
            yield from task.execute()


def _store_with_data(run: Run, store: Store, data: DatasetCache) -> Store:
    """Return a store that knows the digests of a run's data.

    Raises:
        InputError: If the store, as passed by the process that started the study, has other digests.
    """
    datasets = reversed(run.required_datasets)  # the training data come last and stay in the cache
    digests = {dataset: data.digest(dataset).full_digest for dataset in datasets}
    for dataset, digest in digests.items():
        if store.data.get(dataset, digest) != digest:
            raise InputError(
                f"{dataset} holds other data here than in the process that started the study.", code="data_changed"
            )
    return store.with_data(digests)


@dataclass(frozen=True)
class _Task:
    """A run with its data, and the store of its results."""

    run: Run
    store: Store
    splits: Splits
    evaluated_splits: dict[str, Split]
    train_digest: str

    def execute(self) -> Iterator[RunEvent]:
        """Train a run, or reuse the network of a finished run with the same training, and store the predictions.

        A training continues from its checkpoint. It starts again if that is damaged.
        """
        partial_folder = self.store.partial(self.run)
        (partial_folder / "error.txt").unlink(missing_ok=True)  # of an earlier attempt
        if (reusable_run := self.store.find_reusable_run(self.run, self.train_digest)) is not None:
            folder, record = reusable_run
            yield self._reuse_network(folder, record)
            return
        checkpoint_path = partial_folder / "checkpoint.pt"
        try:
            yield from self._train(Checkpoint(checkpoint_path))
        except DamagedError as error:
            new_path = move_to_damaged(self.store.root, checkpoint_path)
            yield RunEvent("note", self.run, {"text": f"starts again: {error}; set aside in {new_path}"})
            yield from self._train(Checkpoint(checkpoint_path))

    def _train(self, checkpoint: Checkpoint) -> Iterator[RunEvent]:
        """Train a network, from the state of the checkpoint if it has one, predict the evaluated splits, and store all.

        A training that diverges is stored without predictions, and reported as failed.
        """
        run, start_time = self.run, time.monotonic()
        torch.manual_seed(run.seed)  # of the initial weights
        network = build_network(self.splits, run.network)
        facts = self._initial_facts(network)  # for the record of the run
        predictions: dict[str, Predictions] = {}
        loss = copy.deepcopy(run.loss.bound_function)  # a stateful loss must not reach the next run
        num_new_epochs = 0  # trained now; the rows of epochs before an interruption come from the checkpoint
        try:
            with closing(train(network, self.splits, loss, run.recipe, seed=run.seed, checkpoint=checkpoint)) as epochs:
                for epoch in epochs:
                    num_new_epochs += 1
                    row = _epoch_row(epoch, self.splits, run, checkpoint.rows)
                    checkpoint.rows.append(row)
                    yield RunEvent("epoch", run, row | {"images": len(self.splits.train)})
            predictions = self._predict(network)
            facts["device"] = str(next(network.parameters()).device)
        except FloatingPointError as error:  # stored, too, as the training would diverge again
            # the epoch after the last one with a row, or the last epoch if only the final predictions failed
            diverged_epoch = min(len(checkpoint.rows) + 1, run.recipe.epochs)
            facts |= {"diverged": diverged_epoch, "why": f"diverged at epoch {diverged_epoch}: {error}"}
        if nonfinite_counts := [row["nonfinite_losses"] for row in checkpoint.rows if row.get("nonfinite_losses")]:
            facts["nonfinite"] = {"losses": sum(nonfinite_counts), "epochs": len(nonfinite_counts)}
        earlier_rows = checkpoint.rows[: len(checkpoint.rows) - num_new_epochs]  # before an interruption
        facts["seconds"] = time.monotonic() - start_time + sum(row["seconds"] for row in earlier_rows)
        weights = network.state_dict() if predictions else {}
        self.store.save(run, predictions, facts, checkpoint.rows, train_digest=self.train_digest, network=weights)
        yield RunEvent("done", run, facts) if predictions else RunEvent("failed", run, {"error": facts["why"]})

    def _reuse_network(self, folder: Path, record: dict[str, Any]) -> RunEvent:
        """Predict the evaluated splits with the network of a finished run, and store the predictions.

        `folder` and `record` are of the finished run, whose history and facts of the training are taken over.
        """
        run, start_time = self.run, time.monotonic()
        network = build_network(self.splits, run.network)
        network.load_state_dict(load(read_run_file(folder, record, NETWORK_FILE)))
        predictions = self._predict(move_to_device(network, run.recipe))
        rows = parse_history(read_run_file(folder, record, HISTORY_FILE)).to_dicts()
        if record["run"]["dataset"] != run.divided_dataset.canonical:  # its validation examples may differ
            rows = [{key: value for key, value in row.items() if not key.startswith("val_")} for row in rows]
        # later entries count: this run's data, but the versions that trained the network
        facts = record["facts"] | self._initial_facts(network) | {"versions": record["facts"]["versions"]}
        facts |= {"seconds": time.monotonic() - start_time, "network of": folder.name}
        self.store.save(run, predictions, facts, rows, train_digest=self.train_digest)
        return RunEvent("done", run, facts)

    def _predict(self, network: nn.Module) -> dict[str, Predictions]:
        """Return the predictions of every evaluated split."""
        device, prepare = next(network.parameters()).device, self.splits.prepare
        return {name: predict(network, split, prepare, device=device) for name, split in self.evaluated_splits.items()}

    def _initial_facts(self, network: nn.Module) -> dict[str, Any]:
        """Return the facts of the run's record that are known before the training."""
        origin = getattr(network, "origin", None)  # source of pretrained weights, such as BERT's
        return ({"network": origin} if isinstance(origin, str) else {}) | {
            "classes": list(self.splits.classes),
            "data": dict(self.splits.facts),
            "examples": {name: len(getattr(self.splits, name)) for name in ("train", "val", "test")},
            "parameters": sum(p.numel() for p in network.parameters()),
            "versions": {"calibrant": __version__, "torch": str(torch.__version__)},
        }


def _epoch_row(epoch: Epoch, splits: Splits, run: Run, history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of an epoch in the history, with the columns of the run's traces.

    `history` holds the rows of the earlier epochs, which some traces need.
    """
    row = {
        "epoch": epoch.number,
        "train_loss": epoch.train_loss,
        "nonfinite_losses": epoch.nonfinite_losses,
        "learning_rate": epoch.learning_rate,
        "val_error": float(metrics.error(epoch.val)),
        "val_nll": float(metrics.nll(epoch.val)),
        "seconds": epoch.seconds,
    }
    context = EpochContext(epoch, splits, is_last=epoch.number == run.recipe.epochs, history=history)
    for trace in run.traces:
        row |= trace(context)
    return row


def build_network(splits: Splits, network: Method) -> nn.Module:
    """Build a network for a data set.

    Raises:
        InputError: If the result is not a module, or does not return logits for the inputs of the data set.
    """
    k = len(splits.classes)
    model = network(k) if splits.word_vectors is None else network(k, splits.word_vectors)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"Expected {network.name} to be or return a torch.nn.Module, got {type(model).__name__}.",
            code="not_a_network",
        )
    sample = splits.val[:2]  # two examples, as a wrong axis of length 1 could pass for one example
    inputs = splits.prepare(sample.inputs)
    try:
        with torch.no_grad():
            logits = model.eval()(inputs)
    except Exception as error:  # layers raise exceptions of any type
        shape = getattr(inputs, "shape", None)
        raise InputError(
            f"Expected {network.text} to take inputs{f' {tuple(shape)}' if shape else ''}, got an error "
            f"({to_one_line(error)}). Try the options of the network, such as channels or features.",
            code="network_input",
        ) from None
    if not isinstance(logits, torch.Tensor) or logits.shape != (len(sample), k):
        result = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InputError(
            f"Expected {network.name} to return logits {(len(sample), k)} for {len(sample)} examples, got {result}.",
            code="logits_shape",
        )
    return model
