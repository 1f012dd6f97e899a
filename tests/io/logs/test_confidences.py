import time

import pytest
from refusals import code_of

from calibrant import InputError
from calibrant.language_models import find_stated_confidence, parse_confidence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("85%", 0.85), ("85 %", 0.85), ("85.5%", 0.855), ("85 percent", 0.85), ("0.85", 0.85), (".85", 0.85),
        ("0,85", 0.85), ("**0.85**", 0.85), ("8/10", 0.8), ("8 out of 10", 0.8), ("17/20.", 0.85), ("0%", 0.0),
        ("100%", 1.0), ("1", 1.0), (0.3, 0.3), (1, 1.0), ("Highly Likely.", 0.9), ("almost certain", 0.95),
        ("about even", 0.5), ("8.5e-01", 0.85), ("1e-05", 1e-5), ("85\\%", 0.85),
        ("50/50", 0.5), ("40/60", 0.4), ("60/40", 0.6), ("100/0", 1.0), ("0.4/0.6", 0.4), ("50%/50%", 0.5),
        ("50/100", 0.5), ("5/5", 1.0), ("50 out of 50", 1.0), ("7 of 10", 0.7), ("85/100 (high)", 0.85),
        ("about 85%", 0.85), ("~85%", 0.85), ("85% (fairly sure)", 0.85), ("85% (3 sources)", 0.85), ("85% sure", 0.85),
        ("**85%**.", 0.85), ("８５％", 0.85), ("85 Prozent", 0.85), ("85 pour cent", 0.85), ("百分之85", 0.85),
        ("0.9, from memory", 0.9), ("85% - I am sure", 0.85), ("almost certain (95%)", 0.95), ("$0.9$", 0.9),
    ],
)  # fmt: skip
def test_readable_confidences(text, expected):
    assert parse_confidence(text) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "80-90%",
        ">90%",
        "at least 85%",
        "90% or more",
        "90%+",
        "85% or 90%",
        "80–90 %",
        "50 of",
        "85",
        "683",
        "-5%",
        "120%",
        "11/10",
        "8/0",
        "nan",
        "inf",
        "sure",
        True,
        None,
        10**400,
    ],
)
def test_unreadable_confidences(text):
    assert parse_confidence(text) is None


def test_booleans_are_not_the_numbers_that_they_equal():
    assert parse_confidence(True) is parse_confidence(False) is None
    assert (parse_confidence(1), parse_confidence(0)) == (1.0, 0.0)


def test_percent_applies_to_plain_numbers_only():
    stated = ["85", 85, "1", "85%", "8/10", "likely", "101"]
    assert [parse_confidence(text, percent=True) for text in stated] == [0.85, 0.85, 0.01, 0.85, 0.8, 0.7, None]


def test_tables_of_words():
    assert parse_confidence("almost certainly", words="kent") == 0.93
    assert parse_confidence("very likely", words="icd203") == 0.875
    assert parse_confidence("very likely", words="kent") is None
    assert parse_confidence("Pretty sure!", words={"pretty sure": 0.75}) == 0.75
    assert code_of(parse_confidence, "pretty sure", words={"pretty sure": 75.0}) == "word_probability"
    with pytest.raises(InputError) as error:
        parse_confidence("likely", words="other")
    assert error.value.code == "unknown_words"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("Confidence: 85%", "85%"),
        ("Answer: 4\n**Confidence:** 85%\n", "85%"),
        ("confidence score = 0.7", "0.7"),
        ("Confidence: 10%\nOn reflection.\nConfidence level: 90%", "90%"),
        ("I am confident: it is 4", None),
        ("_Confidence_: 85%\nOverconfidence: none", "85%"),
        ("<answer>P</answer><confidence>0.9</confidence>", "0.9"),
        ("<confidence>\n0.9\n</confidence>", "0.9"),
        ('{"answer": "Paris", "confidence": 0.9}', "0.9"),
        ('{"confidence": "85%", "answer": "P, 3"}', "85%"),
        ('```json\n{"answer": "x",\n "confidence_score": 0.85\n}\n```', "0.85"),
        ("{'confidence': 0.9}", "0.9"),
        ("Guess: x\nProbability: 0.9", "0.9"),
        ("P(True) = 0.7", "0.7"),
        ("Confidence:\n85%", "85%"),
        ("## Confidence\n\n85%", "85%"),
        ("| Confidence | 85% |", "85%"),
        ("Confidence - 85%", "85%"),
        ("My confidence is 85%.", "85%."),
        ("I am about 85% sure.", "85%"),
        ("with 85% confidence", "85%"),
        ("a 95% confidence interval is (1, 2)", None),
        ("Konfidenz: 85 %", "85 %"),
        ("Konfidenzwert: 85 %", "85 %"),
        ("Niveau de confiance : 85%", "85%"),
        ("Nivel de confianza: 85%", "85%"),
        ("置信度：８５％", "85%"),
        ("我的置信度为85%", "85%"),
        ("Confidence (0-100): 85", "85%"),
        ("Confidence (0-1): 0.85", "0.85"),
        ("Confidence: 85%\nConfidence: see above", "85%"),
        ("Confidence: 90%\nProbability: 1/6", "90%"),
        ("Probability: 1/6\nConfidence: 90%", "90%"),
        ("Confidence: very high", "very high"),
        ("Overconfidence: 90%", None),
    ],
)
def test_last_stated_confidence_of_a_response(response, expected):
    assert find_stated_confidence(response) == expected


def test_long_responses_take_seconds():
    for text in ("confidence ", '"confidence":', "confidence (", "<confidence>", "85% ", '"', "confidence:***"):
        response = text * (100_000 // len(text))
        start = time.monotonic()
        find_stated_confidence(response)
        parse_confidence(response)
        assert time.monotonic() - start < 10
