"""Predictions for benchmarks: real ones if they are next to the checkout, and simulated ones with known truth."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars
import torch
from torch import Tensor

from benchmarks._draws import draw_labels
from calibrant import Predictions

SHARED = Path(__file__).resolve().parents[2] / "shared"
REAL = SHARED / "logits"
SIZES = (300, 1000, 5000)
MIN_PROBABILITY = 1e-7  # forests and people give 0 to events that happen


def draw(n: int, k: int, *, temperature: float = 1.0, spread: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw normal logits z in float32 with labels from softmax(z); the logits are then multiplied by `temperature`."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, k, generator=g).mul_(spread)
    labels = torch.cat([torch.multinomial(rows.softmax(-1), 1, generator=g).squeeze(1) for rows in z.split(100_000)])
    return z.mul_(temperature), labels


def workload(n: int, k: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw logits that are underconfident at low and overconfident at high confidence, with errors per class.

    Without both, every ECE equals |mean confidence - accuracy|, and all implementations agree.
    """
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, k, generator=g).mul_(2.0)
    z[torch.arange(n), torch.randint(k, (n,), generator=g)] += 4 + np.log(k)
    labels = torch.cat([torch.multinomial(rows.softmax(-1), 1, generator=g).squeeze(1) for rows in z.split(100_000)])
    slope = torch.where(torch.rand(n, 1, generator=g) < 0.3, 0.6, 2.0)
    tilt = 1 + 0.1 * torch.randn(k, generator=g)
    return z.mul_(slope).mul_(tilt).add_(0.2 * torch.randn(k, generator=g)), labels


@dataclass(frozen=True)
class Problem:
    """Predictions to fit and to evaluate; `bayes` is the NLL of the true probabilities on the test labels."""

    name: str
    n: int  # examples to fit
    fit: Predictions
    test: Predictions
    bayes: float = float("nan")


def real(sizes: tuple[int, ...] = SIZES) -> Iterator[Problem]:
    """Yield predictions of real networks. A test set without validation set is split in half at random."""
    g = torch.Generator().manual_seed(0)
    for path in sorted(REAL.glob("*.test.npz")):
        name, test = path.name.removesuffix(".test.npz"), Predictions.load(path)
        val_path = path.with_name(f"{name}.val.npz")
        order = torch.randperm(len(test), generator=g)
        half = len(test) // 2
        fit, test = (
            (Predictions.load(val_path), test) if val_path.is_file() else (test[order[:half]], test[order[half:]])
        )
        order = torch.randperm(len(fit), generator=g)
        for n in sizes:
            if n <= len(fit):
                yield Problem(name, n, fit[order[:n]], test)


def tabular(seeds: int = 3) -> Iterator[Problem]:
    """Yield predictions of tabular models on several splits of each data set, as log-probabilities of at least 1e-7."""
    for path in sorted((SHARED / "tabular").glob("*.npz")):
        name, model, seed = path.stem.rsplit(".", 2)
        if int(seed) < seeds:
            with np.load(path) as file:
                parts = [_log_probs(file[f"{part}_probs"], file[f"{part}_labels"]) for part in ("val", "test")]
            yield Problem(f"table: {name}, {model} #{seed}", len(parts[0]), *parts)


def stated(step: int = 1, sizes: tuple[int, ...] = (50, 100, 500), repeats: int = 2) -> Iterator[Problem]:
    """Yield stated confidences of language models, with 3,000 others to test on, if both outcomes occur."""
    for path in sorted((SHARED / "language_models").glob("*.parquet"))[::step]:
        answers = polars.read_parquet(path, columns=["verbal", "correct"]).filter(polars.col("verbal").is_between(0, 1))
        confidence, correct = answers["verbal"].to_numpy(), answers["correct"].to_numpy()
        for n in sizes if len(answers) >= 3500 else ():
            for repeat in range(repeats):
                order = np.random.default_rng([repeat, n]).permutation(len(answers))
                fit, test = (
                    _log_probs(np.stack([1 - confidence[rows], confidence[rows]], 1), correct[rows])
                    for rows in (order[:n], order[n : n + 3000])
                )
                if len(np.unique(fit.labels)) == 2:
                    yield Problem(f"stated: {path.stem} #{repeat}", n, fit, test)


def _log_probs(probs: np.ndarray, labels: np.ndarray) -> Predictions:
    p = np.clip(probs.astype(np.float64), MIN_PROBABILITY, 1)
    return Predictions(np.log(p / p.sum(1, keepdims=True)), labels.astype(np.int64))


CALIBRATED_CLASSES = 2, 5, 10, 30, 100


def calibrated(sizes: tuple[int, ...] = (100, *SIZES), repeats: int = 5, test_rows: int = 20_000) -> Iterator[Problem]:
    """Yield predictions of calibrated models, of which every calibrator can only lose: labels are drawn from them.

    The logits are normal with a standard deviation of 2. Of two classes there is also one of 2 % of the examples.
    """
    for k, center in (*((k, 0.0) for k in CALIBRATED_CLASSES), (2, 4.6)):
        for n in sizes:
            for repeat in range(repeats):
                rng = np.random.default_rng([repeat, k, n, int(center)])
                parts = []
                for m in (n, test_rows):
                    z = (0.8 if center else 2.0) * rng.standard_normal((m, k))
                    z[:, 0] += center
                    parts.append(Predictions(z, draw_labels(z, rng)))
                bayes = float(-parts[1].log_likelihood.mean())
                name = f"calibrated: k = {k}{', 2 % positive' if center else ''} #{repeat}"
                if len(np.unique(parts[0].labels)) > 1:
                    yield Problem(name, n, *parts, bayes)


KINDS = {  # distortions of the true logits
    "temperature": lambda z, scale, shift, mix: z,
    "class-wise": lambda z, scale, shift, mix: z * scale + shift,
    "matrix": lambda z, scale, shift, mix: z * scale + z @ mix.T + shift,
    "not affine": lambda z, scale, shift, mix: np.sign(z) * np.abs(z) ** 1.4,
}


def simulated(sizes: tuple[int, ...] = SIZES, repeats: int = 3, test_rows: int = 20_000) -> Iterator[Problem]:
    """Yield log p of p ~ Dirichlet(0.1) with labels y ~ p, distorted in a known way and doubled."""
    for kind, spoil in KINDS.items():
        for k in (10, 100) if kind == "class-wise" else (10,):
            for n in sizes:
                for repeat in range(repeats):
                    rng = np.random.default_rng([repeat, k, n])
                    scale, shift = np.exp(rng.normal(0, 0.15, k)), rng.normal(0, 0.3, k)
                    mix = rng.normal(0, 0.05, (k, k)) / np.sqrt(k / 10)
                    parts = []
                    for m in (n, test_rows):
                        p = np.clip(rng.dirichlet([0.1] * k, m), 1e-12, 1)
                        p /= p.sum(1, keepdims=True)
                        y = np.minimum((p.cumsum(1) < rng.random((m, 1))).sum(1), k - 1)
                        z = np.log(p)
                        parts.append(Predictions(2 * spoil(z - z.mean(1, keepdims=True), scale, shift, mix), y))
                    bayes = float(-np.log(p[np.arange(m), y]).mean())
                    yield Problem(f"simulated: {kind}, k = {k} #{repeat}", n, *parts, bayes)
