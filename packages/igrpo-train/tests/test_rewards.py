"""test_rewards: exact match on its hard cases, F1, truncated leaves and penalties."""

import re
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from igrpo_train.rewards import exact_match, f1, normalise_answer, path_rewards, turn_penalties

WORDS = st.text(st.sampled_from(" abtheAN.'-\t,ü1"), max_size=12)

HARD_CASES = [
    # prediction, accepted answers, exact match
    ("3.14", ["314"], 1.0),  # punctuation goes without a trace, as in SQuAD and Search-R1
    ("3.14", ["3.15"], 0.0),
    ("Jay-Z", ["jay z"], 0.0),  # a hyphen is deleted, not replaced by a space
    ("Jay-Z", ["jayz"], 1.0),
    ("a  b", ["b"], 1.0),  # the article goes, then the space
    ("The Beatles", ["beatles"], 1.0),
    ("the the", ["The The"], 1.0),
    ("Theodore", ["odore"], 0.0),  # articles are whole words
    ("a-ha", ["aha"], 1.0),  # punctuation first: what is left holds no article
    ("an apple a day", ["apple day"], 1.0),
    ("U.S.A.", ["usa"], 1.0),
    ("O'Brien", ["obrien"], 1.0),
    ("O\u2019Brien", ["obrien"], 0.0),  # only ASCII punctuation is deleted
    ("5\u20136", ["56"], 0.0),
    ("Beyonce\u0301", ["Beyonc\u00e9"], 0.0),  # no Unicode normalisation
    ("\u00c5ngstr\u00f6m", ["\u00e5ngstr\u00f6m"], 1.0),
    ("\u0130stanbul", ["istanbul"], 0.0),  # lower() leaves a combining dot
    ("stra\u00dfe", ["strasse"], 0.0),  # lower(), not casefold()
    ("1,000", ["1000"], 1.0),
    ("1000.0", ["1000"], 0.0),
    ("-5", ["5"], 1.0),
    ("seven", ["7"], 0.0),
    ("$5", ["5"], 1.0),
    ("\u20ac5", ["5"], 0.0),
    ("new\u00a0york", ["New York"], 1.0),  # a no-break space is white space
    ("new\nyork ", ["New York"], 1.0),
    ("snake_case", ["snakecase"], 1.0),  # the underscore is punctuation
    ("Obama", ["Barack Obama", "Obama"], 1.0),  # any accepted answer counts
    ("Barack", ["Barack Obama", "Obama"], 0.0),
    ("yes", ["no", "yes"], 1.0),
    ("", ["x"], 0.0),
    ("", ["A"], 1.0),  # SQuAD's quirk: both are empty once articles are gone
    ("...", ["x"], 0.0),
    (None, ["A"], 0.0),
    ("x", [], 0.0),
]


@pytest.mark.parametrize(("prediction", "answers", "expected"), HARD_CASES)
def test_exact_match_decides_hard_cases_as_squad_does(
    prediction: str | None, answers: list[str], expected: float
) -> None:
    assert exact_match(prediction, answers) == expected


def slow_normalise(text: str) -> str:
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(word for word in re.split(r"\s+", kept) if word and word not in ("a", "an", "the"))


@given(WORDS)
def test_normalisation_equals_its_slow_twin_and_is_idempotent(text: str) -> None:
    assert normalise_answer(text) == slow_normalise(text)
    assert normalise_answer(normalise_answer(text)) == normalise_answer(text)


@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_f1_lies_between_exact_match_and_one(prediction: str, answers: list[str]) -> None:
    assert exact_match(prediction, answers) <= f1(prediction, answers) <= 1.0


@given(WORDS, WORDS)
def test_f1_is_symmetric_in_prediction_and_answer(left: str, right: str) -> None:
    assert f1(left, [right]) == f1(right, [left])


@pytest.mark.parametrize(
    ("prediction", "answers", "expected"),
    [
        ("Barack Obama", ["Barack Hussein Obama"], 0.8),
        ("b b a c", ["b c c"], 4 / 6),  # multisets: b and c once each of 3 and 3 words
        ("x", ["y", "x z"], 2 / 3),
        ("", ["the"], 1.0),
        ("", ["x"], 0.0),
        (None, ["x"], 0.0),
        ("x", [], 0.0),
    ],
)
def test_f1_counts_overlap_of_words_as_multisets(prediction: str | None, answers: list[str], expected: float) -> None:
    assert f1(prediction, answers) == pytest.approx(expected, abs=1e-12)


GRADES = np.array([1.0, 0.0, 1.0, 1.0])
SCORES = np.array([np.nan, 0.9, 0.4, 0.5])
TRUNCATED = np.array([False, False, True, True])


@pytest.mark.parametrize(
    ("rule", "progress", "expected"),
    [
        ("rescaled", 0.0, [1.0, 0.0, 0.2, 0.25]),
        ("rescaled", 149 / 200, [1.0, 0.0, 0.2, 0.25]),  # the official switch comes after the 150th of 200 steps
        ("rescaled", 150 / 200, [1.0, 0.0, 0.4, 0.5]),
        ("score", 0.0, [1.0, 0.0, 0.4, 0.5]),
        ("zero", 0.9, [1.0, 0.0, 0.0, 0.0]),
        ("threshold", 0.0, [1.0, 0.0, 0.2, 0.25]),
        ("threshold", 0.9, [1.0, 0.0, 0.0, 1.0]),
        ("drop", 0.0, [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_truncated_leaves_are_worth_what_their_rule_says(rule, progress, expected) -> None:
    rewards, keep = path_rewards(GRADES, SCORES, TRUNCATED, rule=rule, progress=progress, switch_fraction=0.75)
    np.testing.assert_array_equal(rewards, expected)
    np.testing.assert_array_equal(keep, ~TRUNCATED if rule == "drop" else np.ones(4, bool))


def test_an_unscored_truncated_leaf_is_a_defect_of_the_caller() -> None:
    unscored = np.array([np.nan])
    with pytest.raises(AssertionError, match="a truncated leaf was not scored"):
        path_rewards(np.zeros(1), unscored, np.ones(1, bool), rule="score", progress=0.0, switch_fraction=0.75)
    kept = path_rewards(np.zeros(1), unscored, np.ones(1, bool), rule="zero", progress=0.0, switch_fraction=0.75)
    assert kept.rewards.tolist() == [0.0]


def test_only_invalid_turns_are_charged() -> None:
    valid = np.array([[True, False], [True, True]])
    np.testing.assert_array_equal(turn_penalties(valid, 0.01), [[0.0, -0.01], [0.0, 0.0]])
