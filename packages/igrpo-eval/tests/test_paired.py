"""Paired tests against counting by hand, their level, and that exact and drawn agree."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

halves = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])


@given(st.lists(halves, min_size=1, max_size=8))
def test_the_exact_p_value_is_the_share_of_sign_patterns_at_least_as_far(values):
    from igrpo_eval.paired import paired_difference

    differences = np.array(values)
    found = paired_difference([differences], resamples=1)
    sums = [abs(float(np.dot(signs, differences))) for signs in product((-1, 1), repeat=len(values))]
    assert found.method == "exact"
    assert found.p_value == pytest.approx(np.mean([total >= abs(differences.sum()) - 1e-9 for total in sums]))
    assert found.num_differing == np.count_nonzero(differences)


def test_drawn_patterns_agree_with_all_of_them(monkeypatch):
    from igrpo_eval import paired

    # 14 differences: all patterns, then drawn ones. The standard error is below 0.0016; 8 of them chance 1e-15.
    values = np.array([1.0] * 10 + [-1.0] * 3 + [0.5] + [0.0] * 26)
    exact = paired.paired_difference([values], resamples=1)
    monkeypatch.setattr(paired, "EXACT", 0)
    drawn = paired.paired_difference([values], resamples=1)
    assert (exact.method, drawn.method) == ("exact", "monte carlo")
    assert drawn.p_value == pytest.approx(exact.p_value, abs=0.013)
    assert drawn == paired.paired_difference([values], resamples=1)


def test_equal_runs_have_no_difference_and_certainty_about_nothing():
    from igrpo_eval.paired import paired_difference

    found = paired_difference([np.zeros(30)], resamples=10)
    assert (found.p_value, found.difference, found.num_differing) == (1.0, (0.0, 0.0, 0.0), 0)


def test_a_large_difference_is_never_certain_and_the_order_of_runs_only_turns_it():
    from igrpo_eval.paired import PATTERNS, paired_difference

    values = np.repeat([0.0, 1.0], 2500)
    forward, backward = (paired_difference([sign * values], resamples=200) for sign in (1, -1))
    assert forward.p_value == backward.p_value == 1 / (1 + PATTERNS)
    assert forward.difference.mean == -backward.difference.mean == 0.5


def test_the_test_keeps_its_level():
    from igrpo_eval.paired import paired_difference

    # Runs that are alike: a p-value up to 0.1 in at most a tenth of 2000 comparisons. Chance of more than 260: 1e-5.
    rng = np.random.default_rng(5)
    both = rng.integers(0, 2, size=(2, 2000, 12)).astype(np.float64)
    low = sum(paired_difference([values], resamples=1).p_value <= 0.1 for values in both[1] - both[0])
    assert 0 < low <= 260


def test_sets_are_weighted_as_told():
    from igrpo_eval.paired import paired_difference

    parts = [np.array([1.0, 0.0]), np.array([-1.0, -1.0, -1.0, 0.0])]
    found = paired_difference(parts, np.array([0.8, 0.2]), resamples=10)
    assert found.difference.mean == pytest.approx(0.8 * 0.5 - 0.2 * 0.75)
    # Sizes 0.4 and three times 0.05: no pattern brings the sum nearer to 0 than the observed one.
    assert (found.method, found.num_questions, found.num_differing) == ("exact", 6, 4)
    assert found.p_value == 1.0
