"""Which calibrator gives the best probabilities? Real predictions and simulated problems, validation to test.

    python benchmarks/calibration.py [FOLDER] [--only TEXT] [--quick]

FOLDER holds pairs NAME.val.npz and NAME.test.npz of logits and labels. Simulations need nothing: labels are drawn from
known probabilities, whose logits are then distorted, so that the best NLL there is is known. Competitors of other
packages are timed and judged where they are installed (scikit-learn, netcal, probmetrics).
"""

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant import Predictions, calibrators, catalog, metrics

MEMBERS = [
    "SmoothedTemperature",
    "StructuredVector",
    "StructuredMatrix",
    "Monotone",
    "Chain(first='Monotone', second='StructuredMatrix')",
]
OTHERS = [
    "Identity",
    "Temperature",
    "Vector",
    "Dirichlet",
    "EnsembleTemperature",
    "EnsembleTemperature(criterion='brier')",
    "Isotonic",
    "HistogramBinning",
    "StructuredMatrix(refit_temperature=True)",
]
OURS = ["Auto", "Auto(accuracy_preserving=True)", *MEMBERS, *OTHERS]
Fit = Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]]
Problem = tuple[str, Predictions, Predictions]


def real(folder: Path) -> Iterator[Problem]:
    for path in sorted(folder.glob("*.val.npz")):
        yield (
            path.name.removesuffix(".val.npz"),
            Predictions.load(path),
            Predictions.load(path.with_name(path.name.replace(".val.", ".test."))),
        )


def simulated(repeats: int) -> Iterator[Problem]:
    """p ~ Dirichlet, y ~ p; the logits are log p distorted by a temperature, per class, or by a matrix."""
    for kind, k, n in [
        ("temperature", 10, 300),
        ("temperature", 10, 1000),
        ("temperature", 10, 5000),
        ("class-wise", 10, 1000),
        ("class-wise", 10, 5000),
        ("matrix", 10, 1000),
        ("matrix", 10, 5000),
        ("mixing", 10, 300),
        ("mixing", 30, 2000),
        ("binary", 2, 1000),
    ]:
        for repeat in range(repeats):
            rng = np.random.default_rng(1000 * repeat + k + n)
            scale, shift = np.exp(rng.normal(0, 0.15, k)), rng.normal(0, 0.3, k)
            mix = rng.normal(0, (0.1 if kind == "mixing" else 0.02) / np.sqrt(k / 10), (k, k))

            def draw(m: int) -> Predictions:
                p = np.clip(rng.dirichlet([0.1 if k > 2 else 0.5] * k, m), 1e-12, 1)  # noqa: B023
                p /= p.sum(1, keepdims=True)
                y = np.minimum((p.cumsum(1) < rng.random((m, 1))).sum(1), k - 1)  # noqa: B023
                z = np.log(p)
                z -= z.mean(1, keepdims=True)
                match kind:  # noqa: B023
                    case "class-wise":
                        z = z * scale + shift  # noqa: B023
                    case "matrix" | "mixing":
                        z = z * scale + z @ mix.T + shift  # noqa: B023
                return Predictions(2 * z, y)

            yield f"simulated {kind} k={k} n={n} #{repeat}", draw(n), draw(20000)


def peers() -> dict[str, Fit]:
    """Competitors that are installed, as fits to (logits, labels) that give a map to log-probabilities."""
    found: dict[str, Fit] = {}

    def sklearn(method: str) -> Fit:
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

        class Logits(ClassifierMixin, BaseEstimator):
            """Says what it is given."""

            def fit(self, x, y):
                self.classes_ = np.arange(x.shape[1])
                self.n_features_in_ = x.shape[1]
                return self

            def predict(self, x):
                return x.argmax(1)

            def decision_function(self, x):
                return x if x.shape[1] > 2 else x[:, 1] - x[:, 0]

        def fit(z: Tensor, y: Tensor):
            base = FrozenEstimator(Logits().fit(z.numpy(), y.numpy()))
            fitted = CalibratedClassifierCV(base, method=method).fit(z.double().numpy(), y.numpy())
            return lambda z: torch.from_numpy(np.log(fitted.predict_proba(z.double().numpy())))

        return fit

    if importlib.util.find_spec("sklearn"):
        found |= {f"scikit-learn {m}": sklearn(m) for m in ("temperature", "sigmoid", "isotonic")}

    def netcal(name: str) -> Fit:
        def fit(z: Tensor, y: Tensor):
            module = importlib.import_module("netcal.binning" if "Histogram" in name else "netcal.scaling")
            fitted = getattr(module, name)()
            p = z.double().softmax(-1).numpy()
            fitted.fit(p, y.numpy())

            def apply(z: Tensor) -> Tensor:
                q = np.asarray(fitted.transform(z.double().softmax(-1).numpy()))
                q = q if q.ndim == 2 else np.stack([1 - q, q], 1)
                return torch.from_numpy(np.log(q / q.sum(1, keepdims=True)))

            return apply

        return fit

    if importlib.util.find_spec("netcal"):
        found |= {f"netcal {m}": netcal(m) for m in ("TemperatureScaling", "HistogramBinning")}

    def probmetrics(name: str) -> Fit:
        def fit(z: Tensor, y: Tensor):
            from probmetrics.calibrators import get_calibrator
            from probmetrics.distributions import CategoricalLogits

            fitted = get_calibrator(name)
            fitted.fit_torch(CategoricalLogits(z.double()), y)
            return lambda z: fitted.predict_proba_torch(CategoricalLogits(z.double())).get_logits()

        return fit

    if importlib.util.find_spec("probmetrics"):
        found |= {f"probmetrics {m}": probmetrics(m) for m in ("ts-mix", "svs", "sms")}
    return found


def judge(fit: Fit, val: Predictions, test: Predictions) -> dict[str, float]:
    start = time.process_time()  # processor time: the machine may be busy
    fitted = fit(val.logits, val.labels)
    seconds = time.process_time() - start
    after = fitted(test.logits.double())
    return {
        "NLL": float(metrics.nll(after, test.labels)),
        "Brier": float(metrics.brier(after, test.labels)),
        "ECE": 100 * float(metrics.ece(after, test.labels)),
        "floor": 100 * float(metrics.noise_floor(after, test.labels)),
        "acc": 100 * float(metrics.accuracy(after, test.labels)),
        "s": seconds,
    }


def table(rows: dict[str, dict[str, float]]) -> None:
    print(f"  {'':52} {'NLL':>8} {'Brier':>8} {'ECE15%':>7} {'floor':>6} {'acc%':>7} {'cpu s':>8}")
    for name, row in sorted(rows.items(), key=lambda item: item[1]["NLL"]):
        print(
            f"  {name:52} {row['NLL']:8.4f} {row['Brier']:8.4f} {row['ECE']:7.2f} {row['floor']:6.2f} "
            f"{row['acc']:7.2f} {row['s']:8.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--only", default="", help="part of the names of the problems to run")
    parser.add_argument("--repeats", type=int, default=3, help="of every simulation")
    parser.add_argument("--members", action="store_true", help="only Auto and its members")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    names = [*OURS[:2], *MEMBERS] if options.members else OURS
    fits: dict[str, Fit] = {name: catalog.resolve(name, calibrators) for name in names}
    fits |= {} if options.members else peers()
    problems = [*(real(options.folder) if options.folder else ()), *simulated(options.repeats)]
    results: dict[str, dict[str, dict[str, float]]] = {}
    for problem, val, test in problems:
        if options.only not in problem:
            continue
        rows: dict[str, dict[str, float]] = {}
        for name, fit in fits.items():
            try:
                rows[name] = judge(fit, val, test)
            except Exception as error:  # competitors fail in many ways; the table goes on without them
                print(f"  {name}: {' '.join(str(error).split())[:100]}")
        results[problem] = rows
        best = min(rows[name]["NLL"] for name in MEMBERS if name in rows)
        print(f"\n{problem}: {val} -> {test}; Auto - best member {rows['Auto']['NLL'] - best:+.4f} nats")
        table(rows)
    for title in ("real", "simulated"):
        chosen = [rows for name, rows in results.items() if name.startswith("simulated") == (title == "simulated")]
        if chosen:
            shared = [name for name in fits if all(name in rows for rows in chosen)]
            means = {n: {key: float(np.mean([r[n][key] for r in chosen])) for key in chosen[0][n]} for n in shared}
            regret = [r["Auto"]["NLL"] - min(r[n]["NLL"] for n in MEMBERS if n in r) for r in chosen]
            print(
                f"\nMean over {len(chosen)} {title} problems; regret of Auto to its best member: mean "
                f"{np.mean(regret):+.4f}, worst {max(regret):+.4f} nats"
            )
            table(means)


if __name__ == "__main__":
    main()
