"""Really training with the Trainer of transformers: small random networks, two epochs, resumed in the middle."""

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from refusals import refused
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    CohereConfig,
    CohereForCausalLM,
    EvalPrediction,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
    XLNetConfig,
    XLNetLMHeadModel,
)
from two_processes import run_two_processes

from calibrant import Predictions, losses, metrics
from calibrant.integrations.transformers import CalibrationTrainerCallback, LinearLossTrainer, predicts_next_token
from calibrant.nn import Criterion

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and accelerate


def examples(seed, n=48, tokens=False):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 20, (n, 7), generator=g)
    labels = ids % 3 if tokens else ids[:, 0] % 3
    if tokens:
        labels = labels.where(torch.rand(labels.shape, generator=g) < 0.8, -100)
    return [
        {"input_ids": ids[i], "attention_mask": torch.ones(7, dtype=torch.int64), "labels": labels[i]} for i in range(n)
    ]


def network(kind=BertForSequenceClassification):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return kind(config)


def trainer(calibration, folder, epochs, *, tokens=False, model=None, **options):
    args = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
        save_strategy="epoch",
        **{"eval_strategy": "epoch", "logging_strategy": "no"} | options,
    )
    return Trainer(
        model=model or network(BertForTokenClassification if tokens else BertForSequenceClassification),
        args=args,
        train_dataset=examples(1, tokens=tokens),
        eval_dataset=examples(2, tokens=tokens),
        compute_loss_func=calibration.compute_loss,
        compute_metrics=calibration.compute_metrics,
        callbacks=[calibration],
    )


@pytest.mark.parametrize("loss", ["AdaFocal(bins=5)", "Scheduled(gammas=(5, 3), shares=(0.5,))"])
def test_resumed_trainer_equals_uninterrupted_training(loss, tmp_path):
    uninterrupted = CalibrationTrainerCallback(loss)
    full = trainer(uninterrupted, tmp_path, 2)
    full.train()
    first = sorted(tmp_path.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))[0]
    resumed = CalibrationTrainerCallback(loss)
    rest = trainer(resumed, tmp_path / "rest", 2)
    rest.train(resume_from_checkpoint=str(first))
    for name, value in losses.state(uninterrupted.criterion.loss).items():
        ours, fresh = (
            torch.as_tensor(losses.state(c.criterion.loss)[name]) for c in (resumed, CalibrationTrainerCallback(loss))
        )
        assert np.allclose(ours, torch.as_tensor(value), rtol=1e-5)  # rows of a batch come in another order
        assert not np.allclose(ours, fresh, rtol=1e-2)
    for ours, theirs in zip(rest.model.parameters(), full.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_the_loss_is_advanced_by_the_evaluation_of_the_epoch(tmp_path):
    calibration = CalibrationTrainerCallback("AdaFocal(bins=5)", metrics=("ece", "refinement_nll"))
    run = trainer(calibration, tmp_path, 1)
    run.train()
    after = calibration.criterion.loss.gamma.clone()
    out = run.predict(examples(2))  # an evaluation outside training changes nothing
    assert np.array_equal(calibration.criterion.loss.gamma, after)
    val = Predictions(out.predictions, out.label_ids)
    assert np.allclose(losses.AdaFocal(bins=5).after_epoch(0, val).gamma, after, rtol=1e-5)
    logged = [entry for entry in run.state.log_history if "eval_ece" in entry][-1]
    assert logged["eval_ece"] == pytest.approx(float(metrics.ece(val)))
    assert logged["eval_refinement_nll"] == pytest.approx(float(metrics.refinement_nll(val)), rel=1e-3)


@pytest.mark.parametrize("tokens", [False, True])
def test_metrics_of_batches_are_those_of_all_examples(tokens, tmp_path):
    states = []
    for is_batched in False, True:
        calibration = CalibrationTrainerCallback("AdaFocal(bins=5)")
        run = trainer(calibration, tmp_path, 1, tokens=tokens, batch_eval_metrics=is_batched)
        run.train()
        values = {name: value for name, value in run.evaluate().items() if name[5:] in ("accuracy", "nll", "ece")}
        states.append((values, calibration.criterion.loss.gamma))
    (whole_values, whole_gamma), (batched_values, batched_gamma) = states
    assert len(batched_values) == 3
    assert batched_values == pytest.approx(whole_values, rel=1e-6)
    torch.testing.assert_close(batched_gamma, whole_gamma)


def test_token_labels_ignore_padding(tmp_path):
    calibration = CalibrationTrainerCallback("focal(gamma=2)")
    run = trainer(calibration, tmp_path, 2, tokens=True)
    before = run.evaluate()
    run.train()
    after = run.evaluate()
    assert after["eval_nll"] < before["eval_nll"]
    out = run.predict(examples(2, tokens=True))
    used = out.label_ids != -100
    logits, labels = torch.tensor(out.predictions[used]), torch.tensor(out.label_ids[used])
    assert after["eval_nll"] == pytest.approx(float(metrics.nll(logits, labels)), rel=1e-5)


def test_accumulated_batches_are_divided_by_all_their_items():
    calibration = CalibrationTrainerCallback("cross_entropy", shift_labels=False)
    logits = torch.randn(4, 7, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(3, (4, 7), generator=torch.Generator().manual_seed(0))
    labels[0, 3:] = -100
    uninterrupted = calibration.compute_loss({"logits": logits}, labels)
    items = (labels != -100).sum()
    parts = [calibration.compute_loss({"logits": logits[i : i + 1]}, labels[i : i + 1], items) for i in range(4)]
    assert sum(parts).item() == pytest.approx(uninterrupted.item(), rel=1e-5)


def test_predictions_may_come_with_hidden_states():
    calibration = CalibrationTrainerCallback("focal", ["accuracy"])
    logits = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]] - 0.5
    evaluation = EvalPrediction(predictions=(logits, np.zeros((4, 8))), label_ids=np.array([0, 1, 2, 1]))
    assert calibration.compute_metrics(evaluation) == {"accuracy": 0.75}
    assert CalibrationTrainerCallback("focal", "accuracy").compute_metrics(evaluation) == {"accuracy": 0.75}


def test_batches_without_labels_are_refused(tmp_path):
    calibration = CalibrationTrainerCallback("focal")
    run = trainer(calibration, tmp_path, 1)
    for example in run.train_dataset:
        example["label_id"] = example.pop("labels")
    run.args.remove_unused_columns = False
    run.model.forward = lambda input_ids, attention_mask, **_: {"logits": torch.zeros(len(input_ids), 3)}
    with refused("no_labels"):
        run.train()


def test_predictions_that_are_no_array_are_refused():
    with refused("not_numbers"):
        CalibrationTrainerCallback("focal").compute_metrics(
            EvalPrediction(predictions={"logits": np.zeros((2, 3))}, label_ids=np.array([0, 1]))
        )


def test_adafocal_without_evaluation_is_refused(tmp_path):
    run = trainer(CalibrationTrainerCallback("AdaFocal"), tmp_path, 1, eval_strategy="no")
    with refused("no_validation"):
        run.train()


def test_single_logit_is_trained_and_evaluated_as_event(tmp_path):
    calibration = CalibrationTrainerCallback("focal(gamma=2)", ["auroc", "ece"], binary=True, alpha=0.25)
    run = trainer(calibration, tmp_path, 2, model=network_of_one())
    for data in run.train_dataset, run.eval_dataset:
        for example in data:
            example["labels"] = (example["labels"] > 0).float()
    before = run.evaluate()["eval_loss"]
    run.train()
    out = run.predict(run.eval_dataset)
    val = Predictions.from_binary_logits(out.predictions, out.label_ids)
    assert out.metrics["test_ece"] == pytest.approx(float(metrics.ece(val)), rel=1e-5)
    assert out.metrics["test_loss"] < before
    assert out.metrics["test_auroc"] > 0.6


def network_of_one():
    config = network().config
    config.num_labels = 1
    return BertForSequenceClassification(config)


@pytest.mark.parametrize("shape", [(6, 1), (6, 5), (6, 7, 1)])
def test_binary_loss_equals_criterion(shape):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(shape, generator=g)
    labels = torch.randint(2, shape, generator=g)
    labels = labels.squeeze(-1) if shape[-1] == 1 else labels
    labels.view(-1)[::3] = -1
    calibration = CalibrationTrainerCallback("focal", ["ece"], binary=True, alpha=0.3, ignore_index=-1)
    expected = Criterion("focal", binary=True, alpha=0.3, ignore_index=-1)(logits.view(labels.shape), labels)
    assert np.allclose(calibration.compute_loss({"logits": logits}, labels), expected)
    items = (labels != -100).sum()  # as the Trainer counts them
    assert np.allclose(calibration.compute_loss({"logits": logits}, labels, items), expected)
    values = calibration.compute_metrics(EvalPrediction(predictions=logits.numpy(), label_ids=labels.numpy()))
    used = labels != -1
    val = Predictions.from_binary_logits(logits.view(labels.shape)[used], labels[used])
    assert values["ece"] == pytest.approx(float(metrics.ece(val)))


def test_pixel_logits_have_classes_first():
    logits = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(3, (2, 4, 4), generator=torch.Generator().manual_seed(0))
    labels[0, :2] = 255
    calibration = CalibrationTrainerCallback("cross_entropy", ["nll"], ignore_index=255)
    expected = torch.nn.functional.cross_entropy(logits, labels, ignore_index=255)
    assert np.allclose(calibration.compute_loss((logits,), labels), expected)
    values = calibration.compute_metrics(EvalPrediction(predictions=logits.numpy(), label_ids=labels.numpy()))
    assert values["nll"] == pytest.approx(float(expected), rel=1e-5)


def language_model():
    torch.manual_seed(0)
    sizes = {"n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=20, **sizes, **dropout))


def short_training(folder, **options):
    """Return the settings of a training without checkpoints, trackers and bars."""
    quiet = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "seed": 0}
    return TrainingArguments(output_dir=str(folder), **quiet, **options)


def train_language_model(kind, folder, **options):
    args = short_training(
        folder, max_steps=4, per_device_train_batch_size=8, gradient_accumulation_steps=2, learning_rate=1e-2
    )
    data = examples(0, tokens=True)
    trainer = kind(model=language_model(), args=args, train_dataset=data, eval_dataset=data[:10], **options)
    trainer.train()
    return trainer


@pytest.mark.slow
def test_linear_loss_trainer_trains_as_the_plain_one(tmp_path):
    """With cross-entropy, accumulation and ignored tokens, the same network and loss; with focal loss another one."""
    default, chunked = (train_language_model(kind, tmp_path) for kind in (Trainer, LinearLossTrainer))
    for a, b in zip(default.model.parameters(), chunked.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    assert chunked.evaluate()["eval_loss"] == pytest.approx(default.evaluate()["eval_loss"], rel=1e-3)
    focal = train_language_model(LinearLossTrainer, tmp_path, token_loss="focal(gamma=3)")
    assert focal.evaluate()["eval_loss"] < 0.9 * chunked.evaluate()["eval_loss"]
    with refused("language_model"):
        focal.compute_loss(network(), {"labels": torch.zeros(1, 2)})
    with refused("no_labels"):
        focal.compute_loss(focal.model, {"input_ids": torch.ones(1, 2, dtype=torch.long)})


@pytest.mark.parametrize(
    ("kind", "config", "options"),
    [
        (Gemma2ForCausalLM, Gemma2Config, {"final_logit_softcapping": 30.0, "num_key_value_heads": 2, "head_dim": 8}),
        (CohereForCausalLM, CohereConfig, {}),
        (BertLMHeadModel, BertConfig, {"is_decoder": True}),
    ],
)
def test_models_whose_logits_are_not_linear_are_refused(kind, config, options, tmp_path):
    """Their logits are capped, scaled, or follow another layer, of which the loss would know nothing."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = kind(config(vocab_size=20, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes, **options))
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    with refused("not_linear"):
        LinearLossTrainer(model=model, args=args)


SMALL_BERT = {
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 8,
}


def llama():
    sizes = {name: size for name, size in SMALL_BERT.items() if name != "max_position_embeddings"}
    return LlamaForCausalLM(LlamaConfig(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2))


def t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(vocab_size=20, **sizes, dropout_rate=0, decoder_start_token_id=0))


def xlnet():
    return XLNetLMHeadModel(XLNetConfig(vocab_size=20, d_model=16, n_layer=1, n_head=2, d_inner=16))


TEXT_MODELS = {
    "gpt2": (lambda: language_model(), True),
    "llama": (llama, True),
    "bert_decoder": (lambda: BertLMHeadModel(BertConfig(**SMALL_BERT, is_decoder=True)), True),
    "t5": (t5, False),
    "masked_bert": (lambda: BertForMaskedLM(BertConfig(**SMALL_BERT)), False),
    "token_classifier": (lambda: network(BertForTokenClassification), False),
    "xlnet": (xlnet, False),  # a causal model whose own loss does not shift
}


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_the_loss_of_a_model_tells_whether_it_predicts_the_next_token(name):
    make, expected = TEXT_MODELS[name]
    torch.manual_seed(0)
    assert predicts_next_token(make()) is expected


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "masked_bert"])
def test_trainer_reports_the_loss_of_the_model_itself(name, tmp_path):
    torch.manual_seed(0)
    model = TEXT_MODELS[name][0]()
    ids = torch.randint(1, 20, (10, 7), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[::2, 4:] = -100
    data = [{"input_ids": row, "labels": row_labels} for row, row_labels in zip(ids, labels, strict=True)]
    if name == "t5":  # as `DataCollatorForSeq2Seq(model=model)` adds them
        for example in data:
            example["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(example["labels"][None])[0]
    args = TrainingArguments(
        output_dir=str(tmp_path), report_to=[], use_cpu=True, per_device_eval_batch_size=10, label_names=["labels"]
    )
    calibration = CalibrationTrainerCallback("cross_entropy", ["nll", "accuracy"])
    options = {"compute_loss_func": calibration.compute_loss, "compute_metrics": calibration.compute_metrics}
    values = Trainer(model=model, args=args, eval_dataset=data, callbacks=[calibration], **options).evaluate()
    plain_loss = Trainer(model=model, args=args, eval_dataset=data).evaluate()["eval_loss"]
    with torch.no_grad():
        outputs = model.eval()(input_ids=ids, labels=labels)
    assert values["eval_loss"] == pytest.approx(plain_loss, abs=1e-5)
    assert values["eval_nll"] == pytest.approx(float(outputs.loss), abs=1e-5)
    assert float(calibration.compute_loss({"logits": outputs.logits}, labels)) == pytest.approx(
        float(outputs.loss), abs=1e-5
    )


def successor_texts(seed, n):
    """Texts in which each token determines the next."""
    tokens = [torch.randint(0, 19, (n,), generator=torch.Generator().manual_seed(seed))]
    for _ in range(6):
        tokens.append((2 * tokens[-1] + 3) % 19)
    return [{"input_ids": row, "labels": row} for row in torch.stack(tokens, 1)]


def test_focal_loss_teaches_the_next_token(tmp_path):
    calibration = CalibrationTrainerCallback("focal(gamma=2)", ["accuracy"])
    args = short_training(tmp_path, max_steps=80, per_device_train_batch_size=32, learning_rate=2e-2)
    run = Trainer(
        model=language_model(),
        args=args,
        train_dataset=successor_texts(0, 200),
        eval_dataset=successor_texts(1, 50),
        compute_loss_func=calibration.compute_loss,
        compute_metrics=calibration.compute_metrics,
        callbacks=[calibration],
    )
    run.train()
    ids = torch.stack([example["input_ids"] for example in run.eval_dataset])
    with torch.no_grad():
        predicted = torch.as_tensor(run.model.eval()(input_ids=ids).logits).argmax(-1)
    accuracy = float((predicted[:, :-1] == ids[:, 1:]).float().mean())
    assert accuracy > 0.9
    assert run.evaluate()["eval_accuracy"] == pytest.approx(accuracy, abs=1e-6)


def test_tokens_of_an_unknown_model_are_refused_until_told():
    logits, labels = torch.randn(2, 5, 3), torch.ones(2, 5, dtype=torch.int64)
    with refused("unknown_shift"):
        CalibrationTrainerCallback("focal").compute_loss({"logits": logits}, labels)
    for shift, expected in (True, logits[:, :-1].flatten(0, 1)), (False, logits.flatten(0, 1)):
        calibration = CalibrationTrainerCallback("cross_entropy", shift_labels=shift)
        targets = torch.ones(len(expected), dtype=torch.int64)
        assert np.allclose(
            calibration.compute_loss({"logits": logits}, labels), torch.nn.functional.cross_entropy(expected, targets)
        )


def test_weights_count_alike_in_one_batch_and_in_accumulated_ones():
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(12, 3, generator=g), torch.randint(3, (12,), generator=g)
    weight = torch.tensor([1.0, 5.0, 2.0])
    calibration = CalibrationTrainerCallback("cross_entropy", weight=weight)
    loss = calibration.compute_loss({"logits": logits}, labels)
    halves = [calibration.compute_loss({"logits": logits[i::2]}, labels[i::2], torch.tensor(12)) for i in (0, 1)]
    losses_by_example = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    assert np.allclose(loss, (losses_by_example * weight[labels]).mean())
    assert np.allclose(sum(halves), loss)


def test_soft_labels_are_one_position_each():
    g = torch.Generator().manual_seed(0)
    logits, soft = torch.randn(6, 3, generator=g), torch.rand(6, 3, generator=g).softmax(-1)
    calibration = CalibrationTrainerCallback("cross_entropy")
    expected = torch.nn.functional.cross_entropy(logits, soft)
    assert np.allclose(calibration.compute_loss({"logits": logits}, soft), expected)
    items = (soft != -100).sum()  # as the Trainer counts them
    assert np.allclose(calibration.compute_loss({"logits": logits}, soft, items), expected)


def test_diverged_logits_give_nan_metrics():
    calibration = CalibrationTrainerCallback("AdaFocal", ["ece", "nll"])
    logits = np.zeros((4, 3), np.float32)
    logits[1, 2] = np.nan
    with pytest.warns(UserWarning, match="NaN"):
        values = calibration.compute_metrics(EvalPrediction(predictions=logits, label_ids=np.arange(4) % 3))
    assert set(values) == {"ece", "nll"}
    assert np.isnan(list(values.values())).all()


def test_adafocal_waits_for_an_epoch_with_an_evaluation(tmp_path):
    calibration = CalibrationTrainerCallback("AdaFocal(bins=5)", ["ece"])
    run = trainer(calibration, tmp_path, 2, eval_strategy="steps", eval_steps=5)
    run.train()  # 3 steps in each epoch, and the only evaluation in the second
    val = Predictions(*run.predict(run.eval_dataset)[:2])
    assert not np.allclose(calibration.criterion.loss.gamma, torch.ones(5, dtype=torch.float64))
    assert len(val) == 48


@pytest.mark.slow
def test_two_processes_count_every_example_once(tmp_path):
    outputs = run_two_processes("two_trainers", str(tmp_path))
    assert [line["labels"] for line in outputs] == [9, 9]
    assert [line["tokens"] for line in outputs] == [54, 54]
