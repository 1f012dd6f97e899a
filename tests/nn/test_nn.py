"""`Criterion` against torch's cross-entropy, and `CalibratedNetwork`."""

import copy
import gc
import io
import warnings
from itertools import product

import pytest
import torch
from calibrant.registry import CALIBRATORS, LOSSES
from counted_losses import loss_with_counts
from golden_problems import ONE_SCORE
from refusals import code_of, refused
from torch.nn import functional as F

from calibrant import Predictions, calibrators, losses
from calibrant.nn import CalibratedNetwork, Criterion, linear_loss

each_loss = pytest.mark.parametrize("name", sorted(LOSSES))


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(0)
    return 2 * torch.randn(40, 5, generator=g), torch.randint(5, (40,), generator=g)


@pytest.fixture
def pixels():
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (3, 6, 7), generator=g)
    labels[0, :2] = -100
    labels[2, 3, 3] = -100
    return torch.randn(3, 4, 6, 7, generator=g), labels


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore_index", [-100, 2])
def test_cross_entropy_equals_torch(batch, pixels, reduction, weighted, ignore_index):
    for logits, labels in batch, pixels:
        weight = torch.linspace(0.5, 3, logits.shape[1]) if weighted else None
        labels = labels.where(labels >= 0, ignore_index)
        options = {"reduction": reduction, "weight": weight, "ignore_index": ignore_index}
        ours = logits.clone().requires_grad_()
        theirs = logits.clone().requires_grad_()
        value = Criterion("cross_entropy", **options)(ours, labels)
        expected = F.cross_entropy(theirs, labels, **options)
        assert torch.allclose(value, expected, rtol=1e-5)
        value.sum().backward()
        expected.sum().backward()
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-7)


@each_loss
def test_losses_accept_pixels_and_skip_ignored_labels(name, pixels):
    logits, labels = pixels
    ours = logits.clone().requires_grad_()
    value = Criterion(loss_with_counts(name, 4))(ours, labels)
    value.backward()
    used = labels != -100
    rows = logits.movedim(1, -1)[used]
    expected = Criterion(loss_with_counts(name, 4), reduction="mean")(rows, labels[used])
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert (ours.grad.movedim(1, -1)[~used] == 0).all()
    assert (ours.grad.movedim(1, -1)[used] != 0).any()
    noise = torch.where(used[:, None], logits, 50 * torch.randn(logits.shape))
    assert Criterion(loss_with_counts(name, 4))(noise, labels).item() == pytest.approx(value.item(), rel=1e-5)


@each_loss
def test_mean_divides_by_the_number_of_samples(name, batch):
    """kornia's focal loss divides by n k."""
    logits, labels = batch
    values = Criterion(loss_with_counts(name, 5), reduction="none")(logits, labels)
    assert values.shape == labels.shape
    assert Criterion(loss_with_counts(name, 5))(logits, labels).item() == pytest.approx(
        float(values.sum()) / 40, rel=1e-5
    )
    assert Criterion(loss_with_counts(name, 5), reduction="sum")(logits, labels).item() == pytest.approx(
        float(values.sum()), rel=1e-5
    )


def test_focal_at_gamma_0_has_the_mean_of_cross_entropy(batch):
    assert Criterion("focal(gamma=0)")(*batch).item() == pytest.approx(F.cross_entropy(*batch).item(), rel=1e-6)


@each_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(name, batch, dtype):
    logits, labels = batch[0].to(dtype).requires_grad_(), batch[1]
    value = Criterion(loss_with_counts(name, 5))(logits, labels)
    exact = batch[0].to(dtype).float().requires_grad_()
    expected = Criterion(loss_with_counts(name, 5))(exact, labels)
    assert value.dtype == torch.float32
    assert torch.equal(value, expected)
    value.backward()
    expected.backward()
    assert logits.grad.dtype == dtype
    assert torch.allclose(logits.grad.float(), exact.grad, rtol=1e-2, atol=1e-4)


@each_loss
def test_losses_are_equal_under_autocast(name, batch):
    z = batch[0].clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = Criterion(loss_with_counts(name, 5))(z, batch[1])
    value.backward()
    assert value.item() == pytest.approx(Criterion(loss_with_counts(name, 5))(*batch).item(), rel=2e-2)
    assert z.grad.isfinite().all()


def test_class_weights_keep_the_minimum_at_the_smoothed_target():
    """In torch they move it: pytorch issue 104776."""
    weight = torch.tensor([1.0, 10.0, 1.0], dtype=torch.float64)
    target = torch.tensor([0.9 + 0.1 / 3, 0.1 / 3, 0.1 / 3], dtype=torch.float64)
    labels = torch.tensor([0])
    ours, theirs = (target.log()[None].clone().requires_grad_() for _ in range(2))
    Criterion("cross_entropy(smoothing=0.1)", weight=weight)(ours, labels).backward()
    F.cross_entropy(theirs, labels, weight=weight, label_smoothing=0.1).backward()
    assert ours.grad.abs().max() < 1e-12
    assert theirs.grad.abs().max() > 0.1


def test_class_weight_multiplies_the_whole_loss_of_a_sample(batch):
    logits, labels = batch
    weight = torch.tensor([1.0, 2.0, 0.0, 4.0, 0.5])
    values = losses.focal(logits, labels)
    expected = (weight[labels] * values).sum() / weight[labels].sum()
    assert torch.allclose(Criterion("focal", weight=weight)(logits, labels), expected)
    used = labels != 2  # a class of weight 0 is ignored, also by penalties on the whole batch
    for name in "mmce", "soft_ece":
        even = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])
        value = Criterion(name, weight=even)(logits, labels)
        assert value.item() == pytest.approx(Criterion(name)(logits[used], labels[used]).item(), rel=1e-5)


def test_nan_in_an_ignored_row_has_no_effect(batch):
    logits, labels = batch[0].clone(), batch[1].clone()
    logits[3] = torch.nan
    labels[3] = -100
    assert Criterion("focal")(logits, labels).isfinite()


def test_shapes_that_do_not_match_are_refused(batch):
    logits, labels = batch
    for scores, targets, code in (
        (logits, labels[:7], "shape"),
        (logits, logits.softmax(-1)[:, 1:], "shape"),
        (logits, labels.float(), "shape"),
        (logits[:, :1], labels, "one_class"),
    ):
        with refused(code):
            Criterion("focal")(scores, targets)
    with refused("unknown_method"):
        Criterion("fokal")


def test_any_callable_is_a_loss(batch):
    criterion = Criterion(lambda z, y: F.cross_entropy(z, y, reduction="none"))
    assert torch.allclose(criterion(*batch), F.cross_entropy(*batch))
    assert criterion.state_dict() == {}
    criterion.after_epoch(0, Predictions(*batch))  # no effect without state


@pytest.mark.parametrize("text", ["AdaFocal(bins=5)", "Scheduled(epochs=7)"])
def test_state_of_a_loss_is_in_the_state_dict(text, batch):
    criterion = Criterion(text)
    for epoch in range(4):
        criterion.after_epoch(epoch, Predictions(*batch))
    model = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2), "criterion": criterion})
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    fresh = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2), "criterion": Criterion(text)})
    assert fresh["criterion"](*batch) != criterion(*batch)
    fresh.load_state_dict(saved)
    assert fresh["criterion"](*batch) == criterion(*batch)
    with pytest.raises(RuntimeError, match=r"Missing key.*criterion\.loss"):
        fresh.load_state_dict({k: v for k, v in saved.items() if "criterion" not in k})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2), "criterion": Criterion("focal")}).load_state_dict(saved)


# CalibratedNetwork


class ShiftedTemperature:
    """A calibrator that is not a dataclass, with a tensor and another calibrator."""

    def __init__(self, shift, inner):
        self.shift, self.inner, self.name = shift, inner, "shifted"

    @classmethod
    def fit(cls, logits, labels):
        return cls(torch.arange(logits.shape[1], dtype=torch.float64), calibrators.Temperature.fit(logits, labels))

    def __call__(self, logits):
        return self.inner(logits) + self.shift


def fitted(name: str):
    k = 2 if name in ONE_SCORE else 4
    g = torch.Generator().manual_seed(0)
    z = torch.randn(300, k, generator=g, dtype=torch.float64)
    data = Predictions(3 * z, torch.multinomial(z.softmax(-1), 1, generator=g).squeeze(1))
    if name == "ShiftedTemperature":
        return ShiftedTemperature.fit(data.logits, data.labels), k
    texts = {"Auto": "Auto(folds=2)", "FocalTemperature": "FocalTemperature(criterion='nll', grid='code')"}
    return calibrators.fit(texts.get(name, name), data), k


@pytest.mark.parametrize("name", ["ShiftedTemperature", *CALIBRATORS])
def test_dense_logits_are_calibrated_along_axis_1(name):
    """The width equals the number of classes, so that a wrong axis has the right shape."""
    calibrator, k = fitted(name)
    dense = 3 * torch.randn(2, k, 3, k, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    after = CalibratedNetwork(torch.nn.Identity(), calibrator)(dense)
    assert after.shape == dense.shape
    for i, a, b in product(range(2), range(3), range(k)):
        row = calibrator(dense[i, :, a, b][None])[0]
        torch.testing.assert_close(after[i, :, a, b].softmax(0), row.softmax(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "buffers"),
    [
        ("Temperature", {"temperature"}),
        ("ShiftedTemperature", {"shift", "inner__temperature"}),
        ("Chain", {"first__temperature", "first__knots", "first__slopes", "second__temperature", "second__count",
                   "second__weight", "second__bias", "second__final"}),
    ],
)  # fmt: skip
def test_tensors_of_a_calibrator_are_buffers_of_the_module(name, buffers):
    calibrator, k = fitted(name)
    module = CalibratedNetwork(torch.nn.Linear(5, k), calibrator)
    assert set(module.state_dict()) - {"network.weight", "network.bias"} == buffers
    x = torch.randn(3, 5)
    before = module(x)
    for value in module.buffers():
        value.mul_(2)
    assert not torch.allclose(module(x).softmax(-1), before.softmax(-1))
    assert module.double()(x.double()).dtype == torch.float64


@pytest.mark.parametrize("name", sorted(set(CALIBRATORS) - {"Auto", "FocalTemperature"}))
def test_single_logits_are_calibrated_to_single_logits(name):
    g = torch.Generator().manual_seed(0)
    s = torch.randn(300, generator=g, dtype=torch.float64)
    pairs = torch.stack([torch.zeros_like(s), 3 * s], 1)
    calibrator = calibrators.fit(name, Predictions(pairs, (torch.rand(300, generator=g) < s.sigmoid()).long()))
    expected = calibrator(pairs).softmax(-1)[:, 1]
    for shape in (300,), (300, 1), (100, 3), (3, 1, 10, 10), (3, 10, 10):
        after = CalibratedNetwork(torch.nn.Identity(), calibrator, binary=True)(3 * s.view(shape))
        assert after.shape == shape
        torch.testing.assert_close(after.flatten().sigmoid(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("output", "code"),
    [
        (torch.randn(4), "shape"),
        (torch.tensor(1.0), "shape"),
        (torch.randn(4, 1), "one_class"),
        ((torch.randn(4, 2), torch.randn(4, 8)), "no_logits"),
        ({"logits": torch.randn(4, 2)}, "no_logits"),
    ],
)
def test_outputs_that_are_no_logits_of_classes_are_refused(output, code):
    network = CalibratedNetwork(torch.nn.Identity(), calibrators.Temperature(torch.tensor(2.0)))
    with refused(code):
        network(output)


def test_classes_of_calibrators_are_refused():
    """A class can be called, too, and returned a calibrator of the logits."""
    with refused("map_kind"):
        CalibratedNetwork(torch.nn.Identity(), calibrators.Temperature)


@pytest.mark.parametrize("name", ["Isotonic", "StructuredMatrix", "Temperature"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_calibrator_keeps_its_precision_in_a_network_of_another(name, dtype):
    calibrator, k = fitted(name)
    logits = torch.randn(5, k).to(dtype)
    calibrated = CalibratedNetwork(torch.nn.Identity(), calibrator).to(dtype)(logits)
    assert calibrated.dtype == dtype
    assert torch.equal(calibrated, calibrator(logits))


def test_soft_labels_of_pixels_have_the_expected_loss(pixels):
    logits, labels = pixels
    for name in "focal", "mmce":
        soft = torch.randn(3, 4, 6, 7, generator=torch.Generator().manual_seed(1)).softmax(1)
        rows, flat = (x.movedim(1, -1).flatten(0, -2) for x in (logits, soft))
        values = Criterion(name, reduction="none")(logits, soft)
        assert values.shape == labels.shape
        assert torch.allclose(values.flatten(), LOSSES.resolve(name)(rows, flat), rtol=1e-5)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    values = LOSSES.resolve("focal")(rows, flat)
    expected = (flat @ weight * values).sum() / (flat @ weight).sum()
    assert torch.allclose(Criterion("focal", weight=weight)(logits, soft), expected, rtol=1e-5)


@pytest.mark.parametrize("loss", ["cross_entropy", "focal(gamma=3)", "brier", "margin_smoothing"])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_loss_equals_the_plain_one(loss, biased):
    """Loss and gradients are those of all logits, whose largest part at a time has 200 elements."""
    g = torch.Generator().manual_seed(0)
    tensors = [torch.randn(50, 8, generator=g), torch.randn(30, 8, generator=g), torch.randn(30, generator=g)]
    labels = torch.randint(30, (50,), generator=g).index_fill(0, torch.tensor([3, 17]), -100)
    results = []
    for is_chunked in (True, False):
        hidden, weight, bias = (x.clone().requires_grad_() for x in tensors)
        if is_chunked:
            sizes = []
            function = LOSSES.resolve(loss)

            def counted(logits, labels, function=function, sizes=sizes):
                sizes.append(logits.numel())
                return function(logits, labels)

            value = linear_loss(hidden, weight, labels, counted, bias=bias if biased else None, chunk_elements=200)
            assert max(sizes) <= 200
        else:
            value = Criterion(loss)(hidden @ weight.T + (bias if biased else 0), labels)
        (2 * value).backward()
        results.append([value.detach(), hidden.grad, weight.grad, *([bias.grad] if biased else [])])
    for chunked, expected in zip(*results, strict=True):
        torch.testing.assert_close(chunked, expected, rtol=1e-5, atol=1e-6)


def test_linear_loss_in_low_precision_and_without_gradients():
    g = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(20, 8, generator=g), torch.randn(12, 8, generator=g)
    labels = torch.randint(12, (20,), generator=g)
    exact = linear_loss(hidden, weight, labels)
    assert not exact.requires_grad
    low = [x.bfloat16().requires_grad_() for x in (hidden, weight)]
    value = linear_loss(*low, labels)
    value.backward()
    assert value.dtype == torch.float32
    assert low[1].grad.dtype == torch.bfloat16
    torch.testing.assert_close(value.detach(), exact, rtol=0.02, atol=0.02)


def test_linear_loss_refuses_what_does_not_fit():
    hidden, weight, labels = torch.zeros(4, 3), torch.zeros(5, 3), torch.zeros(4, dtype=torch.int64)
    assert code_of(linear_loss, hidden, weight.T, labels) == "shape"
    assert code_of(linear_loss, hidden, weight, labels + 5) == "labels"
    assert code_of(linear_loss, hidden, weight, labels, "mmce") == "batch_loss"


def test_class_weights_that_do_not_fit_are_refused(batch):
    logits, labels = batch
    assert Criterion("focal", weight=[1.0, 2.0, 0.0, 4.0, 0.5])(logits, labels).isfinite()
    for weight in ([1.0, -1.0], [float("nan"), 1.0], [[1.0], [2.0]], 2.0):
        assert code_of(Criterion, "focal", weight=torch.tensor(weight)) == "class_weights"
    for size in (4, 6):
        assert code_of(Criterion("focal", weight=torch.ones(size)), logits, labels) == "num_weights"
    per_label = Criterion("focal", weight=torch.ones(5), binary=True)  # such as the pos_weight of torch
    assert code_of(per_label, logits, (logits > 0).long()) == "num_weights"


def test_losses_that_do_not_return_one_value_per_row_are_refused(batch):
    logits, labels = batch
    labels[:5] = -100
    per_row = torch.nn.CrossEntropyLoss(reduction="none")
    torch.testing.assert_close(Criterion(per_row)(logits, labels), F.cross_entropy(logits, labels))
    for loss in (F.cross_entropy, lambda z, y: per_row(z, y)[:, None]):
        assert code_of(Criterion(loss), logits, labels) == "loss_shape"
        assert code_of(linear_loss, logits, torch.eye(5), labels, loss) == "loss_shape"


def test_labels_of_every_batch_are_checked(batch):
    logits, labels = batch
    for first in (labels, labels[:0]):
        criterion = Criterion("cross_entropy")
        criterion(logits[: len(first)], first)
        assert code_of(criterion, logits, labels - 1) == "label_range"
        assert code_of(criterion, logits, torch.full_like(logits, 0.5)) == "label_sums"
    binary = Criterion("cross_entropy", binary=True)
    binary(logits, (logits > 0).float())
    assert code_of(binary, logits, 255 * (logits > 0).float()) == "label_range"


def test_a_criterion_prints_its_loss_and_settings():
    assert repr(Criterion("focal(gamma=3)")) == "Criterion(focal(gamma=3))"
    assert repr(Criterion("AdaFocal", reduction="sum", weight=[1.0, 2.0], binary=True)) == (
        "Criterion(AdaFocal, reduction='sum', binary=True, weight=[1.0, 2.0])"
    )
    assert repr(Criterion(losses.brier)) == "Criterion(brier)"


def train_epochs(criterion, epochs=2, *, evaluate, advance):
    """Run epochs of 12 batches, with or without an evaluation and `after_epoch` after each."""
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(8, 3, generator=g, requires_grad=True), torch.randint(3, (8,), generator=g)
    for epoch in range(epochs):
        for _ in range(12):
            criterion(logits, labels).backward()
        if evaluate:
            with torch.no_grad():
                criterion(logits.detach(), labels)
        if advance:
            criterion.after_epoch(epoch, Predictions(logits.detach(), labels))


@pytest.mark.parametrize("loss", ["AdaFocal", "Scheduled(epochs=3)"])
@pytest.mark.parametrize("evaluate", [True, False])
def test_a_loss_with_state_warns_once_without_after_epoch(loss, evaluate):
    criterion = Criterion(loss)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train_epochs(criterion, evaluate=evaluate, advance=False)
        assert len(caught) == evaluate  # with an evaluation as soon as the second epoch begins
        del criterion
        gc.collect()
    assert [str(warning.message).split()[0] for warning in caught] == [loss]


def test_no_warning_with_after_epoch_or_without_training():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_epochs(Criterion("AdaFocal"), evaluate=True, advance=True)
        train_epochs(Criterion("focal"), evaluate=True, advance=False)
        trained = Criterion("AdaFocal")
        train_epochs(trained, 1, evaluate=False, advance=False)
        del_copy = copy.deepcopy(trained)  # of an averaged network, for example
        del del_copy
        gc.collect()
        trained.after_epoch(0, Predictions([[1.0, 0.0], [0.0, 1.0]] * 20, [0, 1] * 20))


@pytest.mark.parametrize("loss", ["mdca", "mmce", "soft_ece", "focal(gamma=3)", "dca", "avuc"])
@pytest.mark.parametrize("soft", [False, True])
def test_autocast_changes_no_loss_and_no_gradient(loss, soft):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 5, generator=g).bfloat16()
    labels = torch.randn(64, 5, generator=g).softmax(-1) if soft else torch.randint(5, (64,), generator=g)
    criterion = Criterion(loss, weight=[1.0, 2.0, 3.0, 4.0, 5.0])
    results = []
    for is_cast in False, True:
        x = logits.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
            value = criterion(x, labels)
        value.backward()
        results.append((value.detach(), x.grad))
    assert results[1][0].dtype == torch.float32
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_missing_events_are_left_out():
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(6, 4, generator=g), torch.randint(2, (6, 4), generator=g).float()
    labels[1, 2] = labels[3] = float("nan")
    present = ~labels.isnan()
    loss = Criterion("focal", binary=True)(logits, labels)
    assert torch.allclose(loss, Criterion("focal", binary=True)(logits[present], labels[present]))
    assert len(Predictions.multilabel(logits.numpy(), labels.numpy())) == int(present.sum())
