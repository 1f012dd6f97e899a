"""The table of groups: its values, every output, and the coverage of its intervals."""

import json
import re
from html import unescape

import numpy as np
import pytest
from rendered import assert_rendered
from scipy.special import expit

from calibrant import Predictions, assess, measure, metrics
from calibrant.assessment import _tables
from calibrant.metrics.tables import groups


def draw(sizes: list[int], spread: float, rng: np.random.Generator, copies: int = 1) -> tuple[Predictions, np.ndarray]:
    """Return binary predictions of groups with different bias, and the true gap of each group."""
    group = np.arange(len(sizes)).repeat(sizes)
    n = len(group)
    logits = 2 * rng.standard_normal(n) + 1
    true = expit(logits + spread * rng.standard_normal(len(sizes))[group])
    labels = (rng.random(n) < true).astype(int)
    rows = np.tile(np.arange(n), copies)
    clusters = None if copies == 1 else rows
    z = np.stack([0 * logits, logits], 1)
    p = Predictions(z[rows], labels[rows], of=1, groups=group[rows], clusters=clusters)
    return p, np.array([(expit(logits) - true)[group == i].mean() for i in range(len(sizes))])


@pytest.fixture(scope="module")
def shop() -> Predictions:
    p, _ = draw([1200, 600, 800], 0.0, np.random.default_rng(0))
    assert p.groups is not None
    return biased(p.logits[:, 1], p.labels, p.groups)


def biased(logits: np.ndarray, labels: np.ndarray, group: np.ndarray) -> Predictions:
    """Return predictions of a binary event with names of groups, the second of which is overestimated."""
    z = np.stack([np.zeros(len(group)), logits + 1.5 * (group == 1)], 1)
    return Predictions(z, labels, of=1, groups=np.array(["north", "<b>south</b>", "[red]west"])[group])


def test_values_equal_the_metrics_of_each_group(shop):
    table = groups(shop)
    assert table is not None
    assert table.names == ("<b>south</b>", "[red]west", "north")
    for i, name in enumerate(table.names):
        part = shop.select_group(name)
        assert table.count[i] == len(part)
        assert table.gap[i] == pytest.approx(metrics.signed_gap(part), abs=1e-12)
        assert table.ece[i] == pytest.approx(metrics.ece(part), abs=1e-12)
        assert table.nll[i] == pytest.approx(metrics.nll(part), abs=1e-12)
        floor = metrics.noise_floor.interval(part)
        assert (table.floor[i], table.floor_high[i]) == pytest.approx((floor.value, floor.high))
    assert table.macro("ece") == pytest.approx(sum(table.ece.tolist()) / 3)
    pooled = float((table.count * table.gap).sum() / table.count.sum())
    assert pooled == pytest.approx(measure(shop)["signed_gap"].value, abs=1e-12)
    assert table.names[table.worst_first[0]] == "<b>south</b>"


def test_text_contains_every_group(torch):
    g = torch.Generator().manual_seed(0)  # of the numbers in the file
    logits, _ = (torch.randn(n, generator=g, dtype=torch.float64) for n in (650, 3))
    logits = 2 * logits + 1
    labels = torch.bernoulli(logits.sigmoid(), generator=g).long()
    p = biased(logits.numpy(), labels.numpy(), np.arange(3).repeat([300, 150, 200]))
    assert_rendered("measured_groups", str(measure(p)))


def test_page_and_records_contain_every_group(shop):
    table = measure(shop)
    page = table.html()
    assert "<b>south</b>" not in page
    assert "&lt;b&gt;south&lt;/b&gt;" in page
    assert "Groups, worst first" in page
    content = json.loads(table.json())
    assert content["groups"][0]["group"] == "<b>south</b>"
    assert len(content["results"]) == len(table)
    frame = table.to_polars()
    assert set(frame["group"]) == {"", "north", "<b>south</b>", "[red]west"}
    assert len(frame) == len(table) + 3 * 4
    assert "group" not in measure(Predictions(shop.logits, shop.labels, of=1)).to_polars().columns


def test_page_lists_the_worst_of_many_groups_and_json_all(shop, monkeypatch):
    monkeypatch.setattr(_tables, "MAX_TABLE_ROWS", 2)
    result = measure(shop)
    worst = [result.groups.names[i] for i in result.groups.worst_first]
    assert len(worst) > 2
    (section,) = re.findall(r"Groups, worst first</h2>(.*?)</section>", result.html(), re.DOTALL)
    listed = [unescape(name) for name in re.findall(r'<tr><th scope="row">(.*?)</th>', section)]
    assert listed[:3] == [*worst[:2], "mean over groups"]
    assert len(json.loads(result.json())["groups"]) == len(worst)


def test_assess_shows_groups_before_and_after(shop, tmp_path):
    half = np.arange(len(shop)) % 2 == 0
    result = assess(shop[half], shop[~half], ["Identity", "GroupCalibrated"])
    assert result.chosen_name == "GroupCalibrated"
    text = str(result)
    assert "groups before calibration" in text
    assert "groups after GroupCalibrated" in text
    before, after = (m.groups.significant_gap.max() for m in (result.uncalibrated, result.calibrated))
    assert after < before / 4  # one calibrated table in ten has a significant gap, a small one
    assert "&lt;b&gt;south" in result.html()
    assert set(json.loads(result.json())["groups"]) == {"Identity", "GroupCalibrated"}


def test_small_groups_have_finite_intervals_and_weightless_groups_no_row():
    p = Predictions([[0.0, 3.0]] * 6, [1] * 6, [1, 1, 1, 1, 0, 1], of=1, groups=["a"] * 4 + ["b", "c"])
    table = groups(p)
    assert table is not None
    assert table.names == ("a", "c")
    assert (table.low < 0).all()
    assert (table.high > 0).all()
    assert np.isfinite(table.low).all()


def test_interval_of_clusters_holds_zero_exactly_if_the_simulated_test_does_not_reject():
    # with a single confidence, Kuiper's statistic is the absolute gap
    rng, decisions = np.random.default_rng(3), []
    for error_rate in 0.05, 0.05, 0.2, 0.2, 0.0:
        clusters = np.arange(80).repeat(rng.integers(1, 20, 80))
        is_error = (rng.random(80) < error_rate)[clusters] & (rng.random(len(clusters)) < 0.9)
        confidence = np.full(len(clusters), 0.95)
        p = Predictions.from_confidence(confidence, (~is_error).astype(int), clusters=clusters, groups=clusters % 4)
        table = groups(p, level=0.9)
        assert table is not None
        for i, name in enumerate(table.names):
            is_rejected = metrics.kuiper.test(p.select_group(name)).p_value <= 0.1 / 4
            gap, low, high = (float(column[i]) for column in (table.gap, table.low, table.high))
            assert (low > 0 or high < 0) == is_rejected
            assert low <= gap <= high
            decisions.append(is_rejected)
    assert {True, False} == set(decisions)


def coverage(times: int, rng: np.random.Generator, copies: int = 1) -> float:
    covered = 0
    for _ in range(times):
        p, gaps = draw(rng.integers(15, 300, 12), 0.6, rng, copies)
        table = groups(p)
        assert table is not None
        truth = gaps[[int(name) for name in table.names]]
        covered += ((truth >= table.low) & (truth <= table.high)).all()
    return covered / times


def test_intervals_cover_all_gaps_together():
    assert coverage(6, np.random.default_rng(1)) >= 0.6


@pytest.mark.large
@pytest.mark.parametrize("copies", [1, 5])
def test_simultaneous_intervals_have_nominal_coverage(copies):
    assert 0.88 <= coverage(200, np.random.default_rng(2), copies) <= 0.999
