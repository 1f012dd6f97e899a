"""Before anything is trained: whose data are at hand, whether networks take them, and what was trained by whom."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from calibrant import __version__
from calibrant._text import one_line
from calibrant.catalog import Method
from calibrant.study.checkpoint import minor
from calibrant.study.config import Run
from calibrant.study.engine import Data, made_for
from calibrant.study.store import Store
from calibrant.types import InputError


@dataclass(frozen=True)
class Ready:
    """Which runs can be trained or are finished, why the others cannot, and the digests of the data at hand."""

    runs: Sequence[Run]
    absent: Mapping[Run, str]
    digests: Mapping[Method, str]


def ready(runs: Sequence[Run], store: Store, data: Data) -> Ready:
    """Load every data set that is to be trained on, and say which are not at hand.

    Those of finished runs are looked at too, where a folder of data is named: it may hold other data by now. Raises
    `InputError` if a network does not take its data.
    """
    digests, why = dict[Method, str](), dict[Method, str]()
    for method, networks in _wanted(runs, store, data).items():
        try:
            digests[method] = data.digest(method).whole
        except Exception as error:  # of one's own data set, perhaps
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            why[method] = kind + one_line(error)
            continue
        for network in networks:
            made_for(data.splits(method), network)
    store = store.knowing(digests)
    absent = {
        run: why[lacking[0]]
        for run in runs
        if run not in store and (lacking := [method for method in run.data if method in why])
    }
    return Ready([run for run in runs if run not in absent], absent, digests)


def _wanted(runs: Iterable[Run], store: Store, data: Data) -> dict[Method, list[Method]]:
    """Return the data sets to look at, and the networks to be trained on each."""
    named = data.root is not None or bool(os.environ.get("CALIBRANT_DATA"))
    found: dict[Method, list[Method]] = {}
    for run in runs:
        missing = run not in store
        for method in run.data:
            if missing or named or not method.target.__module__.startswith("calibrant."):
                found.setdefault(method, [])
        if missing and run.network not in found[run.examples]:
            found[run.examples].append(run.network)
    return found


def check_versions(runs: Iterable[Run], store: Store) -> None:
    """Raise `InputError` if more is to be trained beside what another version of calibrant trained."""
    runs = list(runs)
    done = [run for run in runs if run in store]
    theirs = [version for run in done if (version := trained_by(run, store)) and minor(version) != minor(__version__)]
    if theirs and len(done) < len(runs):
        raise InputError(
            f"{len(theirs)} of the finished runs were trained by calibrant {', '.join(sorted(set(theirs)))}, this is "
            f"{__version__}: train the rest beside them with --mix-versions, or all of it in another folder with --out",
            code="mixed_versions",
        )


def trained_by(run: Run, store: Store) -> str:
    """Return the version of calibrant that trained a finished run, as far as it is known."""
    return store.record(run)["facts"].get("versions", {}).get("calibrant", "")
