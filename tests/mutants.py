"""Replace every loss, metric and calibrator by an exception, a constant and its neighbor, and see whether tests fail.

    python tests/mutants.py [losses metrics calibrators] [--only NAME] [--jobs 2]

Each mutant has a process of its own, forked after all imports. A mutant that passes the contract tests of its method
faces all tests of its kind. Prints the survivors, and exits with status 1 if there are any.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # forks and threads do not mix

import pytest

TESTS_FOLDER = Path(__file__).parent
TESTS = {
    "losses": ["contracts/test_losses.py", "losses", "nn/test_nn.py"],
    "metrics": ["contracts/test_metrics.py", "metrics", "test_published.py"],
    "calibrators": ["contracts/test_calibrators.py", "calibrators", "nn/test_selection.py"],
}
MUTATIONS = ("raise", "constant", "neighbor")
QUIET = ["-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "not slow and not large"]
QUIET += ["-o", "addopts=--import-mode=importlib", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
Mutate = Callable[[], None]


def mutants(kind: str, name_filter: str) -> Iterator[tuple[str, str, Mutate]]:
    """Yield the name of a method, the mutation, and a function that applies it."""
    from calibrant.registry import REGISTRIES

    names = list(REGISTRIES[kind])
    for name, neighbor in zip(names, [*names[1:], names[0]]):
        if name_filter in ("", name):
            for mutation in MUTATIONS:
                yield name, mutation, partial(PLACES[kind], name, mutation, neighbor)


def replacement(mutation: str, constant: Callable[..., Any], neighbor: Callable[..., Any]) -> Callable[..., Any]:
    """Return the stand-in of a method."""
    return {"raise": _raise, "constant": constant, "neighbor": neighbor}[mutation]


def _raise(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a mutant")


def metric(name: str, mutation: str, neighbor: str) -> None:
    """Replace a metric's function, from which its interval and test are computed."""
    from calibrant.registry import METRICS

    from calibrant.predictions import Predictions

    target, neighbor_metric = METRICS[name], METRICS[neighbor]

    def measured(view: Any, **settings: Any) -> float:
        if isinstance(view, Predictions):
            return neighbor_metric(view)
        return neighbor_metric(Predictions.from_probs(view.confidence, view.outcome, weights=view.weights))

    target.function = replacement(mutation, lambda *a, **k: 0.5, measured)


def loss(name: str, mutation: str, neighbor: str) -> None:
    """Replace a loss wherever it is bound, or the call of one with state."""
    import torch
    from calibrant.registry import LOSSES

    from calibrant.losses import for_counts

    def constant(*args: Any, **kwargs: Any) -> torch.Tensor:
        logits = next(a for a in args if isinstance(a, torch.Tensor))
        return 0 * logits.clamp(-1, 1).sum(-1) + 0.7

    def shifted(*args: Any, **kwargs: Any) -> torch.Tensor:
        logits, labels = [a for a in args if isinstance(a, torch.Tensor)][:2]
        counts = torch.ones(logits.shape[1])
        return for_counts(LOSSES.resolve(neighbor), counts)(logits, labels)

    target, stand_in = LOSSES[name], replacement(mutation, constant, shifted)
    if isinstance(target, type):
        target.__call__ = stand_in
        return
    for module in [m for key, m in sys.modules.items() if key.startswith("calibrant")]:
        for key, value in list(vars(module).items()):
            if value is target:
                setattr(module, key, _like(target, stand_in))
    LOSSES._methods[name] = _like(target, stand_in)


def _like(target: Any, stand_in: Callable[..., Any]) -> Callable[..., Any]:
    from functools import wraps

    return wraps(target)(lambda *args, **kwargs: stand_in(*args, **kwargs))


def calibrator(name: str, mutation: str, neighbor: str) -> None:
    """Replace the fit of a calibrator."""
    from calibrant.registry import CALIBRATORS

    from calibrant import calibrators
    from calibrant._core.arrays import namespace

    class Flat:
        certificate = None

        def __call__(self, logits: Any) -> Any:
            return namespace(logits).zeros_like(logits)

    target, neighbor_fit = CALIBRATORS[name], CALIBRATORS[neighbor].fit

    def shifted(cls: Any, predictions: Any, labels: Any = None, weights: Any = None, **settings: Any) -> Any:
        return neighbor_fit(predictions, labels, weights)

    stand_in = replacement(mutation, lambda *a, **k: Flat(), shifted)
    stand_in = _like(vars(target)["fit"].__func__, stand_in)
    stand_in.takes_predictions = True
    assert calibrators
    target.fit = classmethod(stand_in)


PLACES = {"losses": loss, "metrics": metric, "calibrators": calibrator}


def caught(kind: str, name: str, mutate: Mutate) -> bool:
    """Return whether a test fails: first the contract tests of the method, then all tests of its kind."""
    own_tests = [str(TESTS_FOLDER / TESTS[kind][0]), "-k", f"[{name}] or [{name}- or -{name}] or -{name}-"]
    all_tests = [str(TESTS_FOLDER / part) for part in TESTS[kind]]
    return any(_fails(mutate, arguments) for arguments in (own_tests, all_tests))


def _fails(mutate: Mutate, arguments: list[str]) -> bool:
    child = os.fork()
    if child == 0:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            status = 1
            try:
                mutate()
                status = int(pytest.main([*arguments, *QUIET, "--rootdir", str(TESTS_FOLDER.parent)]))
            finally:
                os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1  # 5: nothing was selected


def main() -> None:
    """Run the mutants and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *TESTS], default=[])
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    sys.path[:0] = [str(TESTS_FOLDER), str(TESTS_FOLDER.parent / "src")]
    os.chdir(TESTS_FOLDER.parent)
    from calibrant import registry

    assert all(len(registry.REGISTRIES[kind]) for kind in options.kinds or TESTS)
    for kind in options.kinds or TESTS:
        if _fails(lambda: None, [str(TESTS_FOLDER / TESTS[kind][0])]):
            sys.exit(f"the tests of {kind} fail without any mutant")
    survivors, began, count = [], time.monotonic(), 0
    work = [(kind, *mutant) for kind in options.kinds or TESTS for mutant in mutants(kind, options.only)]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda m: (m[:3], caught(m[0], m[1], m[3])), work)
        for (kind, name, mutation), dead in results:
            count += 1
            print(f"{count} of {len(work)}: {kind}, {name}, {mutation}", end="\r", file=sys.stderr, flush=True)
            if not dead:
                survivors.append(f"{kind}: {name} replaced by {mutation}")
                print(f"survived: {survivors[-1]}", flush=True)
    print(f"{count - len(survivors)} of {count} mutants caught in {time.monotonic() - began:.0f} s")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
