from dataclasses import replace
from fractions import Fraction
from functools import cache
from inspect import unwrap

import numpy as np
import pytest
from scipy import stats
from scripted_growth import Rules, Scenario, act_out, scenarios

from igrpo_theory import (
    GrowthRule,
    NodeStatus,
    PolicyTree,
    PolicyTreeWorld,
    Stage,
    Target,
    enumerate_paths,
    grow,
    importance_weights,
    log_partition,
    mean_field,
    question_keys,
    random_policy_tree,
    states_of,
    teacher_law,
    total_variation,
)
from igrpo_theory.expansion import BudgetMode, Scheme

SETTINGS: list[tuple[int, int, BudgetMode]] = [
    (3, 2, "full"),
    (3, 2, "low"),
    (3, 2, "mid"),
    (3, 1, "full"),
    (2, 2, "full"),
]
# Values are logarithms of simple fractions. Three turns; state 2 answers at depth 1, state 4 at depth 2.
SMALL = PolicyTree(
    parent=np.array([-1, 0, 0, 1, 1, 3, 3]),
    probability=np.array([1.0, 0.625, 0.375, 0.75, 0.25, 0.5, 0.5]),
    value=np.log([1.0, 1.5, 1.0, 0.5, 1.0, 1.0, 1.0]),
    answer=np.array([False, False, True, False, True, False, False]),
    reward=np.zeros(7),
)
# Weights differ between states of one stage; state 2 has a child of its own here.
WIDE = PolicyTree(
    parent=np.array([-1, 0, 0, 1, 1, 2, 3, 3, 5]),
    probability=np.array([1.0, 0.625, 0.375, 0.75, 0.25, 1.0, 0.5, 0.5, 1.0]),
    value=np.log([1.0, 1.5, 0.5, 0.75, 1.0, 3.0, 1.0, 1.0, 1.0]),
    answer=np.array([False, False, False, False, True, False, False, False, False]),
    reward=np.zeros(9),
)


def rules_of(policy: PolicyTree, budget: int, cap: int, mode: BudgetMode) -> Rules:
    weights = [Fraction(weight).limit_denominator(100) for weight in np.exp(policy.value).tolist()]
    return Rules(policy, [Fraction(p) for p in policy.probability.tolist()], weights, budget, cap, mode)


@cache
def acts_of(policy: PolicyTree, budget: int, cap: int, mode: BudgetMode) -> list[Scenario]:
    """All ways to grow, listed once for all tests."""
    return scenarios(rules_of(policy, budget, cap, mode))


# By enumeration


@pytest.mark.parametrize(
    ("policy", "budget", "cap", "mode"),
    [*((policy, *setting) for policy in (SMALL, WIDE) for setting in SETTINGS), (SMALL, 4, 2, "full")],
)
def test_weighted_leaves_have_the_target_mean_exactly(
    policy: PolicyTree, budget: int, cap: int, mode: BudgetMode
) -> None:
    rules = rules_of(policy, budget, cap, mode)
    acts = acts_of(policy, budget, cap, mode)
    assert sum(act.probability for act in acts) == 1
    law = enumerate_paths(policy)
    for end, states in zip(law.end.tolist(), law.states.tolist(), strict=True):
        turns = [state for state in states if state >= 0]
        odds = np.prod([rules.odds[state] for state in turns])
        tilt = np.prod([Fraction(1), *(rules.weights[state] for state in turns[:-1])])
        leaves = [(act.probability, leaf) for act in acts for leaf in act.leaves if leaf.state == end]
        assert sum(mass * leaf.policy for mass, leaf in leaves) == odds
        assert sum(mass * leaf.teacher for mass, leaf in leaves) == odds * tilt


@pytest.mark.parametrize("policy", [SMALL, WIDE], ids=["small", "wide"])
@pytest.mark.parametrize(("budget", "cap", "mode"), SETTINGS)
def test_the_package_gives_those_very_weights(
    policy: PolicyTree, budget: int, cap: int, mode: BudgetMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = acts_of(policy, budget, cap, mode)
    growth, rule = act_out(rules_of(policy, budget, cap, mode), 1.0, acts, monkeypatch)
    tree = growth.tree
    leaves = np.flatnonzero(np.isin(tree.status, [NodeStatus.TERMINAL, NodeStatus.TURN_LIMIT]))
    if cap == 1:  # grown without scores; the identity for the teacher needs them
        rule = replace(rule, score_chains=True)
        tree.set_values(*_active_values(growth.stages, policy, states_of(tree)))
    for target in ("teacher", "policy"):
        weights = importance_weights(growth, rule, target)
        assert (weights[tree.status == NodeStatus.TRUNCATED] == 0).all()
        for slot, act in enumerate(acts):
            mine = leaves[tree.question[leaves] == slot]
            exact = sorted((leaf.state, float(getattr(leaf, target))) for leaf in act.leaves)
            ours = sorted(zip(states_of(tree)[mine].tolist(), weights[mine].tolist(), strict=True))
            assert [state for state, _ in ours] == [state for state, _ in exact]
            assert [weight for _, weight in ours] == pytest.approx([weight for _, weight in exact], rel=1e-11)
        # The identity itself, summed over all ways to grow.
        chance = np.array([float(act.probability) for act in acts])
        total = np.bincount(
            states_of(tree)[leaves],
            weights=weights[leaves] * chance[tree.question[leaves]],
            minlength=len(policy.parent),
        )
        law = enumerate_paths(policy)
        tilt = np.exp(law.value) if target == "teacher" else 1.0
        assert total[policy.ends] == pytest.approx(law.probability * tilt, rel=1e-11)


def _active_values(stages: list[Stage], policy: PolicyTree, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    nodes = np.concatenate([stage.nodes for stage in stages])
    return nodes, policy.value[states[nodes]]


def test_equal_weights_are_far_off_where_these_are_exact() -> None:
    acts = acts_of(SMALL, 3, 2, "full")
    seen = np.zeros(len(SMALL.parent))
    for act in acts:
        for leaf in act.leaves:
            seen[leaf.state] += float(act.probability)
    equal = seen[SMALL.ends] / seen.sum()
    assert total_variation(equal, teacher_law(SMALL, 1.0)) > 0.15


# By sampling


ANSWERS = random_policy_tree(np.random.default_rng(11), turns=4, branching=3, answer_rate=0.35)
PADDED = random_policy_tree(np.random.default_rng(3), turns=4, branching=2)


def weighted_sums(
    policy: PolicyTree, rule: GrowthRule, target: Target, replicates: int, *, weigh_by: tuple[float, ...] = ()
) -> np.ndarray:
    """Sum of the weights of each complete path, one row a tree; for each gamma to weigh by, if any are given."""
    keys = question_keys(3, 0, np.arange(replicates), [f"replicate {number}" for number in range(replicates)])
    growth = grow(PolicyTreeWorld(policy), [0] * replicates, keys, rule)
    tree, num_states = growth.tree, len(policy.parent)
    leaves = tree.leaves()
    cells = tree.question[leaves] * num_states + states_of(tree)[leaves]
    sums = []
    for gamma in weigh_by or (rule.gamma,):
        weights = importance_weights(growth, replace(rule, gamma=gamma), target)
        summed = np.bincount(cells, weights=weights[leaves], minlength=replicates * num_states)
        sums.append(summed.reshape(replicates, num_states)[:, policy.ends])
    return np.stack(sums) if weigh_by else sums[0]


CASES: list[tuple[str, int, Scheme, BudgetMode, Target]] = [
    ("answers", 2, "capped", "full", "teacher"),
    ("answers", 2, "capped", "mid", "policy"),
    ("answers", 2, "capped", "low", "teacher"),
    ("answers", 3, "calibrated", "full", "teacher"),
    ("answers", 5, "systematic", "full", "teacher"),
    ("answers", 5, "residual", "mid", "policy"),
    ("padded", 2, "capped", "full", "teacher"),
    ("padded", 5, "stratified", "full", "policy"),
    ("padded", 5, "capped", "full", "teacher"),
]


@pytest.mark.parametrize(("name", "cap", "scheme", "mode", "target"), CASES)
def test_weighted_means_of_real_trees_are_unbiased(
    name: str, cap: int, scheme: Scheme, mode: BudgetMode, target: Target, alpha: float
) -> None:
    policy = {"answers": ANSWERS, "padded": PADDED}[name]
    rule = GrowthRule(cap=cap, scheme=scheme, budget_mode=mode, criterion="score", turn_limit=4)
    sums = weighted_sums(policy, rule, target, 8000)
    law = enumerate_paths(policy)
    exact = law.probability * (np.exp(law.value) if target == "teacher" else 1.0)
    common = exact > 0.01  # rarer paths have no normal means
    tests = np.column_stack([sums[:, common], sums.sum(axis=1), sums @ law.value])
    wanted = np.concatenate([exact[common], [exact.sum(), exact @ law.value]])
    z = (tests.mean(axis=0) - wanted) / (tests.std(axis=0, ddof=1) / np.sqrt(len(tests)))
    assert np.abs(z).max() < stats.norm.isf(alpha / 2 / len(z)), z.round(2)
    if target == "teacher":
        assert exact.sum() == pytest.approx(np.exp(log_partition(policy, 1.0)))


def test_pooled_weighted_leaves_are_near_the_teacher_where_equal_ones_are_not() -> None:
    rule = GrowthRule(criterion="score", turn_limit=4)
    sums = weighted_sums(ANSWERS, rule, "teacher", 8000).sum(axis=0)
    mu = teacher_law(ANSWERS, 1.0)
    assert total_variation(sums / sums.sum(), mu) < 0.02
    assert total_variation(mean_field(ANSWERS, 1.0, 2).complete_law, mu) > 0.1


def test_weights_of_a_gamma_that_is_off_by_a_twentieth_are_caught(alpha: float) -> None:
    rule = GrowthRule(criterion="score", turn_limit=4, gamma=2.0)
    law = enumerate_paths(PADDED)
    tests = np.stack([np.ones(len(law.value)), law.value], axis=1)
    exact = law.probability * np.exp(2.0 * law.value) @ tests
    both = weighted_sums(PADDED, rule, "teacher", 40_000, weigh_by=(2.0, 2.1))
    for sums, caught in ((both[0] @ tests, False), (both[1] @ tests, True)):
        z = (sums.mean(axis=0) - exact) / (sums.std(axis=0, ddof=1) / np.sqrt(len(sums)))
        assert (np.abs(z).max() > stats.norm.isf(alpha / 4)) == caught, z


def test_without_a_cap_all_leaves_of_a_padded_tree_weigh_the_same() -> None:
    rule = GrowthRule(cap=5, criterion="score", turn_limit=4)
    growth = grow(PolicyTreeWorld(PADDED), [0] * 20, question_keys(0, 0, np.arange(20), ["q"] * 20), rule)
    weights, tree = importance_weights(growth, rule), growth.tree
    for slot in range(20):
        mine = weights[(tree.question == slot) & (tree.status == NodeStatus.TURN_LIMIT)]
        assert mine == pytest.approx(np.full(5, mine[0]), rel=1e-12)


def test_a_chain_weighs_for_the_policy_without_scores_and_for_the_teacher_with_them() -> None:
    chain = GrowthRule(cap=1, criterion="score", turn_limit=4)
    sums = weighted_sums(PADDED, chain, "policy", 50)
    assert sums.sum(axis=1) == pytest.approx(np.ones(50), abs=1e-12)
    scored = weighted_sums(PADDED, replace(chain, score_chains=True), "teacher", 50)
    law = enumerate_paths(PADDED)
    assert scored == pytest.approx(sums * np.exp(law.value), rel=1e-12)
    plain = GrowthRule(cap=2, criterion="zero", turn_limit=4)
    assert weighted_sums(PADDED, plain, "teacher", 50) == pytest.approx(weighted_sums(PADDED, plain, "policy", 50))


def test_a_target_that_cannot_be_weighed_for_is_refused() -> None:
    growth = grow(PolicyTreeWorld(PADDED), [0], question_keys(0, 0, np.arange(1), ["q"]), GrowthRule())
    with pytest.raises(ValueError, match="target must be one of teacher, policy, got greedy: choose one of them"):
        unwrap(importance_weights)(growth, GrowthRule(), "greedy")
    chain = GrowthRule(cap=1, criterion="score", turn_limit=4)
    with pytest.raises(ValueError, match="target teacher needs the values of all expanded nodes, got cap 1 without"):
        weighted_sums(PADDED, chain, "teacher", 2)
    with pytest.raises(ValueError, match="gamma must keep weights within exp.700., got 5000.0 and exp.* lower it"):
        weighted_sums(PADDED, GrowthRule(gamma=5000.0, criterion="score", turn_limit=4), "teacher", 20)
