"""association: one number and one outcome a path -> how well the number tells the outcome inside a question.

In: values, outcomes, and the question of each path. Out: covariance, AUC and Pearson's correlation within questions,
and Pearson's correlation between them, with intervals of a cluster bootstrap.
Every question is first boiled down to a row of sums, of which each statistic is a function. A resample of whole
questions is then a vector of counts, and all resamples are one matrix product.

Letters: P paths, C questions (clusters), K columns, B resamples.
Source: ours; Mann and Whitney (1947) for the pairs, Efron (1979) for the bootstrap.

Example:
    >>> sums = question_sums(
    ...     np.array([0.1, 0.9, 0.5, 0.2]), np.array([False, True, True, False]), np.zeros(4, int), np.zeros(4, int)
    ... )
    >>> auc(sums.sum(axis=0, keepdims=True)).tolist()
    [1.0]
"""

import math
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

RESAMPLES: Final = 1_000
_BLOCK_NUMBERS: Final = 1 << 22
"""Most counts drawn at once: bounds the memory of a block at about 80 MiB."""
_ROUNDING: Final = 1e-12
"""A variance below this share of its square moment is rounding."""

Statistic: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Totals over questions, [B K], to one number each, [B]; NaN where it is not defined."""


class Sums(IntEnum):
    """Columns of `question_sums`."""

    CONCORDANT = 0
    """Pairs of a success and a failure of one question where the success has the larger value; ties count half."""
    PAIRS = 1
    XY = 2
    """Sum of products of deviations from the question's means; XX and YY are the squares."""
    XX = 3
    YY = 4
    COVARIANCE = 5
    """Sum over questions of the unbiased covariance."""
    COVARIED = 6
    """Questions with at least two paths."""


class Estimate(NamedTuple):
    """A statistic with its interval; None where it is not defined, and no ends where one question is all there is."""

    value: float | None
    low: float | None
    high: float | None


def question_sums(
    values: Float[np.ndarray, " P"],
    success: Bool[np.ndarray, " P"],
    unit: Int[np.ndarray, " P"],
    question: Int[np.ndarray, " P"],
) -> Float[np.ndarray, "C K"]:
    """What each question adds to the totals that the statistics within questions are functions of.

    Args:
        values: V or s, finite.
        success: the outcome R.
        unit: paths are compared inside a unit: one question under one policy.
        question: units of one question are drawn together.
    """
    first, place, count = np.unique(unit, return_index=True, return_inverse=True, return_counts=True)[1:]
    wins = np.bincount(place, weights=success, minlength=len(count))
    pairs = wins * (count - wins)
    ranks = np.bincount(place, weights=np.where(success, _ranks(values, place, count), 0.0), minlength=len(count))
    # Deviations are taken from the unit's first value, so that those of equal values are exactly 0.
    x, y = values - values[first][place], success - wins[place] / count[place]
    x -= (np.bincount(place, weights=x) / count)[place]
    xy, xx, yy = (np.bincount(place, weights=product, minlength=len(count)) for product in (x * y, x * x, y * y))
    several = count > 1
    covariance = np.where(several, xy / np.maximum(count - 1, 1), 0.0)
    columns = (ranks - wins * (wins + 1) / 2, pairs, xy, xx, yy, covariance, several)
    return _by_question(columns, question[first])


def mean_sums(
    values: Float[np.ndarray, " P"],
    success: Bool[np.ndarray, " P"],
    unit: Int[np.ndarray, " P"],
    question: Int[np.ndarray, " P"],
) -> Float[np.ndarray, "C K"]:
    """Moments of the units' means, summed by question: 1, x, y, xx, yy, xy; arguments as in `question_sums`."""
    first, place, count = np.unique(unit, return_index=True, return_inverse=True, return_counts=True)[1:]
    # Moments lose digits far from 0.
    x, y = (np.bincount(place, weights=column) / count for column in (values - values.mean(), success.astype(float)))
    return _by_question((np.ones(len(count)), x, y, x * x, y * y, x * y), question[first])


def auc(totals: Float[np.ndarray, "B K"]) -> Float[np.ndarray, " B"]:
    """Chance that a success has a larger value than a failure of the same question, ties half, by pairs."""
    return _ratio(totals[..., Sums.CONCORDANT], totals[..., Sums.PAIRS])


def pearson(totals: Float[np.ndarray, "B K"]) -> Float[np.ndarray, " B"]:
    """Correlation of the deviations from the question's means."""
    return _ratio(totals[..., Sums.XY], np.sqrt(totals[..., Sums.XX] * totals[..., Sums.YY]))


def covariance(totals: Float[np.ndarray, "B K"]) -> Float[np.ndarray, " B"]:
    """Mean over questions of the covariance inside a question.

    It estimates d/dgamma of the teacher's expected reward at gamma = 0, where paths are drawn from the policy.
    """
    return _ratio(totals[..., Sums.COVARIANCE], totals[..., Sums.COVARIED])


def between_pearson(totals: Float[np.ndarray, "B K"]) -> Float[np.ndarray, " B"]:
    """Correlation of the units' means, from totals of `mean_sums`."""
    n, x, y, xx, yy, xy = np.moveaxis(totals, -1, 0)
    spread_x, spread_y = _spread(n, x, xx), _spread(n, y, yy)
    return _ratio(n * xy - x * y, np.sqrt(spread_x * spread_y))


def estimate(
    sums: Float[np.ndarray, "C K"], statistics: tuple[Statistic, ...], *, seed: int, resamples: int = RESAMPLES
) -> tuple[Estimate, ...]:
    """Statistics of all questions, with 95% percentile intervals over resampled questions.

    A resample where a statistic is not defined (no question with both outcomes was drawn) is left out of its interval.
    The interval is that of a large number of questions: with a handful it is too narrow, and one question has none.

    Args:
        sums: a row a question.
        statistics: functions of totals; they share their resamples.
        seed: equal seeds give equal intervals, in whatever order the questions come.
        resamples: B.

    Example:
        >>> estimate(np.ones((3, 7)), (auc, pearson), seed=0, resamples=10)[0]
        Estimate(value=1.0, low=1.0, high=1.0)
    """
    total, drawn = sums.sum(axis=0, keepdims=True), resampled_totals(sums, seed=seed, resamples=resamples)
    alone = int((sums != 0).any(axis=1).sum()) < 2

    def of(statistic: Statistic) -> Estimate:
        # Where one question alone defines a statistic, resamples of questions say nothing of it.
        single = alone or int((~np.isnan(statistic(sums))).sum()) == 1
        return _estimate(float(statistic(total)[0]), statistic(drawn), single)

    return tuple(map(of, statistics))


def ratio_estimates(
    above: Float[np.ndarray, "C K"], below: Float[np.ndarray, "C K"], *, seed: int, resamples: int = RESAMPLES
) -> list[Estimate]:
    """A ratio of totals a column, with its 95% interval; None where nothing is below."""
    sums = np.concatenate([above, below], axis=1)
    # Each column's own ratio is a statistic of the joint totals.
    ratios = tuple(partial(_column_ratio, column=column) for column in range(above.shape[1]))
    return list(estimate(sums, ratios, seed=seed, resamples=resamples))


def resampled_totals(sums: Float[np.ndarray, "C K"], *, seed: int, resamples: int) -> Float[np.ndarray, "B K"]:
    """Column sums of resamples of the rows: C draws with equal chances, the exact bootstrap.

    Questions that add nothing to any column are no part of the population.
    """
    rows = sums[(sums != 0).any(axis=1)]
    # In an order of their own, so that the order of files and questions changes nothing.
    rows = rows[np.lexsort(rows.T)]
    totals = np.zeros((resamples, sums.shape[1]))
    if len(rows) == 0:
        return totals
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK_NUMBERS // len(rows))
    for start in range(0, resamples, block):
        part = totals[start : start + block]
        drawn = rng.integers(len(rows), size=(len(part), len(rows)), dtype=np.uint32)
        counts = np.stack([np.bincount(line, minlength=len(rows)) for line in drawn])
        np.matmul(counts.astype(np.float64), rows, out=part)
    return totals


def _ranks(
    values: Float[np.ndarray, " P"], place: Int[np.ndarray, " P"], count: Int[np.ndarray, " U"]
) -> Float[np.ndarray, " P"]:
    """Rank of each value inside its unit, from 1; equal values share the mean of theirs."""
    order = np.lexsort((values, place))
    value, unit = values[order], place[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (value[1:] != value[:-1]) | (unit[1:] != unit[:-1])
    start = np.flatnonzero(new)
    stop = np.append(start, len(order))[1:]
    shared = np.repeat((start + stop + 1) / 2, stop - start)
    ranks = np.empty(len(order))
    ranks[order] = shared - (np.cumsum(count) - count)[unit]
    return ranks


def _by_question(columns: tuple[np.ndarray, ...], question: Int[np.ndarray, " U"]) -> Float[np.ndarray, "C K"]:
    place = np.unique(question, return_inverse=True)[1]
    # Without a path, bincount counts in integers.
    return np.stack([np.bincount(place, weights=column) for column in columns], axis=1).astype(np.float64, copy=False)


def _spread(
    n: Float[np.ndarray, " B"], x: Float[np.ndarray, " B"], xx: Float[np.ndarray, " B"]
) -> Float[np.ndarray, " B"]:
    spread = n * xx - x * x
    return np.where(spread > _ROUNDING * n * xx, spread, 0.0)


def _column_ratio(totals: Float[np.ndarray, "B K"], column: int) -> Float[np.ndarray, " B"]:
    return _ratio(totals[:, column], totals[:, column + totals.shape[1] // 2])


def _ratio(above: Float[np.ndarray, " B"], below: Float[np.ndarray, " B"]) -> Float[np.ndarray, " B"]:
    """NaN where nothing is below."""
    return np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)


def _estimate(value: float, law: Float[np.ndarray, " B"], single: bool) -> Estimate:
    law = law[~np.isnan(law)]
    if math.isnan(value):
        return Estimate(None, None, None)
    if single or len(law) == 0:
        return Estimate(value, None, None)
    low, high = np.quantile(law, [0.025, 0.975])
    return Estimate(value, float(low), float(high))
