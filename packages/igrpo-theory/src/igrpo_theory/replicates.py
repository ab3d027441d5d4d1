"""replicates: a policy tree and settings -> the path laws of many independent grown trees.

In: a padded policy tree. Out: one empirical path law and one estimate of Z a tree, which is what statistical checks of
the theorem need: trees are independent, the paths of one tree are not.

Letters: R replicates, K complete paths in the order of `enumerate_paths`.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from igrpo_theory.expansion import Scheme
from igrpo_theory.growth import Growth, GrowthRule, Stage, grow
from igrpo_theory.paths import root_to_leaf_paths
from igrpo_theory.randomness import question_keys
from igrpo_theory.tree import NodeStatus, RolloutTree
from igrpo_theory.worlds import PolicyTree, PolicyTreeWorld, states_of


class GrownLaws(NamedTuple):
    """What independent replicates of growth gave."""

    laws: Float[np.ndarray, "R K"]
    """Share of each complete path among the budget's complete paths."""
    log_normalisers: Float[np.ndarray, " R"]
    """log Zhat, the sum over stages of the log of the mean weight exp(gamma val); without a cap E Zhat = Z."""
    growth: Growth[int]
    """The trees themselves; replicate r is question r."""


def grown_laws(
    policy: PolicyTree,
    gamma: float,
    *,
    replicates: int,
    budget: int,
    cap: int | None = None,
    scheme: Scheme = "capped",
    seed: int = 0,
    world: PolicyTreeWorld | None = None,
) -> GrownLaws:
    """Grow independent trees in one batch and count their complete paths.

    Args:
        policy: a padded policy tree; without answers every stage spends its whole budget.
        gamma: strength of the tilt.
        replicates: number of trees.
        budget: children a stage and a tree.
        cap: most children of a node; no cap when left out.
        scheme: how counts are drawn.
        seed: equal seeds give equal trees.
        world: grows another world on the same states.

    Source: ours.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> grown_laws(policy, 1.0, replicates=50, budget=20).laws.shape
        (50, 8)
    """
    rule = GrowthRule(
        budget=budget, cap=cap or budget, gamma=gamma, scheme=scheme, criterion="score", turn_limit=policy.turns
    )
    keys = question_keys(seed, 0, np.arange(replicates), [f"replicate {number}" for number in range(replicates)])
    growth = grow(world or PolicyTreeWorld(policy), [0] * replicates, keys, rule)
    paths = root_to_leaf_paths(growth.tree)
    complete = growth.tree.status[paths.leaf] == NodeStatus.TURN_LIMIT
    end = states_of(growth.tree)[paths.leaf[complete]]
    cells = np.bincount(paths.question[complete] * len(policy.parent) + end, minlength=replicates * len(policy.parent))
    counts = cells.reshape(replicates, -1)[:, policy.ends]
    log_normalisers = sum(
        (_log_mean_weights(growth.tree, stage, gamma) for stage in growth.stages), np.zeros(replicates)
    )
    return GrownLaws(counts / counts.sum(axis=1, keepdims=True), log_normalisers, growth)


def _log_mean_weights(tree: RolloutTree[int], stage: Stage, gamma: float) -> Float[np.ndarray, " R"]:
    """Log of the mean of exp(gamma val) over the active nodes of each replicate."""
    question, exponent = tree.question[stage.nodes], gamma * tree.value[stage.nodes]
    highest = np.full(tree.num_questions, -np.inf)
    np.maximum.at(highest, question, exponent)
    sums = np.bincount(question, weights=np.exp(exponent - highest[question]))
    return highest + np.log(sums / np.bincount(question))
