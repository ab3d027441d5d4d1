import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from igrpo_theory.segments import group_bounds, group_max, members, order_within, rank_within, running_sum

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
        for group in range(6):
            assert values[members(each, group)].tolist() == values[each == group].tolist()
        num_groups = int(each.max(initial=0)) + 1
        expected = [values[each == group].max(initial=-np.inf) for group in range(num_groups)]
        assert group_max(values, each, num_groups).tolist() == expected
