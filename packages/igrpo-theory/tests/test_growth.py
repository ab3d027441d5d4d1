from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from igrpo_theory import (
    GrowthRule,
    NodeStatus,
    PolicyTreeWorld,
    Proposal,
    RolloutTree,
    Stream,
    expansion,
    fold,
    grow,
    question_keys,
    random_policy_tree,
    root_to_leaf_paths,
    segments,
    stage_budget,
)
from igrpo_theory.expansion import Scheme
from igrpo_theory.randomness import spaced_keys
from igrpo_theory.segments import LARGE

STATUS = NodeStatus


class Recorder(PolicyTreeWorld):
    """A policy tree's world that remembers what it was asked for."""

    def __init__(self, seed: int = 0, turns: int = 4, branching: int = 3, answer_rate: float = 0.3) -> None:
        super().__init__(
            random_policy_tree(np.random.default_rng(seed), turns=turns, branching=branching, answer_rate=answer_rate)
        )
        self.scored: list[int] = []
        self.proposed: list[int] = []

    def propose(self, tree: RolloutTree[int], parents: np.ndarray, keys: np.ndarray) -> Proposal[int]:
        self.proposed += parents.tolist()
        return super().propose(tree, parents, keys)

    def score(self, tree: RolloutTree[int], nodes: np.ndarray) -> np.ndarray:
        self.scored += nodes.tolist()
        return super().score(tree, nodes)


def keys_of(num_questions: int, seed: int = 0) -> np.ndarray:
    return question_keys(seed, 0, np.arange(num_questions), [f"q{slot}" for slot in range(num_questions)])


@st.composite
def rules(draw: st.DrawFn) -> GrowthRule:
    scheme = draw(st.sampled_from(["capped", "systematic"]))
    budget = draw(st.integers(1, 7))
    return GrowthRule(
        budget=budget,
        cap=budget if scheme == "systematic" else draw(st.integers(1, 8)),
        gamma=draw(st.sampled_from([0.0, 1.0, 20.0])),
        budget_mode=draw(st.sampled_from(["full", "mid", "low"])),
        scheme=scheme,
        criterion=draw(st.sampled_from(["mean", "score", "gain", "zero"])),
        turn_limit=draw(st.integers(1, 4)),
        root_score=draw(st.sampled_from(["zero", "evaluate"])),
        score_chains=draw(st.booleans()),
    )


WORLDS = st.builds(Recorder, seed=st.integers(0, 10**6), answer_rate=st.sampled_from([0.0, 0.3, 0.7, 1.0]))


@given(world=WORLDS, rule=rules(), num_questions=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_child_is_accounted_for(world: Recorder, rule: GrowthRule, num_questions: int, seed: int) -> None:
    growth = grow(world, [0] * num_questions, keys_of(num_questions, seed), rule)
    tree, stages = growth.tree, growth.stages
    first = np.bincount(tree.question[tree.depth == 1], minlength=num_questions)
    assert (first == rule.budget).all()  # whatever cap and budget mode
    assert tree.depth.max() <= rule.turn_limit
    children = tree.children_count()
    for stage in stages:
        active = np.bincount(tree.question[stage.nodes], minlength=num_questions)
        drawn = np.bincount(tree.question[stage.nodes], weights=stage.counts, minlength=num_questions)
        assert stage.budget.tolist() == stage_budget(rule.budget_mode, rule.budget, active).tolist()
        assert drawn.tolist() == np.minimum(stage.budget, rule.cap * active).tolist()
        assert (stage.counts <= rule.cap).all()
        assert children[stage.nodes].tolist() == stage.counts.tolist()
        below = np.bincount(tree.question[tree.depth == stage.depth + 1], minlength=num_questions)
        assert below.tolist() == drawn.tolist()
    assert tree.num_nodes == num_questions * (1 + rule.budget) + sum(int(stage.counts.sum()) for stage in stages)
    assert len(world.proposed) == tree.num_nodes - num_questions


@given(world=WORLDS, rule=rules(), num_questions=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_node_ends_as_its_status_says(world: Recorder, rule: GrowthRule, num_questions: int, seed: int) -> None:
    growth = grow(world, [0] * num_questions, keys_of(num_questions, seed), rule)
    tree, stages = growth.tree, growth.stages
    children, answers = tree.children_count(), world.policy.answer[np.array(tree.payload)]
    assert ((tree.status == STATUS.TERMINAL) == answers).all()
    assert ((tree.status == STATUS.TURN_LIMIT) == (~answers & (tree.depth == rule.turn_limit))).all()
    assert ((tree.status == STATUS.ACTIVE) == (children > 0)).all()
    zero_count = sum(int((stage.counts == 0).sum()) for stage in stages)
    assert (tree.status == STATUS.TRUNCATED).sum() == zero_count
    assert len(root_to_leaf_paths(tree).leaf) == answers.sum() + (tree.status == STATUS.TURN_LIMIT).sum() + zero_count


@given(world=WORLDS, rule=rules(), seed=st.integers(0, 99))
def test_only_what_is_needed_is_scored(world: Recorder, rule: GrowthRule, seed: int) -> None:
    tree = grow(world, [0, 0], keys_of(2, seed), rule).tree
    could_go_on = (tree.depth > 0) & (tree.depth < rule.turn_limit) & (tree.status != STATUS.TERMINAL)
    expected = np.flatnonzero(could_go_on).tolist() if rule.needs_scores else []
    roots = [0, 1] if rule.needs_scores and rule.root_score == "evaluate" else []
    assert sorted(world.scored) == roots + expected
    assert np.flatnonzero(~np.isnan(tree.score)).tolist() == roots + expected
    assert np.flatnonzero(~np.isnan(tree.value)).tolist() == expected


@given(world=WORLDS, rule=rules(), seed=st.integers(0, 99))
def test_values_are_those_of_score_and_parent(world: Recorder, rule: GrowthRule, seed: int) -> None:
    tree = grow(world, [0, 0], keys_of(2, seed), rule).tree
    for node in np.flatnonzero(~np.isnan(tree.value)):
        score, parent = tree.score[node], tree.parent[node]
        parent_score = 0.0 if tree.depth[node] == 1 and rule.root_score == "zero" else tree.score[parent]
        gain = score - parent_score
        expected = {"mean": (score + gain) / 2, "score": score, "gain": gain, "zero": 0.0}[rule.criterion]
        assert abs(tree.value[node] - expected) < 1e-15


@given(world=WORLDS, rule=rules(), seed=st.integers(0, 99), order=st.permutations(range(4)))
def test_a_tree_does_not_depend_on_the_rest_of_the_batch(
    world: Recorder, rule: GrowthRule, seed: int, order: Sequence[int]
) -> None:
    keys = keys_of(4, seed)
    together = grow(world, [0] * 4, keys, rule).tree
    shuffled = grow(world, [0] * 4, keys[list(order)], rule).tree
    for place, slot in enumerate(order):
        assert nodes_of(shuffled, place) == nodes_of(together, slot)
    assert nodes_of(grow(world, [0], keys[[2]], rule).tree, 0) == nodes_of(together, 2)


@pytest.mark.parametrize("num_questions", [1, 3])
def test_a_tree_does_not_depend_on_how_many_turns_are_asked_for_at_once(
    num_questions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = PolicyTreeWorld(random_policy_tree(np.random.default_rng(5), turns=4, branching=3, answer_rate=0.2))
    at_once = grow(world, [0] * num_questions, keys_of(num_questions), GrowthRule(budget=20)).tree
    monkeypatch.setattr(segments, "_BLOCK", 7)
    in_blocks = grow(world, [0] * num_questions, keys_of(num_questions), GrowthRule(budget=20)).tree
    assert in_blocks.parent.tolist() == at_once.parent.tolist()
    for slot in range(num_questions):
        assert nodes_of(in_blocks, slot) == nodes_of(at_once, slot)


def nodes_of(tree: RolloutTree[int], slot: int) -> list[list[float]]:
    """All that a question's nodes hold, parents by their number in the question's own tree; -9 for no number."""
    own = tree.question == slot
    above = np.where(tree.parent >= 0, tree.local[tree.parent], -1)
    columns = (tree.local, above, tree.depth, tree.status, tree.score, tree.value, np.array(tree.payload))
    return [np.nan_to_num(column[own], nan=-9.0).tolist() for column in columns]


@pytest.mark.parametrize(("scheme", "cap"), [("capped", 5000), ("systematic", 5000), ("capped", 2)])
def test_a_large_tree_does_not_depend_on_the_rest_of_the_batch(scheme: Scheme, cap: int) -> None:
    """With answers and a shrinking budget, some stages are above the size that is dealt with alone and some below."""
    world = PolicyTreeWorld(random_policy_tree(np.random.default_rng(5), turns=4, branching=3, answer_rate=0.2))
    rule = GrowthRule(budget=5000, cap=cap, scheme=scheme, budget_mode="low")
    keys, order = keys_of(3), [2, 0, 1]

    def columns(tree: RolloutTree[int], slot: int) -> list[list[float]]:
        own = np.flatnonzero(tree.question == slot)
        parent = np.where(tree.parent[own] >= 0, tree.local[tree.parent[own]], -1)
        value = np.nan_to_num(tree.value[own])
        return [column.tolist() for column in (np.asarray(tree.payload)[own], parent, tree.status[own], value)]

    def grown(keys: np.ndarray) -> RolloutTree[int]:
        return grow(world, np.zeros(len(keys), dtype=np.int64), keys, rule).tree

    together, shuffled = grown(keys), grown(keys[order])
    for place, slot in enumerate(order):
        assert columns(shuffled, place) == columns(together, slot)
    assert columns(grown(keys[[1]]), 0) == columns(together, 1)


def test_keys_of_children_are_hashed_or_spaced_by_the_size_of_the_stage() -> None:
    class Listener(PolicyTreeWorld):
        heard: list[np.ndarray]

        def propose(self, tree: RolloutTree[int], parents: np.ndarray, keys: np.ndarray) -> Proposal[int]:
            self.heard.append(keys)
            return super().propose(tree, parents, keys)

    world, keys = Listener(random_policy_tree(np.random.default_rng(0), turns=1, branching=2)), keys_of(2)
    stream = fold(keys, Stream.PROPOSAL)
    for budget, make in ((LARGE - 1, fold), (LARGE, spaced_keys)):
        world.heard = []
        grow(world, [0, 0], keys, GrowthRule(budget=budget, turn_limit=1))
        local = np.tile(np.arange(1, budget + 1), 2)
        assert np.concatenate(world.heard).tolist() == make(np.repeat(stream, budget), local).tolist()


def test_the_same_keys_grow_the_same_trees_and_others_do_not() -> None:
    world, rule = Recorder(), GrowthRule()
    trees = [grow(world, [0] * 8, keys_of(8, seed), rule).tree.payload for seed in (1, 1, 2)]
    assert trees[0] == trees[1] != trees[2]


def test_a_cap_of_one_grows_plain_chains() -> None:
    world = Recorder()
    growth = grow(world, [0, 0], keys_of(2), GrowthRule(cap=1, budget_mode="low"))
    tree = growth.tree
    assert all((stage.counts == 1).all() for stage in growth.stages)
    assert (tree.children_count()[2:] <= 1).all()
    assert len(root_to_leaf_paths(tree).leaf) == 2 * 5
    assert not (tree.status == STATUS.TRUNCATED).any()
    assert world.scored == []


def test_equal_draws_stay_separate_nodes() -> None:
    world = Recorder(branching=1, answer_rate=0.0)
    tree = grow(world, [0], keys_of(1), GrowthRule(budget=6, cap=1)).tree
    assert np.bincount(tree.depth).tolist() == [1, 6, 6, 6, 6]
    assert len(set(tree.payload)) == 5


def test_values_of_the_root_and_of_the_last_turn_have_no_effect() -> None:
    world, rule = Recorder(answer_rate=0.0), GrowthRule(criterion="score", cap=5)
    policy = world.policy
    ignored = (policy.depth == 0) | (policy.depth == policy.turns)
    other = PolicyTreeWorld(replace(policy, value=np.where(ignored, 100.0, policy.value)))
    first, second = (grow(each, [0] * 50, keys_of(50), rule).tree for each in (world, other))
    assert first.payload == second.payload
    assert first.parent.tolist() == second.parent.tolist()


def test_gamma_zero_ignores_the_values() -> None:
    world = Recorder()
    other = PolicyTreeWorld(replace(world.policy, value=-world.policy.value))
    rule = GrowthRule(gamma=0.0)
    first, second = (grow(each, [0] * 50, keys_of(50), rule).tree for each in (world, other))
    assert first.payload == second.payload
    assert first.parent.tolist() == second.parent.tolist()


def test_a_shorter_turn_limit_grows_the_same_beginning() -> None:
    world = Recorder()
    short = grow(world, [0] * 20, keys_of(20), GrowthRule(turn_limit=2)).tree
    long = grow(world, [0] * 20, keys_of(20), GrowthRule(turn_limit=4)).tree
    assert long.payload[: short.num_nodes] == short.payload


def test_the_sampler_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_only(probabilities: np.ndarray, *rest: object) -> np.ndarray:
        return (np.arange(len(probabilities)) == 0).astype(np.int64)

    monkeypatch.setattr(expansion, "draw_expansions", first_only)
    tree = grow(Recorder(answer_rate=0.0), [0], keys_of(1), GrowthRule()).tree
    assert np.bincount(tree.depth).tolist() == [1, 5, 1, 1, 1]


def test_questions_that_are_done_leave_the_others_growing() -> None:
    world = Recorder(answer_rate=0.6, seed=3)
    growth = grow(world, [0] * 30, keys_of(30), GrowthRule(budget=2))
    tree, last = growth.tree, growth.stages[-1]
    finished = last.budget == 0
    assert finished.any()
    assert not finished.all()
    assert not np.isin(tree.question[last.nodes], np.flatnonzero(finished)).any()


# Errors


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("gamma", float("nan"), "gamma must be finite and at least 0, got nan"),
        ("gamma", -1.0, "gamma must be finite and at least 0, got -1.0"),
        ("budget", 0, "budget must be at least 1, got 0: the root needs a child"),
        ("cap", 0, "cap must be at least 1, got 0: 1 is a chain, cap = budget is no cap"),
        ("turn_limit", 0, "turn_limit must be at least 1, got 0: a path needs a turn"),
        ("scheme", "systematic", "systematic resampling takes no cap below the budget, got cap 2 and budget 5"),
    ],
)
def test_rules_without_meaning_are_refused(field: str, value: float | str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GrowthRule(**{field: value})


@pytest.mark.parametrize("field", ["budget_mode", "scheme", "criterion", "root_score"])
def test_a_rule_that_names_no_choice_is_refused(field: str) -> None:
    rule = GrowthRule()
    object.__setattr__(rule, field, "best")  # past the type checks of the tests
    with pytest.raises(ValueError, match=f"{field} must be one of .*, got best: choose one of them"):
        rule.__post_init__()


def test_keys_are_one_a_question() -> None:
    with pytest.raises(ValueError, match="keys must be one a question, got 3 for 2 roots: see question_keys"):
        grow(Recorder(), [0, 0], keys_of(3), GrowthRule())


def test_a_score_that_is_not_finite_is_refused_with_its_place() -> None:
    world = Recorder(answer_rate=0.0)
    world.policy.value[:] = np.nan
    with pytest.raises(ValueError, match="scores must be finite, got nan for node 2 of question 0: check the scorer"):
        grow(world, [0, 0], keys_of(2), GrowthRule())


def test_a_world_must_propose_one_turn_a_parent() -> None:
    class Silent(Recorder):
        def propose(self, tree: RolloutTree[int], parents: np.ndarray, keys: np.ndarray) -> Proposal[int]:
            return Proposal([], np.zeros(0, dtype=bool))

    with pytest.raises(
        ValueError, match=r"world\.propose must return one turn a parent, got 0 payloads and 0 flags for 5"
    ):
        grow(Silent(), [0], keys_of(1), GrowthRule())


def test_a_world_must_score_one_number_a_node() -> None:
    class Blind(Recorder):
        def score(self, tree: RolloutTree[int], nodes: np.ndarray) -> np.ndarray:
            return np.zeros(0)

    with pytest.raises(ValueError, match=r"world\.score must return one number a node, got 0 for 5 nodes"):
        grow(Blind(answer_rate=0.0), [0], keys_of(1), GrowthRule())
