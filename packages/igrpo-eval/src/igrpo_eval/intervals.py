"""intervals: one number a record -> its mean with a bootstrap interval.

In: values and the question that each belongs to. Out: an `Estimate`.
Questions are resampled, with all samples of a question together: samples of one question are no independent evidence.

Letters: n records, Q questions, B resamples.
Source: Efron (1979), "Bootstrap methods: another look at the jackknife"; percentile intervals.

Example:
    >>> bootstrap_interval(np.array([0.0, 1.0, 1.0, 0.0] * 25), np.arange(100)).mean
    0.5
"""

from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Float, Int

RESAMPLES: Final = 10_000
_BLOCK_NUMBERS: Final = 1 << 22
"""Most counts drawn at once: bounds the memory at 32 MiB."""


class Estimate(NamedTuple):
    """A mean over questions with its interval."""

    mean: float
    low: float
    high: float


def bootstrap_interval(
    values: Float[np.ndarray, " n"],
    question: Int[np.ndarray, " n"],
    *,
    seed: int = 0,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Mean of all values and the interval between two percentiles of its bootstrap law.

    The interval covers what drawing other questions of the same kind would change. It has no width where all questions
    have the same mean: the bootstrap cannot see what never happened.

    Args:
        values: one a record.
        question: any number that is the same for the records of one question.
        seed: of the generator; the same records give the same interval.
        level: share of the bootstrap law inside, in (0, 1).
        resamples: B; the ends are good to about `sqrt(0.025 / B)` in probability.

    Raises:
        ValueError: there is no record, or a setting is out of range.
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}: 0.95 is usual")
    means = bootstrap_means(values, question, np.random.default_rng(seed), resamples)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(values.mean()), float(low), float(high))


def bootstrap_means(
    values: Float[np.ndarray, " n"], question: Int[np.ndarray, " n"], rng: np.random.Generator, resamples: int
) -> Float[np.ndarray, " B"]:
    """Means over resampled questions, the exact bootstrap law.

    Questions with the same sum and number of values are interchangeable, so it is enough to draw how often each such
    kind occurs: Q draws among the kinds. Graded answers have a handful of kinds, whatever Q is.

    Raises:
        ValueError: there is no record or no resample.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> bootstrap_means(np.array([0.0, 1.0]), np.array([7, 7]), rng, 3).tolist()
        [0.5, 0.5, 0.5]
    """
    if len(values) == 0:
        raise ValueError("values must hold at least one record, got none: evaluate a question first")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}: {RESAMPLES} is usual")
    place = np.unique(question, return_inverse=True)[1]
    per_question = np.stack([np.bincount(place, weights=values), np.bincount(place)], axis=1)
    kinds, frequency = np.unique(per_question, axis=0, return_counts=True)
    num_questions = len(per_question)
    block = max(1, _BLOCK_NUMBERS // len(kinds))
    means = [
        _ratio(rng.multinomial(num_questions, frequency / num_questions, size=min(block, resamples - first)), kinds)
        for first in range(0, resamples, block)
    ]
    return np.concatenate(means)


def _ratio(counts: Int[np.ndarray, "B kinds"], kinds: Float[np.ndarray, "kinds 2"]) -> Float[np.ndarray, " B"]:
    """Mean value of each resample: drawn sums over drawn numbers of values."""
    total = counts @ kinds
    return total[:, 0] / total[:, 1]
