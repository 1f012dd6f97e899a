"""Studies of external models read files of predictions."""

import polars
import pytest
import torch
from refusals import refused

from calibrant import Predictions, metrics
from calibrant._core.tensors import logit_tensor
from calibrant.calibrators import Temperature
from calibrant.lab import study
from calibrant.lab.study import Model, Study
from calibrant.lab.study.measurements import diagrams_over_seeds

NAMES = "plain", "masked"


def predicted(seed: int, by: float) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(300, 4, generator=g)
    return Predictions(by * z, torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1))


@pytest.fixture
def place(tmp_path):
    lines = ['title = "Two models"', 'metrics = ["ece", "nll"]', 'calibrators = ["Identity", "Temperature"]']
    for name, by in ("plain", 1.0), ("bold", 3.0):
        for seed in range(3):
            files = {part: f"{name}{seed}.{part}.parquet" for part in ("val", "test")}
            for i, file in enumerate(files.values()):
                predicted(10 * seed + i, by).save(tmp_path / file)
            lines += ["[[models]]", f'name = "{name}"', f"seed = {seed}"]
            lines += [f'{part} = "{file}"' for part, file in files.items()]
    (tmp_path / "two.toml").write_text("\n".join(lines))
    return tmp_path


def test_files_of_predictions_make_a_study(place, page):
    result = study.run(place / "two.toml", out=place / "out")
    ece, nll = result.tables
    assert [row[2] for row in ece.rows] == ["plain", "bold"]
    for seed in range(3):
        val, test = (predicted(10 * seed + i, 3.0) for i in range(2))
        assert ece.cells[ece.rows[1], "Identity"].values[seed] == pytest.approx(float(metrics.ece(test)), abs=1e-12)
        after = test.double().apply(Temperature.fit(val.double()))
        assert nll.cells[nll.rows[1], "Temperature"].values[seed] == pytest.approx(float(metrics.nll(after)), abs=1e-9)
    assert ece.cells[ece.rows[1], "Identity"].mark == "▲"  # tested over seeds against the first
    assert "bold (T = 3" in result.finding
    assert "trained" not in result.finding
    page = (place / "out" / "report.html").read_text()
    assert "6 sets of predictions" in page
    assert "bold, after Temperature" in page
    assert "\\begin{tabular}" in (place / "out" / "tables.tex").read_text()


def test_columns_of_models_are_configurable(tmp_path):
    for part in "val", "test":
        frame = {"stated": [0.9, 0.8, None, 0.3] * 20, "ok": [1, 0, 1, 0] * 20 if part == "val" else [1, 1, 0, 0] * 20}
        polars.DataFrame(frame).write_csv(tmp_path / f"{part}.csv")
    model = Model(
        "judge",
        str(tmp_path / "val.csv"),
        str(tmp_path / "test.csv"),
        columns={"confidence": "stated", "correct": "ok"},
        drop=True,
    )
    result = study.run(Study("judges", calibrators=["Identity"], metrics=["ece"], models=[model]), out=tmp_path / "out")
    expected = metrics.ece(Predictions.from_confidence([0.9, 0.8, 0.3] * 20, [1, 1, 0] * 20))
    assert result.rows[0]["value"] == pytest.approx(float(expected), abs=1e-12)


def test_diagrams_weigh_examples_as_the_metrics_do(tmp_path):
    for i, part in enumerate(("val", "test")):
        p = predicted(i, 3.0)
        Predictions(p.logits, p.labels, torch.rand(300).numpy() + 9 * p.correct).save(tmp_path / f"{part}.npz")
    model = Model("bold", str(tmp_path / "val.npz"), str(tmp_path / "test.npz"))
    models = Study("weights", calibrators=["Identity"], metrics=["ece(bins=20)"], models=[model])
    result = study.run(models, out=tmp_path / "out")
    [diagram] = diagrams_over_seeds(models, result.measurements)
    bins = diagram.events.equal_width(20)
    assert float(bins.weight @ abs(bins.gap)) == pytest.approx(result.rows[0]["value"], abs=1e-12)


@pytest.mark.slow  # of drawing
def test_masked_class_does_not_change_results(tmp_path, page):
    for seed, part in enumerate(("val", "test")):
        p = predicted(seed, 3.0)
        masked = torch.full((300, 5), -torch.inf)
        masked[:, [0, 1, 3, 4]] = logit_tensor(p)  # like a class that does not occur
        p.save(tmp_path / f"plain.{part}.npz")
        Predictions(masked, torch.tensor([0, 1, 3, 4])[p.labels]).save(tmp_path / f"masked.{part}.npz")
    models = [Model(name, *(str(tmp_path / f"{name}.{part}.npz") for part in ("val", "test"))) for name in NAMES]
    scaled = "Temperature", "Temperature(criterion='ece')", "FocalTemperature(criterion='nll')"
    metric_names = "error", "nll", "ece", "adaptive_ece(edges='mukhoti')", "mce", "brier"
    study_of_models = Study("masked", calibrators=("Identity", *scaled), metrics=metric_names, models=models)
    for table in study.run(study_of_models, out=tmp_path / "out").tables:
        for column in table.columns:
            unmasked, masked_mean = (table.cells[row, column].mean for row in table.rows)
            assert masked_mean == pytest.approx(unmasked, abs=1e-4), (table.metric, column)
    drawn = study.draw(study_of_models, tmp_path / "figures", out=tmp_path / "out")
    assert drawn
    assert all(path.stat().st_size for path in drawn)
    assert "masked, after Temperature" in (tmp_path / "out" / "report.html").read_text()


def test_models_that_repeat_data_or_lack_it_are_refused(place):
    val, test = str(place / "plain0.val.parquet"), str(place / "plain0.test.parquet")
    with refused("model_twice"):
        Study("s", models=[Model("a", val, test), Model("a", val, val)])
    with refused("predictions_twice"):
        Study("s", models=[Model("a", val, test), Model("a", val, test, seed=1)])
    with refused("overlap"):
        Model("a", val, val).predictions()
    with refused("no_file"):
        study.run(Study("s", models=[Model("a", val, "none.parquet")]), out=place / "out")
    (place / "stray.toml").write_text('shifts = ["svhn"]\n[[models]]\nname = "a"\nval = "v.csv"\ntest = "t.csv"\n')
    with refused("stray_key"):
        Study.load(place / "stray.toml")
    (place / "typo.toml").write_text('[[models]]\nname = "a"\nvall = "b"\n')
    with refused("unknown_key") as caught:
        Study.load(place / "typo.toml")
    assert "'val'" in str(caught.value)
