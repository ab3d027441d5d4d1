"""Second derivations of the rates, and the expected law of growth by enumeration."""

from collections import defaultdict
from itertools import combinations_with_replacement
from math import factorial

import numpy as np

from igrpo_theory import PolicyTree

Counts = tuple[int, ...]


def propagated_limits(policy: PolicyTree, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Covariance and bias of the path shares by carrying both through the stages (the delta method), without a closed
    form: each stage maps the law of particles by f(e) = (e w) P / e(w) and adds a multinomial error.
    """
    depth = policy.depth
    states = np.flatnonzero(depth == 1)
    eta = policy.probability[states]
    covariance, bias = np.diag(eta) - np.outer(eta, eta), np.zeros(len(eta))
    for level in range(2, policy.turns + 1):
        weight = np.exp(gamma * (policy.value[states] - policy.value[states].max()))
        below = np.flatnonzero(depth == level)
        step = (states[:, None] == policy.parent[below]) * policy.probability[below] * weight[:, None]
        mean, mass = eta @ step, eta @ weight
        jacobian = (step - np.outer(weight, mean / mass)) / mass
        # Second derivatives of a ratio, contracted with the covariance.
        cross, square = weight @ covariance @ step, weight @ covariance @ weight
        bias = bias @ jacobian - cross / mass**2 + mean * square / mass**3
        eta, states = mean / mass, below
        covariance = jacobian.T @ covariance @ jacobian + np.diag(eta) - np.outer(eta, eta)
    return covariance, bias


def expected_law(policy: PolicyTree, gamma: float, budget: int) -> np.ndarray:
    """q_B: the expected share of each path, by enumerating the counts of every stage."""
    depth = policy.depth
    states = np.flatnonzero(depth == 1)
    laws: dict[Counts, float] = dict(_multinomial(policy.probability[states], budget))
    mean = policy.probability[states]
    for level in range(2, policy.turns + 1):
        below = np.flatnonzero(depth == level)
        step = (states[:, None] == policy.parent[below]) * policy.probability[below]
        weight = np.exp(gamma * (policy.value[states] - policy.value[states].max()))
        chances = [
            (mass, (np.array(counts) * weight / (np.array(counts) @ weight)) @ step) for counts, mass in laws.items()
        ]
        mean = sum(mass * chance for mass, chance in chances)
        if level < policy.turns:
            following: dict[Counts, float] = defaultdict(float)
            for mass, chance in chances:
                for counts, p in _multinomial(chance, budget):
                    following[counts] += mass * p
            laws = dict(following)
        states = below
    return mean


def _multinomial(chance: np.ndarray, budget: int) -> list[tuple[Counts, float]]:
    """All count vectors of independent draws, and their chances."""
    out = []
    for cells in combinations_with_replacement(np.flatnonzero(chance > 0).tolist(), budget):
        counts = np.bincount(np.array(cells, dtype=int), minlength=len(chance))
        ways = factorial(budget) / np.prod([float(factorial(count)) for count in counts])
        out.append((tuple(counts.tolist()), float(ways * np.prod(chance**counts))))
    return out
