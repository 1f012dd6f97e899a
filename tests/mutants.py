"""Do the tests notice? Every loss, metric and calibrator is replaced by a raise, a constant and its neighbor.

    python tests/mutants.py [losses metrics calibrators] [--only NAME] [--jobs 2]

One process for each mutant, forked from one that has imported everything; those that pass the method's own contract
tests meet all tests of its kind. Prints the survivors, and exits with 1 if there are any.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # forks and threads do not mix

import pytest
import torch

HERE = Path(__file__).parent
TESTS = {
    "losses": ["contracts/test_losses.py", "losses", "test_nn.py"],
    "metrics": ["contracts/test_metrics.py", "metrics", "test_published.py"],
    "calibrators": ["contracts/test_calibrators.py", "calibrators", "test_selection.py"],
}
WAYS = ("raise", "constant", "neighbor")
QUIET = ["-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "not slow and not large"]
QUIET += ["-o", "addopts=--import-mode=importlib", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
Mutate = Callable[[], None]


def mutants(kind: str, only: str) -> Iterator[tuple[str, str, Mutate]]:
    """Yield (method, way, how to put it in place)."""
    from calibrant.registry import REGISTRIES

    names = list(REGISTRIES[kind])
    for name, neighbor in zip(names, [*names[1:], names[0]]):
        if only in ("", name):
            for way in WAYS:
                yield name, way, lambda name=name, way=way, other=neighbor: PLACES[kind](name, way, other)


def replacement(way: str, constant: Callable[..., Any], neighbor: Callable[..., Any]) -> Callable[..., Any]:
    """What stands in for a method."""
    return {"raise": _raise, "constant": constant, "neighbor": neighbor}[way]


def _raise(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a mutant")


def metric(name: str, way: str, neighbor: str) -> None:
    """A metric's function, and what its interval and test come from."""
    from calibrant.predictions import Predictions
    from calibrant.registry import METRICS

    found, other = METRICS[name], METRICS[neighbor]

    def measured(view: Any, **settings: Any) -> torch.Tensor:
        if isinstance(view, Predictions):
            return other(view)
        p = Predictions(torch.stack([1 - view.confidence, view.confidence], 1).log(), view.outcome, view.weights, of=1)
        return other(p)

    found.function = replacement(way, lambda *a, **k: torch.tensor(0.5, dtype=torch.float64), measured)


def loss(name: str, way: str, neighbor: str) -> None:
    """A loss wherever it is bound, or the call of one with state."""
    from calibrant.losses import for_counts
    from calibrant.registry import LOSSES

    def constant(*args: Any, **kwargs: Any) -> torch.Tensor:
        logits = next(a for a in args if isinstance(a, torch.Tensor))
        return 0 * logits.clamp(-1, 1).sum(-1) + 0.7

    def beside(*args: Any, **kwargs: Any) -> torch.Tensor:
        logits, labels = [a for a in args if isinstance(a, torch.Tensor)][:2]
        counts = torch.ones(logits.shape[1])
        return for_counts(LOSSES.resolve(neighbor), counts)(logits, labels)

    found, put = LOSSES[name], replacement(way, constant, beside)
    if isinstance(found, type):
        found.__call__ = put
        return
    for module in [m for key, m in sys.modules.items() if key.startswith("calibrant")]:
        for key, value in list(vars(module).items()):
            if value is found:
                setattr(module, key, _like(found, put))
    LOSSES._methods[name] = _like(found, put)


def _like(found: Any, put: Callable[..., Any]) -> Callable[..., Any]:
    from functools import wraps

    return wraps(found)(lambda *args, **kwargs: put(*args, **kwargs))


def calibrator(name: str, way: str, neighbor: str) -> None:
    """A calibrator's fit."""
    from calibrant import calibrators
    from calibrant.registry import CALIBRATORS

    class Flat:
        certificate = None

        def __call__(self, logits: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(logits)

    found, other = CALIBRATORS[name], CALIBRATORS[neighbor].fit

    def beside(cls: Any, predictions: Any, labels: Any = None, weights: Any = None, **settings: Any) -> Any:
        return other(predictions, labels, weights)

    put = replacement(way, lambda *a, **k: Flat(), beside)
    put = _like(vars(found)["fit"].__func__, put)
    put.takes_predictions = True
    assert calibrators
    found.fit = classmethod(put)


PLACES = {"losses": loss, "metrics": metric, "calibrators": calibrator}


def caught(kind: str, name: str, mutate: Mutate) -> bool:
    """Whether some test fails: first the contract tests that name the method, then all tests of its kind."""
    own = [str(HERE / TESTS[kind][0]), "-k", f"[{name}] or [{name}- or -{name}] or -{name}-"]
    whole = [str(HERE / part) for part in TESTS[kind] if (HERE / part).exists()]
    return any(_fails(mutate, arguments) for arguments in (own, whole))


def _fails(mutate: Mutate, arguments: list[str]) -> bool:
    child = os.fork()
    if child == 0:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            status = 1
            try:
                mutate()
                status = int(pytest.main([*arguments, *QUIET, "--rootdir", str(HERE.parent)]))
            finally:
                os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1  # 5: nothing was selected


def main() -> None:
    """Run the mutants and print who survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *TESTS], default=[])
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    sys.path[:0] = [str(HERE), str(HERE.parent / "src")]
    os.chdir(HERE.parent)
    from calibrant import registry

    assert all(len(registry.REGISTRIES[kind]) for kind in TESTS)
    torch.set_num_threads(1)
    for kind in chosen.kinds or TESTS:
        if _fails(lambda: None, [str(HERE / TESTS[kind][0])]):
            sys.exit(f"the tests of {kind} fail without any mutant")
    survivors, began, count = [], time.monotonic(), 0
    work = [(kind, *mutant) for kind in chosen.kinds or TESTS for mutant in mutants(kind, chosen.only)]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        results = pool.map(lambda m: (m[:3], caught(m[0], m[1], m[3])), work)
        for (kind, name, way), dead in results:
            count += 1
            print(f"{count} of {len(work)}: {kind}, {name}, {way}", end="\r", file=sys.stderr, flush=True)
            if not dead:
                survivors.append(f"{kind}: {name} replaced by {way}")
                print(f"survived: {survivors[-1]}", flush=True)
    print(f"{count - len(survivors)} of {count} mutants caught in {time.monotonic() - began:.0f} s")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
