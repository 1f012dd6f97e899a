"""The authors' splits and augmentation, and the corruptions against independent implementations."""

import colorsys
import hashlib

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats

from calibrant import data
from calibrant.data import corruptions
from calibrant.data._images import crop_and_flip, standardize
from calibrant.data.tiny_imagenet import held_out


def one_by_one(image, top, left, mirrored, padding, black):
    """The authors' transform of one image: pad, cut out, mirror."""
    padded = np.empty((3, 32 + 2 * padding, 32 + 2 * padding), dtype=np.float32)
    padded[:] = np.array(black, dtype=np.float32)[:, None, None]
    padded[:, padding : padding + 32, padding : padding + 32] = image
    cut = padded[:, top : top + 32, left : left + 32]
    return cut[:, :, ::-1] if mirrored else cut


def test_augmentation_equals_the_authors_in_distribution():
    mean, deviation = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    black = [-m / d for m, d in zip(mean, deviation, strict=True)]
    g = torch.Generator().manual_seed(0)
    image = standardize(mean, deviation)(torch.randint(0, 256, (1, 3, 32, 32), generator=g, dtype=torch.uint8))
    key = {
        np.ascontiguousarray(one_by_one(image[0].numpy(), *where, 4, black)).round(4).tobytes(): where
        for where in ((t, l, f) for t in range(9) for l in range(9) for f in (False, True))  # noqa: E741
    }
    n = 162 * 60
    batch = crop_and_flip(4, mean, deviation)(image.expand(n, -1, -1, -1), torch.Generator().manual_seed(1))
    seen = [key[np.ascontiguousarray(row).round(4).tobytes()] for row in batch.numpy()]  # each is one of the 162
    counts = np.array([seen.count(where) for where in key.values()])
    assert stats.chisquare(counts).pvalue > 1e-3


def test_augmentation_pads_with_black_pixels():
    mean, deviation = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    black = standardize(mean, deviation)(torch.zeros(50, 3, 32, 32, dtype=torch.uint8))
    torch.testing.assert_close(crop_and_flip(4, mean, deviation)(black, torch.Generator()), black)


def test_standardized_pixels_by_hand():
    prepare = standardize((0.5, 0.5, 0.5), (0.25, 0.5, 1.0))
    white = prepare(torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)).flatten()
    torch.testing.assert_close(white, torch.tensor([2.0, 1.0, 0.5]))


def test_the_authors_shuffle_is_the_split(small_data):
    rows = list(range(60))
    np.random.seed(1)  # noqa: NPY002
    np.random.shuffle(rows)  # noqa: NPY002
    labels = torch.arange(60) % 10
    splits = data.cifar10(small_data, val=10)
    assert torch.equal(splits.val.labels, labels[rows[:10]])
    assert torch.equal(splits.train.labels, labels[rows[10:]])
    order = np.random.RandomState(101).permutation(60)
    splits = data.cifar10(small_data, val=10, protocol="wang")
    assert torch.equal(splits.train.labels, labels[order[:50]])
    assert torch.equal(splits.val.labels, labels[order[50:]])


def test_tiny_imagenet_holds_out_by_number_or_by_rank():
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    numbers = torch.tensor([449, 450, 499, 0, 1, 2, 451, 3])
    assert held_out(labels, numbers, 0.1).tolist() == [False, True, True, False, False, False, True, False]
    assert held_out(labels, numbers.new_full((8,), -1), 0.25).nonzero().flatten().tolist() == [6, 7]


def test_blobs_are_drawn_from_their_posterior():
    splits = data.blobs(classes=4, test=50_000, seed=3)
    log_p = splits.posterior(splits.test.inputs)
    error = (log_p.exp() - torch.nn.functional.one_hot(splits.test.labels, 4)).mean(0)
    assert error.abs().max() < 5 * 0.5 / 50_000**0.5
    top, predicted = log_p.exp().max(1)
    assert abs(float(top.mean() - (predicted == splits.test.labels).double().mean())) < 0.01


@pytest.mark.shared
def test_cifar10_is_all_of_it_and_split_as_published(shared, data_cache):
    splits = data.cifar10(shared / "datasets")
    sizes = [len(split) for split in (splits.train, splits.val, splits.test)]
    assert sizes == [45_000, 5_000, 10_000]
    together = splits.train.labels.bincount() + splits.val.labels.bincount()
    assert together.tolist() == [5000] * 10
    assert splits.test.labels.bincount().tolist() == [1000] * 10
    assert splits.classes[3] == "cat"
    everything = torch.cat([splits.train.inputs, splits.val.inputs]).double().div_(255)
    mean = everything.mean((0, 2, 3))
    torch.testing.assert_close(
        mean, torch.tensor([0.49139968, 0.48215841, 0.44653091], dtype=torch.float64), atol=1e-8, rtol=0
    )
    prepared = splits.prepare(splits.test.inputs)
    assert prepared.mean().abs() < 0.03
    seen = [{hashlib.md5(x.tobytes()).digest() for x in s.inputs.numpy()} for s in (splits.train, splits.val)]
    assert len(seen[0] | seen[1]) == 50_000  # CIFAR-10 has no two equal training images


@pytest.mark.shared
def test_cifar100_and_tiny_imagenet_load_what_is_there(shared, data_cache):
    splits = data.cifar100(shared / "datasets", val=100)
    assert [len(s) for s in (splits.train, splits.val, splits.test)] == [900, 100, 10_000]
    assert torch.cat([splits.train.labels, splits.val.labels]).bincount().tolist() == [10] * 100
    assert splits.test.labels.bincount().tolist() == [100] * 100
    splits = data.tiny_imagenet(shared / "datasets")
    assert len(splits.train) + len(splits.val) == 1000
    assert (splits.train.labels.bincount(minlength=200) + splits.val.labels.bincount(minlength=200)).tolist() == [
        5
    ] * 200
    assert splits.test.labels.bincount().tolist() == [8] * 200
    assert splits.train.inputs.shape[1:] == (3, 64, 64)
    assert splits.prepare(splits.train.inputs).mean().abs() < 0.2


def picture(n=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 8, 8, generator=g) * 255
    return torch.nn.functional.interpolate(coarse, (32, 32), mode="bicubic").clamp(0, 255).to(torch.uint8)


def off(a, b):
    return (a.int() - torch.as_tensor(np.asarray(b)).int()).abs().max()


@pytest.mark.parametrize(("name", "index"), [("brightness", 2), ("saturate", 1)])
@pytest.mark.parametrize("severity", [1, 3, 5])
def test_color_corruptions_equal_the_standard_librarys_hsv(name, index, severity):
    amounts = {
        "brightness": [(1, 0.05), (1, 0.1), (1, 0.15), (1, 0.2), (1, 0.3)],
        "saturate": [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)],
    }
    scale, shift = amounts[name][severity - 1]
    images = picture()
    images[:, :, 0, 0] = torch.tensor([0, 90])[:, None]  # black and gray
    expected = np.empty(images.shape)
    for at in np.ndindex(2, 32, 32):
        hsv = list(colorsys.rgb_to_hsv(*(images[at[0], :, at[1], at[2]].double() / 255).tolist()))
        hsv[index] = min(max(hsv[index] * scale + shift, 0), 1)
        expected[at[0], :, at[1], at[2]] = np.clip(colorsys.hsv_to_rgb(*hsv), 0, 1) * 255
    assert off(getattr(corruptions, name)(images, severity=severity), expected.astype(np.uint8)) <= 1


@pytest.mark.parametrize("severity", [1, 5])
def test_blur_equals_scipys(severity):
    images = picture()
    sigma = [0.4, 0.6, 0.7, 0.8, 1][severity - 1]
    expected = ndimage.gaussian_filter(images.double().numpy(), (0, 0, sigma, sigma), mode="nearest", truncate=4)
    assert off(corruptions.gaussian_blur(images, severity=severity), expected.astype(np.uint8)) <= 1


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_pixelate_equals_pillows_boxes(severity):
    images, side = picture(), int(32 * [0.95, 0.9, 0.85, 0.75, 0.65][severity - 1])
    expected = [
        np.asarray(
            Image.fromarray(x.permute(1, 2, 0).numpy()).resize((side, side), Image.BOX).resize((32, 32), Image.BOX)
        )
        for x in images
    ]
    assert off(corruptions.pixelate(images, severity=severity).permute(0, 2, 3, 1), np.stack(expected)) <= 2


def test_noise_has_the_stated_size():
    gray = torch.full((20, 3, 64, 64), 128, dtype=torch.uint8)
    x = 128 / 255

    def deviation(name, severity):
        return float((getattr(corruptions, name)(gray, severity=severity).double() / 255).std())

    for severity in 1, 5:
        assert deviation("gaussian_noise", severity) == pytest.approx([0.04, 0, 0, 0, 0.10][severity - 1], rel=0.02)
        assert deviation("speckle_noise", severity) == pytest.approx([0.06, 0, 0, 0, 0.2][severity - 1] * x, rel=0.02)
        assert deviation("shot_noise", severity) == pytest.approx(
            (x / [500, 0, 0, 0, 50][severity - 1]) ** 0.5, rel=0.03
        )
    changed = corruptions.impulse_noise(gray, severity=5)
    assert float((changed == 0).double().mean()) == pytest.approx(0.035, abs=0.003)
    assert float((changed == 255).double().mean()) == pytest.approx(0.035, abs=0.003)


def test_contrast_by_hand_and_what_does_not_change():
    two = torch.tensor([0, 200], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 3, 1, 2)
    assert corruptions.contrast(two, severity=2)[0, 0, 0].tolist() == [50, 150]
    flat = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(256, 3, 4, 4)
    assert torch.equal(corruptions.contrast(flat, severity=5), flat)  # no level is lost on the way


def test_images_of_another_size_can_be_shifted_data():
    assert corruptions.resized(torch.zeros(2, 3, 64, 64, dtype=torch.uint8), 32).shape == (2, 3, 32, 32)
