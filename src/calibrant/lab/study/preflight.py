"""Check data, networks, versions and the user's own methods before any training starts."""

import copy
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from calibrant import __version__, calibrators, losses
from calibrant.lab.study.config import Study
from calibrant.lab.study.datasets import DatasetCache
from calibrant.lab.study.engine import build_network
from calibrant.lab.study.grids import Run, error_text
from calibrant.lab.study.store import Store
from calibrant.lab.study.stored_files import minor_version
from calibrant.lab.study.train import per_example_losses
from calibrant.predictions import Predictions
from calibrant.registry import Method
from calibrant.types import InputError

EXAMPLES_PER_CLASS = 20


@dataclass(frozen=True)
class Preflight:
    """The runs that can be trained or are finished, why the others cannot, and the digests of the data at hand."""

    runs: Sequence[Run]
    runs_without_data: Mapping[Run, str]
    digests: Mapping[Method, str]


def check_data(runs: Sequence[Run], store: Store, data: DatasetCache) -> Preflight:
    """Load every data set that unfinished runs need, and report those that are missing.

    If a data folder is set, the data sets of finished runs are loaded, too, as they may have changed.

    Raises:
        InputError: If a network does not accept its data.
    """
    digests, reasons = dict[Method, str](), dict[Method, str]()
    for method, networks in _datasets_to_check(runs, store, data).items():
        try:
            digests[method] = data.digest(method).full_digest
        except Exception as error:  # a user's data set may raise anything
            reasons[method] = error_text(error)
            continue
        for network in networks:
            build_network(data.splits(method), network)
    store = store.with_data(digests)
    runs_without_data = {
        run: reasons[missing[0]]
        for run in runs
        if run not in store and (missing := [method for method in run.required_datasets if method in reasons])
    }
    return Preflight([run for run in runs if run not in runs_without_data], runs_without_data, digests)


def _datasets_to_check(runs: Iterable[Run], store: Store, data: DatasetCache) -> dict[Method, list[Method]]:
    """Return the data sets to load, and the networks to train on each."""
    has_data_folder = data.root is not None or bool(os.environ.get("CALIBRANT_DATA"))
    networks_by_dataset: dict[Method, list[Method]] = {}
    for run in runs:
        missing = run not in store
        for method in run.required_datasets:
            if missing or has_data_folder or not method.target.__module__.startswith("calibrant."):
                networks_by_dataset.setdefault(method, [])
        if missing and run.network not in networks_by_dataset[run.divided_dataset]:
            networks_by_dataset[run.divided_dataset].append(run.network)
    return networks_by_dataset


def check_versions(runs: Iterable[Run], store: Store) -> None:
    """Raise `InputError` if runs are missing beside runs that another minor version of calibrant trained."""
    runs = list(runs)
    finished_runs = [run for run in runs if run in store]
    versions = [training_version(run, store) for run in finished_runs]
    other_versions = [v for v in versions if v and minor_version(v) != minor_version(__version__)]
    if other_versions and len(finished_runs) < len(runs):
        raise InputError(
            f"{len(other_versions)} of the finished runs were trained by calibrant "
            f"{', '.join(sorted(set(other_versions)))}, this is {__version__}. Train the rest with --mix-versions, "
            "or all runs in another folder with --out.",
            code="mixed_versions",
        )


def training_version(run: Run, store: Store) -> str:
    """Return the version of calibrant that trained a finished run, or "" if it is unknown."""
    return store.record(run)["facts"].get("versions", {}).get("calibrant", "")


# The user's own methods


def user_methods(study: Study, runs: Iterable[Run]) -> set[Method]:
    """Return the losses, calibrators and metrics that are defined outside this package."""
    methods = {*(run.loss for run in runs), *study.calibrators, *study.metrics}
    return {method for method in methods if not method.target.__module__.startswith("calibrant.")}


def check_user_methods(study: Study, runs: Sequence[Run], k: int) -> None:
    """Call the user's losses, calibrators and metrics on random predictions of `k` classes.

    Raises:
        InputError: If one of them fails.
    """
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(EXAMPLES_PER_CLASS * k, k, generator=g)
    p = Predictions(logits, logits.softmax(-1).multinomial(1, generator=g).squeeze(1))
    checked = user_methods(study, runs)
    for loss, epochs in {run.loss: run.recipe.epochs for run in runs if run.loss in checked}.items():
        with _explain_failure(loss, k):
            epoch_loss = losses.for_epochs(copy.deepcopy(loss.bound_function), epochs)
            counted_loss = losses.for_counts(epoch_loss, p.labels.bincount(minlength=k))
            per_example_losses(counted_loss, p.logits.clone().requires_grad_(), p.labels).sum().backward()
    p = p.double()
    for calibrator in filter(checked.__contains__, study.calibrators):
        with _explain_failure(calibrator, k):
            p.apply(calibrators.fit(calibrator, p))
    for metric in filter(checked.__contains__, study.metrics):
        with _explain_failure(metric, k):
            float(metric(p))


@contextmanager
def _explain_failure(method: Method, k: int) -> Generator[None]:
    try:
        yield
    except Exception as error:
        code = error.code if isinstance(error, InputError) else "method_failed"
        raise InputError(
            f"{method} fails on random predictions of {k} classes: {error_text(error)}", code=code
        ) from error
