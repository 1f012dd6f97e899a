"""Engines run the networks of a study, here or elsewhere, and tell what happens as it happens."""

import json
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch

from calibrant import __version__, catalog, data, losses, metrics, networks
from calibrant._solve import few_threads
from calibrant._types import InputError
from calibrant.data import Split, Splits
from calibrant.study import traces
from calibrant.study.config import Run, corrupts, home
from calibrant.study.store import Store

SMALL = 100_000  # numbers in a batch from which several threads pay
DEATHS = 3  # of its process, after which a run has failed
OBJECTS = 100_000_000  # bytes of memory for what passes between processes: events, which are small


@dataclass(frozen=True)
class Event:
    """Something happened to a run: an epoch ended, it is done, was found done, or failed with an error."""

    kind: Literal["epoch", "done", "found", "failed"]
    run: Run
    facts: dict[str, Any]


Work = Callable[[Run], Iterator[Event]]
Engine = Callable[[Work, Iterable[Run], Store], Iterator[Event]]


def local(work: Work, runs: Iterable[Run], store: Store) -> Iterator[Event]:
    """Run one after another in this process; leave what another process works on, and come back to it at the end.

    A run that fails is told of and does not stop the others; bad input and a full disk do.
    """
    pending = list(runs)
    while pending:
        busy: list[Run] = []
        for run in pending:
            with store.claim(run) as ours:
                if not ours:
                    busy.append(run)
                elif run in store:
                    yield Event("found", run, {})
                else:
                    yield from _guarded(work, run)
        if len(busy) == len(pending):
            time.sleep(0.2)
        pending = busy


def _guarded(work: Work, run: Run) -> Iterator[Event]:
    try:
        yield from work(run)
    except (InputError, OSError):
        raise
    except Exception:
        yield Event("failed", run, {"error": traceback.format_exc()})


@dataclass(frozen=True)
class Ray:
    """Run them on a Ray cluster, over its GPUs and machines; the store must be a folder that all of them share.

    Every run takes one core and `gpus` of a GPU: with 0.25, four networks share one. Without an address a cluster is
    started on this machine. A run whose process or machine dies goes on elsewhere, from its checkpoint.
    """

    address: str | None = None
    gpus: float | None = None  # for each run; None: a whole one where there are any

    def __call__(self, work: Work, runs: Iterable[Run], store: Store) -> Iterator[Event]:
        """Tell what happens to the runs, wherever it happens. Raises `InputError` if the cluster is not there."""
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise InputError("the Ray engine needs ray: pip install 'calibrant[ray]'") from None
        _reach(self.address)
        own: dict[str, Any] = {} if self.address else {"object_store_memory": OBJECTS, "include_dashboard": False}
        ray.init(self.address or "local", logging_level="ERROR", log_to_driver=False, **own)
        try:
            yield from self._followed(ray, work, runs, store)
        finally:
            ray.shutdown()  # and with it all that this process started

    def _followed(self, ray: Any, work: Work, runs: Iterable[Run], store: Store) -> Iterator[Event]:
        there = ray.cluster_resources().get("GPU", 0)
        gpus = min(1, there) if self.gpus is None else self.gpus
        if gpus > there:
            raise InputError(f"each run is to have {gpus:g} of a GPU, but the Ray cluster has {there:g}")
        start = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_elsewhere).remote
        streams, deaths = dict[Any, Run](), Counter[Run]()
        for run in runs:
            if run in store:  # with a GPU every task is a process of its own
                yield Event("found", run, {})
            else:
                streams[start(work, run, store)] = run
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
                if deaths[run] < DEATHS:
                    streams[start(work, run, store)] = run
                else:
                    yield Event("failed", run, {"error": f"its process died {DEATHS} times: {error}"})


def _reach(address: str | None) -> None:
    """Raise `InputError` if nobody listens at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    try:
        if port.isdigit():
            socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise InputError(f"no Ray cluster answers at {address}: {error.strerror or error}") from None


def _elsewhere(work: Work, run: Run, store: Store) -> Iterator[Event]:
    yield from local(work, [run], store)


def execute(run: Run, store: Store, root: Path | None = None) -> Iterator[Event]:
    """Train one run, keep its predictions, and tell of every epoch. `root` is the folder of local data sets.

    Batches of few numbers are worked on in one thread, which is faster, and much faster beside other work.
    """
    splits = load(run.dataset, root)
    numbers = splits.train.inputs[:1].numel() if isinstance(splits.train.inputs, torch.Tensor) else SMALL
    with few_threads(run.recipe.batch_size * numbers, enough=SMALL):
        yield from _execute(run, store, splits, root)


def _execute(run: Run, store: Store, splits: Splits, root: Path | None) -> Iterator[Event]:
    from calibrant.study.train import predict, train

    sets = {"val": splits.val, "test": splits.test} | shifted(run.dataset, run.shifts, root)
    began = time.monotonic()
    torch.manual_seed(run.seed)
    network = catalog.resolve(run.network, networks)(*sizes(splits))
    loss = catalog.resolve(run.loss, losses)
    watches = [catalog.resolve(text, traces) for text in run.traces]
    partial = store.partial(run)
    (partial / "error.txt").unlink(missing_ok=True)
    log = partial / "history.jsonl"
    history = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    for epoch in train(network, splits, loss, run.recipe, seed=run.seed, checkpoint=partial / "checkpoint.pt"):
        row = {
            "epoch": epoch.number,
            "train_loss": epoch.train_loss,
            "learning_rate": epoch.learning_rate,
            "val_error": float(metrics.error(*epoch.val)),
            "val_nll": float(metrics.nll(*epoch.val)),
            "seconds": epoch.seconds,
        }
        history = [past for past in history if past["epoch"] < epoch.number]
        watched = traces.Watched(epoch, splits, epoch.number == run.recipe.epochs, history)
        for watch in watches:
            row |= watch(watched)
        history.append(row)
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
        yield Event("epoch", run, row | {"images": len(splits.train)})
    device = next(network.parameters()).device
    kept = {name: predict(network, split, splits.prepare, device=device) for name, split in sets.items()}
    facts = {
        "classes": list(splits.classes),
        "data": dict(splits.facts),
        "parameters": sum(p.numel() for p in network.parameters()),
        "seconds": time.monotonic() - began,
        "device": str(device),
        "versions": {"calibrant": __version__, "torch": str(torch.__version__)},
    }
    store.put(run, kept, facts, history)
    yield Event("done", run, facts)


@lru_cache(maxsize=1)
def shifted(dataset: str, shifts: tuple[str, ...], root: Path | None) -> dict[str, Split]:
    """Return the further test sets of a data set's runs, named shift0, shift1, ...; made once for all of its runs.

    A corruption changes the images of the data set's own test set, which keep their labels. The test set of any other
    data set is out of distribution: its labels mean nothing here and are all 0. Raises `InputError` if it does not fit.
    """
    test, name = load(dataset, root).test, dataset.partition("(")[0]
    own = test.inputs
    made: dict[str, Split] = {}
    for i, text in enumerate(shifts):
        found = catalog.resolve(text, home("shifts", text))
        if corrupts(text):
            if not (isinstance(own, torch.Tensor) and own.dtype == torch.uint8 and own.ndim == 4):
                raise InputError(f"{text} corrupts images of bytes, which {name} has not")
            made[f"shift{i}"] = Split(found(own), test.labels)
            continue
        other = found(root).test.inputs
        if not isinstance(other, torch.Tensor) or other.shape[1:] != own.shape[1:]:
            raise InputError(f"{text} has inputs unlike those of {name}; choose another shift")
        made[f"shift{i}"] = Split(other, torch.zeros(len(other), dtype=torch.long))
    return made


def sizes(splits: Splits) -> tuple[Any, ...]:
    """What a network is made for: the number of classes and, for text, the word vectors it starts from."""
    return (len(splits.classes),) if splits.vectors is None else (len(splits.classes), splits.vectors)


@lru_cache(maxsize=1)
def load(dataset: str, root: Path | None) -> Splits:
    """Load a data set by its text; the last one stays in memory for the next run."""
    return catalog.resolve(dataset, data)(root)
