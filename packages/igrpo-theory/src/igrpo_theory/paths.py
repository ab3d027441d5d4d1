"""paths: a grown tree -> its root-to-leaf paths.

In: a forest. Out: one row a leaf with the nodes on its way, and what follows from them (multiplicity, V, weights).

Letters: P paths, D depth of the deepest leaf, N nodes.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from igrpo_theory.segments import group_max
from igrpo_theory.tree import RolloutTree
from igrpo_theory.weights import Target


class Paths(NamedTuple):
    """Every root-to-leaf path of a forest, ordered by question, then by leaf."""

    leaf: Int[np.ndarray, " P"]
    """The node that ends the path."""
    nodes: Int[np.ndarray, "P D"]
    """Nodes from depth 1 to the leaf; the root is left out, and -1 pads."""
    length: Int[np.ndarray, " P"]
    """Turns on the path."""
    question: Int[np.ndarray, " P"]
    """The slot of the path's question."""


def root_to_leaf_paths(tree: RolloutTree[Any]) -> Paths:
    """All paths; a node that several leaves share is in several rows.

    Source: IGRPO (arXiv 2607.06223): every root-to-leaf path is a trajectory.

    Example:
        >>> tree = RolloutTree.plant(["who?"])
        >>> children = tree.append(np.array([0, 0]), ["a", "b"], np.array([False, True]), turn_limit=2)
        >>> leaf = tree.append(np.array([1]), ["c"], np.array([True]), turn_limit=2)
        >>> root_to_leaf_paths(tree).nodes.tolist()
        [[2, -1], [1, 3]]
    """
    leaf = tree.leaves()
    length = tree.depth[leaf]
    nodes = np.full((len(leaf), int(length.max(initial=0))), -1, dtype=np.int64)
    current = leaf.copy()
    for depth in range(nodes.shape[1], 0, -1):
        there = tree.depth[current] == depth
        nodes[there, depth - 1] = current[there]
        current[there] = tree.parent[current[there]]
    return Paths(leaf, nodes, length, tree.question[leaf])


def multiplicity(tree: RolloutTree[Any], paths: Paths) -> Int[np.ndarray, " N"]:
    """How many paths go through each node; a root counts all paths of its question.

    Source: ours.

    Example:
        >>> tree = RolloutTree.plant(["who?"])
        >>> leaves = tree.append(np.array([0, 0]), ["a", "b"], np.array([True, True]), turn_limit=2)
        >>> multiplicity(tree, root_to_leaf_paths(tree)).tolist()
        [2, 1, 1]
    """
    below = np.bincount(paths.nodes[paths.nodes >= 0], minlength=tree.num_nodes)
    return below + np.bincount(paths.question, minlength=tree.num_nodes)


def path_values(tree: RolloutTree[Any], paths: Paths) -> Float[np.ndarray, " P"]:
    """V(o): the sum of val over the expanded nodes of a path; never the leaf's own, and 0 for nodes without a value.

    The last node's value weighs no draw, so it is no part of the law that growing targets.

    Source: IGRPO (arXiv 2607.06223), theorem 1; the convention for the last node follows from its proof.

    Example:
        >>> tree = RolloutTree.plant(["who?"])
        >>> tree.set_values(tree.append(np.array([0]), ["a"], np.array([False]), turn_limit=2), np.array([0.5]))
        >>> leaf = tree.append(np.array([1]), ["b"], np.array([True]), turn_limit=2)
        >>> path_values(tree, root_to_leaf_paths(tree)).tolist()
        [0.5]
    """
    inner = (paths.nodes >= 0) & (paths.nodes != paths.leaf[:, None])
    values = tree.value[np.where(inner, paths.nodes, 0)]
    return np.where(inner & ~np.isnan(values), values, 0.0).sum(axis=1)


def relative_weights(
    tree: RolloutTree[Any], paths: Paths, target: Target = "mu", keep: Bool[np.ndarray, " P"] | None = None
) -> Float[np.ndarray, " P"]:
    """W_p / (mean of W over the kept paths of the same question), W the weights of the tree; 0 where not kept.

    Kept paths of a question have mean 1, so that weighing changes what a group learns from, not how much. Where only
    truncated paths are kept all weigh 0. The ratio of one tree's weights is biased at order 1 / budget; W is not.

    Raises:
        ValueError: as `RolloutTree.log_weights`.

    Source: ours, see docs/theory/weights.md.

    Example:
        >>> from igrpo_theory import grown_laws, random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> tree = grown_laws(policy, 1.0, replicates=1, budget=5, cap=2).growth.tree
        >>> weights = relative_weights(tree, root_to_leaf_paths(tree))
        >>> weights.round(2).tolist(), round(float(weights.mean()), 12)
        ([0.0, 0.0, 0.0, 1.65, 1.65, 1.65, 1.65, 1.41], 1.0)
    """
    keep = np.ones(len(paths.leaf), dtype=bool) if keep is None else keep
    log_weights = np.where(keep, tree.log_weights(target)[paths.leaf], -np.inf)
    highest = group_max(log_weights, paths.question, tree.num_questions)
    # Of the same size up to a factor: their ratios do not overflow.
    weights = np.exp(log_weights - np.where(np.isfinite(highest), highest, 0.0)[paths.question])
    total = np.bincount(paths.question, weights=weights, minlength=tree.num_questions)
    size = np.bincount(paths.question, weights=keep, minlength=tree.num_questions)
    return weights * (size / np.where(total > 0, total, 1.0))[paths.question]
