"""Language models with 0 to 200 labels: maps, intervals, tests of priors, rows to label; one family left out at a time.

    python -m benchmarks.few_labels [--scale 1] [--only maps,transfer,intervals,design]

Every prior is learned from the models of other families. Intervals compare with glide-py and cje-eval if they are
installed.
"""

import argparse
import importlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import polars
import torch
from calibrant.registry import CALIBRATORS
from scipy.special import softmax

from benchmarks._harness import markdown
from benchmarks._problems import MIN_PROBABILITY, SHARED
from calibrant import Predictions
from calibrant.language_models.fusion import Fusion, FusionPrior
from calibrant.planning.few_labels import accuracy_interval, rows_to_label

FAMILIES = {  # by the beginning of the model's name
    "Qwen": "Qwen",
    "Llama": "Llama",
    "Meta-Llama": "Llama",
    "Mi": "Mistral",
    "Phi": "Phi",
    "claude": "Anthropic",
    "deepseek": "DeepSeek",
    "gem": "Google",
    "gpt": "OpenAI",
    "o1": "OpenAI",
    "o3": "OpenAI",
    "grok": "xAI",
}
STATED, SIGNALS = ("verbal",), ("verbal", "perplexity", "linguistic")
SIZES = (20, 50, 200)
INTERVAL_SIZES = (20, 50, 100, 200)
LEVEL = 0.90
DRAWS = {"maps": 12, "transfer": 1, "intervals": 1000, "design": 200}  # per model and size, or subject
PEERS = {"glide-py": ("glide", 200), "cje-eval": ("cje", 4)}  # module, and draws; a second for each of the latter
POOLED_ROWS, TEST_ROWS = 1000, 3000  # per model
MIN_SHARE = 0.05  # of rows with a signal, below which a model lacks it


@dataclass(frozen=True, eq=False)
class Model:
    """The answers of a model with a stated confidence in [0, 1]."""

    name: str
    family: str
    columns: dict[str, np.ndarray]
    correct: np.ndarray
    subject: np.ndarray

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals that the model has."""
        return tuple(name for name in SIGNALS if np.isfinite(self.columns[name]).mean() > MIN_SHARE)

    def select(self, names: Sequence[str], rows: Any = slice(None)) -> dict[str, np.ndarray]:
        """Return the signals of some rows."""
        return {name: self.columns[name][rows] for name in names}


def read_answers(signals: Sequence[str]) -> Iterator[tuple[str, str, polars.DataFrame]]:
    """Yield the name and family of each model, and its answers that have the signals in [0, 1]."""
    for path in sorted((SHARED / "language_models").glob("*.parquet")):
        family = next(family for start, family in FAMILIES.items() if path.stem.startswith(start))
        frame = polars.read_parquet(path).filter(*(polars.col(name).is_between(0, 1) for name in signals))
        yield path.stem, family, frame


@cache
def models() -> tuple[Model, ...]:
    """Read all models."""
    read: list[Model] = []
    for name, family, answers in read_answers(STATED):
        frame = answers.filter(answered=1)
        columns = {name: frame[name].cast(polars.Float64).fill_null(np.nan).to_numpy() for name in SIGNALS}
        columns = {name: np.where((x >= 0) & (x <= 1), x, np.nan) for name, x in columns.items()}  # some are stray
        correct, subject = frame["correct"].to_numpy().astype(np.float64), frame["category"].to_numpy()
        read.append(Model(name, family, columns, correct, subject))
    return tuple(read)


@cache
def fit_of(name: str, signals: tuple[str, ...]) -> Fusion:
    """Return the fusion of all rows of a model."""
    m = next(m for m in models() if m.name == name)
    return Fusion.fit(m.select(signals), m.correct, groups=m.subject, scale="probability")


@cache
def prior_of(family: str, signals: tuple[str, ...]) -> FusionPrior:
    """Return the prior of all models of other families that have the signals."""
    members = [m for m in models() if m.family != family and set(signals) <= set(m.signals)]
    return FusionPrior.from_fits([fit_of(m.name, signals) for m in members])


@cache
def probability_without_labels(name: str, signals: tuple[str, ...]) -> np.ndarray:
    """Return the probabilities of a model's rows by the prior alone."""
    m = next(m for m in models() if m.name == name)
    columns = {signal: np.empty(0) for signal in signals}
    fused = Fusion.fit(columns, np.empty(0), prior=prior_of(m.family, signals))
    return fused.apply(m.select(signals), m.subject)


@cache
def pooled_map(family: str) -> Any:
    """Return beta calibration of the stated confidences of all models of other families."""
    rng, members = np.random.default_rng(0), [m for m in models() if m.family != family]
    rows = [rng.permutation(len(m.correct))[:POOLED_ROWS] for m in members]
    confidence = np.concatenate([m.columns["verbal"][i] for m, i in zip(members, rows, strict=True)])
    correct = np.concatenate([m.correct[i] for m, i in zip(members, rows, strict=True)])
    p = _stated(confidence, correct)
    return CALIBRATORS.resolve("Beta")(p.logits, p.labels)


def _stated(confidence: np.ndarray, correct: np.ndarray) -> Predictions:
    p = np.clip(np.stack([1 - confidence, confidence], 1), MIN_PROBABILITY, 1)
    return Predictions(np.log(p / p.sum(1, keepdims=True)), correct.astype(np.int64))


def _nll(probability: Any, correct: np.ndarray) -> float:
    p = np.clip(np.asarray(probability), MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return float(-np.log(np.where(correct == 1, p, 1 - p)).mean())


def map_losses(m: Model, n: int, draw: int) -> list[float]:
    """Return the NLL of the baselines, then of fusions of the stated confidence and of all signals."""
    order = np.random.default_rng([draw, n, len(m.correct)]).permutation(len(m.correct))
    fit, test = order[:n], order[n : n + TEST_ROWS]
    confidence, correct = m.columns["verbal"], m.correct
    held_out, baselines = _stated(confidence[test], correct[test]), [lambda z: z, pooled_map(m.family)]
    if n:
        labeled = _stated(confidence[fit], correct[fit])
        baselines += [CALIBRATORS.resolve(name)(labeled.logits, labeled.labels) for name in ("Beta", "Platt")]
    losses = [_nll(softmax(f(held_out.logits), axis=-1)[:, 1], correct[test]) for f in baselines]
    for signals in (STATED, m.signals):
        prior = prior_of(m.family, signals)
        fused = Fusion.fit(m.select(signals, fit), correct[fit], groups=m.subject[fit], prior=prior)
        losses.append(_nll(fused.apply(m.select(signals, test), m.subject[test]), correct[test]))
    return losses


def maps(draws: int) -> str:
    """Return the gain in log-likelihood over the best baseline in hindsight, by model."""
    lines: list[list[object]] = []
    for n in (0, *SIZES):
        means = {m.name: np.mean([map_losses(m, n, draw) for draw in range(draws if n else 1)], 0) for m in models()}
        for column, signals in ((-2, "stated confidence"), (-1, "all signals")):
            gains = {name: float(x[:-2].min() - x[column]) for name, x in means.items()}
            worst, second = sorted(gains, key=lambda name: gains[name])[:2]
            line = [n, signals, f"{np.mean(list(gains.values())):+.4f}", f"{gains[worst]:+.4f} ({worst})"]
            lines.append([*line, f"{gains[second]:+.4f} ({second})"])
    return markdown(["n", "signals", "gain", "worst model", "second"], lines)


def transfer(draws: int) -> str:
    """Return how often the labels of one subject are refused: as they are, inverted, and in the reverse order."""
    lines: list[list[object]] = []
    for signals in (STATED, SIGNALS):
        members = [m for m in models() if set(signals) <= set(m.signals)]
        for n in (50, 100, 200):
            shares = {m.name: np.mean(list(refusals(m, signals, n, draws)), 0) for m in members}
            means = np.mean(list(shares.values()), 0)
            fewest = min(shares, key=lambda name: shares[name][1])
            line = [
                "all" if len(signals) > 1 else "stated confidence",
                n,
                len(members),
                *(f"{100 * x:.1f} %" for x in means),
            ]
            lines.append([*line, f"{100 * shares[fewest][1]:.0f} % ({fewest})"])
    return markdown(["signals", "n", "models", "refused", "inverted", "reversed", "fewest of inverted"], lines)


def refusals(m: Model, signals: tuple[str, ...], n: int, draws: int) -> Iterator[list[bool]]:
    """Yield whether labels of a subject are refused: as they are, inverted, and in the reverse order."""
    prior, p = prior_of(m.family, signals), probability_without_labels(m.name, signals)
    for i, subject in enumerate(np.unique(m.subject)):
        members = np.flatnonzero(m.subject == subject)
        for draw in range(draws if len(members) >= n else 0):
            rows = np.random.default_rng([draw, n, i]).permutation(members)[:n]
            y, order = m.correct[rows], p[rows].argsort(kind="stable")
            reverse = np.empty_like(y)
            reverse[order] = y[order[::-1]]
            columns, groups = m.select(signals, rows), m.subject[rows]
            yield [prior.test(columns, labels, groups=groups).p_value < 0.05 for labels in (y, 1 - y, reverse)]


def _wilson(y: np.ndarray) -> tuple[float, float]:
    n, share, z = len(y), y.mean(), 1.6448536269514722
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    center = share + z * z / (2 * n)
    return (center - half) / (1 + z * z / n), (center + half) / (1 + z * z / n)


def _glide(f: np.ndarray, rows: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    labels = np.full(len(f), np.nan)
    labels[rows] = y
    if len(np.unique(y)) < 2:  # which it refuses
        return _wilson(y)
    estimator = importlib.import_module("glide.estimators.ppi").PPIMeanEstimator()
    interval = estimator.estimate(labels, f, confidence_level=LEVEL).confidence_interval
    return interval.lower_bound, interval.upper_bound


def _cje(f: np.ndarray, rows: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    labels = np.full(len(f), np.nan)
    labels[rows] = y
    low, high = importlib.import_module("cje").calibrated_mean_ci(f, labels, alpha=1 - LEVEL).ci
    return low, high


PEER_INTERVALS = {"glide-py": _glide, "cje-eval": _cje}


def intervals(draws: int) -> str:
    """Return the coverage and width of intervals of the accuracy, over draws of labels of each model."""
    peers = {name: f for name, f in PEER_INTERVALS.items() if importlib.util.find_spec(PEERS[name][0])}
    lines: list[list[object]] = []
    for n in INTERVAL_SIZES:
        results: dict[str, list[tuple[str, float, float]]] = {}
        for i, m in enumerate(models()):
            f, truth = probability_without_labels(m.name, m.signals), m.correct.mean()
            limits: dict[str, list[tuple[float, float]]] = {}
            for draw in range(draws):
                rows = np.random.default_rng([draw, n, i]).permutation(len(f))[:n]
                y = m.correct[rows]
                interval = accuracy_interval(f, rows, y, level=LEVEL)
                limits.setdefault("Calibrant", []).append((interval.low, interval.high))
                limits.setdefault("Wilson", []).append(_wilson(y))
                for name in [name for name in peers if draw < PEERS[name][1]]:
                    limits.setdefault(name, []).append(peers[name](f, rows, y))
            for name, pairs in limits.items():
                low, high = np.array(pairs).T
                wilson = np.array(limits["Wilson"][: len(pairs)])
                ratio = (high - low).mean() / (wilson[:, 1] - wilson[:, 0]).mean()
                results.setdefault(name, []).append((m.name, ((low <= truth) & (truth <= high)).mean(), ratio))
        for name, values in results.items():
            coverage, ratio = np.array([value[1:] for value in values]).T
            lowest = values[int(coverage.argmin())][0]
            line = [n, name, f"{coverage.mean():.3f}", f"{coverage.min():.3f} ({lowest})"]
            lines.append([*line, f"{ratio.mean():.3f}", f"{ratio.max():.3f}"])
    return markdown(["n", "method", "coverage", "lowest", "width / Wilson's", "greatest"], lines)


def design(draws: int) -> str:
    """Return coverage, width and error with the rows of `rows_to_label`, as ratios of those of random rows."""
    lines: list[list[object]] = []
    for n in INTERVAL_SIZES:
        values: list[list[float]] = []
        for i, m in enumerate(models()):
            f, truth = probability_without_labels(m.name, m.signals), m.correct.mean()
            results: list[list[list[float]]] = [[], []]
            for draw in range(draws):
                plan = rows_to_label(f, n, seed=1000 * i + draw)
                random_rows = np.random.default_rng([draw, n, i]).permutation(len(f))[:n]
                for j, (rows, weights) in enumerate(((random_rows, None), (plan.rows, plan.weights))):
                    x = accuracy_interval(f, rows, m.correct[rows], weights=weights, level=LEVEL)
                    results[j].append([truth in x, x.high - x.low, (x.value - truth) ** 2])
            simple, planned = np.mean(results, 1)
            values.append([planned[0], planned[1] / simple[1], np.sqrt(planned[2] / simple[2])])
        mean, least = np.mean(values, 0), np.min(values, 0)
        lines.append([n, f"{mean[0]:.3f}", f"{least[0]:.3f}", f"{mean[1]:.3f}", f"{mean[2]:.3f}"])
    return markdown(["n", "coverage", "lowest", "width", "root mean square error"], lines)


PARTS = {"maps": maps, "transfer": transfer, "intervals": intervals, "design": design}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the number of draws")
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the packages in comparison
    logging.disable()
    for name in options.only.split(","):
        print(f"\n{name}\n\n{PARTS[name](max(1, round(options.scale * DRAWS[name])))}", flush=True)


if __name__ == "__main__":
    main()
