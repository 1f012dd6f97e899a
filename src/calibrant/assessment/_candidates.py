"""Calibrators to assess: methods that are still to be fitted, and fitted or saved calibrators."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant import calibrators as calibrators_
from calibrant import registry
from calibrant.assessment._evaluation import apply_calibrator
from calibrant.backend.overlap import Overlap, Sketch
from calibrant.io.formats import CALIBRATOR_SUFFIX, CONTRACT_SUFFIX
from calibrant.predictions import Predictions
from calibrant.types import Calibrator, InputError, prefix_errors

if TYPE_CHECKING:
    from calibrant.deployment import Contract

DEFAULT_CALIBRATORS = ("Identity", "Temperature", "StructuredMatrix", "HistogramBinning", "Auto")
Progress = Callable[[str], object]


@dataclass(frozen=True, eq=False)
class CandidateCalibrator:
    """A calibrator to assess: either `source`, a method that is still to be fitted, or `fitted`."""

    name: str
    source: Any = None
    fitted: Any = None
    fitting_digests: frozenset[str] = frozenset()  # digests of the data that a fitted one saw
    fitting_sketch: Sketch | None = None  # sketch of that data, if its file has one
    class_names: tuple[str, ...] | None = None
    contract: "Contract | None" = None  # whose calibrator it is

    @classmethod
    def of(cls, calibrator: Any) -> "CandidateCalibrator":
        """Build from a method name, a file, a class or fitting function, a fitted calibrator, or a contract file."""
        if isinstance(calibrator, str | Path) and Path(calibrator).suffix == CONTRACT_SUFFIX:
            from calibrant.deployment import Contract  # slow to import

            contract = Contract.load(calibrator)
            return cls(
                str(calibrator),
                fitted=contract.calibrator,
                fitting_digests=frozenset(calibrators_.fitting_digests(contract.calibrator)),
                class_names=contract.class_names,
                contract=contract,
            )
        if isinstance(calibrator, Path) or (isinstance(calibrator, str) and calibrator.endswith(CALIBRATOR_SUFFIX)):
            origin = calibrators_.origin(calibrator)
            return cls(
                str(calibrator),
                fitted=calibrators_.load(calibrator),
                fitting_digests=frozenset(origin.fitted_on),
                fitting_sketch=origin.rows,
                class_names=origin.class_names,
            )
        if isinstance(calibrator, str):  # the name of a method, with settings
            method = registry.CALIBRATORS.method(calibrator)
            return cls(method.text, source=method)
        if isinstance(calibrator, Calibrator) and not isinstance(calibrator, type):  # a fitted one
            digests = frozenset(calibrators_.fitting_digests(calibrator))
            return cls(type(calibrator).__name__, fitted=calibrator, fitting_digests=digests)
        return cls(getattr(calibrator, "__name__", str(calibrator)), source=calibrator)  # a class or function that fits

    def apply_checked(self, p: Predictions) -> Predictions:
        """Calibrate predictions to evaluate. Refuse those that the calibrator was fitted on."""
        self.check_overlap(self.align_classes(p))
        return self.calibrate(p)

    def calibrate(self, p: Predictions) -> Predictions:
        """Calibrate predictions. Their order of classes is kept."""
        return apply_calibrator(self.align_classes(p).double(), self.fitted).reorder_classes(p.class_names)

    def align_classes(self, p: Predictions) -> Predictions:
        """Reorder the classes as the calibrator knows them."""
        with prefix_errors(f"{self.name} was fitted on other classes"):
            return p.reorder_classes(self.class_names)

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

    def overlap_message(self, p: Predictions) -> str:
        """Return a message if the calibrator was fitted on these predictions or many of their rows, else ""."""
        if p.digest in self.fitting_digests:
            return f"{self.name} was fitted on these predictions ({p.digest})"
        if self.fitting_sketch is None:  # do not hash the rows for nothing
            return ""
        return self.row_overlap_message(Sketch.from_hashes(p.row_hashes))

    def row_overlap_message(self, evaluation_sketch: Sketch) -> str:
        """Return a message if the calibrator was fitted on too many rows of a sketch, or "" if not or if unknown."""
        if self.fitting_sketch is None:
            return ""
        overlap = Overlap.compare(evaluation_sketch, self.fitting_sketch)
        return f"{self.name} was fitted on some of these rows: {overlap.text}" if overlap.too_large else ""

    def check_overlap(self, p: Predictions) -> None:
        """Refuse predictions that the calibrator was fitted on."""
        if message := self.overlap_message(p):
            raise InputError(f"{message}. Try other evaluation data.", code="fitted_on_same")


def default_calibrators(k: int) -> tuple[str, ...]:
    """Return the calibrators that are assessed by default for `k` classes."""
    if k <= calibrators_.MAX_MATRIX_CLASSES:
        return DEFAULT_CALIBRATORS
    return tuple("StructuredVector" if name == "StructuredMatrix" else name for name in DEFAULT_CALIBRATORS)


def resolve_candidates(calibrators: Sequence[Any], choose: str | None) -> tuple[list[CandidateCalibrator], str | None]:
    """Return the distinct candidates, and the name of the one to select if it is given."""
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
