"""action: the text of one model turn -> what the agent does with it.

In: decoded response text. Out: an `Action`. Source: the IGRPO environment's rules (one action a turn).

Example:
    >>> parse_action("<think>who?</think><search> mayor of Ghent </search>").text
    'mayor of Ghent'
"""

import re
from enum import StrEnum
from typing import NamedTuple

SEARCH_CLOSE = "</search>"
ANSWER_CLOSE = "</answer>"
STOP_STRINGS = (SEARCH_CLOSE, ANSWER_CLOSE)

_CLOSING = re.compile(r"</(?:search|answer)>", re.IGNORECASE)
_COMPLETE = {
    kind: re.compile(rf"<{kind}>((?:(?!<{kind}>).)*?)</{kind}>", re.IGNORECASE | re.DOTALL)
    for kind in ("search", "answer")
}
_OPENING = {kind: re.compile(rf"<{kind}>", re.IGNORECASE) for kind in ("search", "answer")}


class ActionKind(StrEnum):
    """What a turn asks for."""

    SEARCH = "search"
    ANSWER = "answer"
    NONE = "none"


class Action(NamedTuple):
    """One parsed action."""

    kind: ActionKind
    text: str
    """The query or the answer, stripped; empty when there is none."""
    valid: bool
    """False when the turn breaks the protocol; it is penalised, and still carried out where an action was found."""
    start: int
    """First character of the action with its tags in the response text, -1 when there is none."""
    end: int
    """One past its last character, -1 when there is none."""


NO_ACTION = Action(ActionKind.NONE, "", False, -1, -1)


def parse_action(text: str) -> Action:
    """Read the one action of a turn.

    The text counts up to its first complete closing tag. The first complete search wins, otherwise the first answer.
    The turn is invalid when it holds no action, tags of both kinds, or more than one opening tag of a kind. A search
    without words is no action. A missing thought is allowed.

    Args:
        text: decoded response, tags included; case of the tags does not matter.

    Example:
        >>> parse_action("<answer>Paris</answer>")
        Action(kind=<ActionKind.ANSWER: 'answer'>, text='Paris', valid=True, start=0, end=22)
        >>> parse_action("no tags").kind
        <ActionKind.NONE: 'none'>
    """
    closing = _CLOSING.search(text)
    if closing is None:
        return NO_ACTION
    text = text[: closing.end()]
    openings = [len(pattern.findall(text)) for pattern in _OPENING.values()]
    valid = sorted(openings) == [0, 1]
    for kind in (ActionKind.SEARCH, ActionKind.ANSWER):
        found = _COMPLETE[kind].search(text)
        if found is None:
            continue
        content = found.group(1).strip()
        if kind is ActionKind.SEARCH and not content:
            return NO_ACTION
        return Action(kind, content, valid, found.start(), found.end())
    return NO_ACTION
