"""What every fit says of itself, filled in one place."""

import math
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from calibrant import catalog, metrics
from calibrant._bins import judge
from calibrant._solve import Certificate, Status
from calibrant._types import Metric
from calibrant.predictions import digest

__all__: list[str] = []

C = TypeVar("C")


def certify(
    fitted: C,
    logits: Tensor,
    labels: Tensor,
    status: Status,
    *,
    criterion: str = "nll",
    gradient: float = math.nan,
    iterations: int = 1,
    standard_error: float = math.nan,
) -> C:
    """Return the fitted map with its certificate: what it changed, and the digest of the data."""
    apply: Any = fitted
    metric: Metric = catalog.resolve(criterion, metrics)
    z = logits.double()
    after = apply(z)
    judged = judge(logits, labels), judge(after, labels)
    nll = [0.0 - float(each.log_likelihood.mean()) for each in judged]  # never -0
    accuracy = [float(each.correct.mean()) for each in judged]
    certificate = Certificate(
        criterion=criterion,
        before=nll[0] if criterion == "nll" else float(metric(z, labels)),
        after=nll[1] if criterion == "nll" else float(metric(after, labels)),
        status=status,
        gradient=gradient,
        iterations=iterations,
        nll_before=nll[0],
        nll_after=nll[1],
        accuracy_before=accuracy[0],
        accuracy_after=accuracy[1],
        standard_error=standard_error,
        data=digest(logits, labels),
    )
    return replace(apply, certificate=certificate)
