"""A few rows of the benchmark's tables, for the page on choosing a calibrator: `{measured-calibrators}`."""

from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks.md"
SHOWN = (
    "Auto",
    "Auto(accuracy_preserving=True)",
    "Monotone",
    "Temperature",
    "StructuredVector",
    "StructuredMatrix",
    "Vector",
)
SHOWN += ("Matrix", "Dirichlet", "Isotonic", "VennAbers", "HistogramBinning", "Identity")
COLUMNS = ("calibrator", "wins", "n = 300", "1000", "5000", "NLL", "ECE15 %", "accuracy %")
FENCE = "```{measured-calibrators}\n```"


def tables() -> str:
    """Return a table for the real and one for the simulated problems, as Markdown."""
    text = BENCHMARKS.read_text()
    return "\n\n".join(
        f"**{kind} predictions**\n\n" + _table(text.split(f"### {kind} predictions")[1])
        for kind in ("Real", "Simulated")
    )


def _table(text: str) -> str:
    lines = [line for line in text.split("\n###")[0].splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    kept = [head.index(column) for column in COLUMNS]
    chosen = {row[0].strip("*"): row for row in rows}
    others = [name for name in chosen if not name.startswith("calibrant, ")][:1]  # the best of all others
    ours = [name for name in chosen if name.removeprefix("calibrant, ") in SHOWN]
    names = sorted(ours + others, key=list(chosen).index)
    out = ["| " + " | ".join(COLUMNS) + " |", "|" + " :-- |" + " --: |" * (len(COLUMNS) - 1)]
    for name in names:
        cells = [chosen[name][i] for i in kept]
        out.append(
            "| "
            + " | ".join([f"`{name.removeprefix('calibrant, ')}`" if name not in others else name, *cells[1:]])
            + " |"
        )
    return "\n".join(out)
