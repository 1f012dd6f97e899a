"""Splits and augmentation as in the authors' code, corruptions, and streamed images."""

import hashlib
import itertools
import shutil

import numpy as np
import pytest
import torch
from refusals import refused
from scipy import stats

from calibrant.lab import data
from calibrant.lab.data import corruptions
from calibrant.lab.data._images import crop_and_flip, resized_crop_and_flip, standardize
from calibrant.lab.data.imagenet import validation_mask


def authors_augmentation(image, top, left, mirrored, padding, black):
    """Pad, crop and mirror one image as in the authors' code."""
    padded = np.empty((3, 32 + 2 * padding, 32 + 2 * padding), dtype=np.float32)
    padded[:] = np.array(black, dtype=np.float32)[:, None, None]
    padded[:, padding : padding + 32, padding : padding + 32] = image
    crop = padded[:, top : top + 32, left : left + 32]
    return crop[:, :, ::-1] if mirrored else crop


@pytest.mark.slow
def test_augmentation_has_the_authors_distribution():
    mean, deviation = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    black = [-m / d for m, d in zip(mean, deviation, strict=True)]
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (1, 3, 32, 32), generator=g, dtype=torch.uint8)
    image = standardize(pixels, mean=mean, deviation=deviation)
    crops = {
        np.ascontiguousarray(authors_augmentation(image[0].numpy(), *crop, 4, black)).round(4).tobytes(): crop
        for crop in itertools.product(range(9), range(9), (False, True))
    }
    n = 162 * 60
    batch = crop_and_flip(image.expand(n, -1, -1, -1), torch.Generator().manual_seed(1), padding=4, black=black)
    drawn = [crops[np.ascontiguousarray(row).round(4).tobytes()] for row in batch.numpy()]
    counts = np.array([drawn.count(crop) for crop in crops.values()])
    assert stats.chisquare(counts).pvalue > 1e-3


def test_augmentation_pads_with_black_pixels():
    mean, deviation = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    images = standardize(torch.zeros(50, 3, 32, 32, dtype=torch.uint8), mean=mean, deviation=deviation)
    black = images[0, :, 0, 0].tolist()
    torch.testing.assert_close(crop_and_flip(images, torch.Generator(), padding=4, black=black), images)


def test_standardized_pixels():
    white = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    standardized = standardize(white, mean=(0.5, 0.5, 0.5), deviation=(0.25, 0.5, 1.0))
    torch.testing.assert_close(standardized.flatten(), torch.tensor([2.0, 1.0, 0.5]))


def test_splits_equal_the_authors_shuffle(small_data):
    rows = list(range(60))
    np.random.seed(1)  # noqa: NPY002
    np.random.shuffle(rows)  # noqa: NPY002
    labels = torch.arange(60) % 10
    splits = data.cifar10(small_data, val=10)
    assert np.array_equal(splits.val.labels, labels[rows[:10]])
    assert np.array_equal(splits.train.labels, labels[rows[10:]])
    order = np.random.RandomState(101).permutation(60)
    splits = data.cifar10(small_data, val=10, protocol="wang")
    assert np.array_equal(splits.train.labels, labels[order[:50]])
    assert np.array_equal(splits.val.labels, labels[order[50:]])


def test_tiny_imagenet_validates_on_last_file_numbers_or_rows():
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    numbers = torch.tensor([449, 450, 499, 0, 1, 2, 451, 3])
    assert validation_mask(labels, numbers, 0.1).tolist() == [False, True, True, False, False, False, True, False]
    assert validation_mask(labels, numbers.new_full((8,), -1), 0.25).nonzero().flatten().tolist() == [6, 7]


def test_blobs_match_their_posterior():
    splits = data.blobs(classes=4, test=50_000, seed=3)
    log_p = splits.posterior(splits.test.inputs)
    error = (log_p.exp() - torch.nn.functional.one_hot(splits.test.labels, 4)).mean(0)
    assert error.abs().max() < 5 * 0.5 / 50_000**0.5
    top, predicted = log_p.exp().max(1)
    assert abs(float(top.mean() - (predicted == splits.test.labels).double().mean())) < 0.01


@pytest.mark.slow
@pytest.mark.shared
def test_cifar10_is_complete_and_split_as_published(shared, data_cache):
    splits = data.cifar10(shared / "datasets")
    sizes = [len(split) for split in (splits.train, splits.val, splits.test)]
    assert sizes == [45_000, 5_000, 10_000]
    counts = splits.train.labels.bincount() + splits.val.labels.bincount()
    assert counts.tolist() == [5000] * 10
    assert splits.test.labels.bincount().tolist() == [1000] * 10
    assert splits.classes[3] == "cat"
    pixels = torch.cat([splits.train.inputs, splits.val.inputs]).double().div_(255)
    mean = pixels.mean((0, 2, 3))
    torch.testing.assert_close(
        mean, torch.tensor([0.49139968, 0.48215841, 0.44653091], dtype=torch.float64), atol=1e-8, rtol=0
    )
    prepared = splits.prepare(splits.test.inputs)
    assert prepared.mean().abs() < 0.03
    digests = [{hashlib.md5(x.tobytes()).digest() for x in s.inputs.numpy()} for s in (splits.train, splits.val)]
    assert len(digests[0] | digests[1]) == 50_000  # CIFAR-10 has no duplicate training images


@pytest.mark.slow
@pytest.mark.shared
def test_cifar100_and_tiny_imagenet_load_local_files(shared, data_cache):
    splits = data.cifar100(shared / "datasets", val=100)
    assert [len(s) for s in (splits.train, splits.val, splits.test)] == [900, 100, 10_000]
    assert torch.cat([splits.train.labels, splits.val.labels]).bincount().tolist() == [10] * 100
    assert splits.test.labels.bincount().tolist() == [100] * 100
    splits = data.tiny_imagenet(shared / "datasets")
    assert len(splits.train) + len(splits.val) == 1000
    counts = splits.train.labels.bincount(minlength=200) + splits.val.labels.bincount(minlength=200)
    assert counts.tolist() == [5] * 200
    assert splits.test.labels.bincount().tolist() == [8] * 200
    assert splits.train.inputs.shape[1:] == (3, 64, 64)
    assert splits.prepare(splits.train.inputs).mean().abs() < 0.2


def test_noise_has_the_published_size():
    gray = torch.full((20, 3, 64, 64), 128, dtype=torch.uint8)
    for severity, deviation in (1, 0.04), (5, 0.10):
        noisy = corruptions.gaussian_noise(gray, severity=severity).double() / 255
        assert float(noisy.std()) == pytest.approx(deviation, rel=0.02)
        assert float(noisy.mean()) == pytest.approx(127.5 / 255, abs=1e-3)  # rounded down


def test_noise_of_published_results_does_not_change():
    images = torch.arange(0, 256, 16, dtype=torch.uint8).view(1, 1, 4, 4)
    expected = torch.tensor([0, 0, 25, 36, 85, 97, 87, 58, 136, 111, 168, 183, 195, 239, 252, 233])
    assert (corruptions.gaussian_noise(images).flatten() - expected).abs().max() <= 1
    with refused("raw_images"):
        corruptions.gaussian_noise(images / 255)


def test_cifar10_c_reads_the_images_of_a_severity(cifar10_c):
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    published = np.load(cifar10_c / "fog.npy")
    for severity in range(1, 6):
        changed = corruptions.cifar10_c(images, kind="fog", severity=severity, folder=str(cifar10_c))
        assert changed.permute(0, 2, 3, 1).numpy().tolist() == published[2 * severity - 2 : 2 * severity].tolist()
    with refused("image_size", "fog.npy"):
        corruptions.cifar10_c(images[:1], folder=str(cifar10_c))
    with refused("unreadable", "snow.npy"):
        corruptions.cifar10_c(images, kind="snow", folder=str(cifar10_c))


def test_streamed_images_equal_cached_images(small_data):
    cached, streamed = (data.imagenet(small_data, size=32, stream=stream) for stream in (False, True))
    for name in "train", "val", "test":
        a, b = getattr(cached, name), getattr(streamed, name)
        assert np.array_equal(a.labels, b.labels)
        assert np.array_equal(a.inputs, b.inputs.pixels())
        assert np.array_equal(cached.prepare(a.inputs[1:3]), streamed.prepare(b.inputs[1:3]))
    rows = torch.tensor([4, 0, 9])
    assert np.array_equal(cached.train[rows].inputs, streamed.train[rows].inputs.pixels())
    mask = cached.train.labels == 1
    assert np.array_equal(cached.train.inputs[mask], streamed.train[mask].inputs.pixels())


def test_streamed_images_have_a_digest_of_their_files(small_data, tmp_path):
    shutil.copytree(small_data / "imagenet", tmp_path / "imagenet")
    original, copy = (data.imagenet(root, size=32, stream=True).train.inputs for root in (small_data, tmp_path))
    assert original.digest == copy.digest
    (tmp_path / "imagenet/train/n01/n01_0.JPEG").write_bytes(b"another")
    assert original.digest != copy.digest
    with refused("unreadable") as caught:
        copy.pixels()
    assert "n01_0.JPEG" in str(caught.value)


def test_resized_crops_have_the_published_area_and_aspect():
    """A crop of a linear ramp is a ramp whose slope is the fraction of the side that it shows."""
    n, size = 2000, 16
    ramp = (torch.arange(size) + 0.5) / size
    images = torch.stack([ramp.expand(size, size), ramp[:, None].expand(size, size)]).expand(n, 2, size, size)
    crops = resized_crop_and_flip(images, torch.Generator().manual_seed(0))
    inner = crops[:, :, 4:12, 4:12]
    width = (inner[:, 0, 0, -1] - inner[:, 0, 0, 0]) * size / 7
    height = (inner[:, 1, -1, 0] - inner[:, 1, 0, 0]) * size / 7
    assert (crops >= 0.5 / size - 1e-6).all()
    assert (crops <= 1 - 0.5 / size + 1e-6).all()
    assert 0.45 < (width < 0).double().mean() < 0.55  # mirrored
    assert (height > 0).all()
    unclipped = (width.abs() < 0.999) & (height < 0.999)
    area, aspect = (width.abs() * height)[unclipped], (width.abs() / height)[unclipped]
    assert area.min() == pytest.approx(0.08, abs=0.01)
    assert aspect.min() == pytest.approx(3 / 4, abs=0.01)
    assert aspect.max() == pytest.approx(4 / 3, abs=0.01)
