"""weights: grown trees and their rule -> weights that make their complete paths an unbiased sample.

In: a growth with its stage records. Out: one weight a node. A tree is no sample of the teacher law: the cap, early
answers and the budget of a stage all decide how many leaves a path gets. But the mean number of children of a node,
given its stage, is known, and dividing by it puts everything right at any budget.

Letters: N nodes, A active nodes of one stage.
Source: Horvitz, Thompson (1952), "A generalization of sampling without replacement"; its use on trees is ours, see
docs/theory/weights.md.
"""

from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from igrpo_theory.expansion import expected_expansions
from igrpo_theory.growth import Growth, GrowthRule, Stage
from igrpo_theory.tree import NodeStatus, RolloutTree

Target = Literal["teacher", "policy"]
"""What the weighted complete paths are a sample of: the teacher law, times Z, or the policy's own."""

# exp of more overflows soon.
_LARGEST_LOG_WEIGHT = 700.0


def importance_weights(growth: Growth[Any], rule: GrowthRule, target: Target = "teacher") -> Float[np.ndarray, " N"]:
    """A weight W for each node such that E[sum of W f over complete leaves of a tree] = sum over paths of target * f.

    The target is pi(o) exp(gamma V(o)), which is Z times the teacher law, or pi(o). It holds for every function f of
    a path, at every budget, cap and scheme. The children of the root start at 1 / budget; a child of node i has
    W_i w_i / rho_i (teacher) or W_i / rho_i (policy), where w = exp(gamma val) and rho is the mean number of children
    that the draw gives node i. Truncated leaves weigh 0, roots 1. Dividing by the sum of the weights of one tree brings
    back a bias of order 1 / budget; divide by sums over many trees.

    Args:
        growth: trees grown by `grow`.
        rule: the rule that they were grown by.
        target: which law to weigh for.

    Raises:
        ValueError: for the teacher of chains that were not scored, or weights that overflow.

    Source: ours, see docs/theory/weights.md.

    Example:
        >>> from igrpo_theory.replicates import grown_laws
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> growth = grown_laws(policy, 1.0, replicates=4000, budget=5, cap=2).growth
        >>> rule = GrowthRule(criterion="score", turn_limit=3)
        >>> leaves = growth.tree.leaves()
        >>> round(float(importance_weights(growth, rule, "policy")[leaves].sum()) / 4000, 1)
        1.0
    """
    _check_weights(rule, target)
    tree = growth.tree
    log_weight = np.where(tree.depth == 0, 0.0, -np.log(rule.budget))
    for stage in growth.stages:
        factor = np.full(tree.num_nodes, np.nan)
        factor[stage.nodes] = _log_factors(tree, stage, rule, target)
        below = np.flatnonzero(tree.depth == stage.depth + 1)
        above = tree.parent[below]
        log_weight[below] = log_weight[above] + factor[above]
    truncated = tree.status == NodeStatus.TRUNCATED
    largest = log_weight[~truncated].max()
    if largest > _LARGEST_LOG_WEIGHT:
        raise ValueError(f"gamma must keep weights within exp(700), got {rule.gamma} and exp({largest:.0f}): lower it")
    return np.where(truncated, 0.0, np.exp(np.where(truncated, 0.0, log_weight)))


def _log_factors(tree: RolloutTree[Any], stage: Stage, rule: GrowthRule, target: Target) -> Float[np.ndarray, " A"]:
    """What the step from a node to one of its children multiplies the weight by."""
    question = tree.question[stage.nodes]
    mean = expected_expansions(stage.probabilities, question, stage.budget, rule.cap, rule.scheme)
    # A mean may underflow to 0 for a node that then has no child.
    factor = -np.log(np.maximum(mean, np.finfo(np.float64).smallest_subnormal))
    if target == "policy" or not rule.needs_scores:
        return factor
    return factor + rule.gamma * tree.value[stage.nodes]


def _check_weights(rule: GrowthRule, target: str) -> None:
    if target not in get_args(Target):
        raise ValueError(f"target must be one of {', '.join(get_args(Target))}, got {target}: choose one of them")
    if target == "teacher" and not rule.needs_scores and rule.criterion != "zero":
        raise ValueError(
            f"target teacher needs the values of all expanded nodes, got cap {rule.cap} without score_chains: "
            "grow with score_chains, or weigh for the policy"
        )
