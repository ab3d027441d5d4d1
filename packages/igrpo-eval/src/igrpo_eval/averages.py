"""averages: several sets' values -> one number over the sets, with an interval.

Questions are resampled inside their own set, since a set has the questions that it has, and sets independently.

Letters: S sets, B resamples.
Source: ours; [stratified] for resampling inside strata.

Example:
    >>> parts = [SetValues(np.array([1.0]), np.array([0])), SetValues(np.array([0.0]), np.array([0]))]
    >>> weighted_estimate(parts, np.array([0.25, 0.75]), resamples=10).mean
    0.25
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from igrpo_eval.benchmarks import BENCHMARKS
from igrpo_eval.intervals import RESAMPLES, Estimate, bootstrap_means

MACRO: Final = "macro average"
WEIGHTED: Final = "size-weighted average"


class SetValues(NamedTuple):
    """One number a record of a set."""

    values: Float[np.ndarray, " n"]
    question: Int[np.ndarray, " n"]
    """Any number that is the same for the records of one question."""


def macro_weights(num_sets: int) -> Float[np.ndarray, " S"]:
    """Every set counts the same, whatever its size.

    Example:
        >>> macro_weights(2).tolist()
        [0.5, 0.5]
    """
    return np.full(num_sets, 1 / num_sets)


def size_weights(names: Sequence[str], asked: Sequence[int]) -> Float[np.ndarray, " S"]:
    """Every question counts the same: of the whole sets where all are known benchmarks, else of those that were asked.

    Example:
        >>> size_weights(["bamboogle", "nq"], [9, 9]).round(3).tolist()
        [0.033, 0.967]
        >>> size_weights(["mine", "nq"], [1, 3]).tolist()
        [0.25, 0.75]
    """
    known = all(name in BENCHMARKS for name in names)
    sizes = np.array([BENCHMARKS[name].size for name in names] if known else asked, dtype=np.float64)
    return sizes / sizes.sum()


def weighted_estimate(
    parts: Sequence[SetValues],
    weights: Float[np.ndarray, " S"],
    *,
    seed: int = 0,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Weighted sum of the sets' means, with the interval between two percentiles of its stratified bootstrap law.

    Args:
        parts: of each set.
        weights: of each set, summing to 1.
        seed: of the generators, one a set.
        level: share of the bootstrap law inside, in (0, 1).
        resamples: B.

    Raises:
        ValueError: a set has no record.
    """
    means = np.zeros(resamples)
    for place, (part, weight) in enumerate(zip(parts, weights, strict=True)):
        means += weight * bootstrap_means(part.values, part.question, np.random.default_rng([seed, place]), resamples)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    mean = sum(float(weight) * float(part.values.mean()) for part, weight in zip(parts, weights, strict=True))
    return Estimate(mean, float(low), float(high))
