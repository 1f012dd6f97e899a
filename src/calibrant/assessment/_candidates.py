"""Calibrators to assess: methods that are still to be fitted, and fitted or saved calibrators."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant._core import registry
from calibrant._core.lazy import LazyModule
from calibrant._core.types import Calibrator, InputError, Map, prefix_errors
from calibrant.assessment._overlap import FittingRecord
from calibrant.io.formats import CALIBRATOR_SUFFIX, CONTRACT_SUFFIX
from calibrant.predictions import EventSelector, Predictions

calibrators_: Any = LazyModule("calibrant.calibrators")  # which takes long to load

if TYPE_CHECKING:
    from calibrant.deployment import Contract

DEFAULT_CALIBRATORS = ("Identity", "Temperature", "StructuredMatrix", "HistogramBinning", "Auto")
RISK_CALIBRATORS = ("Intercept", "Logistic")  # also assessed by default where the event is one of two classes
Progress = Callable[[str], object]


@dataclass(frozen=True, eq=False)
class CandidateCalibrator:
    """A calibrator to assess: either `source`, a method that is still to be fitted, or `fitted`."""

    record: FittingRecord  # of the data that a fitted one saw
    source: Any = None
    fitted: Any = None
    contract: "Contract | None" = None  # the contract whose calibrator `fitted` is

    @classmethod
    def of(cls, calibrator: Any) -> "CandidateCalibrator":
        """Build from a method name, a file, a class or fitting function, a fitted calibrator, or a contract file."""
        if isinstance(calibrator, str | Path) and Path(calibrator).suffix == CONTRACT_SUFFIX:
            from calibrant.deployment import Contract  # slow to import

            contract = Contract.load(calibrator)
            digests = frozenset(calibrators_.fitting_digests(contract.calibrator))
            record = FittingRecord(str(calibrator), digests, class_names=contract.class_names)
            return cls(record, fitted=contract.calibrator, contract=contract)
        if isinstance(calibrator, Path) or (isinstance(calibrator, str) and calibrator.endswith(CALIBRATOR_SUFFIX)):
            origin = calibrators_.origin(calibrator)  # digests, hashed rows and class names of its fitting data
            record = FittingRecord(str(calibrator), frozenset(origin.fitted_on), origin.rows, origin.class_names)
            return cls(record, fitted=calibrators_.load(calibrator))
        if isinstance(calibrator, str):  # the name of a method, with settings
            method = registry.CALIBRATORS.method(calibrator)
            return cls(FittingRecord(method.text), source=method)
        if isinstance(calibrator, Calibrator) and not isinstance(calibrator, type):  # a fitted one
            digests = frozenset(calibrators_.fitting_digests(calibrator))
            return cls(FittingRecord(type(calibrator).__name__, digests), fitted=calibrator)
        name = getattr(calibrator, "__name__", str(calibrator))
        return cls(FittingRecord(name), source=calibrator)  # a class or function that fits

    @property
    def name(self) -> str:
        """The name of the method, class or file."""
        return self.record.calibrator_name

    def apply_checked(self, p: Predictions) -> Predictions:
        """Calibrate predictions to evaluate. Refuse those that the calibrator was fitted on."""
        self.record.check_overlap(self.align_classes(p))
        return self.calibrate(p)

    def calibrate(self, p: Predictions) -> Predictions:
        """Calibrate predictions. Their order of classes is kept."""
        return apply_calibrator(self.align_classes(p).double(), self.fitted).reorder_classes(p.class_names)

    def align_classes(self, p: Predictions) -> Predictions:
        """Reorder the classes as the calibrator knows them."""
        with prefix_errors(f"{self.name} was fitted on other classes"):
            return p.reorder_classes(self.record.class_names)

    def fit(self, p: Predictions, on_progress: Progress) -> Any:
        """Fit the calibrator, unless it is fitted already."""
        if self.fitted is not None:
            return self.fitted
        on_progress(f"fitting {self.name} to {len(p):,} examples")
        return calibrators_.fit(self.source, p)

    def out_of_fold(self, p: Predictions, fitted: Any, folds: int, on_progress: Progress, seed: int = 0) -> Predictions:
        """Calibrate each fold with a fit on the other folds. Fitted calibrators and Identity apply as they are."""
        if self.fitted is not None or isinstance(fitted, calibrators_.Identity):
            return apply_calibrator(p, fitted)
        on_progress(f"cross-fitting {self.name}")
        return calibrators_.cross_fit(self.source, p, folds=folds, seed=seed)


def apply_calibrator(p: Predictions, calibrator: Map) -> Predictions:
    """Apply a calibrator. Identity returns the same object, which keeps its cached statistics."""
    return p if isinstance(calibrator, calibrators_.Identity) else p.apply(calibrator)


def default_calibrators(k: int, selector: EventSelector = "top") -> tuple[str, ...]:
    """Return the calibrators that are assessed by default for `k` classes and the event `selector`."""
    if k == 2 and isinstance(selector, int):
        return *DEFAULT_CALIBRATORS[:-1], *RISK_CALIBRATORS, DEFAULT_CALIBRATORS[-1]
    if k <= calibrators_.MAX_MATRIX_CLASSES:
        return DEFAULT_CALIBRATORS
    return tuple("StructuredVector" if name == "StructuredMatrix" else name for name in DEFAULT_CALIBRATORS)


def resolve_candidates(calibrators: Sequence[Any], choose: str | None) -> tuple[list[CandidateCalibrator], str | None]:
    """Return the candidates without repeated names, and the name of the one to select, or None if it is not given.

    The calibrator to select need not be among `calibrators`.
    """
    specs = [calibrators] if isinstance(calibrators, str | Path) else list(calibrators)
    if choose is not None:
        specs.append(choose)
    candidates = [CandidateCalibrator.of(spec) for spec in specs]
    if not candidates:
        raise InputError("Expected at least one calibrator. Try `measure` to fit none.", code="no_calibrators")
    by_name: dict[str, CandidateCalibrator] = {}
    for candidate in candidates:
        by_name.setdefault(candidate.name, candidate)  # the first of a name, which `choose` may repeat
    return list(by_name.values()), None if choose is None else candidates[-1].name


def load_checked_calibrator(path: str | Path) -> Callable[[Predictions], Predictions]:
    """Load a calibrator as a function that refuses the predictions it was fitted on."""
    return CandidateCalibrator.of(Path(path)).apply_checked
