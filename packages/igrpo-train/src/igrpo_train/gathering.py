"""gathering: rollouts of consecutive questions, one a process -> the rollout of all of them.

It is what one process would have grown: nodes get the numbers that they have where all questions grow in step. So what
follows (rewards, rows, metrics, records) is the same function of the same forest on any number of processes.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from igrpo_theory.growth import Stage
from igrpo_theory.paths import root_to_leaf_paths
from igrpo_theory.tree import NodeStatus, RolloutTree
from igrpo_train.rollout import Rollout
from igrpo_train.search.session import SearchNode, SearchTree


def merge_rollouts(parts: Sequence[Rollout | None]) -> Rollout:
    """One rollout of all questions, in the order of the parts.

    Args:
        parts: at least one that is not None; None stands for no question.
    """
    held = [part for part in parts if part is not None]
    if len(held) == 1:
        return held[0]
    tree, nodes = _merge_trees([part.tree for part in held])
    paths = root_to_leaf_paths(tree)
    valid = np.ones(paths.nodes.shape, dtype=bool)
    first = 0
    for part in held:
        rows, turns = part.valid.shape
        valid[first : first + rows, :turns] = part.valid
        first += rows
    scored = [int((~np.isnan(part.tree.score)).sum()) for part in held]
    means = [part.preamble_probability for part, count in zip(held, scored, strict=True) if count]
    return Rollout(
        questions=tuple(question for part in held for question in part.questions),
        tree=tree,
        stages=_merge_stages(held, nodes),
        paths=paths,
        grades=np.concatenate([part.grades for part in held]),
        truncated=np.concatenate([part.truncated for part in held]),
        scores=np.concatenate([part.scores for part in held]),
        valid=valid,
        preamble_probability=float(np.average(means, weights=[c for c in scored if c])) if means else float("nan"),
    )


def _merge_trees(trees: Sequence[SearchTree]) -> tuple[SearchTree, list[Int[np.ndarray, " _"]]]:
    """The forest, and the new number of each part's nodes."""
    part = np.repeat(np.arange(len(trees)), [tree.num_nodes for tree in trees])
    starts = np.cumsum([0] + [tree.num_nodes for tree in trees[:-1]])
    names = ("depth", "status", "local", "score", "value")
    depth, status, local, score, value = (np.concatenate([getattr(tree, name) for tree in trees]) for name in names)
    parent = np.concatenate([tree.parent + start for tree, start in zip(trees, starts, strict=True)])
    payload: list[SearchNode] = [node for tree in trees for node in tree.payload]
    # All questions grow in step: by depth, then by question, and the parts hold consecutive ones.
    order = np.lexsort((part, depth))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    merged: SearchTree = RolloutTree.plant([payload[k] for k in order[depth[order] == 0]], capacity=len(order))
    for level in range(1, int(depth.max()) + 1):
        nodes = order[depth[order] == level]
        limit = level if (status[nodes] == NodeStatus.TURN_LIMIT).any() else level + 1
        terminal = status[nodes] == NodeStatus.TERMINAL
        merged.append(place[parent[nodes]], [payload[k] for k in nodes], terminal, limit, local[nodes])
    for numbers, assign in ((score, merged.set_scores), (value, merged.set_values)):
        known = np.flatnonzero(~np.isnan(numbers[order]))
        assign(known, numbers[order][known])
    merged.truncate(np.flatnonzero(status[order] == NodeStatus.TRUNCATED))
    return merged, np.split(place, starts[1:])


def _merge_stages(parts: Sequence[Rollout], nodes: Sequence[Int[np.ndarray, " _"]]) -> list[Stage]:
    stages = []
    for depth in sorted({stage.depth for part in parts for stage in part.stages}):
        there, budgets = [], []
        for part, numbers in zip(parts, nodes, strict=True):
            own = next((stage for stage in part.stages if stage.depth == depth), None)
            # A question without an active node has no budget.
            budgets.append(np.zeros(part.tree.num_questions, dtype=np.int64) if own is None else own.budget)
            if own is not None:
                there.append(own._replace(nodes=numbers[own.nodes]))
        stages.append(
            Stage(
                depth,
                np.concatenate([stage.nodes for stage in there]),
                np.concatenate([stage.probabilities for stage in there]),
                np.concatenate(budgets),
                np.concatenate([stage.counts for stage in there]),
            )
        )
    return stages
