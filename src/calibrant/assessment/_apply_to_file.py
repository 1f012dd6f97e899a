"""Calibrate the predictions of a file: arrays become arrays, and tables gain columns."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant._core.arrays import to_numpy
from calibrant._core.kernels.softmax import probabilities
from calibrant._core.lazy import LazyModule, polars
from calibrant._core.types import InputError, prefix_errors
from calibrant.assessment._candidates import CandidateCalibrator
from calibrant.io.column_roles import CALIBRATED_PREFIX, Columns, TableOptions
from calibrant.io.contents import Contents
from calibrant.io.delimited import unescape_formulas
from calibrant.io.files import check_outputs
from calibrant.io.formats import get_writer, is_delimited, is_table
from calibrant.io.frames import frame_to_contents
from calibrant.io.predictions import read_contents, write_table
from calibrant.io.role_inference import infer_columns
from calibrant.io.tables import read_table, restore_spelling
from calibrant.predictions import Predictions
from calibrant.predictions.events import BINARY_EVENTS, PRESENCE
from calibrant.predictions.validation.arrays import to_column

calibrators: Any = LazyModule("calibrant.calibrators")  # which takes long to load

if TYPE_CHECKING:
    from calibrant.deployment import Contract

ROW_INDEX_COLUMN = "row of the table"
SET_SEPARATOR = " | "  # between the names of classes in a prediction set
NewColumns = tuple[dict[str, Any], tuple[str, ...]]  # by name, and notes
WriteResult = tuple[int, str, tuple[str, ...]]  # number of examples, kind of the output, notes on reading


def apply_to_file(
    calibrator: Any,
    path: str | Path,
    output: str | Path,
    *,
    on_note: Callable[[str], object] | None = None,
    **options: Any,
) -> tuple[int, str]:
    """Calibrate the predictions of a file. Labels are not needed.

    A table keeps its rows and columns and gains `calibrated_...` columns with the probability of each class or of the
    single score, and `predicted` for several classes (`calibrated_predicted` if that column exists). Other files become
    .npz, .safetensors or a table with calibrated logits, and the labels if there are any.

    With a contract, a table also gains `act`, whether to act on the prediction, and `prediction_set`, the names of the
    classes in the set, as far as the contract has a threshold and sets.

    Args:
        calibrator: A fitted calibrator, or the path of a saved one or of a contract. These know their class names, so
            columns may come in any order.
        path: File to read.
        output: File to write.
        on_note: Function that is called with each note on how the file was read.
        **options: Options of `Predictions.from_table`. With `drop`, rows with missing values get no probabilities.

    Returns:
        The number of calibrated examples, and "probabilities" or "logits".

    Raises:
        InputError: The file cannot be read as predictions, or the output would replace the input.
    """
    check_outputs([output], [path, calibrator if isinstance(calibrator, str | Path) else None])
    get_writer(output)  # refuses an unknown suffix before any work
    table_options = TableOptions.from_keywords(options)
    write = _calibrate_table_file if is_table(path) and is_table(output) else _calibrate_array_file
    count, output_kind, notes = write(CandidateCalibrator.of(calibrator), path, output, table_options)
    if on_note is not None:
        for note in notes:
            on_note(note)
    return count, output_kind


def _calibrate_array_file(
    calibrator: CandidateCalibrator, path: str | Path, output: str | Path, options: TableOptions
) -> WriteResult:
    """Calibrate a file of arrays, and write logits beside its labels and ids.

    Returns:
        The number of examples, "logits" as the kind of the output, and notes on reading.
    """
    with prefix_errors(f"{path}"):
        contents = read_contents(path, options, needs_labels=False)
        p = contents.with_labels().to_predictions(are_logits=options.are_logits)
        calibrated_predictions = calibrator.calibrate(p)
        ids = _check_ids(contents.ids, len(p))
    calibrated_predictions.save(output, with_labels=contents.labels is not None, ids=ids)
    return p.num_examples, "logits", calibrated_predictions.notes


def _check_ids(ids: Any, n: int) -> Any:
    """Return the ids of n rows, one per row, as an array of integers or texts, or None without ids."""
    if ids is None:
        return None
    values = np.asarray(ids.to_list() if hasattr(ids, "to_list") else ids)
    if values.shape != (n,):
        raise InputError(
            f"Expected {n} ids, one per row, got shape {values.shape}. Try without ids.", code="ids_length"
        )
    is_integer = values.dtype.kind in "iu"
    return values if is_integer else values.astype(str)


def _calibrate_table_file(
    calibrator: CandidateCalibrator, path: str | Path, output: str | Path, options: TableOptions
) -> WriteResult:
    """Calibrate a table, and write it with columns of calibrated probabilities.

    Cells keep their spelling if input and output are text files.

    Returns:
        The number of rows with a result, "probabilities" as the kind of the output, and notes on reading.
    """
    with prefix_errors(f"{path}"):
        table = read_table(path, options)
        columns = infer_columns(table.frame, options)
        new_columns, notes = calibrate_frame(calibrator, restore_spelling(table, columns), columns, options)
    text_cells = table.texts() if is_delimited(output) else None  # None too if the input is no text file
    # Cells that a spreadsheet would read as formulas have a protecting apostrophe, which writing adds again
    frame = table.frame if text_cells is None else unescape_formulas(text_cells)
    if "predicted" in frame.columns and "predicted" in new_columns.columns:
        new_columns = new_columns.rename({"predicted": f"{CALIBRATED_PREFIX}predicted"})
    if duplicates := sorted(set(new_columns.columns) & set(frame.columns)):
        raise InputError(
            f"Expected no column {duplicates[0]!r} in {path}, which the output adds. Try renaming it.",
            code="column_exists",
        )
    write_table(output, polars.concat([frame, new_columns], how="horizontal"), table.dialect)
    return int(new_columns[:, 0].is_not_null().sum()), "probabilities", (*table.notes, *notes)


def calibrate_frame(
    calibrator: CandidateCalibrator, frame: Any, columns: Columns, options: TableOptions
) -> tuple[Any, tuple[str, ...]]:
    """Return the new columns for every row of a frame, and notes on the rows.

    Rows with missing values are left out of the calibration if the options drop them; their new cells are null.

    Args:
        calibrator: The fitted calibrator to apply.
        frame: A polars frame.
        columns: The roles of its columns.
        options: Options of reading.
    """
    # Only scores and groups are read, and the row number as id, by which results are joined to the rows of the frame
    score_columns = replace(
        columns, label=None, labels=(), predicted=None, correct=None, weight=None, cluster=None, id=ROW_INDEX_COLUMN
    )
    contents = frame_to_contents(frame.with_row_index(ROW_INDEX_COLUMN), score_columns, options)
    rows = contents.ids
    if _is_multilabel(calibrator, columns, contents):
        names = columns.names or tuple(map(str, range(len(columns.scores))))
        new_columns, notes = _label_columns(calibrator, contents, names, are_logits=options.are_logits)
    else:
        p = contents.with_labels().to_predictions(are_logits=options.are_logits)
        new_columns, notes = _class_columns(calibrator, p, columns.positive)
    scored_rows = polars.DataFrame({ROW_INDEX_COLUMN: rows, **new_columns})
    all_rows = polars.DataFrame({ROW_INDEX_COLUMN: range(len(frame))}, schema={ROW_INDEX_COLUMN: rows.dtype})
    joined = all_rows.join(scored_rows, on=ROW_INDEX_COLUMN, how="left", maintain_order="left")
    return joined.drop(ROW_INDEX_COLUMN), notes


def _is_multilabel(calibrator: CandidateCalibrator, columns: Columns, contents: Contents) -> bool:
    """Return whether the score columns are separate labels (multilabel data) instead of the classes of one label.

    Calibrators treat each label as two classes, absent and present (`PRESENCE`). The evidence is, in this order: a
    column of outcomes for each label, the data that the calibrator was fitted on, and rows that do not sum to 1.
    """
    if columns.labels:  # one column of outcomes per score column
        return True
    names, num_scores = columns.names or (), len(columns.scores)
    k = calibrators.num_classes(calibrator.fitted)  # 0 if the calibrator accepts any number
    if names == PRESENCE.classes or num_scores < 2 or k not in (0, 2):  # columns of one label, or of k classes
        return False
    fitted_classes, fitted_groups = calibrator.record.class_names, getattr(calibrator.fitted, "names", ())
    if fitted_classes == PRESENCE.classes or (names and set(names) <= set(fitted_groups)):  # labels are groups
        return True
    # Without class names, a calibrator of 2 classes can only apply to more than 2 scores if these are labels
    if fitted_classes is not None or k != 2 or num_scores == 2 or contents.kind != "probs":
        return False
    sums = to_column(contents.scores, "scores").astype(float).sum(1)
    is_distribution = abs(sums - 1) < 0.02  # tolerates rounded probabilities
    return float(is_distribution.mean()) <= 0.5


def _class_columns(calibrator: CandidateCalibrator, p: Predictions, positive: str | None) -> NewColumns:
    """Return the new columns of a table with one label per row, by name, and notes.

    They are the calibrated probability of the single score, or of every class and then the predicted class. `positive`
    is the name of the class that a single score is the probability of, if it is known.
    """
    calibrated = calibrator.calibrate(p)
    probs = to_numpy(probabilities(calibrated.logits))
    decisions = {} if calibrator.contract is None else _decision_columns(calibrator.contract, calibrated)
    if p.of == 1:  # a single score, or a stated confidence
        prob_name = f"prob_{positive}" if positive else "prob"
        name = "confidence" if p.class_names in BINARY_EVENTS else prob_name  # of correctness, or of a class
        return {f"{CALIBRATED_PREFIX}{name}": probs[:, 1]} | decisions, calibrated.notes
    class_names = p.class_names or range(p.k)
    columns = {f"{CALIBRATED_PREFIX}prob_{name}": probs[:, i] for i, name in enumerate(class_names)}
    predicted = [class_names[i] for i in probs.argmax(1)]
    return columns | {"predicted": predicted} | decisions, calibrated.notes


def _decision_columns(contract: "Contract", calibrated: Predictions) -> dict[str, Any]:
    """Return whether to act on each calibrated prediction, and its prediction set, as far as the contract has them."""
    p = calibrated.reorder_classes(contract.class_names).with_event(contract.of)
    columns: dict[str, Any] = {}
    if contract.threshold is not None:
        columns["act"] = contract.threshold.acts_on(p)
    if contract.sets is not None:
        names = np.array(p.class_names or range(p.k), dtype=str)
        is_in_set = to_numpy(contract.sets.apply(p))  # (n, k)
        columns["prediction_set"] = [SET_SEPARATOR.join(names[row]) for row in is_in_set]
    return columns


def _label_columns(
    calibrator: CandidateCalibrator, contents: Contents, names: tuple[str, ...], *, are_logits: bool
) -> NewColumns:
    """Return the calibrated probabilities of each label by column name, and notes.

    Args:
        calibrator: The fitted calibrator to apply.
        contents: Scores of n examples and l labels, (n, l).
        names: Names of the l labels.
        are_logits: Whether logits may all lie in [0, 1].
    """
    scores = to_column(contents.scores, "scores")
    no_labels = np.zeros_like(scores)  # calibration does not read them
    labeled = replace(contents, labels=no_labels, class_names=names, is_multilabel=True)
    calibrated = calibrator.calibrate(labeled.to_predictions(are_logits=are_logits))  # a row per label of each example
    probs = to_numpy(probabilities(calibrated.logits))[:, 1].reshape(scores.shape)
    columns = {f"{CALIBRATED_PREFIX}prob_{name}": probs[:, i] for i, name in enumerate(names)}
    return columns, calibrated.notes
