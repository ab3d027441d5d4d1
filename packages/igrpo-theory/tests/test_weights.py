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
    RolloutTree,
    Target,
    enumerate_paths,
    grow,
    log_partition,
    mean_field,
    question_keys,
    random_policy_tree,
    relative_weights,
    root_to_leaf_paths,
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
        assert sum(mass * leaf.pi for mass, leaf in leaves) == odds
        assert sum(mass * leaf.mu for mass, leaf in leaves) == odds * tilt


@pytest.mark.parametrize("policy", [SMALL, WIDE], ids=["small", "wide"])
@pytest.mark.parametrize(("budget", "cap", "mode"), SETTINGS)
def test_the_package_gives_those_very_weights(
    policy: PolicyTree, budget: int, cap: int, mode: BudgetMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = acts_of(policy, budget, cap, mode)
    tree = act_out(rules_of(policy, budget, cap, mode), 1.0, acts, monkeypatch)
    leaves = np.flatnonzero(np.isin(tree.status, [NodeStatus.TERMINAL, NodeStatus.TURN_LIMIT]))
    targets: tuple[Target, ...] = ("mu", "pi")
    for target in targets:
        weights = tree.weights(target)
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
        tilt = np.exp(law.value) if target == "mu" else 1.0
        assert total[policy.ends] == pytest.approx(law.probability * tilt, rel=1e-11)


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


def grown(policy: PolicyTree, rule: GrowthRule, replicates: int) -> RolloutTree[int]:
    """Independent trees, one a question."""
    keys = question_keys(3, 0, np.arange(replicates), [f"replicate {number}" for number in range(replicates)])
    return grow(PolicyTreeWorld(policy), [0] * replicates, keys, rule).tree


def weighted_sums(policy: PolicyTree, tree: RolloutTree[int], target: Target) -> np.ndarray:
    """Sum of the weights of each complete path, one row a tree."""
    num_states, leaves = len(policy.parent), tree.leaves()
    cells = tree.question[leaves] * num_states + states_of(tree)[leaves]
    summed = np.bincount(cells, weights=tree.weights(target)[leaves], minlength=tree.num_questions * num_states)
    return summed.reshape(tree.num_questions, num_states)[:, policy.ends]


CASES: list[tuple[str, int, Scheme, BudgetMode, Target]] = [
    ("answers", 2, "capped", "full", "mu"),
    ("answers", 2, "capped", "mid", "pi"),
    ("answers", 2, "capped", "low", "mu"),
    ("answers", 3, "calibrated", "full", "mu"),
    ("answers", 5, "systematic", "full", "mu"),
    ("answers", 5, "residual", "mid", "pi"),
    ("padded", 2, "capped", "full", "mu"),
    ("padded", 5, "stratified", "full", "pi"),
    ("padded", 5, "capped", "full", "mu"),
]


@pytest.mark.parametrize(("name", "cap", "scheme", "mode", "target"), CASES)
def test_weighted_means_of_real_trees_are_unbiased(
    name: str, cap: int, scheme: Scheme, mode: BudgetMode, target: Target, alpha: float
) -> None:
    policy = {"answers": ANSWERS, "padded": PADDED}[name]
    rule = GrowthRule(cap=cap, scheme=scheme, budget_mode=mode, criterion="score", turn_limit=4)
    sums = weighted_sums(policy, grown(policy, rule, 8000), target)
    law = enumerate_paths(policy)
    exact = law.probability * (np.exp(law.value) if target == "mu" else 1.0)
    common = exact > 0.01  # rarer paths have no normal means
    tests = np.column_stack([sums[:, common], sums.sum(axis=1), sums @ law.value])
    wanted = np.concatenate([exact[common], [exact.sum(), exact @ law.value]])
    z = (tests.mean(axis=0) - wanted) / (tests.std(axis=0, ddof=1) / np.sqrt(len(tests)))
    assert np.abs(z).max() < stats.norm.isf(alpha / 2 / len(z)), z.round(2)
    if target == "mu":
        assert exact.sum() == pytest.approx(np.exp(log_partition(policy, 1.0)))


def test_pooled_weighted_leaves_are_near_the_teacher_where_equal_ones_are_not() -> None:
    rule = GrowthRule(criterion="score", turn_limit=4)
    sums = weighted_sums(ANSWERS, grown(ANSWERS, rule, 8000), "mu").sum(axis=0)
    mu = teacher_law(ANSWERS, 1.0)
    assert total_variation(sums / sums.sum(), mu) < 0.02
    assert total_variation(mean_field(ANSWERS, 1.0, 2).complete_law, mu) > 0.1


def test_weights_of_a_gamma_that_is_off_by_a_twentieth_are_caught(alpha: float) -> None:
    rule = GrowthRule(criterion="score", turn_limit=4, gamma=2.0)
    law = enumerate_paths(PADDED)
    tests = np.stack([np.ones(len(law.value)), law.value], axis=1)
    exact = law.probability * np.exp(2.0 * law.value) @ tests
    tree = grown(PADDED, rule, 40_000)
    for gamma, caught in ((2.0, False), (2.1, True)):
        tree.stages = [stage._replace(gamma=gamma) for stage in tree.stages]
        sums = weighted_sums(PADDED, tree, "mu") @ tests
        z = (sums.mean(axis=0) - exact) / (sums.std(axis=0, ddof=1) / np.sqrt(len(sums)))
        assert (np.abs(z).max() > stats.norm.isf(alpha / 4)) == caught, z


def test_without_a_cap_all_leaves_of_a_padded_tree_weigh_the_same() -> None:
    rule = GrowthRule(cap=5, criterion="score", turn_limit=4)
    tree = grown(PADDED, rule, 20)
    weights = tree.weights("mu")
    for slot in range(20):
        mine = weights[(tree.question == slot) & (tree.status == NodeStatus.TURN_LIMIT)]
        assert mine == pytest.approx(np.full(5, mine[0]), rel=1e-12)


def test_a_chain_weighs_for_the_policy_without_scores_and_for_the_teacher_with_them() -> None:
    chain = GrowthRule(cap=1, criterion="score", turn_limit=4)
    sums = weighted_sums(PADDED, grown(PADDED, chain, 50), "pi")
    assert sums.sum(axis=1) == pytest.approx(np.ones(50), abs=1e-12)
    scored = weighted_sums(PADDED, grown(PADDED, replace(chain, score_chains=True), 50), "mu")
    law = enumerate_paths(PADDED)
    assert scored == pytest.approx(sums * np.exp(law.value), rel=1e-12)
    plain = grown(PADDED, GrowthRule(cap=2, criterion="zero", turn_limit=4), 50)
    assert weighted_sums(PADDED, plain, "mu").tolist() == weighted_sums(PADDED, plain, "pi").tolist()


def test_a_target_that_cannot_be_weighed_for_is_refused() -> None:
    tree = grown(PADDED, GrowthRule(criterion="score", turn_limit=4), 20)
    with pytest.raises(ValueError, match="target must be one of mu, pi, got greedy: choose one of them"):
        unwrap(RolloutTree.log_weights)(tree, "greedy")
    chains = grown(PADDED, GrowthRule(cap=1, criterion="score", turn_limit=4), 2)
    message = "target mu needs the draw of every expanded node and, for mu, its value, got none above node 12: grow"
    with pytest.raises(ValueError, match=message):
        chains.weights("mu")
    tree.stages = tree.stages[:1]
    with pytest.raises(ValueError, match="target pi needs the draw of every expanded node .* got none above node 220:"):
        tree.weights("pi")
    steep = grown(PADDED, GrowthRule(gamma=5000.0, criterion="score", turn_limit=4), 20)
    with pytest.raises(ValueError, match="gamma must keep weights within exp.700., got 5000.0 and exp.* lower it"):
        steep.weights("mu")


def test_relative_weights_are_shares_within_a_question_however_steep_the_tilt() -> None:
    for gamma in (1.0, 5000.0):
        tree = grown(ANSWERS, GrowthRule(gamma=gamma, criterion="score", turn_limit=4), 30)
        paths = root_to_leaf_paths(tree)
        keep = tree.status[paths.leaf] != NodeStatus.TRUNCATED
        for kept in (None, keep):
            weights = relative_weights(tree, paths, "mu", kept)
            taken = np.ones(len(keep), dtype=bool) if kept is None else kept
            assert (weights[~keep] == 0).all()
            for slot in range(30):
                assert weights[(paths.question == slot) & taken].mean() == pytest.approx(1.0, rel=1e-12)
    plain = relative_weights(tree, paths, "pi")
    mine = (paths.question == 7) & keep
    expected = tree.weights("pi")[paths.leaf][mine]
    assert plain[mine] / plain[mine].sum() == pytest.approx(expected / expected.sum(), rel=1e-12)
    assert (relative_weights(tree, paths, "pi", ~keep) == 0).all()


def test_records_carry_the_weights() -> None:
    tree = grown(PADDED, GrowthRule(criterion="score", turn_limit=4), 3)
    nodes = [node for record in tree.to_records(int) for node in record["nodes"]]
    order = np.argsort(tree.question, kind="stable")
    for target in ("mu", "pi"):
        assert [node[f"weight_{target}"] for node in nodes] == tree.weights(target)[order].tolist()
    chains = grown(PADDED, GrowthRule(cap=1, criterion="score", turn_limit=4), 1)
    last = chains.to_records(int)[0]["nodes"][-1]
    assert (last["weight_mu"], last["weight_pi"]) == (None, pytest.approx(1 / 5))


def test_a_tree_whose_weights_are_too_much_work_is_recorded_without_them() -> None:
    from igrpo_theory import GrowthRule, PolicyTreeWorld, grow, question_keys, random_policy_tree

    policy = random_policy_tree(np.random.default_rng(1), turns=3, branching=3)
    rule = GrowthRule(budget=300, cap=2, turn_limit=3)
    tree = grow(PolicyTreeWorld(policy), [0], question_keys(0, 0, np.arange(1), ["q"]), rule).tree
    with pytest.raises(ValueError, match="budget times active nodes must be at most"):
        tree.weights("pi")
    assert {node["weight_pi"] for node in tree.to_records(int)[0]["nodes"]} == {None}
