"""Constant models, which give every example the same probabilities: a requirement that they meet is no gate."""

from collections.abc import Iterator, Sequence

import numpy as np

from calibrant._core.types import InputError
from calibrant.monitoring._bounds import stated_answers
from calibrant.monitoring._features import class_shares, used_groups
from calibrant.monitoring._requirement import Requirement
from calibrant.predictions import Predictions


def passing_constants(requirements: Sequence[Requirement], p: Predictions, *, by_group: bool) -> tuple[str, ...]:
    """Return the constant models that meet every requirement: "base rate" and, for the event of a class, "0".

    Requirements relative to an old model are taken as not met.
    """
    if any(requirement.is_relative for requirement in requirements):
        return ()
    groups = [None, *used_groups(p)] if by_group else [None]

    def meets_all(model: Predictions) -> bool:
        """Return whether a model meets the requirements with all examples, and in each group."""
        parts = (model if group is None else model.select_group(group) for group in groups)
        return all(_meets(requirement, part) for part in parts for requirement in requirements)

    return tuple(name for name, model in _constant_models(p) if meets_all(model))


def _constant_models(p: Predictions) -> Iterator[tuple[str, Predictions]]:
    """Yield the names of constant models, and their predictions of the same examples."""
    shares = class_shares(p, p.labels)
    yield "base rate", _with_probabilities(p, shares)
    if isinstance(p.of, int) and shares[p.of] < 1:
        other_shares = shares.copy()
        other_shares[p.of] = 0.0
        yield "0", _with_probabilities(p, other_shares / other_shares.sum())


def _with_probabilities(p: Predictions, probs: np.ndarray) -> Predictions:
    """Return predictions with the same class probabilities (k) for every example."""
    with np.errstate(divide="ignore"):  # -inf for the probability 0
        return p.with_logits(np.tile(np.log(probs), (len(p), 1)))


def _meets(requirement: Requirement, p: Predictions) -> bool:
    """Return whether the value of a metric meets a requirement; a slope, which a constant lacks, does not."""
    method = requirement.method
    try:
        return requirement.is_met(float(requirement.metric(stated_answers(method, p), **method.settings)))
    except InputError:
        return False
