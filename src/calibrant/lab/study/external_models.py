"""Models that were trained elsewhere: files of predictions replace the training."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calibrant import registry
from calibrant._text import shorten_repr
from calibrant.backend.overlap import Overlap, Sketch
from calibrant.io.column_names import COLUMN_ROLES
from calibrant.predictions import Predictions
from calibrant.types import InputError, prefix_errors

MODELS_PLACEHOLDER = "models"  # replaces the network in the names of a run


@dataclass(frozen=True, eq=False)
class Model:
    """Files with the predictions of one model: `val` to fit calibrators, `test` to measure them.

    Models with the same name and data but several seeds are one row of the tables, and are tested against the others.
    `data` names the data on which models are compared. `columns` and `drop` describe how tables are read; see
    `Predictions.from_table`.
    """

    name: str
    val: str
    test: str
    seed: int = 0
    data: str = "these data"
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])
    drop: bool = False

    def __post_init__(self) -> None:
        for role in self.columns:
            if role not in COLUMN_ROLES:
                hint = registry.suggest(role, COLUMN_ROLES)
                raise InputError(f"Unknown column {shorten_repr(role)} of a model; {hint}", code="unknown_column")

    @property
    def names(self) -> tuple[str, str, str]:
        """Names that replace the data set, network and loss of a run."""
        return self.data, MODELS_PLACEHOLDER, self.name

    @property
    def id(self) -> str:
        """Name, data and seed."""
        return f"{self.name}, {self.data}, seed {self.seed}"

    def with_base_folder(self, folder: Path) -> "Model":
        """Return a copy whose paths are relative to a folder."""
        return replace(self, val=str(folder / self.val), test=str(folder / self.test))

    def predictions(self) -> tuple[Predictions, Predictions]:
        """Load the validation and the test predictions.

        Raises:
            InputError: If a file cannot be read, classes differ, or both files hold the same examples.
        """
        val, test = (Predictions.load(path, drop=self.drop, **self.columns) for path in (self.val, self.test))
        with prefix_errors(f"{self.id}: {self.test}"):
            test = test.reorder_classes(val.class_names)
        if val.k != test.k:
            raise InputError(
                f"{self.id}: Expected equal classes, got {val.k} in {self.val} and {test.k} in {self.test}.",
                code="num_classes",
            )
        overlap = Overlap.compare(Sketch.from_hashes(test.row_hashes), Sketch.from_hashes(val.row_hashes))
        if overlap.too_large:
            raise InputError(f"{self.id}: Expected different examples in val and test: {overlap.text}", code="overlap")
        return val, test
