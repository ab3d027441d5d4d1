"""passk: right answers among the samples of each question -> the chance that k samples hold one.

Source: [passk], the unbiased estimator 1 - C(n - c, k) / C(n, k).

Example:
    >>> pass_at_k(np.array([4, 4]), np.array([1, 0]), 2).tolist()
    [0.5, 0.0]
"""

import numpy as np
from jaxtyping import Float, Int


def pass_at_k(samples: Int[np.ndarray, " Q"], right: Int[np.ndarray, " Q"], k: int) -> Float[np.ndarray, " Q"]:
    """Chance that k of a question's samples, drawn without replacement, hold a right one.

    Args:
        samples: n of each question.
        right: c of each question, at most n.
        k: at least 1 and at most every n.

    Raises:
        ValueError: k is out of range.
    """
    if len(samples) == 0 or not 1 <= k <= samples.min():
        fewest = int(samples.min()) if len(samples) else 0
        raise ValueError(f"k must be between 1 and the samples of every question, got {k} for {fewest}: draw more")
    drawn = np.arange(k)
    # The j-th of k draws is wrong again; a factor is 0 where no wrong sample is left.
    wrong = np.maximum(samples[:, None] - right[:, None] - drawn, 0) / (samples[:, None] - drawn)
    return 1.0 - wrong.prod(axis=1)
