from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from igrpo_theory import (
    GrowthRule,
    NodeStatus,
    PolicyTree,
    PolicyTreeWorld,
    cap_distance_bound,
    cap_slope,
    capped_mean,
    capped_reward_derivative,
    capped_reward_gain,
    capped_teacher_law,
    elasticity,
    enumerate_paths,
    grow,
    kl_divergence,
    mean_field,
    misleading_policy_tree,
    objective,
    question_keys,
    random_policy_tree,
    read_policy_tree,
    reward_derivative,
    reward_gain,
    root_to_leaf_paths,
    saturation_bound,
    states_of,
    teacher_law,
    teacher_law_by_recursion,
    total_variation,
)
from igrpo_theory.expansion import BudgetMode, Scheme
from igrpo_theory.responses import stage_response

GAMMAS = st.sampled_from([0.0, 0.3, 1.0, 3.0, 30.0])


@st.composite
def trees(draw: st.DrawFn, answer_rates: tuple[float, ...] = (0.0, 0.3, 0.6)) -> PolicyTree:
    return random_policy_tree(
        np.random.default_rng(draw(st.integers(0, 10**6))),
        turns=draw(st.integers(1, 4)),
        branching=draw(st.integers(1, 3)),
        answer_rate=draw(st.sampled_from(answer_rates)),
        value_range=draw(st.sampled_from([0.5, 1.0, 2.0])),
    )


TREE = random_policy_tree(np.random.default_rng(3), turns=4, branching=2)
ANSWERS = random_policy_tree(np.random.default_rng(11), turns=4, branching=3, answer_rate=0.35)


# The law under a cap


@given(policy=trees(), gamma=GAMMAS, cap=st.integers(1, 5), ratio=st.sampled_from([0.3, 1.0, 1.7, 4.0]))
def test_it_is_a_law_with_all_the_promised_limits(policy: PolicyTree, gamma: float, cap: int, ratio: float) -> None:
    pi, mu = enumerate_paths(policy).probability, teacher_law(policy, gamma)
    law = capped_teacher_law(policy, gamma, cap, ratio)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    assert np.allclose(capped_teacher_law(policy, gamma, None, ratio), mu, rtol=1e-10, atol=1e-14)
    assert np.allclose(capped_teacher_law(policy, 0.0, cap, ratio), pi, rtol=1e-10, atol=1e-14)
    if ratio >= cap:
        assert np.allclose(law, pi, rtol=1e-12, atol=1e-15)
    if gamma <= 1:
        assert np.allclose(capped_teacher_law(policy, gamma, 400, ratio), mu, rtol=1e-9, atol=1e-12)


@given(policy=trees(), gamma=GAMMAS, cap=st.integers(1, 5), ratio=st.sampled_from([0.3, 1.0, 1.7]))
def test_the_law_keeps_within_its_bounds(policy: PolicyTree, gamma: float, cap: int, ratio: float) -> None:
    pi, mu = enumerate_paths(policy).probability, teacher_law(policy, gamma)
    law = capped_teacher_law(policy, gamma, cap, ratio)
    assert total_variation(law, mu) <= cap_distance_bound(policy, gamma, cap, ratio) + 1e-12
    bound = saturation_bound(cap, [ratio] * (policy.turns - 1))
    assert kl_divergence(law, pi) <= bound + 1e-12
    assert (law <= pi * np.exp(bound) * (1 + 1e-9)).all()


@pytest.mark.parametrize(("cap", "ratio"), [(2, 1.0), (2, 0.5), (3, 1.25), (1, 0.5)])
def test_a_small_gamma_is_scaled_by_the_share_that_the_cap_leaves(cap: int, ratio: float) -> None:
    share = elasticity(ratio, cap)
    seconds = []
    for gamma in (0.1, 0.01):
        law = capped_teacher_law(TREE, gamma, cap, ratio)
        slope = total_variation(law, teacher_law(TREE, gamma)) / gamma
        assert slope == pytest.approx(cap_slope(TREE, cap, ratio), abs=gamma)
        seconds.append(total_variation(law, teacher_law(TREE, share * gamma)) / gamma**2)
    # What is left is of second order: a constant times gamma squared.
    assert seconds[0] == pytest.approx(seconds[1], rel=0.25)


def test_a_shrinking_budget_escapes_the_cap() -> None:
    mu = teacher_law(TREE, 1.0)
    distances = [total_variation(capped_teacher_law(TREE, 1.0, 2, ratio), mu) for ratio in (1.0, 0.3, 0.1, 0.03)]
    assert distances[0] > 0.01
    # The cap of two is felt at second order in the children a node.
    assert distances[3] / distances[2] == pytest.approx(0.09, rel=0.3)


def test_the_rate_of_a_stage_solves_its_equation() -> None:
    field = mean_field(TREE, 2.0, 2)
    mass = np.where(TREE.depth == 1, TREE.probability, 0.0)
    for stage in range(TREE.turns - 1):
        here = np.flatnonzero(TREE.depth == stage + 1)
        counts = capped_mean(np.exp(field.log_rate[stage] + 2.0 * TREE.value[here]), 2)
        assert mass[here] @ counts == pytest.approx(1, abs=1e-12)
        assert np.exp(field.log_response[here]) == pytest.approx(counts, rel=1e-12)
        below = np.flatnonzero(TREE.depth == stage + 2)
        mass[below] = (mass * np.exp(field.log_response))[TREE.parent[below]] * TREE.probability[below]
    assert mass[TREE.ends] == pytest.approx(field.complete, rel=1e-12)


@pytest.mark.parametrize("scheme", ["capped", "calibrated"])
def test_a_huge_gamma_is_a_limit_and_not_an_overflow(scheme: Scheme) -> None:
    laws = [mean_field(TREE, gamma, 2, scheme=scheme).complete_law for gamma in (1e4, 1e8, 1e300)]
    assert laws[1] == pytest.approx(laws[0], abs=1e-9)
    assert laws[2] == pytest.approx(laws[0], abs=1e-9)
    assert kl_divergence(laws[2], enumerate_paths(TREE).probability) <= saturation_bound(2, [1.0] * 3)
    assert cap_distance_bound(TREE, 1e300, 2) == pytest.approx(1)


def test_calibration_restores_the_teacher_exactly_where_no_share_passes_the_cap() -> None:
    for gamma in (0.2, 0.5):
        recursion = teacher_law_by_recursion(TREE, gamma)
        highest = np.log(2) + recursion.log_stage_means
        shares = [gamma * TREE.value[TREE.depth == depth].max() for depth in range(1, 4)]
        assert (shares < highest).all()
        law = mean_field(TREE, gamma, 2, scheme="calibrated").complete_law
        assert law == pytest.approx(teacher_law(TREE, gamma), rel=1e-9)


# The reward under a cap


@given(
    policy=trees(),
    gamma=st.floats(0.1, 5),
    cap=st.integers(1, 4),
    ratio=st.sampled_from([0.4, 1.0, 1.7]),
)
def test_the_reward_under_a_cap_has_the_derivative_of_its_closed_form(
    policy: PolicyTree, gamma: float, cap: int, ratio: float
) -> None:
    up, down = (capped_reward_gain(policy, gamma + step, cap, ratio) for step in (1e-4, -1e-4))
    assert capped_reward_derivative(policy, gamma, cap, ratio) == pytest.approx((up - down) / 2e-4, abs=1e-6)


@given(policy=trees(), gamma=st.floats(0, 5))
def test_without_a_cap_the_reward_is_the_teachers(policy: PolicyTree, gamma: float) -> None:
    assert capped_reward_gain(policy, gamma, None) == pytest.approx(reward_gain(policy, gamma), abs=1e-11)
    assert capped_reward_derivative(policy, gamma, None) == pytest.approx(reward_derivative(policy, gamma), abs=1e-10)
    assert capped_reward_gain(policy, gamma, 1) == pytest.approx(0, abs=1e-11)
    assert capped_reward_derivative(policy, gamma, 1) == pytest.approx(0, abs=1e-11)


@pytest.mark.parametrize("cap", [2, 3, 5])
def test_a_larger_gamma_hurts_under_the_cap_too_where_the_value_misleads(cap: int) -> None:
    policy = misleading_policy_tree()
    gains = [capped_reward_gain(policy, gamma, cap) for gamma in (0.0, 0.5, 1.0, 2.0, 5.0, 20.0)]
    assert (np.diff(gains) < 0).all()
    assert gains[0] == pytest.approx(0, abs=1e-12)
    assert gains[-1] == pytest.approx(-0.5, abs=1e-6)
    # To first order the cap leaves the share `elasticity` of the teacher's slope.
    slope = elasticity(1.0, cap) * reward_derivative(policy, 0.0)
    assert capped_reward_derivative(policy, 0.0, cap) == pytest.approx(slope, abs=1e-12)


def test_a_larger_gamma_can_help_the_teacher_and_hurt_under_the_cap() -> None:
    policy = random_policy_tree(np.random.default_rng(1310), turns=3, branching=2)
    assert reward_derivative(policy, 1.0) > 0.07
    assert capped_reward_derivative(policy, 1.0, 2) < -0.06


# What is not true


def test_a_looser_cap_can_be_further_from_the_teacher_in_total_variation() -> None:
    policy = random_policy_tree(np.random.default_rng(1023), turns=3, branching=3)
    mu = teacher_law(policy, 3.0)
    two, three = (total_variation(capped_teacher_law(policy, 3.0, cap), mu) for cap in (2, 3))
    assert (round(two, 4), round(three, 4)) == (0.0551, 0.0902)


def test_a_looser_cap_can_be_worse_in_the_objective_too() -> None:
    """Cap 2 loses to no guidance at all (cap 1): the objective is not monotone in the cap."""
    policy = random_policy_tree(np.random.default_rng(1031), turns=3, branching=3)
    mu, pi = teacher_law(policy, 3.0), enumerate_paths(policy).probability
    law = capped_teacher_law(policy, 3.0, 2)
    assert (round(kl_divergence(pi, mu), 3), round(kl_divergence(law, mu), 3)) == (1.009, 1.102)
    loss = objective(pi, policy, 3.0) - objective(law, policy, 3.0)
    assert loss == pytest.approx((kl_divergence(law, mu) - kl_divergence(pi, mu)) / 3, rel=1e-9)


def test_the_cap_can_move_further_from_the_policy_than_the_teacher_is() -> None:
    policy = random_policy_tree(np.random.default_rng(1023), turns=3, branching=3)
    pi = enumerate_paths(policy).probability
    excess = total_variation(capped_teacher_law(policy, 3.0, 3), pi) - total_variation(teacher_law(policy, 3.0), pi)
    assert round(excess, 4) == 0.0834


def test_calibration_can_do_harm_where_shares_pass_the_cap() -> None:
    mu = teacher_law(TREE, 5.0)
    clipped = mean_field(TREE, 5.0, 2, scheme="calibrated").complete_law
    assert total_variation(clipped, mu) > total_variation(capped_teacher_law(TREE, 5.0, 2), mu) + 0.01


# Early answers and truncated leaves


@given(policy=trees(), gamma=GAMMAS, mode=st.sampled_from(["full", "mid", "low"]))
def test_without_a_cap_only_the_lengths_are_wrong(policy: PolicyTree, gamma: float, mode: BudgetMode) -> None:
    law, mu = enumerate_paths(policy), teacher_law(policy, gamma)
    length = (law.states >= 0).sum(axis=1)
    grown = mean_field(policy, gamma, None, mode=mode).complete_law
    for turns in np.unique(length):
        same = length == turns
        if mu[same].sum() > 1e-12 and grown[same].sum() > 1e-12:
            assert grown[same] / grown[same].sum() == pytest.approx(mu[same] / mu[same].sum(), rel=1e-9, abs=1e-12)


@given(policy=trees(), gamma=GAMMAS, cap=st.none() | st.integers(1, 4), mode=st.sampled_from(["full", "mid", "low"]))
def test_nodes_and_leaves_are_accounted_for(
    policy: PolicyTree, gamma: float, cap: int | None, mode: BudgetMode
) -> None:
    field = mean_field(policy, gamma, cap, mode=mode)
    depth = policy.depth
    ended = np.zeros(len(depth))
    ended[policy.ends] = field.complete
    active = field.nodes - np.bincount(depth, weights=ended, minlength=policy.turns + 1)[1:]
    assert field.nodes[1:] == pytest.approx(field.children_per_node * active[:-1], rel=1e-9, abs=1e-12)
    assert (field.complete >= 0).all()
    assert (field.truncated >= 0).all()
    assert field.training_law.sum() == pytest.approx(1)
    if mode == "low":
        assert (field.children_per_node <= 1 + 1e-12).all()
    if cap == 1:
        assert field.truncated_share == 0 or mode == "mid"  # a chain draws every node once
        assert field.complete_law == pytest.approx(enumerate_paths(policy).probability, rel=1e-9, abs=1e-12)


def test_a_stage_that_no_node_reaches_is_skipped() -> None:
    policy = PolicyTree(
        parent=np.array([-1, 0, 0, 2]),
        probability=np.array([1.0, 1.0, 0.0, 1.0]),
        value=np.array([0.0, 0.0, 5.0, 0.0]),
        answer=np.array([False, True, False, True]),
        reward=np.zeros(4),
    )
    field = mean_field(policy, 1.0, 2)
    assert field.complete.tolist() == [1.0, 0.0]
    assert field.nodes.tolist() == [1.0, 0.0]
    assert field.children_per_node.tolist() == [0.0]


def test_half_of_the_paths_are_truncated_even_without_answers_or_tilt() -> None:
    for cap, none in ((2, np.exp(-1.14619322)), (None, np.exp(-1.0))):
        field = mean_field(TREE, 0.0, cap)
        assert field.truncated_share == pytest.approx(3 * none / (1 + 3 * none), rel=1e-7)
    assert mean_field(TREE, 0.0, 2).truncated_share == pytest.approx(0.4881, abs=1e-4)


# Against growth


class Totals:
    """Leaves of each kind in replicate trees, per unit of budget: K complete paths, then S truncated states."""

    def __init__(self, policy: PolicyTree, rule: GrowthRule, replicates: int) -> None:
        keys = question_keys(5, 0, np.arange(replicates), [f"replicate {number}" for number in range(replicates)])
        tree = grow(PolicyTreeWorld(policy), [0] * replicates, keys, rule).tree
        paths = root_to_leaf_paths(tree)
        kinds, num_states = np.full(2 * len(policy.parent), -1), len(policy.parent)
        kinds[policy.ends] = np.arange(len(policy.ends))
        kinds[num_states:] = len(policy.ends) + np.arange(num_states)
        cut = tree.status[paths.leaf] == NodeStatus.TRUNCATED
        kind = kinds[states_of(tree)[paths.leaf] + num_states * cut]
        width = len(policy.ends) + num_states
        counts = np.bincount(paths.question * width + kind, minlength=replicates * width)
        self.leaves = counts.reshape(replicates, width) / rule.budget

    def z_scores(self, expected: np.ndarray, slack: float) -> np.ndarray:
        """Of leaves that are not rare; `slack` bounds the bias of order 1 / budget in the units of the counts."""
        common = expected > 0.004
        error = self.leaves[:, common].std(axis=0, ddof=1) / np.sqrt(len(self.leaves))
        off = np.abs(self.leaves[:, common].mean(axis=0) - expected[common])
        return np.maximum(off - slack, 0) / error


BUDGET, REPLICATES = 2000, 60
CASES: list[tuple[BudgetMode, int | None, Scheme]] = [
    ("full", 2, "capped"),
    ("mid", 2, "capped"),
    ("low", 3, "capped"),
    ("full", None, "capped"),
    ("full", 2, "calibrated"),
    ("full", None, "systematic"),
    ("full", None, "residual"),
    ("mid", None, "stratified"),
]


@pytest.mark.parametrize(("mode", "cap", "scheme"), CASES)
def test_growth_at_a_large_budget_has_the_limit_counts(
    mode: BudgetMode, cap: int | None, scheme: Scheme, alpha: float
) -> None:
    rule = GrowthRule(
        budget=BUDGET, cap=cap or BUDGET, gamma=1.5, budget_mode=mode, scheme=scheme, criterion="score", turn_limit=4
    )
    field = mean_field(ANSWERS, 1.5, cap, mode=mode, scheme=scheme)
    expected = np.concatenate([field.complete, field.truncated])
    z = Totals(ANSWERS, rule, REPLICATES).z_scores(expected, slack=1 / BUDGET)
    assert z.max() < stats.t.isf(alpha / 2 / len(z), REPLICATES - 1), z.round(1)
    # The test has teeth: the teacher law in the same units is far off.
    other = mean_field(ANSWERS, 1.5 * 1.05, cap, mode=mode, scheme=scheme)
    assert total_variation(field.training_law, other.training_law) > 1e-3


def test_a_gamma_that_is_off_by_a_twentieth_would_be_noticed_at_a_large_budget(alpha: float) -> None:
    rule = GrowthRule(budget=BUDGET, cap=2, gamma=1.5, criterion="score", turn_limit=4)
    field = mean_field(ANSWERS, 1.5 * 1.05, 2)
    # One number a tree: the leaves weighed by how gamma moves the log of their expected number.
    right = mean_field(ANSWERS, 1.5, 2)
    expected = np.concatenate([right.complete, right.truncated])
    shift = np.concatenate([field.complete, field.truncated]) - expected
    direction = np.divide(shift, expected, out=np.zeros_like(shift), where=expected > 0)
    scores = Totals(ANSWERS, rule, 400).leaves @ direction
    threshold = stats.norm.isf(alpha / 2) * scores.std(ddof=1) / np.sqrt(len(scores))
    assert abs(scores.mean() - expected @ direction) < threshold
    assert abs(scores.mean() - (expected + shift) @ direction) > threshold


# Numbers worked out beforehand by another program


@pytest.mark.parametrize(
    ("name", "gamma", "cap", "distance"),
    [
        ("T3_K27", 1.0, 2, 0.061),
        ("T4_K16", 1.0, 2, 0.078),
        ("T4_K16", 3.0, 2, 0.020),
        ("T4_K42", 1.0, 2, 0.0932),
        ("T4_K42", 1.0, 3, 0.0502),
        ("T4_K42", 3.0, 2, 0.796),
        ("T5_K108", 1.0, 2, 0.152),
    ],
)
def test_reference_distances(reference_trees: Path, name: str, gamma: float, cap: int, distance: float) -> None:
    policy = read_policy_tree(reference_trees / f"{name}.json")
    ours = total_variation(capped_teacher_law(policy, gamma, cap), teacher_law(policy, gamma))
    assert ours == pytest.approx(distance, abs=5.1e-4 if distance < 0.5 else 1e-3)


@pytest.mark.parametrize(
    ("mode", "cap", "truncated", "lengths", "complete", "training"),
    [
        ("full", 2, 0.155, (0.240, 0.243, 0.517), 0.305, 0.364),
        ("full", None, 0.241, (0.248, 0.225, 0.527), 0.295, 0.405),
        ("low", 2, 0.377, (0.465, 0.232, 0.303), 0.082, 0.378),
        ("mid", 2, 0.225, (0.306, 0.227, 0.468), 0.239, 0.364),
    ],
)
def test_reference_tree_with_answers(
    reference_trees: Path,
    mode: BudgetMode,
    cap: int | None,
    truncated: float,
    lengths: tuple[float, ...],
    complete: float,
    training: float,
) -> None:
    policy = read_policy_tree(reference_trees / "T4_answers.json")
    mu, field = teacher_law(policy, 1.0), mean_field(policy, 1.0, cap, mode=mode)
    length = (enumerate_paths(policy).states >= 0).sum(axis=1)
    assert field.truncated_share == pytest.approx(truncated, abs=6e-4)
    assert np.bincount(length, weights=field.complete_law)[2:] == pytest.approx(lengths, abs=6e-4)
    assert total_variation(field.complete_law, mu) == pytest.approx(complete, abs=6e-4)
    whole = np.concatenate([mu, np.zeros(len(policy.parent))])
    assert total_variation(field.training_law, whole) == pytest.approx(training, abs=1.1e-3)


# Errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_field(TREE, -1.0, 2), "gamma must be finite and at least 0, got -1.0"),
        (lambda: mean_field(TREE, float("nan"), 2), "gamma must be finite and at least 0, got nan"),
        (lambda: mean_field(TREE, 1.0, 0), "cap must be at least 1, got 0"),
        (lambda: mean_field(TREE, 1.0, 2, scheme="residual"), "residual resampling takes no cap, got cap 2: set cap ="),
        (lambda: mean_field(TREE, 1.0, 2, children_per_node=[1.0]), "must be one number a stage, got 1 for 3"),
        (lambda: mean_field(TREE, 1.0, 2, children_per_node=[1.0, 0.0, 1.0]), "must be above 0 and finite"),
        (lambda: capped_teacher_law(TREE, 1.0, 2, float("nan")), "must be above 0 and finite"),
        (lambda: saturation_bound(2, [1.0, -1.0]), "children_per_node must be above 0"),
        (lambda: saturation_bound(0, [1.0]), "cap must be at least 1, got 0"),
    ],
)
def test_input_without_meaning_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_lone_state_gets_the_whole_stage() -> None:
    response = stage_response(np.array([1.0]), np.array([0.7]), 3.0, 1.5, 2)
    assert np.exp(response.log_mean).tolist() == pytest.approx([1.5])


def test_the_rate_of_a_stage_at_the_edges_of_what_can_be_solved() -> None:
    # One share is exactly the cap, and the other state has next to nothing left.
    clipped = stage_response(np.array([0.5, 0.5]), np.array([0.0, -1e6]), 1.0, 1.0, 2, "calibrated")
    assert np.exp(clipped.log_mean).tolist() == pytest.approx([2.0, 0.0])
    # As many children a node as the cap allows, up to the last bit of a law that sums to just below 1.
    full = stage_response(np.full(10, 0.1), np.zeros(10), 1.0, float(np.nextafter(2, 0)), 2)
    assert np.exp(full.log_mean) == pytest.approx(np.full(10, 2.0))
    assert full.none == pytest.approx(np.zeros(10), abs=1e-12)
