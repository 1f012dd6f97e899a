"""Calibrating a file by a fitted map: arrays become arrays, and a table keeps all its columns and rows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import io
from calibrant._arrays import arrays_of
from calibrant._columns import CALIBRATED, Columns, TableOptions
from calibrant._delimited import unprotected_frame
from calibrant._readings import columns_of
from calibrant.assessment._candidates import Candidate
from calibrant.calibrators import classes_of
from calibrant.predictions import KINDS, PRESENCE, Predictions, save_predictions, unlabeled
from calibrant.types import InputError

ROW = "row of the table"
Written = tuple[int, str, tuple[str, ...]]  # number of examples, what they became, notes on the reading


def apply_to_file(
    calibrator: Any,
    path: str | Path,
    output: str | Path,
    *,
    on_note: Callable[[str], object] | None = None,
    **options: Any,
) -> tuple[int, str]:
    """Calibrate the predictions of a file, labeled or not; say of how many what was written.

    A table (see `Predictions.from_table` for `options`) becomes a table: every row and column as it was, and
    `calibrated_...` columns with the probability of each class, or the one that there was, and of classes `predicted`,
    or `calibrated_predicted` where it has such a column.
    With `drop`, rows in which something is missing get none. Other files become .npz, .safetensors or a table with
    calibrated logits, and the labels if there are any.

    A `calibrator` that is the path of a saved one knows the names of its classes: columns in another order are mapped
    as what they are called.

    `on_note` is called with every note on how the file was read. Raises `InputError` as `Predictions.load` does, and
    where the output would replace the input.
    """
    io.apart([output], [path, calibrator if isinstance(calibrator, str | Path) else None])
    io.writer_of(output)
    reading = TableOptions.of(options)
    if io.is_table(path) and io.is_table(output):
        count, what, notes = _table(Candidate.of(calibrator), path, output, reading)
    else:
        count, what, notes = _arrays(Candidate.of(calibrator), path, output, reading)
    if on_note is not None:
        for note in notes:
            on_note(note)
    return count, what


def _arrays(calibrator: Candidate, path: str | Path, output: str | Path, options: TableOptions) -> Written:
    try:
        arrays = io.read(path, options, labeled=False)
        p, labeled = unlabeled(arrays, are_logits=options.are_logits)
        made = calibrator.calibrated(p)
        ids = _ids(arrays.get("ids"), len(p))
    except InputError as error:
        raise InputError(f"{path}: {error}", code=error.code) from None
    save_predictions(made, output, labeled=labeled, ids=ids)
    return len(p), "logits", p.notes


def _ids(ids: Any, n: int) -> Any:
    """Return the ids of n rows as an array; raises `InputError` where there are more or fewer."""
    if ids is None:
        return None
    values = np.asarray(ids.to_list() if hasattr(ids, "to_list") else ids)
    if values.shape != (n,):
        raise InputError(f"expected {n} ids, one per row, got {values.shape}; leave them out", code="ids_length")
    return values.astype(str) if values.dtype.kind not in "iu" else values


def _table(calibrator: Candidate, path: str | Path, output: str | Path, options: TableOptions) -> Written:
    import polars

    try:
        found = io.table(path, options)
        columns = columns_of(found.frame, options)
        made = calibrated(calibrator, io.with_exact_texts(found, columns), columns, options)
    except InputError as error:
        raise InputError(f"{path}: {error}", code=error.code) from None
    frame = _kept(found, output)
    if "predicted" in frame.columns and "predicted" in made.columns:
        made = made.rename({"predicted": f"{CALIBRATED}predicted"})
    if twice := sorted(set(made.columns) & set(frame.columns)):
        raise InputError(
            f"{path} has a column {twice[0]!r} already: rename it, or give a table without it", code="column_exists"
        )
    io.write_table(output, polars.concat([frame, made], how="horizontal"), found.dialect)
    return int(made[:, 0].is_not_null().sum()), "probabilities", found.notes


def _kept(found: io.Table, output: str | Path) -> Any:
    """Return the columns of a table for the output; from text to text every cell as it is spelled."""
    spelled = found.texts() if io.is_delimited(output) else None
    return found.frame if spelled is None else unprotected_frame(spelled)


def calibrated(calibrator: Candidate, frame: Any, columns: Columns, options: TableOptions | None = None) -> Any:
    """Return the new columns for every row of a frame; null where a row was left out."""
    import polars

    wanted = replace(columns, label=None, labels=(), predicted=None, correct=None, weight=None, cluster=None, id=ROW)
    arrays = arrays_of(frame.with_row_index(ROW), wanted, options)
    rows = arrays.pop("ids")
    are_logits = options is not None and options.are_logits
    if _several(calibrator, columns, arrays):
        names = columns.names or tuple(map(str, range(len(columns.scores))))
        each = _each(calibrator, arrays, names, are_logits)
        new = {f"{CALIBRATED}prob_{name}": part for name, part in zip(names, each, strict=True)}
    else:
        new = _new(calibrator, unlabeled(arrays, are_logits=are_logits)[0], columns.positive)
    short = polars.DataFrame(
        {ROW: rows} | {name: part if isinstance(part, list) else part.numpy() for name, part in new.items()}
    )
    whole = polars.DataFrame({ROW: range(len(frame))}, schema={ROW: rows.dtype})
    return whole.join(short, on=ROW, how="left", maintain_order="left").drop(ROW)


def _several(calibrator: Candidate, columns: Columns, arrays: dict[str, Any]) -> bool:
    """Return whether each column of scores is a label of its own, present or absent.

    It is if the table has a column of labels for each, or the calibrator was fitted on such labels or on groups of
    these names. If nothing is known of its classes, probabilities that do not sum to 1 are of several labels.
    """
    if columns.labels:
        return True
    names = columns.names or ()
    of_groups = bool(names) and set(names) <= set(getattr(calibrator.ready, "names", ()))
    if names == PRESENCE or len(columns.scores) < 2 or classes_of(calibrator.ready) not in (0, 2):
        return False
    if calibrator.class_names == PRESENCE or of_groups:
        return True
    unknown = calibrator.class_names is None and classes_of(calibrator.ready) == 2 and len(columns.scores) > 2
    return unknown and "probs" in arrays and not _sums_to_one(torch.as_tensor(arrays["probs"]))


def _sums_to_one(probs: Tensor) -> bool:
    """Return whether most rows of probabilities sum to 1 up to rounding, as those of classes do."""
    return bool(((probs.double().sum(1) - 1).abs() < 0.02).double().mean() > 0.5)


def _new(calibrator: Candidate, p: Predictions, positive: str | None) -> dict[str, Any]:
    """The calibrated probabilities by the names of their columns."""
    probs = calibrator.calibrated(p).logits.softmax(1)
    if p.of == 1:
        name = "confidence" if p.class_names in KINDS else f"prob_{positive}" if positive else "prob"
        return {f"{CALIBRATED}{name}": probs[:, 1]}
    names = p.class_names or tuple(map(str, range(p.k)))
    predicted = probs.argmax(1)
    said = predicted if p.class_names is None else [names[i] for i in predicted.tolist()]
    return {f"{CALIBRATED}prob_{name}": probs[:, i] for i, name in enumerate(names)} | {"predicted": said}


def _each(calibrator: Candidate, arrays: dict[str, Any], names: tuple[str, ...], are_logits: bool) -> list[Tensor]:
    """The calibrated probability of each label, one after the other."""
    probable = "probs" in arrays
    scores = torch.as_tensor(arrays["probs" if probable else "logits"])
    what = {"probs": True} if probable else {"logits": are_logits}
    p = Predictions.multilabel(scores, torch.zeros_like(scores), names=names, **what)
    probs = calibrator.calibrated(p).logits.softmax(1)[:, 1]
    return list(probs.view(scores.shape).T)
