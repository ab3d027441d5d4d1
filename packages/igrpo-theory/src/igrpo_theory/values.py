"""values: scores of a node and its parent -> val(h).

In: the answer score s(h), any real number, and the parent's. Out: the number that the expansion draw tilts by.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float

Criterion = Literal["mean", "score", "gain", "zero"]
"""What val(h) is: the mean of score and gain (the paper), one of the two, or nothing (a random tree)."""


def information_gain(score: Float[np.ndarray, " N"], parent_score: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """IG(h) = s(h) - s(parent of h).

    Source: IGRPO (arXiv 2607.06223), information gain of a turn.

    Example:
        >>> information_gain(np.array([0.75]), np.array([0.5])).tolist()
        [0.25]
    """
    return score - parent_score


def node_value(
    score: Float[np.ndarray, " N"], parent_score: Float[np.ndarray, " N"], criterion: Criterion
) -> Float[np.ndarray, " N"]:
    """val(h) under a criterion; "mean" is (s + IG) / 2. NaN, which stands for no score, stays NaN.

    Raises:
        ValueError: for an unknown criterion.

    Source: IGRPO (arXiv 2607.06223), node value.

    Example:
        >>> node_value(np.array([0.75]), np.array([0.5]), "mean").tolist()
        [0.5]
    """
    if criterion not in _CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(_CRITERIA)}, got {criterion}: choose one of them")
    return _CRITERIA[criterion](score, parent_score)


def _mean(score: Float[np.ndarray, " N"], parent_score: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    return (score + information_gain(score, parent_score)) / 2


def _score(score: Float[np.ndarray, " N"], parent_score: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    return score


def _zero(score: Float[np.ndarray, " N"], parent_score: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    return np.zeros_like(score)


_CRITERIA: dict[str, Callable[..., np.ndarray]] = {
    "mean": _mean,
    "score": _score,
    "gain": information_gain,
    "zero": _zero,
}
