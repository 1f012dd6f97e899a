"""Sentences of the documentation that state results, read from the tables of the benchmarks and studies.

    python -m benchmarks.statements [--write]

Text between `<!-- measured: NAME -->` and `<!-- end -->` in the README and the pages is that of the function NAME of
this file. The command lists texts that are not; with `--write`, it replaces them.
"""

import argparse
import contextlib
import csv
import io
import re
import tomllib
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant import Predictions
    from calibrant.assessment import Assessment

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs"  # folder of the tables
MARKED = re.compile(r"(<!-- measured: (\w+) -->)(.*?)(<!-- end -->)", re.DOTALL)
OURS = "calibrant, "
WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
GROUPS = {  # of the problems of accuracy.csv and caution.csv: file, start of the problem, and name in sentences
    "networks": ("accuracy", "", "predictions of real networks"),
    "simulated": ("accuracy", "simulated", "simulated predictions"),
    "tables": ("caution", "table", "models of tables"),
    "stated": ("caution", "stated", "stated confidences of language models"),
}
CLAIMS = {  # one per study: words of the section's heading, and the claim in short
    "mukhoti_2020": ("Focal loss against", "focal loss has a lower ECE before and after temperature scaling"),
    "wang_2021": ("Calibrated or calibratable", "regularized networks have a higher ECE after calibration"),
    "adafocal_2022": ("AdaFocal", "AdaFocal has a lower ECE than other losses"),
    "komisarenko_2024": ("Focal temperature", "focal temperature scaling has a lower ECE than temperature scaling"),
    "loss_survey": ("Four losses", "focal loss and the L1 norm lower the ECE, entropy regularization does not"),
}
STATEMENTS: dict[str, Callable[[], str]] = {}


def statement(function: Callable[[], str]) -> Callable[[], str]:
    """Register a function that returns a text of the documentation."""
    STATEMENTS[function.__name__] = function
    return function


def read_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a table below the folder of results."""
    return _read_rows(RESULTS / name)


@cache
def _read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def in_words(n: int) -> str:
    """Return a number up to twelve in words."""
    return WORDS[n] if n < len(WORDS) else f"{n:,}"


# Calibrators


def losses_by_calibrator(group: str) -> dict[str, list[float]]:
    """Return the log-loss of each problem of a group by calibrator, for those that fitted all problems.

    Splits and draws of one model in caution.csv count as one problem, as on the page.
    """
    return _losses_by_calibrator(group, RESULTS)


@cache
def _losses_by_calibrator(group: str, folder: Path) -> dict[str, list[float]]:
    file, start, _ = GROUPS[group]
    losses: dict[str, dict[tuple[str, ...], list[float]]] = {}
    for row in _read_rows(folder / f"benchmarks/{file}.csv"):
        is_simulated = row["problem"].startswith("simulated")
        if row["problem"].startswith(start) if start else not is_simulated:
            name = row["problem"] if file == "accuracy" else row["problem"].split(" #")[0]
            problem = losses.setdefault(row["contender"], {}).setdefault((name, row["n"]), [])
            problem.append(float(row["nll"] or "nan"))
    problems = {problem for by_problem in losses.values() for problem in by_problem}
    means = {name: [fmean(by.get(p, [float("nan")])) for p in sorted(problems)] for name, by in losses.items()}
    return {name: values for name, values in means.items() if not any(x != x for x in values)}


def contender_text(contender: str) -> str:
    """Return a calibrator as code, with its package if it is not ours."""
    package, _, name = contender.partition(", ")
    return f"`{name}`" if contender.startswith(OURS) else f"{name} of {package}"


def ranking(group: str) -> tuple[int, str, float, float]:
    """Return the rank of Auto in mean log-loss, the best of the others, and its mean excess over Auto with 1.96 errors.

    The excess is negative if the other one is better.
    """
    losses = losses_by_calibrator(group)
    order = sorted(losses, key=lambda name: fmean(losses[name]))
    auto = f"{OURS}Auto"
    rival = next(name for name in order if name != auto)
    excess = [a - b for a, b in zip(losses[rival], losses[auto], strict=True)]
    half = 1.96 * stdev(excess) / len(excess) ** 0.5 if len(excess) > 1 else float("nan")
    return order.index(auto) + 1, rival, fmean(excess), half


@statement
def auto_ranks() -> str:
    """Say on which groups of problems Auto has the lowest mean log-loss, and by what it is beaten on the others."""
    sentences = list[str]()
    if listed := first_places():
        opening = f"Of all calibrators that fitted every problem, {peers()}, `Auto` has the lowest mean log-loss on "
        sentences.append(f"{opening}{listed}.")
    for group in GROUPS:
        rank, rival, excess, half = ranking(group)
        if rank > 1:
            place = f"On {group_title(group)}, it is number {rank} of {len(losses_by_calibrator(group))}"
            chance = ", which may be chance" if half >= -excess else ""
            sentences.append(f"{place}: {contender_text(rival)} is lower by {-excess:.4f} ± {half:.4f} nats{chance}.")
    return " ".join(sentences)


@statement
def first_places() -> str:
    """List the groups of problems on which Auto has the lowest mean log-loss."""
    titles = [group_title(group) for group in GROUPS if ranking(group)[0] == 1]
    return titles[0] if len(titles) == 1 else f"{', '.join(titles[:-1])} and {titles[-1]}" if titles else ""


def group_title(group: str) -> str:
    """Return the name of a group of problems with their number."""
    return f"{GROUPS[group][2]} ({len(next(iter(losses_by_calibrator(group).values())))} problems)"


@statement
def harmed_models() -> str:
    """Say how many models of tables and language models `Auto` makes worse."""
    harmed, worst = list[str](), 0.0
    for group in ("tables", "stated"):
        losses = losses_by_calibrator(group)
        excess = [a - b for a, b in zip(losses[f"{OURS}Auto"], losses[f"{OURS}Identity"], strict=True)]
        harmed.append(f"{sum(x > 0.001 for x in excess)} of {len(excess)} {GROUPS[group][2]}")
        worst = max(worst, *excess)
    return (
        f"`Auto` makes {' and '.join(harmed)} worse by more than .001 nats, at most by {worst:.4f}. Each size of the "
        "fitting data counts."
    )


@statement
def covered() -> str:
    """Say how often intervals of 90 % cover the truth where they do so least."""
    cells = [row for row in read_rows("benchmarks/coverage.csv") if row["method"] == "calibrant"]
    shares = [float(row["coverage"]) for row in cells]
    return f"Intervals of 90 % cover the truth in at least {100 * min(shares):.1f} % of the {len(shares):,} settings."


@statement
def races() -> str:
    """Say in how many races of speed another contender with a right result is faster."""
    rows = read_rows("benchmarks/speed.csv")
    tasks = {row["task"] for row in rows}
    rivals = [row for row in rows if row["contender"] not in ("calibrant", "bare floor") and row["right"] != "False"]
    lost = sorted({row["task"] for row in rivals if row["of_ours"] and float(row["of_ours"]) < 1})
    where = f", which is not so for {' and '.join(lost)}" if lost else ""
    return f"First in {len(tasks) - len(lost)} of {len(tasks)} races among contenders with a right result{where}."


@statement
def summary_size() -> str:
    """Say how large a saved summary of predictions is; its size does not depend on their number."""
    import pickle

    from calibrant import Predictions, metrics

    summary = metrics.Summary.from_predictions(Predictions([[2.0, 0.0], [0.0, 1.0]], [0, 1]))
    return f"{len(pickle.dumps(summary)) / 1e6:.0f} MB"


@statement
def metric_speed() -> str:
    """Say how long metrics take relative to one softmax, for many examples and for many classes."""
    ratio = {row["task"]: float(row["ratio"]) for row in read_rows("benchmarks/limits.csv")}
    sizes = "(1,000,000, 10)", "(20,000, 1000)"
    ece, table = ([f"{ratio[f'{name} {size}']:.2f}" for size in sizes] for name in ("ece", "measure"))
    return (
        "for a million examples of 10 classes and for 20,000 of 1000 classes: `ece` takes "
        f"{ece[0]} and {ece[1]} times as long, and `measure`, the whole table, {table[0]} and {table[1]} times."
    )


@statement
def peers() -> str:
    """Say how many packages have calibrators that were compared with ours."""
    contenders = {row["contender"] for file in ("accuracy", "caution") for row in read_rows(f"benchmarks/{file}.csv")}
    packages = {name.partition(",")[0] for name in contenders} - {"calibrant"}
    return f"ours and those of {in_words(len(packages))} other packages"


@statement
def packages() -> str:
    """Say how many packages the benchmarks compare with, and how many of them have calibrators."""
    not_compared = {"threads", "python", "calibrant", "torch", "numpy", "scipy"}
    names = {row["name"].partition(",")[0] for row in read_rows("benchmarks/environment.csv")}
    compared = names - not_compared
    with_calibrators = re.findall(r"of (\w+) other", peers())[0]
    return f"{in_words(len(compared))} other packages, {with_calibrators} of which have calibrators"


@statement
def accuracy_problems() -> str:
    """Say how many problems calibrators were compared on."""
    networks, simulated = (len(next(iter(losses_by_calibrator(g).values()))) for g in ("networks", "simulated"))
    return f"{networks} real problems with 300, 1000 and 5000 examples to fit on, and {simulated} simulated ones"


# The example of the README


def run_example() -> "tuple[Assessment, Predictions]":
    """Run the first Python block of the README. Return its result and the predictions that it is evaluated on."""
    code = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)[0]
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, names)
    return names["result"], names["preds"][600:]


@statement
def first_output() -> str:
    """Return what the example of the README prints before its tables."""
    text = str(run_example()[0]).partition("\n\n")[0]
    return f"\n\n```text\n{text}\n```\n\n"


# Studies


@statement
def demo_networks() -> str:
    """Say how many networks the demo trains."""
    study = tomllib.loads((ROOT / "studies/quickstart.toml").read_text())
    keys = "datasets", "networks", "losses", "seeds"
    count = 1
    for key in keys:
        count *= len(study[key])
    return f"{count} small networks"


def first_bold(text: str) -> str:
    """Return the first words in bold after the claims of a section of the page of results."""
    return re.findall(r"\*\*((?:Holds|Inconclusive|Does not hold)[^*]*?)\.?\*\*", text)[0]


def scale_verdicts(text: str, claim: int) -> str:
    """Return the verdicts on a numbered claim by scale, from the table of a section of the page of results."""
    cells = next(line for line in text.splitlines() if line.startswith(f"| {claim}. ")).split("|")[2:-1]
    words = [" and ".join(dict.fromkeys(re.findall(r"\*\*(\w[^*]*)\*\*", cell))) for cell in cells]
    by_scale = [f"{word} at {scale} scale" for word, scale in zip(words, ("small", "medium", "long"), strict=True)]
    return f"{words[0]} at all scales" if len(set(words)) == 1 else ", ".join(by_scale)


@statement
def verdicts() -> str:
    """Return a table of the papers, one claim of each, and the verdict on it of the page of results."""
    page = (RESULTS / "results/README.md").read_text()
    sections = {text.partition("\n")[0]: text for text in page.split("\n## ")}
    lines = ["| paper, and its study | claim | here |", "|---|---|---|"]
    for study, (key, claim) in CLAIMS.items():
        heading, text = next((head, text) for head, text in sections.items() if key in head)
        before, after = (scale_verdicts(text, i) for i in (1, 2)) if study == "mukhoti_2020" else ("", "")
        verdict = f"before: {before}; after: {after}" if before else first_bold(text)
        name = heading[heading.index("(") + 1 : -1]
        lines.append(f"| {name[:1].upper() + name[1:]}, `{study}` | {claim} | {verdict[:1].lower() + verdict[1:]} |")
    return "\n\n" + "\n".join(lines) + "\n\n"


@statement
def num_papers() -> str:
    """Return the number of papers with studies, in words."""
    return in_words(_num_papers())


def _num_papers() -> int:
    """Count the folders of results that belong to a study of a paper: the name has a year, or is a survey."""
    folders = {path.name for path in (RESULTS / "results").iterdir() if path.is_dir()}
    return len({path.stem for path in (ROOT / "studies").glob("*.toml")} & folders)


@statement
def wang_runs() -> str:
    """Count the runs that the studies of Wang et al. (2021) list."""
    from calibrant.lab.study import Study

    studies = [Study.load(path) for path in sorted((ROOT / "studies").glob("wang_2021*.toml"))]
    num_runs = sum(len(list(study.runs())) for study in studies)
    return f"the {in_words(len(studies))} studies of Wang et al. (2021) list {num_runs:,} runs"


@statement
def results_page() -> str:
    """Return the page of results."""
    from benchmarks.results_page import render

    return f"\n\n{render(RESULTS / 'results').strip()}\n\n"


# Decisions


@statement
def verdict_power() -> str:
    """Compare two tests by their power against errors of alternating sign, and by their levels."""
    rows = read_rows("benchmarks/power.csv")
    power = next(row for row in rows if row["design"] == "5 bands")
    levels = [
        [float(row[test]) for row in rows if row["design"].startswith("calibrated")] for test in ("Kuiper", "omnibus")
    ]
    kuiper, omnibus = (f"{min(values)} to {max(values)} %" for values in levels)
    return (
        f"With an error of .08 in five bands and {power['n']} examples, Kuiper's test rejects {power['Kuiper']} %, "
        f"and the omnibus test {power['omnibus']} %. On calibrated predictions they reject {kuiper} and {omnibus}."
    )


@statement
def weighted_power() -> str:
    """Say how often calibrated predictions with importance weights are rejected."""
    rows = [row for row in read_rows("benchmarks/power.csv") if "importance weights" in row["design"]]
    levels = [float(row["omnibus"]) for row in rows if row["design"].startswith("calibrated")]
    return (
        "On calibrated predictions with importance weights, the test rejects "
        f"{min(levels)} to {max(levels)} % at a level of 5 %."
    )


@statement
def stated_gains() -> str:
    """Say how often the gain that `Auto` states holds."""
    rows = [row for row in read_rows("benchmarks/held_out.csv") if row["calibrator"] == "Auto, as stated"]
    holds = [float(row["holds"]) for row in rows]
    above_0 = sum(float(row["low_above_0"]) for row in rows if row["world"].startswith("calibrated"))
    return (
        f"The lower limit of the gain that `Auto` states, of 95 %, holds in {100 * min(holds):g} to "
        f"{100 * max(holds):g} % of the draws; on calibrated predictions it is above 0 in "
        f"{'none' if above_0 == 0 else 'some'}."
    )


@statement
def rare_errors() -> str:
    """Compare two kinds of limits on a difference of models, one of which has rare errors."""
    rows = read_rows("howto/difference_levels.csv")
    row = next(row for row in rows if (row["metric"], row["design"], row["n"]) == ("nll", "rare", "25"))
    return (
        "Of two models of equal NLL, of which one has rare and costly errors, plain Student limits call that one "
        f"better in {row['plain new < old (%)']} % of samples of {row['n']}, and ours in {row['new < old (%)']} %."
    )


@statement
def verdict_levels() -> str:
    """Give the range of the levels of the verdict's test, in each kind of data."""
    ranges = []
    for problem, title in (("independent", "independent examples"), ("clusters", "clusters"), ("weights", "weights")):
        rows = [r for r in read_rows("benchmarks/levels.csv") if (r["problem"], r["test"]) == (problem, "omnibus")]
        rates = [float(row[column]) for row in rows for column in ("n = 20", "n = 100")]
        ranges.append(f"{min(rates)} to {max(rates)} % with {title}")
    return f"The test of the verdict (`omnibus`) rejects in {ranges[0]}, in {ranges[1]}, and in {ranges[2]}."


@statement
def training_overhead() -> str:
    """Say how much longer an epoch takes than a plain loop."""
    rows = read_rows("benchmarks/throughput.csv")
    ratios = [float(row["of_bare"]) for row in rows if row["contender"] == "calibrant train"]
    return f"An epoch takes {min(ratios):.2f} to {max(ratios):.2f} times as long as in a plain loop of torch."


# Pages


def pages() -> Iterator[Path]:
    """Yield the README and the pages that may hold marked texts."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def stale_texts(text: str, skipped: Collection[str] = ()) -> Iterator[tuple[str, str, str]]:
    """Yield name, text and right text of every marked text that is not that of its function, apart from spaces."""
    for _, name, marked, _ in MARKED.findall(text):
        expected = marked if name in skipped else STATEMENTS[name]()
        if marked.split() != expected.split():
            yield name, " ".join(marked.split()), expected


def difference(marked: str, expected: str, num_words: int = 40) -> tuple[str, str]:
    """Return both texts from a few words before their first difference, at most `num_words`."""
    first, second = marked.split(), expected.split()
    start = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    start = max(0, start - num_words // 4)
    return " ".join(first[start : start + num_words]), " ".join(second[start : start + num_words])


def rewritten(text: str) -> str:
    """Return the text of a page in which every stale text is replaced."""
    expected_by_name = {name: expected for name, _, expected in stale_texts(text)}
    return MARKED.sub(lambda m: m[1] + expected_by_name.get(m[2], m[3]) + m[4], text)


def main() -> None:
    """List the texts that do not follow from the tables, or replace them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    for path in pages():
        text = path.read_text()
        for name, marked, expected in stale_texts(text):
            print(f"{path.relative_to(ROOT)}, {name}:", *difference(marked, expected), sep="\n  ")
        if write and (new := rewritten(text)) != text:
            path.write_text(new)


if __name__ == "__main__":
    main()
