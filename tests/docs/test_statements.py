"""Numbers and superlatives of the README follow from the tables of benchmarks and studies."""

import csv
import importlib
import re
import shutil
import tomllib

import pytest
import typer
from doc_pages import ROOT

from calibrant.cli import app

pytest.importorskip("torch")
statements = importlib.import_module("benchmarks.statements")

SLOW = {"wang_runs", "first_output"}  # read every study of a paper, and fit calibrators
UNNAMED = {"figures"}  # commands that the README leaves to the page of studies
NUMBERS = {  # numbers of the README that state no result
    "90": "the question of the first line",
    "10": "a risk, as an example",
    "0": "ECE of a calibrated model",
    "3.11": "requires-python",
    "1": "a class",
    "1.7": "GB of what `make demo` installs",
    "3": "GB of what `make test` installs",
    "2": "minutes of `make demo`",
    "5": "minutes of `make test`",
    "2.0": "the license",
}


def prose(text: str) -> str:
    """Return the README without code, links, images and the texts that follow from tables."""
    text = statements.MARKED.sub("", text)
    text = re.sub(r"^```.*?^```|`[^`]+`|<img[^>]*>", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", text)


def test_every_marked_text_follows_from_the_tables():
    marked_names = set[str]()
    for path in statements.pages():
        text = path.read_text()
        assert text.count("<!-- measured:") == len(statements.MARKED.findall(text)), path
        hidden = re.search(r"^[ \t]*<!-- measured: \w+ -->[ \t]*\S", text, re.MULTILINE)
        assert not hidden, f"{path}: a line of HTML hides its Markdown"
        assert list(statements.stale_texts(text, SLOW)) == [], f"{path}: python -m benchmarks.statements --write"
        marked_names |= {name for _, name, _, _ in statements.MARKED.findall(text)}
    assert marked_names | {"peers"} == set(statements.STATEMENTS)  # `peers` is a part of another one


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/studies.md"])
def test_texts_that_need_fits_or_studies_follow_from_them(page):
    assert list(statements.stale_texts((ROOT / page).read_text(), set(statements.STATEMENTS) - SLOW)) == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_front_pages_state_no_other_number_and_no_other_superlative(page):
    text = prose((ROOT / page).read_text())
    assert set(re.findall(r"\d+(?:[.,]\d+)*", text)) <= set(NUMBERS)
    words = re.findall(r"[a-z]+", text.lower())
    assert {word for word in words if word in ("most", "least", "worst") or word.endswith("est")} <= {"test"}


def test_the_readme_names_every_command_and_its_version_of_python():
    text = (ROOT / "README.md").read_text()
    commands = typer.main.get_command(app).commands
    assert {name for name in commands if not re.search(rf"calibrant {name}\b|`{name}`|make {name}", text)} == UNNAMED
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"] == ">=3.11"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file", "column", "rows"),
    [
        ("auto_ranks", "benchmarks/accuracy.csv", "nll", {"contender": "calibrant, Auto"}),
        ("auto_ranks", "benchmarks/caution.csv", "nll", {"contender": "calibrant, VennAbers"}),
        ("verdict_power", "benchmarks/power.csv", "Kuiper", {"design": "5 bands"}),
        ("rare_errors", "howto/difference_levels.csv", "plain new < old (%)", {"metric": "nll", "design": "rare"}),
        ("packages", "benchmarks/environment.csv", "name", {"name": "mapie"}),
    ],
)
def test_a_changed_number_in_a_table_makes_the_readme_stale(name, file, column, rows, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "docs/benchmarks", tmp_path / "benchmarks")
    shutil.copytree(ROOT / "docs/howto", tmp_path / "howto")
    path = tmp_path / file
    with path.open(newline="") as lines:
        table = list(csv.DictReader(lines))
    for row in table:
        if all(row[key] == value for key, value in rows.items()) and row[column]:
            row[column] = "numpy" if column == "name" else str(2 * float(row[column]))
    with path.open("w", newline="") as lines:
        writer = csv.DictWriter(lines, table[0])
        writer.writeheader()
        writer.writerows(table)
    before = statements.STATEMENTS[name]()
    monkeypatch.setattr(statements, "RESULTS", tmp_path)
    assert statements.STATEMENTS[name]() != before
    marked = f"a <!-- measured: {name} -->{before}<!-- end --> b"
    assert [stale for stale, _, _ in statements.stale_texts(marked)] == [name]
    assert statements.rewritten(marked) == f"a <!-- measured: {name} -->{statements.STATEMENTS[name]()}<!-- end --> b"


def test_ranks_count_only_calibrators_that_fitted_every_problem(tmp_path, monkeypatch):
    """Auto is first on the networks, and second on the stated confidences by the mean over draws."""
    (tmp_path / "benchmarks").mkdir()
    problems = {
        "accuracy": {"net": {"Auto": 0.3, "Temperature": 0.4}, "simulated: a #0": {"Auto": 0.3, "Temperature": 0.4}},
        "caution": {
            "table: a #0": {"Auto": 0.3, "Temperature": 0.4},
            "stated: a #0": {"Auto": 0.5, "Temperature": 0.6},
            "stated: a #1": {"Auto": 0.5, "Temperature": 0.2},
            "stated: b #0": {"Auto": 0.6, "Temperature": 0.6, "Platt": 0.1},
        },
    }
    for name, losses in problems.items():
        lines = ["problem,n,contender,nll"]
        for problem, nll in losses.items():
            lines += [f'{problem},50,"calibrant, {c}",{value}' for c, value in nll.items()]
            lines += [f'{problem},50,"netcal, A",'] if problem == "net" else []
        (tmp_path / f"benchmarks/{name}.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(statements, "RESULTS", tmp_path)
    assert statements.ranking("networks")[:2] == (1, "calibrant, Temperature")
    rank, rival, excess, _ = statements.ranking("stated")
    assert (rank, rival, excess) == (2, "calibrant, Temperature", pytest.approx(-0.05))
    assert set(statements.losses_by_calibrator("stated")) == {"calibrant, Auto", "calibrant, Temperature"}


def test_the_readme_counts_the_networks_of_the_demo():
    study = tomllib.loads((ROOT / "studies/quickstart.toml").read_text())
    assert statements.demo_networks().split()[0] == str(len(study["losses"]) * len(study["seeds"]))
