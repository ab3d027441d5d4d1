import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from scipy import stats
from theory_strategies import policies

from igrpo_theory import (
    PolicyTree,
    PolicyTreeWorld,
    RolloutTree,
    enumerate_paths,
    padded,
    random_policy_tree,
    states_of,
    teacher_law,
)


def small(**changes: np.ndarray) -> PolicyTree:
    """Two turns: state 1 answers, state 2 has the children 3 and 4."""
    fields = {
        "parent": np.array([-1, 0, 0, 2, 2]),
        "probability": np.array([1.0, 0.4, 0.6, 0.5, 0.5]),
        "value": np.array([9.0, 0.3, 0.2, 7.0, 8.0]),
        "answer": np.array([False, True, False, False, False]),
        "reward": np.array([0.0, 1.0, 0.0, 0.0, 1.0]),
    }
    return PolicyTree(**{**fields, **changes})


def test_paths_of_a_small_tree_by_hand() -> None:
    law = enumerate_paths(small())
    assert law.end.tolist() == [1, 3, 4]
    assert law.states.tolist() == [[1, -1], [2, 3], [2, 4]]
    assert law.probability.tolist() == [0.4, 0.3, 0.3]
    assert law.value.tolist() == [0.0, 0.2, 0.2]  # never the last state's own
    assert law.reward.tolist() == [1.0, 0.0, 1.0]


@given(
    seed=st.integers(0, 10**6),
    turns=st.integers(1, 4),
    branching=st.integers(1, 4),
    answer_rate=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_random_trees_are_policies(seed: int, turns: int, branching: int, answer_rate: float) -> None:
    policy = random_policy_tree(
        np.random.default_rng(seed), turns=turns, branching=branching, answer_rate=answer_rate, value_range=2.0
    )
    law = enumerate_paths(policy)
    assert abs(law.probability.sum() - 1) < 1e-12
    assert np.abs(policy.value).max() <= 2
    assert (policy.answer[law.end] | (policy.depth[law.end] == policy.turns)).all()
    if answer_rate == 0:
        assert policy.turns == turns
        assert len(law.end) == branching**turns


def test_children_are_drawn_with_their_probabilities(alpha: float) -> None:
    policy = random_policy_tree(np.random.default_rng(1), turns=2, branching=4)
    tree = RolloutTree.plant(list(range(5)))
    world = PolicyTreeWorld(policy)
    for state in range(5):
        keys = np.arange(50_000, dtype=np.uint64) + np.uint64(50_000 * state)
        children = np.array(world.propose(tree, np.full(50_000, state), keys).payloads)
        own = np.flatnonzero(policy.parent == state)
        seen = np.bincount(children, minlength=len(policy.parent))
        assert seen.sum() == seen[own].sum()
        assert stats.chisquare(seen[own], 50_000 * policy.probability[own]).pvalue > alpha / 5


def test_scores_are_the_values_of_the_states() -> None:
    tree = RolloutTree.plant([2, 1])
    assert PolicyTreeWorld(small()).score(tree, np.array([1, 0])).tolist() == [0.3, 0.2]
    assert states_of(tree).tolist() == [2, 1]


def test_fields_of_different_lengths_are_refused() -> None:
    # By the constructor, or before it where shapes are checked at run time.
    with pytest.raises((ValueError, TypeCheckError), match="value"):
        small(value=np.zeros(4))


def test_a_policy_without_a_turn_is_refused() -> None:
    one = np.ones(1)
    with pytest.raises(ValueError, match="parent must hold at least one turn, got 1 states: add a child to state 0"):
        PolicyTree(parent=-np.ones(1, dtype=int), probability=one, value=one, answer=one < 0, reward=one)


@given(policy=policies(), gamma=st.floats(0, 5))
def test_pads_keep_the_law_the_values_and_the_rewards_of_every_path(policy: PolicyTree, gamma: float) -> None:
    longer, path = padded(policy)
    law, padded_law = enumerate_paths(policy), enumerate_paths(longer)
    assert sorted(path.tolist()) == list(range(len(law.end)))
    assert (longer.depth[padded_law.end] == policy.turns).all()
    assert not longer.answer.any()
    for ours, theirs in ((padded_law.probability, law.probability), (padded_law.value, law.value)):
        assert np.allclose(ours, theirs[path], rtol=0, atol=1e-12)
    assert padded_law.reward.tolist() == law.reward[path].tolist()
    assert np.allclose(teacher_law(longer, gamma), teacher_law(policy, gamma)[path], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parent": np.array([-1, 0, 2, 0, 2])}, "parent must list states breadth first, got .*: sort the states"),
        ({"probability": np.array([1.0, 0.4, 0.6, 0.5, 0.4])}, "sum to 1 below each state, got 0.9 below state 2"),
        ({"probability": np.array([1.0, -0.4, 1.4, 0.5, 0.5])}, "probability must be at least 0, got -0.4 for state 1"),
        (
            {"probability": np.array([1.0, np.nan, 1.0, 0.5, 0.5])},
            "probability must be at least 0, got nan for state 1: correct the policy",
        ),
        (
            {"answer": np.array([False, True, True, False, False])},
            "answer must end a path, got children below answer state 2",
        ),
        (
            {"value": np.array([0.0, 0.0, np.nan, 0.0, 0.0])},
            "value must be finite and of size 1e100 at most, got nan for state 2: a path adds up",
        ),
        (
            {"reward": np.array([0.0, 0.0, 0.0, np.inf, 0.0])},
            "reward must be finite and of size 1e100 at most, got inf for state 3",
        ),
        (
            {"parent": np.array([-1, -1, 0, 2, 2])},
            "parent must be -1 for state 0 and for no other, got .*: one question",
        ),
        ({"parent": np.array([0, 0, 0, 2, 2])}, "parent must be -1 for state 0 and for no other, got"),
    ],
)
def test_trees_that_are_no_policies_are_refused(change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"turns": 0}, "turns must be at least 1, got 0: a path needs a turn"),
        ({"branching": 0}, "branching must be at least 1, got 0"),
        ({"answer_rate": 1.5}, "answer_rate must be between 0 and 1, got 1.5: it is a probability"),
        ({"answer_rate": float("nan")}, "answer_rate must be between 0 and 1, got nan"),
        ({"value_range": -1.0}, "value_range must be at least 0 and finite, got -1.0"),
        ({"value_range": float("inf")}, "value_range must be at least 0 and finite, got inf"),
    ],
)
def test_random_trees_of_impossible_shapes_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_policy_tree(np.random.default_rng(0), **{"turns": 2, "branching": 2, **change})
