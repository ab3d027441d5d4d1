"""segments: the group of each element -> its rank, and running sums, inside its group.

In: flat arrays with one group number an element, in any order. Out: flat arrays in the same order.
A result for one group is bit-identical whatever other groups are present: sums run over padded rows, not across groups.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


def rank_within(groups: Int[np.ndarray, " A"]) -> Int[np.ndarray, " A"]:
    """How many earlier elements belong to the same group.

    Source: ours.

    Example:
        >>> rank_within(np.array([7, 2, 7, 7, 2])).tolist()
        [0, 0, 1, 2, 1]
    """
    if not _in_order(groups):
        order = np.argsort(groups, kind="stable")
        rank = np.empty(len(groups), dtype=np.int64)
        rank[order] = rank_within(groups[order])
        return rank
    rank = np.arange(len(groups))
    if len(groups) > 0 and groups[0] != groups[-1]:
        start = np.zeros(len(groups), dtype=np.int64)
        np.copyto(start[1:], rank[1:], where=groups[1:] != groups[:-1])
        rank -= np.maximum.accumulate(start)
    return rank


LARGE = 4096
"""Elements of one group from which it is worth a step of its own, by means that are faster for many."""


_BLOCK = 1 << 16
"""Elements worked on at once: what a step leaves is in the cache for the next, and calls are few."""


def blocks(num_elements: int) -> Iterator[slice]:
    """Slices that cover so many elements, short enough that what is worked out for one of them stays in the cache.

    Source: ours.

    Example:
        >>> list(blocks(70000))
        [slice(0, 65536, None), slice(65536, 70000, None)]
    """
    for start in range(0, num_elements, _BLOCK):
        yield slice(start, min(start + _BLOCK, num_elements))


def repeat_rising(numbers: Int[np.ndarray, " A"], counts: Int[np.ndarray, " A"]) -> Int[np.ndarray, " n"]:
    """`np.repeat` of numbers that rise from 0 or more, faster where they are many.

    A number goes to where its copies start, where the last to come stays, and the largest so far fills the gaps: unlike
    a loop over the copies, that leaves no branch to foretell.

    Source: ours.

    Example:
        >>> repeat_rising(np.array([3, 4, 9]), np.array([2, 0, 1])).tolist()
        [3, 3, 9]
    """
    if len(numbers) < LARGE:
        return np.repeat(numbers, counts)
    repeated, start = np.empty(counts.sum(), dtype=numbers.dtype), 0
    for block in blocks(len(numbers)):
        ends = np.cumsum(counts[block])
        first = np.zeros(ends[-1] + 1, dtype=numbers.dtype)
        first[ends - counts[block]] = numbers[block]
        np.maximum.accumulate(first[:-1], out=repeated[start : start + ends[-1]])
        start += ends[-1]
    return repeated


class RunningSum(NamedTuple):
    """Sums along each group."""

    sums: Float[np.ndarray, " A"]
    """Sum of an element and the earlier ones of its group."""
    totals: Float[np.ndarray, " G"]
    """Sum of each group, 0 where it is empty; equals the last element's sum to the bit."""


def running_sum(values: Float[np.ndarray, " A"], groups: Int[np.ndarray, " A"], num_groups: int) -> RunningSum:
    """Cumulative sum inside each group (in order of appearance), and each group's total.

    Source: ours.

    Example:
        >>> sums, totals = running_sum(np.array([1.0, 5.0, 2.0]), np.array([0, 1, 0]), 2)
        >>> sums.tolist(), totals.tolist()
        ([1.0, 5.0, 3.0], [3.0, 5.0])
    """
    if num_groups == 1:
        sums = np.cumsum(values)
        return RunningSum(sums, sums[-1:] if len(sums) > 0 else np.zeros(1))
    column = rank_within(groups)
    table = np.zeros((num_groups, int(column.max(initial=0)) + 1))
    table[groups, column] = values
    table = np.cumsum(table, axis=1)
    return RunningSum(table[groups, column], table[:, -1])


def order_within(values: Float[np.ndarray, " A"], groups: Int[np.ndarray, " A"]) -> Int[np.ndarray, " A"]:
    """Elements sorted by group, and by value inside each group; equal values come in no particular order.

    Source: ours.

    Example:
        >>> order_within(np.array([0.9, 0.2, 0.5]), np.array([0, 1, 0])).tolist()
        [2, 0, 1]
    """
    sizes = np.bincount(groups)
    width, num_elements = sizes.max(initial=0), len(groups)
    if width == num_elements:
        return np.argsort(values)
    if width * len(sizes) > 4 * num_elements:
        return np.lexsort((values, groups))
    # Groups of similar size: many short rows are sorted far faster than one long column.
    if width * len(sizes) == num_elements and _in_order(groups):
        rows = np.argsort(values.reshape(-1, width), axis=1, kind="stable")
        return (rows + np.arange(0, num_elements, width)[:, None]).ravel()
    column = rank_within(groups)
    table, element = np.full((len(sizes), width), np.inf), np.zeros((len(sizes), width), dtype=np.int64)
    table[groups, column] = values
    element[groups, column] = np.arange(num_elements)
    # Stable, so that padding stays behind an infinite value.
    order = np.argsort(table, axis=1, kind="stable")
    return np.take_along_axis(element, order, axis=1)[np.arange(width) < sizes[:, None]]


def members(groups: Int[np.ndarray, " A"], group: int, num_groups: int) -> slice | Int[np.ndarray, " n"]:
    """What indexes the elements of one group; a slice, which copies nothing, where groups are in order.

    Source: ours.

    Example:
        >>> members(np.array([0, 0, 2]), 0, 3), members(np.array([1, 0, 1]), 1, 2).tolist()
        (slice(0, 2, None), [0, 2])
    """
    if num_groups == 1:
        return slice(0, len(groups))
    if not _in_order(groups):
        return np.flatnonzero(groups == group)
    return slice(*np.searchsorted(groups, [group, group + 1]).tolist())


def group_sizes(groups: Int[np.ndarray, " A"], num_groups: int) -> Int[np.ndarray, " G"]:
    """How many elements each group has.

    Source: ours.

    Example:
        >>> group_sizes(np.array([0, 2, 0]), 3).tolist()
        [2, 0, 1]
    """
    return np.bincount(groups, minlength=num_groups) if num_groups > 1 else np.array([len(groups)])


def group_counts(
    counts: Int[np.ndarray, " A"], groups: Int[np.ndarray, " A"], num_groups: int
) -> Int[np.ndarray, " G"]:
    """Sum of whole numbers of each group.

    Source: ours.

    Example:
        >>> group_counts(np.array([4, 1, 2]), np.array([0, 2, 0]), 3).tolist()
        [6, 0, 1]
    """
    if num_groups == 1:
        return counts.sum(keepdims=True)
    return np.bincount(groups, weights=counts, minlength=num_groups).astype(np.int64)


def group_sum(
    values: Float[np.ndarray, " A"], groups: Int[np.ndarray, " A"], num_groups: int
) -> Float[np.ndarray, " G"]:
    """Sum of each group: one by one in order, and pairwise in a group of LARGE elements or more.

    Source: ours.

    Example:
        >>> group_sum(np.array([1.0, 5.0, 2.0]), np.array([0, 2, 0]), 3).tolist()
        [3.0, 0.0, 5.0]
    """
    if num_groups == 1 and len(values) >= LARGE:
        return values.sum(keepdims=True)
    sums = np.bincount(groups, weights=values, minlength=num_groups).astype(np.float64, copy=False)
    for group in np.flatnonzero(group_sizes(groups, num_groups) >= LARGE).tolist():
        sums[group] = values[members(groups, group, num_groups)].sum()
    return sums


def group_max(
    values: Float[np.ndarray, " A"], groups: Int[np.ndarray, " A"], num_groups: int
) -> Float[np.ndarray, " G"]:
    """Largest value of each group, minus infinity where it is empty.

    Source: ours.

    Example:
        >>> group_max(np.array([1.0, 5.0, 2.0]), np.array([0, 2, 0]), 3).tolist()
        [2.0, -inf, 5.0]
    """
    if num_groups == 1:
        return np.array([values.max(initial=-np.inf)])
    highest = np.full(num_groups, -np.inf)
    np.maximum.at(highest, groups, values)
    return highest


def group_bounds(groups: Int[np.ndarray, " A"], num_groups: int) -> Int[np.ndarray, " G1"] | None:
    """Where each group starts, and at last where the last one ends; None where groups are not in order.

    Source: ours.

    Example:
        >>> group_bounds(np.array([0, 0, 2]), 3).tolist(), group_bounds(np.array([1, 0]), 2)
        ([0, 2, 2, 3], None)
    """
    return np.searchsorted(groups, np.arange(num_groups + 1)) if _in_order(groups) else None


def _in_order(groups: Int[np.ndarray, " A"]) -> bool:
    return bool((groups[1:] >= groups[:-1]).all())
