"""Samplers that look like the capped draw and are not it, one function each, to see that the tests notice."""

from fractions import Fraction

from theory_oracles import multinomial_law


def top_slots_law(weights: list[Fraction], budget: int, cap: int) -> dict[tuple[int, ...], Fraction]:
    """Gumbel top-m over cap slots a node: like drawing m of the slots, each as heavy as its node, without return."""
    law: dict[tuple[int, ...], Fraction] = {(0,) * len(weights): Fraction(1)}
    for _ in range(min(budget, cap * len(weights))):
        following: dict[tuple[int, ...], Fraction] = {}
        for counts, mass in law.items():
            slots = [weight * (cap - count) for weight, count in zip(weights, counts, strict=True)]
            for node, left in enumerate(slots):
                if left > 0:
                    drawn = (*counts[:node], counts[node] + 1, *counts[node + 1 :])
                    following[drawn] = following.get(drawn, Fraction(0)) + mass * left / sum(slots)
        law = following
    return law


def clipped_law(weights: list[Fraction], budget: int, cap: int) -> dict[tuple[int, ...], Fraction]:
    """Independent draws, clipped to the cap afterwards: spends less than the budget."""
    law: dict[tuple[int, ...], Fraction] = {}
    for counts, mass in multinomial_law(weights, budget).items():
        clipped = tuple(min(count, cap) for count in counts)
        law[clipped] = law.get(clipped, Fraction(0)) + mass
    return law


def conditioned_law(weights: list[Fraction], budget: int, cap: int) -> dict[tuple[int, ...], Fraction]:
    """Independent draws given that no count passes the cap."""
    kept = {counts: mass for counts, mass in multinomial_law(weights, budget).items() if max(counts) <= cap}
    return {counts: mass / sum(kept.values()) for counts, mass in kept.items()}


def distance(one: dict[tuple[int, ...], Fraction], other: dict[tuple[int, ...], Fraction]) -> Fraction:
    """Total variation of two laws of counts."""
    zero = Fraction(0)
    return sum((abs(one.get(k, zero) - other.get(k, zero)) for k in set(one) | set(other)), zero) / 2
