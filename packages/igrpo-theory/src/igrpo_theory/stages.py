"""stages: one expansion -> the record of its draw.

In: what `growth` drew at one depth, and by which settings. Out: a record from which tests, metrics and weights can tell
how likely each count was.

Letters: Q questions, A active nodes of one stage (over all questions).
Source: ours.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from igrpo_theory.expansion import Scheme, expected_expansions


class Stage(NamedTuple):
    """What one expansion after the root drew, and how.

    Example:
        >>> stage = Stage(1, np.array([1, 2]), np.array([0.6, 0.4]), np.array([3]), np.array([2, 1]), 1.0, 2, "capped")
        >>> stage.mean_counts(np.array([0, 0])).round(3).tolist()
        [1.648, 1.352]
    """

    depth: int
    """Depth of the expanded nodes."""
    nodes: Int[np.ndarray, " A"]
    """The active nodes, by question."""
    probabilities: Float[np.ndarray, " A"]
    """Their chances in the draw."""
    budget: Int[np.ndarray, " Q"]
    """Children that each question could draw."""
    counts: Int[np.ndarray, " A"]
    """Children that each node drew; 0 truncates it."""
    gamma: float
    """Strength of the tilt; 0 where values had no say."""
    cap: int
    """Most children of a node."""
    scheme: Scheme
    """How counts were drawn."""

    def mean_counts(self, question: Int[np.ndarray, " A"]) -> Float[np.ndarray, " A"]:
        """rho, the mean number of children that this draw gives each node; `question` holds the nodes' slots."""
        return expected_expansions(self.probabilities, question, self.budget, self.cap, self.scheme)
