"""growth_claims: a policy tree and a seed -> what theory predicts of growing beside what `grow` does.

In: a case, see `claims`. Out: one row a claim. Every number is measured on independent grown trees; an error bar is as
wide as the level of a row asks for, plus a stated slack where the prediction is an asymptotic one.
"""

import numpy as np
from scipy import stats

from igrpo_theory.adversaries import MergingWorld
from igrpo_theory.claims import Case, Row
from igrpo_theory.finite import finite_law
from igrpo_theory.limits import capped_teacher_law, mean_field
from igrpo_theory.rates import bias_rate, clt_variance, finite_budget_bound, rate_constants
from igrpo_theory.replicates import GrownLaws, grown_laws
from igrpo_theory.teacher import log_partition, merged_law, teacher_law, total_variation
from igrpo_theory.worlds import states_of

FALSE_ALARM_RATE = 1e-6
"""Chance that a run of `verify` fails although every claim is true."""
LEVEL = FALSE_ALARM_RATE / 1000
"""The same for one row that is measured. A default run has 42; the rest is for more trees, and a reserve for tails that
are only nearly normal."""
_FEWEST_HITS = 300
"""Paths with fewer expected draws are too rare for a normal approximation."""


def growth_claims(case: Case) -> list[Row]:
    """Rates of theorem 1, what holds at a budget of 5, the cap's limit and the merged law, on `grow` itself.

    Source: ours, see docs/theory/index.md.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=2, branching=2)
        >>> all(row.holds for row in growth_claims(Case("example", policy, 1.0, 0)))
        True
    """
    return [*_spread(case), *_small_budget(case), _bias(case), _capped(case), _merged(case), *_weights(case)]


def answer_claims(case: Case, replicates: int = 100, budget: int = 2000) -> list[Row]:
    """Growing a tree whose paths may end early: how far complete paths are from the teacher, with a cap and without.

    The case holds the tree as it is, not padded.

    Source: ours, see docs/theory/answers.md.

    Example:
        >>> from igrpo_theory.adversaries import adversarial_policy_tree
        >>> case = Case("example", adversarial_policy_tree("early answers"), 1.0, 0)
        >>> all(row.holds for row in answer_claims(case, replicates=50, budget=500))
        True
    """
    rows = []
    for cap, name in ((2, "answers: TV(complete, mu), cap 2"), (None, "answers: TV(complete, mu), no cap")):
        grown = grown_laws(case.policy, case.gamma, replicates=replicates, budget=budget, cap=cap, seed=case.seed)
        # Trees differ in how many complete paths they have; laws are pooled over trees, as the limit is.
        pooled = grown.counts * (replicates / grown.counts.sum())
        limit = mean_field(case.policy, case.gamma, cap).complete_law
        rows.append(_distance_row(case, name, limit, pooled, slack=5 / budget))
    return [*rows, *_weights(case)]


def finite_claims(case: Case, replicates: int = 20_000, budget: int = 5) -> list[Row]:
    """The exact expected law at a small budget, with a cap and without; for small padded trees.

    Source: ours, see docs/theory/finite.md.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> all(row.holds for row in finite_claims(Case("example", policy, 1.0, 0), replicates=2000))
        True
    """
    rows = []
    for cap, name in ((2, "finite: TV(q_5, mu), cap 2"), (budget, "finite: TV(q_5, mu), no cap")):
        laws = grown_laws(case.policy, case.gamma, replicates=replicates, budget=budget, cap=cap, seed=case.seed).laws
        rows.append(_distance_row(case, name, finite_law(case.policy, case.gamma, budget, cap), laws, slack=0.0))
    return rows


def _distance_row(case: Case, name: str, limit: np.ndarray, laws: np.ndarray, slack: float) -> Row:
    """TV(limit, mu), measured with the signs of limit - mu so that noise does not add to it.

    `laws` may be pooled: rows that add up to 1 on average only. Their errors are those of a ratio.
    """
    mu = teacher_law(case.policy, case.gamma)
    signs, mean = np.sign(limit - mu) / 2, laws.mean(axis=0)
    residuals = (laws - laws.sum(axis=1, keepdims=True) * mean) @ signs
    error = float(stats.norm.isf(LEVEL / 2) * residuals.std(ddof=1) / np.sqrt(len(laws)))
    return case.row(name, total_variation(limit, mu), "=", float((mean - mu) @ signs), error + slack)


def _spread(case: Case, replicates: int = 200, budget: int = 1000) -> list[Row]:
    """E TV(mu^B, mu) = C_emp / sqrt(B), and the largest standardised error of a share."""
    mu = teacher_law(case.policy, case.gamma)
    laws = grown_laws(case.policy, case.gamma, replicates=replicates, budget=budget, seed=case.seed).laws
    scaled = np.sqrt(budget) * np.abs(laws - mu).sum(axis=1) / 2
    predicted = rate_constants(case.policy, case.gamma).spread
    width = float(stats.t.isf(LEVEL / 2, replicates - 1)) / np.sqrt(replicates)
    mean = mu + bias_rate(case.policy, case.gamma) / budget
    common = mean * budget * replicates >= _FEWEST_HITS
    sigma = np.sqrt(clt_variance(case.policy, case.gamma)[common] / (budget * replicates))
    largest = (np.abs(laws.mean(axis=0) - mean)[common] / np.maximum(sigma, 1e-12)).max(initial=0.0)
    bound = float(stats.norm.isf(LEVEL / 2 / max(common.sum(), 1)))
    # 3% and 5% of slack for the next order in 1 / budget.
    spread = float(scaled.std(ddof=1)) * width + 0.03 * predicted + 1e-12
    return [
        case.row("theorem 1: sqrt(B) E TV(mu^B, mu)", predicted, "=", float(scaled.mean()), spread),
        case.row("theorem 1: largest |z| of a share", bound, "<=", float(largest), 0.05 * bound),
    ]


def _small_budget(case: Case, replicates: int = 20_000, budget: int = 5) -> list[Row]:
    """At the paper's budget: E Zhat = Z, and the distance of the expected law is within its bound."""
    grown = grown_laws(case.policy, case.gamma, replicates=replicates, budget=budget, seed=case.seed)
    ratio = np.exp(grown.log_normalisers - log_partition(case.policy, case.gamma))
    error = float(stats.norm.isf(LEVEL / 2) * ratio.std(ddof=1) / np.sqrt(replicates))
    bias, spread = _expected_bias(case, grown)
    width = float(stats.norm.isf(LEVEL / 2 / len(bias)) * spread.sum() / 2)
    bound = finite_budget_bound(case.policy, case.gamma, budget).total_variation
    return [
        case.row("theorem 1: E Zhat / Z, B=5", 1.0, "=", float(ratio.mean()), error + 1e-12),
        case.row("theorem 1: TV(q_5, mu) in its bound", bound, "<=", float(np.abs(bias).sum() / 2), width + 1e-12),
    ]


def _bias(case: Case, replicates: int = 4000, budget: int = 100) -> Row:
    """B times the bias, summed with the signs of its rate: C_bias to first order."""
    grown = grown_laws(case.policy, case.gamma, replicates=replicates, budget=budget, seed=case.seed)
    signs = np.sign(bias_rate(case.policy, case.gamma)) / 2
    samples = budget * _bias_samples(case, grown) @ signs
    predicted = rate_constants(case.policy, case.gamma).bias
    error = float(stats.norm.isf(LEVEL / 2) * samples.std(ddof=1) / np.sqrt(replicates))
    # 5% of slack for the next order in 1 / budget.
    return case.row("theorem 1: B TV(q_B, mu)", predicted, "=", float(samples.mean()), error + 0.05 * predicted + 1e-9)


def _bias_samples(case: Case, grown: GrownLaws) -> np.ndarray:
    """Terms whose mean is E mu^B - mu: a covariance with Zhat, of noise 1/B where mu^B itself has 1/sqrt(B)."""
    ratio = np.exp(grown.log_normalisers - log_partition(case.policy, case.gamma))
    return -(grown.laws - teacher_law(case.policy, case.gamma)) * (ratio - 1)[:, None]


def _expected_bias(case: Case, grown: GrownLaws) -> tuple[np.ndarray, np.ndarray]:
    """E mu^B - mu with its standard errors."""
    samples = _bias_samples(case, grown)
    return samples.mean(axis=0), samples.std(axis=0, ddof=1) / np.sqrt(len(samples))


def _capped(case: Case, replicates: int = 100, budget: int = 2000, cap: int = 2) -> Row:
    """Under a cap growth is at the distance from the teacher that the mean-field law predicts."""
    laws = grown_laws(case.policy, case.gamma, replicates=replicates, budget=budget, cap=cap, seed=case.seed).laws
    limit = capped_teacher_law(case.policy, case.gamma, cap)
    # The bias at a finite budget is of order 1 / budget; 5 / budget covers it on trees of moderate values.
    return _distance_row(case, "cap 2: TV(mu_cap, mu)", limit, laws, slack=5 / budget)


def _merged(case: Case, replicates: int = 20, budget: int = 5000) -> Row:
    """Merging equal children: the distance of another limit."""
    world = MergingWorld(case.policy)
    laws = grown_laws(case.policy, case.gamma, replicates=replicates, budget=budget, seed=case.seed, world=world).laws
    limit, slack = merged_law(case.policy, case.gamma), 0.005 + _chance_of_missing(case, budget)
    return _distance_row(case, "duplicates: TV(merged, mu)", limit, laws, slack)


def _chance_of_missing(case: Case, budget: int) -> float:
    """Expected number of possible states that merged growth of this budget never draws; its limit has them all."""
    policy, depth = case.policy, case.policy.depth
    present = np.where(depth == 1, policy.probability, 0.0)
    missing = 0.0
    for level in range(1, policy.turns):
        here = (depth == level) & (present > 0)
        missing += float(np.exp(-budget * present[here]).sum())
        share = np.where(here, np.exp(case.gamma * (policy.value - policy.value[here].max())), 0.0)
        share /= share.sum()
        present = np.where(depth == level + 1, share[policy.parent] * policy.probability, present)
    return missing


def _weights(case: Case, replicates: int = 20_000, budget: int = 5) -> list[Row]:
    """Horvitz-Thompson weights: at the paper's budget and cap, weighted leaves are the teacher law without bias."""
    grown = grown_laws(case.policy, case.gamma, replicates=replicates, budget=budget, cap=2, seed=case.seed)
    tree, ends = grown.growth.tree, case.policy.ends
    weights, leaves = tree.weights("mu"), tree.leaves()
    leaves = leaves[weights[leaves] > 0]  # truncated leaves weigh nothing
    cell = tree.question[leaves] * len(ends) + np.searchsorted(ends, states_of(tree)[leaves])
    sums = np.bincount(cell, weights=weights[leaves], minlength=replicates * len(ends)).reshape(replicates, -1)
    sums *= np.exp(-log_partition(case.policy, case.gamma))
    total = sums.sum(axis=1)
    error = float(stats.norm.isf(LEVEL / 2) * total.std(ddof=1) / np.sqrt(replicates))
    mu = teacher_law(case.policy, case.gamma)
    common = mu * budget * replicates >= _FEWEST_HITS
    scores = (sums.mean(axis=0) - mu)[common] / (sums.std(axis=0, ddof=1)[common] / np.sqrt(replicates) + 1e-12)
    bound = float(stats.norm.isf(LEVEL / 2 / max(common.sum(), 1)))
    return [
        case.row("weights: E sum of W / Z, B=5, cap 2", 1.0, "=", float(total.mean()), error + 1e-12),
        case.row("weights: largest |z| of a path", bound, "<=", float(np.abs(scores).max(initial=0.0)), 0.05 * bound),
    ]
