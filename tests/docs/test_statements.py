"""Numbers and superlatives of the README follow from the tables of benchmarks and studies."""

import csv
import importlib
import re
import shutil
import tomllib

import pytest
from doc_pages import ROOT

statements = importlib.import_module("benchmarks.statements")

NEEDS_STUDIES = {"wang_runs"}  # reads every study of a paper
NUMBERS = {  # numbers of the README that state no result
    "90": "the question of the first line",
    "0": "ECE of a calibrated model, and the least number of labels",
    "3.11": "requires-python",
    "1": "a class",
    "200": "the range of a function",
    "2020": "the year of a paper",
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
        names = {name for _, name, _, _ in statements.MARKED.findall(text)}
        assert text.count("<!-- measured:") == len(statements.MARKED.findall(text)), path
        hidden = re.search(r"^[ \t]*<!-- measured: \w+ -->[ \t]*\S", text, re.MULTILINE)
        assert not hidden, f"{path}: a line of HTML hides its Markdown"
        if not names & NEEDS_STUDIES:
            assert list(statements.stale_texts(text)) == [], f"{path}: python -m benchmarks.statements --write"
        marked_names |= names
    assert marked_names | {"peers"} == set(statements.STATEMENTS)  # `peers` is a part of another one


@pytest.mark.slow
def test_studies_list_as_many_runs_as_the_page_says():
    text = (ROOT / "docs/studies.md").read_text()
    assert list(statements.stale_texts(text)) == []


def test_the_readme_states_no_other_number_and_no_other_superlative():
    text = prose((ROOT / "README.md").read_text())
    assert set(re.findall(r"\d+(?:[.,]\d+)*", text)) <= set(NUMBERS)
    words = re.findall(r"[a-z]+", text.lower())
    assert {word for word in words if word in ("most", "least", "worst") or word.endswith("est")} <= {"test"}
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"] == ">=3.11"


@pytest.mark.parametrize(
    ("name", "file", "column", "rows"),
    [
        ("auto_ranks", "benchmarks/accuracy.csv", "nll", {"contender": "calibrant, Auto"}),
        ("auto_ranks", "benchmarks/caution.csv", "nll", {"contender": "calibrant, VennAbers"}),
        ("focal_ece", "results/long/tables.csv", "mean", {"metric": "ece", "loss": "focal(gamma=3)"}),
        ("packages", "benchmarks/environment.csv", "name", {"name": "mapie"}),
    ],
)
def test_a_changed_number_in_a_table_makes_the_readme_stale(name, file, column, rows, tmp_path, monkeypatch):
    for folder in ("benchmarks", *(f"results/{scale}" for scale in statements.SCALES)):
        shutil.copytree(ROOT / "docs" / folder, tmp_path / folder)
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
