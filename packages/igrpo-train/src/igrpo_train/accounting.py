"""accounting: a rollout -> tokens that other ways of computing the same trees would take.

What a step computed itself is in `tokens/PHASE` (`igrpo_train.tracking`). Beside it stand, summed over the batch:

- `official/prompt`: prompts of the official way. Every question has `budget` slots in every turn up to the deepest one
  of the batch, and each slot's whole prompt is computed in each turn. A slot whose path has ended is carried along; its
  prompt counts as long as its last one: the mean over the question's ended paths of the prompt of their last turn.
- `official/generation`: responses of the official way; that of a slot whose path has ended counts as long as the mean
  response of the turn.
- `official/scoring`: scores of the official way. In every turn every slot's next prompt is computed as a whole, with
  the scoring preamble and the first answer behind it, also where no draw or reward needs the score; 0 where the rule
  scores nothing.
- `official/scoring_needed`: the part of it that belongs to nodes which have a score in these trees.
- `official/training`: columns of one row a turn of a kept path: its whole prompt and its response.
- `append/training`: columns of one row a kept path, in which head, tail, every response and every observation that a
  later response follows stand once, as in trainers whose history only grows.

Padding counts nowhere. Source: the official implementation as [igrpo] publishes it, for the slots, prompts, scores and
rows; the lengths of what ended slots generate are ours.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from igrpo_theory.tree import NodeStatus
from igrpo_train.rollout import Rollout
from igrpo_train.search.session import Prompt, Turn


class _Lengths(NamedTuple):
    """Token counts of N nodes."""

    response: Int[np.ndarray, " N"]
    observation: Int[np.ndarray, " N"]
    prompt: Int[np.ndarray, " N"]
    """Of the context that a turn was sampled in; 0 at roots."""
    behind: Int[np.ndarray, " N"]
    """Of the context in which a child of the node would be sampled."""


def comparison_tokens(
    rollout: Rollout, keep: Bool[np.ndarray, " P"], *, budget: int, forced: Int[np.ndarray, " Q"] | None
) -> dict[str, float]:
    """Tokens of the official way and of append-style rows; the module says what each name counts.

    Args:
        rollout: the grown batch.
        keep: paths that are trained on.
        budget: slots of a question.
        forced: tokens of the scoring preamble with the first answer, a question; None where nothing is scored.

    Example:
        >>> from igrpo_theory.paths import root_to_leaf_paths
        >>> from igrpo_theory.tree import RolloutTree
        >>> from igrpo_train.question import Question
        >>> from igrpo_train.search.agent import NO_ACTION
        >>> question = Question(id="q", text="?", answers=("x",))
        >>> said = dict(response_ids=(7, 8), response_logprobs=(-1.0, -1.0), text="", action=NO_ACTION, history_ids=())
        >>> turn = Turn(**said, observation="", documents=(), finish="stop")
        >>> tree = RolloutTree.plant([Prompt(question=question, head_ids=(1, 2, 3), tail_ids=(4,))])
        >>> _ = tree.append(np.array([0, 0]), [turn, turn], np.array([True, True]), turn_limit=1)
        >>> graded = dict(grades=np.zeros(2), truncated=np.zeros(2, bool), scores=np.zeros(2))
        >>> trees = dict(questions=(question,), tree=tree, stages=[], paths=root_to_leaf_paths(tree))
        >>> rollout = Rollout(**trees, **graded, valid=np.ones((2, 1), bool), preamble_probability=1.0)
        >>> counts = comparison_tokens(rollout, np.ones(2, dtype=bool), budget=2, forced=None)
        >>> print(counts["official/prompt"], counts["official/generation"], counts["official/training"])
        8.0 4.0 12.0
    """
    lengths = _lengths(rollout)
    return (
        _official_rollout(rollout, lengths, budget, forced)
        | {"official/scoring_needed": _needed(rollout, lengths, forced)}
        | _rows(rollout, lengths, keep)
    )


def _lengths(rollout: Rollout) -> _Lengths:
    tree = rollout.tree
    response, observation, history = (np.zeros(tree.num_nodes, dtype=np.int64) for _ in range(3))
    prompt, behind = np.zeros_like(history), np.zeros_like(history)
    for node, payload in enumerate(tree.payload):
        if isinstance(payload, Turn):
            response[node], history[node] = len(payload.response_ids), len(payload.history_ids)
            observation[node] = payload.observation_tokens
        else:
            assert isinstance(payload, Prompt)
            behind[node] = len(payload.head_ids) + len(payload.tail_ids)
    for depth in range(1, int(tree.depth.max()) + 1):
        nodes = np.flatnonzero(tree.depth == depth)
        prompt[nodes] = behind[tree.parent[nodes]]
        behind[nodes] = prompt[nodes] + history[nodes]
    return _Lengths(response, observation, prompt, behind)


def _official_rollout(
    rollout: Rollout, lengths: _Lengths, budget: int, forced: Int[np.ndarray, " Q"] | None
) -> dict[str, float]:
    tree = rollout.tree
    num_questions = tree.num_questions
    prompt = generation = scoring = 0.0
    for turn in range(1, int(tree.depth.max()) + 1):
        live = np.flatnonzero(tree.depth == turn)
        idle = budget - np.bincount(tree.question[live], minlength=num_questions)
        ended = np.flatnonzero((tree.depth < turn) & (tree.status != NodeStatus.ACTIVE))
        idle_prompts = idle * _mean_by(tree.question[ended], lengths.prompt[ended], num_questions)
        prompt += lengths.prompt[live].sum() + idle_prompts.sum()
        generation += lengths.response[live].sum() + idle.sum() * lengths.response[live].mean()
        if forced is not None:
            scoring += lengths.behind[live].sum() + idle_prompts.sum() + budget * forced.sum()
    return {"official/prompt": prompt, "official/generation": generation, "official/scoring": scoring}


def _mean_by(slots: Int[np.ndarray, " n"], values: Int[np.ndarray, " n"], num: int) -> Float[np.ndarray, " Q"]:
    """Mean of each slot's values, 0 where it has none."""
    return np.bincount(slots, values, minlength=num) / np.maximum(1, np.bincount(slots, minlength=num))


def _needed(rollout: Rollout, lengths: _Lengths, forced: Int[np.ndarray, " Q"] | None) -> float:
    if forced is None:
        return 0.0
    scored = np.flatnonzero(~np.isnan(rollout.tree.score))
    return float(lengths.behind[scored].sum() + forced[rollout.tree.question[scored]].sum())


def _rows(rollout: Rollout, lengths: _Lengths, keep: Bool[np.ndarray, " P"]) -> dict[str, float]:
    paths = rollout.paths
    kept = paths.nodes[keep]
    turns = kept[kept >= 0]
    # A turn without a sampled id has no row.
    turns = turns[lengths.response[turns] > 0]
    passed = kept[(kept >= 0) & (kept != paths.leaf[keep][:, None])]
    heads = lengths.behind[paths.question[keep]]
    return {
        "official/training": float((lengths.prompt[turns] + lengths.response[turns]).sum()),
        "append/training": float(heads.sum() + lengths.response[turns].sum() + lengths.observation[passed].sum()),
    }
