"""Next-token predictions: the same numbers as from all logits at once, in chunks, and the temperature of the NLL."""

import numpy as np
import pytest
import torch
from refusals import code_of

from calibrant import Predictions, calibrators, metrics
from calibrant.nn import tokens
from calibrant.nn.tokens import fit_token_temperature, measure_tokens

VOCABULARY, HIDDEN = 40, 6


@pytest.fixture
def batches():
    """Two batches of hidden states and next tokens, which are drawn at half of the logits; some are ignored."""
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=g)
    parts = []
    for size, length in ((12, 9), (7, 5)):
        hidden = torch.randn(size, length, HIDDEN, generator=g)
        p = (hidden @ weight.T / 2).softmax(-1).flatten(0, 1)
        targets = torch.multinomial(p, 1, generator=g).view(size, length)
        parts.append((hidden, targets.masked_fill(torch.rand(size, length, generator=g) < 0.2, -100)))
    return weight, parts


def in_memory(weight, parts, temperature=1.0):
    """Return predictions of all tokens in memory, with their sequences as clusters."""
    logits, labels, clusters, offset = [], [], [], 0
    for hidden, targets in parts:
        used = targets != -100
        logits.append((hidden[used] @ weight.T).double() / temperature)
        labels.append(targets[used])
        clusters.append(used.nonzero()[:, 0] + offset)
        offset += len(targets)
    return Predictions(torch.cat(logits), torch.cat(labels), clusters=torch.cat(clusters).numpy())


@pytest.mark.parametrize("elements", [1, 3 * VOCABULARY, 1 << 23])
def test_numbers_are_those_of_all_logits(batches, monkeypatch, elements):
    monkeypatch.setattr(tokens, "_LOGITS_AT_A_TIME", elements)
    weight, parts = batches
    p = in_memory(weight, parts, temperature=1.3)
    result = measure_tokens(parts, weight=weight, temperature=1.3)
    assert len(result.summary) == len(p)
    assert result.nll.value == pytest.approx(float(metrics.nll(p)), abs=1e-5)
    # Student's t of the tokens; the interval of predictions allows for an error of the most confident one
    student = metrics.Sample.from_values(metrics.nll.values(p), p.weights, p.clusters).normal_interval(0.9)
    assert result.nll.high == pytest.approx(student.high, abs=0.05)
    assert result.nll.high <= metrics.nll.interval(p).high
    assert result.nll.low == pytest.approx(2 * result.nll.value - result.nll.high)  # by Student's t
    assert result.summary["ece"] == pytest.approx(float(metrics.ece(p)), abs=1e-5)
    gap = metrics.signed_gap.interval(p)
    streamed = result.summary.interval("signed_gap")
    assert streamed.value == pytest.approx(gap.value, abs=1e-5)
    assert streamed.high - streamed.low == pytest.approx(gap.high - gap.low, rel=0.3)


def test_logits_give_the_same_as_hidden_states(batches):
    weight, parts = batches
    logits = [(hidden @ weight.T, targets) for hidden, targets in parts]
    assert str(measure_tokens(logits)) == str(measure_tokens(parts, weight=weight))
    low = [(hidden.bfloat16(), targets) for hidden, targets in parts]
    result = measure_tokens(low, weight=weight.bfloat16())
    assert result.nll.value == pytest.approx(measure_tokens(parts, weight=weight).nll.value, rel=0.02)


def test_temperature_is_that_of_the_nll(batches):
    weight, parts = batches
    fitted = calibrators.fit("Temperature", in_memory(weight, parts))
    temperature = fit_token_temperature(lambda: parts, weight=weight)
    assert temperature == pytest.approx(float(fitted.temperature), rel=1e-4)
    before, after = (measure_tokens(parts, weight=weight, temperature=t) for t in (1.0, temperature))
    assert after.nll.value < before.nll.value
    assert abs(after.summary["signed_gap"]) < abs(before.summary["signed_gap"])


def test_groups_are_positions_or_frequencies_of_the_predicted_token(batches):
    weight, parts = batches
    by_position = metrics.tables.groups(measure_tokens(parts, weight=weight, by="position").summary)
    assert set(by_position.names) == {"00000", "00001", "00002 to 00003", "00004 to 00007", "00008 to 00015"}
    counts = torch.zeros(VOCABULARY)
    counts[: VOCABULARY // 2] = torch.tensor([1000.0] + [1.0] * (VOCABULARY // 2 - 1))
    by_frequency = metrics.tables.groups(measure_tokens(parts, weight=weight, by="frequency", counts=counts).summary)
    assert set(by_frequency.names) <= {"at least 1e-1", "at least 1e-4", "never"}
    assert "never" in by_frequency.names


def test_bad_input_is_refused(batches):
    weight, parts = batches
    hidden, targets = parts[0]
    assert code_of(measure_tokens, [(hidden, targets[:, :3])], weight=weight) == "shape"
    assert code_of(measure_tokens, [(hidden, torch.full_like(targets, -100))], weight=weight) == "no_rows"
    assert code_of(measure_tokens, parts, weight=weight, by="frequency") == "no_counts"
    assert code_of(fit_token_temperature, lambda: [], weight=weight) == "no_rows"
    assert np.isfinite(fit_token_temperature(lambda: parts, weight=weight))


def test_settings_and_tokens_out_of_range_are_refused(batches):
    weight, parts = batches
    hidden, targets = parts[0]
    for counts in (torch.ones(VOCABULARY + 1), torch.zeros(VOCABULARY)):
        assert code_of(measure_tokens, parts, weight=weight, by="frequency", counts=counts) == "token_counts"
    for token in (-1, VOCABULARY):
        padded = [(hidden, targets.masked_fill(targets == -100, token))]
        assert code_of(measure_tokens, padded, weight=weight) == "token_range"
        assert code_of(fit_token_temperature, lambda padded=padded: padded, weight=weight) == "token_range"
    assert code_of(measure_tokens, [(hidden, targets.double())], weight=weight) == "token_range"


def test_excluded_tokens_do_not_change_the_temperature(batches):
    weight, parts = batches
    logits = [(hidden @ weight.T, targets) for hidden, targets in parts]
    padded = [(torch.nn.functional.pad(z, (0, 1), value=-torch.inf), targets) for z, targets in logits]
    assert fit_token_temperature(lambda: padded) == pytest.approx(fit_token_temperature(lambda: logits), rel=1e-6)
    excluded = [
        (z.masked_fill(torch.arange(VOCABULARY) == targets[targets >= 0][0], -torch.inf), targets)
        for z, targets in logits
    ]
    assert code_of(fit_token_temperature, lambda: excluded) == "not_finite"
