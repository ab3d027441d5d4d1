"""claims: a policy tree and a seed -> what theory predicts beside what is measured.

In: a case, a padded policy tree at one gamma. Out: one row a claim, with a verdict. The claims here are exact: each
number is computed in two ways, and compared up to rounding. `growth_claims` holds those that are measured on growing.
"""

from typing import Literal, NamedTuple

import numpy as np

from igrpo_theory.expansion import check_gamma
from igrpo_theory.teacher import (
    expected_reward,
    greedy_law,
    kl_divergence,
    log_partition,
    objective,
    reward_derivative,
    teacher_law,
    teacher_law_by_recursion,
    total_variation,
)
from igrpo_theory.worlds import PolicyTree, enumerate_paths

ROUNDING = 1e-11
"""Allowed difference of two exact computations, in units of 1 + gamma max|V|."""


Relation = Literal["=", "<="]


class Row(NamedTuple):
    """One claim on one case."""

    claim: str
    case: str
    predicted: float
    relation: Relation
    """Whether the measured number should equal the predicted one, or stay below it."""
    measured: float
    error: float
    """How far off the measured number may be."""

    @property
    def holds(self) -> bool:
        """The verdict; a number that is none fails."""
        excess = self.measured - self.predicted
        return bool((abs(excess) if self.relation == "=" else excess) <= self.error)


class Case(NamedTuple):
    """A policy tree at one gamma, and the seed of what is grown on it."""

    name: str
    policy: PolicyTree
    gamma: float
    seed: int

    def row(self, claim: str, predicted: float, relation: Relation, measured: float, error: float) -> Row:
        """One claim on this case."""
        return Row(claim, self.name, float(predicted), relation, float(measured), float(error))


def exact_claims(case: Case) -> list[Row]:
    """Identities of both theorems and of the reward, each computed in two ways.

    Raises:
        ValueError: for gamma = 0, where theorem 2 says nothing.

    Source: IGRPO (arXiv 2607.06223), theorems 1 and 2; docs/theory/.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> all(row.holds for row in exact_claims(Case("example", policy, 1.0, 0)))
        True
    """
    policy, gamma = case.policy, case.gamma
    check_gamma(gamma)
    if gamma == 0:
        raise ValueError(f"gamma must be above 0, got {gamma}: theorem 2 divides by it")
    law, mu = enumerate_paths(policy), teacher_law(policy, gamma)
    recursion, log_z = teacher_law_by_recursion(policy, gamma), log_partition(policy, gamma)
    rounding = ROUNDING * (1 + gamma * float(np.abs(law.value).max()))
    step = min(1e-4, gamma)
    slope = (expected_reward(policy, gamma + step) - expected_reward(policy, gamma - step)) / (2 * step)
    return [
        case.row("theorem 1: law by recursion", 0.0, "=", float(np.abs(recursion.mu - mu).max()), rounding),
        case.row("theorem 1: log Z by recursion", log_z, "=", recursion.log_partition, rounding),
        case.row("theorem 2: gamma J(mu) = log Z", log_z, "=", gamma * objective(mu, policy, gamma), rounding),
        case.row("theorem 2: shortfall is KL(q, mu)", 0.0, "=", _identity_error(case, mu, log_z), 100 * rounding),
        case.row("reward: slope is Cov(V, R)", reward_derivative(policy, gamma), "=", slope, 1e-6),
        *_gamma_limits(case, law.probability),
    ]


def _identity_error(case: Case, mu: np.ndarray, log_z: float) -> float:
    """Largest |log Z - gamma J(q) - KL(q, mu)| over 100 random laws on the possible paths."""
    rng = np.random.default_rng(case.seed)
    # A share below the smallest normal number has too few digits for a logarithm.
    mass = rng.exponential(size=(100, len(mu))) * (mu >= np.finfo(np.float64).tiny)
    laws = mass / mass.sum(axis=1, keepdims=True)
    shortfalls = [log_z - case.gamma * objective(q, case.policy, case.gamma) for q in laws]
    return max(abs(short - kl_divergence(q, mu)) for short, q in zip(shortfalls, laws, strict=True))


def _gamma_limits(case: Case, pi: np.ndarray) -> list[Row]:
    """Gamma 0.01 against the policy, and gamma far above any gap of V against the policy on the best paths."""
    values = enumerate_paths(case.policy).value[pi > 0]
    small = total_variation(teacher_law(case.policy, 0.01), pi)
    best = values.max()
    lower = values[values < best - 1e-9]
    gap = best - lower.max() if len(lower) > 0 else 1.0
    greedy, large = greedy_law(case.policy), 60.0 / gap
    distance = total_variation(teacher_law(case.policy, large), greedy)
    mass = pi[greedy > 0].sum()
    bound = float(np.tanh(0.01 * np.ptp(values) / 4))
    return [
        case.row("theorem 1: TV(mu, pi) at gamma 0.01", bound, "<=", small, ROUNDING),
        case.row("theorem 1: TV to greedy, large gamma", np.exp(-60.0) * (1 - mass) / mass, "<=", distance, 1e-9),
    ]
