"""forests: trees that were grown apart -> the one forest that growing them together gives.

In: forests of consecutive questions, each with its stages. Out: one forest, node for node as `grow` would have made it.
Source: ours.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Int

from igrpo_theory.stages import Stage
from igrpo_theory.tree import NodeStatus, RolloutTree

Payload = TypeVar("Payload")


def join(forests: Sequence[RolloutTree[Payload]]) -> RolloutTree[Payload]:
    """One forest of all questions; nodes of a depth stand by question, as in one growth.

    Budgets of questions that had no active node at a depth, and no stage there, are recorded as 0.

    Args:
        forests: grown by one rule, at least one.

    Raises:
        ValueError: there is none, or they were grown by different rules.

    Source: ours.

    Example:
        >>> one, two = RolloutTree.plant(["who?"]), RolloutTree.plant(["where?"])
        >>> _ = two.append(np.array([0]), ["there"], np.array([True]), turn_limit=2)
        >>> forest = join([one, two])
        >>> list(forest.payload), forest.parent.tolist()
        (['who?', 'where?', 'there'], [-1, -1, 1])
    """
    if not forests:
        raise ValueError("forests must hold at least one, got none: grow a question first")
    if len(forests) == 1:
        return forests[0]
    roots = [forest.payload[node] for forest in forests for node in range(forest.num_questions)]
    joined: RolloutTree[Payload] = RolloutTree.plant(roots, sum(forest.num_nodes for forest in forests))
    firsts = np.cumsum([0, *(forest.num_questions for forest in forests)])
    places = [np.arange(forest.num_nodes) + first for forest, first in zip(forests, firsts, strict=False)]
    for depth in range(1, max(int(forest.depth.max()) for forest in forests) + 1):
        here = [np.flatnonzero(forest.depth == depth) for forest in forests]
        status = np.concatenate([forest.status[nodes] for forest, nodes in zip(forests, here, strict=True)])
        parents = [place[forest.parent[nodes]] for forest, place, nodes in zip(forests, places, here, strict=True)]
        payloads = [forest.payload[node] for forest, nodes in zip(forests, here, strict=True) for node in nodes]
        limit = depth if (status == NodeStatus.TURN_LIMIT).any() else depth + 1
        added = joined.append(np.concatenate(parents), payloads, status == NodeStatus.TERMINAL, limit)
        for place, nodes, new in zip(places, here, np.split(added, np.cumsum(list(map(len, here)))), strict=False):
            place[nodes] = new
    for forest, place in zip(forests, places, strict=True):
        scored, valued = np.flatnonzero(~np.isnan(forest.score)), np.flatnonzero(~np.isnan(forest.value))
        joined.set_scores(place[scored], forest.score[scored])
        joined.set_values(place[valued], forest.value[valued])
        joined.truncate(place[forest.status == NodeStatus.TRUNCATED])
    joined.stages = _join_stages(forests, places)
    return joined


def _join_stages(forests: Sequence[RolloutTree[Payload]], places: Sequence[Int[np.ndarray, " _"]]) -> list[Stage]:
    """Stages of all forests, by depth."""
    depths = sorted({stage.depth for forest in forests for stage in forest.stages})
    joined = []
    for depth in depths:
        own = [next((stage for stage in forest.stages if stage.depth == depth), None) for forest in forests]
        held = [(stage, place) for stage, place in zip(own, places, strict=True) if stage is not None]
        for name in ("gamma", "cap", "scheme"):
            given = sorted({getattr(stage, name) for stage, _ in held})
            if len(given) > 1:
                raise ValueError(f"forests must be grown by one {name}, got {given} at depth {depth}: join like ones")
        budgets = [
            np.zeros(forest.num_questions, dtype=np.int64) if stage is None else stage.budget
            for forest, stage in zip(forests, own, strict=True)
        ]
        joined.append(
            held[0][0]._replace(
                nodes=np.concatenate([place[stage.nodes] for stage, place in held]),
                probabilities=np.concatenate([stage.probabilities for stage, _ in held]),
                budget=np.concatenate(budgets),
                counts=np.concatenate([stage.counts for stage, _ in held]),
            )
        )
    return joined
