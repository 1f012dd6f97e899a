"""Special losses, networks and data sets train for an epoch on tiny data."""

import importlib

import numpy as np
import pytest
import torch
from refusals import refused

from calibrant.lab import study
from calibrant.lab.study import Store, Study

STUDY = """
datasets = ["blobs(train=60, val=40, test=50)"]
networks = ["mlp(features=2, hidden=())"]
losses = {losses}
calibrators = ["Identity"]
metrics = ["error"]
traces = ["gammas"]
recipe = {{epochs = 1, batch_size = 20, milestones = []}}
"""

BERT = """
datasets = ["newsgroups(tokenizer='{0}', length=16, val=30)"]
networks = ["bert(checkpoint='{0}')"]
losses = ["AdaFocal"]
calibrators = ["Identity"]
metrics = ["error"]
recipe = {{epochs = 1, batch_size = 64, optimizer = "adamw", learning_rate = 2e-5, clip = 1.0, milestones = []}}
"""

SST = """
datasets = ["sst(classes={0}, dimension=8)"]
networks = ["tree_lstm(memory=8)"]
losses = ["cross_entropy"]
calibrators = ["Identity"]
metrics = ["error"]
recipe = {{epochs = 1, batch_size = 3, milestones = []}}
"""

IMAGENET = """
datasets = ["imagenet(size=32, stream=True, crop='resized')"]
networks = ["resnet50_imagenet(width=4)"]
losses = ["AdaFocal"]
calibrators = ["Identity"]
metrics = ["error"]
recipe = {epochs = 1, batch_size = 6, milestones = []}
"""


def trained(folder, text, data=None):
    """Write and run a study without failures, and return the result."""
    (folder / "study.toml").write_text(text)
    result = study.run(folder / "study.toml", out=folder / "out", data=data)
    assert not result.failed
    return result


def test_special_losses_train(tmp_path):
    losses = [
        "flsd_continuous",
        "RegMixup",
        "RegMixup(loss='AdaFocal(every=1)', alpha=2)",
        "cross_entropy(smoothing=-0.05)",
        "logit_norm(strength=-0.001)",
    ]
    rows = trained(tmp_path, STUDY.format(losses=losses)).to_polars()
    assert rows["loss"].to_list() == losses
    assert rows["value"].is_finite().all()


@pytest.fixture
def tiny_bert(tmp_path):
    """Return a checkpoint of random weights and a tokenizer, saved by Transformers."""
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    folder = tmp_path / "tiny-bert"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word", *(f"##{d}" for d in range(10))]
    BertTokenizerFast(vocab={w: i for i, w in enumerate(words)}).save_pretrained(folder)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForSequenceClassification(BertConfig(vocab_size=16, num_labels=20, **sizes)).save_pretrained(folder)
    return folder


def test_bert_on_subwords(tmp_path, small_data, tiny_bert):
    result = trained(tmp_path, BERT.format(tiny_bert), small_data)
    ((run,), (measurement,)) = Study.load(tmp_path / "study.toml").runs(), result.measurements
    assert run.dataset.settings["tokenizer"] == run.network.settings["checkpoint"] == str(tiny_bert)
    assert measurement.rows[0]["value"] <= 1
    assert Store(tmp_path / "out").record(run)["facts"]["network"] == str(tiny_bert)  # the origin of the weights


def test_checkpoints_that_cannot_be_downloaded_are_refused(tmp_path, small_data, tiny_bert, monkeypatch):
    for module in "data.newsgroups", "networks.bert":
        monkeypatch.setattr(importlib.import_module(f"calibrant.lab.{module}"), "is_hub_reachable", lambda: False)
    away = BERT.format("nobody-has-this/bert")
    with refused("no_data") as caught:
        trained(tmp_path, away, small_data)
    assert "tokenizer 'nobody-has-this/bert'" in str(caught.value)
    away = away.replace("nobody-has-this/bert", str(tiny_bert), 1)
    with refused("hub_unavailable") as caught:
        trained(tmp_path, away, small_data)
    assert "'nobody-has-this/bert'" in str(caught.value)


def test_sentiment_with_confidences_that_are_not_normalized(tmp_path, small_data):
    """Both networks have three outputs and learn the same; two classes renormalize without the third."""
    predictions = {}
    for classes in 2, 3:
        (tmp_path / str(classes)).mkdir()
        result = trained(tmp_path / str(classes), SST.format(classes), small_data)
        (run,) = result.study.runs()
        predictions[classes] = Store(tmp_path / str(classes) / "out").get(run, "test")
    two, three = predictions[2], predictions[3]
    assert np.array_equal(two.logits, three.logits[:, [0, 2]])
    assert np.array_equal(2 * two.labels, three.labels)
    theirs = torch.as_tensor(three.logits).softmax(1)[:, [0, 2]].amax(1)  # drop the third class after softmax
    likely = three.predicted != 1
    assert likely.any()
    np.testing.assert_allclose(three.events.confidence[likely], theirs[likely], rtol=1.3e-6, atol=1e-5)
    assert (two.events.confidence[likely] > three.events.confidence[likely]).all()


def test_imagenet_from_its_files(tmp_path, small_data):
    assert trained(tmp_path, IMAGENET, small_data).to_polars()["value"].is_finite().all()
