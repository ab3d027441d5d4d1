"""protocol: routes and facts of the miniature world -> the words that a policy reads and writes.

Every word is one token. A prompt is a question and what happened so far; a response is an optional thought and one
action.

Source: ours. Example:
    >>> user_message("what is the seat of ba ko ?")
    'question what is the seat of ba ko ? .'
"""

from collections.abc import Sequence

from igrpo_train.miniature.names import SYLLABLES
from igrpo_train.miniature.world import RELATION_NAMES, RELATIONS, Route

USER_TEMPLATE = "question {question} . {history}"
"""The user message of a turn."""
MAX_TOKENS = 512
"""Positions of the policies."""
TURN = "<turn>"
"""The generation prompt: what follows is the policy's."""
SCORING_PREAMBLE = "<answer>"
"""Stands before an answer whose probability is measured."""
TAGS: tuple[str, ...] = (
    "<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>",
)  # fmt: skip
_GRAMMAR = ("question", "what", "is", "the", "of", "?", "or", ".", "need", "found", "done", "none")


def vocabulary() -> tuple[str, ...]:
    """Every word of the miniature world, special tokens apart, in a fixed order.

    Example:
        >>> words = vocabulary()
        >>> len(words) == len(set(words)), "founder" in words
        (True, True)
    """
    phrases = [word for pair in RELATIONS.values() for relation in pair for word in relation.phrase.split()]
    words = [TURN, *TAGS, *_GRAMMAR, *RELATION_NAMES, *phrases, *SYLLABLES]
    return tuple(dict.fromkeys(words))


def question_text(route: Route) -> str:
    """The question of a route, the last relation first, and the listed answers.

    Example:
        >>> from igrpo_train.miniature.names import Name
        >>> start, bridges = Name("ba", "ko"), (Name("du", "ri"), Name("fa", "lo"))
        >>> question_text(Route(start, ("founder", "home"), bridges, (bridges[1], start)))
        'what is the home of the founder of ba ko ? fa lo or ba ko'
    """
    chain = " ".join(f"the {relation} of" for relation in reversed(route.relations))
    return f"what is {chain} {route.start} ? {' or '.join(map(str, route.candidates))}"


def user_message(question: str, history: str = "") -> str:
    """The user's message: the question and what the agent did and saw so far."""
    return USER_TEMPLATE.format(question=question, history=history).strip()


def observation(texts: Sequence[str]) -> str:
    """What comes back for a search.

    Example:
        >>> observation(["ba ko meets in du ri ."]), observation([])
        ('<information> ba ko meets in du ri . </information>', '<information> none </information>')
    """
    return f"<information> {' '.join(texts) or 'none'} </information>"


def search_action(query: str) -> str:
    """The action that looks something up."""
    return f"<search> {query} </search>"


def answer_action(answer: str) -> str:
    """The action that ends the episode."""
    return f"<answer> {answer} </answer>"
