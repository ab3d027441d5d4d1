"""paired: two runs' values on the same questions -> their difference, its interval, and how easily chance gives it.

The test flips signs: were the runs alike on every question, each difference could as well have had the other sign.
Questions without a difference cannot tell. With at most `EXACT` others all sign patterns are counted; with more,
patterns are drawn with a seed.

Letters: Q questions, m of them with a difference.
Source: [permutation]; the interval is that of `igrpo_eval.averages`.

Example:
    >>> paired_difference([np.array([1.0, 1.0, 1.0, 0.0])]).p_value
    0.25
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from jaxtyping import Bool, Float

from igrpo_eval.averages import SetValues, weighted_estimate
from igrpo_eval.intervals import RESAMPLES, Estimate

EXACT: Final = 16
"""Most differing questions for which all 2^m patterns are counted."""
PATTERNS: Final = 100_000
"""Patterns that are drawn otherwise."""

Method = Literal["exact", "monte carlo"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedDifference:
    """How much better the second run is than the first."""

    difference: Estimate
    """Mean over questions, second minus first, with its interval."""
    p_value: float
    """Chance of a difference at least as far from 0 if the runs were alike."""
    method: Method
    num_questions: int
    num_differing: int


def paired_difference(
    parts: Sequence[Float[np.ndarray, " _"]],
    weights: Float[np.ndarray, " S"] | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    patterns: int = PATTERNS,
) -> PairedDifference:
    """Compare two runs question by question.

    A drawn p-value counts the observed pattern too, (1 + hits) / (1 + patterns), so that it is never 0 and the test
    keeps its level.

    Args:
        parts: of each of S sets, the questions' values in the second run minus those in the first.
        weights: of each set, summing to 1; not needed for one set.
        seed: of intervals and drawn patterns.
        resamples: of the interval.
        patterns: sign patterns to draw where there are too many to count.

    Raises:
        ValueError: a set has no question.
    """
    weights = np.ones(1) if weights is None else weights
    held = [SetValues(values, np.arange(len(values))) for values in parts]
    difference = weighted_estimate(held, weights, seed=seed, resamples=resamples)
    # What each question adds to the weighted difference.
    shares = np.concatenate([w * values / len(values) for values, w in zip(parts, weights, strict=True)])
    sizes, observed = np.abs(shares[shares != 0]), abs(float(shares.sum()))
    method: Method = "exact" if len(sizes) <= EXACT else "monte carlo"
    if method == "exact":
        p_value = float(np.mean(_far(_all_sums(sizes), observed)))
    else:
        hits = int(_far(_drawn_sums(sizes, patterns, np.random.default_rng(seed)), observed).sum())
        p_value = (1 + hits) / (1 + patterns)
    return PairedDifference(
        difference=difference,
        p_value=p_value,
        method=method,
        num_questions=len(shares),
        num_differing=len(sizes),
    )


_TOLERANCE: Final = 1e-12
"""Sums of the same numbers in another order may differ in their last bits."""


def _far(sums: Float[np.ndarray, " n"], observed: float) -> Bool[np.ndarray, " n"]:
    return np.abs(sums) >= observed - _TOLERANCE


def _all_sums(sizes: Float[np.ndarray, " m"]) -> Float[np.ndarray, " n"]:
    """The signed sum of every one of the 2^m patterns."""
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate([sums + size, sums - size])
    return sums


def _drawn_sums(sizes: Float[np.ndarray, " m"], patterns: int, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
    """Signed sums of random patterns; equal sizes are drawn together, as the number of their plus signs."""
    kinds, counts = np.unique(sizes.round(15), return_counts=True)
    sums = np.zeros(patterns)
    for size, count in zip(kinds, counts, strict=True):
        sums += size * (2 * rng.binomial(count, 0.5, size=patterns) - count)
    return sums
