"""Samplers that look like the capped draw and are not it, one function each, to see that the tests notice."""

from fractions import Fraction
from itertools import product

import numpy as np
from theory_oracles import multinomial_law, sequential_law


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


def race_law(weights: list[Fraction], budget: int, cap: int) -> dict[tuple[int, ...], Fraction]:
    """The law of the counts of a race of stopped clocks, by integrating over the time of the last arrival.

    Every term is a polynomial times exp(-rate t), so the integral is a sum of k! / rate^(k + 1): exact, and built on
    nothing but Poisson clocks.
    """
    num_nodes, total = len(weights), min(budget, cap * len(weights))
    law = {}
    for counts in product(range(min(cap, total) + 1), repeat=num_nodes):
        if sum(counts) != total:
            continue
        mass = Fraction(0)
        for last in range(num_nodes):
            if counts[last] > 0:
                density = _times(
                    {(0, Fraction(0)): weights[last]},
                    *(
                        _poisson(weights[node], counts[node] - 1)
                        if node == last
                        else _stopped(weights[node], counts[node], cap)
                        for node in range(num_nodes)
                    ),
                )
                mass += sum(c * _factorial(k) / rate ** (k + 1) for (k, rate), c in density.items())
        law[counts] = mass
    return law


Terms = dict[tuple[int, Fraction], Fraction]
"""Coefficients of t^k exp(-rate t)."""


def _factorial(number: int) -> int:
    return int(np.prod(np.arange(1, number + 1), dtype=object)) if number else 1


def _poisson(weight: Fraction, count: int) -> Terms:
    return {(count, weight): weight**count / _factorial(count)}


def _stopped(weight: Fraction, count: int, cap: int) -> Terms:
    if count < cap:
        return _poisson(weight, count)
    terms: Terms = {(0, Fraction(0)): Fraction(1)}
    for fewer in range(cap):
        ((power, coefficient),) = _poisson(weight, fewer).items()
        terms[power] = -coefficient
    return terms


def _times(*factors: Terms) -> Terms:
    result: Terms = {(0, Fraction(0)): Fraction(1)}
    for factor in factors:
        following: Terms = {}
        for (k, rate), c in result.items():
            for (more_k, more_rate), more_c in factor.items():
                power = (k + more_k, rate + more_rate)
                following[power] = following.get(power, Fraction(0)) + c * more_c
        result = following
    return result


__all__ = ["clipped_law", "conditioned_law", "distance", "race_law", "sequential_law", "top_slots_law"]
