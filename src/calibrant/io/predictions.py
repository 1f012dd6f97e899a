"""Predictions from files, tables and arrays, and back. `Predictions.load` and its siblings call this module."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from calibrant._core.text import parse_integer
from calibrant._core.types import InputError, prefix_errors
from calibrant.io import reading
from calibrant.io.arrays import SCORE_KEYS, find_score_and_label_keys
from calibrant.io.cells import replace_missing_words
from calibrant.io.columns import TableOptions
from calibrant.io.formats import is_table
from calibrant.io.frames import check_incomplete, frame_to_arrays, incomplete_notes
from calibrant.io.reading import read, write
from calibrant.io.roles import infer_columns, require_labels
from calibrant.io.tables import as_frame
from calibrant.predictions import Predictions
from calibrant.predictions.events import BINARY_EVENTS
from calibrant.predictions.validation import resolve_event
from calibrant.predictions.validation.arrays import to_tensor
from calibrant.predictions.validation.names import factorize_samples, group_name_per_sample, to_unique_names
from calibrant.predictions.validation.scores import SingleScoreEvidence
from calibrant.predictions.validation.weights import resolve_weights_are

SAVED_FIELDS = ("logits", "labels", "weights", "clusters", "groups", "examples")
AMBIGUOUS_NAMES = "na|nan|null|none|nil|missing|inf|infinity|true|false|.*_duplicated_.*"
PORTABLE_NAME = re.compile(rf"(?!(?i:{AMBIGUOUS_NAMES})$)[^\W\d]\w*([ .-]\w+)*")  # reads back from any format
MIN_SCORES_TO_REFUSE_EARLY = 1000  # single scores in [0, 1] that refuse a chunk before the last one is read


def read_table(table: Any, ignore_index: int | None, of: Any, **options: Any) -> Predictions:
    """Read a table in memory for `Predictions.from_table`."""
    table_options = TableOptions.from_keywords({**options, "ignore_index": ignore_index})
    frame = replace_missing_words(as_frame(table), table_options.na)
    columns = infer_columns(frame, table_options)
    require_labels(columns, frame)
    arrays = frame_to_arrays(frame, columns, table_options)
    return from_arrays(arrays, ignore_index, of, are_logits=table_options.are_logits)


class LoadedFile(NamedTuple):
    """The content of a file of predictions."""

    predictions: Predictions
    has_labels: bool  # if not, the labels are 0
    ids: list[Any] | None  # of the rows, None where one is missing; None without an id per row of the predictions


def read_file(
    path: str | Path, ignore_index: int | None = None, of: Any = None, *, needs_labels: bool = True, **options: Any
) -> LoadedFile:
    """Read a file, a folder or a pattern for `Predictions.load`.

    Args:
        path: The file, folder or pattern.
        ignore_index: Label of positions to leave out.
        of: Event to evaluate; None: see `from_arrays`.
        needs_labels: Whether to refuse a file without labels. Otherwise missing labels become 0.
        **options: Options for tables and logs, as `TableOptions.from_keywords` takes them.
    """
    table_options = TableOptions.from_keywords({**options, "ignore_index": ignore_index})
    with prefix_errors(f"{path}"):
        arrays, has_labels = read(path, table_options, needs_labels=needs_labels), True
        if not needs_labels:
            arrays, has_labels = add_missing_labels(arrays)
        p = from_arrays(arrays, ignore_index, of, are_logits=table_options.are_logits)
    ids = list(arrays.get("ids", ()))
    return LoadedFile(p, has_labels, ids if len(ids) == len(p) else None)


def add_missing_labels(arrays: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return arrays with labels of 0 if they have no labels or correctness, and whether they had any."""
    if any(name in arrays for name in ("labels", "label", "correct")):
        return arrays, True
    kind = next((kind for kind in SCORE_KEYS if kind in arrays), "probs")
    shape = np.shape(arrays.get(kind, np.zeros((0, 2))))  # without scores, an error about them follows
    labels = np.zeros(shape[:1] + shape[2:], dtype=np.int64)  # one per row or position
    return {**arrays, "correct" if kind == "confidence" else "labels": labels}, False


def read_chunks(
    path: str | Path,
    rows: int | None,
    ignore_index: int | None,
    of: Any,
    on_note: Callable[[str], object] | None = None,
    **options: Any,
) -> Iterator[Predictions]:
    """Yield the predictions in each chunk of rows of a file, for `Predictions.load_chunks`."""
    table_options = TableOptions.from_keywords({**options, "ignore_index": ignore_index})
    num_classes, rows_read = 0, 0  # 0 classes before the first chunk
    incomplete = Counter[str]()
    evidence = SingleScoreEvidence()  # that single logits are probabilities by mistake
    for chunk, arrays in reading.read_chunks(path, rows, table_options):
        rows_read = chunk.stop
        incomplete_rows: Counter[str] = arrays.get("incomplete", Counter())  # number of rows left out, by reason
        incomplete += incomplete_rows
        if incomplete_rows.total() == chunk.stop - chunk.start:  # all rows were left out
            continue
        with prefix_errors(f"{path}"):
            labels = arrays[find_score_and_label_keys(arrays)[1]]
        if ignore_index is not None and bool((np.asarray(labels) == ignore_index).all()):
            continue  # predictions without rows would be refused
        with prefix_errors(reading.describe_chunk(path, chunk)):
            # A chunk alone does not refuse logits that look like probabilities: the evidence of all chunks does
            p = from_arrays(arrays, ignore_index, of, are_logits=True)
            if not table_options.are_logits and _has_single_logits(arrays):
                evidence.add_pairs(p.logits).check("the key 'probs' or --probs", min_scores=MIN_SCORES_TO_REFUSE_EARLY)
        if num_classes not in (0, p.k):
            raise InputError(
                f"{path}: Expected {num_classes} classes in every row, got {p.k} from row {chunk.start} on.",
                code="num_classes",
            )
        num_classes = p.k
        yield p
    with prefix_errors(f"{path}"):
        check_incomplete(incomplete, rows_read)
    if on_note is not None:
        for note in incomplete_notes(incomplete):
            on_note(note)
    if num_classes == 0:  # no chunk, or ignored labels only
        raise InputError(f"{path}: Expected at least one sample, got none.", code="no_rows")
    evidence.check("the key 'probs' or --probs")


def write_file(p: Predictions, path: str | Path, *, with_labels: bool = True, ids: Any = None) -> None:
    """Write predictions for `Predictions.save`.

    Names that a format may change, such as "1.0" or " a", are checked by reading the file back.

    Args:
        p: The predictions.
        path: The file, which is replaced only if writing succeeds.
        with_labels: Whether to write the labels.
        ids: Ids of the rows to write, None without ids.

    Raises:
        InputError: If the format cannot hold the predictions.
    """
    if p.row_groups is not None:
        raise InputError(
            "Expected predictions without row_groups, which files cannot hold. Try saving the scores, targets and "
            "groups as a table with one row per sample.",
            code="row_groups",
        )
    if p.examples is not None and is_table(path):
        raise InputError(
            "Expected labels that are classes in a table, got soft labels or fractional outcomes. Try .npz or "
            ".safetensors.",
            code="soft_labels",
        )
    of, k = p.of, p.k
    if is_table(path) and of != "top" and (of, k) != (1, 2):
        raise InputError(
            f"Expected predictions of the top class in a table, which holds no event, got of={of!r}. Try .npz or "
            '.safetensors, or with_event("top").',
            code="event_in_table",
        )
    tensors = {name: getattr(p, name) for name in SAVED_FIELDS if with_labels or name != "labels"}
    arrays = {name: tensor.cpu().contiguous() for name, tensor in tensors.items() if tensor is not None}
    names = {name: value for name in ("class_names", "group_names") if (value := getattr(p, name)) is not None}
    is_portable = all(PORTABLE_NAME.fullmatch(name) for level_names in names.values() for name in level_names)

    def check(draft: Path) -> None:
        """Raise `InputError` unless the written file reads back as it was."""
        try:
            loaded = read_file(draft, needs_labels=False).predictions
            is_exact = _is_read_back_exactly(p, loaded, with_labels=with_labels)
        except InputError:
            is_exact = False
        if not is_exact:
            raise InputError(
                f"{path}: Expected class and group names that this format can hold, got names that read back "
                "differently. Try .safetensors or .npz, or other names.",
                code="not_exact",
            )

    default_event = 1 if p.class_names in BINARY_EVENTS else "top"  # of a file that names none
    if of != default_event:
        names["evaluated_event"] = (str(of),)
    if p.weights_are != resolve_weights_are(None, p.weights, p.clusters):
        names["weights_are"] = (p.weights_are,)
    write(path, arrays | ({} if ids is None else {"ids": ids}), names, None if is_portable else check)


def _is_read_back_exactly(saved: Predictions, loaded: Predictions, *, with_labels: bool) -> bool:
    """Whether loaded predictions equal the saved ones, except for the order of classes and the dtype of the logits."""
    numbers = tuple(map(str, range(loaded.k)))
    names, loaded_names = saved.class_names or numbers, loaded.class_names or numbers
    if loaded.logits.shape != saved.logits.shape or {*loaded_names} != {*names}:
        return False
    columns = torch.tensor([loaded_names.index(name) for name in names])  # the loaded class of each saved one
    saved_classes = columns.argsort()  # the inverse: the saved class of each loaded one
    has_equal_labels = not with_labels or torch.equal(saved_classes[loaded.labels], saved.labels.cpu())
    has_equal_logits = torch.equal(loaded.logits[:, columns].double(), saved.logits.cpu().double())
    return has_equal_labels and has_equal_logits and _group_name_list(saved) == _group_name_list(loaded)


def _group_name_list(p: Predictions) -> list[str]:
    """Return the group name of every sample, [] without groups."""
    return [] if p.groups is None or p.group_names is None else [p.group_names[i] for i in p.groups.tolist()]


# Arrays by name


def from_arrays(
    arrays: Mapping[str, Any], ignore_index: int | None = None, of: Any = None, *, are_logits: bool = False
) -> Predictions:
    """Return predictions from the arrays of a file or table, by the constructor for their keys.

    Args:
        arrays: "logits" or "probs" with "labels", or "confidence" with "correct", and optional others by name.
        ignore_index: Label of positions to leave out.
        of: Event to evaluate. Default: the event in the file, else class 1 of a confidence or of several labels, else
            the default of the constructor.
        are_logits: Accept single logits that all lie in [0, 1], as probabilities do.
    """
    kind, label_key = find_score_and_label_keys(arrays)
    scores, targets = arrays[kind], arrays[label_key]
    class_names, shape = arrays.get("class_names"), np.shape(scores)
    if class_names is not None and np.asarray(targets).dtype.kind in "iu":
        targets = to_tensor(targets, "labels")  # integers in a tensor are positions, even if class names are numbers
    options: dict[str, Any] = {name: arrays.get(name) for name in ("weights", "clusters", "groups")}
    options["weights_are"] = _read_entry(arrays, "weights_are")
    if options["groups"] is not None and "group_names" in arrays:
        options["groups"] = group_name_per_sample(options["groups"], arrays["group_names"])
    if kind != "confidence":  # every stated confidence counts
        options["ignore_index"] = ignore_index
    has_several_labels = len(shape) == 2 and shape[1] > 1 and np.shape(targets) == shape
    if arrays.get("is_multilabel") and has_several_labels:
        options |= {"probs": True} if kind == "probs" else {"logits": are_logits}
        p = Predictions.multilabel(scores, targets, names=class_names, **options)
    elif kind == "confidence":
        p = Predictions.from_confidence(scores, targets, of=arrays.get("event_kind", "correct"), **options)
    elif kind == "probs":
        scores = scores[:, 0] if shape[1:] == (1,) else scores  # a single column is the probability of class 1
        p = Predictions.from_probs(scores, targets, class_names=class_names, **options)
    elif _is_one_per_label(shape):
        p = Predictions.from_binary_logits(scores, targets, logits=are_logits, class_names=class_names, **options)
    else:
        p = Predictions(scores, targets, class_names=class_names, **options)
    changes: dict[str, Any] = {"notes": (*arrays.get("notes", ()), *p.notes)}
    if "examples" in arrays:
        changes["examples"] = factorize_samples(arrays["examples"], "examples", len(p))[0]
    if of is None and (event := _read_entry(arrays, "evaluated_event")) is not None:
        index = parse_integer(event)
        of = event if index is None else index
    elif of is None and p.class_names in BINARY_EVENTS:  # such as wrong and correct
        of = 1
    if of is not None:
        changes["of"] = resolve_event(of, p.k, p.class_names)
    return p._replace(**changes)  # pyright: ignore[reportPrivateUsage]


def from_unlabeled_arrays(arrays: Mapping[str, Any], *, are_logits: bool = False) -> tuple[Predictions, bool]:
    """Return the predictions in arrays, and whether they have labels. Missing labels become 0."""
    arrays, has_labels = add_missing_labels(arrays)
    return from_arrays(arrays, are_logits=are_logits), has_labels


def _read_entry(arrays: Mapping[str, Any], key: str) -> str | None:
    """Return a text that a file stores as a list of one, such as the event to evaluate, or None if it is absent."""
    return ", ".join(to_unique_names(arrays[key], key)) if key in arrays else None


def _has_single_logits(arrays: Mapping[str, Any]) -> bool:
    """Whether the arrays of a file hold a single logit for each label, and not one for each class, or probabilities."""
    if "logits" not in arrays:
        return False
    return bool(arrays.get("is_multilabel")) or _is_one_per_label(np.shape(arrays["logits"]))


def _is_one_per_label(shape: tuple[int, ...]) -> bool:
    """Whether scores (n,) or (n, 1) have one number per label instead of one per class."""
    return len(shape) == 1 or shape[1:] == (1,)
