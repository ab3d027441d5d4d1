"""The closed-form rates against second derivations; `test_theorem_rates.py` holds them against the growing loop."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rate_oracles import expected_law, propagated_limits
from theory_oracles import uncapped_limits
from theory_strategies import padded_policies

from igrpo_theory import (
    PolicyTree,
    adversarial_policy_tree,
    bias_rate,
    clt_covariance,
    clt_variance,
    enumerate_paths,
    finite_budget_bound,
    grown_laws,
    kl_divergence,
    padded,
    particle_flow,
    random_policy_tree,
    rate_constants,
    read_policy_tree,
    teacher_law,
    teacher_law_by_recursion,
    total_variation,
)


@given(policy=padded_policies(), gamma=st.floats(0, 4))
def test_covariance_and_bias_equal_those_carried_from_stage_to_stage(policy: PolicyTree, gamma: float) -> None:
    covariance, bias = propagated_limits(policy, gamma)
    scale = particle_flow(policy, gamma).kappa.max()  # what cancels in the sums
    assert np.allclose(clt_covariance(policy, gamma), covariance, rtol=1e-9, atol=1e-11 * scale)
    assert np.allclose(clt_variance(policy, gamma), np.diag(covariance), rtol=1e-9, atol=1e-11 * scale)
    assert np.allclose(bias_rate(policy, gamma), bias, rtol=1e-9, atol=1e-11 * scale)


@given(policy=padded_policies(), gamma=st.floats(0, 4))
def test_the_flow_ends_in_the_teacher_law(policy: PolicyTree, gamma: float) -> None:
    flow = particle_flow(policy, gamma)
    assert np.allclose(flow.eta[policy.ends], teacher_law_by_recursion(policy, gamma).mu, rtol=0, atol=1e-11)
    for level in range(1, policy.turns + 1):
        here = policy.depth == level
        assert abs(flow.eta[here].sum() - 1) < 1e-11
        assert abs(flow.marginal[here].sum() - 1) < 1e-11
        assert level == policy.turns or abs(flow.eta[here] @ flow.weight[here] - 1) < 1e-11
    assert (flow.kappa > 1 - 1e-11).all()


def test_an_older_twin_of_variance_and_bias_agrees() -> None:
    policy = random_policy_tree(np.random.default_rng(5), turns=4, branching=3)
    sigma, beta = uncapped_limits(policy, 1.5)
    assert np.allclose(np.sqrt(clt_variance(policy, 1.5)), sigma, rtol=0, atol=1e-13)
    assert np.allclose(bias_rate(policy, 1.5), beta, rtol=0, atol=1e-13)


def test_one_turn_is_independent_sampling() -> None:
    policy = adversarial_policy_tree("one turn")
    pi = enumerate_paths(policy).probability
    assert np.allclose(clt_covariance(policy, 3.0), np.diag(pi) - np.outer(pi, pi), rtol=0, atol=1e-15)
    assert (bias_rate(policy, 3.0) == 0).all()
    constants = rate_constants(policy, 3.0)
    assert constants.spread == pytest.approx(constants.iid_spread, abs=1e-14)
    assert constants.bias == 0


def test_equal_values_have_no_bias_but_more_spread_than_independent_draws() -> None:
    constants = rate_constants(adversarial_policy_tree("equal values"), 2.0)
    assert constants.bias < 1e-12
    assert constants.spread > 1.1 * constants.iid_spread


@pytest.mark.parametrize(
    ("name", "gamma", "spread", "iid", "bias", "largest", "bound"),
    [
        ("T4_K42", 1.0, 2.341, 1.675, 0.434, 0.222, 0.100),
        ("T5_K108", 1.0, 3.525, 2.604, 1.399, 0.492, 0.327),
        ("T4_K42", 3.0, 1.517, 1.191, 1.842, 0.791, 0.727),
    ],
)
def test_reference_trees_have_their_recorded_rates(
    reference_trees: Path, name: str, gamma: float, spread: float, iid: float, bias: float, largest: float, bound: float
) -> None:
    policy = read_policy_tree(reference_trees / f"{name}.json")
    assert rate_constants(policy, gamma) == pytest.approx((spread, iid, bias), abs=6e-4)
    assert np.abs(bias_rate(policy, gamma)).max() == pytest.approx(largest, abs=6e-4)
    assert finite_budget_bound(policy, gamma, 5).total_variation == pytest.approx(bound, abs=6e-4)


# The bound at a finite budget, against the expected law by enumeration


@given(policy=padded_policies(max_turns=3, max_branching=2), gamma=st.floats(0, 4), budget=st.integers(1, 3))
def test_the_finite_budget_bound_holds_for_the_exact_expected_law(
    policy: PolicyTree, gamma: float, budget: int
) -> None:
    assume(np.bincount(policy.depth).max() <= 8)
    mu, q = teacher_law(policy, gamma), expected_law(policy, gamma, budget)
    assert abs(q.sum() - 1) < 1e-9
    bound = finite_budget_bound(policy, gamma, budget)
    assert (q >= mu / bound.inflation - 1e-9).all()
    assert total_variation(q, mu) <= bound.total_variation + 1e-9
    assert kl_divergence(mu, q) <= bound.kl + 1e-9
    if budget == 1:  # a single chain: nothing is chosen, and the bound is an equality
        pi = enumerate_paths(policy).probability
        assert np.allclose(q, pi, rtol=0, atol=1e-12)
        assert np.allclose(mu / bound.inflation, pi, rtol=0, atol=1e-9)


def test_the_exact_bias_tends_to_its_rate() -> None:
    """Richardson: budget * bias differs from the rate by a term of order 1 / budget, which two budgets cancel."""
    policy = random_policy_tree(np.random.default_rng(2), turns=2, branching=2)
    mu, beta = teacher_law(policy, 2.0), bias_rate(policy, 2.0)
    scaled = {budget: budget * (expected_law(policy, 2.0, budget) - mu) for budget in (40, 80, 160)}
    errors = [np.abs(scaled[budget] - beta).max() for budget in (40, 80, 160)]
    assert errors[1] == pytest.approx(errors[0] / 2, rel=0.1)
    assert errors[2] == pytest.approx(errors[1] / 2, rel=0.05)
    assert np.allclose(2 * scaled[160] - scaled[80], beta, rtol=0, atol=errors[2] / 10)


def test_the_bound_falls_like_one_over_the_budget() -> None:
    policy = random_policy_tree(np.random.default_rng(1), turns=4, branching=3)
    scaled = [budget * finite_budget_bound(policy, 1.0, budget).total_variation for budget in (1000, 10_000, 100_000)]
    assert scaled == pytest.approx([scaled[-1]] * 3, rel=0.02)
    assert scaled[-1] >= rate_constants(policy, 1.0).bias


# Errors


def test_early_answers_are_refused_until_padded() -> None:
    policy = adversarial_policy_tree("early answers")
    message = r"policy must be padded, got a path that ends at depth \d of 4 \(state \d+\): use padded\(policy\).policy"
    for function in (particle_flow, clt_covariance, clt_variance, bias_rate, rate_constants):
        with pytest.raises(ValueError, match=message):
            function(policy, 1.0)


def test_a_budget_of_nothing_is_refused() -> None:
    policy = adversarial_policy_tree("one turn")
    with pytest.raises(ValueError, match="budget must be at least 1, got 0: the root needs a child"):
        finite_budget_bound(policy, 1.0, 0)


def test_a_gamma_that_leaves_no_particle_where_the_teacher_is_is_refused() -> None:
    """The best path starts with the worse turn: particles that follow weights alone never see it."""
    policy = PolicyTree(
        parent=np.array([-1, 0, 0, 1, 2, 3, 4]),
        probability=np.array([1.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]),
        value=np.array([0.0, 1.0, 0.0, 0.0, 5.0, 0.0, 0.0]),
        answer=np.zeros(7, dtype=bool),
        reward=np.zeros(7),
    )
    assert np.isfinite(clt_covariance(policy, 50.0)).all()
    with pytest.raises(ValueError, match="gamma must leave the teacher's paths a chance of 1e-308 a stage, got 1000.0"):
        particle_flow(policy, 1000.0)


def test_impossible_paths_of_high_value_do_not_drown_the_possible_ones() -> None:
    policy = padded(adversarial_policy_tree("impossible branches")).policy
    constants = rate_constants(policy, 200.0)  # exp(200 * 5) is no float
    assert np.isfinite([constants.spread, constants.bias]).all()


def test_replicates_are_at_least_one() -> None:
    policy = random_policy_tree(np.random.default_rng(0), turns=2, branching=2)
    with pytest.raises(ValueError, match="replicates must be at least 1, got 0: each grows a tree"):
        grown_laws(policy, 1.0, replicates=0, budget=5)
