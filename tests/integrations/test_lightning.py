"""Really training with Lightning: a small network, two epochs, resumed in the middle."""

import numpy as np
import pytest
import torch

pytest.importorskip("lightning")
import lightning
import torchmetrics
from refusals import refused
from torch.utils.data import DataLoader, TensorDataset
from two_processes import run_two_processes

from calibrant import Predictions, losses, metrics
from calibrant.integrations.lightning import CalibrationCallback
from calibrant.integrations.torchmetrics import CalibrationMetric
from calibrant.nn import Criterion

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning, about workers and loggers


def loader(seed, n=96, shuffle=False):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    y = torch.where(torch.rand(n, generator=g) < 0.2, torch.randint(3, (n,), generator=g), x[:, :3].argmax(1))
    return DataLoader(TensorDataset(x, y), batch_size=32)


class Network(lightning.LightningModule):
    def __init__(self, loss):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        self.criterion = Criterion(loss)
        self.loss_states = []

    def training_step(self, batch, index):
        x, y = batch
        return self.criterion(self.body(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        return {"logits": self.body(x), "labels": y}

    def on_train_epoch_start(self):
        self.loss_states.append(losses.state(self.criterion.loss))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(loss, folder, epochs, resume=None, callback=None):
    network = Network(loss)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback or CalibrationCallback(["accuracy", "ece(bins=10)", "refinement_nll"])],
    )
    trainer.fit(network, loader(1), loader(2), ckpt_path=resume)
    return network, trainer


@pytest.mark.parametrize("loss", ["AdaFocal(bins=5)", "Scheduled(gammas=(5, 3, 1), shares=(0.25, 0.5))"])
def test_resumed_training_equals_uninterrupted_training(loss, tmp_path):
    uninterrupted, _ = fit(loss, tmp_path / "whole", 4)
    first, trainer = fit(f"{loss[:-1]}, epochs=4)" if "Scheduled" in loss else loss, tmp_path / "half", 2)
    saved = trainer.checkpoint_callback.best_model_path
    assert all(
        f"criterion.loss.{name}" in torch.load(saved)["state_dict"]
        for name in losses.state(uninterrupted.criterion.loss)
    )
    second, _ = fit(loss, tmp_path / "half", 4, resume=saved)
    loss_states = first.loss_states + second.loss_states
    assert len(loss_states) == len(uninterrupted.loss_states) == 4
    for ours, theirs in zip(loss_states, uninterrupted.loss_states, strict=True):
        assert {k: torch.as_tensor(v).tolist() for k, v in ours.items()} == {
            k: torch.as_tensor(v).tolist() for k, v in theirs.items()
        }
    for ours, theirs in zip(second.body.parameters(), uninterrupted.body.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_loss_is_advanced_by_all_validation_predictions_of_the_epoch(tmp_path):
    network, trainer = fit("AdaFocal(bins=5)", tmp_path, 1)
    logits = torch.cat([network.body(x) for x, _ in loader(2)])
    val = Predictions(logits, torch.cat([y for _, y in loader(2)]))
    expected = losses.AdaFocal(bins=5).after_epoch(0, val)
    assert np.allclose(network.criterion.loss.gamma, expected.gamma, rtol=1e-5)
    assert trainer.callback_metrics["val_accuracy"].item() == pytest.approx(float(metrics.accuracy(val)))
    assert trainer.callback_metrics["val_ece(bins=10)"].item() == pytest.approx(float(metrics.ece(val, bins=10)))
    left = float(metrics.refinement_nll(val))
    assert trainer.callback_metrics["val_refinement_nll"].item() == pytest.approx(left, rel=1e-3)


def test_scheduled_learns_the_number_of_epochs(tmp_path):
    network, _ = fit("Scheduled(shares=(0.5, 0.75))", tmp_path, 4)
    assert [state["epoch"] for state in network.loss_states] == [0, 1, 2, 3]
    assert network.criterion.loss.epochs == 4


def test_validation_step_without_logits_is_refused(tmp_path):
    class Silent(Network):
        def validation_step(self, batch, index):
            return None

    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[CalibrationCallback()]
    )
    with refused("step_output"):
        trainer.fit(Silent("focal"), loader(1), loader(2))


def test_adafocal_without_validation_is_refused(tmp_path):
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[CalibrationCallback()]
    )
    with refused("no_validation"):
        trainer.fit(Network("AdaFocal"), loader(1))


@pytest.mark.parametrize("shape", [(), (1,), (4,)])
def test_binary_logits_are_events(shape, tmp_path):
    class Binary(Network):
        def __init__(self):
            super().__init__("AdaFocal(bins=5)")
            self.body = torch.nn.Linear(6, 4 if shape == (4,) else 1)
            self.criterion = Criterion("AdaFocal(bins=5)", binary=True, alpha=0.4, ignore_index=-1)

        def outputs(self, batch):
            x, y = batch
            logits = self.body(x).view(-1, *shape)
            labels = (x[:, :4] > 0.3).long() if shape == (4,) else (y > 0).long()
            return {"logits": logits, "labels": labels.where(x[:, 0].view(-1, *[1] * (labels.ndim - 1)) < 1.5, -1)}

        def training_step(self, batch, index):
            return self.criterion(*self.outputs(batch).values())

        def validation_step(self, batch, index):
            return self.outputs(batch)

    callback = CalibrationCallback(["ece", "auroc"], binary=True, ignore_index=-1)
    network = Binary()
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=1, default_root_dir=tmp_path, callbacks=[callback], **options)
    trainer.fit(network, loader(1), loader(2))
    parts = [network.outputs(batch) for batch in loader(2)]
    logits, labels = (torch.cat([part[name] for part in parts]) for name in ("logits", "labels"))
    used = labels != -1
    val = Predictions.from_binary_logits(logits.view(labels.shape)[used], labels[used])
    assert trainer.callback_metrics["val_ece"].item() == pytest.approx(float(metrics.ece(val)))
    assert trainer.callback_metrics["val_auroc"].item() == pytest.approx(float(metrics.auroc(val)))
    expected = losses.AdaFocal(bins=5).after_epoch(0, val)
    assert np.allclose(network.criterion.loss.gamma, expected.gamma, rtol=1e-5)


def test_batches_may_differ_in_length(tmp_path):
    """Each batch is padded to its own longest sequence, and tensors may be arrays."""

    class Tokens(Network):
        def validation_step(self, batch, index):
            logits = torch.randn(len(batch[0]), 3, 4 + index, generator=torch.Generator().manual_seed(index))
            labels = logits.argmax(1)
            labels[:, 4:] = -100
            return {"logits": logits.numpy(), "labels": labels}

    callback = CalibrationCallback()
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, callbacks=[callback])
    trainer.validate(Tokens("focal"), loader(2), verbose=False)
    assert trainer.callback_metrics["val_accuracy"] == 1
    assert (len(callback._val), int(callback._val.clusters.max())) == (4 * 96, 95)


def short_trainer(folder, callback=None, **options):
    """Return a trainer of a few epochs, whose other settings are given."""
    settings = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    settings |= {
        "enable_checkpointing": False,
        "default_root_dir": folder,
        "callbacks": [callback or CalibrationCallback()],
    }
    return lightning.Trainer(**settings | options)


def test_scheduled_learns_the_number_of_epochs_from_steps(tmp_path):
    network = Network("Scheduled(shares=(0.5, 0.75))")
    short_trainer(tmp_path, max_steps=8, max_epochs=-1, accumulate_grad_batches=2).fit(network, loader(1), loader(2))
    assert network.criterion.loss.epochs == 4  # 3 batches are 2 steps
    assert [state["epoch"] for state in network.loss_states] == [0, 1, 2, 3]


def test_scheduled_needs_an_end(tmp_path):
    with refused("num_epochs"):
        short_trainer(tmp_path, max_epochs=-1, max_time="00:00:01:00").fit(Network("Scheduled"), loader(1), loader(2))
    network = Network("Scheduled(epochs=2)")  # as the message says
    short_trainer(tmp_path, max_epochs=-1, max_time="00:00:00:01").fit(network, loader(1), loader(2))
    assert network.criterion.loss.epochs == 2


def test_adafocal_waits_for_validation(tmp_path):
    network = Network("AdaFocal(bins=5)")
    short_trainer(tmp_path, max_epochs=4, check_val_every_n_epoch=2).fit(network, loader(1), loader(2))
    gammas = [state["gamma"] for state in network.loss_states]
    assert np.array_equal(gammas[0], gammas[1])
    assert not np.array_equal(gammas[1], gammas[2])
    assert np.array_equal(gammas[2], gammas[3])


@pytest.mark.filterwarnings("default")
def test_adafocal_trains_without_validation_if_it_is_switched_off(tmp_path):
    network = Network("AdaFocal(bins=5)")
    with pytest.warns(UserWarning, match="AdaFocal"):
        short_trainer(tmp_path, max_epochs=2, limit_val_batches=0).fit(network, loader(1), loader(2))
    assert np.array_equal(network.criterion.loss.gamma, torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_batch_of_nan_or_infinity_does_not_end_the_training(tmp_path, value):
    class Diverged(Network):
        def validation_step(self, batch, index):
            outputs = super().validation_step(batch, index)
            if index == 1 and self.current_epoch == 0:
                outputs["logits"] = torch.full_like(outputs["logits"], float(value))
            return outputs

    values = []

    class Recorder(lightning.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            values.append(float(trainer.callback_metrics["val_ece"]))

    network, callback = Diverged("AdaFocal(bins=5)"), CalibrationCallback(["ece"])
    short_trainer(tmp_path, max_epochs=2, callbacks=[callback, Recorder()]).fit(network, loader(1), loader(2))
    assert values[0] != values[0]
    assert 0 < values[1] < 1
    gammas = [state["gamma"] for state in network.loss_states]
    assert np.array_equal(gammas[0], gammas[1])
    assert not np.array_equal(gammas[1], network.criterion.loss.gamma)


def test_a_logged_metric_is_that_of_the_epoch(tmp_path):
    class Logged(Network):
        def __init__(self):
            super().__init__("cross_entropy")
            self.ece = CalibrationMetric("ece")
            self.metrics = torchmetrics.MetricCollection(
                {"logged_nll": CalibrationMetric("nll"), "logged_brier": CalibrationMetric("brier")}
            )

        def validation_step(self, batch, index):
            outputs = super().validation_step(batch, index)
            self.ece(outputs["logits"], outputs["labels"])
            self.metrics.update(outputs["logits"], outputs["labels"])
            self.log("logged_ece", self.ece)
            self.log_dict(self.metrics)
            return outputs

    names = ["ece", "nll", "brier"]
    trainer = short_trainer(tmp_path, CalibrationCallback(names), max_epochs=1)
    trainer.fit(Logged(), loader(1, n=100), loader(2, n=70))
    values = trainer.callback_metrics
    for name in names:
        assert float(values[f"logged_{name}"]) == pytest.approx(float(values[f"val_{name}"]), abs=1e-6)


@pytest.mark.slow
def test_two_processes_count_every_example_once(tmp_path):
    for counts in run_two_processes("two_lightning_trainers", str(tmp_path)):
        assert {name: counts.pop(name) for name in ("padded", "padded_warnings")} == {
            "padded": 10,
            "padded_warnings": 1,
        }
        assert {name for name, count in counts.items() if count == 0} == {name for name in counts if "warnings" in name}
        assert {count for name, count in counts.items() if "warnings" not in name} == {9}
