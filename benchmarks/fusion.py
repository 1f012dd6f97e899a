"""Fusion of several signals of confidence from 500 labels, on language models of other families than its prior.

    python -m benchmarks.fusion [--draws 3]

Models are those with a stated confidence, a perplexity and a rated wording in [0, 1] on more than 4,000 answers. The
signals are these and the length of the answer; the groups are subjects. The prior is learned from all answers of the
models of other families. "pooled" is the log-odds of gradient-boosted trees on the answers of these models, 3,000 of
each, as one more signal. Numbers are means over models and draws of the 500 labels, on all other answers.
"""

import argparse
from dataclasses import dataclass, replace

import numpy as np
import polars

from benchmarks._harness import markdown
from benchmarks.few_labels import read_answers
from calibrant import metrics
from calibrant.language_models.fusion import Fusion, FusionPrior

SIGNALS = "verbal", "perplexity", "linguistic", "tokens"
NUM_LABELS, POOLED_ROWS, MIN_ANSWERS = 500, 3_000, 4_000


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of one model that have all signals."""

    family: str
    columns: dict[str, np.ndarray]
    correct: np.ndarray
    subject: np.ndarray

    def fit(self, names: tuple[str, ...], rows: np.ndarray | slice, prior: FusionPrior | None = None) -> Fusion:
        """Fuse the signals of some rows."""
        signals = {name: self.columns[name][rows] for name in names}
        return Fusion.fit(signals, self.correct[rows], groups=self.subject[rows], prior=prior)

    def measure(self, fused: Fusion, rows: np.ndarray) -> tuple[float, float, float]:
        """Return ECE in percent, Brier score and AUROC on some rows."""
        signals = {name: self.columns[name][rows] for name in fused.signals}
        p = fused.predictions(signals, self.correct[rows], self.subject[rows])
        return 100 * float(metrics.ece(p)), float(metrics.event_brier(p)), float(metrics.auroc(p))


def read_models() -> list[Answers]:
    """Read the models that have all signals."""
    models: list[Answers] = []
    for _, family, frame in read_answers(SIGNALS[:3]):
        if len(frame) > MIN_ANSWERS:
            columns = {name: frame[name].cast(polars.Float64).to_numpy() for name in SIGNALS}
            models.append(Answers(family, columns, frame["correct"].to_numpy(), frame["category"].to_numpy()))
    return models


def add_pooled(models: list[Answers], signals: tuple[str, ...]) -> list[Answers]:
    """Add the log-odds of trees that were fitted to the models of other families, on the ranks of the signals."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    subjects = np.unique(np.concatenate([m.subject for m in models]))

    def features(m: Answers) -> np.ndarray:
        ranks = [
            np.searchsorted(np.sort(m.columns[s]), m.columns[s], side) for s in signals for side in ("left", "right")
        ]
        return np.stack([*ranks, np.searchsorted(subjects, m.subject) * len(m.subject)], 1) / len(m.subject)

    variables = [features(m) for m in models]
    rows = [np.random.default_rng(1).permutation(len(m.correct))[:POOLED_ROWS] for m in models]
    trees = {}
    for family in {m.family for m in models}:
        parts = [(x[r], m.correct[r]) for m, x, r in zip(models, variables, rows, strict=True) if m.family != family]
        x, y = map(np.concatenate, zip(*parts, strict=True))
        subject = [x.shape[1] - 1]
        forest = HistGradientBoostingClassifier(
            max_iter=150,
            learning_rate=0.08,
            categorical_features=subject,  # pyright: ignore
            random_state=0,
        )
        trees[family] = forest.fit(x, y)
    pooled = [trees[m.family].decision_function(x) for m, x in zip(models, variables, strict=True)]
    return [replace(m, columns=m.columns | {"pooled": z}) for m, z in zip(models, pooled, strict=True)]


def mean_numbers(models: list[Answers], names: tuple[str, ...], draws: int, *, use_prior: bool) -> np.ndarray:
    """Return the mean ECE, Brier score and AUROC over models and draws."""
    fits = [m.fit(names, slice(None)) for m in models] if use_prior else []
    numbers: list[tuple[float, float, float]] = []
    for m in models:
        prior = None
        if use_prior:
            fits_elsewhere = [fit for fit, model in zip(fits, models, strict=True) if model.family != m.family]
            prior = FusionPrior.from_fits(fits_elsewhere)
        for draw in range(draws):
            order = np.random.default_rng(draw).permutation(len(m.correct))
            numbers.append(m.measure(m.fit(names, order[:NUM_LABELS], prior), order[NUM_LABELS:]))
    return np.mean(numbers, axis=0)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=3)
    draws, lines = parser.parse_args().draws, list[list[object]]()
    for signals in (SIGNALS, tuple(name for name in SIGNALS if name != "linguistic")):
        models, label = add_pooled(read_models(), signals), "all signals" if signals == SIGNALS else "no linguistic"
        rows = {
            "own labels": mean_numbers(models, signals, draws, use_prior=False),
            "prior": mean_numbers(models, signals, draws, use_prior=True),
            "prior, pooled": mean_numbers(models, (*signals, "pooled"), draws, use_prior=True),
        }
        lines += [[f"{label}, {name}", f"{e:.2f}", f"{b:.4f}", f"{a:.3f}"] for name, (e, b, a) in rows.items()]
    print(markdown(["fusion", "ECE (%)", "Brier", "AUROC"], lines))


if __name__ == "__main__":
    main()
