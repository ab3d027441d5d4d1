"""finite: a policy tree, a budget and a cap -> the exact expected leaves of a grown tree.

In: a small policy tree. Out: how many leaves of each kind a tree has on average, complete paths and truncated ones, in
every budget mode and with early answers; and q_B(o), the expected share of path o on the padded tree, as theorem 1 has
it. Nodes of one state are alike, so the active nodes of a stage are a multiset of states; the laws of multisets follow
one another by exact sums over the counts of the draw and over the children.

Letters: K complete paths, S states, H states of one depth that can be active.
Source: ours, see docs/theory/finite.md.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from math import comb, factorial, prod
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from igrpo_theory.capped import check_cap
from igrpo_theory.expansion import BudgetMode, Scheme, check_gamma, check_mode, stage_budget
from igrpo_theory.race import calibrated_rates
from igrpo_theory.worlds import PolicyTree, padded

Multiset = tuple[int, ...]
"""How many nodes there are at each state of a depth."""

# Pairs of multisets of neighbouring depths, a measure of the work; about ten seconds at the limit.
_MOST_PAIRS = 1_000_000
_MOST_MULTISETS = 20_000
# Steps of `finite_work`, for budgets of many draws among few multisets.
_MOST_STEPS = 1_000_000_000


class FiniteLeaves(NamedTuple):
    """Leaves of one tree, on average."""

    complete: Float[np.ndarray, " K"]
    """Leaves that end each complete path."""
    truncated: Float[np.ndarray, " S"]
    """Leaves that were active at a state and drew no child."""
    parents: Float[np.ndarray, " S"]
    """Nodes at a state that have children; the root is left out."""

    @property
    def complete_law(self) -> Float[np.ndarray, " K"]:
        """The law of a complete path, pooled over many trees."""
        return self.complete / self.complete.sum()

    @property
    def truncated_share(self) -> float:
        """The share of truncated leaves, pooled over many trees."""
        return float(self.truncated.sum() / (self.complete.sum() + self.truncated.sum()))


def finite_leaves(
    policy: PolicyTree, gamma: float, budget: int, cap: int, *, mode: BudgetMode = "full", scheme: Scheme = "capped"
) -> FiniteLeaves:
    """Expected leaves of a tree of this budget; answers leave the pool of active nodes, as in `grow`.

    A cap of at least the budget is no cap. It is what `mean_field` is the limit of, after division by the budget.

    Raises:
        ValueError: when there are too many multisets to sum over, or the scheme has no cap of its own.

    Source: ours, see docs/theory/finite.md.

    Example:
        >>> from igrpo_theory.adversaries import adversarial_policy_tree
        >>> leaves = finite_leaves(adversarial_policy_tree("early answers"), 1.0, 5, 2)
        >>> round(float(leaves.complete.sum()), 3), round(leaves.truncated_share, 3)
        (8.602, 0.073)
    """
    _check_finite(gamma, budget, cap, mode, scheme)
    stages = _Stages(policy, gamma, budget, cap, mode, scheme)
    stages.check_size()
    law: dict[Multiset, float] = {(budget,): 1.0}
    for depth in range(policy.turns):
        law = stages.step(law, depth)
    ends = policy.ends
    return FiniteLeaves(stages.born[policy.parent[ends]] * policy.probability[ends], stages.truncated, stages.parents)


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
    longer = padded(policy)
    ends = np.empty(len(policy.ends))
    ends[longer.path] = finite_leaves(longer.policy, gamma, budget, cap, scheme=scheme).complete / budget
    return ends


def finite_work(policy: PolicyTree, budget: int, cap: int) -> int:
    """Steps that `finite_leaves` takes, roughly and rather too many: about a million a second.

    Source: ours.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> finite_work(policy, 5, 2) < 1_000_000 < finite_work(policy, 20, 2)
        True
    """
    kinds = [len(states) for states in _active_states(policy)[1:]]
    sizes = [comb(budget + number - 1, budget) for number in kinds]
    if cap >= budget:
        draws = [size * size for size in sizes[:-1]]
    else:
        # Most ways to have 0..cap children: nodes spread over the states as evenly as they can be.
        spread = [comb(-(-budget // min(number, budget)) + cap, cap) ** min(number, budget) for number in kinds]
        draws = [budget * size * profiles for size, profiles in zip(sizes, spread, strict=True)]
    return sum(draws) + 10 * sum(one * other for one, other in pairwise(sizes))


def _active_states(policy: PolicyTree) -> list[Int[np.ndarray, " H"]]:
    """States that have children, by depth."""
    internal = np.bincount(policy.parent[1:], minlength=len(policy.parent)) > 0
    return [np.flatnonzero((policy.depth == depth) & internal) for depth in range(policy.turns)]


class _Stages:
    """Transitions between multisets of neighbouring depths, and what they leave behind."""

    def __init__(
        self, policy: PolicyTree, gamma: float, budget: int, cap: int, mode: BudgetMode, scheme: Scheme
    ) -> None:
        self.policy, self.gamma, self.budget, self.cap = policy, gamma, budget, cap
        self.mode, self.scheme = mode, scheme
        self.internal = np.bincount(policy.parent[1:], minlength=len(policy.parent)) > 0
        self.active = _active_states(policy)
        # Mean children of the nodes at each state together, and mean numbers of nodes there that get none, and some.
        self.born, self.truncated, self.parents = np.zeros((3, len(policy.parent)))
        self._draw = cache(_capped_draw)

    def check_size(self) -> None:
        """Refuse what would take minutes."""
        sizes = [comb(self.budget + len(states) - 1, self.budget) for states in self.active[1:]]
        pairs = sum(one * other for one, other in pairwise(sizes))
        steps = finite_work(self.policy, self.budget, self.cap)
        if max(sizes, default=0) > _MOST_MULTISETS or pairs > _MOST_PAIRS or steps > _MOST_STEPS:
            raise ValueError(
                f"budget must be small enough to sum over all stages, got {self.budget} for {max(sizes)} multisets: "
                "lower it, or estimate the law by growing replicates"
            )

    def step(self, law: dict[Multiset, float], depth: int) -> dict[Multiset, float]:
        """The law of the next depth's multiset; it lacks the chance that no node is left to go on."""
        families: dict[Multiset, float] = defaultdict(float)
        states, weights = self.active[depth], self._weights(depth)
        for nodes, mass in law.items():
            drawn = self._expand(nodes, weights, depth)
            self.born[states] += mass * drawn.mean
            self.truncated[states] += mass * drawn.childless
            if depth > 0:
                self.parents[states] += mass * (np.array(nodes) - drawn.childless)
            for counts, chance in drawn.law.items():
                families[counts] += mass * chance
        following: dict[Multiset, float] = defaultdict(float)
        for counts, mass in families.items():
            for children, chance in self._children(counts, depth):
                if any(children):
                    following[children] += mass * chance
        return following

    def _expand(self, nodes: Multiset, weights: Float[np.ndarray, " H"], depth: int) -> "_Drawn":
        last = depth + 1 == self.policy.turns  # only means matter there
        if depth == 0:  # the root has its budget whatever cap and mode say
            return _Drawn({} if last else {nodes: 1.0}, np.array(nodes, dtype=np.float64), np.zeros(1))
        draws = int(stage_budget(self.mode, self.budget, np.array([sum(nodes)]))[0])
        rates = self._rates(nodes, weights, draws)
        if self.cap >= draws:
            return _free_draw(nodes, rates, draws, with_law=not last)
        drawn = self._draw(nodes, rates, self.cap, draws)
        return drawn._replace(law={}) if last else drawn

    def _children(self, counts: Multiset, depth: int) -> Iterator[tuple[Multiset, float]]:
        """Multisets of active children, given how many children the nodes of each state have."""
        partial: list[tuple[Multiset, float]] = [((), 1.0)]
        for state, count in zip(self.active[depth].tolist(), counts, strict=True):
            own, goes_on = self.policy.parent == state, self.internal
            odds = self.policy.probability[own & goes_on]
            kinds = len(odds)
            # Children that end a path are one kind more, which nothing follows.
            if (own & ~goes_on).any():
                odds = np.append(odds, self.policy.probability[own & ~goes_on].sum())
            splits = [(split[:kinds], _multinomial_chance(split, odds)) for split in _multisets(count, len(odds))]
            partial = [(done + split, chance * more) for done, chance in partial for split, more in splits]
        yield from partial

    def _weights(self, depth: int) -> Float[np.ndarray, " H"]:
        """exp(gamma val) of each state, the largest scaled to 1."""
        values = self.policy.value[self.active[depth]]
        with np.errstate(over="ignore"):
            weights = np.exp(self.gamma * (values - values.max()))
        return np.maximum(weights, np.finfo(np.float64).smallest_subnormal)

    def _rates(self, nodes: Multiset, weights: Float[np.ndarray, " H"], draws: int) -> tuple[float, ...]:
        if self.scheme != "calibrated" or self.cap >= draws:
            return tuple(weights.tolist())
        copies = np.repeat(np.arange(len(nodes)), nodes)
        total = np.array([min(draws, self.cap * len(copies))])
        rates = np.ones(len(nodes))
        rates[copies] = calibrated_rates(weights[copies], np.zeros(len(copies), dtype=np.int64), total, self.cap)
        return tuple(rates.tolist())


class _Drawn(NamedTuple):
    """What one draw does to a multiset."""

    law: dict[Multiset, float]
    """Of the children of the nodes of each state together."""
    mean: Float[np.ndarray, " H"]
    """Of the same."""
    childless: Float[np.ndarray, " H"]
    """Mean number of nodes at each state that get no child."""


def _free_draw(nodes: Multiset, rates: tuple[float, ...], draws: int, with_law: bool) -> _Drawn:
    """Independent draws."""
    here = np.array(nodes)
    share = np.where(here > 0, rates, 0.0) / np.dot(nodes, rates)
    kinds = _multisets(draws, len(nodes)) if with_law else ()
    law = {counts: _multinomial_chance(counts, share * here) for counts in kinds}
    possible = {counts: chance for counts, chance in law.items() if chance > 0}
    return _Drawn(possible, draws * share * here, (1 - share) ** draws * here)


def _capped_draw(nodes: Multiset, rates: tuple[float, ...], cap: int, draws: int) -> _Drawn:
    """Children one at a time, until the draws are spent or all nodes have the cap.

    A state's nodes are tracked by how many of them have 0, 1, .. cap - 1 children; those that have the cap are out.
    """
    sure = [count if np.isinf(rate) else 0 for count, rate in zip(nodes, rates, strict=True)]
    start = tuple((count - out, *[0] * (cap - 1)) for count, out in zip(nodes, sure, strict=True))
    profiles: dict[tuple[Multiset, ...], float] = {start: 1.0}
    for _ in range(min(draws, cap * sum(nodes)) - cap * sum(sure)):
        profiles = _one_more_draw(profiles, rates, cap)
    law: dict[Multiset, float] = defaultdict(float)
    mean, childless = np.zeros((2, len(nodes)))
    for profile, chance in profiles.items():
        missing = [sum((cap - j) * number for j, number in enumerate(state)) for state in profile]
        counts = tuple(cap * count - gap for count, gap in zip(nodes, missing, strict=True))
        law[counts] += chance
        mean += chance * np.array(counts)
        childless += chance * np.array([state[0] for state in profile])
    return _Drawn(law, mean, childless)


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
                    following[drawn] += chance * (rates[place] * number / pool)  # rates may be tiny
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


def _check_finite(gamma: float, budget: int, cap: int, mode: str, scheme: str) -> None:
    check_gamma(gamma)
    check_mode(mode)
    check_cap(cap)
    if budget < 1:
        raise ValueError(f"budget must be at least 1, got {budget}: the root needs a child")
    if scheme not in ("capped", "calibrated"):
        raise ValueError(f"scheme must be capped or calibrated, got {scheme}: grow replicates for the others")
