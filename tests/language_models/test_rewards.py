"""Rewards: honest confidences maximize them, and they are called as TRL calls rewards."""

import numpy as np
import pytest
from refusals import code_of

from calibrant.language_models import confidence_reward, score_reward

SCORES = ["brier", "log", "spherical"]
GRID = np.linspace(0, 1, 1001)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("truth", [0.01, 0.2, 0.5, 0.83, 0.99])
def test_an_honest_confidence_maximizes_the_reward(score, truth):
    expected = [truth * score_reward(c, True, score) + (1 - truth) * score_reward(c, False, score) for c in GRID]
    best = GRID[np.isclose(expected, max(expected), rtol=0, atol=1e-12)]
    assert np.abs(best - truth).min() < 1e-9
    if score != "log":  # which is constant beyond its floor
        assert len(best) == 1
    assert min(expected) >= 0
    assert max(expected) <= 1


@pytest.mark.parametrize("score", SCORES)
def test_rewards_lie_between_0_and_1_and_reach_both(score):
    values = [score_reward(c, is_correct, score) for c in GRID for is_correct in (True, False)]
    assert min(values) == pytest.approx(0, abs=1e-9)
    assert max(values) == pytest.approx(1, abs=0.003)  # the logarithmic score ends at 99 %


def test_a_better_answer_always_pays():
    """With an honest confidence, the expected reward of the Brier score increases with the probability to be right."""
    reward = confidence_reward(lambda text, answer: text.startswith(answer))

    def expected(truth):
        text = f"x\nConfidence: {truth}"
        right, wrong = reward([text, text], answer=["x", "y"])
        return truth * right + (1 - truth) * wrong

    values = [expected(q) for q in np.linspace(0, 1, 21).round(2)]
    assert (np.diff(values) > 0).all()


def test_completions_may_be_conversations_and_columns_are_passed_by_name():
    reward = confidence_reward(lambda text, answer: answer in text, accuracy_share=0.0)
    chat = [[{"role": "assistant", "content": "Paris. Confidence: 100%"}], [{"role": "assistant", "content": "Rome"}]]
    prompts = ["Capital of France?"] * 2
    values = reward(
        prompts=prompts,
        completions=chat,
        completion_ids=[[1], [2]],
        trainer_state=object(),
        log_extra=print,
        log_metric=print,
        answer=["Paris", "Paris"],
    )
    assert values == [1.0, 0.0]
    assert [type(value) for value in values] == [float, float]
    assert reward.__name__ == "brier_confidence_reward"


def test_a_credit_earns_the_mean_of_a_right_and_a_wrong_answer():
    texts = [f"answer\nConfidence: {c}%" for c in (0, 25, 50, 75, 100)]
    of_credit = {credit: confidence_reward(lambda text, credit=credit: credit)(texts) for credit in (0.0, 0.25, 1.0)}
    assert of_credit[0.25] == pytest.approx(
        [r / 4 + 3 * w / 4 for r, w in zip(of_credit[1], of_credit[0], strict=True)]
    )
    assert int(np.argmax(of_credit[0.25])) == 1
    half = confidence_reward(lambda text: np.array(0.5))(texts)
    assert half == confidence_reward(lambda text: 0.5)(texts)
    assert code_of(confidence_reward(lambda text: "no"), texts) == "grade"
    assert code_of(confidence_reward(lambda text: 3.0), texts) == "grade"


@pytest.mark.parametrize(
    "form", ["<answer>x</answer><confidence>{}</confidence>", '{{"answer": "x", "confidence": {}}}', "Probability: {}"]
)
def test_forms_of_papers_and_prompts_are_rewarded(form):
    reward = confidence_reward(lambda text: "x" in text or "Prob" in text)
    assert reward([form.format(0.9), form.format(0.1)]) == reward(["x\nConfidence: 90%", "x\nConfidence: 10%"])


def test_a_batch_without_readable_confidences_warns_once():
    reward = confidence_reward(lambda text: True)
    with pytest.warns(UserWarning, match="readable confidence"):
        assert reward(["a", "b"]) == [0.0, 0.0]
    assert reward(["a", "b"]) == [0.0, 0.0]
