"""Evaluate 9 examples in two processes, which this file starts with its own name: padding copies must not count."""

import json
import os
import socket
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
NUM_EXAMPLES = 9


def run_two_processes(task: str, folder: str) -> list[dict[str, float]]:
    """Run a function of this module in two processes, and return what each prints as JSON in its last line."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    shared["PYTHONPATH"] = os.pathsep.join(sys.path)
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, task, folder],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return [json.loads(process.communicate(timeout=280)[0].strip().splitlines()[-1]) for process in processes]


def two_trainers(folder: str) -> dict[str, float]:
    """Evaluate a language model with the Trainer."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from calibrant.integrations.transformers import CalibrationTrainerCallback

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    ids = torch.randint(1, 20, (NUM_EXAMPLES, 7), generator=torch.Generator().manual_seed(0))
    calibration = CalibrationTrainerCallback("cross_entropy", ["nll"])
    counts: dict[str, float] = {}

    def compute_metrics(evaluation):
        values = calibration.compute_metrics(evaluation)
        counts.update(labels=len(evaluation.label_ids), tokens=len(calibration._val))
        return values

    Trainer(
        model=model,
        args=TrainingArguments(output_dir=folder, report_to=[], use_cpu=True, per_device_eval_batch_size=2),
        eval_dataset=[{"input_ids": row, "labels": row} for row in ids],
        compute_loss_func=calibration.compute_loss,
        compute_metrics=compute_metrics,
        callbacks=[calibration],
    ).evaluate()
    return counts


def two_lightning_trainers(folder: str) -> dict[str, float]:
    """Validate with Lightning, by the callback and by metrics with the number of examples, with ids, and without."""
    import warnings

    import lightning
    from torch.utils.data import DataLoader, TensorDataset

    from calibrant.integrations.lightning import CalibrationCallback
    from calibrant.integrations.torchmetrics import CalibrationMetric

    x = torch.arange(2.0 * NUM_EXAMPLES).view(NUM_EXAMPLES, 2)
    callback = CalibrationCallback(["accuracy"])

    class Network(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Linear(2, 2)
            self.exact = CalibrationMetric("accuracy", num_examples=NUM_EXAMPLES)
            self.named = CalibrationMetric("accuracy")
            self.padded = CalibrationMetric("accuracy")
            self.counts: dict[str, float] = {}
            self.has_ids = False

        def validation_step(self, batch, index):
            logits = self.body(batch[0])
            self.exact.update(logits, batch[1])
            self.named.update(logits, batch[1], ids=batch[2])
            self.padded.update(logits, batch[1])
            return {"logits": logits, "labels": batch[1]} | ({"ids": batch[2]} if self.has_ids else {})

        def on_validation_epoch_end(self):
            for name in ("named",) if self.has_ids else ("exact", "named", "padded"):
                metric = getattr(self, name)
                with metric.sync_context():
                    self.counts[name] = len(metric.summary)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    metric.compute()
                    self.counts[f"{name}_warnings"] = len(caught)

    def validate(sampler):
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            logger=False,
            enable_progress_bar=False,
            callbacks=[callback],
            default_root_dir=folder,
            use_distributed_sampler=sampler is None,
        )
        trainer.validate(network, DataLoader(data, batch_size=2, sampler=sampler), verbose=False)
        return len(callback._val)

    network, examples = Network(), torch.arange(NUM_EXAMPLES)
    data = TensorDataset(x, examples % 2, examples)
    counts = {"callback": validate(None)} | network.counts
    # Halves that share the middle, which `DistributedSampler` does not make
    network.has_ids, half = True, NUM_EXAMPLES // 2
    start = half * int(os.environ["RANK"])
    counts["callback_halves"] = validate(range(start, start + half + 1))
    for name in "named", "named_warnings":
        counts[f"{name}_halves"] = network.counts[name]
    return counts


if __name__ == "__main__":
    import logging

    logging.disable()
    print(json.dumps(globals()[sys.argv[1]](sys.argv[2])))
