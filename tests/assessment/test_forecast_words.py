"""Events in reports: multilabel data, detections and answers have their own words."""

import re
from dataclasses import replace

import numpy as np
import polars
import pytest
from refusals import refused
from rendered import assert_rendered
from scipy.special import expit

from calibrant import Predictions, assess, calibrators, measure
from calibrant.assessment import apply_to_file
from calibrant.assessment._sentences import event_sentence
from calibrant.io.cells import to_numbers
from calibrant.metrics import Summary
from calibrant.predictions.events import BINARY_KINDS, MATCH, PRESENCE, describe_event

NAMES = ["fever", "cough", "rash"]


@pytest.fixture(scope="module")
def labels() -> Predictions:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 3))
    return Predictions.multilabel(2 * logits + [0.0, 1.5, 0.0], rng.binomial(1, expit(logits)), names=NAMES)


def detections(n: int = 400, **options) -> Predictions:
    rng = np.random.default_rng(1)
    c = rng.random(n)
    return Predictions.from_confidence(c, rng.binomial(1, c**2), of="matched", **options)


def words(page: str) -> str:
    text = re.sub(r"<(style|script).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def test_report_on_multilabel_data_names_labels(labels):
    result = assess(labels[:300], labels[300:], ["Identity", "Platt"])
    page = words(result.html())
    for text in (str(result), page, str(measure(labels))):
        assert event_sentence(result.uncalibrated) in " ".join(text.split())
        assert "class 1" not in text
        assert not re.search(r"\b(clusters?|groups?)\b", text)
    assert "Labels, worst first" in page
    assert "Classes, worst first" not in page


def test_report_on_detections_names_matches():
    p = detections(clusters=np.arange(400) // 4)
    result = measure(p)
    text, page = str(result), words(result.html())
    assert "precision" in page
    assert "answers" not in text + page
    assert "answers" in str(measure(Predictions.from_confidence(p.events.confidence, p.labels)))
    with refused("unknown_event", "found"):
        Predictions.from_confidence([0.5], [1], of="found")


def test_table_with_column_matched_holds_detections(tmp_path):
    p = detections(60)
    frame = polars.DataFrame({"confidence": p.events.confidence, "matched": p.labels})
    loaded = Predictions.from_table(frame)
    assert loaded.class_names == MATCH.classes
    assert np.allclose(loaded.logits, p.logits)
    assert Predictions.from_table(frame.rename({"matched": "is_correct"})).class_names == ("wrong", "correct")
    calibrators.save(calibrators.fit("Platt", loaded), tmp_path / "c.safetensors", fitted_on=loaded)
    frame.select("confidence").write_csv(tmp_path / "new.csv")
    apply_to_file(str(tmp_path / "c.safetensors"), tmp_path / "new.csv", tmp_path / "out.csv")
    assert polars.read_csv(tmp_path / "out.csv").columns == ["confidence", "calibrated_confidence"]


@pytest.mark.parametrize("event", BINARY_KINDS, ids=lambda event: event.kind)
def test_cells_may_spell_the_classes_of_an_event(event):
    assert to_numbers(polars.Series([*event.classes, "yes"]), accept_truth_words=True).to_list() == [0, 1, 1]


@pytest.mark.parametrize("event", BINARY_KINDS, ids=lambda event: event.kind)
def test_kind_of_event_is_read_measured_and_recognized_by_its_column(event):
    p = Predictions.from_confidence([0.9, 0.2, 0.8], [1, 0, 0], of=event.kind)
    assert describe_event(1, 2, p.class_names).units in str(measure(p))
    for name in event.table_columns:
        column = [event.classes[i] for i in (1, 0, 0)]
        table = {"confidence": [0.9, 0.2, 0.8], name: column}
        assert Predictions.from_table(table).class_names == event.classes


def test_unit_may_have_an_irregular_plural():
    queries = replace(MATCH, unit="query", plural="queries")
    assert [queries.count(n) for n in (1, 2)] == ["1 query", "2 queries"]
    assert MATCH.units == "detections"


@pytest.mark.parametrize("name", ["l.npz", "l.parquet"])
def test_multilabel_data_survives_files_and_summaries(labels, name, tmp_path):
    labels.save(tmp_path / name)
    loaded = Predictions.load(tmp_path / name)
    assert loaded.class_names == labels.class_names == PRESENCE.classes
    assert str(measure(loaded)) == str(measure(labels))


def test_texts_of_labels_and_detections(torch):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 3, generator=g)
    scores = 2 * logits + torch.tensor([0.0, 1.5, 0.0])
    p = Predictions.multilabel(scores, torch.bernoulli(logits.sigmoid(), generator=g), names=NAMES)
    assert_rendered("labels_measured", str(measure(p)))
    assert_rendered("labels_summary", str(measure(Summary.from_predictions(p.with_event(1)))))
    c = torch.rand(400, generator=g.manual_seed(1))
    matched, images = torch.bernoulli(c**2, generator=g), torch.arange(400) // 4
    p = Predictions.from_confidence(c, matched, of="matched", clusters=images)
    assert_rendered("detections_measured", str(measure(p)))


def test_calibrator_of_answers_applies_to_detections(tmp_path):
    p = detections(100)
    answers = Predictions.from_confidence(p.events.confidence, p.labels)
    assert np.array_equal(p.reorder_classes(answers.class_names).logits, p.logits)
