from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scripted_growth import scenarios
from test_weights import SETTINGS, SMALL, WIDE, acts_of, rules_of

from igrpo_theory import (
    NodeStatus,
    PolicyTree,
    capped_teacher_law,
    enumerate_paths,
    expected_counts,
    finite_law,
    finite_leaves,
    grown_laws,
    mean_field,
    misleading_policy_tree,
    padded,
    random_policy_tree,
    read_policy_tree,
    states_of,
    teacher_law,
    total_variation,
)
from igrpo_theory.expansion import BudgetMode, Scheme

TREE = random_policy_tree(np.random.default_rng(3), turns=3, branching=2)
ANSWERS = random_policy_tree(np.random.default_rng(8), turns=4, branching=2, answer_rate=0.3)


@st.composite
def small_trees(draw: st.DrawFn) -> PolicyTree:
    return random_policy_tree(
        np.random.default_rng(draw(st.integers(0, 10**6))),
        turns=draw(st.integers(1, 3)),
        branching=2,
        answer_rate=draw(st.sampled_from([0.0, 0.4])),
        value_range=draw(st.sampled_from([0.5, 2.0])),
    )


@given(
    policy=small_trees(),
    budget=st.integers(1, 3),
    cap=st.integers(1, 3),
    scheme=st.sampled_from(["capped", "calibrated"]),
)
def test_it_is_a_law_and_the_policy_where_nothing_can_tilt(
    policy: PolicyTree, budget: int, cap: int, scheme: Scheme
) -> None:
    pi = enumerate_paths(policy).probability
    assert finite_law(policy, 1.0, budget, cap, scheme).sum() == pytest.approx(1, abs=1e-12)
    assert finite_law(policy, 0.0, budget, cap, scheme) == pytest.approx(pi, abs=1e-12)
    assert finite_law(policy, 5.0, budget, 1, scheme) == pytest.approx(pi, abs=1e-12)
    assert finite_law(policy, 5.0, 1, cap, scheme) == pytest.approx(pi, abs=1e-12)


@pytest.mark.parametrize(("budget", "cap"), [(2, 1), (2, 2), (3, 2), (3, 3)])
def test_it_is_the_mean_over_all_ways_to_grow(budget: int, cap: int) -> None:
    """The package sums over multisets of states; the oracle over nodes, in exact arithmetic."""
    longer = padded(WIDE)
    ours = finite_law(WIDE, 1.0, budget, cap)[longer.path]
    seen = np.zeros(len(longer.policy.parent))
    for act in scenarios(rules_of(longer.policy, budget, cap, "full")):
        for leaf in act.leaves:
            seen[leaf.state] += float(act.probability) / budget
    assert ours == pytest.approx(seen[longer.policy.ends], abs=1e-13)


def test_two_turns_by_hand() -> None:
    # One stage: the second turn of a path is expanded in proportion to the mean count of its first.
    policy = random_policy_tree(np.random.default_rng(8), turns=2, branching=2)
    p, weights = policy.probability[1], np.exp(policy.value[1:3])
    share = 0.0
    for ones, chance in enumerate([(1 - p) ** 3, 3 * p * (1 - p) ** 2, 3 * p**2 * (1 - p), p**3]):
        stage = np.repeat(weights, [ones, 3 - ones])
        counts = expected_counts(stage, np.zeros(3, dtype=int), np.array([3]), 2)
        share += chance * counts[:ones].sum() / 3
    law = finite_law(policy, 1.0, 3, 2)
    assert law[:2] == pytest.approx(share * policy.probability[3:5], abs=1e-13)


@given(policy=small_trees(), seed=st.integers(0, 99))
def test_values_of_last_turns_and_constants_of_a_depth_have_no_say(policy: PolicyTree, seed: int) -> None:
    law = finite_law(policy, 1.0, 3, 2)
    rng = np.random.default_rng(seed)
    internal = np.bincount(policy.parent[1:], minlength=len(policy.parent)) > 0
    shifted = policy.value + (np.where(internal, 0.0, rng.normal(size=len(internal))))
    if len(np.unique(policy.depth[policy.ends])) == 1:
        shifted = shifted + rng.normal(size=policy.turns + 1)[policy.depth]
    other = PolicyTree(
        parent=policy.parent,
        probability=policy.probability,
        value=shifted,
        answer=policy.answer,
        reward=policy.reward,
    )
    assert finite_law(other, 1.0, 3, 2) == pytest.approx(law, abs=1e-12)


def test_a_cap_of_the_budget_or_more_is_no_cap_and_a_huge_gamma_a_limit() -> None:
    assert finite_law(TREE, 1.0, 4, 4).tolist() == finite_law(TREE, 1.0, 4, 99).tolist()
    # Three nodes and a cap of two: the draw always spends two on the best state's node, if there is one.
    assert finite_law(TREE, 1e300, 3, 2) == pytest.approx(finite_law(TREE, 1e4, 3, 2), abs=1e-12)


def test_the_gap_to_the_limit_falls_with_the_budget() -> None:
    mu, limit = teacher_law(TREE, 1.0), capped_teacher_law(TREE, 1.0, 2)
    free = [total_variation(finite_law(TREE, 1.0, budget, budget), mu) * budget for budget in (3, 5, 8)]
    capped = [total_variation(finite_law(TREE, 1.0, budget, 2), limit) * budget for budget in (4, 6, 8)]
    assert max(free) < 1.3 * min(free)  # like 1 / budget
    assert max(capped) < 1.5 * min(capped)


# Early answers and truncated leaves


@pytest.mark.parametrize(("budget", "cap", "mode"), SETTINGS)
@pytest.mark.parametrize("policy", [SMALL, WIDE], ids=["small", "wide"])
def test_leaves_are_the_means_over_all_ways_to_grow(
    policy: PolicyTree, budget: int, cap: int, mode: BudgetMode
) -> None:
    ends, complete, truncated, parents = set(policy.ends.tolist()), *np.zeros((3, len(policy.parent)))
    for act in acts_of(policy, budget, cap, mode):
        for leaf in act.leaves:
            complete[leaf.state] += float(act.probability)
        for states, counts in zip(act.states, act.counts, strict=False):  # nothing is drawn after the last turn
            for state, count in zip((state for state in states if state not in ends), counts, strict=True):
                truncated[state] += float(act.probability) * (count == 0)
                parents[state] += float(act.probability) * (count > 0)
    ours = finite_leaves(policy, 1.0, budget, cap, mode=mode)
    assert ours.complete == pytest.approx(complete[policy.ends], abs=1e-12)
    assert ours.truncated == pytest.approx(truncated, abs=1e-12)
    assert ours.parents == pytest.approx(parents, abs=1e-12)


@pytest.mark.parametrize(
    ("cap", "mode", "scheme"),
    [
        (2, "full", "capped"),
        (2, "mid", "capped"),
        (3, "low", "capped"),
        (5, "full", "capped"),
        (2, "full", "calibrated"),
    ],
)
def test_leaves_of_grown_trees_have_those_means(cap: int, mode: BudgetMode, scheme: Scheme, alpha: float) -> None:
    replicates, num_states = 10_000, len(ANSWERS.parent)
    grown = grown_laws(ANSWERS, 1.5, replicates=replicates, budget=5, cap=cap, mode=mode, scheme=scheme)
    tree = grown.growth.tree
    cut = np.flatnonzero(tree.status == NodeStatus.TRUNCATED)
    truncated = np.bincount(tree.question[cut] * num_states + states_of(tree)[cut], minlength=replicates * num_states)
    leaves = np.column_stack([grown.counts, truncated.reshape(replicates, num_states)])
    expected = finite_leaves(ANSWERS, 1.5, 5, cap, mode=mode, scheme=scheme)
    means = np.concatenate([expected.complete, expected.truncated])
    common = means * replicates >= 300
    z = (leaves.mean(axis=0) - means)[common] / (leaves.std(axis=0, ddof=1)[common] / np.sqrt(replicates))
    assert common.sum() > 15
    assert np.abs(z).max() < stats.norm.isf(alpha / 2 / len(z)), z.round(1)
    assert (leaves.sum(axis=0)[means == 0] == 0).all()


@pytest.mark.parametrize("mode", ["full", "mid", "low"])
def test_leaves_a_unit_of_budget_tend_to_the_mean_field(mode: BudgetMode) -> None:
    policy = random_policy_tree(np.random.default_rng(9), turns=3, branching=2, answer_rate=0.3)
    assert len(np.unique(policy.depth[policy.ends])) > 1
    field, gaps = mean_field(policy, 1.0, 2, mode=mode), []
    for budget in (6, 12):
        leaves = finite_leaves(policy, 1.0, budget, 2, mode=mode)
        assert leaves.truncated_share == pytest.approx(field.truncated_share, abs=0.05)
        gaps.append(np.abs(leaves.complete / budget - field.complete).max())
    assert gaps[1] < 0.7 * gaps[0]


@given(
    policy=small_trees(),
    budget=st.integers(1, 3),
    cap=st.integers(1, 3),
    gamma=st.sampled_from([0.0, 1.0, 1e300]),
    mode=st.sampled_from(["mid", "low"]),
)
def test_leaves_of_a_padded_tree_are_its_law_in_every_mode(
    policy: PolicyTree, budget: int, cap: int, gamma: float, mode: BudgetMode
) -> None:
    longer = padded(policy)
    leaves = finite_leaves(longer.policy, gamma, budget, cap, mode=mode)
    assert leaves.complete.sum() == pytest.approx(budget, rel=1e-12)
    assert leaves.complete_law == pytest.approx(finite_law(policy, gamma, budget, cap)[longer.path], abs=1e-12)


# Numbers worked out beforehand by another program


@pytest.mark.parametrize(
    ("name", "gamma", "free", "capped", "limit"),
    [
        ("T3_K27", 1.0, (0.150, 0.098, 0.072, 0.057), (0.150, 0.130, 0.111, 0.102), (0.091, 0.070, 0.051, 0.042)),
        ("T4_K16", 1.0, (0.272, 0.187, 0.136, 0.104), (0.272, 0.222, 0.185, 0.166), None),
        ("T4_K16", 3.0, (0.395, 0.239, 0.146, 0.091), (0.395, 0.323, 0.244, 0.222), None),
    ],
)
def test_reference_table(
    reference_trees: Path,
    name: str,
    gamma: float,
    free: tuple[float, ...],
    capped: tuple[float, ...],
    limit: tuple[float, ...] | None,
) -> None:
    policy = read_policy_tree(reference_trees / f"{name}.json")
    mu, target = teacher_law(policy, gamma), capped_teacher_law(policy, gamma, 2)
    for place, budget in enumerate((2, 3, 4, 5)):
        law = finite_law(policy, gamma, budget, 2)
        assert total_variation(finite_law(policy, gamma, budget, budget), mu) == pytest.approx(free[place], abs=6e-4)
        assert total_variation(law, mu) == pytest.approx(capped[place], abs=6e-4)
        if limit:
            assert total_variation(law, target) == pytest.approx(limit[place], abs=6e-4)


def test_reference_leaves_at_budget_five(reference_trees: Path) -> None:
    padded_tree, answers = (read_policy_tree(reference_trees / f"{name}.json") for name in ("T4_K16", "T4_answers"))
    # P(n = 0) = .2861 for five equal nodes: 9.29 leaves a tree, 46.2% of them truncated.
    equal = finite_leaves(padded_tree, 0.0, 5, 2)
    assert equal.complete.sum() + equal.truncated.sum() == pytest.approx(9.29, abs=6e-3)
    assert equal.truncated_share == pytest.approx(0.462, abs=6e-4)
    # 7.8 complete paths a tree in full mode, 5.0 in low mode; equally weighed they are .09 to .25 from the teacher.
    mu = teacher_law(answers, 1.0)
    full, low = (finite_leaves(answers, 1.0, 5, 2, mode=mode) for mode in ("full", "low"))
    assert (full.complete.sum(), low.complete.sum()) == pytest.approx((7.8, 5.0), abs=0.06)
    assert total_variation(full.complete_law, mu) == pytest.approx(0.25, abs=6e-3)
    assert total_variation(low.complete_law, mu) == pytest.approx(0.10, abs=0.011)


# Errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: finite_law(TREE, 1.0, 0, 2), "budget must be at least 1, got 0: the root needs a child"),
        (lambda: finite_law(TREE, 1.0, 3, 0), "cap must be at least 1, got 0"),
        (lambda: finite_law(TREE, -1.0, 3, 2), "gamma must be finite and at least 0, got -1.0"),
        (lambda: finite_law(TREE, float("nan"), 3, 2), "gamma must be finite and at least 0, got nan"),
        (lambda: finite_law(TREE, 1.0, 3, 3, "systematic"), "scheme must be capped or calibrated, got systematic"),
        (
            lambda: finite_law(random_policy_tree(np.random.default_rng(0), turns=4, branching=3), 1.0, 6, 2),
            "budget must be small enough to sum over all stages, got 6 for .* multisets: lower it, or estimate",
        ),
        (
            lambda: finite_leaves(misleading_policy_tree(), 1.0, 400, 2),
            "budget must be small enough .* got 400 for 401",
        ),
    ],
)
def test_what_cannot_be_summed_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
