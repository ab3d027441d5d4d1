"""Packing: contexts as sampled, masks that count, cuts at questions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from igrpo_theory.paths import root_to_leaf_paths
from igrpo_theory.tree import RolloutTree
from igrpo_train.learn.batch import collate
from igrpo_train.learn.packing import (
    TurnRow,
    count_rows,
    cut_questions,
    micro_batches,
    minibatches,
    pack_paths,
)
from igrpo_train.question import Question
from igrpo_train.search.agent import Action, ActionKind
from igrpo_train.search.session import Prompt, SearchNode, SearchTree, Turn


def make_prompt(name: str, head: tuple[int, ...], tail: tuple[int, ...]) -> Prompt:
    return Prompt(question=Question(id=name, text=name, answers=("a",)), head_ids=head, tail_ids=tail)


def make_turn(response: tuple[int, ...], history: tuple[int, ...]) -> Turn:
    return Turn(
        response_ids=response,
        response_logprobs=tuple(-0.1 * token for token in response),
        text="",
        action=Action(kind=ActionKind.NONE, text="", valid=False, start=-1, end=-1),
        history_ids=history,
        observation="",
        documents=(),
        finish="stop",
    )


def make_row(question: int, path: int = 0, turn: int = 0, context: int = 1, response: int = 1) -> TurnRow:
    return TurnRow(
        question=question,
        path=path,
        turn=turn,
        context_ids=(3,) * context,
        response_ids=tuple(range(10, 10 + response)),
        old_logprobs=(-1.0,) * response,
        advantage=float(path) - 0.5,
    )


@pytest.fixture
def tree() -> SearchTree:
    """Question 0: a root with two children, the first of which has two; question 1: one child."""
    roots: list[SearchNode] = [make_prompt("q0", (1, 2), (9,)), make_prompt("q1", (4,), ())]
    tree: SearchTree = RolloutTree.plant(roots)
    firsts = [make_turn((10, 11), (20,)), make_turn((12,), ()), make_turn((13,), (21,))]
    tree.append(np.array([0, 0, 1]), firsts, np.array([False, True, True]), 2)
    seconds = [make_turn((14, 15, 16), ()), make_turn((), ())]
    tree.append(np.array([2, 2]), seconds, np.array([True, True]), 2)
    return tree


def test_rows_hold_the_context_in_which_each_turn_was_sampled(tree: SearchTree) -> None:
    paths = root_to_leaf_paths(tree)
    advantages = np.arange(paths.nodes.size, dtype=float).reshape(paths.nodes.shape)
    rows = pack_paths(tree, paths, advantages, np.ones(len(paths.leaf), dtype=bool))
    seen = {(row.question, row.context_ids, row.response_ids) for row in rows}
    assert seen == {
        (0, (1, 2, 9), (10, 11)),
        (0, (1, 2, 9), (12,)),
        (0, (1, 2, 20, 9), (14, 15, 16)),
        (1, (4,), (13,)),
    }
    # The shared first turn has a row on each of its two paths; the turn without a sampled id has none.
    assert [row.response_ids for row in rows].count((10, 11)) == 2
    assert len(rows) == 5
    for row in rows:
        assert row.advantage == advantages[row.path, row.turn]
        assert row.old_logprobs == tuple(-0.1 * token for token in row.response_ids)


def test_rows_of_dropped_paths_are_left_out_and_slots_are_renamed(tree: SearchTree) -> None:
    paths = root_to_leaf_paths(tree)
    keep = paths.question == 1
    rows = pack_paths(tree, paths, np.zeros(paths.nodes.shape), keep, slots=np.array([7, 5]))
    assert [(row.question, row.response_ids) for row in rows] == [(5, (13,))]


def test_collated_rows_have_this_layout() -> None:
    batch = collate([make_row(0, 0, context=2, response=1), make_row(0, 1, context=1, response=3)], pad_id=0)
    assert batch.input_ids.tolist() == [[3, 3, 10, 0], [3, 10, 11, 12]]
    assert batch.attention_mask is not None
    assert batch.attention_mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert batch.predictors.tolist() == [1, 4, 5, 6]
    assert batch.targets.tolist() == [10, 10, 11, 12]
    assert batch.cells.tolist() == [[0, 0, 0], [1, 2, 3]]
    assert batch.num_tokens == 7
    assert batch.sampled.tolist() == [[True, False, False], [True, True, True]]
    assert batch.old_logprobs.tolist() == [[-1, 0, 0], [-1, -1, -1]]
    assert batch.advantages.tolist() == [-0.5, 0.5]
    assert collate([make_row(0)], pad_id=0, dtype=torch.float64).old_logprobs.dtype == torch.float64


shapes = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 6)), min_size=1, max_size=20)


@given(shapes)
def test_masks_count_exactly_the_sampled_tokens(shapes: list[tuple[int, int]]) -> None:
    rows = [make_row(0, path, context=context, response=response) for path, (context, response) in enumerate(shapes)]
    batch = collate(rows, pad_id=0)
    num_sampled = sum(response for _, response in shapes)
    assert len(batch.targets) == int(batch.sampled.sum()) == num_sampled
    assert batch.num_tokens == sum(row.num_tokens for row in rows)
    expected = [token for row in rows for token in row.response_ids]
    assert batch.targets[batch.cells[batch.sampled]].tolist() == expected


@given(shapes, st.integers(1, 60))
def test_micro_batches_hold_every_row_once_within_the_budget(shapes: list[tuple[int, int]], budget: int) -> None:
    rows = [make_row(0, path, context=context, response=response) for path, (context, response) in enumerate(shapes)]
    batches = micro_batches(rows, budget)
    assert sorted(row.path for batch in batches for row in batch) == list(range(len(rows)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(row.num_tokens for row in batch) <= budget
    assert batches == micro_batches(rows[::-1], budget)


row_counts = st.dictionaries(st.integers(0, 300), st.integers(1, 20), min_size=1, max_size=40)


@given(row_counts, st.integers(1, 80), st.integers(0, 2**64 - 1))
def test_minibatches_are_even_and_cut_at_questions(counts: dict[int, int], update_rows: int, key: int) -> None:
    groups = cut_questions(counts, update_rows, key)
    assert len(groups) == min(len(counts), max(1, round(sum(counts.values()) / update_rows)))
    assert sorted(slot for group in groups for slot in group) == sorted(counts)
    sizes = [sum(counts[slot] for slot in group) for group in groups]
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) <= max(counts.values())
    backwards = dict(sorted(counts.items(), reverse=True))
    assert groups == cut_questions(backwards, update_rows, key)


def test_minibatches_are_drawn_anew_for_each_key() -> None:
    counts = dict.fromkeys(range(32), 4)
    drawn = {tuple(map(tuple, cut_questions(counts, 64, key))) for key in range(20)}
    assert len(drawn) == 20
    assert cut_questions({}, 64, 0) == []


def test_minibatches_of_two_processes_make_up_those_of_one() -> None:
    rows = [make_row(question, path) for question in range(9) for path in range(question % 4 + 1)]
    whole = minibatches(rows, 6, key=3)
    shards = [[row for row in rows if row.question % 3 == 0], [row for row in rows if row.question % 3 != 0]]
    parts = [minibatches(shard, 6, key=3, row_counts=count_rows(rows)) for shard in shards]
    assert len(parts[0]) == len(parts[1]) == len(whole) > 1
    for index, group in enumerate(whole):
        joined = parts[0][index] + parts[1][index]
        assert sorted(joined, key=lambda row: (row.question, row.path)) == sorted(
            group, key=lambda row: (row.question, row.path)
        )
