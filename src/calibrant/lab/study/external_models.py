"""Models that were trained elsewhere: files of predictions in the place of training."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calibrant import registry
from calibrant._text import shorten_repr
from calibrant.backend.overlap import Overlap, Sketch
from calibrant.io.column_names import COLUMN_ROLES
from calibrant.predictions import Predictions
from calibrant.types import InputError

MODELS_PLACEHOLDER = "models"  # stands where a run names its network


@dataclass(frozen=True, eq=False)
class Model:
    """Predictions of one model on data to fit calibrators on (`val`) and to judge on (`test`).

    Models of one name and data with several seeds are one row of the tables, tested against the others; `data` says on
    which they are compared. `columns` and `drop` say how tables are read, see `Predictions.from_table`.
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
                raise InputError(f"a model has no column {shorten_repr(role)}; {hint}", code="unknown_column")

    @property
    def names(self) -> tuple[str, str, str]:
        """What stands for data set, network and loss."""
        return self.data, MODELS_PLACEHOLDER, self.name

    @property
    def id(self) -> str:
        """Name and seed."""
        return f"{self.name}, {self.data}, seed {self.seed}"

    def with_base_folder(self, folder: Path) -> "Model":
        """The same with paths that are meant from a folder."""
        return replace(self, val=str(folder / self.val), test=str(folder / self.test))

    def predictions(self) -> tuple[Predictions, Predictions]:
        """Load what calibrators are fitted on, and what they are judged on.

        Raises `InputError` where a file cannot be read, or both hold the same examples.
        """
        val, test = (Predictions.load(path, drop=self.drop, **self.columns) for path in (self.val, self.test))
        try:
            test = test.reorder_classes(val.class_names)
        except InputError as error:
            raise InputError(f"{self.id}: {self.test}: {error}", code=error.code) from None
        if val.k != test.k:
            raise InputError(f"{self.id}: {self.val} has {val.k} classes, {self.test} has {test.k}", code="num_classes")
        overlap = Overlap.compare(Sketch.from_hashes(test.row_hashes), Sketch.from_hashes(val.row_hashes))
        if overlap.too_large:
            raise InputError(f"{self.id}: val and test must hold different examples: {overlap.text}", code="overlap")
        return val, test
