"""Public functions reproduce published values of real networks to every printed digit."""

import json

import pytest

from calibrant import Predictions, metrics
from calibrant.calibrators import Temperature

pytestmark = pytest.mark.shared
MUKHOTI = [
    "mukhoti_cifar100_resnet50_brier",
    "mukhoti_cifar10_densenet121_brier",
    "mukhoti_cifar10_resnet50_flsd53",
    "mukhoti_cifar10_wide_resnet_flsd53",
]


@pytest.mark.parametrize("name", MUKHOTI)
def test_tables_of_mukhoti(shared, name):
    val = Predictions.load(shared / "logits" / f"{name}.val.npz").double()
    test = Predictions.load(shared / "logits" / f"{name}.test.npz").double()
    by_ece = Temperature.fit(val, criterion="ece")
    by_adaece = Temperature.fit(val, criterion="adaptive_ece(edges='mukhoti')")
    at_ece, at_adaece = test.apply(by_ece), test.apply(by_adaece)

    def percent(metric, p, **kwargs):
        return f"{100 * metric(p, **kwargs):.2f}"

    ours = {
        "error": percent(metrics.error, test),
        "ece": percent(metrics.ece, test),
        "ece_at_T": percent(metrics.ece, at_ece),
        "T_ece": f"{by_ece.temperature:.1f}",
        "adaece": percent(metrics.adaptive_ece, test, edges="mukhoti"),
        "adaece_at_T": percent(metrics.adaptive_ece, at_adaece, edges="mukhoti"),
        "T_adaece": f"{by_adaece.temperature:.1f}",
        "nll_x100": percent(metrics.nll, test),
        "nll_x100_at_T": percent(metrics.nll, at_ece),
        "mce": percent(metrics.mce, test),
        "mce_at_T": percent(metrics.mce, at_ece),
    }
    assert ours == json.loads((shared / "logits" / "published.json").read_text())[name]


def test_tables_of_kull(shared):
    val = Predictions.load(shared / "logits" / "kull_cifar10_resnet110_ce.val.npz")
    test = Predictions.load(shared / "logits" / "kull_cifar10_resnet110_ce.test.npz")
    after = test.apply(Temperature.fit(val))
    assert 100 * metrics.ece(test) == pytest.approx(4.7503, abs=1e-4)  # from float32 probabilities
    assert f"{metrics.classwise_ece(test, reduction='sum'):.3f}" == "0.098"
    assert f"{metrics.nll(test):.3f}" == "0.358"
    assert f"{100 * metrics.ece(after):.4f}" == "1.1321"
    assert f"{metrics.nll(after):.3f}" == "0.209"


@pytest.mark.parametrize(
    ("name", "ece", "metric", "value"),
    [
        ("sctl_cifar10LT_densenet40_ce", "21.08", "accuracy", "72.11"),
        ("kumar_cifar10_vgg16_ce", "3.98", "nll", "0.2571"),
        ("netcal_cifar100_wideresnet_16_4", "5.81", "nll", "0.9564"),
    ],
)
def test_values_computed_by_other_authors(shared, name, ece, metric, value):
    test = Predictions.load(shared / "logits" / f"{name}.test.npz")
    assert f"{100 * metrics.ece(test):.2f}" == ece
    actual = float(getattr(metrics, metric)(test))
    assert (f"{actual:.4f}" if metric == "nll" else f"{100 * actual:.2f}") == value


def test_top_label_values_of_imagenet(shared):
    import numpy as np

    from calibrant._core.kernels.bins import Events

    file = np.load(shared / "logits" / "top1_imagenet_resnet101.npz")
    confidence, correct = (file[key].astype(float) for key in ("confidence", "correct"))
    bins = Events(confidence, correct).equal_width(15)
    assert f"{100 * (bins.weight * abs(bins.gap)).sum():.4f}" == "4.9168"
    assert f"{100 * (1 - correct.mean()):.2f}" == "22.63"
