"""A node is a draw: merging equal children breaks theorem 1, and how."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from igrpo_theory import (
    MergingWorld,
    PolicyTree,
    adversarial_policy_tree,
    enumerate_paths,
    grown_laws,
    merged_law,
    random_policy_tree,
    read_policy_tree,
    teacher_law,
    total_variation,
)

TREES = {
    "three turns": random_policy_tree(np.random.default_rng(1), turns=3, branching=3),
    "four turns": random_policy_tree(np.random.default_rng(6), turns=4, branching=2),
}


@pytest.mark.parametrize("name", TREES)
def test_growth_that_merges_equal_children_goes_to_another_law(name: str, alpha: float) -> None:
    policy, budget = TREES[name], 20_000
    limit, mu = merged_law(policy, 1.0), teacher_law(policy, 1.0)
    laws = grown_laws(policy, 1.0, replicates=10, budget=budget, world=MergingWorld(policy)).laws
    # Once every state is present, the last stage's shares are those of independent draws: no ancestor is shared.
    common = limit * budget * len(laws) >= 300
    z = (laws.mean(axis=0) - limit) / np.sqrt(limit * (1 - limit) / (budget * len(laws)))
    assert np.abs(z[common]).max() < stats.norm.isf(alpha / 2 / common.sum()), z.round(1)
    assert total_variation(laws.mean(axis=0), mu) > 0.5 * total_variation(limit, mu) > 0.05


@pytest.mark.parametrize("name", TREES)
def test_growth_that_keeps_them_goes_to_the_teacher(name: str) -> None:
    policy = TREES[name]
    mu = teacher_law(policy, 1.0)
    laws = grown_laws(policy, 1.0, replicates=10, budget=20_000).laws
    # Ten times the expected distance of 200,000 draws.
    assert total_variation(laws.mean(axis=0), mu) < 0.1 * total_variation(merged_law(policy, 1.0), mu)


def test_the_merged_law_forgets_earlier_values_and_earlier_probabilities() -> None:
    policy = random_policy_tree(np.random.default_rng(3), turns=4, branching=2)
    value, probability = policy.value.copy(), policy.probability.copy()
    value[policy.depth < 3] += np.arange((policy.depth < 3).sum())
    early = (policy.depth >= 1) & (policy.depth < 4)
    probability[early] = 0.5
    changed = PolicyTree(
        parent=policy.parent, probability=probability, value=value, answer=policy.answer, reward=policy.reward
    )
    assert np.allclose(merged_law(changed, 2.0), merged_law(policy, 2.0), rtol=0, atol=1e-15)
    assert total_variation(teacher_law(changed, 2.0), teacher_law(policy, 2.0)) > 0.3


def test_merging_is_harmless_in_one_turn_and_refuses_a_tree_that_is_not_padded() -> None:
    one = random_policy_tree(np.random.default_rng(0), turns=1, branching=4)
    assert merged_law(one, 2.0).tolist() == teacher_law(one, 2.0).tolist() == one.probability[1:].tolist()
    with pytest.raises(
        ValueError, match="policy must be padded, got a path that ends early: use padded.policy..policy"
    ):
        merged_law(adversarial_policy_tree("early answers"), 1.0)


@pytest.mark.parametrize(("name", "gamma"), [("T3_K27", 1.0), ("T4_K16", 1.0), ("T4_K42", 1.0), ("T5_K108", 1.0)])
def test_on_reference_trees_merging_is_no_better_than_no_tilt_at_all(
    reference_trees: Path, name: str, gamma: float
) -> None:
    policy = read_policy_tree(reference_trees / f"{name}.json")
    mu, pi = teacher_law(policy, gamma), enumerate_paths(policy).probability
    assert total_variation(merged_law(policy, gamma), mu) > 0.9 * total_variation(pi, mu)
