"""rollout: questions -> grown trees -> graded paths; training, validation and evaluation all come through here.

Evaluation is the same loop with a budget of one: a tree of width one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from igrpo_theory.growth import Growth, GrowthRule, grow
from igrpo_theory.paths import Paths, root_to_leaf_paths
from igrpo_theory.stages import Stage
from igrpo_theory.tree import NodeStatus
from igrpo_train.question import Question
from igrpo_train.rewards import exact_match
from igrpo_train.search.agent import ActionKind
from igrpo_train.search.session import SearchNode, SearchTree, Turn
from igrpo_train.search.world import SearchAgent, SearchWorld
from igrpo_train.tracking import Phases


class Rollout(NamedTuple):
    """A batch of grown trees with their graded paths (P paths of at most D turns)."""

    questions: tuple[Question, ...]
    tree: SearchTree
    stages: list[Stage]
    paths: Paths
    grades: Float[np.ndarray, " P"]
    """Exact match of each path's answer; 0 for paths without one."""
    truncated: Bool[np.ndarray, " P"]
    """Paths that expansion cut off."""
    scores: Float[np.ndarray, " P"]
    """Answer score of each path's leaf, NaN where it has none."""
    valid: Bool[np.ndarray, "P D"]
    """Whether a turn keeps to the protocol; padding counts as valid."""
    preamble_probability: float
    """Mean geometric-mean token probability of the scoring preamble; NaN when nothing was scored."""

    def predictions(self) -> list[str | None]:
        """Answer of each path, None for paths without one."""
        return [_answer(self.tree, leaf) for leaf in self.paths.leaf.tolist()]


def chain_rule(turn_limit: int, samples: int = 1, *, scores: bool = False) -> GrowthRule:
    """Trees of width one: `samples` chains a question; with `scores`, the root and every turn that goes on are scored.

    No draw depends on a score.

    Example:
        >>> chain_rule(4).needs_scores, chain_rule(4, scores=True).needs_scores
        (False, True)
    """
    return GrowthRule(
        budget=samples,
        cap=1,
        gamma=0.0,
        criterion="zero",
        turn_limit=turn_limit,
        root_score="evaluate",
        score_chains=scores,
    )


def collect(
    agent: SearchAgent,
    questions: Sequence[Question],
    keys: UInt64[np.ndarray, " Q"],
    rule: GrowthRule,
    *,
    temperature: float,
    phases: Phases,
) -> Rollout:
    """Grow a tree for every question and grade its paths.

    Args:
        agent: engine, prompts, retriever and scorer.
        questions: one root each.
        keys: counter-based stream of each question (`igrpo_theory.randomness.question_keys`).
        rule: budgets, cap, gamma, turn limit.
        temperature: of sampling; 0 is greedy.
        phases: receives seconds and tokens.

    Raises:
        ValueError: a question does not fit the prompt.
    """
    world = SearchWorld(agent, turn_limit=rule.turn_limit, temperature=temperature, phases=phases)
    roots: list[SearchNode] = [*agent.roots(questions)]
    grown: Growth[SearchNode] = grow(world, roots, keys, rule)
    phases.recomputed_tokens += agent.sampler.take_recomputed()
    tree = grown.tree
    paths = root_to_leaf_paths(tree)
    predictions = [_answer(tree, leaf) for leaf in paths.leaf.tolist()]
    grades = [
        exact_match(prediction, questions[slot].answers)
        for prediction, slot in zip(predictions, paths.question, strict=True)
    ]
    probability = float(np.mean(world.preamble_probability)) if world.preamble_probability else float("nan")
    agent.scorer.check_preamble(probability)
    return Rollout(
        questions=tuple(questions),
        tree=tree,
        stages=grown.stages,
        paths=paths,
        grades=np.array(grades, dtype=np.float64),
        truncated=tree.status[paths.leaf] == NodeStatus.TRUNCATED,
        scores=tree.score[paths.leaf],
        valid=_valid_turns(tree, paths.nodes),
        preamble_probability=probability,
    )


def _answer(tree: SearchTree, leaf: int) -> str | None:
    turn = tree.payload[leaf]
    assert isinstance(turn, Turn)
    return turn.action.text if turn.action.kind is ActionKind.ANSWER else None


def _valid_turns(tree: SearchTree, nodes: Int[np.ndarray, "P D"]) -> Bool[np.ndarray, "P D"]:
    valid = np.array([not isinstance(payload, Turn) or payload.action.valid for payload in tree.payload], dtype=bool)
    return np.where(nodes >= 0, valid[nodes], True)
