"""What holds for every loss by being listed in the registry."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from counted_losses import loss_with_counts  # noqa: E402
from method_contracts import Contract  # noqa: E402
from refusals import code_of  # noqa: E402

from calibrant import losses, registry, theory  # noqa: E402

BATCH_LOSSES = {"avuc", "dca", "mdca", "mmce", "soft_ece"}  # depend on the whole batch
ABSOLUTE = {"acls", "logit_norm", "logit_normalized"}  # depend on the logits, not only on their differences

contract = Contract()


def make(name, k=4, **options):
    return loss_with_counts(name, k, **options)


@pytest.mark.parametrize("name", sorted(registry.LOSSES))
def test_contract_of(name, type_checker):
    contract.verify(name, type_checker=type_checker)


def batch(n=12, k=4, scale=2.0, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, k, dtype=dtype, generator=g), torch.randint(k, (n,), generator=g)


@contract.holds()
def loss_is_one_finite_number_per_example(name):
    logits, labels = batch(dtype=torch.float32)
    value = make(name)(logits, labels)
    assert value.shape == (12,)
    assert value.dtype == torch.float32
    assert value.isfinite().all()


@contract.holds()
def arrays_are_refused_with_the_way_to_tensors(name, type_checker):
    if type_checker:  # refuses them first
        return
    logits, labels = batch()
    for arguments in ((logits.numpy(), labels), (logits, labels.numpy())):
        assert code_of(make(name), *arguments) == "tensor_kind"


@contract.holds(right=[[True], [False], [True, False]], sign=[-1, 1], scale=[0.0, 1.0, 100.0, 1e4])
def value_and_gradient_are_finite_at_saturation(name, scale, sign, right):
    labels = torch.tensor([0 if r == (sign > 0) else 1 for r in right for _ in range(3)])
    logits = torch.zeros(len(labels), 3)
    logits[:, 0] = sign * scale
    logits.requires_grad_()
    value = make(name, 3)(logits, labels)
    value.sum().backward()
    assert value.isfinite().all()
    assert logits.grad.isfinite().all()


@contract.holds()
def gradient_equals_finite_differences(name):
    logits, labels = batch(n=6)
    loss = make(name)
    if name in ("bsce_gra", "flsd_continuous"):  # their gradient is not that of the value, by design
        return
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), logits.requires_grad_())


@contract.holds()
def loss_is_equivariant_to_row_order(name):
    logits, labels = batch()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    loss = make(name)
    assert torch.allclose(loss(logits, labels)[order], loss(logits[order], labels[order]), rtol=1e-12)


@contract.holds()
def loss_is_invariant_to_class_order(name):
    logits, labels = batch()
    order = torch.tensor([2, 0, 3, 1])
    loss = make(name, even=True)
    assert torch.allclose(loss(logits, labels), loss(logits[:, order], order.argsort()[labels]), rtol=1e-12)


@contract.holds()
def loss_is_invariant_to_a_constant_in_the_logits(name):
    if name in ABSOLUTE:
        return
    logits, labels = batch()
    loss = make(name)
    assert torch.allclose(loss(logits, labels), loss(logits + 7, labels), rtol=1e-9)


@contract.holds()
def float32_agrees_with_float64(name):
    logits, labels = batch(n=50, k=10, scale=4.0)
    loss = make(name, 10)
    exact = loss(logits, labels)
    assert torch.allclose(loss(logits.float(), labels).double(), exact, rtol=2e-4, atol=1e-5)


@contract.holds()
def gradient_step_lowers_the_batch_mean(name):
    logits, labels = batch(n=40, seed=3)
    loss = make(name)
    before = loss(logits.requires_grad_(), labels).mean()
    (gradient,) = torch.autograd.grad(before, logits)
    assert loss(logits - 1e-3 * gradient / gradient.norm(), labels).mean() < before


@contract.holds()
def canonical_text_gives_the_same_loss(name):
    logits, labels = batch()
    again = make(registry.LOSSES.canonical(name))
    assert torch.equal(make(name)(logits, labels), again(logits, labels))


PROGRAM = """
import torch
from calibrant import losses, nn, registry

torch.set_num_threads(1)
for name in {names}:
    loss = losses.for_counts(registry.LOSSES.resolve(name), torch.arange(1, 6))
    z = torch.randn(16, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(16) % 5
    criterion = nn.Criterion(loss, ignore_index=2)
    for f in (lambda z: loss(z, y).mean(), lambda z: criterion(z, y)):
        torch._dynamo.reset()
        eager, compiled = z.clone().requires_grad_(), z.clone().requires_grad_()
        f(eager).backward()
        torch.compile(f, fullgraph=True, backend="aot_eager")(compiled).backward()
        assert torch.allclose(eager.grad, compiled.grad, rtol=1e-5, atol=1e-7), name
print("compiled all")
"""


@pytest.mark.slow
def test_every_stateless_loss_compiles_to_one_graph():
    names = [n for n in sorted(registry.LOSSES) if not isinstance(registry.LOSSES[n], type)]
    source = Path(losses.__file__).parents[2]
    process = subprocess.run(  # without runtime type checks, which are not part of the graph
        [sys.executable, "-c", PROGRAM.format(names=names)],
        env={"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin", "HOME": "/tmp"},
        capture_output=True,
        text=True,
    )
    assert process.stdout.endswith("compiled all\n"), process.stderr[-2000:]


@contract.holds()
def labels_other_than_one_class_index_per_row_are_refused(name, type_checker):
    if type_checker:  # refuses such shapes first
        return
    loss, logits = losses.for_counts(registry.LOSSES.resolve(name), torch.ones(4)), torch.zeros(12, 4)
    for labels in ([0, 1], [0], [[0]] * 12, [0.0] * 12, [0] * 13, [[0.25] * 4], [[0.2] * 5] * 12, [[1, 0, 0, 0]] * 12):
        assert code_of(loss, logits, torch.tensor(labels)) == "label_kind"


@contract.holds()
def logits_of_tokens_or_one_class_are_refused(name, type_checker):
    """Labels (b, t) used to select from position 0 alone, and the loss of a single logit was 0 for any soft label."""
    if type_checker:
        return
    for logits, labels in (
        (torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.long)),
        (torch.zeros(2, 4, 3), torch.full((2, 4, 3), 1 / 3)),
        (torch.zeros(3), torch.tensor(1)),
        (torch.zeros(2, 1), torch.tensor([[0.0], [1.0]])),
    ):
        loss = losses.for_counts(registry.LOSSES.resolve(name), torch.ones(logits.shape[-1]))
        assert code_of(loss, logits, labels) == "logits_shape"


@pytest.mark.parametrize(
    "text", ["dual_focal(gamma=-1)", "bsce_gra(gamma=-1)", "flsd(gammas=(-5,3))", "flsd(thresholds=(20,))"]
)
def test_settings_that_reverse_or_disable_a_loss_are_refused(text):
    assert code_of(registry.LOSSES.method, text) == "setting_range"


@contract.holds()
def masked_classes_keep_the_loss_finite(name):
    logits, labels = batch()
    logits[::2, 3] = -torch.inf
    labels = labels.clamp_max(2)
    logits.requires_grad_()
    value = make(name)(logits, labels)
    value.sum().backward()
    assert value.isfinite().all()
    assert logits.grad.isfinite().all()
    assert (logits.grad[::2, 3] == 0).all()


# Soft labels


@contract.holds(k=[2, 4])
def one_hot_soft_label_equals_the_label(name, k):
    logits, labels = batch(k=k)
    loss, one_hot = make(name, k), torch.nn.functional.one_hot(labels)
    hard, soft = (logits.clone().requires_grad_() for _ in range(2))
    hard_loss, soft_loss = loss(hard, labels), loss(soft, one_hot.float())
    assert torch.allclose(hard_loss, soft_loss, rtol=1e-6, atol=1e-6)
    hard_loss.square().sum().backward()
    soft_loss.square().sum().backward()
    assert torch.allclose(hard.grad, soft.grad, rtol=1e-6, atol=1e-6)


@contract.holds(k=[2, 4])
def soft_label_loss_is_the_mean_over_drawn_labels(name, k):
    if name in BATCH_LOSSES:
        return
    logits, _ = batch(k=k)
    truth, _ = batch(k=k, seed=1)
    truth[::3, 1] = -torch.inf  # a probability of 0
    expected = theory.conditional_risk(logits, truth, loss=make(name, k))
    assert torch.allclose(make(name, k)(logits, truth.softmax(-1)), expected, rtol=1e-9)


@contract.holds()
def gradient_equals_finite_differences_with_soft_labels(name):
    logits, _ = batch(n=6)
    labels = batch(n=6, seed=1)[0].softmax(-1)
    if name in ("bsce_gra", "flsd_continuous"):
        return
    assert torch.autograd.gradcheck(lambda z: make(name)(z, labels), logits.requires_grad_())


@contract.holds()
def classes_of_soft_label_0_may_be_masked(name):
    logits, _ = batch()
    logits[::2, 3] = -torch.inf
    labels = batch(seed=1)[0].masked_fill(logits.isneginf(), -torch.inf).softmax(-1)
    value = make(name)(logits.requires_grad_(), labels)
    value.sum().backward()
    assert value.isfinite().all()
    assert logits.grad.isfinite().all()
