"""segments: the group of each element -> its rank, and running sums, inside its group.

In: flat arrays with one group number an element, in any order. Out: flat arrays in the same order.
A result for one group is bit-identical whatever other groups are present: sums run over padded rows, not across groups.
"""

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
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    sizes = np.diff(starts, append=len(groups))
    rank = np.empty(len(groups), dtype=np.int64)
    rank[order] = np.arange(len(groups)) - np.repeat(starts, sizes)
    return rank


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
    column = rank_within(groups)
    table = np.zeros((num_groups, int(column.max(initial=0)) + 1))
    table[groups, column] = values
    table = np.cumsum(table, axis=1)
    return RunningSum(table[groups, column], table[:, -1])
