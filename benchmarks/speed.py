"""Times are ratios within one run, and every result is checked against a textbook result.

All contenders start from logits. "of floor" is the time over that of `softmax` and `max` of the same tensor, "extra MB"
the peak memory of a call beyond the memory before. The value of a fit is its NLL on other examples.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from calibrant.registry import CALIBRATORS
from torch import Tensor
from torch.nn import functional as F

from benchmarks import _reference as reference
from benchmarks._harness import FLOOR, US, Row, Size, markdown, race
from benchmarks._peers import available
from benchmarks._problems import draw, workload
from calibrant import metrics
from calibrant.calibrators import Temperature
from calibrant.nn import Criterion

TITLE = "Speed"
GRID = (np.arange(1, 1001) / 100).tolist()
SLOW = {  # only in the full run: tens of seconds each
    ("classwise_ece", 1000): {"torch-uncertainty", "uncertainty-calibration", "mapie"},
    ("adaptive_ece", 10): {"uncertainty-calibration"},
    ("temperature", 1000): {"pytorch-ood", "torch-uncertainty", "netcal", "netcal, float32"},
}
TOLERANCE = {"temperature": 1e-4, "smooth_ece": 1e-3, "adaptive_ece": 1e-5}  # else 1e-6


def run(size: Size) -> Iterator[Row]:
    """Yield the rows of all races."""
    for part in (_metrics, _temperature, _grid, _fits, _interval, _losses, _imports):
        yield from part(size)


def _rivals(job: str, k: int, size: Size) -> dict[str, Callable[[Tensor, Tensor], Any]]:
    return {
        contender: work
        for contender, work in available(job).items()
        if size.full or contender not in SLOW.get((job, k), ())
    }


def _metrics(size: Size) -> Iterator[Row]:
    for n, k in (1_000_000, 10), (50_000, 1000):
        z, y = workload(n // size.shrink, k)
        for job in "ece", "adaptive_ece", "classwise_ece", "smooth_ece":
            competitors = _rivals(job, k, size)
            yield from race(
                f"{job} ({len(y):,}, {k})",
                {US: lambda z=z, y=y, job=job: getattr(metrics, job)(z, y)}
                | {contender: lambda z=z, y=y, work=work: work(z, y) for contender, work in competitors.items()},
                lambda z=z: z.softmax(-1).max(-1),
                size.seconds,
                reference=getattr(reference, job)(z, y),
                tolerance=TOLERANCE.get(job, 1e-6),
            )


def _temperature(size: Size) -> Iterator[Row]:
    for n, k in (5000, 100), (50_000, 1000):
        z, y = draw(n // size.shrink, k, temperature=1.5)
        competitors = _rivals("temperature", k, size)
        ours = float(Temperature.fit(z, y).temperature)
        yield from race(
            f"temperature by NLL ({len(y):,}, {k})",
            {US: lambda z=z, y=y: Temperature.fit(z, y).temperature}
            | {contender: lambda z=z, y=y, work=work: work(z, y) for contender, work in competitors.items()},
            lambda z=z: z.softmax(-1).max(-1),
            size.seconds,
            reference=reference.temperature(z, y, ours),
            tolerance=TOLERANCE["temperature"],
        )


def _grid(size: Size) -> list[Row]:
    """Race for the temperature of least ECE among 1000; other packages can only loop."""
    z, y = workload(5000 // size.shrink, 100)

    def loop(ece: Callable[[Tensor, Tensor], Any]) -> Callable[[], float]:
        return lambda: GRID[int(np.argmin([float(ece(z / t, y)) for t in GRID]))]

    names = {"torchmetrics", "relplot", *(("netcal", "torch-uncertainty", "mapie") if size.full else ())}
    ours = {US: lambda: Temperature.fit(z, y, criterion="ece", grid=GRID).temperature}
    entries = ours | {"plain torch": loop(_plain_ece)}
    entries |= {contender: loop(work) for contender, work in available("ece").items() if contender in names}
    return race(
        f"best of 1000 temperatures by ECE ({len(y):,}, 100)",
        entries,
        lambda: z.softmax(-1).max(-1),
        size.seconds,
        reference=reference.grid(z, y, GRID),
    )


def _plain_ece(z: Tensor, y: Tensor) -> Tensor:
    """Return ECE with a mask per bin, as in the code of papers."""
    c, predicted = z.softmax(-1).max(-1)
    right, error = predicted == y, torch.zeros(())
    edges = torch.linspace(0, 1, 16)
    for low, high in pairwise(edges):
        inside = (c > low) & (c <= high)
        if inside.any():
            error = error + (right[inside].float().mean() - c[inside].mean()).abs() * inside.float().mean()
    return error


FITS = {  # ours -> contenders of the same family
    "Vector": ("probmetrics, VectorScalingCalibrator", "torch-uncertainty, VectorScaler"),
    "StructuredVector": ("probmetrics, svs",),
    "StructuredMatrix": ("probmetrics, sms",),
    "Dirichlet": ("torch-uncertainty, DirichletScaler",),
    "Isotonic": (
        "netcal, IsotonicRegression", "scikit-learn, isotonic", "torch-uncertainty, IsotonicRegressionScaler",
        "probmetrics, isotonic",
    ),
    "HistogramBinning": (
        "netcal, HistogramBinning", "torch-uncertainty, HistogramBinningScaler",
        "uncertainty-calibration, HistogramMarginalCalibrator",
    ),
}  # fmt: skip


def _fits(size: Size) -> Iterator[Row]:
    """Race calibrators of one family; the value is the NLL on 20,000 other examples."""
    n, k = (5000, 100) if size.shrink == 1 else (300, 5)
    z, y = workload(n + 20_000 // size.shrink, k)
    test_rows = slice(n, None)

    def held_out(fitted: Callable[[Tensor], Tensor]) -> float:
        after = fitted(z[test_rows].double()).log_softmax(-1)
        return float(F.nll_loss(after.double(), y[test_rows]))

    theirs = available("calibrator")
    for ours, names in FITS.items():
        fit = CALIBRATORS.resolve(ours)
        yield from race(
            f"{ours} fit ({n:,}, {k})",
            {US: lambda fit=fit: fit(z[:n], y[:n])}
            | {
                contender: lambda work=theirs[contender]: work(z[:n], y[:n])
                for contender in names
                if contender in theirs
            },
            lambda: z[:n].softmax(-1).max(-1),
            size.seconds,
            value=held_out,
        )


def _interval(size: Size) -> list[Row]:
    """Race intervals of the L2 calibration error: a formula against a hundred bootstrap samples."""
    z, y = workload(50_000 // size.shrink, 10)
    return race(
        f"interval of the L2 error ({len(y):,}, 10)",
        {US: lambda: metrics.debiased_l2.interval(z, y)}
        | {
            f"{contender}, bootstrap": lambda work=work: work(z, y) for contender, work in available("interval").items()
        },
        lambda: z.softmax(-1).max(-1),
        size.seconds,
        value=lambda answer: getattr(answer, "value", answer),
    )


def _losses(size: Size) -> Iterator[Row]:
    """Race forward and backward passes; the value is the norm of the gradient."""
    z, y = draw(8192 // min(size.shrink, 16), 1000)
    z.requires_grad_()

    def step(criterion: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], Tensor]:
        return lambda: torch.autograd.grad(criterion(z, y), z)[0]

    def plain_focal(z: Tensor, y: Tensor) -> Tensor:
        log_p = z.log_softmax(-1).gather(1, y[:, None]).squeeze(1)
        return (-((1 - log_p.exp()) ** 3) * log_p).mean()

    theirs = {job: {contender: make() for contender, make in available(job).items()} for job in ("focal",)}
    tasks: dict[str, dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
        "cross_entropy": {"torch": F.cross_entropy},
        "cross_entropy(smoothing=0.05)": {"torch": lambda z, y: F.cross_entropy(z, y, label_smoothing=0.05)},
        "focal": {"plain torch": plain_focal} | theirs["focal"],
        "brier": {"plain torch": lambda z, y: (z.softmax(-1) - F.one_hot(y, z.shape[1])).square().sum(1).mean()},
    }
    for name, competitors in tasks.items():
        exact = z.detach().double().requires_grad_()
        baseline = next(iter(competitors.values()))
        yield from race(
            f"{name}, forward and backward ({len(y):,}, 1000)",
            {US: step(Criterion(name))} | {contender: step(rival) for contender, rival in competitors.items()},
            lambda: z.detach().softmax(-1),
            size.seconds,
            value=lambda gradient: float(gradient.double().norm()),
            reference=float(torch.autograd.grad(baseline(exact, y), exact)[0].norm()),
            tolerance=1e-6,
        )


MODULES = {
    US: ("calibrant.metrics", "calibrant.calibrators"),
    "torch": ("torch",),
    "scikit-learn": ("sklearn.calibration",),
    "torchmetrics": ("torchmetrics",),
    "netcal": ("netcal.metrics", "netcal.scaling"),
    "probmetrics": ("probmetrics.calibrators", "probmetrics.metrics"),
    "relplot": ("relplot",),
    "mapie": ("mapie.calibration",),
    "uncertainty-calibration": ("calibration",),
    "betacal": ("betacal",),
}


def _imports(size: Size) -> Iterator[Row]:
    """Measure processor time and memory of `import`, each in its own process."""
    code = (
        "import time; t = time.process_time(); {}; print(time.process_time() - t, "
        "int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) / 1024)"
    )
    repeats = 1 + int(size.seconds > 0) * 2
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    seconds: dict[str, tuple[float, float]] = {}
    for _ in range(repeats):
        for contender, modules in MODULES.items():
            lines_of_text = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", code.format("import " + ", ".join(modules))],
                capture_output=True, text=True, check=False, env=environment,
            )  # fmt: skip
            if lines_of_text.returncode == 0:
                took, mb = map(float, lines_of_text.stdout.split()[-2:])
                seconds[contender] = min(seconds.get(contender, (np.inf, 0)), (took, mb))
    for contender, (took, mb) in {FLOOR: seconds["torch"], **seconds}.items():
        of = {"of_floor": took / seconds["torch"][0], "of_ours": took / seconds[US][0]}
        yield {"task": "import", "contender": contender, "ms": 1e3 * took, "extra_mb": mb, "runs": repeats, **of}


COLUMNS = "ms", "of_floor", "of_ours", "extra_mb", "value", "off"
SINGLE = "Its softmax is in single precision and whole; ours is in double, in pieces that stay in cache."
TORCH = "It does not load torch, whose import is most of ours."
ACCEPTED = {  # part of the task, faster contender -> why it is faster
    **{
        ("ece (50,000", contender): SINGLE
        for contender in ("mapie", "uncertainty-calibration", "torch-uncertainty", "pytorch-ood")
    },
    (
        "StructuredMatrix",
        "probmetrics, sms",
    ): "It stops early: log-probabilities are some hundredths from the optimum.",
    ("Dirichlet", "torch-uncertainty, DirichletScaler"): (
        "It fits once, without a penalty, and overfits; ours chooses the penalty by cross-validation."
    ),
    ("temperature", "netcal, float32"): "It always returns T = 1.",
    (
        "cross_entropy",
        "torch",
    ): "Torch has one fused kernel; ours returns the loss of every example, in a third of the memory.",
    (
        "focal",
        "plain torch",
    ): "It computes 1 - p, which cancels near p = 1; ours is exact, in less memory.",
    **{("import", contender): TORCH for contender in ("scikit-learn", "mapie", "uncertainty-calibration", "betacal")},
    ("import", "torch"): "The floor.",
}


def page(rows: list[Row]) -> str:
    """Return the table, and who is faster than Calibrant."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    first, lost, lines = 0, list[str](), list[list[object]]()
    for task in tasks:
        task_rows = [row for row in rows if row["task"] == task]
        rivals = [row for row in task_rows if row["contender"] not in (FLOOR, US) and "of_ours" in row]
        faster = [row for row in rivals if row["of_ours"] < 1 / 1.05]
        right = [row for row in faster if row.get("right", True)]
        first += not right
        for row in faster:
            why = next(
                (why for (part, contender), why in ACCEPTED.items() if part in task and contender == row["contender"]),
                "",
            )
            wrong = "" if row.get("right", True) else f", with an error of {row['off']:.1e}"
            lost.append(
                f"- **{task}**: {row['contender']} takes {row['of_ours']:.2f} of our time{wrong}. {why}".rstrip()
            )
        for row in task_rows:
            bold = f"**{row['contender']}**" if row["contender"] == US else row["contender"]
            note = row.get("note", "" if row.get("right", True) else "wrong")
            lines.append([task if row is task_rows[0] else "", bold, *(row.get(column) for column in COLUMNS), note])
    head = ["task", "contender", "ms", "of floor", "of ours", "extra MB", "value", "off", ""]
    lines_of_text = [f"First in {first} of {len(tasks)} races, among contenders with a correct result."]
    lines_of_text += ["", "Faster contenders:", "", *lost] if lost else []
    if not any(
        "uncertainty-calibration" in row["contender"] and row["task"].startswith("classwise_ece (50,") for row in rows
    ):
        late = "; ".join(
            f"{job} at {k} classes: {', '.join(sorted(contender))}" for (job, k), contender in SLOW.items()
        )
        lines_of_text += ["", f"Contenders that take tens of seconds only run in `make bench-full` ({late})."]
    return "\n".join([*lines_of_text, "", markdown(head, lines)])
