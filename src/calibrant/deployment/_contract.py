"""Contracts: a calibrator and the requirements tested for it, in one file with a checksum."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.files import provenance
from calibrant._core.lazy import LazyModule
from calibrant._core.numbers import format_percent
from calibrant._core.types import Alpha, Array, HighLevel, InputError, OpenFraction, check_arguments
from calibrant.decisions import CertifiedThreshold, Sets, SetScore, certify_threshold, save_atomically
from calibrant.io.formats import CONTRACT_SUFFIX
from calibrant.monitoring import CheckResult, check
from calibrant.predictions import EventSelector, Predictions, as_predictions

calibrators: Any = LazyModule("calibrant.calibrators")  # which takes long to load

_SEAL_CHARACTERS = 12  # digits of the seal in texts


@dataclass(frozen=True, eq=False)
class Contract:
    """A fitted calibrator with the requirements, the threshold and the sets that were tested on a reference.

    `create` tests a calibrator on labeled predictions that are new to it, and `save` writes everything to one file with
    a checksum. The seal is a digest of all fields. It protects against accidents and mistakes; against forgery, compare
    it with one that was noted elsewhere.
    """

    calibrator: Any
    requirements: tuple[str, ...]  # that held on the reference
    verdicts: tuple[str, ...]  # the value and the bounds of each requirement
    level: float  # probability that a verdict on a requirement is not wrong
    threshold: CertifiedThreshold | None
    sets: Sets | None
    of: EventSelector  # event of requirements and threshold
    k: int
    class_names: tuple[str, ...] | None
    n: int  # examples of the reference
    data: str  # digest of the reference
    version: str  # of Calibrant
    time: str

    @classmethod
    @check_arguments
    def create(
        cls,
        calibrator: Any,
        predictions: Predictions,
        *,
        require: Sequence[str] = (),
        level: HighLevel = 0.95,
        risk: OpenFraction | None = None,
        delta: Alpha = 0.1,
        alpha: Alpha | None = None,
        score: SetScore = "lac",
        of: str | int | None = None,
    ) -> "Contract":
        """Test a calibrator on new labeled predictions, and return a contract on the requirements that hold.

        Args:
            calibrator: A fitted calibrator.
            predictions: Labeled predictions as the network gives them, which neither the network nor the calibrator
                has seen.
            require: Requirements as in `check`, without relative ones. All must hold.
            level: Probability that the verdict on a requirement is not wrong.
            risk: Largest share of errors among the predictions that are acted on; see `certify_threshold`.
            delta: Probability that the promise of the threshold is broken.
            alpha: Probability that a prediction set misses the true class; see `Sets.fit`.
            score: Nonconformity score of the sets.
            of: Event of the requirements and the threshold. Default: the positive one of two classes, else the
                predictions' event.

        Raises:
            InputError: If the calibrator has seen the predictions, a requirement does not hold, or no threshold can
                be certified.
        """
        require = [require] if isinstance(require, str) else require
        with as_predictions(predictions) as p:
            calibrated = calibrators.calibrate(calibrator, p.double()).with_default_event(of)
            verdicts = _check_holds(check(calibrated, require, of=calibrated.of, level=level)) if require else ()
            threshold = None if risk is None else certify_threshold(calibrated, risk=risk, delta=delta)
            if threshold is not None and not threshold.is_certified:
                raise InputError(threshold.reason, code="not_certified")
            return cls(
                calibrator=calibrator,
                requirements=tuple(require),
                verdicts=verdicts,
                level=level,
                threshold=threshold,
                sets=None if alpha is None else Sets.fit(calibrated, alpha=alpha, score=score),
                of=calibrated.of,
                k=p.k,
                class_names=p.class_names,
                n=p.num_examples,
                data=p.digest,
                **provenance(),
            )

    def __str__(self) -> str:
        seal, name = self.seal[:_SEAL_CHARACTERS], type(self.calibrator).__name__
        lines = [f"Contract {seal}: {name} for {self.k} classes, tested on {self.n:,} examples."]
        lines += [f"Required, and held: {text}" for text in self.verdicts]
        if self.threshold is not None:
            lines.append(self.threshold.reason)
        if self.sets is not None:
            lines.append(f"Prediction sets contain the class with probability {format_percent(1 - self.sets.alpha)}.")
        return "\n".join(lines)

    @cached_property
    def seal(self) -> str:
        """SHA-256 digest of all fields, as hex digits."""
        return calibrators.content_digest(self)

    @property
    def is_consistent(self) -> bool:
        """Whether the fields fit together, as in a file that is not damaged."""
        sets_fit = self.sets is None or (self.sets.k, self.sets.class_names) == (self.k, self.class_names)
        return sets_fit and calibrators.num_classes(self.calibrator) in (None, 0, self.k)  # None, 0: any number

    # Use

    def calibrate(self, predictions: Predictions) -> Predictions:
        """Return new predictions, as the network gives them, calibrated.

        Raises:
            InputError: If the classes are others, or the calibrator was fitted on these predictions.
        """
        p = predictions.reorder_classes(self.class_names)
        if p.k != self.k:
            raise InputError(f"Expected predictions of {self.k} classes, got {p.k}.", code="num_classes")
        return calibrators.calibrate(self.calibrator, p.double()).with_event(self.of)

    def check(self, predictions: Predictions, *, by_group: bool = False) -> CheckResult:
        """Check the requirements on new labeled predictions, as the network gives them.

        Raises:
            InputError: If there are no requirements.
        """
        requirements = _get_part(self.requirements, "requirements", option="require=...", code="no_requirement")
        calibrated = self.calibrate(predictions)
        result = check(calibrated, requirements, of=self.of, by_group=by_group, level=self.level)
        new_notes = calibrated.notes[len(predictions.notes) :]  # such as rows that the calibrator was fitted on
        return replace(result, notes=(*result.notes, *new_notes))

    def acts_on(self, predictions: Predictions) -> np.ndarray:
        """Return whether to act on each new prediction (n), as the network gives it, or to abstain.

        Raises:
            InputError: If there is no threshold.
        """
        threshold = _get_part(self.threshold, "a threshold", option="risk=0.05", code="no_threshold")
        return threshold.acts_on(self.calibrate(predictions))

    def prediction_sets(self, predictions: Predictions) -> Array:
        """Return the prediction sets (n, k) of new predictions, as the network gives them.

        Raises:
            InputError: If there are no sets.
        """
        sets = _get_part(self.sets, "prediction sets", option="alpha=0.1", code="no_sets")
        return sets.apply(self.calibrate(predictions))

    # Files

    def save(self, path: str | Path) -> None:
        """Write the contract to a .contract file, which has the format of calibrators."""
        save_atomically(self, path, CONTRACT_SUFFIX)

    @classmethod
    def load(cls, path: str | Path) -> "Contract":
        """Read a contract.

        Raises:
            InputError: If the file is no contract, is damaged, or was changed.
        """
        contract: Contract = calibrators.load_instance(path, cls, [CertifiedThreshold, Sets])  # classes of its parts
        if contract.threshold is None:
            return contract
        # Files do not hold the event of a threshold, which is the event of the contract
        return replace(contract, threshold=replace(contract.threshold, event=contract.of))


def _get_part(part: Any, name: str, *, option: str, code: str) -> Any:
    """Return a part of a contract, or raise `InputError` if it is None or empty."""
    if not part:
        raise InputError(f"Expected a contract with {name}, got none. Try Contract.create(..., {option}).", code=code)
    return part


def _check_holds(result: CheckResult) -> tuple[str, ...]:
    """Return the values and bounds of all conditions, or raise `InputError` unless all hold."""
    if result.status != "holds":
        not_met = [condition for condition in result.conditions if condition.status != "holds"]
        failed = [" ".join(str(condition).split()) for condition in not_met]  # without the padding of columns
        raise InputError(f"Expected requirements that hold, got {'; '.join(failed)}.", code="requirement_not_met")
    return tuple(condition.description for condition in result.conditions)
