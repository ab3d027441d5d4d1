import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_strategies import path_laws, policies

from igrpo_theory import (
    ADVERSARIES,
    PolicyTree,
    adversarial_policy_tree,
    enumerate_paths,
    expected_reward,
    greedy_law,
    kl_divergence,
    log_partition,
    merged_law,
    misleading_policy_tree,
    objective,
    padded,
    random_policy_tree,
    read_policy_tree,
    reward_derivative,
    reward_gain,
    teacher_law,
    teacher_law_by_recursion,
    total_variation,
)

# Theorem 1


@given(policy=policies(), gamma=st.floats(0, 10))
def test_the_recursion_of_the_loop_equals_brute_force(policy: PolicyTree, gamma: float) -> None:
    recursion = teacher_law_by_recursion(policy, gamma)
    rounding = 1e-12 * (1 + gamma * np.abs(enumerate_paths(policy).value).max() / 10)
    assert np.allclose(recursion.mu, teacher_law(policy, gamma), rtol=0, atol=rounding)
    assert abs(recursion.mu.sum() - 1) < 1e-12
    assert recursion.log_partition == pytest.approx(log_partition(policy, gamma), rel=1e-12, abs=1e-12)


@given(policy=policies())
def test_gamma_zero_leaves_the_policy_as_it_is(policy: PolicyTree) -> None:
    assert np.allclose(teacher_law(policy, 0.0), enumerate_paths(policy).probability, rtol=0, atol=1e-13)


@given(seed=st.integers(0, 10**6), gamma=st.floats(0, 10), shift=st.floats(-3, 3))
def test_a_constant_added_to_a_depth_changes_nothing_in_padded_trees(seed: int, gamma: float, shift: float) -> None:
    policy = random_policy_tree(np.random.default_rng(seed), turns=3, branching=2)
    shifted = replace(policy, value=policy.value + shift * policy.depth)
    assert np.allclose(teacher_law(shifted, gamma), teacher_law(policy, gamma), rtol=0, atol=1e-12)


@given(policy=policies(), gamma=st.floats(0, 10))
def test_values_of_last_states_and_of_the_root_are_not_used(policy: PolicyTree, gamma: float) -> None:
    value = policy.value.copy()
    value[policy.ends] = 50.0
    value[0] = -50.0
    other = replace(policy, value=value)
    assert teacher_law(other, gamma).tolist() == teacher_law(policy, gamma).tolist()
    assert teacher_law_by_recursion(other, gamma).mu.tolist() == teacher_law_by_recursion(policy, gamma).mu.tolist()


@pytest.mark.parametrize("name", ["T3_K27", "T4_K16", "T4_K42", "T5_K108"])
def test_reference_trees_have_their_recorded_laws(reference_trees: Path, name: str) -> None:
    file = reference_trees / f"{name}.json"
    recorded = json.loads(file.read_text())["gamma1"]
    policy = read_policy_tree(file)
    assert np.allclose(teacher_law(policy, 1.0), recorded["mu"], rtol=0, atol=1e-13)
    assert np.allclose(teacher_law_by_recursion(policy, 1.0).mu, recorded["mu"], rtol=0, atol=1e-13)
    assert log_partition(policy, 1.0) == pytest.approx(recorded["log_Z"], abs=1e-13)


def test_the_reference_tree_with_answers_has_its_recorded_lengths(reference_trees: Path) -> None:
    policy = read_policy_tree(reference_trees / "T4_answers.json")
    law, mu = enumerate_paths(policy), teacher_law(policy, 1.0)
    lengths = np.bincount((law.states >= 0).sum(axis=1), weights=mu, minlength=5)[1:]
    assert lengths.round(3).tolist() == [0.0, 0.543, 0.221, 0.237]


# Limits of gamma


@given(policy=policies(), gamma=st.floats(0, 0.05))
def test_a_small_gamma_moves_the_law_by_at_most_its_share_of_the_spread_of_v(policy: PolicyTree, gamma: float) -> None:
    law = enumerate_paths(policy)
    possible = law.probability > 0
    bound = np.tanh(gamma * np.ptp(law.value[possible]) / 4)
    assert total_variation(teacher_law(policy, gamma), law.probability) <= bound + 1e-12


@given(policy=policies(), gamma=st.floats(0, 2000))
def test_a_large_gamma_leaves_the_policy_on_the_best_paths(policy: PolicyTree, gamma: float) -> None:
    law, limit = enumerate_paths(policy), greedy_law(policy)
    assert abs(limit.sum() - 1) < 1e-12
    others = (limit == 0) & (law.probability > 0)
    gap = law.value[limit > 0].min() - law.value[others].max(initial=-np.inf)
    mass = law.probability[limit > 0].sum()
    bound = np.exp(-gamma * gap) * (1 - mass) / mass if others.any() else 0.0
    # Best values that differ in the last bit count as tied; gamma times that rounding is the tolerance.
    assert total_variation(teacher_law(policy, gamma), limit) <= bound + 1e-9


def test_tied_best_paths_share_the_limit_as_the_policy_does() -> None:
    policy = adversarial_policy_tree("equal values")
    assert np.allclose(greedy_law(policy), enumerate_paths(policy).probability, rtol=0, atol=1e-15)


def test_impossible_paths_never_enter_however_large_their_value() -> None:
    policy = adversarial_policy_tree("impossible branches")
    impossible = enumerate_paths(policy).probability == 0
    assert impossible.any()
    for law in (teacher_law(policy, 50.0), teacher_law_by_recursion(policy, 50.0).mu, greedy_law(policy)):
        assert (law[impossible] == 0).all()


def test_values_in_the_thousands_overflow_nothing() -> None:
    policy = adversarial_policy_tree("huge values")
    level = replace(policy, value=policy.value - 2000.0)
    for gamma in (1.0, 5.0):
        recursion = teacher_law_by_recursion(policy, gamma)
        assert np.allclose(recursion.mu, teacher_law(level, gamma), rtol=0, atol=1e-9)
        assert recursion.log_partition == pytest.approx(log_partition(level, gamma) + 2 * 2000 * gamma, abs=1e-8)


# Theorem 2


@given(data=st.data(), policy=policies(), gamma=st.floats(0.05, 10), sparse=st.booleans())
def test_the_objective_falls_short_of_its_maximum_by_the_divergence(
    data: st.DataObject, policy: PolicyTree, gamma: float, sparse: bool
) -> None:
    q, mu = data.draw(path_laws(policy, sparse=sparse)), teacher_law(policy, gamma)
    highest = log_partition(policy, gamma) / gamma
    tolerance = 1e-12 * (1 + (1 + gamma) * np.abs(enumerate_paths(policy).value).max())
    gap = highest - objective(q, policy, gamma)
    assert abs(gap - kl_divergence(q, mu) / gamma) < 20 * tolerance / min(gamma, 1.0)
    assert abs(objective(mu, policy, gamma) - highest) < tolerance / min(gamma, 1.0)
    # Pinsker: only the teacher itself reaches the maximum.
    assert gap >= 2 * total_variation(q, mu) ** 2 / gamma - tolerance / min(gamma, 1.0)


@given(data=st.data(), policy=policies(), gamma=st.floats(0.05, 10), share=st.floats(0.01, 0.99))
def test_the_objective_is_strictly_concave_so_the_maximiser_is_unique(
    data: st.DataObject, policy: PolicyTree, gamma: float, share: float
) -> None:
    first, second = data.draw(path_laws(policy)), data.draw(path_laws(policy, sparse=True))
    between = share * first + (1 - share) * second
    chord = share * objective(first, policy, gamma) + (1 - share) * objective(second, policy, gamma)
    # The excess is the Jensen-Shannon divergence over gamma; Pinsker again.
    least = 2 * share * (1 - share) * total_variation(first, second) ** 2 / gamma
    assert objective(between, policy, gamma) - chord >= least * (1 - 1e-9) - 1e-11 * (1 + abs(chord)) / min(gamma, 1.0)


def test_paths_that_the_policy_never_takes_cost_infinitely_much() -> None:
    policy = random_policy_tree(np.random.default_rng(0), turns=1, branching=3)
    policy = replace(policy, probability=np.array([1.0, 0.5, 0.5, 0.0]))
    assert objective(np.array([0.0, 0.5, 0.5]), policy, 1.0) == -np.inf
    assert teacher_law(policy, 1.0)[2] == 0


# Distances, derivative, errors


def test_distances_by_hand() -> None:
    q, p = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.25, 0.5])
    assert total_variation(q, p) == 0.5
    assert kl_divergence(q, p) == pytest.approx(np.log(2), abs=1e-15)
    assert kl_divergence(p, q) == np.inf
    assert kl_divergence(q, q) == total_variation(q, q) == 0


@given(policy=policies(), gamma=st.floats(0.1, 5))
def test_the_reward_derivative_is_a_covariance(policy: PolicyTree, gamma: float) -> None:
    reward = enumerate_paths(policy).reward
    slope = (teacher_law(policy, gamma + 1e-4) - teacher_law(policy, gamma - 1e-4)) @ reward / 2e-4
    assert reward_derivative(policy, gamma) == pytest.approx(slope, abs=1e-6)


@given(policy=policies(max_turns=2), gamma=st.floats(0.1, 1))
def test_the_reward_gain_is_the_integral_of_its_derivative(policy: PolicyTree, gamma: float) -> None:
    points, weights = np.polynomial.legendre.leggauss(40)
    slopes = [reward_derivative(policy, gamma * (1 + point) / 2) for point in points]
    gain = reward_gain(policy, gamma)
    assert gain == pytest.approx(gamma / 2 * float(weights @ slopes), abs=1e-7)
    assert gain == pytest.approx(expected_reward(policy, gamma) - expected_reward(policy, 0.0), abs=1e-12)
    law = enumerate_paths(policy)
    tilt = np.exp(gamma * law.value - log_partition(policy, gamma))
    covariance = law.probability @ (tilt * (law.reward - law.probability @ law.reward))
    assert gain == pytest.approx(float(covariance), abs=1e-9)


@given(policy=policies(), gamma=st.floats(0, 5))
def test_the_teacher_earns_more_whenever_v_is_the_reward(policy: PolicyTree, gamma: float) -> None:
    reward = policy.reward.copy()
    reward[policy.ends] = enumerate_paths(policy).value
    aligned = replace(policy, reward=reward)
    assert reward_derivative(aligned, gamma) >= -1e-9  # a variance
    assert reward_gain(aligned, gamma) >= -1e-9


@pytest.mark.parametrize("strength", [0.5, 1.0, 3.0])
def test_a_larger_gamma_hurts_where_the_value_misleads(strength: float) -> None:
    policy = misleading_policy_tree(strength)
    gammas = [0.0, 0.5, 1.0, 2.0, 5.0]
    earned = [expected_reward(policy, gamma) for gamma in gammas]
    assert np.allclose(earned, 1 / (1 + np.exp(strength * np.array(gammas))), rtol=0, atol=1e-14)
    assert (np.diff(earned) < 0).all()
    for gamma, reward in zip(gammas, earned, strict=True):
        assert reward_derivative(policy, gamma) == pytest.approx(-strength * reward * (1 - reward), abs=1e-14)


def test_a_larger_gamma_can_help_first_and_hurt_later() -> None:
    """Both first turns look right at first; the one of largest value is the wrong one."""
    policy = PolicyTree(
        parent=np.array([-1, 0, 0, 0, 1, 2, 3]),
        probability=np.array([1.0, 0.9, 0.09, 0.01, 1.0, 1.0, 1.0]),
        value=np.array([0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0]),
        answer=np.zeros(7, dtype=bool),
        reward=np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]),
    )
    assert reward_derivative(policy, 0.0) > 0.05
    assert reward_derivative(policy, 3.0) < -0.05
    assert reward_gain(policy, 2.0) > 0.2
    assert expected_reward(policy, 12.0) < expected_reward(policy, 0.0)


@pytest.mark.parametrize("gamma", [float("nan"), -1.0])
def test_a_gamma_without_meaning_is_refused(gamma: float) -> None:
    policy = random_policy_tree(np.random.default_rng(0), turns=2, branching=2)
    for function in (teacher_law, teacher_law_by_recursion, log_partition):
        with pytest.raises(ValueError, match=f"gamma must be finite and at least 0, got {gamma}"):
            function(policy, gamma)


@pytest.mark.parametrize("gamma", [float("nan"), 0.0, -1.0])
def test_the_objective_needs_a_positive_gamma(gamma: float) -> None:
    policy = random_policy_tree(np.random.default_rng(0), turns=2, branching=2)
    with pytest.raises(ValueError, match=f"gamma must be finite and above 0, got {gamma}: the objective divides by it"):
        objective(np.full(4, 0.25), policy, gamma)


@pytest.mark.parametrize("name", ADVERSARIES)
def test_a_huge_gamma_is_the_limit_and_not_an_overflow(name: str) -> None:
    policy = adversarial_policy_tree(name)
    greedy, law = greedy_law(policy), enumerate_paths(policy)
    for gamma in (1e4, 1e300, 1.7e308):
        assert teacher_law(policy, gamma) == pytest.approx(greedy, abs=1e-9)
        assert expected_reward(policy, gamma) == pytest.approx(greedy @ law.reward, abs=1e-9)
        assert reward_derivative(policy, gamma) == pytest.approx(0, abs=1e-9)
        assert merged_law(padded(policy).policy, gamma).sum() == pytest.approx(1)
        assert not np.isnan(log_partition(policy, gamma))
    best = law.value[law.probability > 0].max()
    assert log_partition(policy, 1e4) == pytest.approx(1e4 * best + np.log(law.probability[greedy > 0].sum()), rel=1e-9)
    assert teacher_law_by_recursion(policy, 1e4).mu == pytest.approx(greedy, abs=1e-9)


def test_a_gamma_at_which_v_overflows_is_refused_by_the_recursion() -> None:
    with pytest.raises(ValueError, match="gamma must keep gamma V finite, got 1e.308: use teacher_law, which has the"):
        teacher_law_by_recursion(adversarial_policy_tree("dominating node"), 1e308)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ([0.5, 0.4], "q must be at least 0 and sum to 1, got a sum of 0.9: divide by it"),
        ([1.5, -0.5], "q must be at least 0 and sum to 1, got -0.5: it is a law of paths"),
        ([np.nan, 1.0], "q must be at least 0 and sum to 1, got nan"),
        ([np.inf, 0.0], "q must be at least 0 and sum to 1, got a sum of inf"),
    ],
)
def test_masses_that_are_no_law_are_refused(law: list[float], message: str) -> None:
    q, fair = np.array(law), np.array([0.5, 0.5])
    policy = random_policy_tree(np.random.default_rng(0), turns=1, branching=2)
    for distance in (kl_divergence, total_variation):
        with pytest.raises(ValueError, match=message):
            distance(q, fair)
        with pytest.raises(ValueError, match=message.replace("q", "p", 1)):
            distance(fair, q)
    with pytest.raises(ValueError, match=message):
        objective(q, policy, 1.0)
