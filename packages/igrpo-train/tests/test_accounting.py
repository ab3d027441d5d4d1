"""Tokens of other ways of computing the same trees, against numbers worked out by hand."""

import numpy as np
import pytest


def _turn(response, history, observation=0):
    from igrpo_train.search.agent import NO_ACTION
    from igrpo_train.search.session import Turn

    return Turn(
        response_ids=(1,) * response,
        response_logprobs=(-0.1,) * response,
        text="",
        action=NO_ACTION,
        history_ids=(2,) * history,
        observation="",
        documents=(),
        finish="stop",
        observation_tokens=observation,
    )


@pytest.fixture
def rollout():
    """Two questions of two slots and three turns.

    The first (head 10, tail 2): a node that searches, and one that answers; then two children of the first, of which
    one is cut off and one goes on to the last turn. The second (head 20, no tail): both paths end in their first turn.
    """
    from igrpo_theory.paths import root_to_leaf_paths
    from igrpo_theory.tree import NodeStatus, RolloutTree
    from igrpo_train.question import Question
    from igrpo_train.rollout import Rollout
    from igrpo_train.search.session import Prompt

    questions = tuple(Question(id=f"q{i}", text="?", answers=("x",)) for i in range(2))
    roots = [(10, 2), (20, 0)]
    tree = RolloutTree.plant(
        [Prompt(question=q, head_ids=(1,) * h, tail_ids=(1,) * t) for q, (h, t) in zip(questions, roots, strict=True)]
    )
    first = [_turn(5, 30, 27), _turn(4, 3), _turn(6, 3), _turn(1, 1)]
    tree.append(np.array([0, 0, 1, 1]), first, np.array([False, True, True, True]), 3)
    tree.set_scores(np.array([2]), np.array([0.5]))
    tree.append(np.array([2, 2]), [_turn(7, 40, 36), _turn(3, 20, 18)], np.array([False, False]), 3)
    tree.set_scores(np.array([6, 7]), np.array([0.5, 0.1]))
    tree.truncate(np.array([7]))
    tree.append(np.array([6]), [_turn(8, 5)], np.array([True]), 3)
    paths = root_to_leaf_paths(tree)
    return Rollout(
        questions=questions,
        tree=tree,
        stages=[],
        paths=paths,
        grades=np.zeros(len(paths.leaf)),
        truncated=tree.status[paths.leaf] == NodeStatus.TRUNCATED,
        scores=tree.score[paths.leaf],
        valid=np.ones(paths.nodes.shape, dtype=bool),
        preamble_probability=0.2,
    )


def test_every_count_of_a_small_tree_is_as_worked_out_by_hand(rollout):
    from igrpo_train.accounting import comparison_tokens

    counts = comparison_tokens(rollout, np.ones(5, dtype=bool), budget=2, forced=np.array([100, 1000]))
    # Turn 1: prompts 12 12 20 20. Turn 2: 42 42, and 20 20 carried along. Turn 3: 82, and carried along 20 20 and the
    # mean of 12 (answered in turn 1) and 42 (cut off in turn 2).
    assert counts["official/prompt"] == 64 + 124 + 82 + 40 + 27
    # Turn 1: 5 4 6 1. Turn 2: 7 3 and twice their mean. Turn 3: 8 and three times 8.
    assert counts["official/generation"] == 16 + 20 + 32
    # Behind each node: 42 15 23 21, then 82 62 and 20 20, then 87 and 27 20 20; two slots a question and turn.
    assert counts["official/scoring"] == 101 + 184 + 154 + 3 * 2 * (100 + 1000)
    assert counts["official/scoring_needed"] == 42 + 82 + 62 + 3 * 100
    # Paths: answered at once; 5 7 8 over prompts 12 42 82; 5 3 over prompts 12 42; two of the second question.
    assert counts["official/training"] == 16 + (17 + 49 + 90) + (17 + 45) + 26 + 21
    # The observation of a node that was cut off leads to no response.
    assert counts["append/training"] == 16 + (12 + 5 + 27 + 7 + 36 + 8) + (12 + 5 + 27 + 3) + 26 + 21


def test_paths_that_are_dropped_and_trees_that_are_not_scored_cost_nothing(rollout):
    from igrpo_train.accounting import comparison_tokens

    keep = np.zeros(5, dtype=bool)
    keep[0] = True
    counts = comparison_tokens(rollout, keep, budget=2, forced=None)
    assert counts["official/scoring"] == counts["official/scoring_needed"] == 0
    assert counts["official/training"] == counts["append/training"] == 16


def test_rows_are_those_that_the_trainer_packs(rollout):
    from igrpo_train.accounting import comparison_tokens
    from igrpo_train.learn.packing import pack_paths

    keep = ~rollout.truncated
    rows = pack_paths(rollout.tree, rollout.paths, np.zeros(rollout.paths.nodes.shape), keep)
    counts = comparison_tokens(rollout, keep, budget=2, forced=None)
    assert counts["official/training"] == sum(row.num_tokens for row in rows)
