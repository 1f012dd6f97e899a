"""Copy selected rows of the benchmark tables to the page on choosing a calibrator: `{measured-calibrators}`."""

from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks.md"
CALIBRATORS = (
    *("Auto", "Auto(accuracy_preserving=True)", "Monotone", "Temperature", "StructuredVector", "StructuredMatrix"),
    *("Vector", "Matrix", "Dirichlet", "Isotonic", "VennAbers", "HistogramBinning", "Identity"),
)
COLUMNS = ("calibrator", "wins", "n = 300", "1000", "5000", "NLL", "ECE15 %", "accuracy %")
OURS = "calibrant, "  # prefix of our calibrators in the benchmark tables


def tables() -> str:
    """Return one table for the real and one for the simulated problems, as Markdown."""
    text = BENCHMARKS.read_text()
    return "\n\n".join(
        f"**{kind} predictions**\n\n" + _table(text.split(f"### {kind} predictions")[1])
        for kind in ("Real", "Simulated")
    )


def _table(text: str) -> str:
    """Return the selected rows and the best other package."""
    lines = [line for line in text.split("\n###")[0].splitlines() if line.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    indices = [header.index(column) for column in COLUMNS[1:]]
    out = ["| " + " | ".join(COLUMNS) + " |", "|" + " :-- |" + " --: |" * (len(COLUMNS) - 1)]
    best_other = next((name for row in rows if not (name := row[0].strip("*")).startswith(OURS)), None)
    for row in rows:
        name = row[0].strip("*")
        if name == best_other or name.removeprefix(OURS) in CALIBRATORS:
            label = name if name == best_other else f"`{name.removeprefix(OURS)}`"
            out.append("| " + " | ".join([label, *(row[i] for i in indices)]) + " |")
    return "\n".join(out)
