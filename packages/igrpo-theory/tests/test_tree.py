import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from igrpo_theory import NodeStatus, RolloutTree


def family() -> RolloutTree[str]:
    """Two questions; the first has a terminal child, a truncated one and a grandchild at the limit."""
    tree = RolloutTree.plant(["p", "q"])
    tree.append(np.array([0, 1, 0, 0]), ["a", "b", "c", "d"], np.array([True, True, False, False]), 2)
    tree.set_scores(np.array([4, 5]), np.array([0.25, 0.5]))
    tree.set_values(np.array([4, 5]), np.array([0.125, 0.25]))
    tree.truncate(np.array([5]))
    tree.append(np.array([4]), ["e"], np.array([False]), 2)
    return tree


def test_a_family_has_the_arrays_one_would_draw() -> None:
    tree = family()
    assert (tree.num_nodes, tree.num_questions) == (7, 2)
    assert tree.parent.tolist() == [-1, -1, 0, 1, 0, 0, 4]
    assert tree.depth.tolist() == [0, 0, 1, 1, 1, 1, 2]
    assert tree.question.tolist() == [0, 1, 0, 1, 0, 0, 0]
    assert tree.local.tolist() == [0, 0, 1, 1, 2, 3, 4]
    names = [NodeStatus(status).name for status in tree.status]
    assert names == ["ACTIVE", "ACTIVE", "TERMINAL", "TERMINAL", "ACTIVE", "TRUNCATED", "TURN_LIMIT"]
    assert tree.children_count().tolist() == [3, 1, 0, 0, 1, 0, 0]
    assert tree.leaves().tolist() == [2, 5, 6, 3]
    assert tree.payload == ["p", "q", "a", "b", "c", "d", "e"]


def test_an_answer_at_the_last_turn_is_terminal() -> None:
    tree = RolloutTree.plant(["q"])
    tree.append(np.array([0, 0]), ["a", "b"], np.array([True, False]), 1)
    assert tree.status.tolist() == [NodeStatus.ACTIVE, NodeStatus.TERMINAL, NodeStatus.TURN_LIMIT]


def test_equal_draws_stay_two_nodes() -> None:
    tree = RolloutTree.plant(["q"])
    tree.append(np.array([0, 0]), ["same", "same"], np.array([False, False]), 3)
    assert tree.num_nodes == 3
    assert tree.children_count()[0] == 2


@given(
    num_questions=st.integers(1, 4),
    batches=st.lists(st.lists(st.integers(0, 10**6), min_size=1, max_size=9), max_size=12),
)
def test_appending_keeps_everything_and_numbers_births(num_questions: int, batches: list[list[int]]) -> None:
    tree = RolloutTree.plant([0] * num_questions)
    parents = [-1] * num_questions
    for batch in batches:
        chosen = np.array([pick % tree.num_nodes for pick in batch])
        reserved = tree.reserve(chosen)
        nodes = tree.append(chosen, batch, np.zeros(len(batch), dtype=bool), 10**6)
        assert nodes.tolist() == list(range(len(parents), len(parents) + len(batch)))
        assert tree.local[nodes].tolist() == reserved.tolist()
        parents += chosen.tolist()
    assert tree.parent.tolist() == parents
    births, questions, depth, local = (
        [0] * num_questions,
        *(c.tolist() for c in (tree.question, tree.depth, tree.local)),
    )
    for node, parent in enumerate(parents):
        question = node if parent < 0 else questions[parent]
        assert questions[node] == question
        assert depth[node] == (0 if parent < 0 else depth[parent] + 1)
        assert local[node] == births[question]
        births[question] += 1
    assert tree.payload[num_questions:] == [pick for batch in batches for pick in batch]


def test_records_are_json_and_linked_by_local_number() -> None:
    records = json.loads(json.dumps(family().to_records(str.upper)))
    assert [record["slot"] for record in records] == [0, 1]
    assert records[0]["nodes"][0] == {
        "parent": None,
        "depth": 0,
        "status": "ACTIVE",
        "score": None,
        "value": None,
        "weight_mu": 1.0,
        "weight_pi": 1.0,
        "payload": "P",
    }
    assert records[0]["nodes"][2]["score"] == 0.25
    assert records[0]["nodes"][2]["value"] == 0.125
    # Children of the root share its weight; of what `grow` did not draw there is none, and a truncated leaf has 0.
    assert [node["weight_pi"] for node in records[0]["nodes"][1:]] == [1 / 3, 1 / 3, 0.0, None]
    assert [node["parent"] for node in records[0]["nodes"]] == [None, 0, 0, 0, 2]
    assert [node["payload"] for node in records[1]["nodes"]] == ["Q", "B"]


def test_arrays_are_read_only_views() -> None:
    with pytest.raises(ValueError, match="read-only"):
        family().score[2] = 1.0


def test_scores_and_values_are_assigned_once() -> None:
    tree = family()
    with pytest.raises(AssertionError, match="a score is assigned once"):
        tree.set_scores(np.array([4]), np.array([0.5]))
    with pytest.raises(AssertionError, match="a value is assigned once"):
        tree.set_values(np.array([4]), np.array([0.5]))


def test_only_active_turns_are_truncated_or_have_children() -> None:
    tree = family()
    for node in (0, 2, 5, 6):
        with pytest.raises(AssertionError, match="only active turns are truncated"):
            tree.truncate(np.array([node]))
    for node in (2, 5, 6):
        with pytest.raises(AssertionError, match="only active nodes have children"):
            tree.append(np.array([node]), ["x"], np.array([False]), 9)


def test_a_forest_without_questions_is_refused() -> None:
    with pytest.raises(ValueError, match="roots must hold at least one question, got none: pass one root a question"):
        RolloutTree.plant([])


def test_roots_in_an_array_keep_payloads_in_an_array() -> None:
    tree = RolloutTree.plant(np.array([7, 8], dtype=np.int32))
    lists = RolloutTree.plant([7, 8])
    for forest in (tree, lists):
        for _ in range(5):
            payloads = list(range(forest.num_nodes))
            forest.append(np.zeros(len(payloads), dtype=int), payloads, np.zeros(len(payloads), dtype=bool), 9)
    assert isinstance(tree.payload, np.ndarray)
    assert tree.payload.dtype == np.int32
    assert tree.payload.tolist() == lists.payload
    assert tree.to_records(int) == lists.to_records(int)
    with pytest.raises(ValueError, match="read-only"):
        tree.payload[0] = 1


def test_room_can_be_made_in_advance() -> None:
    tree, roomy = RolloutTree.plant(["a"]), RolloutTree.plant(["a"], capacity=1000)
    for forest in (tree, roomy):
        forest.append(np.zeros(100, dtype=int), ["b"] * 100, np.zeros(100, dtype=bool), 9)
    assert tree.to_records(str) == roomy.to_records(str)
