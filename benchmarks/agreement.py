"""All packages compute the same number of the same predictions; differences above 1e-6 are explained.

"exact" is the textbook result in plain numpy and float64. The second table has predictions for which some result is
wrong, not only rounded or defined differently.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks import _reference as reference
from benchmarks._harness import US, Row, Size, markdown, quiet, reason
from benchmarks._peers import available
from benchmarks._problems import draw, workload
from calibrant import metrics
from calibrant.calibrators import Temperature

TITLE = "Agreement"
JOBS = "ece", "adaptive_ece", "classwise_ece", "smooth_ece"
SINGLE = "float32 inside"
QUANTILES = "bins end at interpolated quantiles and have unequal counts"
TORCHMETRICS = "sequential float32 sums, and confidence 1.0 in its own bin"
ENDS = "a mirrored grid counts confidence 1.0 once, not twice; the width is accurate to 1e-3"
REASONS = {  # contender, job -> why they differ
    ("torchmetrics", "ece"): TORCHMETRICS,
    ("torch-uncertainty", "ece"): TORCHMETRICS + " (torchmetrics inside)",
    (
        "probmetrics",
        "ece",
    ): "clamps at 1e-7, drops classes without a label, and divides by the rest",
    ("relplot", "ece"): "bins are [lo, hi), and confidence 1.0 has its own bin",
    ("netcal", "ece"): "bins are [lo, hi)",
    ("netcal", "adaptive_ece"): QUANTILES,
    ("mapie", "adaptive_ece"): QUANTILES,
    ("uncertainty-calibration", "adaptive_ece"): "edges halfway between examples; ties are not divided",
    ("torch-uncertainty", "adaptive_ece"): "ties are cut by row order; " + SINGLE,
    ("pytorch-ood", "adaptive_ece"): "n // 15 in a bin and the rest in the last; ties are cut by row order",
    ("torch-uncertainty", "classwise_ece"): TORCHMETRICS + " (torchmetrics inside)",
    ("relplot", "smooth_ece"): ENDS,
    ("probmetrics", "smooth_ece"): ENDS + " (relplot inside)",
    ("torch-uncertainty", "smooth_ece"): ENDS + ", as relplot",
}


TEMPERATURE = {
    "pytorch-ood": "50 steps of L-BFGS at rate 0.01: not converged",
    "netcal, float32": "finite differences vanish in float32: T stays 1",
    "netcal": "clips probabilities",
    "torch-uncertainty": "L-BFGS without a line search diverges, or stops early",
    "scikit-learn": "stops early",
    "probmetrics, L-BFGS": "stops early",
}
Ask = Callable[[Tensor, Tensor], float]


def run(size: Size) -> Iterator[Row]:
    """Yield the rows of both tables."""
    yield from _same_predictions(size)
    yield from _certain()
    yield from _absent_classes()
    yield from _shuffled(size)
    yield from _scaled(size)
    if size.full:
        yield from _many_samples()


def _contenders(job: str) -> dict[str, Ask]:
    return {US: lambda z, y: float(getattr(metrics, job)(z, y))} | available(job)


def _ask(
    case: str,
    job: str,
    exact: float,
    entries: dict[str, Ask],
    versions: list[tuple[Tensor, Tensor]],
    explain: Callable[[str, list[float]], str],
    *,
    wrong: bool = True,
) -> Iterator[Row]:
    """Yield a row per contender for versions of the predictions with the same correct result."""
    for contender, ask in entries.items():
        row: Row = {"case": case, "job": job, "contender": contender, "exact": exact, "wrong": wrong}
        try:
            with quiet():
                answers = [float(ask(z, y)) for z, y in versions]
        except Exception as error:
            yield row | {"why": reason(error)}
            continue
        off = max(abs(x - exact) for x in answers)
        yield row | {"value": answers[0], "off": off, "why": explain(contender, answers) if off > 1e-6 else ""}


def _why(job: str) -> Callable[[str, list[float]], str]:
    return lambda contender, answers: REASONS.get((contender, job), "not explained yet")


def _same_predictions(size: Size) -> Iterator[Row]:
    """Compare on confidences all over (0, 1) in float64, then with ties and saturation in float32."""
    n = 100_000 // size.shrink
    spread, saturated = draw(n, 10, temperature=1.3, spread=1.5), workload(n, 10)
    for case, z, y in ("spread out, float64", spread[0].double(), spread[1]), ("saturated, float32", *saturated):
        for job in JOBS:
            exact = getattr(reference, job)(z, y)
            yield from _ask(case, job, exact, _contenders(job), [(z, y)], _why(job), wrong=False)


def _certain() -> Iterator[Row]:
    """Compare on confidences of which half are exactly 1.0 and 80 % correct, and half .95 and all correct."""
    n = 1000
    z = torch.zeros(n, 2)
    z[: n // 2, 0], z[n // 2 :, 0] = 50.0, float(np.log(19))
    y = torch.zeros(n, dtype=torch.int64)
    y[: n // 10] = 1
    why = lambda contender, answers: "confidence 1.0 has its own bin"  # noqa: E731
    yield from _ask("half of the confidences are 1.0", "ece", reference.ece(z, y), _contenders("ece"), [(z, y)], why)


def _absent_classes() -> Iterator[Row]:
    """Compare on more classes than examples."""
    z, y = workload(500, 1000)
    exact = reference.ece(z, y)
    yield from _ask("500 examples of 1000 classes", "ece", exact, _contenders("ece"), [(z, y)], _why("ece"))


def _shuffled(size: Size) -> Iterator[Row]:
    """Compare on the same rows in other orders, with confidences of one decimal as from histogram binning."""
    g = torch.Generator().manual_seed(0)
    c = torch.randint(5, 10, (1000,), generator=g).double() / 10
    y = (torch.rand(1000, generator=g) > c - 0.1).long()
    z = torch.stack([c, 1 - c], 1).log()
    orders = [torch.randperm(1000, generator=g) for _ in range(20 if size.shrink == 1 else 2)]

    def why(contender: str, answers: list[float]) -> str:
        if max(answers) - min(answers) < 1e-6:
            return REASONS.get((contender, "adaptive_ece"), "not explained yet")
        return f"from {min(answers):.4f} to {max(answers):.4f}: ties are cut by row order"

    versions = [(z[order], y[order]) for order in orders]
    exact, everyone = reference.adaptive_ece(z, y), _contenders("adaptive_ece")
    yield from _ask("the same rows in other orders", "adaptive_ece", exact, everyone, versions, why)


def _scaled(size: Size) -> Iterator[Row]:
    """Compare temperatures of logits times 0.1, 1 and 10, divided by that factor."""
    z, y = draw(4000 // min(size.shrink, 10), 20, temperature=1.5)
    exact = reference.temperature(z, y, 1.5)
    entries = {US: lambda z, y: float(Temperature.fit(z, y).temperature)} | available("temperature")

    def why(contender: str, answers: list[float]) -> str:
        is_close = abs(answers[0] - exact) < 1e-4 * exact
        return "stops within 1e-4" if is_close else TEMPERATURE.get(contender, "not explained yet")

    for scale in 0.1, 1.0, 10.0:
        scaled = {contender: (lambda z, y, fit=fit: fit(scale * z, y) / scale) for contender, fit in entries.items()}  # noqa: B023
        yield from _ask(f"logits times {scale:g}", "temperature", exact, scaled, [(z, y)], why)


def _many_samples() -> Iterator[Row]:
    """Compare on more examples in a bin than float32 can count."""
    n = 34_000_000
    z = torch.tensor([1.0, 0.0]).log_softmax(-1).expand(n, 2).contiguous()
    y = (torch.arange(n) % 2 == 0).long()
    exact = float(torch.tensor([1.0, 0.0], dtype=torch.float64).softmax(-1)[0]) - 0.5
    subset = {
        contender: work
        for contender, work in _contenders("ece").items()
        if contender in (US, "torchmetrics", "relplot")
    }
    why = lambda contender, answers: "float32 counts stop at 2^24" if contender == "torchmetrics" else "rounded"  # noqa: E731
    yield from _ask(f"{n:,} equal confidences", "ece", exact, subset, [(z, y)], why)


def page(rows: list[Row]) -> str:
    """Return both tables."""
    text: list[str] = []
    for wrong, title in (False, "The same predictions"), (True, "Where an answer is wrong"):
        table_rows = [row for row in rows if bool(row.get("wrong")) == wrong]
        last_case = ""
        lines: list[list[object]] = []
        for row in table_rows:
            at = f"{row['job']}: {row['case']}"
            contender = f"**{row['contender']}**" if row["contender"] == US else row["contender"]
            exact = f"{row['exact']:.7f}" if at != last_case else ""
            value = f"{row['value']:.7f}" if "value" in row else ""
            lines.append([at if at != last_case else "", exact, contender, value, row.get("off"), row.get("why")])
            last_case = at
        text += [
            f"### {title}",
            "",
            markdown(["predictions", "exact", "contender", "value", "off", "reason"], lines),
            "",
        ]
    return "\n".join(text)
