"""Compare Calibrant with other packages.

    python -m benchmarks [--size quick] [--only speed,scale] [--out out]

Writes benchmarks.md and one CSV per part into the folder. Parts that are not run keep their last results.
"""

import argparse
import importlib
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch, numpy and numba start their threads

import torch

from benchmarks import _harness as harness
from benchmarks import _peers as peers
from benchmarks import statements

PARTS = (
    "accuracy",
    "caution",
    "held_out",
    "assessments",
    "coverage",
    "weights_and_extremes",
    "agreement",
    "speed",
    "throughput",
    "scale",
    "limits",
)
# statements at the top of the page of a full run, which alone has every contender, and the parts whose tables they
# read; the first part is the one to read
FINDINGS = {
    "auto_ranks": ("accuracy", "caution"),
    "harmed_models": ("caution",),
    "stated_gains": ("held_out",),
    "covered": ("coverage",),
    "races": ("speed",),
    "training_overhead": ("throughput",),
}


def machine() -> str:
    """Return the processor, its cores and the memory."""
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.is_file() else []
    model = [line.split(":")[1].strip() for line in lines if "model name" in line]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model[0] if model else platform.processor()}, {os.cpu_count()} cores, {memory:.0f} GiB"


def environment() -> list[harness.Row]:
    """Return the versions of packages and the number of threads."""
    facts = {
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        **{name: version(name) for name in ("calibrant", "torch", "numpy", "scipy")},
        **dict(peers.versions()),
    }
    return [{"name": key, "value": value} for key, value in facts.items()]


def measured_versions(path: Path) -> dict[str, str]:
    """Return the version of Calibrant and the machine of each part's last run, from the table of the environment."""
    rows = harness.read(path) if path.is_file() else []
    by_name = {row["name"]: str(row["value"]) for row in rows}
    return {part: by_name[name] for part in PARTS if (name := f"calibrant, {part}") in by_name}


def page(out: Path, size: str) -> str:
    """Return the page built from the results in a folder."""
    tables = out / "benchmarks"
    rows = harness.read(tables / "environment.csv")
    text = [
        "# Comparison with other packages",
        "",
        f"`make bench{'-full' if size == 'full' else ''}` writes this page from the tables in `benchmarks/`.",
        "Contenders run in turn in one process. Times are medians of one thread's processor time after a warm-up;",
        "compare ratios. Packages that are faster or better than Calibrant are listed as well.",
        "",
        *(findings(out) if size == "full" else ()),
    ]
    for name in PARTS:
        path = tables / f"{name}.csv"
        if path.is_file():
            part = importlib.import_module(f"benchmarks.{name}")
            text += ["", f"## {part.TITLE}", "", " ".join(part.__doc__.split()), "", part.page(harness.read(path))]
    versions_table = harness.markdown(["", ""], [[row["name"], row["value"]] for row in rows])
    return "\n".join([*text, "", "## Versions and machines", "", versions_table]) + "\n"


def findings(out: Path) -> list[str]:
    """Return what the tables in a folder say, as lines of a list, with a link to each section."""
    statements.RESULTS = out
    lines: list[str] = []
    for name, sources in FINDINGS.items():
        if all((out / "benchmarks" / f"{part}.csv").is_file() for part in sources):
            title = importlib.import_module(f"benchmarks.{sources[0]}").TITLE
            marked = f"<!-- measured: {name} -->{statements.STATEMENTS[name]()}<!-- end -->"
            lines.append(f"- [{title}](#{title.lower().replace(' ', '-')}): {marked}")
    return lines


def main() -> None:
    """Run the parts and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=harness.SIZES, default="quick")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by comma; empty: only write the page")
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for package, why in peers.missing().items():
        print(f"skipped: {package}: {why}", flush=True)
    environment_path = options.out / "benchmarks" / "environment.csv"
    versions = measured_versions(environment_path)
    for name in filter(None, options.only.split(",")):
        began = written = time.monotonic()
        rows: list[harness.Row] = []
        path = options.out / "benchmarks" / f"{name}.csv"
        try:
            for row in importlib.import_module(f"benchmarks.{name}").run(harness.SIZES[options.size]):
                rows.append(row)
                if time.monotonic() - written > 10:
                    harness.write(rows, path)
                    written = time.monotonic()
        finally:
            harness.write(rows, path)  # keep the rows of an interrupted run
        print(f"{name}: {len(rows)} rows in {time.monotonic() - began:.0f} s", flush=True)
        versions[name] = f"{version('calibrant')} on {machine()}"
        parts = [{"name": f"calibrant, {part}", "value": text} for part, text in versions.items()]
        harness.write([*environment(), *parts], environment_path)
    (options.out / "benchmarks.md").write_text(page(options.out, options.size))
    print(options.out / "benchmarks.md")


if __name__ == "__main__":
    main()
