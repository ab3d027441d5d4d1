"""evidence: observations and accepted answers -> when an answer was to be read.

An answer stands in a text when its words, normalised as exact match does, occur there side by side and whole.
Source: [squad] for normalisation; the rest is ours.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import or_

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
    tags = (agent.observation_open, agent.observation_close)
    shown = (bool(turn.documents) and shows_answer(turn.observation, golds, tags) for turn in turns)
    return tuple(accumulate(shown, or_))


def shows_answer(observation: str, golds: Sequence[str], tags: tuple[str, str]) -> bool:
    """Whether an accepted answer stands in the documents of an observation, its words whole and side by side.

    Args:
        observation: with the tags around it.
        golds: accepted answers.
        tags: what opens and closes an observation.

    Example:
        >>> shows_answer("<i>The mayor of Ghent</i>", ["Ghent"], ("<i>", "</i>"))
        True
    """
    words = f" {normalise_answer(observation.removeprefix(tags[0]).removesuffix(tags[1]))} "
    return any(f" {answer} " in words for answer in _words(golds))


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
