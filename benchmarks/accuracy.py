"""All calibrators, ours and those of other packages, are fitted and evaluated on the same predictions.

Real predictions are fitted on validation and evaluated on test data; simulated ones are evaluated on 20,000 new
examples with known true probabilities. Differences to Auto are paired over the test examples, with 95 % intervals.
"""

import math
import re
from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
import torch
from calibrant.registry import CALIBRATORS, METRICS
from torch import Tensor

from benchmarks._harness import US, Row, Size, clock, markdown, quiet, reason
from benchmarks._peers import available
from benchmarks._problems import REAL, Problem, real, simulated
from calibrant import Predictions
from calibrant._core.tensors import logit_tensor

TITLE = "Accuracy of calibration"
AUTO = f"{US}, Auto"
CHAIN = "Chain(first='Monotone', second='StructuredMatrix')"
MAIN = ["Auto", "Auto(accuracy_preserving=True)", "Identity", "Temperature", "SmoothedTemperature", "StructuredVector"]
MAIN += ["StructuredMatrix", "Monotone", CHAIN, "EnsembleTemperature", "Vector", "Isotonic", "HistogramBinning"]
REASONS = {  # why Auto is beaten on a problem
    "sctl_cifar10LT": "The classes are long-tailed in the data to fit and balanced in the test data, so that what is "
    "learned of classes misleads",
    "simulated: temperature": "A temperature is the true model; Auto pays for trying others, and for its bound on the "
    "cost of any error",
    "simulated: not affine": "There are too few examples to find the curvature; pure scaling saves the search",
    "simulated": "One family contains the true model; Auto pays for weighting several",
}
PATIENCE = 45.0  # seconds; slower contenders are skipped for the same number of classes
QUICK = (
    "scikit-learn", "probmetrics", "torch-uncertainty", "netcal, TemperatureScaling", "netcal, HistogramBinning",
    "uncertainty-calibration",
)  # fmt: skip
Fit = Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]]


def run(size: Size) -> Iterator[Row]:
    """Fit and evaluate every calibrator on every problem."""
    spent: dict[tuple[str, int], float] = {}
    for problem in _problems(size):
        yield from judge(problem, contenders(size, MAIN), spent)


def _problems(size: Size) -> Iterator[Problem]:
    if size.name == "tiny":
        yield from list(simulated((300,), 1, test_rows=1000))[:1]
        return
    yield from real()
    yield from simulated(repeats=5 if size.full else 1)


def contenders(size: Size, main: list[str]) -> dict[str, Fit]:
    """Return our calibrators, the main ones or all, and those of other packages."""
    names = [*main, *(name for name in CALIBRATORS if name not in main and name != "Chain")] if size.full else main
    ours: dict[str, Fit] = {f"{US}, {name}": CALIBRATORS.resolve(name) for name in names}
    return ours | {
        contender: fit for contender, fit in available("calibrator").items() if size.full or contender.startswith(QUICK)
    }


def judge(problem: Problem, fits: dict[str, Fit], spent: dict[tuple[str, int], float]) -> Iterator[Row]:
    """Yield a row per contender on one problem. Contenders whose time in `spent` exceeds PATIENCE are skipped."""
    z, y = logit_tensor(problem.fit), torch.from_numpy(problem.fit.labels)
    test_logits, labels = logit_tensor(problem.test).double(), torch.from_numpy(problem.test.labels)
    k = z.shape[1]
    auto: Tensor | None = None
    for contender, fit in fits.items():
        row: Row = {"problem": problem.name, "k": k, "n": problem.n, "contender": contender}
        if spent.get((contender, k), 0) > PATIENCE:
            yield row | {"note": f"skipped: it took {spent[contender, k]:.0f} s before"}
            continue
        try:
            with quiet():
                start = clock()
                fitted = fit(z, y)
                seconds = spent[contender, k] = clock() - start
                after = fitted(test_logits).double().log_softmax(-1)
        except Exception as error:  # such as binary calibrators, or absent classes
            yield row | {"note": reason(error)}
            continue
        loss = (-after.gather(1, labels[:, None]).squeeze(1)).nan_to_num(nan=math.inf)  # such as all-zero rows
        auto = loss if contender == AUTO else auto
        loss_gap = loss - auto if auto is not None else loss
        half = 1.96 * float(loss_gap.std()) / math.sqrt(len(loss_gap))
        yield row | {
            "nll": float(loss.mean()),
            **_measured(after, labels),
            "excess_over_bayes": float(loss.mean()) - problem.bayes,
            "worse_than_auto": float(loss_gap.mean()),
            "half_interval": half,
            "seconds": seconds,
        }


def _measured(log_p: Tensor, labels: Tensor) -> Row:
    """Return further metrics; nan if some rows have no probabilities."""
    names = "brier", "ece", "noise_floor", "accuracy"
    if bool(log_p.isnan().any()):
        return dict.fromkeys(names, math.nan)
    p = Predictions(log_p, labels, of=1 if log_p.shape[1] == 2 else "top")
    return {name: float(METRICS[name](p)) for name in names}


# The page


def page(rows: list[Row]) -> str:
    """Return mean results by kind of problem, and where another package is significantly better than Auto."""
    kinds = {
        "Real predictions": [row for row in rows if not row["problem"].startswith("simulated")],
        "Simulated predictions": [row for row in rows if row["problem"].startswith("simulated")],
    }
    text = [] if kinds["Real predictions"] else [f"There are no real predictions in {REAL.parent.name}/{REAL.name}."]
    for kind, rows_of_kind in kinds.items():
        if rows_of_kind:
            text += [f"### {kind}", "", _beaten(rows_of_kind), "", _summary(rows_of_kind), ""]
    failed = sorted({f"{row['contender']}: {re.sub('[0-9]+', 'N', row['note'])}" for row in rows if "note" in row})
    text += ["Some calibrators fail on some problems:", "", *(f"- {line}" for line in failed)] if failed else []
    return "\n".join(text)


def _summary(rows: list[Row]) -> str:
    """Return a table with a row per calibrator that fitted every problem."""
    problems = list(dict.fromkeys((row["problem"], row["n"]) for row in rows))
    table = {(row["problem"], row["n"], row["contender"]): row for row in rows if "nll" in row}
    everyone = list(dict.fromkeys(row["contender"] for row in rows))
    everywhere = [contender for contender in everyone if all((*at, contender) in table for at in problems)]
    won = {n: win_rates([at for at in problems if n in (0, at[1])], everywhere, table) for n in (0, 300, 1000, 5000)}
    lines: list[list[object]] = []
    for contender in sorted(everywhere, key=lambda contender: -won[0][contender]):
        rows_of_kind = [table[*at, contender] for at in problems]
        gap = np.array([row["worse_than_auto"] for row in rows_of_kind])
        mean = {
            key: float(np.mean([row[key] for row in rows_of_kind]))
            for key in ("brier", "ece", "noise_floor", "accuracy")
        }
        certain = math.isfinite(gap.sum()) and contender != AUTO
        half = 1.96 * float(gap.std(ddof=1)) / math.sqrt(len(gap)) if certain and len(gap) > 1 else math.nan
        excess = [row["excess_over_bayes"] for row in rows_of_kind if "excess_over_bayes" in row]
        cells = [f"**{contender}**" if contender.startswith(US) else contender]
        cells += [f"{won[n][contender]:.3f}" if won[n] else "" for n in won]
        cells += [f"{np.mean([row['nll'] for row in rows_of_kind]):.4f}"]
        cells += [f"{gap.mean():+.4f}" + ("" if math.isnan(half) else f" ± {half:.4f}")]
        cells += [f"{np.mean(excess):.4f}" if excess and not math.isnan(sum(excess)) else ""]
        cells += [f"{mean['brier']:.4f}", f"{100 * mean['ece']:.2f}", f"{100 * mean['noise_floor']:.2f}"]
        lines.append(
            [
                *cells,
                f"{100 * mean['accuracy']:.2f}",
                f"{1e3 * np.median([row['seconds'] for row in rows_of_kind]):,.0f}",
            ]
        )
    head = ["calibrator", "wins", "n = 300", "1000", "5000", "NLL", "minus Auto's", "over Bayes"]
    head += ["Brier", "ECE15 %", "floor %", "accuracy %", "fit ms"]
    sentence = (
        f"{len(problems)} problems. Wins are shares of pairwise comparisons in log loss, with ties counted half, over\n"
        "all problems and by the number of examples to fit. The other columns are means over the problems, with a\n"
        "95 % interval over problems for the difference to Auto, and the median fit time. Calibrators that failed on\n"
        "a problem are left out."
    )
    return sentence + "\n\n" + markdown(head, lines)


def win_rates(problems: list[tuple[str, int]], everyone: list[str], table: dict[tuple, Row]) -> dict[str, float]:
    """Return the share of pairwise comparisons that each contender wins; ties count half."""
    points = dict.fromkeys(everyone, 0.0)
    for at in problems:
        for a, b in combinations(everyone, 2):
            first, second = table[*at, a]["nll"], table[*at, b]["nll"]
            share = 0.5 if first == second else float(first < second)
            points[a] += share
            points[b] += 1 - share
    games = len(problems) * (len(everyone) - 1)
    return {contender: score / games for contender, score in points.items()} if games else {}


def _beaten(rows: list[Row]) -> str:
    """List problems where another package is significantly better than Auto; repeats of a simulation count as one."""
    gaps: dict[tuple[str, int], dict[str, list[Row]]] = {}
    for row in rows:
        if "nll" in row and not row["contender"].startswith(US):
            at = row["problem"].split(" #")[0], row["n"]
            gaps.setdefault(at, {}).setdefault(row["contender"], []).append(row)
    lines: list[str] = []
    best = 0
    for at, rivals in gaps.items():
        num_repeats = max(map(len, rivals.values()))
        gap_by_contender = {
            contender: _together(rows_of_kind)
            for contender, rows_of_kind in rivals.items()
            if len(rows_of_kind) == num_repeats
        }
        best += all(gap >= 0 for gap, _ in gap_by_contender.values())
        certain = {contender: (gap, half) for contender, (gap, half) in gap_by_contender.items() if gap + half < 0}
        if certain:
            contender, (gap, half) = min(certain.items(), key=lambda item: item[1])
            why = next((f". {why}." for start, why in REASONS.items() if at[0].startswith(start)), "")
            lines.append(f"- {at[0]}, n = {at[1]:.0f}: {contender}, {gap:+.4f} ± {half:.4f} nats{why}")
    sentence = f"Auto has a lower NLL than every calibrator of another package on {best} of {len(gaps)} problems"
    sentence += ", with repeats averaged. " if len(gaps) < len({(row["problem"], row["n"]) for row in rows}) else ". "
    if not lines:
        return sentence + "No other package is better by more than the paired 95 % interval."
    sentence += "Better than Auto by more than the paired 95 % interval (the best package each time):"
    return "\n".join([sentence, "", *lines])


def _together(repeats: list[Row]) -> tuple[float, float]:
    """Return the mean difference to Auto over repeats of a problem, and half its 95 % interval."""
    gap = sum(row["worse_than_auto"] for row in repeats) / len(repeats)
    return gap, math.hypot(*(row["half_interval"] for row in repeats)) / len(repeats)
