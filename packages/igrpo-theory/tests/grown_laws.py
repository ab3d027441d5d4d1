"""Independent replicates of growth on a policy tree, grown as one batch: their path laws and normalisers."""

from typing import NamedTuple

import numpy as np

from igrpo_theory import (
    Growth,
    GrowthRule,
    NodeStatus,
    PolicyTree,
    PolicyTreeWorld,
    grow,
    question_keys,
    root_to_leaf_paths,
    states_of,
)
from igrpo_theory.expansion import Scheme


class Grown(NamedTuple):
    laws: np.ndarray  # replicates x paths: share of each complete path, in the order of enumerate_paths
    normalisers: np.ndarray  # Zhat of each replicate
    growth: Growth[int]


def grown_laws(
    policy: PolicyTree,
    gamma: float,
    *,
    replicates: int,
    budget: int,
    cap: int | None = None,
    scheme: Scheme = "capped",
    seed: int = 20,
    world: PolicyTreeWorld | None = None,
) -> Grown:
    """Grow a padded tree; without a cap where none is given."""
    rule = GrowthRule(
        budget=budget, cap=cap or budget, gamma=gamma, scheme=scheme, criterion="score", turn_limit=policy.turns
    )
    keys = question_keys(seed, 7, np.arange(replicates), [f"replicate {number}" for number in range(replicates)])
    growth = grow(world or PolicyTreeWorld(policy), [0] * replicates, keys, rule)
    paths = root_to_leaf_paths(growth.tree)
    complete = growth.tree.status[paths.leaf] == NodeStatus.TURN_LIMIT
    end = states_of(growth.tree)[paths.leaf[complete]]
    cells = np.bincount(paths.question[complete] * len(policy.parent) + end, minlength=replicates * len(policy.parent))
    counts = cells.reshape(replicates, -1)[:, policy.ends]
    assert (counts.sum(axis=1) == budget).all()
    normalisers = np.ones(replicates)
    for stage in growth.stages:
        question, weight = growth.tree.question[stage.nodes], np.exp(gamma * growth.tree.value[stage.nodes])
        normalisers *= np.bincount(question, weights=weight) / np.bincount(question)
    return Grown(counts / budget, normalisers, growth)
