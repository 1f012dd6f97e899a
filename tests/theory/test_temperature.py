import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from calibrant import theory


def slope(gamma: float, s: torch.Tensor) -> torch.Tensor:
    """Return 1 / T(s): the logit of the binary focal map over the logit s."""
    mapped = theory.focal_map(torch.stack([s, torch.zeros_like(s)], dim=-1), gamma=gamma)
    return (mapped[:, 0] - mapped[:, 1]) / s


@settings(deadline=None, max_examples=25)
@given(gamma=st.floats(0.01, 20.0))
def test_proposition_3_corrected(gamma):
    s = torch.cat([torch.linspace(1e-3, 20, 400), torch.logspace(1.31, 2.8, 100)]).double()
    inverse = slope(gamma, torch.cat([s, -s]))
    bounds = theory.temperature_bounds(gamma)
    assert bounds.sharpest < bounds.mildest < bounds.paper
    assert inverse.max() <= 1 / bounds.sharpest + 1e-9
    assert inverse.min() >= 1 / bounds.mildest - 1e-9


@pytest.mark.parametrize("gamma", [-0.9, -0.5, 0.5, 1.0, 4.0, 10.0])
def test_both_bounds_are_attained(gamma):
    bounds = theory.temperature_bounds(gamma)
    at_zero, at_infinity = slope(gamma, torch.tensor([1e-4, 1e8], dtype=torch.float64))
    assert at_zero.item() == pytest.approx(1 / bounds.at_zero, rel=1e-7)
    assert at_infinity.item() == pytest.approx(1 / bounds.sharpest, abs=1e-7)


def test_the_slope_at_zero_is_the_smallest_up_to_a_gamma_of_5_635():
    """The cubic term of the mapped logit changes its sign there; the dip beyond is missing from the literature."""
    s = torch.linspace(1e-2, 10, 2000, dtype=torch.float64)
    for gamma, dip in ((0.5, 0), (5.0, 0), (5.6, 0), (5.7, 1), (6.0, 1), (10.0, 1), (20.0, 1)):
        at_zero = 1 / theory.temperature_bounds(gamma).at_zero
        assert bool(slope(gamma, s).min() < at_zero) == bool(dip)
    depth = 1 / theory.temperature_bounds(10.0).at_zero - 1 / theory.temperature_bounds(10.0).mildest
    assert depth == pytest.approx(0.005184, abs=2e-6)


@settings(deadline=None, max_examples=25)
@given(gamma=st.floats(-0.99, -0.01))
def test_below_zero_the_bounds_change_places(gamma):
    inverse = slope(gamma, torch.linspace(1e-3, 60, 500, dtype=torch.float64))
    bounds = theory.temperature_bounds(gamma)
    assert bounds.sharpest > bounds.mildest
    assert (bounds.mildest > 1) == (gamma > 2 - 2 / math.log(2))  # -0.885: below, it even sharpens near s = 0
    assert 1 / bounds.sharpest - 1e-9 <= inverse.min()
    assert inverse.max() <= 1 / bounds.mildest + 1e-9


@pytest.mark.parametrize("gamma", [0.5, 1.0, 4.0])
def test_proposition_3_as_printed_is_false(gamma):
    """With s / (gamma + 1) in the exponents the map would lower the confidence; it raises it."""
    s = torch.linspace(0.1, 10, 100, dtype=torch.float64)
    printed_upper = s / (gamma + 1 - math.log(gamma + 1) / 2)
    assert (slope(gamma, s) * s > printed_upper).all()


def test_known_slopes_at_zero_and_the_papers_example():
    for gamma, k in ((1.0, 1.771848), (2.0, 2.676239), (4.0, 4.590420)):
        assert 1 / theory.temperature_bounds(gamma).mildest == pytest.approx(k, abs=6e-7)
    sharpest, mildest, _, paper = theory.temperature_bounds(4.0)
    assert (sharpest, paper) == (0.2, pytest.approx(0.238, abs=5e-4))  # as in section 3.2
    at_20 = 1 / slope(4.0, torch.tensor([20.0], dtype=torch.float64)).item()
    assert at_20 == pytest.approx(0.2033, abs=5e-5)  # the paper says 0.206
    assert mildest == pytest.approx(0.2178, abs=5e-5)  # and 0.218


@pytest.mark.parametrize(
    ("gamma", "inverse"),
    [(0.5, 1.3676), (1.0, 1.7810), (2.0, 2.6801), (3.0, 3.6252), (4.0, 4.5910), (5.0, 5.5676), (10.0, 10.513)],
)
def test_nearest_binary_temperature(gamma, inverse):
    temperature, deviation = theory.nearest_temperature(gamma)
    assert 1 / temperature == pytest.approx(inverse, abs=6e-4 if gamma == 10 else 6e-5)
    assert deviation <= 1.2e-3
    assert 1 / temperature == pytest.approx(0.95 * gamma + 0.85, abs=0.2)


def test_the_largest_binary_deviation_is_above_the_papers_thousandth():
    assert theory.nearest_temperature(0.5).deviation == pytest.approx(1.196e-3, abs=2e-6)
    assert theory.nearest_temperature(1.0).deviation < 1e-3


@pytest.mark.parametrize(("gamma", "error"), [(0.5, 2.138e-3), (3.0, 1.0e-4), (5.0, 6.4e-6)])
def test_the_closed_form_slope_is_nearly_the_best_temperature(gamma, error):
    s = torch.linspace(0, 60, 60001, dtype=torch.float64)
    z = torch.stack([s, torch.zeros_like(s)], dim=-1)
    scaled = (z / theory.temperature_bounds(gamma).mildest).softmax(-1)
    assert (theory.focal_map(z, gamma=gamma).exp() - scaled).abs().max().item() == pytest.approx(error, rel=0.02)


@pytest.mark.slow
def test_lines_through_the_nearest_temperatures():
    """The paper has 0.95 gamma + 0.85 for two classes and 0.64 gamma + 0.91 for three, with 8 % at gamma = 9."""
    gammas = np.arange(0.25, 10.01, 0.25)
    lines = (2, (0.969, 0.764), 0.0012, 0.104, 0.163), (3, (0.65, 0.87), 0.0785, 0.06, 0.06)
    for classes, line, max_deviation, line_difference, paper_difference in lines:
        nearest = [theory.nearest_temperature(float(gamma), classes) for gamma in gammas]
        fit = np.polyfit(gammas, [1 / t for t, _ in nearest], 1)
        assert fit == pytest.approx(line, abs=0.0015)
        assert max(deviation for _, deviation in nearest) == pytest.approx(max_deviation, rel=0.02)
        paper = (0.95, 0.85) if classes == 2 else (0.64, 0.91)
        assert np.abs(np.polyval(paper, [0, 10]) - np.polyval(line, [0, 10])).max() == pytest.approx(line_difference)
        difference = np.abs(np.polyval(paper, gammas) - [1 / t for t, _ in nearest]).max()
        assert difference == pytest.approx(paper_difference, abs=0.001)


@pytest.mark.slow
def test_the_table_of_the_page_is_what_is_computed():
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text()
    table = page.partition("**The nearest temperature**")[2].partition("- *Paper")[0]
    rows = [re.split(r" *\| *", line.strip("| ")) for line in table.splitlines() if re.match(r"\| [^|-]", line)]
    (_, *gammas), *cells = rows
    assert [row[0] for row in cells] == ["1/T, two classes", "deviation", "1/T, three classes", "deviation"]
    for classes, slopes, deviations in (2, *cells[:2]), (3, *cells[2:]):
        for gamma, slope, deviation in zip(gammas, slopes[1:], deviations[1:], strict=True):
            t, error = theory.nearest_temperature(float(gamma), classes)
            assert abs(1 / t - float(slope)) <= 0.6 * 10.0 ** -len(slope.partition(".")[2])
            assert error == pytest.approx(float(deviation), rel=0.05)


def test_negative_gammas_are_no_temperatures():
    """The negative gammas of the paper's grid, against 1.2e-3 at most for positive ones."""
    assert theory.nearest_temperature(-0.5).deviation == pytest.approx(0.01346, rel=0.01)
    assert theory.nearest_temperature(-0.25).deviation == pytest.approx(0.00362, rel=0.01)


def test_captions_name_other_gammas():
    """Figure 2 has T = 0.36 at '3', figure 5 has T = 0.81 at '1' and 0.46 at '3': those of 2, 0.5 and 2."""
    assert theory.nearest_temperature(2.0).temperature == pytest.approx(0.3731, abs=1e-4)
    assert theory.nearest_temperature(3.0).temperature == pytest.approx(0.2759, abs=1e-4)
    assert theory.nearest_temperature(0.5, 3).temperature == pytest.approx(0.806, abs=1e-3)
    assert theory.nearest_temperature(2.0, 3).temperature == pytest.approx(0.4647, abs=2e-3)
    assert theory.nearest_temperature(1.0, 3).temperature == pytest.approx(0.658, abs=1e-3)
    assert theory.nearest_temperature(3.0, 3).temperature == pytest.approx(0.356, abs=1e-3)


def test_four_classes_deviate_more_than_the_paper_says():
    assert 0.11 < theory.nearest_temperature(9.0, 4).deviation < 0.13  # the paper: up to 8 %


def test_gamma_zero_is_temperature_one():
    temperature, deviation = theory.nearest_temperature(0.0, 3)
    assert temperature == pytest.approx(1, abs=1e-6)
    assert deviation < 1e-6


def test_one_class_and_gamma_below_minus_one_are_refused():
    with refused("one_class"):
        theory.nearest_temperature(1.0, 1)
    with refused("gamma_range"):
        theory.temperature_bounds(-1.5)


@pytest.mark.parametrize("k", [2, 5, 100])
def test_larger_logits_are_more_confident(k):
    """Theorem 1 of a survey: scaling logits by t > 1 raises the largest probability, unless all are equal."""
    z = torch.randn(500, k, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
    confidences = torch.stack([(t * z).softmax(-1).amax(-1) for t in (0.3, 1.0, 1.5, 4.0)])
    assert bool((confidences.diff(dim=0) > 0).all())
    slope = (z.softmax(-1) * (z.amax(-1, keepdim=True) - z)).sum(-1)  # of log p at t = 1, never below 0
    step = ((1 + 1e-6) * z).log_softmax(-1).amax(-1) - z.log_softmax(-1).amax(-1)
    torch.testing.assert_close(step / 1e-6, slope, rtol=1e-4, atol=1e-6)
    equal = torch.ones(1, k, dtype=torch.float64)
    assert (7 * equal).softmax(-1).amax() == pytest.approx(1 / k)
