"""rewards: predictions, scores and gold answers -> one number a path and one a turn.

In: the text of an answer and its accepted forms; for leaves that expansion cut off, their answer score.
Out: exact match, F1, path rewards with a keep mask, turn penalties. Training and evaluation share these functions.
Source: [squad] for normalisation, exact match and F1; [igrpo] for truncated leaves and the penalty.

Example:
    >>> exact_match("The  Beatles!", ("Beatles",))
    1.0
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

TruncatedRule = Literal["rescaled", "score", "zero", "threshold", "drop"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class PathRewards(NamedTuple):
    """Rewards of paths, and which paths take part in their group."""

    rewards: Float[np.ndarray, " P"]
    """One reward a path; 0 where `keep` is false."""
    keep: Bool[np.ndarray, " P"]
    """False for truncated paths under the rule "drop"."""


def normalise_answer(text: str) -> str:
    """Lower-case, delete ASCII punctuation, drop the articles, squeeze white space, in this order.

    Source: [squad]; the order matters: "U.S.A." becomes "usa", and an article is found after its punctuation went.

    Example:
        >>> normalise_answer("The U.S.A.,  an  Island?")
        'usa island'
    """
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str | None, answers: Sequence[str]) -> float:
    """1.0 when the prediction equals any accepted answer after normalisation, else 0.0; no prediction counts 0.0.

    Source: [squad]. As there, an answer made of articles and punctuation only ("A") equals an empty prediction.

    Example:
        >>> exact_match("3.14", ["314"]), exact_match("Jay-Z", ["jay z"]), exact_match(None, ["x"])
        (1.0, 0.0, 0.0)
    """
    if prediction is None:
        return 0.0
    guess = normalise_answer(prediction)
    return float(any(guess == normalise_answer(answer) for answer in answers))


def f1(prediction: str | None, answers: Sequence[str]) -> float:
    """Best overlap of normalised words (as multisets) with any accepted answer, in [0, 1]; no prediction counts 0.0.

    Source: [squad]; two texts without words agree fully, one without words agrees with nothing else.

    Example:
        >>> round(f1("Barack Obama", ["Barack Hussein Obama"]), 3)
        0.8
    """
    if prediction is None:
        return 0.0
    guess = normalise_answer(prediction).split()
    return max((_overlap(guess, normalise_answer(answer).split()) for answer in answers), default=0.0)


def _overlap(guess: list[str], gold: list[str]) -> float:
    if not guess or not gold:
        return float(guess == gold)
    common = sum((Counter(guess) & Counter(gold)).values())
    return 2 * common / (len(guess) + len(gold))


def path_rewards(
    grades: Float[np.ndarray, " P"],
    scores: Float[np.ndarray, " P"],
    truncated: Bool[np.ndarray, " P"],
    *,
    rule: TruncatedRule,
    progress: float,
    switch_fraction: float,
) -> PathRewards:
    """Give finished paths their grade and truncated paths what the rule makes of their leaf's answer score.

    Source: [igrpo]. With s the answer score: "rescaled" is 0.5 s, then s from `switch_fraction` of the run on;
    "threshold" is 0.5 s, then 1 where s >= 0.5 and 0 elsewhere; "score" is s; "zero" is 0; "drop" leaves the path out.

    Args:
        grades: exact match (or F1) of each path's answer; ignored where truncated.
        scores: answer score of each path's leaf; used only where truncated.
        truncated: whether expansion cut the path off before its end.
        rule: what a truncated leaf is worth.
        progress: share of the run's steps already done, in [0, 1): 0-based step / steps.
        switch_fraction: share of the run after which "rescaled" and "threshold" change.

    Example:
        >>> path_rewards(np.array([1.0, 0.0]), np.array([np.nan, 0.6]), np.array([False, True]),
        ...              rule="rescaled", progress=0.5, switch_fraction=0.75).rewards
        array([1. , 0.3])
    """
    if rule == "drop":
        return PathRewards(np.where(truncated, 0.0, grades), ~truncated)
    worth = _truncated_worth(np.where(truncated, scores, 0.0), rule, late=progress >= switch_fraction)
    assert not np.isnan(worth).any(), "a truncated leaf was not scored"
    return PathRewards(np.where(truncated, worth, grades), np.ones_like(truncated))


def _truncated_worth(scores: Float[np.ndarray, " P"], rule: TruncatedRule, late: bool) -> Float[np.ndarray, " P"]:
    if rule == "zero":
        return np.zeros_like(scores)
    if rule == "score" or (rule == "rescaled" and late):
        return scores
    if rule == "threshold" and late:
        return np.where(np.isnan(scores), scores, (scores >= 0.5).astype(scores.dtype))
    return 0.5 * scores


def turn_penalties(valid: Bool[np.ndarray, "P D"], penalty: float) -> Float[np.ndarray, "P D"]:
    """Turn rewards that take `penalty` from every invalid turn; padding counts as valid.

    Source: [igrpo], which charges the row of the turn, not the path.

    Example:
        >>> turn_penalties(np.array([[True, False]]), 0.01)
        array([[ 0.  , -0.01]])
    """
    return np.where(valid, 0.0, -penalty)
