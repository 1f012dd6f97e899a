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
        "about 85%",
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
    ],
)
def test_last_stated_confidence_of_a_response(response, expected):
    assert find_stated_confidence(response) == expected
