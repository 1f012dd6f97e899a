"""What results were made with, and whether the code would make them again."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from calibrant import __version__
from calibrant.lab.study.config import Study
from calibrant.lab.study.grids import Run
from calibrant.registry import Method


def made_with(study: Study, runs: Iterable[Run]) -> dict[str, Any]:
    """Return the version, the runs and the methods of results, for `made_with.json`.

    The id of a run changes with its data set, network, loss, recipe, seed, traces and the revisions of their methods.
    """
    return {
        "calibrant": __version__,
        "study": study.name,
        "runs": {run.id: study.describe(run) for run in runs},
        "revisions": {method.text: method.code or "revision 1" for method in _evaluating_methods(study)},
    }


def stale_parts(record: Mapping[str, Any], study: Study) -> list[str]:
    """Return in words what the study would now train or evaluate otherwise than in a record of `made_with`."""
    planned = made_with(study, study.runs())
    return [*_differences(record["runs"], planned["runs"]), *_differences(record["revisions"], planned["revisions"])]


def _differences(stored: Mapping[str, str], planned: Mapping[str, str]) -> Iterator[str]:
    for key, text in planned.items():
        if key not in stored:
            yield f"missing: {key}, {text}"
        elif stored[key] != text:
            yield f"changed: {key}, {stored[key]}; now {text}"
    yield from (f"no longer made: {key}, {text}" for key, text in stored.items() if key not in planned)


def _evaluating_methods(study: Study) -> tuple[Method, ...]:
    return (*study.calibrators, *study.metrics, *study.detection)
