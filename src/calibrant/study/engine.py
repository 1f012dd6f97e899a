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

from calibrant import __version__, catalog, metrics
from calibrant._text import one_line
from calibrant._threads import threads_for
from calibrant.catalog import Method
from calibrant.data import Split, Splits
from calibrant.predictions import Predictions
from calibrant.study.checkpoint import Checkpoint
from calibrant.study.config import Run
from calibrant.study.digests import NETWORK, Damaged, DataDigest, content, data_digest
from calibrant.study.methods import Methods, corrupts
from calibrant.study.mirror import MirrorError
from calibrant.study.store import Found, Store
from calibrant.types import InputError

if TYPE_CHECKING:
    from calibrant.study.train import Epoch

SMALL = 100_000  # numbers in a batch from which several threads pay
DEATHS = 3  # of its process, after which a run has failed
OBJECTS = 100_000_000  # bytes of memory for what passes between processes: events, which are small


@dataclass(frozen=True)
class Event:
    """Something happened to a run: an epoch ended, it is done, was found done, or failed.

    An error says why in its first line, and where in the rest. Or there is something to say of it: for whom it waits,
    why it begins anew.
    """

    kind: Literal["epoch", "done", "found", "failed", "said"]
    run: Run
    facts: dict[str, Any]


Work = Callable[[Run], Iterator[Event]]
Engine = Callable[[Work, Iterable[Run], Store], Iterator[Event]]


def local(work: Work, runs: Iterable[Run], store: Store) -> Iterator[Event]:
    """Run one after another in this process; leave what another process works on, and come back to it at the end.

    A run that fails is told of and does not stop the others; a full disk and a mirror out of reach do.
    """
    pending, told = list(runs), dict[Run, str]()
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
            for run in busy:
                if told.get(run) != (who := store.holder(run)):
                    told[run] = who
                    yield Event("said", run, {"text": f"waits for {who}, which works on it"})
            time.sleep(0.2)
        pending = busy


def _guarded(work: Work, run: Run) -> Iterator[Event]:
    try:
        yield from work(run)
    except (MirrorError, OSError):
        raise
    except Exception as error:
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        reason = f"{kind}{one_line(error)}"
        yield Event("failed", run, {"error": f"{reason}\n\n{traceback.format_exc()}"})


@dataclass(frozen=True)
class Ray:
    """Run them on a Ray cluster, over its GPUs and machines; the store must be a folder that all of them share.

    Every run takes one core and `gpus` of a GPU: with 0.25, four networks share one. Without an address a cluster is
    started on this machine. A run whose process or machine dies goes on elsewhere, from its checkpoint.
    """

    address: str | None = None
    gpus: float | None = None  # for each run; None: a whole one where there are any

    def __call__(self, work: Work, runs: Iterable[Run], store: Store) -> Iterator[Event]:
        """Tell what happens to the runs, wherever it happens.

        Raises `InputError` if the cluster is not there, or does not start.
        """
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise InputError("the Ray engine needs ray: pip install 'calibrant[ray]'", code="missing_package") from None
        _reach(self.address)
        own: dict[str, Any] = {} if self.address else {"object_store_memory": OBJECTS, "include_dashboard": False}
        try:
            _begin(ray, self.address or "local", **own)
            yield from self._followed(ray, work, runs, store)
        finally:
            ray.shutdown()  # and with it all that this process started

    def _followed(self, ray: Any, work: Work, runs: Iterable[Run], store: Store) -> Iterator[Event]:
        there = ray.cluster_resources().get("GPU", 0)
        gpus = min(1, there) if self.gpus is None else self.gpus
        if gpus > there:
            raise InputError(
                f"each run is to have {gpus:g} of a GPU, but the Ray cluster has {there:g}", code="ray_gpus"
            )
        start = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_elsewhere).remote
        streams, deaths = dict[Any, Run](), Counter[Run]()
        for run in runs:
            if run in store:  # with a GPU every task is a process of its own
                yield Event("found", run, {})
            else:
                streams[start(*_packed(work, run, store))] = run
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
                    streams[start(*_packed(work, run, store))] = run
                else:
                    yield Event("failed", run, {"error": f"its process died {DEATHS} times: {error}"})


def _begin(ray: Any, address: str, **own: Any) -> None:
    here = Path.cwd()
    try:
        os.chdir(Path(__file__).parents[2])  # workers look for modules where a driver starts
        ray.init(address, logging_level="ERROR", log_to_driver=False, **own)
    except Exception as error:  # of any type: a slow machine's is a plain one
        reason = one_line(error)
        raise InputError(
            f"Ray does not start ({type(error).__name__}: {reason}); try again, or train without", code="ray_start"
        ) from None
    finally:
        os.chdir(here)


def _reach(address: str | None) -> None:
    """Raise `InputError` if nobody listens at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    try:
        if port.isdigit():
            socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise InputError(
            f"no Ray cluster answers at {address}: {error.strerror or error}", code="ray_address"
        ) from None


def _packed(work: Work, run: Run, store: Store) -> tuple[list[str], list[str], bytes]:
    """Wrap up what another process is to do: it must include one's own methods before it can unwrap it."""
    return list(catalog.INCLUDED), list(filter(None, sys.path)), pickle.dumps((work, run, store))


def _elsewhere(sources: list[str], path: list[str], packed: bytes) -> Iterator[Event]:
    sys.path += [folder for folder in path if folder not in sys.path]
    catalog.include(sources)
    work, run, store = pickle.loads(packed)
    yield from local(work, [run], store)


class Data:
    """Loads what runs are trained and judged on, from a folder or the hub, and keeps the last of it for the next run.

    A copy in another process begins with nothing loaded.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = None if root is None else Path(root).absolute()
        self._splits: tuple[Method, Splits] | None = None
        self._digests: dict[Method, DataDigest] = {}
        self._shifted: tuple[tuple[Method, Methods], dict[str, Split]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Data, (self.root,)

    def splits(self, dataset: Method) -> Splits:
        """Return a data set. Raises `InputError` if that is not what its function returns."""
        if self._splits is None or self._splits[0] != dataset:
            found = dataset(self.root)
            if not isinstance(found, Splits):
                raise InputError(
                    f"{dataset.name} must return data.Splits, got {type(found).__name__}", code="not_splits"
                )
            self._splits = dataset, found
        return self._splits[1]

    def digest(self, dataset: Method) -> DataDigest:
        """Return what a data set is known by: the digests of what networks learn from and are judged on."""
        if dataset not in self._digests:
            self._digests[dataset] = data_digest(self.splits(dataset))
        return self._digests[dataset]

    def shifted(self, dataset: Method, shifts: Methods) -> dict[str, Split]:
        """Return the further test sets of a data set's runs, named shift0, shift1, ..."""
        if self._shifted is None or self._shifted[0] != (dataset, shifts):
            test = self.splits(dataset).test
            made = {f"shift{i}": _shift(test, dataset.name, shift, self.root) for i, shift in enumerate(shifts)}
            self._shifted = (dataset, shifts), made
        return self._shifted[1]


def _shift(test: Split, name: str, shift: Method, root: Path | None) -> Split:
    """Make a further test set; raises `InputError` if it does not fit.

    A corruption changes the images of the data set's own test set, which keep their labels. The test set of any other
    data set is out of distribution: its labels mean nothing here and are all 0.
    """
    own = test.inputs
    if corrupts(shift):
        if not (isinstance(own, torch.Tensor) and own.dtype == torch.uint8 and own.ndim == 4):
            raise InputError(f"{shift} corrupts images of bytes, which {name} has not", code="shift_images")
        return Split(shift(own), test.labels)
    other = Data(root).splits(shift).test.inputs
    if not isinstance(other, torch.Tensor) or other.shape[1:] != own.shape[1:]:
        raise InputError(f"{shift} has inputs unlike those of {name}; choose another shift", code="shift_shape")
    return Split(other, torch.zeros(len(other), dtype=torch.long))


def execute(run: Run, store: Store, data: Data | None = None) -> Iterator[Event]:
    """Train one run, keep its predictions, and tell of every epoch.

    Batches of few numbers are worked on in one thread, which is faster, and much faster beside other work.
    """
    if run.code != run.present_code:
        raise InputError("its code has changed since the study was started; start it again", code="code_changed")
    data = data or Data()
    store = _known(run, store, data)
    splits = data.splits(run.examples)
    numbers = splits.train.inputs[:1].numel() if isinstance(splits.train.inputs, torch.Tensor) else SMALL
    with threads_for(run.recipe.batch_size * numbers, enough=SMALL):
        shifts = data.shifted(run.examples, run.shifts)
        try:
            yield from _execute(run, store, splits, shifts, data.digest(run.examples).learned)
        except OSError as error:  # of a full disk, whichever file was written
            error.filename = error.filename or str(store.root)
            raise


def _known(run: Run, store: Store, data: Data) -> Store:
    """Return a store that knows the data of a run; raises `InputError` if it knew other data."""
    found = {method: data.digest(method).whole for method in reversed(run.data)}  # the last is kept for the training
    for method, digest in found.items():
        if store.data.get(method, digest) != digest:
            raise InputError(f"{method} holds other data here than where the study was started", code="data_changed")
    return store.knowing(found)


def _execute(run: Run, store: Store, splits: Splits, shifts: dict[str, Split], learned: str) -> Iterator[Event]:
    sets = {"val": splits.val, "test": splits.test} | shifts
    partial = store.partial(run)
    (partial / "error.txt").unlink(missing_ok=True)
    if (kin := store.kin(run, learned)) is not None:
        yield _judged(run, store, splits, sets, kin, learned)
        return
    checkpoint = Checkpoint(partial / "checkpoint.pt")
    try:
        yield from _trained(run, store, splits, sets, checkpoint, learned)
    except Damaged as error:
        place = store.set_aside(checkpoint.path)
        yield Event("said", run, {"text": f"begins anew: {error}; set aside in {place}"})
        yield from _trained(run, store, splits, sets, Checkpoint(checkpoint.path), learned)


def _trained(
    run: Run, store: Store, splits: Splits, sets: dict[str, Split], checkpoint: Checkpoint, learned: str
) -> Iterator[Event]:
    began = time.monotonic()
    torch.manual_seed(run.seed)
    network = made_for(splits, run.network)
    facts = _facts(splits, network)
    try:
        yield from _epochs(run, network, splits, checkpoint)
        kept = _predicted(network, splits, sets)
        facts |= {"device": str(next(network.parameters()).device)}
    except FloatingPointError as error:  # kept too: it would diverge again
        kept, at = dict[str, Predictions](), min(len(checkpoint.rows) + 1, run.recipe.epochs)
        facts |= {"diverged": at, "why": f"diverged at epoch {at}: {error}"}
    if nonfinite := [count for row in checkpoint.rows if (count := row.get("nonfinite_losses"))]:
        facts |= {"nonfinite": {"losses": sum(nonfinite), "epochs": len(nonfinite)}}
    facts |= {"seconds": time.monotonic() - began}
    store.put(run, kept, facts, checkpoint.rows, learned=learned, network=network.state_dict() if kept else {})
    yield Event("done", run, facts) if kept else Event("failed", run, {"error": facts["why"]})


def _judged(run: Run, store: Store, splits: Splits, sets: dict[str, Split], kin: Found, learned: str) -> Event:
    """Predict with a network that was trained already, for a run that judges it on more or on other examples."""
    from calibrant.study.train import placed

    began, (folder, record) = time.monotonic(), kin
    network = made_for(splits, run.network)
    network.load_state_dict(load(content(folder, record, NETWORK)))
    kept = _predicted(placed(network, run.recipe), splits, sets)
    rows = store.rows(folder, record)
    if record["run"]["dataset"] != run.examples.canonical:  # they were validated elsewhere
        rows = [{key: value for key, value in row.items() if not key.startswith("val_")} for row in rows]
    facts = record["facts"] | _facts(splits, network) | {"versions": record["facts"]["versions"]}
    facts |= {"seconds": time.monotonic() - began, "network of": folder.name}
    store.put(run, kept, facts, rows, learned=learned)
    return Event("done", run, facts)


def _predicted(network: nn.Module, splits: Splits, sets: dict[str, Split]) -> dict[str, Predictions]:
    from calibrant.study.train import predict

    device = next(network.parameters()).device
    return {name: predict(network, split, splits.prepare, device=device) for name, split in sets.items()}


def _facts(splits: Splits, network: nn.Module) -> dict[str, Any]:
    origin = getattr(network, "origin", None)  # of weights that were trained before
    return ({"network": origin} if isinstance(origin, str) else {}) | {
        "classes": list(splits.classes),
        "data": dict(splits.facts),
        "examples": {name: len(getattr(splits, name)) for name in ("train", "val", "test")},
        "parameters": sum(p.numel() for p in network.parameters()),
        "versions": {"calibrant": __version__, "torch": str(torch.__version__)},
    }


def _epochs(run: Run, network: nn.Module, splits: Splits, checkpoint: Checkpoint) -> Iterator[Event]:
    from calibrant.study.train import train

    loss = copy.deepcopy(run.loss.bound)  # one that changes itself must not reach the next run
    for epoch in train(network, splits, loss, run.recipe, seed=run.seed, checkpoint=checkpoint):
        row = _row(epoch, splits, run, checkpoint.rows)
        checkpoint.rows.append(row)
        yield Event("epoch", run, row | {"images": len(splits.train)})


def _row(epoch: "Epoch", splits: Splits, run: Run, past: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of an epoch that has ended, and what its run's traces see in it."""
    from calibrant.study.traces import Watched

    row = {
        "epoch": epoch.number,
        "train_loss": epoch.train_loss,
        "nonfinite_losses": epoch.nonfinite_losses,
        "learning_rate": epoch.learning_rate,
        "val_error": float(metrics.error(epoch.val)),
        "val_nll": float(metrics.nll(epoch.val)),
        "seconds": epoch.seconds,
    }
    watched = Watched(epoch, splits, epoch.number == run.recipe.epochs, past)
    for trace in run.traces:
        row |= trace(watched)
    return row


def made_for(splits: Splits, network: Method) -> nn.Module:
    """Make a network for a data set.

    Raises `InputError` if it is no network, or does not return logits for these inputs.
    """
    made, k = network(*sizes(splits)), len(splits.classes)
    if not isinstance(made, nn.Module):
        raise InputError(
            f"{network.name} must be a torch.nn.Module, or return one, got {type(made).__name__}", code="not_a_network"
        )
    some = splits.val[:2]
    with torch.no_grad():
        logits = made.eval()(splits.prepare(some.inputs))
    if not isinstance(logits, torch.Tensor) or logits.shape != (len(some), k):
        got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InputError(
            f"{network.name} must return logits {(len(some), k)} for {len(some)} examples, got {got}",
            code="logits_shape",
        )
    return made


def sizes(splits: Splits) -> tuple[Any, ...]:
    """Return what a network is made for: the number of classes and, if it is text, the word vectors to start from."""
    return (len(splits.classes),) if splits.vectors is None else (len(splits.classes), splits.vectors)
