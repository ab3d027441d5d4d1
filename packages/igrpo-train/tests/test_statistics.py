"""Metrics of trees, draws and groups, against numbers worked out by hand."""

import numpy as np
import pytest


def _turn(text, valid=True, tokens=3):
    from igrpo_train.search.agent import parse_action
    from igrpo_train.search.session import Turn

    action = parse_action(text)
    return Turn(
        response_ids=(1,) * tokens,
        response_logprobs=(-0.1,) * tokens,
        text=text,
        action=action._replace(valid=valid),
        history_ids=(),
        observation="",
        documents=(),
        finish="stop",
    )


@pytest.fixture
def rollout():
    """Two questions: the first with a right, a wrong and a truncated path, the second with two truncated ones."""
    from igrpo_theory.paths import root_to_leaf_paths
    from igrpo_theory.tree import NodeStatus, RolloutTree
    from igrpo_train.question import Question
    from igrpo_train.rollout import Rollout
    from igrpo_train.search.session import Prompt

    questions = tuple(Question(id=f"q{i}", text="?", answers=("x",)) for i in range(2))
    tree = RolloutTree.plant([Prompt(question=question, head_ids=(1,), tail_ids=()) for question in questions])
    search, right, wrong = "<search>a</search>", "<answer>x</answer>", "<answer>y</answer>"
    first = tree.append(
        np.array([0, 0, 0, 1, 1]),
        [_turn(search), _turn(wrong), _turn(search), _turn(search), _turn("nothing", valid=False)],
        np.array([False, True, False, False, False]),
        4,
    )
    tree.set_scores(first[[0, 2, 3, 4]], np.array([0.5, 0.1, 0.02, 0.04]))
    tree.truncate(first[2:])
    tree.append(first[:1], [_turn(right)], np.array([True]), 4)
    paths = root_to_leaf_paths(tree)
    grades = np.array([float(tree.payload[leaf].action.text == "x") for leaf in paths.leaf])
    return Rollout(
        questions=questions,
        tree=tree,
        stages=[],
        paths=paths,
        grades=grades,
        truncated=tree.status[paths.leaf] == NodeStatus.TRUNCATED,
        scores=tree.score[paths.leaf],
        valid=np.ones(paths.nodes.shape, dtype=bool),
        preamble_probability=0.2,
    )


def test_tree_metrics_count_turns_paths_and_ends(rollout):
    from igrpo_theory.growth import GrowthRule
    from igrpo_train.statistics import tree_metrics

    metrics = tree_metrics(rollout, GrowthRule())
    assert metrics["tree/unique_turns"] == 3.0
    assert metrics["tree/path_turns"] == 3.0
    assert metrics["tree/paths"] == 2.5
    assert metrics["tree/truncated_share"] == pytest.approx(3 / 5)
    assert metrics["rollout/exact_match"] == 0.5
    assert metrics["rollout/no_answer_share"] == 0.0
    assert metrics["rollout/invalid_share"] == pytest.approx(1 / 6)
    assert metrics["scoring/answer_score"] == pytest.approx(np.mean([0.5, 0.1, 0.02, 0.04]))
    assert metrics["rollout/searches"] == 3 / 2
    assert tree_metrics(rollout, GrowthRule(turn_limit=1))["rollout/searches"] == 0.0


def test_groups_of_one_reward_and_groups_of_noise_are_told_apart(rollout):
    from igrpo_train.statistics import group_metrics

    rewards = np.where(rollout.truncated, 0.5 * np.nan_to_num(rollout.scores), rollout.grades)
    penalties = np.zeros(rollout.paths.nodes.shape)
    metrics = group_metrics(rollout, rewards, np.ones(5, dtype=bool), penalties)
    assert metrics["group/zero_variance_share"] == 0.0
    assert metrics["group/noise_share"] == 0.5
    flat = group_metrics(rollout, np.zeros(5), np.ones(5, dtype=bool), penalties)
    assert flat["group/zero_variance_share"] == 1.0
    assert flat["group/noise_share"] == 0.0
    dropped = group_metrics(rollout, rewards, ~rollout.truncated, penalties)
    assert dropped["group/zero_variance_share"] == 0.5
    assert np.isnan(dropped["reward/truncated"])


def test_distance_from_uniform_counts_only_real_choices():
    """Three stages: a forced one, one with two nodes, and one with three nodes and probabilities .5 .25 .25."""
    from igrpo_theory.stages import Stage
    from igrpo_train.statistics import expansion_metrics

    question = np.array([0, 0, 0, 0])

    def stage(depth, nodes, probabilities):
        counts = np.ones(len(nodes), dtype=int)
        return Stage(depth, np.array(nodes), np.array(probabilities), np.array([5]), counts, 1.0, 2, "capped")

    stages = [stage(1, [1], [1.0]), stage(2, [1, 2], [0.9, 0.1]), stage(3, [1, 2, 3], [0.5, 0.25, 0.25])]
    metrics = expansion_metrics(stages, question, 1, cap=2)
    assert metrics["expansion/forced_share"] == pytest.approx(2 / 3)
    assert metrics["expansion/tv_uniform"] == pytest.approx(1 / 6)
    assert metrics["expansion/active_turn_3"] == 3.0


@pytest.mark.parametrize(
    ("budget", "cap", "active", "forced"),
    [(1, 2, 1, 1.0), (5, 9, 1, 1.0), (5, 9, 2, 0.0), (2, 2, 2, 0.0), (3, 1, 3, 1.0), (5, 2, 2, 1.0), (5, 2, 3, 0.0)],
)
def test_a_stage_is_forced_where_cap_or_budget_leave_no_choice(budget, cap, active, forced):
    from igrpo_theory.stages import Stage
    from igrpo_train.statistics import expansion_metrics

    nodes, counts = np.arange(1, active + 1), np.ones(active, dtype=int)
    stage = Stage(1, nodes, np.full(active, 1 / active), np.array([budget]), counts, 1.0, cap, "capped")
    metrics = expansion_metrics([stage], np.zeros(active + 1, dtype=int), 1, cap)
    assert metrics["expansion/forced_share"] == forced
