"""study: what one policy's paths say about V and R.

In: nothing but numbers. Out: the records that `correlation` fills, and that tables, JSON, CSV and figure are made of.
Source: ours.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from igrpo_eval.association import Estimate
from igrpo_eval.trajectories import Policy

Judgement: TypeAlias = Literal["supported", "refuted", "undecided"]
View: TypeAlias = Literal["all", "before", "after"]
"""Scored nodes: all, or before or after an accepted answer came into view."""


class Row(NamedTuple):
    """How well one number tells the outcome, over some of the paths."""

    label: str
    num_paths: int
    num_questions: int
    num_mixed: int
    """Questions with a success and a failure; no other holds a pair."""
    success: float
    """Share of the paths."""
    covariance: Estimate
    """Mean over questions with two paths or more."""
    auc: Estimate
    pearson: Estimate


class Bin(NamedTuple):
    """Scored nodes whose s lies in [low, high)."""

    view: View
    low: float
    high: float
    num_nodes: int
    mean_score: float | None
    success: Estimate
    """Share of the nodes whose path succeeds."""


class Gain(NamedTuple):
    """Mean cumulative information gain after a turn, of paths that are scored there."""

    steps: str
    success: bool
    turn: int
    num_paths: int
    gain: Estimate


class Verdict(NamedTuple):
    """Whether V tells R in one benchmark."""

    source: str
    num_mixed: int
    auc: Estimate
    equal_length: Estimate
    """AUC of pairs of the same question and the same number of turns."""
    before: Estimate
    """AUC of V's part from nodes before the answer came into view; pairs have equally many of them."""
    judgement: Judgement
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """One policy's paths, and what they say."""

    policy: Policy
    num_paths: int
    """Complete ones; all that follows is about these."""
    num_truncated: int
    """Paths that expansion cut off: they have no outcome and are left out."""
    num_unscored: int
    """Paths without a scored node, whose V is 0."""
    by_length: tuple[Row, ...]
    """V among paths of the same number of turns; comes first, since V grows with every turn after the find."""
    values: tuple[Row, ...]
    """V of all paths and of those with a scored node, and s after each turn."""
    by_view: tuple[Row, ...]
    """The same for nodes before and after the answer came into view."""
    by_group: tuple[Row, ...]
    """V by data set, hops and training step, where more than one occurs."""
    between: Estimate
    """Pearson's correlation of a question's mean V and its share of successes."""
    calibration: tuple[Bin, ...]
    gains: tuple[Gain, ...]
    verdicts: tuple[Verdict, ...]
    """One a data set; none of training trees."""
