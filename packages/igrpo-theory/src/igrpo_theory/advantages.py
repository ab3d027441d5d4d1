"""advantages: rewards of paths and turns -> advantages of rows.

In: one reward a path and one a (path, turn). Out: one advantage a row; a row is a (path, turn) pair, so a turn that
several paths share has a row in each.

Letters: P paths, D depth, n elements, G groups.
Source: GRPO (arXiv 2402.03300) with the row statistics of verl-agent; IGRPO (arXiv 2607.06223).
"""

from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float, Int

from igrpo_theory.paths import Paths

Unit = Literal["row", "trajectory"]
"""What mean and std run over: every (path, turn) row of a question (official), or its paths."""


class GroupStatistics(NamedTuple):
    """Mean and standard deviation of each group; 0 and 1 where a group has fewer than two members."""

    mean: Float[np.ndarray, " G"]
    std: Float[np.ndarray, " G"]


def group_statistics(
    groups: Int[np.ndarray, " n"], values: Float[np.ndarray, " n"], *, ddof: int = 1, num_groups: int | None = None
) -> GroupStatistics:
    """Mean and std of the values of each group 0..G-1; a lone member is measured against 0 and 1.

    Source: GRPO as in verl: a group of one keeps its reward.

    Example:
        >>> mean, std = group_statistics(np.array([0, 0, 1]), np.array([1.0, 3.0, 7.0]))
        >>> mean.tolist(), std.round(4).tolist()
        ([2.0, 0.0], [1.4142, 1.0])
    """
    num_groups = int(groups.max(initial=-1)) + 1 if num_groups is None else num_groups
    size = np.bincount(groups, minlength=num_groups)
    mean = np.bincount(groups, weights=values, minlength=num_groups) / np.maximum(size, 1)
    squares = np.bincount(groups, weights=(values - mean[groups]) ** 2, minlength=num_groups)
    std = np.sqrt(squares / np.maximum(size - ddof, 1))
    return GroupStatistics(mean=np.where(size > 1, mean, 0.0), std=np.where(size > 1, std, 1.0))


def normalise_by(
    groups: Int[np.ndarray, " n"],
    values: Float[np.ndarray, " n"],
    *,
    statistics: GroupStatistics | None = None,
    ddof: int = 1,
    eps: float = 1e-6,
    std_floor: float = 0.0,
    scale: bool = True,
) -> Float[np.ndarray, " n"]:
    """(value - mean of its group) / (max(std of its group, std_floor) + eps).

    Args:
        groups: group number 0..G-1 of each value.
        values: what to normalise.
        statistics: means and stds to use; by default those of these very values.
        ddof: 1 divides squares by size - 1.
        eps: added to the std.
        std_floor: least std to divide by, in units of the values; keeps a nearly constant group from being blown up.
        scale: False subtracts the mean only.

    Source: GRPO (arXiv 2402.03300) eq. for outcome supervision; std_floor is ours.

    Example:
        >>> normalise_by(np.zeros(5, dtype=int), np.array([1.0, 0, 0, 1, 0])).round(4).tolist()
        [1.0954, -0.7303, -0.7303, 1.0954, -0.7303]
    """
    mean, std = group_statistics(groups, values, ddof=ddof) if statistics is None else statistics
    centred = values - mean[groups]
    return centred / (np.maximum(std, std_floor)[groups] + eps) if scale else centred


def group_advantages(
    paths: Paths,
    rewards: Float[np.ndarray, " P"],
    turn_rewards: Float[np.ndarray, "P D"],
    *,
    unit: Unit = "row",
    std_floor: float = 0.0,
    ddof: int = 1,
    eps: float = 1e-6,
    keep: Bool[np.ndarray, " P"] | None = None,
    scale: bool = True,
) -> Float[np.ndarray, "P D"]:
    """Group-relative advantages of every row, compared within a question; 0 on padding and on paths that are not kept.

    A row's score is its path's reward plus its own turn reward (a penalty is a negative turn reward). Unit "row" takes
    mean and std over the scores of all kept rows of a question, so that long paths weigh more; "trajectory" takes them
    over the rewards of its kept paths. Paths that are not kept touch no statistic.

    Raises:
        ValueError: when a reward of a kept path or of one of its turns is not finite, or for an unknown unit.

    Source: IGRPO's released code (rows); GRPO (arXiv 2402.03300) (trajectories); for the other options `normalise_by`.

    Example:
        >>> paths = Paths(np.array([1, 3]), np.array([[1, -1], [2, 3]]), np.array([1, 2]), np.array([0, 0]))
        >>> group_advantages(paths, np.array([1.0, 0.0]), np.zeros((2, 2))).round(4).tolist()
        [[1.1547, 0.0], [-0.5773, -0.5773]]
    """
    keep = np.ones(len(rewards), dtype=bool) if keep is None else keep
    rows = (paths.nodes >= 0) & keep[:, None]
    _check_rewards(rewards, turn_rewards, keep, rows)
    if unit not in get_args(Unit):
        raise ValueError(f"unit must be one of {', '.join(get_args(Unit))}, got {unit}: choose one of them")
    scores = (rewards[:, None] + turn_rewards)[rows]
    groups = np.broadcast_to(paths.question[:, None], rows.shape)[rows]
    pool_groups, pool = (groups, scores) if unit == "row" else (paths.question[keep], rewards[keep])
    num_groups = int(paths.question.max(initial=-1)) + 1
    statistics = group_statistics(pool_groups, pool, ddof=ddof, num_groups=num_groups)
    advantages = np.zeros(rows.shape)
    advantages[rows] = normalise_by(groups, scores, statistics=statistics, eps=eps, std_floor=std_floor, scale=scale)
    return advantages


def _check_rewards(
    rewards: Float[np.ndarray, " P"],
    turn_rewards: Float[np.ndarray, "P D"],
    keep: Bool[np.ndarray, " P"],
    rows: Bool[np.ndarray, "P D"],
) -> None:
    bad = np.flatnonzero(keep & ~np.isfinite(rewards))
    if len(bad) > 0:
        raise ValueError(
            f"rewards must be finite for every kept path, got {rewards[bad[0]]} for path {bad[0]}: "
            "drop the path with keep instead"
        )
    bad_turns = np.argwhere(rows & ~np.isfinite(turn_rewards))
    if len(bad_turns) > 0:
        path, turn = bad_turns[0]
        raise ValueError(
            f"turn_rewards must be finite for every kept path, got {turn_rewards[path, turn]} for path {path}, turn "
            f"{turn}: drop the path with keep instead"
        )
