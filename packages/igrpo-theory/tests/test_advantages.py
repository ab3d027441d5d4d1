from inspect import unwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from theory_oracles import advantages_by_hand, make_paths

from igrpo_theory import group_advantages, group_statistics, normalise_by

REWARDS = np.array([1.0, 0, 0, 1, 0])
ONE_GROUP = np.zeros(5, dtype=np.int64)


def test_grpo_by_hand() -> None:
    advantages = normalise_by(ONE_GROUP, REWARDS)
    assert advantages.round(4).tolist() == [1.0954, -0.7303, -0.7303, 1.0954, -0.7303]


def test_rows_by_hand() -> None:
    paths = make_paths([4, 1, 2, 4, 3], [0] * 5)
    rows = np.repeat(REWARDS, paths.length)
    statistics = group_statistics(np.zeros(14, dtype=int), rows)
    assert (round(float(statistics.mean[0]), 4), round(float(statistics.std[0]), 4)) == (0.5714, 0.5136)
    advantages = group_advantages(paths, REWARDS, np.zeros((5, 4)))
    for path, expected in enumerate([0.8345, -1.1127, -1.1127, 0.8345, -1.1127]):
        assert advantages[path, : paths.length[path]].round(4).tolist() == [expected] * paths.length[path]
    assert (advantages[paths.nodes < 0] == 0).all()


def test_trajectories_by_hand() -> None:
    paths = make_paths([4, 1, 2, 4, 3], [0] * 5)
    advantages = group_advantages(paths, REWARDS, np.zeros((5, 4)), unit="trajectory")
    assert advantages[:, 0].round(4).tolist() == [1.0954, -0.7303, -0.7303, 1.0954, -0.7303]
    assert advantages[0].round(4).tolist() == [1.0954] * 4
    assert (advantages[paths.nodes < 0] == 0).all()


def test_two_levels_of_groups_add_up_by_hand() -> None:
    rewards = np.array([1.0, 1, 0, 0, 0, 1])
    trees = np.array([0, 0, 0, 1, 1, 1])
    both = normalise_by(np.zeros(6, dtype=int), rewards) + normalise_by(trees, rewards)
    assert both.round(4).tolist() == [1.4902, 1.4902, -2.0676, -1.4902, -1.4902, 2.0676]


def test_turn_penalties_move_only_their_row_and_the_pool() -> None:
    # Rows 1, 1 - .01 and 0: mean .663333, std (ddof 1) .574485.
    paths = make_paths([2, 1], [0, 0])
    penalties = np.array([[0.0, -0.01], [0.0, 7.0]])  # the 7 is on padding
    rows = group_advantages(paths, np.array([1.0, 0.0]), penalties)
    assert rows.round(4).tolist() == [[0.586, 0.5686], [-1.1547, 0.0]]
    # Trajectories: mean .5, std .707107 of the paths' rewards; the penalty shifts its own row.
    trajectories = group_advantages(paths, np.array([1.0, 0.0]), penalties, unit="trajectory")
    assert trajectories.round(4).tolist() == [[0.7071, 0.693], [-0.7071, 0.0]]


def test_a_lone_member_keeps_its_reward() -> None:
    paths = make_paths([1, 2, 2], [0, 1, 1])
    rewards = np.array([0.5, 1.0, 0.0])
    for unit in ("row", "trajectory"):
        advantages = group_advantages(paths, rewards, np.zeros((3, 2)), unit=unit)
        assert advantages[0, 0] == pytest.approx(0.5 / (1 + 1e-6), abs=1e-15)
    assert group_advantages(paths, rewards, np.zeros((3, 2)), scale=False)[0, 0] == 0.5


def test_a_lone_path_of_two_turns_is_two_rows_but_one_trajectory() -> None:
    paths, reward, none = make_paths([2], [0]), np.array([1.0]), np.zeros((1, 2))
    assert group_advantages(paths, reward, none).tolist() == [[0.0, 0.0]]
    assert group_advantages(paths, reward, none, unit="trajectory").round(4).tolist() == [[1.0, 1.0]]


def test_the_std_floor_bounds_how_far_a_tiny_spread_is_blown_up() -> None:
    values = np.array([0.0, 0.002])
    assert normalise_by(np.zeros(2, dtype=int), values).round(2).tolist() == [-0.71, 0.71]
    floored = normalise_by(np.zeros(2, dtype=int), values, std_floor=0.1)
    assert floored == pytest.approx(np.array([-0.01, 0.01]), rel=1e-4)
    assert normalise_by(ONE_GROUP, REWARDS, std_floor=0.1).tolist() == normalise_by(ONE_GROUP, REWARDS).tolist()


def test_equal_rewards_give_no_advantage() -> None:
    assert (normalise_by(ONE_GROUP, np.full(5, 0.1)) == 0).all()


def test_mean_only_and_population_std() -> None:
    assert normalise_by(ONE_GROUP, REWARDS, scale=False).round(4).tolist() == [0.6, -0.4, -0.4, 0.6, -0.4]
    assert normalise_by(ONE_GROUP, REWARDS, ddof=0, eps=0.0).round(4)[0] == 1.2247


def test_a_dropped_path_touches_nothing() -> None:
    paths = make_paths([2, 1, 2, 1], [0, 0, 0, 1])
    rewards = np.array([1.0, np.nan, 0.0, 0.7])
    keep = np.array([True, False, True, False])
    smaller = make_paths([2, 2], [0, 0])
    for unit in ("row", "trajectory"):
        advantages = group_advantages(paths, rewards, np.zeros((4, 2)), unit=unit, keep=keep)
        alone = group_advantages(smaller, rewards[[0, 2]], np.zeros((2, 2)), unit=unit)
        assert advantages[[0, 2]].tolist() == alone.tolist()
        assert (advantages[[1, 3]] == 0).all()


def test_a_reward_that_is_not_finite_is_refused() -> None:
    message = "rewards must be finite for every kept path, got nan for path 1: drop the path with keep instead"
    with pytest.raises(ValueError, match=message):
        group_advantages(make_paths([1, 1], [0, 0]), np.array([1.0, np.nan]), np.zeros((2, 1)))


def test_a_turn_reward_that_is_not_finite_is_refused_unless_it_is_padding_or_dropped() -> None:
    paths, turn_rewards = make_paths([2, 1], [0, 0]), np.array([[0.0, 0.0], [0.0, np.inf]])
    assert np.isfinite(group_advantages(paths, np.array([1.0, 0.0]), turn_rewards)).all()
    turn_rewards[0, 1] = np.nan
    message = "turn_rewards must be finite for every kept path, got nan for path 0, turn 1: drop the path with keep"
    with pytest.raises(ValueError, match=message):
        group_advantages(paths, np.array([1.0, 0.0]), turn_rewards)
    dropped = group_advantages(paths, np.array([1.0, 0.0]), turn_rewards, keep=np.array([False, True]))
    assert (dropped[0] == 0).all()


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="unit must be one of row, trajectory, got turn: choose one of them"):
        unwrap(group_advantages)(make_paths([1], [0]), np.array([1.0]), np.zeros((1, 1)), unit="turn")


@given(data=st.data(), unit=st.sampled_from(["row", "trajectory"]), scale=st.booleans())
def test_group_advantages_equal_the_loops(data: st.DataObject, unit: str, scale: bool) -> None:
    count = data.draw(st.integers(1, 12))
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    questions = sorted(data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    paths = make_paths(lengths, questions)
    rewards, penalties = rng.integers(0, 2, count).astype(float), -0.01 * rng.integers(0, 2, paths.nodes.shape)
    floor = data.draw(st.sampled_from([0.0, 0.3]))
    ours = group_advantages(paths, rewards, penalties, unit=unit, std_floor=floor, keep=keep, scale=scale)
    theirs = advantages_by_hand(paths, rewards, penalties, unit, floor, keep, scale)
    assert np.allclose(ours, theirs, rtol=0, atol=1e-9)
