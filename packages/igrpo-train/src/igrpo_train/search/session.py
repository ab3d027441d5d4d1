"""session: what the nodes of a search agent's tree carry.

A root carries a `Prompt`, every other node a `Turn`. The context of node h is a path of token segments,
`head + history of every turn on the way + tail`, so contexts along a path extend each other and no id is ever
tokenised twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from igrpo_theory.tree import RolloutTree
from igrpo_train.question import Question
from igrpo_train.search.agent import Action


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A question as the policy sees it before any turn."""

    question: Question
    head_ids: tuple[int, ...]
    """Token ids up to the place where the history goes: instructions first, then the question."""
    tail_ids: tuple[int, ...]
    """Token ids after the history: the end of the user message and the generation prompt; may be empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One sampled response and what came back for it."""

    response_ids: tuple[int, ...]
    """The ids that were sampled, kept as they are for training."""
    response_logprobs: tuple[float, ...]
    """Log-probability (nats) of each sampled id under the distribution that it was drawn from."""
    text: str
    action: Action
    history_ids: tuple[int, ...]
    """What later turns of the path see of this one."""
    observation: str
    documents: tuple[str, ...]
    """Ids of the retrieved passages, best first."""
    finish: str
    """Why generation ended: `stop` (a closing tag), `eos`, or `length`; `context` when the history is full."""
    observation_cut: bool = False
    """Whether the documents were shortened to fit the limits."""
    observation_tokens: int = 0
    """Ids of the observation, the last ones of `history_ids`."""


SearchNode: TypeAlias = Prompt | Turn
SearchTree: TypeAlias = RolloutTree[SearchNode]


def ancestors(tree: SearchTree, node: int) -> list[int]:
    """Nodes from the root's first child down to `node`, `node` included; empty for a root."""
    path = []
    while tree.parent[node] >= 0:
        path.append(node)
        node = int(tree.parent[node])
    return path[::-1]


def context_segments(tree: SearchTree, node: int) -> Iterator[tuple[int, ...]]:
    """Token segments of the context in which a child of `node` is sampled, in order."""
    prompt = tree.payload[int(tree.question[node])]
    assert isinstance(prompt, Prompt)
    yield prompt.head_ids
    for ancestor in ancestors(tree, node):
        turn = tree.payload[ancestor]
        assert isinstance(turn, Turn)
        yield turn.history_ids
    yield prompt.tail_ids


def turn_record(payload: SearchNode) -> dict[str, object]:
    """JSON form of a payload for `trees.jsonl`: readable text, no token ids."""
    if isinstance(payload, Prompt):
        question = payload.question
        return {
            "id": question.id,
            "question": question.text,
            "answers": list(question.answers),
            "source": question.source,
            "hops": question.hops,
        }
    return {
        "text": payload.text,
        "action": payload.action.kind.value,
        "action_text": payload.action.text,
        "valid": payload.action.valid,
        "observation": payload.observation,
        "documents": list(payload.documents),
        "finish": payload.finish,
        "tokens": len(payload.response_ids),
    }
