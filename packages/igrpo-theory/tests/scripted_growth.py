"""Every way that a small tree can grow, with its probability: expectations become finite sums, without a sampler.

`scenarios` lists them in exact arithmetic, from the definition of growth alone; children of one node are not told apart
by their order, which nothing depends on. `Script` makes `grow` act them out, all
in one forest, so that what the package computes on grown trees can be averaged exactly too.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, product
from math import factorial, prod
from typing import NamedTuple

import numpy as np
import pytest
from theory_oracles import sequential_law

from igrpo_theory import GrowthRule, PolicyTree, PolicyTreeWorld, Proposal, RolloutTree, expansion, grow
from igrpo_theory.expansion import BudgetMode


class Particle(NamedTuple):
    """A node of a scenario: its state and its exact weights for the two targets."""

    state: int
    mu: Fraction
    pi: Fraction


class Scenario(NamedTuple):
    """One way to grow: its probability, children's states and counts stage by stage, and its complete leaves."""

    probability: Fraction
    states: tuple[tuple[int, ...], ...]
    counts: tuple[tuple[int, ...], ...]
    leaves: tuple[Particle, ...]


class Rules(NamedTuple):
    policy: PolicyTree
    odds: list[Fraction]  # pi(state | parent)
    weights: list[Fraction]  # stands for exp(gamma val)
    budget: int
    cap: int
    mode: BudgetMode


def scenarios(rules: Rules) -> list[Scenario]:
    """All of them; their probabilities sum to 1."""
    start = [Particle(0, Fraction(1), Fraction(1))]
    return list(_grow(rules, Scenario(Fraction(1), (), (), ()), start, [rules.budget], Fraction(rules.budget)))


def _grow(
    rules: Rules, so_far: Scenario, parents: list[Particle], counts: list[int], root: Fraction | None
) -> Iterator[Scenario]:
    """Draw the children of one stage, then the counts of the next."""
    means = [root] if root else _means(rules, parents)
    slots = [place for place, count in enumerate(counts) for _ in range(count)]
    families = [_families(rules, parent.state, count) for parent, count in zip(parents, counts, strict=True)]
    ends = set(rules.policy.ends.tolist())
    for chosen in product(*families):
        states = tuple(state for family, _ in chosen for state in family)
        chance = prod((share for _, share in chosen), start=so_far.probability)
        born = []
        for place, state in zip(slots, states, strict=True):
            parent, mean = parents[place], means[place]
            tilt = Fraction(1) if root else rules.weights[parent.state]
            born.append(Particle(state, parent.mu * tilt / mean, parent.pi / mean))
        leaves = so_far.leaves + tuple(particle for particle in born if particle.state in ends)
        active = [particle for particle in born if particle.state not in ends]
        grown = Scenario(chance, (*so_far.states, states), so_far.counts, leaves)
        if not active:
            yield grown
            continue
        for drawn, mass in _draws(rules, active).items():
            following = grown._replace(probability=chance * mass, counts=(*grown.counts, drawn))
            yield from _grow(rules, following, active, list(drawn), None)


def _families(rules: Rules, parent: int, count: int) -> list[tuple[tuple[int, ...], Fraction]]:
    """The children that a node may have, and the chance of each choice."""
    own = [state for state, above in enumerate(rules.policy.parent.tolist()) if above == parent]
    families = []
    for states in combinations_with_replacement(own, count):
        ways = factorial(count) // prod(factorial(states.count(state)) for state in own)
        families.append((states, prod((rules.odds[state] for state in states), start=Fraction(ways))))
    return families


def _draws(rules: Rules, active: list[Particle]) -> dict[tuple[int, ...], Fraction]:
    budget = {"full": rules.budget, "low": len(active), "mid": (rules.budget + len(active)) // 2}[rules.mode]
    return _law(tuple(rules.weights[particle.state] for particle in active), budget, rules.cap)


@cache
def _law(weights: tuple[Fraction, ...], budget: int, cap: int) -> dict[tuple[int, ...], Fraction]:
    return sequential_law(list(weights), budget, cap)


def _means(rules: Rules, active: list[Particle]) -> list[Fraction]:
    law = _draws(rules, active)
    return [sum((mass * drawn[i] for drawn, mass in law.items()), Fraction(0)) for i in range(len(active))]


def act_out(rules: Rules, gamma: float, acts: list[Scenario], monkeypatch: pytest.MonkeyPatch) -> RolloutTree[int]:
    """The trees of `grow` that follow the scenarios, one a question; chains are scored too."""
    rule = GrowthRule(
        budget=rules.budget,
        cap=rules.cap,
        gamma=gamma,
        budget_mode=rules.mode,
        criterion="score",
        turn_limit=rules.policy.turns,
        score_chains=True,
    )
    script = Script(rules.policy, acts)
    monkeypatch.setattr(expansion, "draw_expansions", script.draw)
    growth = grow(script, [0] * len(acts), np.zeros(len(acts), dtype=np.uint64), rule)
    monkeypatch.undo()
    return growth.tree


class Script(PolicyTreeWorld):
    """A world and a draw that take everything from scenarios."""

    def __init__(self, policy: PolicyTree, acts: list[Scenario]) -> None:
        super().__init__(policy)
        self.acts, self.depth = acts, 0

    def propose(self, tree: RolloutTree[int], parents: np.ndarray, keys: np.ndarray) -> Proposal[int]:
        playing = np.unique(tree.question[parents])
        states = [state for slot in playing for state in self.acts[slot].states[self.depth]]
        order = np.argsort(tree.question[parents], kind="stable")
        children = np.empty(len(parents), dtype=np.int64)
        children[order] = states
        return Proposal(children.tolist(), self.policy.answer[children])

    def draw(self, probabilities: np.ndarray, question: np.ndarray, *others: object) -> np.ndarray:
        counts = [count for slot in np.unique(question) for count in self.acts[slot].counts[self.depth]]
        self.depth += 1
        drawn = np.empty(len(question), dtype=np.int64)
        drawn[np.argsort(question, kind="stable")] = counts
        return drawn
