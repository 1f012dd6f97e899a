"""One's own methods are tried on made-up predictions before anything is trained: what can fail then, fails now."""

import copy
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

import torch

from calibrant import calibrators, losses
from calibrant._text import to_one_line
from calibrant.lab.study.config import Run, Study
from calibrant.predictions import Predictions
from calibrant.registry import Method
from calibrant.types import InputError, Loss

EXAMPLES_PER_CLASS = 20


def user_methods(study: Study, runs: Iterable[Run]) -> set[Method]:
    """Return the losses, calibrators and metrics that are not this package's own."""
    methods = {*(run.loss for run in runs), *study.calibrators, *study.metrics}
    return {method for method in methods if not method.target.__module__.startswith("calibrant.")}


def check_user_methods(study: Study, runs: Sequence[Run], k: int) -> None:
    """Call one's own losses, calibrators and metrics on predictions of `k` classes.

    Raises `InputError` with the reason if one of them fails.
    """
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(EXAMPLES_PER_CLASS * k, k, generator=g)
    p = Predictions(logits, logits.softmax(-1).multinomial(1, generator=g).squeeze(1))
    checked = user_methods(study, runs)
    for loss, epochs in {run.loss: run.recipe.epochs for run in runs if run.loss in checked}.items():
        with _explain_failure(loss, k):
            epoch_loss = losses.for_epochs(copy.deepcopy(loss.bound_function), epochs)
            _check_gradient(losses.for_counts(epoch_loss, p.labels.bincount(minlength=k)), p)
    p = p.double()
    for calibrator in filter(checked.__contains__, study.calibrators):
        with _explain_failure(calibrator, k):
            p.apply(calibrators.fit(calibrator, p))
    for metric in filter(checked.__contains__, study.metrics):
        with _explain_failure(metric, k):
            float(metric(p))


def _check_gradient(loss: Loss, p: Predictions) -> None:
    z = p.logits.clone().requires_grad_()
    values = loss(z, p.labels)
    if values.shape != p.labels.shape:
        raise InputError(
            f"it must return the loss of every example, {tuple(p.labels.shape)}, got {tuple(values.shape)}",
            code="loss_shape",
        )
    values.sum().backward()


@contextmanager
def _explain_failure(method: Method, k: int) -> Generator[None]:
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        reason = kind + to_one_line(error)
        code = error.code if isinstance(error, InputError) else "method_failed"
        raise InputError(f"{method} fails on made-up predictions of {k} classes: {reason}", code=code) from error
