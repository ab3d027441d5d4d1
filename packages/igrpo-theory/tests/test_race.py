from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from race_oracle import race_law
from scipy import stats
from theory_oracles import chi_square_p_value
from wrong_samplers import clipped_law, conditioned_law, distance, top_slots_law

from igrpo_theory import capped_law, draw_expansions, expansion_probabilities, expected_expansions, fold
from igrpo_theory.expansion import Scheme
from igrpo_theory.race import calibrated_rates

WEIGHTS = [Fraction(1, 10), Fraction(1, 2), Fraction(3, 20), Fraction(1, 20), Fraction(1, 5)]
REPEATS = 100_000


def draws_of(weights: np.ndarray, budget: int, cap: int, scheme: Scheme = "capped") -> np.ndarray:
    """Counts of one stage, drawn for many questions in one call."""
    return _draws_of(tuple(weights.tolist()), budget, cap, scheme)


@cache
def _draws_of(weights: tuple[float, ...], budget: int, cap: int, scheme: Scheme) -> np.ndarray:
    keys = fold(np.arange(REPEATS, dtype=np.uint64), 5)
    question = np.repeat(np.arange(REPEATS), len(weights))
    drawn = draw_expansions(np.tile(weights, REPEATS), question, np.full(REPEATS, budget), cap, keys, scheme)
    return drawn.reshape(REPEATS, len(weights))


# The race lemma


@pytest.mark.parametrize(
    ("num_nodes", "budget", "cap"),
    [(1, 3, 2), (2, 2, 1), (2, 3, 2), (3, 3, 1), (3, 4, 2), (3, 5, 2), (3, 5, 3), (4, 4, 2), (4, 6, 3), (5, 5, 2)],
)
def test_a_race_of_stopped_clocks_is_the_one_at_a_time_draw_exactly(num_nodes: int, budget: int, cap: int) -> None:
    weights = WEIGHTS[:num_nodes]
    assert race_law(weights, budget, cap) == capped_law(weights, budget, cap)


@given(
    weights=st.lists(st.fractions(Fraction(1, 9), 9, max_denominator=9), min_size=1, max_size=3),
    budget=st.integers(1, 4),
    cap=st.integers(1, 3),
)
def test_the_race_lemma_holds_for_any_weights(weights: list[Fraction], budget: int, cap: int) -> None:
    assert race_law(weights, budget, cap) == capped_law(weights, budget, cap)


def test_the_sampler_follows_the_exact_law(alpha: float) -> None:
    draws = draws_of(np.array([float(weight) for weight in WEIGHTS]), 5, 2)
    law = capped_law(WEIGHTS, 5, 2)
    assert len(law) == 51
    assert chi_square_p_value(draws, law) > alpha


# Samplers that are wrong. Distances at equal weights would vanish by symmetry or nearly so; WEIGHTS are uneven.


def test_gumbel_top_m_over_slots_is_caught(alpha: float) -> None:
    wrong = top_slots_law(WEIGHTS, 5, 2)
    assert distance(wrong, capped_law(WEIGHTS, 5, 2)) > Fraction(1, 10)
    assert chi_square_p_value(gumbel_top_slots(5, 2), wrong) > alpha  # it is the wrong law that was meant
    assert chi_square_p_value(gumbel_top_slots(5, 2), capped_law(WEIGHTS, 5, 2)) < alpha


def test_clipping_after_the_draw_is_caught(alpha: float) -> None:
    wrong = clipped_law(WEIGHTS, 5, 2)
    assert distance(wrong, capped_law(WEIGHTS, 5, 2)) > Fraction(1, 3)
    draws = np.minimum(draws_of(np.array([float(weight) for weight in WEIGHTS]), 5, 5), 2)
    assert chi_square_p_value(draws, wrong) > alpha
    assert chi_square_p_value(draws, capped_law(WEIGHTS, 5, 2)) == 0.0  # it does not even spend the budget


def test_conditioning_on_the_cap_is_caught(alpha: float) -> None:
    wrong = conditioned_law(WEIGHTS, 5, 2)
    assert distance(wrong, capped_law(WEIGHTS, 5, 2)) > Fraction(1, 20)
    draws = draws_of(np.array([float(weight) for weight in WEIGHTS]), 5, 5)
    draws = draws[(draws <= 2).all(axis=1)]
    assert chi_square_p_value(draws, wrong) > alpha
    assert chi_square_p_value(draws, capped_law(WEIGHTS, 5, 2)) < alpha


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_gamma_that_is_off_by_a_twentieth_is_caught(factor: float, alpha: float) -> None:
    values, question = np.array([-1.0, 1.0, -0.3, 0.4, 0.8]), np.zeros(5, dtype=int)
    right = [Fraction(w) for w in expansion_probabilities(values, question, 1.0).tolist()]
    drawn = draws_of(expansion_probabilities(values, question, factor), 5, 2)
    assert (
        chi_square_p_value(draws_of(expansion_probabilities(values, question, 1.0), 5, 2), capped_law(right, 5, 2))
        > alpha
    )
    # One number a draw, the children of the best node less those of the worst, has all the power that is needed.
    law = capped_law(right, 5, 2)
    mean = sum(float(mass) * (counts[1] - counts[0]) for counts, mass in law.items())
    square = sum(float(mass) * (counts[1] - counts[0]) ** 2 for counts, mass in law.items())
    z = ((drawn[:, 1] - drawn[:, 0]).mean() - mean) / np.sqrt((square - mean**2) / REPEATS)
    assert abs(z) > stats.norm.isf(alpha / 2)


def gumbel_top_slots(budget: int, cap: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    log_weights = np.repeat(np.log([float(weight) for weight in WEIGHTS]), cap)
    best = np.argsort(-(log_weights + rng.gumbel(size=(REPEATS, len(log_weights)))), axis=1)[:, :budget] // cap
    return np.stack([(best == node).sum(axis=1) for node in range(len(WEIGHTS))], axis=1)


# Calibration


@given(num_nodes=st.integers(1, 8), budget=st.integers(1, 12), cap=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_a_calibrated_draw_is_a_capped_draw_with_other_weights(
    num_nodes: int, budget: int, cap: int, seed: int
) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.full(num_nodes, 0.5))
    question, budgets = np.zeros(num_nodes, dtype=int), np.array([budget])
    keys = fold(np.array([seed], dtype=np.uint64), 0)
    counts = draw_expansions(weights, question, budgets, cap, keys, "calibrated")
    total = min(budget, cap * num_nodes)
    assert counts.sum() == total
    assert (counts <= cap).all()
    if cap < budget:
        sure = weights * total >= cap * (1 + 1e-9)
        assert (counts[sure] == cap).all()  # shares past the cap are clipped to it, never lost


def test_calibration_brings_the_means_to_the_shares_as_the_stage_grows() -> None:
    base = np.array([0.6, 0.8, 1.0, 1.2, 1.4])
    errors = {}
    for copies in (1, 4, 16):
        weights = np.tile(base, copies) / copies
        question, budget = np.zeros(len(weights), dtype=int), np.array([len(weights)])
        calibrated = expected_expansions(weights, question, budget, 2, "calibrated")[:5]
        capped = expected_expansions(weights, question, budget, 2)[:5]
        errors[copies] = (np.abs(calibrated - base).max(), np.abs(capped - base).max())
    assert errors[16][0] < 0.3 * errors[4][0] < 0.3 * 0.3 * errors[1][0] * 1.2  # like 1 / nodes
    assert errors[16][1] > 0.05  # without calibration the bias stays
    assert errors[1][0] < errors[1][1] / 2


def test_calibrated_rates_are_infinite_from_the_cap_on() -> None:
    rates = calibrated_rates(np.array([0.5, 0.25, 0.25, 1.0]), np.array([0, 0, 0, 1]), np.array([4, 2]), 2)
    assert np.isinf(rates).tolist() == [True, False, False, True]
