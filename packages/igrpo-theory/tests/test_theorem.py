"""Theorem 1 on the growing loop itself: uncapped growth of padded trees tends to the teacher law at the predicted rate.

Design: many independent replicates, grown as one batch, one empirical path law each; z-bounds from the closed-form
standard deviation, Bonferroni over the statistics of a test.
Paths of one tree share ancestors, so a chi-square on them would be wrong (it rejects 9% at a nominal 1%).
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats
from theory_oracles import uncapped_limits

from igrpo_theory import (
    GrowthRule,
    NodeStatus,
    PolicyTree,
    PolicyTreeWorld,
    grow,
    question_keys,
    random_policy_tree,
    read_policy_tree,
    root_to_leaf_paths,
    states_of,
    teacher_law,
    total_variation,
)
from igrpo_theory.expansion import Scheme

REPLICATES, BUDGET = 200, 500


class Sample(NamedTuple):
    laws: np.ndarray  # replicates x paths
    mu: np.ndarray
    sigma: np.ndarray
    beta: np.ndarray


def empirical_laws(
    policy: PolicyTree, gamma: float, *, replicates: int, budget: int, scheme: Scheme = "capped", cap: int | None = None
) -> np.ndarray:
    """Share of each complete path among the leaves at the turn limit, one row a replicate."""
    rule = GrowthRule(
        budget=budget, cap=cap or budget, gamma=gamma, scheme=scheme, criterion="score", turn_limit=policy.turns
    )
    keys = question_keys(20, 7, np.arange(replicates), [f"replicate {number}" for number in range(replicates)])
    tree = grow(PolicyTreeWorld(policy), [0] * replicates, keys, rule).tree
    paths = root_to_leaf_paths(tree)
    complete = tree.status[paths.leaf] == NodeStatus.TURN_LIMIT
    end = states_of(tree)[paths.leaf[complete]]
    cells = np.bincount(paths.question[complete] * len(policy.parent) + end, minlength=replicates * len(policy.parent))
    counts = cells.reshape(replicates, -1)[:, policy.ends]
    assert (counts.sum(axis=1) == budget).all()
    return counts / budget


def z_scores(laws: np.ndarray, mean: np.ndarray, sigma: np.ndarray, budget: int) -> np.ndarray:
    """How far the mean share is from the prediction, for paths with at least 300 expected draws."""
    common = mean * budget * len(laws) >= 300
    return (laws.mean(axis=0) - mean)[common] / (sigma[common] / np.sqrt(budget * len(laws)))


TREES = {
    "three turns": random_policy_tree(np.random.default_rng(1), turns=3, branching=3),
    "four turns": random_policy_tree(np.random.default_rng(3), turns=4, branching=2),
    "wide values": random_policy_tree(np.random.default_rng(4), turns=3, branching=3, value_range=2.0),
}


@pytest.mark.parametrize("name", TREES)
def test_uncapped_growth_has_the_teacher_law_with_predicted_bias_and_spread(name: str, alpha: float) -> None:
    policy = TREES[name]
    mu = teacher_law(policy, 1.0)
    sigma, beta = uncapped_limits(policy, 1.0)
    laws = empirical_laws(policy, 1.0, replicates=REPLICATES, budget=BUDGET)
    scores = z_scores(laws, mu + beta / BUDGET, sigma, BUDGET)
    # 5% of slack for the next order of the expansion in 1 / budget.
    assert np.abs(scores).max() < 1.05 * stats.norm.isf(alpha / 4 / len(scores)), scores.round(2)

    distances = np.abs(laws - mu).sum(axis=1) / 2
    floor = sigma.sum() / np.sqrt(2 * np.pi * BUDGET)
    error = distances.std(ddof=1) / np.sqrt(REPLICATES)
    bound = stats.t.isf(alpha / 4, REPLICATES - 1) * error + 0.02 * floor
    assert abs(distances.mean() - floor) < bound, f"{distances.mean():.5f}, predicted {floor:.5f}, s.e. {error:.5f}"


@pytest.mark.parametrize("name", TREES)
def test_the_test_would_notice_a_tilt_that_is_a_fifth_too_strong(name: str, alpha: float) -> None:
    policy = TREES[name]
    sigma, beta = uncapped_limits(policy, 1.0)
    laws = empirical_laws(policy, 1.2, replicates=REPLICATES, budget=BUDGET)
    scores = z_scores(laws, teacher_law(policy, 1.0) + beta / BUDGET, sigma, BUDGET)
    assert np.abs(scores).max() > 1.05 * stats.norm.isf(alpha / 2 / len(scores))


@pytest.mark.parametrize("scheme", ["capped", "systematic"])
def test_one_tree_of_a_large_budget_is_close_to_the_teacher(scheme: Scheme, alpha: float) -> None:
    policy, budget = TREES["four turns"], 10**5
    mu = teacher_law(policy, 1.0)
    sigma, _ = uncapped_limits(policy, 1.0)
    laws = empirical_laws(policy, 1.0, replicates=1, budget=budget, scheme=scheme)
    # Each share stays within z sigma / sqrt(budget) together, so their distance stays below half the sum.
    bound = stats.norm.isf(alpha / 2 / len(mu)) * sigma.sum() / 2 / np.sqrt(budget)
    assert total_variation(laws[0], mu) < bound
    assert bound < total_variation(teacher_law(policy, 0.0), mu) / 4


def test_the_distance_falls_with_the_root_of_the_budget(alpha: float) -> None:
    policy = TREES["three turns"]
    mu = teacher_law(policy, 1.0)
    means, errors = [], []
    for budget, replicates in ((50, 1600), (200, 800), (800, 400)):
        laws = empirical_laws(policy, 1.0, replicates=replicates, budget=budget)
        distances = np.sqrt(budget) * np.abs(laws - mu).sum(axis=1) / 2
        means.append(distances.mean())
        errors.append(distances.std(ddof=1) / np.sqrt(replicates))
    # Four times the budget halves the distance, up to 1 / budget.
    for small, slack in ((0, 0.05), (1, 0.02)):
        bound = stats.norm.isf(alpha / 4) * np.hypot(errors[small], errors[2])
        assert abs(means[small] - means[2]) < bound + slack * means[2], means
        assert bound < 0.1 * means[2]  # sharp enough to tell the root from any other power near it


def test_the_policy_itself_comes_out_at_gamma_zero_under_any_scheme_and_cap(alpha: float) -> None:
    policy = TREES["three turns"]
    pi = teacher_law(policy, 0.0)
    sigma, _ = uncapped_limits(policy, 0.0)
    for scheme, cap in (("capped", BUDGET), ("capped", 2), ("capped", 1), ("systematic", BUDGET)):
        laws = empirical_laws(policy, 0.0, replicates=REPLICATES, budget=BUDGET, scheme=scheme, cap=cap)
        # At gamma = 0 the law is pi at every budget; multinomial draws have the largest spread of the four.
        scores = z_scores(laws, pi, sigma, BUDGET)
        assert np.abs(scores).max() < stats.norm.isf(alpha / 8 / len(scores)), (scheme, cap)


def test_a_cap_of_two_misses_the_teacher() -> None:
    policy = TREES["wide values"]
    mu = teacher_law(policy, 1.0)
    sigma, beta = uncapped_limits(policy, 1.0)
    laws = empirical_laws(policy, 1.0, replicates=REPLICATES, budget=BUDGET, cap=2)
    assert np.abs(z_scores(laws, mu + beta / BUDGET, sigma, BUDGET)).max() > 10


@pytest.mark.parametrize("name", ["T4_K42", "T5_K108"])
def test_reference_trees_are_grown_with_the_predicted_law(reference_trees: Path, name: str, alpha: float) -> None:
    policy = read_policy_tree(reference_trees / f"{name}.json")
    sigma, beta = uncapped_limits(policy, 1.0)
    laws = empirical_laws(policy, 1.0, replicates=100, budget=1000)
    scores = z_scores(laws, teacher_law(policy, 1.0) + beta / 1000, sigma, 1000)
    assert np.abs(scores).max() < 1.05 * stats.norm.isf(alpha / 2 / len(scores)), scores.round(2)
