"""Splits and augmentation as in the authors' code, and corruptions compared with independent implementations.

The original functions (OpenCV 5.0, scikit-image 0.26, SciPy, Pillow) were run on 200 test images of CIFAR-10 at every
severity. Pixelate and JPEG are equal. Other corruptions differ by at most one level: contrast in 0.1 to 0.2 % of the
values, brightness in 0.1 to 0.5 % (3.5 % at severity 4), saturate in 0.7 to 1.3 % (7.5 % at 3), Gaussian blur in 0.2 to
0.5 %, zoom blur in 0.1 to 0.3 %, defocus blur in 0.1 % (9 % at 4) and, with the same noise, spatter in at most 0.02 %.
Snow and motion blur were not compared with ImageMagick.
"""

import colorsys
import hashlib
import heapq
import itertools
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from scipy import ndimage, stats

from calibrant.lab import data
from calibrant.lab.data import _weather, corruptions
from calibrant.lab.data._corruption import blur_along, fractal_clouds
from calibrant.lab.data._images import crop_and_flip, resized_crop_and_flip, standardize
from calibrant.lab.data.imagenet import validation_mask


def authors_augmentation(image, top, left, mirrored, padding, black):
    """Pad, crop and mirror one image as in the authors' code."""
    padded = np.empty((3, 32 + 2 * padding, 32 + 2 * padding), dtype=np.float32)
    padded[:] = np.array(black, dtype=np.float32)[:, None, None]
    padded[:, padding : padding + 32, padding : padding + 32] = image
    crop = padded[:, top : top + 32, left : left + 32]
    return crop[:, :, ::-1] if mirrored else crop


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
    assert torch.equal(splits.val.labels, labels[rows[:10]])
    assert torch.equal(splits.train.labels, labels[rows[10:]])
    order = np.random.RandomState(101).permutation(60)
    splits = data.cifar10(small_data, val=10, protocol="wang")
    assert torch.equal(splits.train.labels, labels[order[:50]])
    assert torch.equal(splits.val.labels, labels[order[50:]])


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


def picture(n=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 8, 8, generator=g) * 255
    return torch.nn.functional.interpolate(coarse, (32, 32), mode="bicubic").clamp(0, 255).to(torch.uint8)


def max_difference(a, b):
    return (a.int() - torch.as_tensor(np.asarray(b)).int()).abs().max()


@pytest.mark.parametrize(("name", "index"), [("brightness", 2), ("saturate", 1)])
@pytest.mark.parametrize("severity", [1, 3, 5])
def test_color_corruptions_equal_colorsys(name, index, severity):
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
    assert max_difference(getattr(corruptions, name)(images, severity=severity), expected.astype(np.uint8)) <= 1


@pytest.mark.parametrize("severity", [1, 5])
def test_gaussian_blur_equals_scipy(severity):
    images = picture()
    sigma = [0.4, 0.6, 0.7, 0.8, 1][severity - 1]
    expected = ndimage.gaussian_filter(images.double().numpy(), (0, 0, sigma, sigma), mode="nearest", truncate=4)
    assert max_difference(corruptions.gaussian_blur(images, severity=severity), expected.astype(np.uint8)) <= 1


@pytest.mark.parametrize("severity", range(1, 6))
def test_pixelate_equals_pillow(severity):
    images, side = picture(20), int(32 * [0.95, 0.9, 0.85, 0.75, 0.65][severity - 1])
    expected = [
        np.asarray(
            Image.fromarray(x.permute(1, 2, 0).numpy()).resize((side, side), Image.BOX).resize((32, 32), Image.BOX)
        )
        for x in images
    ]
    assert max_difference(corruptions.pixelate(images, severity=severity).permute(0, 2, 3, 1), np.stack(expected)) == 0


@pytest.mark.parametrize("severity", range(1, 6))
def test_defocus_blur_equals_scipy(severity):
    radius, rim = [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)][severity - 1]
    disk = np.array([[i * i + j * j <= radius**2 for j in range(-8, 9)] for i in range(-8, 9)]) * 1.0
    bell = np.exp(-np.array([1, 0, 1]) / (2 * rim**2))
    kernel = ndimage.convolve(disk / disk.sum(), np.outer(bell, bell) / bell.sum() ** 2)
    images = picture()
    expected = [[ndimage.convolve(c.double().numpy(), kernel, mode="mirror") for c in image] for image in images]
    assert max_difference(corruptions.defocus_blur(images, severity=severity), np.array(expected).astype(np.uint8)) <= 1


@pytest.mark.parametrize("severity", [1, 5])
def test_zoom_blur_equals_scipy(severity):
    images, max_factor = picture(), [1.06, 1.11, 1.16, 1.21, 1.26][severity - 1]
    x = images.double().numpy()
    parts = [x]
    for factor in np.arange(1, max_factor, 0.01):
        inner = int(np.ceil(32 / factor))
        top = (32 - inner) // 2
        zoomed = ndimage.zoom(x[:, :, top : top + inner, top : top + inner], (1, 1, factor, factor), order=1)
        top = (zoomed.shape[2] - 32) // 2
        parts.append(zoomed[:, :, top : top + 32, top : top + 32])
    assert max_difference(corruptions.zoom_blur(images, severity=severity), np.mean(parts, 0).astype(np.uint8)) <= 1


def test_glass_blur_copies_pixels_from_above_or_left():
    image = torch.arange(1024).view(1, 1, 32, 32)
    coded = torch.cat([image // 32 * 8, image % 32 * 8, image * 0], 1).to(torch.uint8).repeat(50, 1, 1, 1)
    changed = corruptions.glass_blur(coded, severity=1)  # blurs by less than a level
    up, left = (coded[:, :2].int() - changed[:, :2].int()).div(8, rounding_mode="floor").unbind(1)
    assert (up[:, :2] == 0).all()
    assert (left[:, :, :2] == 0).all()
    inner = torch.stack([up, left])[:, :, 2:, 2:]
    assert set(inner.unique().tolist()) == {0, 1}
    shares = (2 * inner[0] + inner[1]).flatten().bincount() / inner[0].numel()
    torch.testing.assert_close(shares, torch.full((4,), 0.25), atol=0.01, rtol=0)
    swapped = coded[0].permute(1, 2, 0).numpy().copy()  # swapping two views copies one of them, as in the benchmark
    swapped[5, 5], swapped[4, 4] = swapped[4, 4], swapped[5, 5]
    assert (swapped[5, 5] == swapped[4, 4]).all()


@pytest.mark.parametrize("severity", [1, 5])
def test_motion_blur_spreads_a_point_along_half_a_gaussian(severity):
    radius, sigma = [(6, 1), 0, 0, 0, (9, 2.5)][severity - 1]
    point = torch.zeros(40, 3, 41, 41, dtype=torch.uint8)
    point[:, :, 20, 20] = 255
    blurred = corruptions.motion_blur(point, severity=severity).double() / 255
    weights = np.exp(-(np.arange(2 * radius + 1.0) ** 2) / (2 * sigma**2))
    weights = torch.from_numpy(weights / weights.sum())
    for image in blurred[:, 0]:
        row, column = image.nonzero().T
        assert (column <= 20).all()
        assert ((row - 20).abs() <= 20 - column).all()  # within 45 degrees
        torch.testing.assert_close(image[:, :21].amax(0).flip(0)[:2], weights[:2], atol=0.2, rtol=0)
        assert float(image[20, 20]) == pytest.approx(float(weights[0]), abs=5e-3)
        assert float(image.sum()) == pytest.approx(1, abs=0.07)  # rounding down, pixel by pixel
    assert len({image.numpy().tobytes() for image in blurred}) > 5  # images have different directions


def test_fog_is_gray_and_within_its_range():
    gray = torch.full((30, 3, 32, 32), 100, dtype=torch.uint8)
    for severity, amount in ((1, 0.2), (5, 1.5)):
        x, scale = 100 / 255, 100 / 255 / (100 / 255 + amount)
        fogged = corruptions.fog(gray, severity=severity).double() / 255
        assert float(fogged.amin()) == pytest.approx(x * scale, abs=1 / 255)
        assert float(fogged.amax()) == pytest.approx((x + amount) * scale, abs=1 / 255)
        assert torch.equal(fogged[:, 0], fogged[:, 2])
    smooth, rough = (fractal_clouds(50, 32, decay, torch.Generator().manual_seed(0)) for decay in (3.0, 1.75))
    for clouds in smooth, rough:
        assert clouds.amin((1, 2)).tolist() == [0.0] * 50
        assert clouds.amax((1, 2)).tolist() == [1.0] * 50
        difference_1, difference_16 = ((clouds - clouds.roll(shift, 2)).abs().mean() for shift in (1, 16))
        assert difference_1 < 0.7 * difference_16
    assert smooth.diff(dim=1).abs().mean() < 0.8 * rough.diff(dim=1).abs().mean()


def test_snow_whitens_pixels_without_flakes_by_the_published_weight():
    gray = torch.full((200, 3, 32, 32), 100, dtype=torch.uint8)
    x = 100 / 255
    for severity, image_weight, threshold in ((1, 0.95, 0.6), (2, 0.9, 0.5)):
        snowed = corruptions.snow(gray, severity=severity).double() / 255
        bare = image_weight * x + (1 - image_weight) * (1.5 * x + 0.5)
        assert float(snowed.amin()) == pytest.approx(bare, abs=1 / 255)
        t = (threshold - 0.1) / 0.2  # two layers of flakes: noise N(0.1, 0.2^2) above the threshold
        flakes = 2 * (0.1 * stats.norm.sf(t) + 0.2 * stats.norm.pdf(t))
        rounding = (0.5 + stats.norm.sf(t)) / 255  # pixels and both layers of flakes are rounded down
        assert float(snowed.mean()) == pytest.approx(bare + flakes - rounding, abs=0.7 / 255)
    assert (snowed - snowed.flip(2, 3)).abs().max() < 1.5 / 255  # flakes and their half turn, then rounding


def test_elastic_transform_is_affine_at_severity_1_only():
    ramp = (torch.arange(32) * 7 + 19).to(torch.uint8).view(1, 1, 1, 32).expand(50, 3, 32, 32)
    inner = slice(8, 24)

    def bend(severity):
        changed = corruptions.elastic_transform(ramp, severity=severity).double()[:, :, inner, inner]
        return float(changed.diff(n=2, dim=3).abs().median()), float(changed.diff(n=2, dim=2).abs().median())

    assert max(bend(1)) <= 1  # rounding
    assert min(bend(5)) >= 2
    flat = torch.full((5, 3, 32, 32), 77, dtype=torch.uint8)
    for severity in range(1, 6):
        assert max_difference(corruptions.elastic_transform(flat, severity=severity), flat) <= 1


def test_snowflakes_have_whole_levels():
    gray = torch.full((200, 3, 32, 32), 100, dtype=torch.uint8)
    layers = []

    def record(x, radius, sigma, angle):
        layers.append(x)
        return blur_along(x, radius, sigma, angle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_weather, "blur_along", record)
        corruptions.snow(gray, severity=5)
    levels = layers[0] * 255
    assert levels.max() > 200
    assert (levels - levels.round()).abs().max() < 1e-3


def chamfer(edge):
    """Return shortest distances by the moves of a 5 x 5 mask, computed pixel by pixel."""
    moves = [((0, 1), 1.0), ((1, 0), 1.0), ((1, 1), 1.4), ((1, 2), 2.1969), ((2, 1), 2.1969)]
    height, width = edge.shape
    distances = dict.fromkeys(zip(*np.nonzero(edge), strict=True), 0.0)
    waiting = [(0.0, int(i), int(j)) for i, j in distances]
    heapq.heapify(waiting)
    while waiting:
        length, i, j = heapq.heappop(waiting)
        for (a, b), step in moves:
            for at in ((i + a, j + b), (i - a, j + b), (i + a, j - b), (i - a, j - b)):
                inside = 0 <= at[0] < height and 0 <= at[1] < width
                if inside and length + step < distances.get(at, 1e6):
                    distances[at] = length + step
                    heapq.heappush(waiting, (length + step, *at))
    return np.array([[distances.get((i, j), 1e6) for j in range(width)] for i in range(height)])


def test_edge_distances_are_shortest_paths():
    edge = torch.rand(3, 17, 20, generator=torch.Generator().manual_seed(0)) < 0.02
    distances, expected = _weather.edge_distances(edge), np.stack([chamfer(e.numpy()) for e in edge])
    assert np.allclose(distances.clamp(max=20), expected.clip(max=20), atol=1e-4)


def test_canny_edges_surround_a_drop():
    x = torch.zeros(2, 20, 20)
    x[0, 5:15, 5:15], x[1, 5:15, 5:15] = 200, 10  # the second is below the threshold
    edge = _weather.canny_edges(x)
    assert not edge[1].any()
    assert set(zip(*(i.tolist() for i in edge[0].nonzero().T), strict=True)) <= {
        (i, j) for i in range(4, 16) for j in range(4, 16) if not (6 <= i < 14 and 6 <= j < 14)
    }
    assert edge[0, 7:13].sum(1).tolist() == [2] * 6  # one pixel on either side


def test_histograms_are_equalized():
    levels = torch.tensor([[[3.0, 3, 7, 9]]])
    assert _weather.equalize_histogram(levels).tolist() == [[[0, 0, 128, 255]]]
    assert _weather.equalize_histogram(torch.full((1, 2, 2), 4.0)).tolist() == [[[4, 4], [4, 4]]]


def test_spatter_adds_turquoise_water_or_brown_mud():
    gray = torch.full((100, 3, 32, 32), 100, dtype=torch.uint8)
    wet = corruptions.spatter(gray, severity=2).int() - 100
    assert wet.min() == 0
    touched = wet[:, 1] > 0
    assert 0.02 < touched.double().mean() < 0.5
    assert torch.equal(wet[:, 1], wet[:, 2])
    ratio = wet[:, 0][touched].double() / wet[:, 1][touched]
    assert (ratio - 175 / 238).abs().median() < 0.02
    assert wet.amax((1, 2, 3)).double().mean() == pytest.approx(0.5 * 238, abs=2)  # the brightest spot of an image
    muddy = corruptions.spatter(gray, severity=5)
    covered = (muddy != 100).any(1)
    assert 0.02 < covered.double().mean() < 0.7
    deep = muddy.permute(0, 2, 3, 1)[covered].double()
    assert deep.amin(0).tolist() == pytest.approx([63, 42, 20], abs=1)  # full cover
    assert (deep - 100).div(torch.tensor([-37.0, -58, -80])).min() > 0.78  # covers below 0.8 are removed


def test_frost_overlays_crops_of_photographs(textures, tmp_path):
    black = torch.zeros(60, 3, 32, 32, dtype=torch.uint8)
    photos = [
        np.asarray(Image.open(path).resize((60, 40), Image.BILINEAR, reducing_gap=None)) for path in textures.glob("*")
    ]
    frozen = corruptions.frost(black, textures=str(textures), severity=5)
    assert len({image.numpy().tobytes() for image in frozen}) > 50  # different crops
    smallest, largest = min(p.min() for p in photos), max(p.max() for p in photos)
    assert 0.45 * smallest - 20 < frozen.double().mean() < 0.45 * largest
    flat = tmp_path / "flat"
    flat.mkdir()
    Image.new("RGB", (400, 300), (200, 220, 240)).save(flat / "one.jpg", quality=100)
    for severity, image_weight, ice_weight in ((1, 1.0, 0.2), (5, 0.75, 0.45)):
        changed = corruptions.frost(black + 80, textures=str(flat), severity=severity)
        expected = [image_weight * 80 + ice_weight * level for level in (200, 220, 240)]
        assert changed.double().mean((0, 2, 3)).tolist() == pytest.approx(expected, abs=1)
    with refused("no_images"):
        corruptions.frost(black, textures=str(tmp_path))
    Image.new("RGB", (100, 100)).save(tmp_path / "small.png")
    with refused("image_size"):
        corruptions.frost(black, textures=str(tmp_path))


NOT_MONOTONE = {"elastic_transform", "frost", "saturate", "spatter"}  # severities differ in kind


@pytest.mark.parametrize("name", sorted({*corruptions.__all__} - NOT_MONOTONE))
def test_changes_grow_with_severity(name):
    images = picture(50)
    change = [
        float((getattr(corruptions, name)(images, severity=s).double() - images.double()).square().mean())
        for s in (1, 3, 5)
    ]
    # glass blur moves pixels at severity 3 no more than at 1
    assert change[0] < change[2] if name == "glass_blur" else change[0] < change[1] < change[2]


def test_noise_has_the_published_size():
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


def test_contrast_keeps_uniform_images():
    two = torch.tensor([0, 200], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 3, 1, 2)
    assert corruptions.contrast(two, severity=2)[0, 0, 0].tolist() == [50, 150]
    flat = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(256, 3, 4, 4)
    assert torch.equal(corruptions.contrast(flat, severity=5), flat)  # no rounding errors


def test_resize_returns_the_given_size():
    assert corruptions.resize(torch.zeros(2, 3, 64, 64, dtype=torch.uint8), 32).shape == (2, 3, 32, 32)


def test_streamed_images_equal_cached_images(small_data):
    cached, streamed = (data.imagenet(small_data, size=32, stream=stream) for stream in (False, True))
    for name in "train", "val", "test":
        a, b = getattr(cached, name), getattr(streamed, name)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.inputs, b.inputs.pixels())
        assert torch.equal(cached.prepare(a.inputs[1:3]), streamed.prepare(b.inputs[1:3]))
    rows = torch.tensor([4, 0, 9])
    assert torch.equal(cached.train[rows].inputs, streamed.train[rows].inputs.pixels())
    mask = cached.train.labels == 1
    assert torch.equal(cached.train.inputs[mask], streamed.train[mask].inputs.pixels())


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
