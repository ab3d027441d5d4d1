"""finite: a policy tree, a budget and a cap -> the exact expected law of the paths that growth finds.

In: a small policy tree, padded where it ends early, as theorem 1 has it. Out: q_B(o), the expected share of path o
among the B leaves of a tree. Nodes of one state are alike, so a stage is a multiset of states; the laws of multisets
follow one another by exact sums over the counts of the draw and over the children, and the last stage needs mean counts
only.

Letters: K complete paths, H states of one depth.
Source: ours, see docs/theory/finite.md.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from math import comb, factorial, prod

import numpy as np
from jaxtyping import Float

from igrpo_theory.capped import check_cap
from igrpo_theory.expansion import Scheme, check_gamma, expected_expansions
from igrpo_theory.race import calibrated_rates
from igrpo_theory.worlds import PolicyTree, padded

Multiset = tuple[int, ...]
"""How many nodes there are at each state of a depth."""

# Pairs of multisets of neighbouring depths, a measure of the work; about ten seconds at the limit.
_MOST_PAIRS = 1_000_000
_MOST_MULTISETS = 20_000


def finite_law(
    policy: PolicyTree, gamma: float, budget: int, cap: int, scheme: Scheme = "capped"
) -> Float[np.ndarray, " K"]:
    """q_B(o): the expected share of each path among the leaves of a tree of this budget, on the padded policy.

    A cap of at least the budget is no cap. In every budget mode it is the same, since no padded path ends early.

    Raises:
        ValueError: when there are too many multisets to sum over, or the scheme has no cap of its own.

    Source: ours, see docs/theory/finite.md.

    Example:
        >>> from igrpo_theory.teacher import teacher_law, total_variation
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> mu = teacher_law(policy, 1.0)
        >>> [round(total_variation(finite_law(policy, 1.0, 5, cap), mu), 4) for cap in (5, 2)]
        [0.0079, 0.0387]
    """
    _check_finite(gamma, budget, cap, scheme)
    longer = padded(policy)
    stages = _Stages(longer.policy, gamma, cap, scheme)
    stages.check_size(budget)
    law = {nodes: _multinomial_chance(nodes, stages.first) for nodes in _multisets(budget, len(stages.first))}
    for depth in range(1, policy.turns - 1):
        law = stages.step(law, depth)
    ends = np.empty(len(policy.ends))
    ends[longer.path] = stages.last_step(law, budget) if policy.turns > 1 else stages.first
    return ends


class _Stages:
    """Transitions between multisets of neighbouring depths."""

    def __init__(self, policy: PolicyTree, gamma: float, cap: int, scheme: Scheme) -> None:
        self.policy, self.cap, self.scheme, self.gamma = policy, cap, scheme, gamma
        self.states = [np.flatnonzero(policy.depth == depth) for depth in range(policy.turns + 1)]
        self.first = policy.probability[self.states[1]]
        self._counts = cache(_count_law)

    def check_size(self, budget: int) -> None:
        """Refuse what would take minutes."""
        sizes = [comb(budget + len(states) - 1, budget) for states in self.states[1:-1]]
        pairs = sum(one * other for one, other in pairwise(sizes))
        if max(sizes, default=0) > _MOST_MULTISETS or pairs > _MOST_PAIRS:
            raise ValueError(
                f"budget must be small enough to sum over all stages, got {budget} for {max(sizes)} multisets: "
                "lower it, or estimate the law by growing replicates"
            )

    def weights(self, depth: int) -> Float[np.ndarray, " H"]:
        """exp(gamma val) of each state, the largest scaled to 1."""
        values = self.policy.value[self.states[depth]]
        with np.errstate(over="ignore"):
            return np.maximum(np.exp(self.gamma * (values - values.max())), np.finfo(np.float64).smallest_subnormal)

    def step(self, law: dict[Multiset, float], depth: int) -> dict[Multiset, float]:
        """The law of the next depth's multiset."""
        following: dict[Multiset, float] = defaultdict(float)
        weights = self.weights(depth)
        for nodes, mass in law.items():
            for counts, chance in self._counts(nodes, self._rates(nodes, weights), self.cap).items():
                for children, split in self._children(counts, depth):
                    following[children] += mass * chance * split
        return dict(following)

    def last_step(self, law: dict[Multiset, float], budget: int) -> Float[np.ndarray, " K"]:
        """Expected shares of the last states."""
        depth = self.policy.turns - 1
        nodes = np.array(list(law))
        stage, state = np.nonzero(nodes)
        copies = nodes[stage, state]
        stage, state = np.repeat(stage, copies), np.repeat(state, copies)
        budgets = np.full(len(nodes), budget)
        means = expected_expansions(self.weights(depth)[state], stage, budgets, self.cap, self.scheme)
        mass = np.array(list(law.values()))[stage]
        expanded = np.bincount(self.states[depth][state], weights=mass * means, minlength=len(self.policy.parent))
        last = self.states[-1]
        return expanded[self.policy.parent[last]] * self.policy.probability[last] / budget

    def _rates(self, nodes: Multiset, weights: Float[np.ndarray, " H"]) -> tuple[float, ...]:
        budget = sum(nodes)
        if self.scheme != "calibrated" or self.cap >= budget:
            return tuple(weights.tolist())
        copies = np.repeat(np.arange(len(nodes)), nodes)
        question = np.zeros(budget, dtype=np.int64)
        rates = np.ones(len(nodes))
        rates[copies] = calibrated_rates(weights[copies], question, np.array([budget]), self.cap)
        return tuple(rates.tolist())

    def _children(self, counts: Multiset, depth: int) -> Iterator[tuple[Multiset, float]]:
        """Multisets of children, given how many children the nodes of each state have."""
        parents = self.policy.parent[self.states[depth + 1]]
        partial: list[tuple[Multiset, float]] = [((), 1.0)]
        for state, count in zip(self.states[depth].tolist(), counts, strict=True):
            own = self.policy.probability[self.states[depth + 1][parents == state]]
            splits = [(split, _multinomial_chance(split, own)) for split in _multisets(count, len(own))]
            partial = [(done + split, chance * more) for done, chance in partial for split, more in splits]
        yield from partial


def _count_law(nodes: Multiset, rates: tuple[float, ...], cap: int) -> dict[Multiset, float]:
    """Children of the nodes of each state together; the draw has as many children as there are nodes.

    A state's nodes are tracked by how many of them have 0, 1, .. cap - 1 children; those that have the cap are out.
    """
    total = sum(nodes)
    if cap >= total:
        weights = np.array(nodes) * np.array(rates)
        law = {k: _multinomial_chance(k, weights / weights.sum()) for k in _multisets(total, len(nodes))}
        return {k: chance for k, chance in law.items() if chance > 0}
    sure = [count if np.isinf(rate) else 0 for count, rate in zip(nodes, rates, strict=True)]
    start = tuple((count - out, *[0] * (cap - 1)) for count, out in zip(nodes, sure, strict=True))
    profiles: dict[tuple[Multiset, ...], float] = {start: 1.0}
    for _ in range(total - cap * sum(sure)):
        profiles = _one_more_draw(profiles, rates, cap)
    law = defaultdict(float)
    for profile, chance in profiles.items():
        missing = [sum((cap - j) * number for j, number in enumerate(state)) for state in profile]
        law[tuple(cap * count - gap for count, gap in zip(nodes, missing, strict=True))] += chance
    return dict(law)


def _one_more_draw(
    profiles: dict[tuple[Multiset, ...], float], rates: tuple[float, ...], cap: int
) -> dict[tuple[Multiset, ...], float]:
    following: dict[tuple[Multiset, ...], float] = defaultdict(float)
    for profile, chance in profiles.items():
        pool = sum(rate * sum(state) for state, rate in zip(profile, rates, strict=True) if any(state))
        for place, state in enumerate(profile):
            for j, number in enumerate(state):
                if number > 0:
                    moved = list(state)
                    moved[j] -= 1
                    if j + 1 < cap:
                        moved[j + 1] += 1
                    drawn = (*profile[:place], tuple(moved), *profile[place + 1 :])
                    following[drawn] += chance * rates[place] * number / pool
    return following


def _multisets(total: int, num_kinds: int) -> Iterator[Multiset]:
    """All ways to share a total out among kinds."""
    if num_kinds == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _multisets(total - first, num_kinds - 1):
            yield (first, *rest)


def _multinomial_chance(counts: Multiset, probabilities: Float[np.ndarray, " H"]) -> float:
    ways = factorial(sum(counts)) // prod(factorial(count) for count in counts)
    return float(ways * prod(p**count for p, count in zip(probabilities.tolist(), counts, strict=True)))


def _check_finite(gamma: float, budget: int, cap: int, scheme: str) -> None:
    check_gamma(gamma)
    check_cap(cap)
    if budget < 1:
        raise ValueError(f"budget must be at least 1, got {budget}: the root needs a child")
    if scheme not in ("capped", "calibrated"):
        raise ValueError(f"scheme must be capped or calibrated, got {scheme}: grow replicates for the others")
