"""What is assessed: calibrators to be fitted, and those that are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant import calibrators as calibrators_
from calibrant import registry
from calibrant.assessment._evaluation import apply_calibrator
from calibrant.backend.overlap import Overlap, Sketch
from calibrant.predictions import Predictions
from calibrant.types import Calibrator, InputError

DEFAULT_CALIBRATORS = ("Identity", "Temperature", "StructuredMatrix", "HistogramBinning", "Auto")
Progress = Callable[[str], object]  # told what is being done


@dataclass(frozen=True, eq=False)
class CandidateCalibrator:
    """A calibrator to be fitted, or one that is."""

    name: str
    source: Any
    fitted_map: Any = None
    fitting_digests: frozenset[str] = frozenset()  # digests of the predictions that a ready one was fitted on
    fitting_sketch: Sketch | None = None  # of them, where its file has one
    class_names: tuple[str, ...] | None = None  # of them, likewise

    @classmethod
    def of(cls, calibrator: Any) -> "CandidateCalibrator":
        """A text, a file, a class or function that fits, or a fitted calibrator."""
        if isinstance(calibrator, Path) or (isinstance(calibrator, str) and calibrator.endswith(".safetensors")):
            origin = calibrators_.origin(calibrator)
            fitted_map = calibrators_.load(calibrator)
            origin_fields = frozenset(origin.fitted_on), origin.rows, origin.class_names
            return cls(str(calibrator), None, fitted_map, *origin_fields)
        if isinstance(calibrator, str):
            method = registry.CALIBRATORS.method(calibrator)
            return cls(method.text, method)
        if isinstance(calibrator, Calibrator) and not isinstance(calibrator, type):
            return cls(type(calibrator).__name__, None, calibrator, frozenset(calibrators_.fitting_digests(calibrator)))
        return cls(getattr(calibrator, "__name__", str(calibrator)), calibrator)

    def apply_checked(self, p: Predictions) -> Predictions:
        """What a ready one makes of predictions that are to be judged."""
        self.check_overlap(self.align_classes(p))
        return self.calibrate(p)

    def calibrate(self, p: Predictions) -> Predictions:
        """What a ready one makes of any predictions."""
        return apply_calibrator(self.align_classes(p).double(), self.fitted_map).reorder_classes(p.class_names)

    def align_classes(self, p: Predictions) -> Predictions:
        """Predictions with their classes in the order in which a ready one knows them."""
        try:
            return p.reorder_classes(self.class_names)
        except InputError as error:
            raise InputError(f"{self.name} was fitted on other classes: {error}", code=error.code) from None

    def fit(self, p: Predictions, on_progress: Progress) -> Any:
        """Fit it, unless it is."""
        if self.fitted_map is not None:
            return self.fitted_map
        on_progress(f"fitting {self.name} to {len(p):,} examples")
        return calibrators_.fit(self.source, p)

    def overlap_message(self, p: Predictions) -> str:
        """Say so if it was fitted on these predictions, or on too many of them; else nothing."""
        if p.digest in self.fitting_digests:
            return f"{self.name} was fitted on these very predictions ({p.digest})"
        return "" if self.fitting_sketch is None else self.row_overlap_message(Sketch.from_hashes(p.row_hashes))

    def row_overlap_message(self, evaluation_sketch: Sketch) -> str:
        """The same of rows."""
        if (
            self.fitting_sketch is None
            or not (overlap := Overlap.compare(evaluation_sketch, self.fitting_sketch)).too_large
        ):
            return ""
        return f"{self.name} was fitted on some of these very predictions: {overlap.text}"

    def check_overlap(self, p: Predictions) -> None:
        """Refuse to be judged on what it was fitted on."""
        if message := self.overlap_message(p):
            raise InputError(f"{message}; judge it on others", code="fitted_on_same")

    def out_of_fold(self, p: Predictions, fitted: Any, folds: int, on_progress: Progress) -> Predictions:
        """What it makes of predictions that it was not fitted on: fold by fold, if it learns anything at all."""
        if self.fitted_map is not None or isinstance(fitted, calibrators_.Identity):
            return apply_calibrator(p, fitted)
        on_progress(f"cross-fitting {self.name}")
        return calibrators_.cross_fit(self.source, p, folds=folds)


def default_calibrators(k: int) -> tuple[str, ...]:
    """Calibrators that are tried on k classes unless others are named."""
    wide = k > calibrators_.MAX_MATRIX_CLASSES
    return tuple("StructuredVector" if wide and name == "StructuredMatrix" else name for name in DEFAULT_CALIBRATORS)


def resolve_candidates(calibrators: Sequence[Any], choose: str | None) -> tuple[list[CandidateCalibrator], str | None]:
    """The calibrators that were named, once each, and the one to be chosen, if any is."""
    specs = [calibrators] if isinstance(calibrators, str | Path) else list(calibrators)
    candidates = [CandidateCalibrator.of(c) for c in specs]
    if choose is not None:
        extra = CandidateCalibrator.of(choose)
        candidates, choose = [*candidates, extra], extra.name
    candidates = list({c.name: c for c in reversed(candidates)}.values())[::-1]
    if not candidates:
        raise InputError("no calibrators to assess; measure judges predictions as they are", code="no_calibrators")
    return candidates, choose


def load_checked_calibrator(path: str | Path) -> Callable[[Predictions], Predictions]:
    """Read a saved calibrator, as a function of predictions that refuses those that it was fitted on."""
    return CandidateCalibrator.of(Path(path)).apply_checked
