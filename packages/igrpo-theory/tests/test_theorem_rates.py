"""The rates of theorem 1 on the growing loop itself.

Replicates are independent trees; inside one tree, counts are tested given the stage before, or all shares at once
against their covariance. A chi-square that took the paths of one tree for independent would be wrong: they share
ancestors. Bonferroni over the statistics of a test.
"""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from igrpo_theory import (
    Growth,
    PolicyTree,
    bias_rate,
    clt_covariance,
    clt_variance,
    finite_budget_bound,
    grown_laws,
    log_partition,
    random_policy_tree,
    rate_constants,
    read_policy_tree,
    states_of,
    teacher_law,
    total_variation,
)

TREES = {
    "three turns": random_policy_tree(np.random.default_rng(1), turns=3, branching=3),
    "four turns": random_policy_tree(np.random.default_rng(3), turns=4, branching=2),
    "wide values": random_policy_tree(np.random.default_rng(4), turns=3, branching=3, value_range=2.0),
}


def wald(law: np.ndarray, mean: np.ndarray, covariance: np.ndarray, budget: int) -> tuple[float, int]:
    """B d' Sigma^+ d and its degrees of freedom; chi-square under the limit theorem."""
    size, axes = np.linalg.eigh(covariance)
    kept = size > 1e-10 * size.max()
    return float(budget * (((law - mean) @ axes[:, kept]) ** 2 / size[kept]).sum()), int(kept.sum())


def conditional_p_values(policy: PolicyTree, gamma: float, growth: Growth[int]) -> list[float]:
    """One tree, stage by stage: which states the draw chose given who was there, and which children they had."""
    states, parent, value = states_of(growth.tree), growth.tree.parent, policy.value
    p_values = []
    for depth in range(1, policy.turns + 1):
        nodes = np.flatnonzero(growth.tree.depth == depth)
        expected = np.bincount(states[parent[nodes]], minlength=len(value))[policy.parent] * policy.probability
        own = policy.depth == depth
        p_values.append(
            _p_value(np.bincount(states[nodes], minlength=len(value))[own], expected[own], policy.parent[own])
        )
        if depth == policy.turns:
            break
        stage = growth.stages[depth - 1]
        weight = np.where(own, np.bincount(states[stage.nodes], minlength=len(value)) * np.exp(gamma * value), 0.0)
        drawn = np.bincount(states[stage.nodes], weights=stage.counts, minlength=len(value))
        p_values.append(
            _p_value(drawn[own], (drawn.sum() * weight / weight.sum())[own], np.zeros(own.sum(), dtype=int))
        )
    return p_values


def _p_value(observed: np.ndarray, expected: np.ndarray, groups: np.ndarray) -> float:
    """Chi-square of independent multinomials, one a group, without groups that have a cell expecting fewer than 5."""
    small = np.unique(groups[expected < 5])
    kept = ~np.isin(groups, small)
    freedom = kept.sum() - len(np.unique(groups[kept]))
    statistic = ((observed - expected) ** 2 / np.where(kept, expected, 1.0))[kept].sum()
    return float(stats.chi2.sf(statistic, freedom)) if freedom > 0 else 1.0


@pytest.mark.parametrize("name", TREES)
def test_one_tree_of_a_large_budget_has_the_predicted_fluctuations(name: str, alpha: float) -> None:
    """Wald at B = 1e5; the 1/B next orders of mean and covariance change it by less than 0.1%."""
    policy, budget = TREES[name], 10**5
    law = grown_laws(policy, 1.0, replicates=1, budget=budget).laws[0]
    statistic, freedom = wald(law, teacher_law(policy, 1.0), clt_covariance(policy, 1.0), budget)
    assert freedom == len(law) - 1
    assert stats.chi2.isf(1 - alpha / 2, freedom) < statistic < stats.chi2.isf(alpha / 2, freedom), statistic
    # And it has the power to see a tilt that is 15% too strong.
    off = grown_laws(policy, 1.15, replicates=1, budget=budget).laws[0]
    statistic, _ = wald(off, teacher_law(policy, 1.0), clt_covariance(policy, 1.0), budget)
    assert statistic > stats.chi2.isf(alpha, freedom)


@pytest.mark.parametrize("name", TREES)
def test_replicates_have_the_predicted_covariance(name: str, alpha: float) -> None:
    """Sum of 200 Wald statistics at B = 1000; 2% of slack for the next orders in 1 / B."""
    policy, replicates, budget = TREES[name], 200, 1000
    laws = grown_laws(policy, 1.0, replicates=replicates, budget=budget).laws
    mean = teacher_law(policy, 1.0) + bias_rate(policy, 1.0) / budget
    total, freedom = wald(laws, mean, clt_covariance(policy, 1.0), budget)
    low, high = stats.chi2.isf([1 - alpha / 2, alpha / 2], replicates * freedom)
    assert 0.98 * low < total < 1.02 * high, total / (replicates * freedom)
    # Independent draws would have another covariance, and this test would notice.
    mu = teacher_law(policy, 1.0)
    iid, _ = wald(laws, mean, np.diag(mu) - np.outer(mu, mu), budget)
    assert iid > 1.02 * high


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("scheme", ["capped", "systematic"])
def test_the_normaliser_is_unbiased_and_so_are_weighted_shares(name: str, scheme: str, alpha: float) -> None:
    """E Zhat = Z and E[Zhat mu^B(o)] = Z mu(o), at a budget of 5 where mu^B itself is far off."""
    policy = TREES[name]
    mu, replicates = teacher_law(policy, 1.0), 20_000
    grown = grown_laws(policy, 1.0, replicates=replicates, budget=5, scheme=scheme)  # type: ignore[arg-type]
    ratio = np.exp(grown.log_normalisers - log_partition(policy, 1.0))
    common = mu * 5 * replicates >= 300
    samples = np.column_stack([ratio, ratio[:, None] * grown.laws[:, common]])
    targets = np.append(1.0, mu[common])
    errors = samples.std(axis=0, ddof=1) / np.sqrt(replicates)
    z = np.abs(samples.mean(axis=0) - targets) / errors
    assert z.max() < stats.norm.isf(alpha / 2 / len(z)), z.round(2)


def expected_bias(policy: PolicyTree, gamma: float, *, replicates: int, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """E[mu^B] - mu and its standard error, by -Cov(mu^B, Zhat) / Z: noise of order 1/B instead of 1/sqrt(B)."""
    grown = grown_laws(policy, gamma, replicates=replicates, budget=budget)
    ratio = np.exp(grown.log_normalisers - log_partition(policy, gamma))
    samples = -(grown.laws - teacher_law(policy, gamma)) * (ratio - 1)[:, None]
    return samples.mean(axis=0), samples.std(axis=0, ddof=1) / np.sqrt(replicates)


@pytest.mark.parametrize("name", TREES)
def test_budget_times_bias_is_its_rate(name: str, alpha: float) -> None:
    policy, budget = TREES[name], 100
    bias, error = expected_bias(policy, 1.0, replicates=4000, budget=budget)
    beta = bias_rate(policy, 1.0)
    # 2% of the largest rate for the next order in 1 / B.
    bound = stats.norm.isf(alpha / 2 / len(beta)) * error * budget + 0.02 * np.abs(beta).max()
    assert (np.abs(budget * bias - beta) < bound).all(), (budget * bias - beta).round(4)
    assert np.median(bound) < np.abs(beta).max() / 3  # sharp enough to mean something


@pytest.mark.parametrize("name", TREES)
def test_the_bias_at_the_papers_budget_is_within_the_bound(name: str, alpha: float) -> None:
    policy = TREES[name]
    bias, error = expected_bias(policy, 1.0, replicates=20_000, budget=5)
    bound = finite_budget_bound(policy, 1.0, 5)
    z = stats.norm.isf(alpha / 4 / len(bias))
    assert np.abs(bias).sum() / 2 < bound.total_variation + z * error.sum() / 2
    mu = teacher_law(policy, 1.0)
    common = mu * 5 * 20_000 >= 300
    assert (mu + bias > mu / bound.inflation - z * error)[common].all()


@pytest.mark.parametrize("name", TREES)
def test_every_stage_draws_and_proposes_as_it_should_given_the_stage_before(name: str, alpha: float) -> None:
    policy = TREES[name]
    growth = grown_laws(policy, 1.0, replicates=1, budget=10**5).growth
    p_values = conditional_p_values(policy, 1.0, growth)
    assert len(p_values) == 2 * policy.turns - 1
    assert min(p_values) > alpha / len(p_values), p_values
    off = conditional_p_values(policy, 1.0, grown_laws(policy, 1.1, replicates=1, budget=10**5).growth)
    assert min(off) < alpha / len(p_values)


@pytest.mark.parametrize(("name", "gamma"), [("T4_K42", 1.0), ("T5_K108", 1.0), ("T4_K42", 3.0)])
def test_reference_trees_have_the_predicted_distance_at_a_budget_of_a_thousand(
    reference_trees: Path, name: str, gamma: float, alpha: float
) -> None:
    policy = read_policy_tree(reference_trees / f"{name}.json")
    mu, replicates, budget = teacher_law(policy, gamma), 200, 1000
    laws = grown_laws(policy, gamma, replicates=replicates, budget=budget).laws
    distances = np.array([total_variation(law, mu) for law in laws])
    floor = rate_constants(policy, gamma).spread / np.sqrt(budget)
    bound = stats.t.isf(alpha / 2, replicates - 1) * distances.std(ddof=1) / np.sqrt(replicates) + 0.03 * floor
    assert abs(distances.mean() - floor) < bound, (distances.mean(), floor)
    assert clt_variance(policy, gamma).min() > 0
