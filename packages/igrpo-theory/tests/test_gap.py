from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from igrpo_theory import (
    Estimate,
    PolicyTree,
    adversarial_policy_tree,
    capped_teacher_law,
    finite_law,
    finite_leaves,
    gap,
    kl_divergence,
    mean_field,
    misleading_policy_tree,
    random_policy_tree,
    read_policy_tree,
    teacher_law,
    total_variation,
)
from igrpo_theory.expansion import BudgetMode, Scheme
from igrpo_theory.gap import check_method
from igrpo_theory.gap_report import gap_record

sampled = partial(gap, method="sampled")
TREE = random_policy_tree(np.random.default_rng(3), turns=4, branching=2)
MEASURED = ("tv_teacher", "kl_teacher", "tv_limit", "kl_limit", "effective_gamma", "truncated_share")
ANSWERS = random_policy_tree(np.random.default_rng(11), turns=4, branching=3, answer_rate=0.35)


def agrees(measured: Estimate, exact: float, level: float, slack: float = 0.0) -> bool:
    """Within the error bar of this false-alarm rate; `slack` is for bias and rounding."""
    return abs(measured.value - exact) < stats.norm.isf(level / 2) * measured.error + slack


# At a budget of five


@pytest.mark.parametrize(("cap", "gamma"), [(5, 1.0), (2, 1.0), (2, 3.0)])
def test_distances_are_those_of_the_exact_law(cap: int, gamma: float, alpha: float) -> None:
    policy = random_policy_tree(np.random.default_rng(3), turns=3, branching=3)
    law, mu = finite_law(policy, gamma, 5, cap), teacher_law(policy, gamma)
    limit = capped_teacher_law(policy, gamma, cap if cap < 5 else None)
    measured = sampled(policy, cap=cap, gamma=gamma, replicates=20_000)
    # Paths whose sign the noise hides cost less than .002 in all.
    assert agrees(measured.tv_teacher, total_variation(law, mu), alpha / 4, slack=0.002)
    assert agrees(measured.kl_teacher, kl_divergence(law, mu), alpha / 4, slack=1e-4)
    assert agrees(measured.tv_limit, total_variation(law, limit), alpha / 4, slack=0.002)
    assert agrees(measured.kl_limit, kl_divergence(law, limit), alpha / 4, slack=1e-4)
    assert measured.tv_teacher.error < 0.005


@pytest.mark.parametrize(
    ("name", "gamma", "free", "capped", "limit"),
    [
        ("T3_K27", 1.0, 0.057, 0.102, 0.042),
        ("T4_K16", 1.0, 0.104, 0.166, None),
        ("T4_K16", 3.0, 0.091, 0.222, None),
    ],
)
def test_reference_distances_at_budget_five(
    reference_trees: Path, name: str, gamma: float, free: float, capped: float, limit: float | None, alpha: float
) -> None:
    policy = read_policy_tree(reference_trees / f"{name}.json")
    assert agrees(sampled(policy, cap=5, gamma=gamma, replicates=10_000).tv_teacher, free, alpha / 3, slack=0.0025)
    official = sampled(policy, cap=2, gamma=gamma, replicates=10_000)
    assert agrees(official.tv_teacher, capped, alpha / 3, slack=0.0025)
    if limit is not None:
        assert agrees(official.tv_limit, limit, alpha / 3, slack=0.0025)


@pytest.mark.parametrize(
    ("scheme", "cap", "distance", "parents"),
    [
        ("capped", 5, 0.069, (3.33, 3.25, 3.29)),
        ("capped", 2, 0.103, (3.56, 3.53, 3.53)),
        ("capped", 3, 0.078, (3.37, 3.30, 3.32)),
        ("calibrated", 2, 0.079, (3.54, 3.50, 3.50)),
        ("residual", 5, 0.060, (4.50, 3.87, 3.94)),
        ("stratified", 5, 0.059, (4.66, 4.35, 4.28)),
        ("systematic", 5, 0.059, (4.78, 4.45, 4.46)),
    ],
)
def test_reference_schemes_at_budget_five(
    reference_trees: Path, scheme: Scheme, cap: int, distance: float, parents: tuple[float, ...], alpha: float
) -> None:
    measured = sampled(read_policy_tree(reference_trees / "T4_K42.json"), cap=cap, scheme=scheme, replicates=10_000)
    assert agrees(measured.tv_teacher, distance, alpha / 4, slack=0.0035)
    for ours, theirs in zip(measured.distinct_parents, parents, strict=True):
        assert agrees(ours, theirs, alpha / 4, slack=0.006)


def test_reference_truncation_at_budget_five(reference_trees: Path, alpha: float) -> None:
    measured = sampled(read_policy_tree(reference_trees / "T4_K42.json"), cap=2, gamma=0.0, replicates=10_000)
    # P(n = 0) = .2861 for five equal nodes, three stages: 46.2% of 9.29 leaves.
    assert agrees(measured.truncated_share, 0.4620, alpha, slack=5e-4)


# Exact sums


@pytest.mark.parametrize(
    ("cap", "mode", "scheme"),
    [(2, "full", "capped"), (5, "full", "capped"), (3, "low", "capped"), (2, "mid", "calibrated")],
)
def test_exact_numbers_are_those_of_grown_trees(cap: int, mode: BudgetMode, scheme: Scheme, alpha: float) -> None:
    policy = adversarial_policy_tree("early answers")
    exact = gap(policy, cap=cap, mode=mode, scheme=scheme, gamma=1.5)
    measured = sampled(policy, cap=cap, mode=mode, scheme=scheme, gamma=1.5, replicates=20_000)
    pairs = [(getattr(measured, name), getattr(exact, name)) for name in MEASURED]
    pairs += zip(measured.distinct_parents, exact.distinct_parents, strict=True)
    assert (exact.num_trees, measured.num_trees) == (0, 20_000)
    for estimate, truth in pairs:
        assert truth.error == 0
        assert agrees(estimate, truth.value, alpha / len(pairs), slack=0.002)
    expected = finite_leaves(policy, 1.5, 5, cap, mode=mode, scheme=scheme)
    assert exact.law.tolist() == expected.complete_law.tolist()
    assert exact.truncated_share.value == expected.truncated_share


def test_sums_are_exact_where_they_are_quick_and_trees_are_grown_elsewhere() -> None:
    one, same = gap(TREE, replicates=10, seed=1), gap(TREE, replicates=20, seed=2)
    assert one.num_trees == 0
    assert (one.tv_teacher, one.law.tolist()) == (same.tv_teacher, same.law.tolist())
    assert gap(TREE, replicates=10, budget=40).num_trees == 10
    assert gap(TREE, replicates=10, budget=5, cap=5, scheme="systematic").num_trees == 10
    assert gap(TREE, replicates=10, method="sampled").num_trees == 10
    assert gap(misleading_policy_tree(), replicates=10, budget=400).num_trees == 10  # few multisets, but many draws


def test_exact_sums_at_gamma_zero_have_no_gap_and_a_chain_no_truncated_leaf() -> None:
    none = gap(TREE, gamma=0.0)
    assert (none.tv_teacher.value, none.kl_teacher.value) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert none.effective_gamma.value == pytest.approx(0.0, abs=1e-9)
    chain = gap(TREE, cap=1, gamma=2.0)
    assert chain.truncated_share == Estimate(0.0, 0.0)
    assert [parents.value for parents in chain.distinct_parents] == pytest.approx([5.0] * 3)


# What each number means


def test_at_gamma_zero_and_in_a_chain_there_is_no_gap(alpha: float) -> None:
    measured = sampled(TREE, gamma=0.0, replicates=4000)
    assert agrees(measured.tv_teacher, 0.0, alpha / 5)
    assert agrees(measured.kl_teacher, 0.0, alpha / 5)
    assert agrees(measured.effective_gamma, 0.0, alpha / 5)
    chain = sampled(TREE, cap=1, gamma=2.0, replicates=4000)
    assert agrees(chain.tv_limit, 0.0, alpha / 5)
    assert agrees(chain.effective_gamma, 0.0, alpha / 5)
    assert chain.truncated_share == Estimate(0.0, 0.0)
    assert chain.distinct_parents == (Estimate(5.0, 0.0),) * 3


def test_with_a_large_budget_the_gap_to_the_limit_closes_and_gamma_is_effective(alpha: float) -> None:
    small = sampled(TREE, budget=400, cap=400, gamma=1.0, replicates=300)
    assert agrees(small.effective_gamma, 1.0, alpha / 4, slack=0.01)
    assert agrees(small.tv_teacher, 0.0, alpha / 4, slack=0.002)
    capped = sampled(TREE, budget=400, cap=2, gamma=0.3, replicates=300)
    assert agrees(capped.effective_gamma, 0.3 * 0.782, alpha / 4, slack=0.02)  # `elasticity` at one child a node
    assert agrees(capped.truncated_share, mean_field(TREE, 0.3, 2).truncated_share, alpha / 4, slack=0.003)


@pytest.mark.parametrize("mode", ["full", "mid", "low"])
def test_answers_and_budget_modes_are_measured_against_their_own_limit(mode: BudgetMode, alpha: float) -> None:
    measured = sampled(ANSWERS, budget=300, mode=mode, gamma=1.5, replicates=200)
    field = mean_field(ANSWERS, 1.5, 2, mode=mode)
    assert agrees(measured.tv_limit, 0.0, alpha / 3, slack=0.004)
    exact = total_variation(field.complete_law, teacher_law(ANSWERS, 1.5))
    assert agrees(measured.tv_teacher, exact, alpha / 3, slack=0.004)
    assert agrees(measured.truncated_share, field.truncated_share, alpha / 3, slack=0.005)


def test_stated_errors_are_the_real_spread(alpha: float) -> None:
    runs = [sampled(TREE, gamma=1.5, replicates=400, seed=seed) for seed in range(60)]
    for name in ("tv_teacher", "kl_teacher", "effective_gamma", "truncated_share"):
        values = np.array([getattr(run, name).value for run in runs])
        errors = np.array([getattr(run, name).error for run in runs])
        ratio = values.var(ddof=1) / (errors**2).mean()
        # Chi-square of 59 degrees, widened by a tenth for the estimators' own curvature.
        low, high = stats.chi2.isf([1 - alpha / 8, alpha / 8], 59) / 59
        assert 0.9 * low < ratio < 1.1 * high, (name, ratio)


def test_a_gamma_that_is_off_by_a_twentieth_is_noticed(alpha: float) -> None:
    measured = sampled(TREE, budget=400, cap=400, gamma=2.1, replicates=900).effective_gamma
    assert not agrees(measured, 2.0, alpha, slack=0.01)


def test_a_policy_that_earns_one_value_has_no_effective_gamma() -> None:
    flat = PolicyTree(
        parent=np.array([-1, 0, 0, 1, 2]),
        probability=np.array([1.0, 0.5, 0.5, 1.0, 1.0]),
        value=np.zeros(5),
        answer=np.zeros(5, dtype=bool),
        reward=np.zeros(5),
    )
    assert np.isnan(sampled(flat, replicates=10).effective_gamma.value)


def test_a_gamma_beyond_floating_point_gives_infinite_divergence_and_gamma() -> None:
    world = misleading_policy_tree()
    # One tree in 32 has no node of the better turn, and ends on a path whose teacher mass underflows to 0.
    measured = sampled(world, gamma=1e4, budget=5, cap=5, replicates=800)
    assert measured.kl_teacher.value == np.inf
    assert gap_record(measured)["kl_teacher"] == {"value": None, "error": None}
    assert 0 < measured.tv_teacher.value < 0.1
    all_best = sampled(world, gamma=1e4, budget=80, cap=80, replicates=10)
    assert all_best.effective_gamma.value == np.inf
    assert all_best.tv_teacher == Estimate(0.0, 0.0)


def test_equal_seeds_give_equal_gaps() -> None:
    one, same, other = (sampled(TREE, replicates=100, seed=seed) for seed in (1, 1, 2))
    assert one.tv_teacher == same.tv_teacher
    assert one.law.tolist() == same.law.tolist()
    assert one.tv_teacher != other.tv_teacher


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sampled(TREE, replicates=9), "replicates must be at least 10, got 9"),
        (lambda: sampled(TREE, budget=0, replicates=10), "budget must be at least 1, got 0"),
        (lambda: sampled(TREE, cap=0, replicates=10), "cap must be at least 1, got 0"),
        (lambda: sampled(TREE, gamma=float("inf"), replicates=10), "gamma must be finite and at least 0, got inf"),
        (lambda: gap(TREE, scheme="residual"), "residual resampling takes no cap below the budget"),
        (lambda: gap(TREE, scheme="residual", cap=5, method="exact"), "scheme must be capped or calibrated, got resid"),
        (lambda: gap(TREE, budget=40, method="exact"), "budget must be small enough to sum over all stages, got 40"),
        (lambda: check_method("guess"), "method must be one of auto, exact, sampled, got guess: choose one"),
    ],
)
def test_settings_without_meaning_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
