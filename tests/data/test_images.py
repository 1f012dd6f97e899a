"""The authors' splits and augmentation, and the corruptions against independent implementations.

Of 200 test images of CIFAR-10, at each severity, the original functions (OpenCV 5.0, scikit-image 0.26, SciPy, Pillow)
give the same values for pixelate and JPEG. They differ by one level at most in contrast (0.1 to 0.2 % of the values),
brightness (0.1 to 0.5 %; 3.5 % at severity 4), saturate (0.7 to 1.3 %; 7.5 % at 3), the Gaussian blur (0.2 to 0.5 %),
the zoom blur (0.1 to 0.3 %), the defocus blur (0.1 %; 9 % at 4) and, given the same noise,
spatter (at most 0.02 %). Snow and motion blur were not run beside ImageMagick.
"""

import colorsys
import hashlib
import heapq
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from scipy import ndimage, stats

from calibrant.lab import data
from calibrant.lab.data import _spatter, _weather, corruptions
from calibrant.lab.data._filters import blur_along, fractal_clouds
from calibrant.lab.data._images import crop_and_flip, resized_crop_and_flip, standardize
from calibrant.lab.data.tiny_imagenet import validation_mask


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
    assert validation_mask(labels, numbers, 0.1).tolist() == [False, True, True, False, False, False, True, False]
    assert validation_mask(labels, numbers.new_full((8,), -1), 0.25).nonzero().flatten().tolist() == [6, 7]


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


EXCEPTIONS = {"elastic_transform", "frost", "saturate", "spatter"}


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


@pytest.mark.parametrize("severity", range(1, 6))
def test_pixelate_equals_pillows_boxes(severity):
    images, side = picture(20), int(32 * [0.95, 0.9, 0.85, 0.75, 0.65][severity - 1])
    expected = [
        np.asarray(
            Image.fromarray(x.permute(1, 2, 0).numpy()).resize((side, side), Image.BOX).resize((32, 32), Image.BOX)
        )
        for x in images
    ]
    assert off(corruptions.pixelate(images, severity=severity).permute(0, 2, 3, 1), np.stack(expected)) == 0


@pytest.mark.parametrize("severity", range(1, 6))
def test_defocus_equals_a_convolution_by_scipy(severity):
    radius, rim = [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)][severity - 1]
    disk = np.array([[i * i + j * j <= radius**2 for j in range(-8, 9)] for i in range(-8, 9)]) * 1.0
    bell = np.exp(-np.array([1, 0, 1]) / (2 * rim**2))
    kernel = ndimage.convolve(disk / disk.sum(), np.outer(bell, bell) / bell.sum() ** 2)
    images = picture()
    expected = [[ndimage.convolve(c.double().numpy(), kernel, mode="mirror") for c in image] for image in images]
    assert off(corruptions.defocus_blur(images, severity=severity), np.array(expected).astype(np.uint8)) <= 1


@pytest.mark.parametrize("severity", [1, 5])
def test_zoom_blur_equals_scipys_zooms(severity):
    images, most = picture(), [1.06, 1.11, 1.16, 1.21, 1.26][severity - 1]
    x = images.double().numpy()
    parts = [x]
    for factor in np.arange(1, most, 0.01):
        inner = int(np.ceil(32 / factor))
        top = (32 - inner) // 2
        large = ndimage.zoom(x[:, :, top : top + inner, top : top + inner], (1, 1, factor, factor), order=1)
        top = (large.shape[2] - 32) // 2
        parts.append(large[:, :, top : top + 32, top : top + 32])
    assert off(corruptions.zoom_blur(images, severity=severity), np.mean(parts, 0).astype(np.uint8)) <= 1


def test_glass_takes_each_pixel_from_itself_or_above_or_left():
    image = torch.arange(1024).view(1, 1, 32, 32)
    coded = torch.cat([image // 32 * 8, image % 32 * 8, image * 0], 1).to(torch.uint8).repeat(50, 1, 1, 1)
    changed = corruptions.glass_blur(coded, severity=1)  # its own blur is none
    up, left = (coded[:, :2].int() - changed[:, :2].int()).div(8, rounding_mode="floor").unbind(1)
    assert (up[:, :2] == 0).all()
    assert (left[:, :, :2] == 0).all()
    inner = torch.stack([up, left])[:, :, 2:, 2:]
    assert set(inner.unique().tolist()) == {0, 1}
    shares = (2 * inner[0] + inner[1]).flatten().bincount() / inner[0].numel()
    torch.testing.assert_close(shares, torch.full((4,), 0.25), atol=0.01, rtol=0)
    swapped = coded[0].permute(1, 2, 0).numpy().copy()  # the benchmark's exchange of two views is a copy
    swapped[5, 5], swapped[4, 4] = swapped[4, 4], swapped[5, 5]
    assert (swapped[5, 5] == swapped[4, 4]).all()


@pytest.mark.parametrize("severity", [1, 5])
def test_motion_drags_a_point_along_half_a_bell(severity):
    radius, sigma = [(6, 1), 0, 0, 0, (9, 2.5)][severity - 1]
    point = torch.zeros(40, 3, 41, 41, dtype=torch.uint8)
    point[:, :, 20, 20] = 255
    seen = corruptions.motion_blur(point, severity=severity).double() / 255
    weights = np.exp(-(np.arange(2 * radius + 1.0) ** 2) / (2 * sigma**2))
    weights = torch.from_numpy(weights / weights.sum())
    for image in seen[:, 0]:
        row, column = image.nonzero().T
        assert (column <= 20).all()
        assert ((row - 20).abs() <= 20 - column).all()  # within 45 degrees
        torch.testing.assert_close(image[:, :21].amax(0).flip(0)[:2], weights[:2], atol=0.2, rtol=0)
        assert float(image[20, 20]) == pytest.approx(float(weights[0]), abs=5e-3)
        assert float(image.sum()) == pytest.approx(1, abs=0.07)  # rounding down, pixel by pixel
    assert len({image.numpy().tobytes() for image in seen}) > 5  # every image in a direction of its own


def test_fog_lies_between_none_and_all_of_it():
    gray = torch.full((30, 3, 32, 32), 100, dtype=torch.uint8)
    for severity, amount in ((1, 0.2), (5, 1.5)):
        x, shrunk = 100 / 255, 100 / 255 / (100 / 255 + amount)
        fogged = corruptions.fog(gray, severity=severity).double() / 255
        assert float(fogged.amin()) == pytest.approx(x * shrunk, abs=1 / 255)
        assert float(fogged.amax()) == pytest.approx((x + amount) * shrunk, abs=1 / 255)
        assert torch.equal(fogged[:, 0], fogged[:, 2])  # it is gray
    smooth, rough = (fractal_clouds(50, 32, decay, torch.Generator().manual_seed(0)) for decay in (3.0, 1.75))
    for one in smooth, rough:
        assert one.amin((1, 2)).tolist() == [0.0] * 50
        assert one.amax((1, 2)).tolist() == [1.0] * 50
        near, far = ((one - one.roll(by, 2)).abs().mean() for by in (1, 16))
        assert near < 0.7 * far
    assert smooth.diff(dim=1).abs().mean() < 0.8 * rough.diff(dim=1).abs().mean()


def test_snow_whitens_what_no_flake_hits_by_the_stated_share():
    gray = torch.full((200, 3, 32, 32), 100, dtype=torch.uint8)
    x = 100 / 255
    for severity, kept, least in ((1, 0.95, 0.6), (2, 0.9, 0.5)):
        snowed = corruptions.snow(gray, severity=severity).double() / 255
        bare = kept * x + (1 - kept) * (1.5 * x + 0.5)
        assert float(snowed.amin()) == pytest.approx(bare, abs=1 / 255)
        t = (least - 0.1) / 0.2  # flakes, twice: noise of mean 0.1 and deviation 0.2 where it is at least so bright
        flakes = 2 * (0.1 * stats.norm.sf(t) + 0.2 * stats.norm.pdf(t))
        cut = (0.5 + stats.norm.sf(t)) / 255  # pixels are rounded down, and so is either layer of flakes
        assert float(snowed.mean()) == pytest.approx(bare + flakes - cut, abs=0.7 / 255)
    assert (snowed - snowed.flip(2, 3)).abs().max() < 1.5 / 255  # flakes fall with their own half turn, then rounded


def test_elastic_severity_1_is_affine_and_5_is_not():
    ramp = (torch.arange(32) * 7 + 19).to(torch.uint8).view(1, 1, 1, 32).expand(50, 3, 32, 32)
    inner = slice(8, 24)

    def bend(severity):
        changed = corruptions.elastic_transform(ramp, severity=severity).double()[:, :, inner, inner]
        return float(changed.diff(n=2, dim=3).abs().median()), float(changed.diff(n=2, dim=2).abs().median())

    assert max(bend(1)) <= 1  # of rounding
    assert min(bend(5)) >= 2
    flat = torch.full((5, 3, 32, 32), 77, dtype=torch.uint8)
    for severity in range(1, 6):
        assert off(corruptions.elastic_transform(flat, severity=severity), flat) <= 1


def test_flakes_of_snow_are_whole_levels():
    gray = torch.full((200, 3, 32, 32), 100, dtype=torch.uint8)
    seen = []

    def recorded(x, radius, sigma, angle):
        seen.append(x)
        return blur_along(x, radius, sigma, angle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_weather, "blur_along", recorded)
        corruptions.snow(gray, severity=5)
    levels = seen[0] * 255
    assert levels.max() > 200
    assert (levels - levels.round()).abs().max() < 1e-3


def chamfer(edge):
    """Shortest ways by the moves of a 5 x 5 mask, pixel by pixel."""
    moves = [((0, 1), 1.0), ((1, 0), 1.0), ((1, 1), 1.4), ((1, 2), 2.1969), ((2, 1), 2.1969)]
    height, width = edge.shape
    far = dict.fromkeys(zip(*np.nonzero(edge), strict=True), 0.0)
    waiting = [(0.0, int(i), int(j)) for i, j in far]
    heapq.heapify(waiting)
    while waiting:
        length, i, j = heapq.heappop(waiting)
        for (a, b), step in moves:
            for at in ((i + a, j + b), (i - a, j + b), (i + a, j - b), (i - a, j - b)):
                inside = 0 <= at[0] < height and 0 <= at[1] < width
                if inside and length + step < far.get(at, 1e6):
                    far[at] = length + step
                    heapq.heappush(waiting, (length + step, *at))
    return np.array([[far.get((i, j), 1e6) for j in range(width)] for i in range(height)])


def test_distances_are_shortest_ways():
    edge = torch.rand(3, 17, 20, generator=torch.Generator().manual_seed(0)) < 0.02
    found, expected = _spatter.edge_distances(edge), np.stack([chamfer(one.numpy()) for one in edge])
    assert np.allclose(found.clamp(max=20), expected.clip(max=20), atol=1e-4)


def test_edges_lie_around_a_drop_and_histograms_become_flat():
    x = torch.zeros(2, 20, 20)
    x[0, 5:15, 5:15], x[1, 5:15, 5:15] = 200, 10  # the second is too faint
    edge = _spatter.canny_edges(x)
    assert not edge[1].any()
    assert set(zip(*(i.tolist() for i in edge[0].nonzero().T), strict=True)) <= {
        (i, j) for i in range(4, 16) for j in range(4, 16) if not (6 <= i < 14 and 6 <= j < 14)
    }
    assert edge[0, 7:13].sum(1).tolist() == [2] * 6  # a line on either side, one pixel thin
    few = torch.tensor([[[3.0, 3, 7, 9]]])
    assert _spatter.equalize_histogram(few).tolist() == [[[0, 0, 128, 255]]]
    assert _spatter.equalize_histogram(torch.full((1, 2, 2), 4.0)).tolist() == [[[4, 4], [4, 4]]]


def test_drops_brighten_with_turquoise_and_mud_covers_with_brown():
    gray = torch.full((100, 3, 32, 32), 100, dtype=torch.uint8)
    wet = corruptions.spatter(gray, severity=2).int() - 100
    assert wet.min() == 0
    touched = wet[:, 1] > 0
    assert 0.02 < touched.double().mean() < 0.5
    assert torch.equal(wet[:, 1], wet[:, 2])
    ratio = wet[:, 0][touched].double() / wet[:, 1][touched]
    assert (ratio - 175 / 238).abs().median() < 0.02
    assert wet.amax((1, 2, 3)).double().mean() == pytest.approx(0.5 * 238, abs=2)  # the lightest spot of an image
    muddy = corruptions.spatter(gray, severity=5)
    covered = (muddy != 100).any(1)
    assert 0.02 < covered.double().mean() < 0.7
    deep = muddy.permute(0, 2, 3, 1)[covered].double()
    assert deep.amin(0).tolist() == pytest.approx([63, 42, 20], abs=1)  # where nothing shines through
    assert (deep - 100).div(torch.tensor([-37.0, -58, -80])).min() > 0.78  # a cover is at least 0.8 thick


def test_frost_lays_a_cut_of_a_photograph_on_the_image(textures, tmp_path):
    black = torch.zeros(60, 3, 32, 32, dtype=torch.uint8)
    photos = [
        np.asarray(Image.open(path).resize((60, 40), Image.BILINEAR, reducing_gap=None)) for path in textures.glob("*")
    ]
    frozen = corruptions.frost(black, textures=str(textures), severity=5)
    assert len({image.numpy().tobytes() for image in frozen}) > 50  # another place each
    smallest, largest = min(p.min() for p in photos), max(p.max() for p in photos)
    assert 0.45 * smallest - 20 < frozen.double().mean() < 0.45 * largest
    flat = tmp_path / "flat"
    flat.mkdir()
    Image.new("RGB", (400, 300), (200, 220, 240)).save(flat / "one.jpg", quality=100)
    for severity, kept, added in ((1, 1.0, 0.2), (5, 0.75, 0.45)):
        changed = corruptions.frost(black + 80, textures=str(flat), severity=severity)
        expected = [kept * 80 + added * level for level in (200, 220, 240)]
        assert changed.double().mean((0, 2, 3)).tolist() == pytest.approx(expected, abs=1)
    with refused("no_images"):
        corruptions.frost(black, textures=str(tmp_path))
    Image.new("RGB", (100, 100)).save(tmp_path / "small.png")
    with refused("image_size"):
        corruptions.frost(black, textures=str(tmp_path))


@pytest.mark.parametrize("name", sorted({*corruptions.__all__} - EXCEPTIONS))
def test_severity_5_changes_more_than_3_and_3_more_than_1(name):
    """Not the exceptions: their mildest turn gray, or move the three points most; what is laid on differs in kind."""
    images = picture(50)
    change = [
        float((getattr(corruptions, name)(images, severity=s).double() - images.double()).square().mean())
        for s in (1, 3, 5)
    ]
    # at severity 3 glass blurs more and moves no more, and rounding to whole pixels makes 2 and 3 of pixelate alike
    assert change[0] < change[2] if name == "glass_blur" else change[0] < change[1] < change[2]


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
    assert corruptions.resize(torch.zeros(2, 3, 64, 64, dtype=torch.uint8), 32).shape == (2, 3, 32, 32)


def test_streamed_images_are_those_that_would_be_kept(small_data):
    kept, streamed = (data.imagenet(small_data, size=32, stream=stream) for stream in (False, True))
    for name in "train", "val", "test":
        one, other = getattr(kept, name), getattr(streamed, name)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.inputs, other.inputs.pixels())
        assert torch.equal(kept.prepare(one.inputs[1:3]), streamed.prepare(other.inputs[1:3]))
    rows = torch.tensor([4, 0, 9])
    assert torch.equal(kept.train[rows].inputs, streamed.train[rows].inputs.pixels())
    assert torch.equal(
        kept.train.inputs[kept.train.labels == 1], streamed.train[kept.train.labels == 1].inputs.pixels()
    )


def test_streamed_images_are_known_by_their_files(small_data, tmp_path):
    shutil.copytree(small_data / "imagenet", tmp_path / "imagenet")
    here, there = (data.imagenet(root, size=32, stream=True).train.inputs for root in (small_data, tmp_path))
    assert here.digest == there.digest
    (tmp_path / "imagenet/train/n01/n01_0.JPEG").write_bytes(b"another")
    assert here.digest != there.digest
    with refused("unreadable") as caught:
        there.pixels()
    assert "n01_0.JPEG" in str(caught.value)


def test_resized_crops_are_parts_of_the_image_at_its_scale():
    """On a ramp along each axis, a crop is a ramp again, whose slope is the share of the side it shows."""
    n, size = 2000, 16
    ramp = (torch.arange(size) + 0.5) / size
    images = torch.stack([ramp.expand(size, size), ramp[:, None].expand(size, size)]).expand(n, 2, size, size)
    made = resized_crop_and_flip(images, torch.Generator().manual_seed(0))
    inner = made[:, :, 4:12, 4:12]
    width = (inner[:, 0, 0, -1] - inner[:, 0, 0, 0]) * size / 7
    height = (inner[:, 1, -1, 0] - inner[:, 1, 0, 0]) * size / 7
    assert (made >= 0.5 / size - 1e-6).all()
    assert (made <= 1 - 0.5 / size + 1e-6).all()
    assert 0.45 < (width < 0).double().mean() < 0.55  # mirrored
    assert (height > 0).all()
    whole = (width.abs() < 0.999) & (height < 0.999)  # not cut
    area, aspect = (width.abs() * height)[whole], (width.abs() / height)[whole]
    assert area.min() == pytest.approx(0.08, abs=0.01)
    assert aspect.min() == pytest.approx(3 / 4, abs=0.01)
    assert aspect.max() == pytest.approx(4 / 3, abs=0.01)
