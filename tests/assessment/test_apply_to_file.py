"""Calibrated tables: the meaning of two columns of scores, and the columns that are written."""

from datetime import date, datetime, time, timedelta
from pathlib import Path

import numpy as np
import polars
import pytest
from refusals import refused
from scipy.special import expit, softmax

from calibrant import Predictions, calibrators
from calibrant.assessment import apply_to_file


@pytest.fixture(scope="module")
def labels() -> Predictions:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(100, 2))
    return Predictions.multilabel(2 * z + 1, rng.binomial(1, expit(z)), names=["fever", "cough"])


def write_table(path: Path) -> tuple[Path, np.ndarray]:
    scores = np.array([[0.5, -1.0], [2.0, 3.0]])
    polars.DataFrame(scores, ["logit_fever", "logit_cough"]).write_csv(path)
    return path, scores


@pytest.mark.parametrize("name", ["Platt", "GroupCalibrated"])
def test_two_columns_are_labels_for_a_multilabel_calibrator(labels, name, tmp_path):
    fitted = calibrators.fit(name, labels)
    calibrators.save(fitted, tmp_path / "c.safetensors", fitted_on=labels)
    path, scores = write_table(tmp_path / "new.csv")
    apply_to_file(str(tmp_path / "c.safetensors"), path, tmp_path / "out.csv")
    out = polars.read_csv(tmp_path / "out.csv")
    assert out.columns[2:] == ["calibrated_prob_fever", "calibrated_prob_cough"]
    p = Predictions.multilabel(scores, np.zeros((2, 2)), names=["fever", "cough"]).apply(fitted)
    np.testing.assert_allclose(out[:, 2:].to_numpy(), softmax(p.logits, 1)[:, 1].reshape(2, 2))


def test_two_columns_are_classes_for_a_class_calibrator(labels, tmp_path):
    p = Predictions(labels.logits, labels.labels, class_names=["fever", "cough"])
    calibrators.save(calibrators.fit("Platt", p), tmp_path / "c.safetensors", fitted_on=p)
    path, _ = write_table(tmp_path / "new.csv")
    apply_to_file(str(tmp_path / "c.safetensors"), path, tmp_path / "out.csv")
    out = polars.read_csv(tmp_path / "out.csv")
    assert out.columns[2:] == ["calibrated_prob_fever", "calibrated_prob_cough", "predicted"]
    assert (out["calibrated_prob_fever"] + out["calibrated_prob_cough"]).to_list() == pytest.approx([1, 1])


def test_existing_column_of_predictions_is_kept(labels, tmp_path):
    p = Predictions(labels.logits, labels.labels, class_names=["fever", "cough"])
    path, _ = write_table(tmp_path / "new.csv")
    polars.read_csv(path).with_columns(predicted=polars.Series(["fever", "x"])).write_csv(path)
    apply_to_file(calibrators.fit("Temperature", p), path, tmp_path / "out.csv")
    out = polars.read_csv(tmp_path / "out.csv")
    assert out["predicted"].to_list() == ["fever", "x"]
    assert out["calibrated_predicted"].to_list() == ["fever", "cough"]


@pytest.mark.parametrize("kind", ["prob", "logit"])
@pytest.mark.parametrize("has_names", [False, True])
def test_ten_classes_are_refused_by_a_calibrator_of_two(kind, has_names, tmp_path):
    rng = np.random.default_rng(1)
    p = Predictions(rng.normal(size=(50, 2)), rng.integers(0, 2, 50), class_names=["no", "yes"] if has_names else None)
    calibrators.save(calibrators.fit("Platt", p), tmp_path / "c.safetensors", fitted_on=p)
    scores = rng.normal(size=(20, 10))
    scores = softmax(scores, 1) if kind == "prob" else scores
    polars.DataFrame(scores, [f"{kind}_{i}" for i in range(10)]).write_csv(tmp_path / "new.csv")
    with refused("num_classes"):
        apply_to_file(str(tmp_path / "c.safetensors"), tmp_path / "new.csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_columns_that_do_not_sum_to_1_are_multilabel(tmp_path):
    p = Predictions.from_binary_logits([1.0, -1.0, 2.0, -2.0], [1, 0, 0, 1])
    probs = polars.DataFrame({f"prob_{name}": [0.5, 0.9] for name in ("a", "b", "c")})
    probs.write_csv(tmp_path / "new.csv")
    apply_to_file(calibrators.fit("Platt", p), tmp_path / "new.csv", tmp_path / "out.csv")
    assert polars.read_csv(tmp_path / "out.csv").columns[3:] == [f"calibrated_prob_{name}" for name in ("a", "b", "c")]


def test_single_logits_in_the_unit_interval_require_are_logits(tmp_path):
    scores = np.linspace(0.1, 0.9, 9)
    np.savez(tmp_path / "new.npz", logits=scores)
    calibrator = calibrators.Temperature(2.0)
    with refused("probs_as_logits"):
        apply_to_file(calibrator, tmp_path / "new.npz", tmp_path / "out.npz")
    apply_to_file(calibrator, tmp_path / "new.npz", tmp_path / "out.npz", are_logits=True)
    written = np.load(tmp_path / "out.npz")["logits"]
    np.testing.assert_allclose(written[:, 1] - written[:, 0], scores / 2)


def save_temperature(folder: Path) -> Path:
    calibrators.save(calibrators.Temperature(2.0), folder / "t.safetensors")
    return folder / "t.safetensors"


def test_dates_of_a_workbook_stay_dates(tmp_path):
    """They were written as texts."""
    days = [date(2024, 1, 2), date(2023, 12, 31)]
    times = [datetime(2024, 1, 2, 3, 4, 5), datetime(2024, 1, 2, 3, 4, 5, 250_000)]
    frame = polars.DataFrame({"day": days, "time": times, "prob_a": [0.2, 0.7], "prob_b": [0.8, 0.3]})
    frame.write_excel(tmp_path / "in.xlsx")
    apply_to_file(save_temperature(tmp_path), tmp_path / "in.xlsx", tmp_path / "out.xlsx")
    written = polars.read_excel(tmp_path / "out.xlsx")
    assert written["day"].cast(polars.Date).to_list() == days
    assert written["time"].cast(polars.Datetime("us")).to_list() == times


def test_times_durations_and_codes_of_a_workbook_stay_what_they_are(tmp_path):
    xlsxwriter = pytest.importorskip("xlsxwriter")
    cells = {"code": "007", "time": time(3, 4, 5), "duration": timedelta(hours=30), "prob_a": 0.2, "prob_b": 0.8}
    with xlsxwriter.Workbook(tmp_path / "in.xlsx") as book:
        sheet = book.add_worksheet()
        for j, (name, value) in enumerate(cells.items()):
            sheet.write(0, j, name)
            form = book.add_format({"num_format": {"time": "hh:mm:ss", "duration": "[h]:mm:ss"}.get(name, "")})
            sheet.write(1, j, value, form)
    apply_to_file(save_temperature(tmp_path), tmp_path / "in.xlsx", tmp_path / "out.xlsx")
    before, after = (polars.read_excel(tmp_path / f"{name}.xlsx") for name in ("in", "out"))
    assert after.select(before.columns).equals(before)
    assert after.schema["duration"] == polars.Duration
    apply_to_file(save_temperature(tmp_path), tmp_path / "in.xlsx", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("007,")


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8-sig", "utf-16"])
def test_encoding_of_a_table_is_kept(tmp_path, encoding):
    """It became UTF-8 without a word."""
    (tmp_path / "in.csv").write_bytes("Größe;prob_ä;prob_b\nß;0,2;0,8\nü;0,7;0,3\n".encode(encoding))
    apply_to_file(save_temperature(tmp_path), tmp_path / "in.csv", tmp_path / "out.csv")
    text = (tmp_path / "out.csv").read_bytes().decode(encoding)
    assert text.splitlines()[0].startswith("Größe;prob_ä;prob_b")
    assert len(text.splitlines()) == 3
