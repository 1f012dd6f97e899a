"""Predictions as a notebook cell: what they hold, and their first rows."""

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrant.predictions._predictions import Predictions

NUM_ROWS = 5


def render_cell(p: "Predictions") -> str:
    """Return HTML with a line about the predictions and a table of their first rows.

    Args:
        p: Predictions of n rows.
    """
    first = p[:NUM_ROWS]
    names = p.class_names or tuple(map(str, range(p.k)))
    confidence, predicted = first.outcomes.confidence, first.predicted
    columns = {
        "label": [names[i] for i in first.labels.tolist()],
        "predicted": [names[i] for i in predicted.tolist()],
        "confidence": [f"{value:.4g}" for value in confidence.tolist()],
    }
    if first.weights is not None:
        columns["weight"] = [f"{value:.4g}" for value in first.weights.tolist()]
    if first.clusters is not None:
        columns["cluster"] = [str(value) for value in first.clusters.tolist()]
    if p.groups is not None and p.group_names is not None:
        columns["group"] = [p.group_names[i] for i in p.groups[:NUM_ROWS].tolist()]
    head = "".join(f"<th>{name}</th>" for name in columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in zip(*columns.values(), strict=True)
    )
    remainder = f"<p>and {len(p) - NUM_ROWS:,} more rows</p>" if len(p) > NUM_ROWS else ""
    return f"<p><code>{escape(repr(p))}</code></p><table><tr>{head}</tr>{rows}</table>{remainder}"
