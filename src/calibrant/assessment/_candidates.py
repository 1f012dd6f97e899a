"""What is assessed: calibrators to be fitted, and those that are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant import calibrators as calibrators_
from calibrant import catalog
from calibrant._rows import Overlap, Sketch
from calibrant.assessment._judge import mapped
from calibrant.predictions import Predictions
from calibrant.types import Calibrator, InputError

CALIBRATORS = ("Identity", "Temperature", "StructuredMatrix", "HistogramBinning", "Auto")
Progress = Callable[[str], object]  # told what is being done


@dataclass(frozen=True, eq=False)
class Candidate:
    """A calibrator to be fitted, or one that is."""

    name: str
    source: Any
    ready: Any = None
    learned_from: frozenset[str] = frozenset()  # digests of the predictions that a ready one was fitted on
    rows: Sketch | None = None  # of them, where its file has one
    class_names: tuple[str, ...] | None = None  # of them, likewise

    @classmethod
    def of(cls, calibrator: Any) -> "Candidate":
        """A text, a file, a class or function that fits, or a fitted calibrator."""
        if isinstance(calibrator, Path) or (isinstance(calibrator, str) and calibrator.endswith(".safetensors")):
            origin = calibrators_.origin(calibrator)
            ready = calibrators_.load(calibrator)
            more = frozenset(origin.fitted_on), origin.rows, origin.class_names
            return cls(str(calibrator), None, ready, *more)
        if isinstance(calibrator, str):
            method = catalog.CALIBRATORS.method(calibrator)
            return cls(method.text, method)
        if isinstance(calibrator, Calibrator) and not isinstance(calibrator, type):
            return cls(type(calibrator).__name__, None, calibrator, frozenset(calibrators_.fitted_on(calibrator)))
        return cls(getattr(calibrator, "__name__", str(calibrator)), calibrator)

    def apply(self, p: Predictions) -> Predictions:
        """What a ready one makes of predictions that are to be judged."""
        self.refuse(self.ordered(p))
        return self.calibrated(p)

    def calibrated(self, p: Predictions) -> Predictions:
        """What a ready one makes of any predictions."""
        return mapped(self.ordered(p).double(), self.ready).in_order(p.class_names)

    def ordered(self, p: Predictions) -> Predictions:
        """Predictions with their classes in the order in which a ready one knows them."""
        try:
            return p.in_order(self.class_names)
        except InputError as error:
            raise InputError(f"{self.name} was fitted on other classes: {error}", code=error.code) from None

    def fit(self, p: Predictions, tell: Progress) -> Any:
        """Fit it, unless it is."""
        if self.ready is not None:
            return self.ready
        tell(f"fitting {self.name} to {len(p):,} examples")
        return calibrators_.fit(self.source, p)

    def knows(self, p: Predictions) -> str:
        """Say so if it was fitted on these predictions, or on too many of them; else nothing."""
        if p.digest in self.learned_from:
            return f"{self.name} was fitted on these very predictions ({p.digest})"
        return "" if self.rows is None else self.knows_rows(Sketch.of(p.row_hashes))

    def knows_rows(self, judged: Sketch) -> str:
        """The same of rows."""
        if self.rows is None or not (overlap := Overlap.between(judged, self.rows)).too_large:
            return ""
        return f"{self.name} was fitted on some of these very predictions: {overlap.text}"

    def refuse(self, p: Predictions) -> None:
        """Refuse to be judged on what it was fitted on."""
        if said := self.knows(p):
            raise InputError(f"{said}; judge it on others", code="fitted_on_same")

    def out_of_fold(self, p: Predictions, fitted: Any, folds: int, tell: Progress) -> Predictions:
        """What it makes of predictions that it was not fitted on: fold by fold, if it learns anything at all."""
        if self.ready is not None or isinstance(fitted, calibrators_.Identity):
            return mapped(p, fitted)
        tell(f"cross-fitting {self.name}")
        return calibrators_.cross_fit(self.source, p, folds=folds)


def usual(k: int) -> tuple[str, ...]:
    """Calibrators that are tried on k classes unless others are named."""
    wide = k > calibrators_.WIDEST
    return tuple("StructuredVector" if wide and name == "StructuredMatrix" else name for name in CALIBRATORS)


def candidates_of(calibrators: Sequence[Any], choose: str | None) -> tuple[list[Candidate], str | None]:
    """The calibrators that were named, once each, and the one to be chosen, if any is."""
    given = [calibrators] if isinstance(calibrators, str | Path) else list(calibrators)
    found = [Candidate.of(c) for c in given]
    if choose is not None:
        extra = Candidate.of(choose)
        found, choose = [*found, extra], extra.name
    found = list({c.name: c for c in reversed(found)}.values())[::-1]
    if not found:
        raise InputError("no calibrators to assess; measure judges predictions as they are", code="no_calibrators")
    return found, choose


def saved(path: str | Path) -> Callable[[Predictions], Predictions]:
    """Read a saved calibrator, as a function of predictions that refuses those that it was fitted on."""
    return Candidate.of(Path(path)).apply
