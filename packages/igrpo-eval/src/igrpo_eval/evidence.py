"""evidence: observations and accepted answers -> when an answer was to be read.

An answer stands in a text when its words, normalised as exact match does, occur there side by side and whole.
Source: [squad] for normalisation; the rest is ours.
"""

from collections.abc import Sequence

from igrpo_train.config import Agent
from igrpo_train.rewards import normalise_answer
from igrpo_train.search.session import Turn


def answer_seen(turns: Sequence[Turn], golds: Sequence[str], agent: Agent) -> tuple[bool, ...]:
    """Whether an accepted answer stood in what the searches brought, up to and with each turn.

    Only what the policy could read counts: documents as they were written and cut, without the tags around them.

    Args:
        turns: of one episode.
        golds: accepted answers; one that normalises to nothing ("The") is never seen.
        agent: knows the tags.
    """
    sought = _words(golds)
    seen: list[bool] = []
    for turn in turns:
        text = turn.observation.removeprefix(agent.observation_open).removesuffix(agent.observation_close)
        words = f" {normalise_answer(text)} "
        found = bool(turn.documents) and any(f" {answer} " in words for answer in sought)
        seen.append(found or (bool(seen) and seen[-1]))
    return tuple(seen)


def can_be_seen(golds: Sequence[str]) -> bool:
    """Whether finding an accepted answer says something: not for yes and no, nor for answers without words.

    Example:
        >>> can_be_seen(["The Hague"]), can_be_seen(["yes"]), can_be_seen(["The"])
        (True, False, False)
    """
    return not set(_words(golds)) <= {"yes", "no"}


def _words(golds: Sequence[str]) -> tuple[str, ...]:
    """The accepted answers, normalised, that hold any word."""
    return tuple(filter(None, map(normalise_answer, golds)))
