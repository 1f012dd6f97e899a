"""A summary inside torchmetrics, over batches and over two real processes."""

import pytest
import torch
import torch.distributed as dist
from refusals import refused
from torch import multiprocessing

from calibrant import measure, metrics
from calibrant.metrics import Summary
from calibrant.predictions import Predictions

torchmetrics = pytest.importorskip("torchmetrics")
from calibrant.integrations.torchmetrics import CalibrationMetric  # noqa: E402

NAMES = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "kuiper", "smooth_ece")


def draw() -> Predictions:
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(3000, 5, generator=g)
    return Predictions(logits, torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1))


def test_batches_give_the_values_of_the_summary():
    p, metric = draw(), CalibrationMetric(*NAMES)
    for i in range(0, 3000, 431):
        metric.update(p.logits[i : i + 431], p.labels[i : i + 431])
    expected = Summary.empty().add(p)
    assert {name: float(value) for name, value in metric.compute().items()} == {n: expected[n] for n in NAMES}
    assert measure(metric.summary)["ece"].value == pytest.approx(float(metrics.ece(p)), abs=1e-9)
    metric.reset()
    assert len(metric.summary) == 0


def test_forward_returns_the_batch_and_accumulates():
    p, metric = draw(), CalibrationMetric("ece")
    first = metric(p.logits[:1000], p.labels[:1000])
    metric(p.logits[1000:], p.labels[1000:])
    assert float(first) == Summary.empty().add(p[:1000])["ece"]
    assert float(metric.compute()) == Summary.empty().add(p)["ece"]


def test_positions_are_flattened_and_ignored_ones_left_out():
    metric = CalibrationMetric("accuracy")
    labels = torch.tensor([[0, -100], [-100, -100]])
    metric.update(torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0)), labels)
    metric.update(torch.zeros(1, 3), torch.tensor([-100]))
    assert len(metric.summary) == 1


def test_metric_works_in_collections_and_state_dicts():
    p = draw()
    metric = CalibrationMetric("ece")
    metric.persistent(True)
    metric.update(p.logits, p.labels)
    copy = CalibrationMetric("ece")
    copy.persistent(True)
    copy.load_state_dict(metric.state_dict())
    assert copy.summary["ece"] == metric.summary["ece"]
    collection = torchmetrics.MetricCollection(
        {"calibration": CalibrationMetric("ece"), "more": CalibrationMetric("nll")}
    )
    collection.update(p.logits, p.labels)
    expected = Summary.empty().add(p)
    assert {name: float(v) for name, v in collection.compute().items()} == {
        "calibration": expected["ece"],
        "more": expected["nll"],
    }
    assert len(collection.compute_groups) == 1  # equal settings share a state


def process(rank: int, address: str, queue) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=2)
    p, metric = draw(), CalibrationMetric(*NAMES)
    mine = slice(0, 700) if rank == 0 else slice(700, 3000)
    for i in range(mine.start, mine.stop, 300):
        part = slice(i, min(i + 300, mine.stop))
        metric.update(p.logits[part], p.labels[part])
    queue.put((rank, {name: float(value) for name, value in metric.compute().items()}, len(metric.summary)))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_agree_with_one_to_the_last_bit(tmp_path):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=process, args=(rank, str(tmp_path / "meet"), queue)) for rank in (0, 1)]
    for p in processes:
        p.start()
    results = [queue.get(timeout=300) for _ in processes]
    for p in processes:
        p.join(timeout=60)
    expected = Summary.empty().add(draw())
    for _, values, num_rows in results:
        assert values == {name: expected[name] for name in NAMES}
        assert num_rows in (700, 2300)  # unsynchronized again after compute


def test_binary_logits_and_probabilities():
    g = torch.Generator().manual_seed(0)
    s = 2 * torch.randn(400, generator=g)
    y = (torch.rand(400, generator=g) < 0.6).long()
    y[:9] = -100
    expected = float(metrics.ece(Predictions.from_binary_logits(s[9:], y[9:])))
    for scores, probs in (s, False), (s.double().sigmoid(), True):
        for shape in (400,), (400, 1), (4, 1, 10, 10):
            metric = CalibrationMetric("ece", binary=True, probs=probs)
            metric.update(scores.view(shape), y.view(shape if shape != (4, 1, 10, 10) else (4, 10, 10)).squeeze())
            assert float(metric.compute()) == pytest.approx(expected, abs=1e-7)
            assert metric.summary.of == 1


def test_probabilities_of_classes_are_declared():
    p, metric = draw(), CalibrationMetric("nll", "ece", probs=True)
    metric.update(torch.as_tensor(p.logits).softmax(-1), p.labels)
    expected = Summary.empty().add(p)
    assert [float(v) for v in metric.compute().values()] == pytest.approx([expected["nll"], expected["ece"]], abs=1e-6)
    for shape in (4,), (8,), (2, 4):
        with refused("shape"):
            CalibrationMetric(binary=True, probs=True).update(torch.rand(4, 2), torch.zeros(shape))


def test_probabilities_of_several_labels_are_read_as_their_logits():
    """The labels of a sample are a cluster, and have its weight."""
    g = torch.Generator().manual_seed(0)
    s = torch.randn(50, 3, generator=g, dtype=torch.float64)
    y, weights = (torch.rand(50, 3, generator=g) < s.sigmoid()).long(), torch.rand(50, generator=g)
    from_logits, from_probs = CalibrationMetric("ece", binary=True), CalibrationMetric("ece", binary=True, probs=True)
    from_logits.update(s, y, weights)
    from_probs.update(s.sigmoid(), y, weights)
    assert from_probs.summary.has_clusters
    assert float(from_probs.compute()) == pytest.approx(float(from_logits.compute()), abs=1e-6)


def test_number_of_bins_is_used():
    p, metric = draw(), CalibrationMetric("ece", "mce", "adaptive_ece", bins=10)
    metric.update(p.logits, p.labels)
    numbers = {name: float(value) for name, value in metric.compute().items()}
    assert numbers["ece"] == pytest.approx(float(metrics.ece(p, bins=10)))
    assert numbers["mce"] == pytest.approx(float(metrics.mce(p, bins=10)))
    assert numbers["adaptive_ece"] == pytest.approx(float(metrics.adaptive_ece(p, bins=10)), abs=1e-3)
    table = measure(metric.summary)
    assert table.bins == 10
    assert table["noise_floor"].value == pytest.approx(measure(p, bins=10)["noise_floor"].value)


def test_single_probabilities_given_as_logits_are_refused_over_all_updates():
    p, y = torch.rand(20, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    metric = CalibrationMetric("ece", binary=True)
    for i in range(0, 20, 2):
        metric.update(p[i : i + 2], y[i : i + 2])
    with refused("probs_as_logits"):
        metric.compute()
    metric.update(torch.tensor([-3.0]), torch.tensor([0]))
    assert 0 <= float(metric.compute()) <= 1
    metric = CalibrationMetric("ece", binary=True, logits=True)
    metric.update(p, y)
    assert 0 <= float(metric.compute()) <= 1


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_evidence_of_probabilities_is_a_state():
    """It is forgotten by reset, saved, and shared between processes and the metrics of a collection."""
    p, y = torch.rand(20, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    metric = CalibrationMetric("ece", binary=True)
    metric.update(10 * p - 5, y)
    metric.reset()
    metric.update(p, y)
    metric.persistent(True)
    loaded = CalibrationMetric("ece", binary=True)
    loaded.load_state_dict(metric.state_dict())
    for updated in metric, loaded:
        with refused("probs_as_logits"):
            updated.compute()
    collection = torchmetrics.MetricCollection({name: CalibrationMetric(name, binary=True) for name in ("ece", "nll")})
    for rows in range(0, 20, 2):
        collection.update(p[rows : rows + 2], y[rows : rows + 2])
    with refused("probs_as_logits"):
        collection["nll"].compute()


def test_forward_does_not_judge_a_batch_alone():
    metric = CalibrationMetric("ece", binary=True)
    for s in torch.tensor([-3.0, 2.0]), torch.tensor([0.1, 0.2, 0.3, 0.4]):
        assert 0 <= float(metric(s, torch.arange(len(s)) % 2)) <= 1
    assert 0 <= float(metric.compute()) <= 1


@pytest.mark.parametrize(("name", "code"), [("eze", "unknown_method"), ("auroc", "summary_only")])
def test_metrics_are_checked_before_the_first_epoch(name, code):
    with refused(code):
        CalibrationMetric(name)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_metrics_of_no_examples_are_nan():
    assert all(value.isnan() for value in CalibrationMetric().compute().values())


@pytest.mark.parametrize("settings", [{"ignore_index": 0}, {"bins": 10}, {"of": 1}, {"num_examples": 5}], ids=str)
def test_metrics_of_different_settings_never_share_a_state(settings):
    """Their states can be equal after a first batch, for example one without the label that one of them ignores."""
    g = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(60, 3, generator=g), torch.randint(3, (60,), generator=g)
    first = labels != 0

    def make():
        return {"base": CalibrationMetric("ece"), "changed": CalibrationMetric("ece", **settings)}

    collection, separate = torchmetrics.MetricCollection(make()), make()
    for rows in first, ~first:
        for metric in collection, *separate.values():
            metric.update(logits[rows], labels[rows])
    assert len(collection.compute_groups) == 2
    values = collection.compute()
    for name, metric in separate.items():
        assert float(values[name]) == float(metric.compute())


@pytest.mark.parametrize("as_texts", [False, True])
def test_an_id_counts_once_an_epoch(as_texts):
    g = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(12, 3, generator=g), torch.randint(3, (12,), generator=g)
    rows = torch.tensor([0, 1, 2, 1, 2, 3, 4, 4, 5, 0, 6, 7])
    once, counted = CalibrationMetric("nll"), CalibrationMetric("nll")
    counted.update(logits[:8], labels[:8])
    for _ in range(2):  # epochs
        for batch in rows.split(3):
            ids = [f"image {i}" for i in batch] if as_texts else batch
            once(logits[batch], labels[batch], ids=ids)  # a batch of copies alone has no value
        assert len(once.summary) == 8
        assert float(once.compute()) == float(counted.compute())
        once.reset()


def test_ids_are_one_for_each_example():
    metric = CalibrationMetric("ece")
    with refused("num_ids"):
        metric.update(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), ids=[1, 2])


def test_one_name_is_a_scalar_and_several_are_a_dictionary():
    p = draw()
    scalar, table = CalibrationMetric("ece"), CalibrationMetric("ece", "nll")
    for metric in scalar, table:
        metric.update(p.logits, p.labels)
    assert scalar.compute().shape == ()
    assert set(table.compute()) == {"ece", "nll"}
    assert float(table.compute()["ece"]) == float(scalar.compute())
