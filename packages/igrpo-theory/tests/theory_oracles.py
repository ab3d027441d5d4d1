"""Slow, obvious twins of the package's vectorised functions, and closed forms to test against."""

from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
from scipy import stats

from igrpo_theory import Paths, PolicyTree, enumerate_paths, teacher_law


def sequential_law(weights: list[Fraction], budget: int, cap: int) -> dict[tuple[int, ...], Fraction]:
    """Exact law of counts when children are drawn one at a time and full nodes leave the pool."""
    law = {(0,) * len(weights): Fraction(1)}
    for _ in range(min(budget, cap * len(weights))):
        following: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
        for counts, mass in law.items():
            pool = [node for node, count in enumerate(counts) if count < cap]
            pool_weight = sum(weights[node] for node in pool)
            for node in pool:
                drawn = (*counts[:node], counts[node] + 1, *counts[node + 1 :])
                following[drawn] += mass * weights[node] / pool_weight
        law = dict(following)
    return law


def multinomial_law(weights: list[Fraction], budget: int) -> dict[tuple[int, ...], Fraction]:
    """Exact law of the counts of independent draws."""
    total = sum(weights)
    law = {(0,) * len(weights): Fraction(1)}
    for _ in range(budget):
        following: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
        for counts, mass in law.items():
            for node, weight in enumerate(weights):
                following[(*counts[:node], counts[node] + 1, *counts[node + 1 :])] += mass * weight / total
        law = dict(following)
    return law


def chi_square_p_value(draws: np.ndarray, law: dict[tuple[int, ...], Fraction]) -> float:
    """p-value of observed count vectors against an exact law; rare cells are pooled until 100 draws are expected."""
    seen = Counter(map(tuple, draws.tolist()))
    if not set(seen) <= set(law):
        return 0.0
    cells = [[0.0, 0.0]]
    for counts, mass in sorted(law.items(), key=lambda cell: cell[1]):
        if cells[-1][1] >= 100:
            cells.append([0.0, 0.0])
        cells[-1][0] += seen[counts]
        cells[-1][1] += float(mass) * len(draws)
    statistic = sum((observed - expected) ** 2 / expected for observed, expected in cells)
    return float(stats.chi2.sf(statistic, len(cells) - 1)) if len(cells) > 1 else 1.0


def uncapped_limits(policy: PolicyTree, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """sigma(o) and beta(o) of uncapped growth on a padded tree: at budget B a path's share has mean mu + beta / B and
    standard deviation sigma / sqrt(B), to first order.
    """
    law, mu = enumerate_paths(policy), teacher_law(policy, gamma)
    variance = mu * (1 - mu)
    beta = np.zeros(len(mu))
    eta = np.where(policy.depth == 1, policy.probability, 0.0)
    for depth in range(1, policy.turns):
        prefix = law.states[:, depth - 1]
        marginal = np.bincount(prefix, weights=mu, minlength=len(eta))
        ratio = np.divide(marginal, eta, out=np.zeros_like(eta), where=eta > 0)
        kappa = (marginal * ratio).sum()
        variance += mu**2 / eta[prefix] - 2 * mu**2 * ratio[prefix] + mu**2 * kappa
        beta += mu * (kappa - ratio[prefix])
        weighed = eta * np.exp(gamma * policy.value)
        below = policy.depth == depth + 1
        eta = np.where(below, weighed[policy.parent] * policy.probability, 0.0) / weighed.sum()
    return np.sqrt(variance), beta


def advantages_by_hand(
    paths: Paths, rewards: np.ndarray, turn_rewards: np.ndarray, unit: str, floor: float, keep: np.ndarray, scale: bool
) -> np.ndarray:
    """Group advantages with loops."""
    advantages = np.zeros(turn_rewards.shape)
    for question in set(paths.question.tolist()):
        members = [path for path in range(len(rewards)) if paths.question[path] == question and keep[path]]
        rows = [(path, turn) for path in members for turn in range(paths.length[path])]
        score = {row: rewards[row[0]] + turn_rewards[row] for row in rows}
        pool = [score[row] for row in rows] if unit == "row" else [rewards[path] for path in members]
        mean, std = (np.mean(pool), np.std(pool, ddof=1)) if len(pool) > 1 else (0.0, 1.0)
        for row in rows:
            advantages[row] = (score[row] - mean) / (max(std, floor) + 1e-6 if scale else 1.0)
    return advantages


def make_paths(lengths: list[int], questions: list[int]) -> Paths:
    """Paths of given lengths that share no node."""
    nodes = np.full((len(lengths), max(lengths)), -1)
    count = max(questions) + 1
    for path, length in enumerate(lengths):
        nodes[path, :length] = np.arange(count, count + length)
        count += length
    leaf = nodes[np.arange(len(lengths)), np.array(lengths) - 1]
    return Paths(leaf, nodes, np.array(lengths), np.array(questions))
