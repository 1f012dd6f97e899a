"""What holds for every metric because it is listed."""

import math

import pytest
import torch

from calibrant import catalog, metrics

every = pytest.mark.parametrize("name", metrics.__all__)


def draw(n: int, k: int, seed: int = 0, decimals: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(n, k, dtype=torch.float64, generator=g)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1)
    return (logits if decimals is None else logits.round(decimals=decimals)), labels


@every
@pytest.mark.parametrize("k", [2, 10, 200])
def test_is_one_float64_number(name, k):
    value = getattr(metrics, name)(*draw(300, k))
    assert value.shape == ()
    assert value.dtype == torch.float64
    assert bool(value.isfinite())


@every
def test_does_not_depend_on_the_row_order(name):
    logits, labels = draw(400, 5, decimals=0)  # heavy ties
    value = getattr(metrics, name)(logits, labels)
    g = torch.Generator().manual_seed(1)
    for _ in range(20):
        order = torch.randperm(400, generator=g)
        torch.testing.assert_close(getattr(metrics, name)(logits[order], labels[order]), value, rtol=1e-12, atol=1e-14)


@every
def test_weights_of_one_change_nothing_and_scale_does_not_matter(name):
    logits, labels = draw(500, 4)
    plain = getattr(metrics, name)(logits, labels)
    for scale in 1.0, 0.125:
        weighted = getattr(metrics, name)(logits, labels, weights=torch.full((500,), scale, dtype=torch.float64))
        torch.testing.assert_close(weighted, plain, rtol=1e-9, atol=1e-12)


@every
def test_weight_zero_leaves_out(name):
    logits, labels = draw(500, 4)
    w = torch.ones(500, dtype=torch.float64)
    w[100:300] = 0
    kept = getattr(metrics, name)(logits[w > 0], labels[w > 0], weights=w[w > 0])
    torch.testing.assert_close(getattr(metrics, name)(logits, labels, weights=w), kept, rtol=1e-9, atol=1e-12)


@every
def test_leaves_its_arguments_alone_and_has_no_gradient(name):
    logits, labels = draw(50, 3)
    before = logits.clone(), labels.clone()
    getattr(metrics, name)(logits, labels)
    assert bool((logits == before[0]).all())
    assert bool((labels == before[1]).all())


@every
def test_takes_a_single_example_and_two_classes(name):
    value = getattr(metrics, name)(torch.tensor([[0.0, 1.0]]), torch.tensor([1]))
    assert value.shape == ()
    if name != "auroc":  # needs both classes
        assert math.isfinite(float(value)) or name == "confident_accuracy"


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_logits_are_measured_in_float64(name, dtype):
    logits, labels = draw(300, 6)
    narrow = logits.to(dtype)
    torch.testing.assert_close(
        getattr(metrics, name)(narrow, labels), getattr(metrics, name)(narrow.double(), labels), rtol=0, atol=0
    )


@every
def test_saturated_confidence_is_finite_where_the_metric_is(name):
    logits = torch.tensor([[0.0, 1e4], [0.0, -1e4], [1e4, 0.0], [0.0, 0.0]])
    value = getattr(metrics, name)(logits, torch.tensor([1, 0, 0, 1]))
    assert not bool(value.isnan())


@every
def test_its_text_is_canonical(name):
    text = catalog.canonical(name, metrics)
    assert catalog.canonical(text, metrics) == text
    logits, labels = draw(60, 3)
    assert catalog.resolve(text, metrics)(logits, labels) == getattr(metrics, name)(logits, labels)
