import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_oracles import uncapped_limits

from igrpo_theory import (
    PolicyTree,
    enumerate_paths,
    kl_divergence,
    log_partition,
    objective,
    random_policy_tree,
    read_policy_tree,
    reward_derivative,
    teacher_law,
    teacher_law_by_recursion,
    total_variation,
)


@st.composite
def policies(draw: st.DrawFn) -> PolicyTree:
    return random_policy_tree(
        np.random.default_rng(draw(st.integers(0, 10**6))),
        turns=draw(st.integers(1, 4)),
        branching=draw(st.integers(1, 3)),
        answer_rate=draw(st.sampled_from([0.0, 0.3])),
    )


# Theorem 1


@given(policy=policies(), gamma=st.floats(0, 10))
def test_the_recursion_of_the_loop_equals_brute_force(policy: PolicyTree, gamma: float) -> None:
    recursion = teacher_law_by_recursion(policy, gamma)
    assert np.allclose(recursion.mu, teacher_law(policy, gamma), rtol=0, atol=1e-12)
    assert abs(recursion.mu.sum() - 1) < 1e-12
    assert abs(recursion.log_partition - log_partition(policy, gamma)) < 1e-12


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


@pytest.mark.parametrize(
    ("name", "gamma", "spread", "bias"),
    [("T4_K42", 1.0, 2.341, 0.434), ("T5_K108", 1.0, 3.525, 1.399), ("T4_K42", 3.0, 1.517, 1.842)],
)
def test_reference_trees_have_their_recorded_rates(
    reference_trees: Path, name: str, gamma: float, spread: float, bias: float
) -> None:
    sigma, beta = uncapped_limits(read_policy_tree(reference_trees / f"{name}.json"), gamma)
    assert sigma.sum() / np.sqrt(2 * np.pi) == pytest.approx(spread, abs=6e-4)
    assert np.abs(beta).sum() / 2 == pytest.approx(bias, abs=6e-4)


# Theorem 2


@given(policy=policies(), gamma=st.floats(0.05, 10), seed=st.integers(0, 10**6), sparse=st.booleans())
def test_the_objective_falls_short_of_its_maximum_by_the_divergence(
    policy: PolicyTree, gamma: float, seed: int, sparse: bool
) -> None:
    rng = np.random.default_rng(seed)
    mass = rng.exponential(size=len(policy.ends)) * (rng.random(len(policy.ends)) < (0.5 if sparse else 2))
    mass[rng.integers(len(mass))] += 1e-3
    q, mu = mass / mass.sum(), teacher_law(policy, gamma)
    gap = log_partition(policy, gamma) / gamma - objective(q, policy, gamma)
    assert abs(gap - kl_divergence(q, mu) / gamma) < 1e-12
    assert gap > -1e-12
    assert abs(objective(mu, policy, gamma) - log_partition(policy, gamma) / gamma) < 1e-12


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
