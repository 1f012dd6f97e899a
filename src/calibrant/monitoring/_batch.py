"""A batch of predictions in the order of prediction."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.decisions import check_independent
from calibrant.monitoring._rows import UNKNOWN_LABEL, Rows, batch_digest, hash_ids, number_keys
from calibrant.monitoring._times import to_seconds
from calibrant.predictions import Predictions
from calibrant.types import InputError


@dataclass(frozen=True, eq=False)
class Batch:
    """A validated batch in the order of prediction."""

    predictions: Predictions
    rows: Rows  # groups are indices of the group names, or -1
    times: np.ndarray | None
    is_calendar: bool
    digest: int

    @classmethod
    def from_predictions(
        cls, p: Predictions, *, event: Any, class_names: tuple[str, ...] | None, labeled: Any, ids: Any, times: Any
    ) -> "Batch":
        """Validate a batch, and sort its rows by time.

        Args:
            p: The predictions.
            event: Event of the earlier batches, or None before the first.
            class_names: Classes of the earlier batches, in their order, or None.
            labeled: Which rows have a label already (n), or None for all.
            ids: Ids of the rows (n), by which labels may come later, or None.
            times: Times of the predictions (n), or None.
        """
        check_independent(p, "one row per cluster, without weights")
        p = p.reorder_classes(class_names)
        if event is None:
            event = "top" if p.of == "classes" else p.of  # a watch needs one event per row
        p, n = p.with_event(event), len(p)
        columns: Mapping[str, Any] = {"labeled": labeled, "ids": ids, "times": times}
        for name, column in columns.items():
            if column is not None and len(column) != n:
                raise InputError(f"Expected {name} with one entry per row ({n:,}), got {len(column):,}.", code="shape")
        labeled = np.ones(n, dtype=bool) if labeled is None else np.asarray(labeled)
        if labeled.ndim != 1 or labeled.dtype != bool:  # texts such as "False" would be true
            raise InputError(
                f"Expected labeled as a list of True and False, got {labeled.dtype} {labeled.shape}.",
                code="labeled",
            )
        seconds, is_calendar = (None, False) if times is None else to_seconds(times)
        rows = Rows(
            keys=np.zeros(n, dtype=np.uint64) if ids is None else hash_ids(ids),  # without ids, replaced below
            labels=np.where(labeled, p.labels.cpu().numpy(), UNKNOWN_LABEL),
            probs=p.logits.cpu().double().softmax(1).numpy(),
            groups=np.full(n, -1) if p.groups is None else p.groups.cpu().numpy(),
            periods=np.full(n, -1),  # numbered by the watch
        )
        if seconds is not None:
            order = np.argsort(seconds, kind="stable")
            rows, seconds = rows[order], seconds[order]
        digest = batch_digest(rows.keys, rows.probs, rows.groups, seconds)  # recognizes a batch that is given twice
        if ids is None:
            rows = replace(rows, keys=number_keys(digest, n))  # equal batches have equal keys
        return cls(p, rows, seconds, is_calendar, digest)
