import tracemalloc
from fractions import Fraction
from inspect import unwrap
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from theory_oracles import chi_square_p_value, multinomial_law, sequential_law
from wrong_samplers import conditioned_law

from igrpo_theory import (
    GrowthRule,
    cap_at_step,
    draw_expansions,
    expansion_probabilities,
    expected_expansions,
    fold,
    stage_budget,
)
from igrpo_theory.expansion import BudgetMode, Scheme, check_scheme

WEIGHTS = [Fraction(1, 10), Fraction(1, 2), Fraction(3, 20), Fraction(1, 20), Fraction(1, 5)]


def keys_of(num_questions: int, seed: int = 0) -> np.ndarray:
    return fold(np.arange(num_questions, dtype=np.uint64), seed)


def draws_of(
    weights: list[Fraction], budget: int, cap: int, scheme: Scheme = "capped", repeats: int = 60_000
) -> np.ndarray:
    """Counts of the same stage, drawn for many questions in one call."""
    probabilities = np.tile(np.array([float(weight) for weight in weights]), repeats)
    question = np.repeat(np.arange(repeats), len(weights))
    counts = draw_expansions(probabilities, question, np.full(repeats, budget), cap, keys_of(repeats), scheme)
    return counts.reshape(repeats, len(weights))


# The law of the capped draw


@pytest.mark.parametrize(
    ("num_nodes", "budget", "cap"),
    [
        (5, 5, 2),  # the paper's stage
        (5, 7, 2),
        (4, 6, 3),
        (3, 7, 5),  # arrivals come in three blocks
        (2, 9, 8),
        (4, 3, 1),
        (5, 5, 5),  # no cap
        (3, 4, 100),
        (1, 3, 3),
    ],
)
def test_counts_follow_the_one_at_a_time_law(num_nodes: int, budget: int, cap: int, alpha: float) -> None:
    draws = draws_of(WEIGHTS[:num_nodes], budget, cap)
    assert (draws.sum(axis=1) == min(budget, cap * num_nodes)).all()
    assert chi_square_p_value(draws, sequential_law(WEIGHTS[:num_nodes], budget, cap)) > alpha


def test_counts_follow_the_law_for_very_unequal_weights(alpha: float) -> None:
    weights = [Fraction(9_900, 10_000), Fraction(99, 10_000), Fraction(1, 10_000)]
    assert chi_square_p_value(draws_of(weights, 5, 2), sequential_law(weights, 5, 2)) > alpha / 2
    assert chi_square_p_value(draws_of(weights, 7, 5), sequential_law(weights, 7, 5)) > alpha / 2


def test_the_chi_square_would_notice_a_near_miss(alpha: float) -> None:
    assert chi_square_p_value(draws_of(WEIGHTS, 5, 2), conditioned_law(WEIGHTS, 5, 2)) < alpha
    lighter = [weight + Fraction(1, 50) for weight in WEIGHTS]
    assert chi_square_p_value(draws_of(WEIGHTS, 5, 2), sequential_law(lighter, 5, 2)) < alpha


@pytest.mark.parametrize("cap", [4, 5, 50])
def test_a_cap_of_at_least_the_budget_is_exactly_the_multinomial(cap: int) -> None:
    assert sequential_law(WEIGHTS, 4, cap) == multinomial_law(WEIGHTS, 4)


def test_uncapped_means_are_budget_times_probability(alpha: float) -> None:
    draws = draws_of(WEIGHTS, 50, 50, repeats=20_000)
    for node, weight in enumerate(WEIGHTS):
        p = float(weight)
        spread = np.sqrt(50 * p * (1 - p) / 20_000)
        assert abs(draws[:, node].mean() - 50 * p) < stats.norm.isf(alpha / 2 / len(WEIGHTS)) * spread


# What the cap forces


@given(num_nodes=st.integers(1, 6), cap=st.integers(1, 4), spare=st.integers(0, 9), seed=st.integers(0, 1000))
def test_few_nodes_all_get_the_cap(num_nodes: int, cap: int, spare: int, seed: int) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.full(num_nodes, 0.1))
    counts = draw_expansions(
        weights, np.zeros(num_nodes, dtype=int), np.array([num_nodes * cap + spare]), cap, keys_of(1)
    )
    assert counts.tolist() == [cap] * num_nodes


@given(num_nodes=st.integers(1, 9), mode=st.sampled_from(["full", "mid", "low"]), seed=st.integers(0, 1000))
def test_a_cap_of_one_gives_every_node_one_child_in_any_budget_mode(
    num_nodes: int, mode: BudgetMode, seed: int
) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.full(num_nodes, 0.1))
    budget = stage_budget(mode, 9, np.array([num_nodes]))
    counts = draw_expansions(weights, np.zeros(num_nodes, dtype=int), budget, 1, keys_of(1, seed))
    assert counts.tolist() == [1] * num_nodes


def test_nodes_of_no_weight_come_last_and_in_turn_when_the_cap_forces_them(alpha: float) -> None:
    probabilities = np.tile([1.0, 0.0, 0.0], 2000)
    question = np.repeat(np.arange(2000), 3)
    counts = draw_expansions(probabilities, question, np.full(2000, 3), 2, keys_of(2000)).reshape(2000, 3)
    assert (counts[:, 0] == 2).all()
    assert abs(counts[:, 1].mean() - 0.5) < stats.norm.isf(alpha / 2) * 0.5 / np.sqrt(2000)
    free = draw_expansions(probabilities, question, np.full(2000, 3), 3, keys_of(2000)).reshape(2000, 3)
    assert (free == [3, 0, 0]).all()


# Systematic resampling; `test_resampling` has the other schemes without a cap


@given(num_nodes=st.integers(1, 9), budget=st.integers(1, 60), seed=st.integers(0, 10**6))
def test_systematic_counts_are_the_share_rounded_down_or_up(num_nodes: int, budget: int, seed: int) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.ones(num_nodes))
    question = np.zeros(num_nodes, dtype=int)
    counts = draw_expansions(weights, question, np.array([budget]), budget, keys_of(1, seed), "systematic")
    share = budget * weights
    assert counts.sum() == budget
    assert (counts >= np.floor(share - 1e-9)).all()
    assert (counts <= np.ceil(share + 1e-9)).all()


def test_systematic_counts_are_unbiased_and_the_order_of_nodes_is_random(alpha: float) -> None:
    draws = draws_of(WEIGHTS, 3, 3, "systematic")
    for node, weight in enumerate(WEIGHTS):
        share = 3 * float(weight)
        spread = np.sqrt((share % 1) * (1 - share % 1) / len(draws))
        assert abs(draws[:, node].mean() - share) < stats.norm.isf(alpha / 2 / len(WEIGHTS)) * spread
    # Nodes 2 and 3 have shares .45 and .15: side by side in a fixed order, they could never both be drawn.
    assert ((draws[:, 2] > 0) & (draws[:, 3] > 0)).any()


@pytest.mark.parametrize("scheme", ["systematic", "residual", "stratified"])
def test_an_uncapped_scheme_with_a_cap_is_refused(scheme: Scheme) -> None:
    message = f"{scheme} resampling takes no cap below the budget, got cap 2 and budget 5: set cap = budget"
    with pytest.raises(ValueError, match=message):
        draw_expansions(np.ones(3) / 3, np.zeros(3, dtype=int), np.array([5]), 2, keys_of(1), scheme)
    with pytest.raises(ValueError, match=message):
        GrowthRule(budget=5, cap=2, scheme=scheme)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="scheme must be one of capped, systematic, .*, got greedy: choose one of"):
        check_scheme("greedy", 5, 5)


# Batches


@st.composite
def stages(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, questions, budgets and keys of a stage; some questions have no node left."""
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    question = np.repeat(np.arange(len(sizes)), sizes)
    values = rng.normal(size=len(question)) * draw(st.sampled_from([0.0, 1.0, 30.0]))
    budget = rng.integers(1, 9, len(sizes))
    return expansion_probabilities(values, question, 1.0), question, budget, keys_of(len(sizes), int(rng.integers(99)))


@given(stage=stages(), cap=st.integers(1, 9), scheme=st.sampled_from(get_args(Scheme)))
def test_a_question_alone_draws_the_same_to_the_bit(
    stage: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], cap: int, scheme: Scheme
) -> None:
    probabilities, question, budget, keys = stage
    cap = cap if scheme in ("capped", "calibrated") else 9
    counts = draw_expansions(probabilities, question, budget, cap, keys, scheme)
    total = np.bincount(question, weights=counts, minlength=len(budget))
    active = np.bincount(question, minlength=len(budget))
    assert total.tolist() == np.where(active > 0, np.minimum(budget, cap * active), 0).tolist()
    assert (counts >= 0).all()
    assert (counts <= cap).all()
    for slot in range(len(budget)):
        mine = question == slot
        alone = draw_expansions(
            probabilities[mine], np.zeros(active[slot], dtype=int), budget[[slot]], cap, keys[[slot]], scheme
        )
        assert alone.tolist() == counts[mine].tolist()


@given(stage=stages(), cap=st.integers(1, 9), seed=st.integers(0, 1000))
def test_shuffling_questions_and_interleaving_their_nodes_changes_nothing(
    stage: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], cap: int, seed: int
) -> None:
    probabilities, question, budget, keys = stage
    counts = draw_expansions(probabilities, question, budget, cap, keys)
    rng = np.random.default_rng(seed)
    new_slot = rng.permutation(len(budget))
    old_slot = np.argsort(new_slot)
    shuffled = rng.permutation(question)  # which question each place belongs to; nodes keep their order inside it
    source = np.empty(len(question), dtype=int)
    source[np.argsort(shuffled, kind="stable")] = np.arange(len(question))
    moved = draw_expansions(probabilities[source], new_slot[shuffled], budget[old_slot], cap, keys[old_slot])
    assert moved.tolist() == counts[source].tolist()


# Means


@given(stage=stages(), cap=st.integers(1, 9), scheme=st.sampled_from(get_args(Scheme)))
def test_expected_expansions_add_up_and_stay_below_the_cap(
    stage: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], cap: int, scheme: Scheme
) -> None:
    probabilities, question, budget, _ = stage
    cap = cap if scheme in ("capped", "calibrated") else 9
    means = expected_expansions(probabilities, question, budget, cap, scheme)
    active = np.bincount(question, minlength=len(budget))
    total = np.where(active > 0, np.minimum(budget, cap * active), 0)
    assert np.allclose(np.bincount(question, weights=means, minlength=len(budget)), total, rtol=1e-9, atol=1e-9)
    assert (means >= 0).all()
    assert (means <= cap + 1e-9).all()
    for slot in range(len(budget)):
        mine = np.flatnonzero(question == slot)
        rising = means[mine[np.argsort(probabilities[mine], kind="stable")]]
        assert (np.diff(rising) > -1e-9).all()  # never fewer for a higher probability


@pytest.mark.parametrize("scheme", get_args(Scheme))
@pytest.mark.parametrize(("num_nodes", "budget"), [(5, 5), (4, 7), (2, 5)])
def test_draws_have_the_expected_means(scheme: Scheme, num_nodes: int, budget: int, alpha: float) -> None:
    cap = 3 if scheme in ("capped", "calibrated") else budget
    draws = draws_of(WEIGHTS[:num_nodes], budget, cap, scheme)
    weights = np.array([float(weight) for weight in WEIGHTS[:num_nodes]])
    means = expected_expansions(weights, np.zeros(num_nodes, dtype=int), np.array([budget]), cap, scheme)
    spread = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    within = stats.norm.isf(alpha / 2 / num_nodes) * spread + 1e-9
    assert (np.abs(draws.mean(axis=0) - means) <= within).all()


# Size; speed is in benchmarks/


@pytest.mark.parametrize(("cap", "scheme"), [(1, "capped"), (2, "capped"), (10**5, "capped"), (10**5, "systematic")])
def test_a_stage_of_a_hundred_thousand_children_spends_its_budget_within_the_cap(cap: int, scheme: Scheme) -> None:
    budget = 10**5
    probabilities = np.random.default_rng(0).dirichlet(np.ones(budget))
    counts = draw_expansions(probabilities, np.zeros(budget, dtype=int), np.array([budget]), cap, keys_of(1), scheme)
    assert counts.sum() == budget
    assert counts.max() <= cap


def test_a_large_cap_below_the_budget_needs_memory_linear_in_the_budget() -> None:
    budget, cap, num_nodes = 10**5, 5 * 10**4, 1000
    probabilities = np.random.default_rng(0).dirichlet(np.full(num_nodes, 0.05))
    tracemalloc.start()
    counts = draw_expansions(probabilities, np.zeros(num_nodes, dtype=int), np.array([budget]), cap, keys_of(1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts.sum() == budget
    assert peak < 60e6  # one clock for each of cap * nodes arrivals would be 400 MB


# Probabilities, budgets, caps


def test_probabilities_by_hand() -> None:
    values = np.array([0.9, 0.5, 0.1])
    question = np.zeros(3, dtype=int)
    assert expansion_probabilities(values, question, 1.0).round(3).tolist() == [0.472, 0.316, 0.212]
    assert expansion_probabilities(values, question, 5.0).round(3).tolist() == [0.867, 0.117, 0.016]
    assert expansion_probabilities(values, question, 0.0).tolist() == [1 / 3] * 3


@given(stage=stages(), gamma=st.floats(0, 50), shift=st.floats(-1e3, 1e3))
def test_probabilities_sum_to_one_and_ignore_a_shift_of_a_question(
    stage: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], gamma: float, shift: float
) -> None:
    weights, question, budget, _ = stage
    values = np.log(np.maximum(weights, 1e-300))
    probabilities = expansion_probabilities(values, question, gamma)
    sums = np.bincount(question, weights=probabilities, minlength=len(budget))
    assert np.allclose(sums[np.unique(question)], 1, rtol=0, atol=1e-12)
    moved = expansion_probabilities(values + np.where(question == 0, shift, 0.0), question, gamma)
    assert np.allclose(moved, probabilities, rtol=0, atol=1e-9)


def test_a_huge_gamma_is_the_greedy_choice() -> None:
    for gamma in (1e4, 1e300, 1.7e308):
        probabilities = expansion_probabilities(np.array([-9.0, 1.0, 1.0, 0.5]), np.zeros(4, dtype=int), gamma)
        assert probabilities.tolist() == [0.0, 0.5, 0.5, 0.0]
        counts = draw_expansions(probabilities, np.zeros(4, dtype=int), np.array([5]), 2, keys_of(1))
        assert counts.tolist()[1:3] == [2, 2]


def test_gaps_beyond_the_range_of_floats_keep_their_limits() -> None:
    values, question = np.array([1e308, -1e308]), np.array([0, 0])
    assert expansion_probabilities(values, question, 0.0).tolist() == [0.5, 0.5]
    assert expansion_probabilities(values, question, 1.0).tolist() == [1.0, 0.0]
    small = expansion_probabilities(values, question, 1e-308)
    assert small == pytest.approx(np.exp([0.0, -2.0]) / (1 + np.exp(-2.0)), rel=1e-12)


def test_huge_values_do_not_overflow() -> None:
    probabilities = expansion_probabilities(np.array([1e6, 1e6 - 1, -1e6]), np.zeros(3, dtype=int), 1.0)
    assert probabilities.round(4).tolist() == [0.7311, 0.2689, 0.0]


def test_budgets_modes_and_decays_without_meaning_are_refused() -> None:
    with pytest.raises(ValueError, match="budget must be at least 1, got 0: a stage draws at least one child"):
        stage_budget("low", 0, np.array([2]))
    with pytest.raises(ValueError, match="mode must be one of full, mid, low, got half: choose one of them"):
        unwrap(stage_budget)("half", 5, np.array([2]))
    with pytest.raises(ValueError, match="cap must be at least 1, got 0"):
        cap_at_step(0, 10, 3)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        cap_at_step(2, 10, -1)
    with pytest.raises(ValueError, match="decay_steps must be at least 0, got -5"):
        cap_at_step(2, -5, 1)


def test_nothing_is_drawn_where_nothing_is_active() -> None:
    none, nobody = np.zeros(0), np.zeros(0, dtype=int)
    assert expansion_probabilities(none, nobody, 1.0).tolist() == []
    for scheme in get_args(Scheme):
        # A large budget is drawn another way than a small one.
        budget = np.array([5, 5000])
        assert draw_expansions(none, nobody, budget, 5000, keys_of(2), scheme).tolist() == []
        assert expected_expansions(none, nobody, budget, 5000, scheme).tolist() == []
        alone = draw_expansions(np.array([1.0]), np.array([1]), budget, 5000, keys_of(2), scheme)
        assert alone.tolist() == [5000]


def test_the_stage_budget_of_each_mode() -> None:
    active = np.array([0, 1, 2, 5])
    assert stage_budget("full", 5, active).tolist() == [0, 5, 5, 5]
    assert stage_budget("mid", 5, active).tolist() == [0, 3, 3, 5]
    assert stage_budget("low", 5, active).tolist() == [0, 1, 2, 5]


def test_the_cap_decays_to_one() -> None:
    assert [cap_at_step(4, 50, step) for step in (0, 49, 50, 100, 150, 1000)] == [4, 4, 3, 2, 1, 1]
    assert cap_at_step(4, 0, 1000) == 4


# Errors


@pytest.mark.parametrize("gamma", [float("nan"), float("inf"), -0.5])
def test_a_gamma_without_meaning_is_refused(gamma: float) -> None:
    with pytest.raises(ValueError, match=f"gamma must be finite and at least 0, got {gamma}: a negative tilt"):
        expansion_probabilities(np.ones(2), np.zeros(2, dtype=int), gamma)


def test_a_nan_value_is_refused_with_its_place() -> None:
    message = "values must be finite, got nan for active node 2 of question 1: check the scorer"
    with pytest.raises(ValueError, match=message):
        expansion_probabilities(np.array([0.1, 0.2, np.nan]), np.array([0, 0, 1]), 1.0)


def test_draws_without_a_budget_or_a_cap_are_refused() -> None:
    weights, question = np.ones(3), np.array([0, 1, 1])
    with pytest.raises(ValueError, match="cap must be at least 1, got 0: 1 is a chain"):
        draw_expansions(weights, question, np.array([5, 5]), 0, keys_of(2))
    with pytest.raises(ValueError, match="budget must be at least 1 where nodes are active, got 0 for question 1"):
        draw_expansions(weights, question, np.array([5, 0]), 2, keys_of(2))


@pytest.mark.parametrize("weights", [[0.5, np.nan], [0.5, -0.1], [0.0, 0.0], [np.inf, 1.0], [1e-300] * 2, [1e308] * 2])
def test_weights_that_are_no_probabilities_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="probabilities must be finite and non-negative, with a largest"):
        draw_expansions(np.array(weights), np.zeros(2, dtype=int), np.array([5]), 2, keys_of(1))
