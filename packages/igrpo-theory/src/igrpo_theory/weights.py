"""weights: the draws of a tree -> what each expansion multiplies the weight of a path by.

In: the record of a stage and the values of its nodes. Out: one factor a node, in logarithms; `RolloutTree.weights`
multiplies them along paths. A tree is no sample of the teacher law: the cap, early answers and the budget of a stage
all decide how many leaves a path gets. But the mean number of children of a node, given its stage, is known, and
dividing by it puts everything right at any budget.

Letters: A active nodes of one stage.
Source: Horvitz, Thompson (1952), "A generalization of sampling without replacement"; its use on trees is ours, see
docs/theory/weights.md.
"""

from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from igrpo_theory.stages import Stage

Target = Literal["mu", "pi"]
"""What weighted complete paths are a sample of: the teacher law mu, times Z, or the policy pi."""
LARGEST_LOG_WEIGHT = 700.0
"""exp of more overflows soon."""


def log_factors(
    stage: Stage, question: Int[np.ndarray, " A"], values: Float[np.ndarray, " A"], target: Target
) -> Float[np.ndarray, " A"]:
    """log(w / rho) of each node of a stage for mu, log(1 / rho) for pi: w = exp(gamma val), rho its mean count.

    Args:
        stage: the record of the draw.
        question: the nodes' slots.
        values: the nodes' val, NaN where they have none: then so is the factor, but for pi or a gamma of 0.
        target: which law to weigh for.

    Source: ours, see docs/theory/weights.md.

    Example:
        >>> nodes, budget = np.array([1, 2]), np.array([4])
        >>> stage = Stage(1, nodes, np.array([0.75, 0.25]), budget, np.array([2, 2]), 1.0, 4, "capped")
        >>> values, question = np.log([3.0, 1.0]), np.array([0, 0])
        >>> [np.exp(log_factors(stage, question, values, target)).round(3).tolist() for target in ("mu", "pi")]
        [[1.0, 1.0], [0.333, 1.0]]
    """
    # A mean may underflow to 0 for a node that then has no child.
    factors = -np.log(np.maximum(stage.mean_counts(question), np.finfo(np.float64).smallest_subnormal))
    return factors if target == "pi" or stage.gamma == 0 else factors + stage.gamma * values


def check_target(target: str) -> None:
    """Refuse an unknown target.

    Raises:
        ValueError: for a target that is none of `Target`.

    Source: ours.

    Example:
        >>> check_target("greedy")
        Traceback (most recent call last):
        ValueError: target must be one of mu, pi, got greedy: choose one of them
    """
    if target not in get_args(Target):
        raise ValueError(f"target must be one of {', '.join(get_args(Target))}, got {target}: choose one of them")
