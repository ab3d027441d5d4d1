"""The law of the counts of a race of stopped Poisson clocks, in exact arithmetic, from the clocks alone."""

from fractions import Fraction
from itertools import product
from math import factorial


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
                mass += sum(c * factorial(k) / rate ** (k + 1) for (k, rate), c in density.items())
        law[counts] = mass
    return law


Terms = dict[tuple[int, Fraction], Fraction]
"""Coefficients of t^k exp(-rate t)."""


def _poisson(weight: Fraction, count: int) -> Terms:
    return {(count, weight): weight**count / factorial(count)}


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
