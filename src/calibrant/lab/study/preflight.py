"""Before anything is trained: whose data are at hand, whether networks take them, and what was trained by whom."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from calibrant import __version__
from calibrant._text import to_one_line
from calibrant.lab.study.checkpoint import minor_version
from calibrant.lab.study.config import Run
from calibrant.lab.study.engine import DatasetCache, build_network
from calibrant.lab.study.store import Store
from calibrant.registry import Method
from calibrant.types import InputError


@dataclass(frozen=True)
class Preflight:
    """Which runs can be trained or are finished, why the others cannot, and the digests of the data at hand."""

    runs: Sequence[Run]
    runs_without_data: Mapping[Run, str]
    digests: Mapping[Method, str]


def check_data(runs: Sequence[Run], store: Store, data: DatasetCache) -> Preflight:
    """Load every data set that is to be trained on, and say which are not at hand.

    Those of finished runs are looked at too, where a folder of data is named: it may hold other data by now. Raises
    `InputError` if a network does not take its data.
    """
    digests, reasons = dict[Method, str](), dict[Method, str]()
    for method, networks in _datasets_to_check(runs, store, data).items():
        try:
            digests[method] = data.digest(method).full_digest
        except Exception as error:  # of one's own data set, perhaps
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            reasons[method] = kind + to_one_line(error)
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
    """Return the data sets to look at, and the networks to be trained on each."""
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
    """Raise `InputError` if more is to be trained beside what another version of calibrant trained."""
    runs = list(runs)
    finished_runs = [run for run in runs if run in store]
    other_versions = [
        version
        for run in finished_runs
        if (version := training_version(run, store)) and minor_version(version) != minor_version(__version__)
    ]
    if other_versions and len(finished_runs) < len(runs):
        raise InputError(
            f"{len(other_versions)} of the finished runs were trained by calibrant "
            f"{', '.join(sorted(set(other_versions)))}, this is "
            f"{__version__}: train the rest beside them with --mix-versions, or all of it in another folder with --out",
            code="mixed_versions",
        )


def training_version(run: Run, store: Store) -> str:
    """Return the version of calibrant that trained a finished run, as far as it is known."""
    return store.record(run)["facts"].get("versions", {}).get("calibrant", "")
