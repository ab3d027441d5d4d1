"""replicates: a policy tree and settings -> path laws of many independent grown trees.

In: a policy tree. Out: one empirical path law and one estimate of Z a tree, which is what statistical checks of
the theorem need: trees are independent, the paths of one tree are not.

Letters: R replicates, K complete paths in the order of `enumerate_paths`.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from igrpo_theory.expansion import BudgetMode, Scheme
from igrpo_theory.growth import Growth, GrowthRule, grow
from igrpo_theory.paths import root_to_leaf_paths
from igrpo_theory.randomness import question_keys
from igrpo_theory.segments import group_max
from igrpo_theory.stages import Stage
from igrpo_theory.tree import NodeStatus, RolloutTree
from igrpo_theory.worlds import PolicyTree, PolicyTreeWorld, states_of

_MOST_NODES = 100_000_000
"""They take about 5 GB."""


class GrownLaws(NamedTuple):
    """What independent replicates of growth gave."""

    counts: Int[np.ndarray, "R K"]
    """Leaves that end each complete path."""
    log_normalisers: Float[np.ndarray, " R"]
    """log Zhat, the sum over stages of the log of the mean weight exp(gamma val), infinite where it overflows; without
    a cap E Zhat = Z."""
    growth: Growth[int]
    """The trees themselves; replicate r is question r."""

    @property
    def laws(self) -> Float[np.ndarray, "R K"]:
        """Share of each path among the complete ones of its tree; zeros where a tree has none."""
        return self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1)


def grown_laws(
    policy: PolicyTree,
    gamma: float,
    *,
    replicates: int,
    budget: int,
    cap: int | None = None,
    scheme: Scheme = "capped",
    mode: BudgetMode = "full",
    seed: int = 0,
    world: PolicyTreeWorld | None = None,
) -> GrownLaws:
    """Grow independent trees in one batch and count their complete paths.

    Args:
        policy: the policy; on a padded one every stage spends its whole budget.
        gamma: strength of the tilt.
        replicates: number of trees.
        budget: children a stage and a tree.
        cap: most children of a node; no cap when left out.
        scheme: how counts are drawn.
        mode: children a stage; matters where paths end early.
        seed: equal seeds give equal trees.
        world: grows another world on the same states.

    Raises:
        ValueError: without a replicate, or for more nodes than memory holds; see also `GrowthRule`.

    Source: ours.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> grown_laws(policy, 1.0, replicates=50, budget=20).laws.shape
        (50, 8)
    """
    if replicates < 1:
        raise ValueError(f"replicates must be at least 1, got {replicates}: each grows a tree")
    if replicates * budget * policy.turns > _MOST_NODES:
        raise ValueError(
            f"replicates must be few enough for {_MOST_NODES:.0e} nodes, got {replicates} trees of budget {budget} and "
            f"{policy.turns} turns: lower the replicates or the budget"
        )
    rule = GrowthRule(
        budget=budget,
        cap=budget if cap is None else cap,
        gamma=gamma,
        budget_mode=mode,
        scheme=scheme,
        criterion="score",
        turn_limit=policy.turns,
        score_chains=True,  # Zhat needs the values even where no draw does
    )
    keys = question_keys(seed, 0, np.arange(replicates), [f"replicate {number}" for number in range(replicates)])
    growth = grow(world or PolicyTreeWorld(policy), [0] * replicates, keys, rule)
    paths = root_to_leaf_paths(growth.tree)
    complete = growth.tree.status[paths.leaf] != NodeStatus.TRUNCATED
    end = states_of(growth.tree)[paths.leaf[complete]]
    cells = np.bincount(paths.question[complete] * len(policy.parent) + end, minlength=replicates * len(policy.parent))
    counts = cells.reshape(replicates, -1)[:, policy.ends]
    highest, log_normalisers = np.zeros((2, replicates))
    for stage in growth.stages:
        stage_highest, log_mean = _log_mean_weights(growth.tree, stage, gamma)
        highest += stage_highest
        log_normalisers += log_mean
    with np.errstate(over="ignore"):
        log_normalisers += gamma * highest
    return GrownLaws(counts, log_normalisers, growth)


def _log_mean_weights(
    tree: RolloutTree[int], stage: Stage, gamma: float
) -> tuple[Float[np.ndarray, " R"], Float[np.ndarray, " R"]]:
    """Highest val of the active nodes of each replicate, and log of the mean of exp(gamma (val - highest))."""
    question, value = tree.question[stage.nodes], tree.value[stage.nodes]
    num_active = np.bincount(question, minlength=tree.num_questions)
    highest = np.where(num_active > 0, group_max(value, question, tree.num_questions), 0.0)
    with np.errstate(over="ignore"):  # minus infinity is the right exponent for a huge gamma
        weight = np.exp(gamma * (value - highest[question]))
    sums = np.bincount(question, weights=weight, minlength=tree.num_questions)
    return highest, np.log(np.where(num_active > 0, sums / np.maximum(num_active, 1), 1.0))
