import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from igrpo_theory.segments import (
    LARGE,
    group_bounds,
    group_counts,
    group_max,
    group_sizes,
    group_sum,
    members,
    order_within,
    rank_within,
    repeat_rising,
    running_sum,
)

GROUPS = st.lists(st.integers(0, 5), max_size=40).map(lambda groups: np.array(groups, dtype=np.int64))


@given(groups=GROUPS)
def test_rank_counts_earlier_members_of_the_group(groups: np.ndarray) -> None:
    expected = [int((groups[:place] == group).sum()) for place, group in enumerate(groups)]
    assert rank_within(groups).tolist() == expected


@given(groups=GROUPS, seed=st.integers(0, 1000))
def test_running_sums_of_a_group_ignore_the_others_to_the_bit(groups: np.ndarray, seed: int) -> None:
    values = np.random.default_rng(seed).random(len(groups))
    sums, totals = running_sum(values, groups, 6)
    for group in range(6):
        alone = np.cumsum(values[groups == group])
        assert sums[groups == group].tolist() == alone.tolist()
        assert totals[group] == (alone[-1] if len(alone) else 0)


@given(groups=GROUPS, seed=st.integers(0, 1000))
def test_elements_are_ordered_by_group_and_value(groups: np.ndarray, seed: int) -> None:
    values = np.random.default_rng(seed).random(len(groups))
    expected = sorted(range(len(groups)), key=lambda place: (groups[place], values[place]))
    assert order_within(values, groups).tolist() == expected
    assert order_within(values, np.zeros_like(groups)).tolist() == np.argsort(values).tolist()


@given(num_groups=st.integers(1, 5), width=st.integers(1, 5), seed=st.integers(0, 1000))
def test_groups_of_one_size_are_ordered_alike(num_groups: int, width: int, seed: int) -> None:
    groups = np.repeat(np.arange(num_groups), width)
    values = np.random.default_rng(seed).random(len(groups))
    values[seed % len(values)] = np.inf
    assert order_within(values, groups).tolist() == np.lexsort((values, groups)).tolist()


@given(groups=GROUPS)
def test_bounds_slice_out_the_groups(groups: np.ndarray) -> None:
    ordered = np.sort(groups)
    bounds = group_bounds(ordered, 6)
    assert bounds is not None
    for group in range(6):
        assert ordered[bounds[group] : bounds[group + 1]].tolist() == [group] * int((groups == group).sum())
    assert (group_bounds(groups, 6) is None) == (ordered.tolist() != groups.tolist())


@given(groups=GROUPS, seed=st.integers(0, 1000))
def test_members_and_maxima_of_groups(groups: np.ndarray, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=len(groups))
    for each in (groups, np.sort(groups), np.zeros_like(groups)):
        num_groups = int(each.max(initial=0)) + 1
        for group in range(num_groups):
            assert values[members(each, group, num_groups)].tolist() == values[each == group].tolist()
        expected = [values[each == group].max(initial=-np.inf) for group in range(num_groups)]
        assert group_max(values, each, num_groups).tolist() == expected


@given(groups=GROUPS, seed=st.integers(0, 1000))
def test_sizes_and_sums_of_groups(groups: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, counts = rng.normal(size=len(groups)), rng.integers(0, 9, len(groups))
    for each in (groups, np.zeros_like(groups)):
        num_groups = int(each.max(initial=0)) + 1
        own = [np.flatnonzero(each == group) for group in range(num_groups)]
        assert group_sizes(each, num_groups).tolist() == [len(places) for places in own]
        assert group_counts(counts, each, num_groups).tolist() == [counts[places].sum() for places in own]
        # One by one, to the bit.
        assert group_sum(values, each, num_groups).tolist() == [sum(values[places].tolist(), 0.0) for places in own]


def test_the_sum_of_a_long_group_ignores_the_others_to_the_bit() -> None:
    sizes = np.array([LARGE + 5, LARGE - 1, 3 * LARGE, 2])
    groups, values = np.repeat(np.arange(4), sizes), np.random.default_rng(0).exponential(size=sizes.sum())
    shuffle = np.argsort(np.random.default_rng(1).permutation(groups), kind="stable")
    mixed_groups, mixed = np.empty_like(groups), np.empty_like(values)
    mixed_groups[shuffle], mixed[shuffle] = groups, values
    together = group_sum(values, groups, 4)
    assert group_sum(mixed, mixed_groups, 4).tolist() == together.tolist()
    for group in range(4):
        own = values[groups == group]
        assert group_sum(own, np.zeros(len(own), dtype=int), 1)[0] == together[group]


@pytest.mark.parametrize("mean", [0.0, 0.001, 1.0])
def test_many_rising_numbers_are_repeated_like_few(mean: float) -> None:
    rng = np.random.default_rng(2)
    numbers, counts = np.cumsum(rng.integers(1, 3, size=70000)), rng.poisson(mean, size=70000)
    assert np.array_equal(repeat_rising(numbers, counts), np.repeat(numbers, counts))
