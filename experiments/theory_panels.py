"""theory_panels: small policy trees -> the curves of the figures of docs/theory.

Curves are exact laws, but for what theorem 1, schemes, duplicates, weights and gap measure on grown trees, whose seeds
are fixed. Error bars are two standard errors over trees.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from igrpo_theory import (
    MergingWorld,
    NodeStatus,
    PolicyTree,
    RolloutTree,
    Scheme,
    Target,
    adversarial_policy_tree,
    capped_reward_gain,
    capped_teacher_law,
    elasticity,
    enumerate_paths,
    expected_reward,
    finite_elasticity,
    finite_law,
    finite_leaves,
    gap,
    greedy_law,
    grown_laws,
    kl_divergence,
    mean_field,
    merged_law,
    misleading_policy_tree,
    objective,
    random_policy_tree,
    rate_constants,
    states_of,
    teacher_law,
    total_variation,
)
from igrpo_theory.expansion import BudgetMode

GAMMA = 1.0
REPLICATES = 200
"""Trees a point, where trees are grown."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line, or points without a line."""

    label: str
    x: list[float]
    y: list[float]
    style: str = "o-"
    error: list[float] | None = None
    """Half the length of each point's bar."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    logarithmic: bool = False
    ticks: list[str] | None = None
    """Names of the places 0, 1, ... where x is no number."""


def theorem1() -> list[Panel]:
    """Distance of uncapped growth from the teacher by budget: of one tree, and of the expected law."""
    policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
    mu, constants = teacher_law(policy, GAMMA), rate_constants(policy, GAMMA)
    budgets, small = [2, 5, 10, 30, 100, 300, 1000], [2, 3, 4, 5, 6, 8, 10]
    measured = [
        float(np.abs(grown_laws(policy, GAMMA, replicates=REPLICATES, budget=budget).laws - mu).sum(axis=1).mean() / 2)
        for budget in budgets
    ]
    exact = [total_variation(finite_law(policy, GAMMA, budget, budget), mu) for budget in small]
    line = np.geomspace(2, 1000, 20)
    curves = [
        Curve(label=f"one tree, mean of {REPLICATES}", x=[*map(float, budgets)], y=measured, style="o"),
        Curve(label="rate C_emp / sqrt(B)", x=line.tolist(), y=(constants.spread / np.sqrt(line)).tolist(), style="-"),
        Curve(label="expected law, exact", x=[*map(float, small)], y=exact, style="s"),
        Curve(label="rate C_bias / B", x=line.tolist(), y=(constants.bias / line).tolist(), style="--"),
    ]
    return [
        Panel(
            title="Theorem 1: 3 turns of 2, gamma 1, no cap",
            x_label="budget B",
            y_label="TV to the teacher",
            curves=curves,
            logarithmic=True,
        )
    ]


def cap() -> list[Panel]:
    """Distance of the capped limit from the teacher by cap, and the share of gamma that a cap leaves."""
    caps = [1, 2, 3, 4, 5]
    policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
    distances = [
        Curve(
            label=f"gamma {gamma:g}",
            x=[*map(float, caps)],
            y=[total_variation(capped_teacher_law(policy, gamma, c), teacher_law(policy, gamma)) for c in caps],
        )
        for gamma in (0.5, 1.0, 2.0)
    ]
    shares = [Curve(label="large budget, b = 1", x=[*map(float, caps)], y=[elasticity(1.0, c) for c in caps])]
    shares += [
        Curve(label=f"B = 5, {nodes} nodes", x=[*map(float, caps)], y=[finite_elasticity(nodes, 5, c) for c in caps])
        for nodes in (5, 4, 3)
    ]
    return [
        Panel(title="Limit under a cap: 3 turns of 2", x_label="cap c", y_label="TV(mu_cap, mu)", curves=distances),
        Panel(title="What is left of gamma", x_label="cap c", y_label="effective gamma / gamma", curves=shares),
    ]


def finite() -> list[Panel]:
    """Exact distance of the expected law from the teacher by budget, with a cap and without."""
    policy, budgets = random_policy_tree(np.random.default_rng(0), turns=3, branching=2), [2, 3, 4, 5, 6, 7, 8]
    mu = teacher_law(policy, GAMMA)
    curves = [
        Curve(
            label=f"cap {cap}" if cap else "no cap",
            x=[*map(float, budgets)],
            y=[total_variation(finite_law(policy, GAMMA, budget, cap or budget), mu) for budget in budgets],
        )
        for cap in (2, 3, None)
    ]
    limit = total_variation(capped_teacher_law(policy, GAMMA, 2), mu)
    curves.append(Curve(label="cap 2, infinite budget", x=[2.0, 8.0], y=[limit, limit], style="--"))
    return [Panel(title="Exact law: 3 turns of 2, gamma 1", x_label="budget B", y_label="TV(q_B, mu)", curves=curves)]


def reward() -> list[Panel]:
    """Expected reward by gamma, of the teacher and under a cap of 2."""
    trees = {
        "A misleading value": misleading_policy_tree(),
        "Random rewards: 3 turns of 2, seed 1310": random_policy_tree(
            np.random.default_rng(1310), turns=3, branching=2
        ),
    }
    gammas = np.linspace(0, 5, 26).tolist()
    panels = []
    for title, policy in trees.items():
        start = expected_reward(policy, 0.0)
        teacher = [expected_reward(policy, gamma) for gamma in gammas]
        capped = [start + capped_reward_gain(policy, gamma, 2) for gamma in gammas]
        curves = [
            Curve(label="teacher", x=gammas, y=teacher, style="-"),
            Curve(label="limit under cap 2", x=gammas, y=capped, style="--"),
        ]
        panels.append(Panel(title=title, x_label="gamma", y_label="expected reward", curves=curves))
    return panels


def theorem2() -> list[Panel]:
    """The objective's shortfall against the divergence, and the teacher between the policy and the best paths."""
    policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
    mu, pi = teacher_law(policy, GAMMA), enumerate_paths(policy).probability
    laws = mu * np.exp(0.7 * np.random.default_rng(0).normal(size=(40, len(mu))))
    laws /= laws.sum(axis=1, keepdims=True)
    named = {"policy": pi, "limit under cap 2": capped_teacher_law(policy, GAMMA, 2), "teacher": mu}
    best = objective(mu, policy, GAMMA)
    largest = max(kl_divergence(law, mu) for law in laws)
    shortfall = [
        Curve(label="maximum - KL / gamma", x=[0.0, largest], y=[best, best - largest / GAMMA], style="-"),
        Curve(
            label="random laws",
            x=[kl_divergence(law, mu) for law in laws],
            y=[objective(law, policy, GAMMA) for law in laws],
            style=".",
        ),
        *(
            Curve(label=name, x=[kl_divergence(law, mu)], y=[objective(law, policy, GAMMA)], style=style)
            for (name, law), style in zip(named.items(), ("s", "^", "o"), strict=True)
        ),
    ]
    gammas = np.geomspace(0.01, 20, 31).tolist()
    ends = {"policy": pi, "best paths": greedy_law(policy)}
    limits = [
        Curve(
            label=f"TV to the {name}",
            x=gammas,
            y=[total_variation(teacher_law(policy, gamma), law) for gamma in gammas],
            style=style,
        )
        for (name, law), style in zip(ends.items(), ("-", "--"), strict=True)
    ]
    return [
        Panel(title="Theorem 2: J(q), gamma 1", x_label="KL(q, mu), nats", y_label="J(q)", curves=shortfall),
        Panel(title="The teacher's limits", x_label="gamma", y_label="TV", curves=limits, logarithmic=True),
    ]


def answers() -> list[Panel]:
    """Lengths of complete paths at budget 5 by budget mode beside the teacher's, and what is cut off."""
    policy = adversarial_policy_tree("early answers")
    length = (enumerate_paths(policy).states >= 0).sum(axis=1)
    lengths = [float(number) for number in range(1, policy.turns + 1)]

    def by_length(law: np.ndarray) -> list[float]:
        return np.bincount(length, weights=law, minlength=policy.turns + 1)[1:].tolist()

    modes: tuple[BudgetMode, ...] = ("full", "mid", "low")
    leaves = {mode: finite_leaves(policy, GAMMA, 5, 2, mode=mode) for mode in modes}
    curves = [Curve(label="teacher", x=lengths, y=by_length(teacher_law(policy, GAMMA)), style="ks-")]
    curves += [Curve(label=mode, x=lengths, y=by_length(leaves[mode].complete_law)) for mode in modes]
    mu, places = teacher_law(policy, GAMMA), [0.0, 1.0, 2.0]
    costs = [
        Curve(label="TV(complete, mu)", x=places, y=[total_variation(leaves[m].complete_law, mu) for m in modes]),
        Curve(label="truncated share", x=places, y=[leaves[m].truncated_share for m in modes], style="s--"),
    ]
    return [
        Panel(
            title="Early answers: B = 5, cap 2, gamma 1",
            x_label="turns",
            y_label="share of complete paths",
            curves=curves,
        ),
        Panel(title="By budget mode", x_label="budget mode", y_label="TV, share", curves=costs, ticks=list(modes)),
    ]


def schemes() -> list[Panel]:
    """Bias and spread of the schemes by budget: distance of the pooled law, and mean distance of one tree."""
    policy = random_policy_tree(np.random.default_rng(0), turns=4, branching=2)
    mu, budgets = teacher_law(policy, GAMMA), [5, 10, 20, 40, 80]
    names: dict[str, tuple[Scheme, int | None]] = {
        "multinomial": ("capped", None),
        "cap 2": ("capped", 2),
        "calibrated, cap 2": ("calibrated", 2),
        "residual": ("residual", None),
        "stratified": ("stratified", None),
        "systematic": ("systematic", None),
    }
    bias, spread = [], []
    for name, (scheme, cap_) in names.items():
        pooled, single = [], []
        for budget in budgets:
            measured = gap(policy, budget=budget, cap=cap_ or budget, scheme=scheme, replicates=4000, method="sampled")
            pooled.append(measured.tv_teacher)
            grown = grown_laws(policy, GAMMA, replicates=1000, budget=budget, cap=cap_, scheme=scheme).laws
            single.append(float(np.abs(grown - mu).sum(axis=1).mean() / 2))
        x = [*map(float, budgets)]
        errors = [2 * estimate.error for estimate in pooled]
        bias.append(Curve(label=name, x=x, y=[estimate.value for estimate in pooled], error=errors))
        spread.append(Curve(label=name, x=x, y=single))
    return [
        Panel(title="Bias: 4 turns of 2, gamma 1", x_label="budget B", y_label="TV(q_B, mu)", curves=bias),
        Panel(title="Spread", x_label="budget B", y_label="mean TV(one tree, mu)", curves=spread),
    ]


def duplicates() -> list[Panel]:
    """Distance of growth from the teacher by budget, keeping equal children and merging them."""
    policy, budgets = random_policy_tree(np.random.default_rng(0), turns=3, branching=3), [5, 20, 100, 500, 2000]
    mu, x = teacher_law(policy, GAMMA), [*map(float, [5, 20, 100, 500, 2000])]
    curves = []
    for name, world in (("equal draws kept", None), ("equal draws merged", MergingWorld(policy))):
        laws = [grown_laws(policy, GAMMA, replicates=100, budget=budget, world=world).laws for budget in budgets]
        curves.append(Curve(label=name, x=x, y=[float(np.abs(law - mu).sum(axis=1).mean() / 2) for law in laws]))
    flat = {
        "limit of merging": total_variation(merged_law(policy, GAMMA), mu),
        "policy": total_variation(enumerate_paths(policy).probability, mu),
    }
    curves += [
        Curve(label=name, x=[5.0, 2000.0], y=[height, height], style=style)
        for (name, height), style in zip(flat.items(), ("--", ":"), strict=True)
    ]
    return [
        Panel(
            title="Duplicates: 3 turns of 3, gamma 1",
            x_label="budget B",
            y_label="mean TV(one tree, mu)",
            curves=curves,
            logarithmic=True,
        )
    ]


def weights() -> list[Panel]:
    """Estimates of E V from trees of B = 5 and cap 2 with early answers: all leaves alike, and weighted."""
    policy = random_policy_tree(np.random.default_rng(11), turns=4, branching=3, answer_rate=0.35)
    law, gammas = enumerate_paths(policy), [0.0, 0.5, 1.0, 1.5, 2.0]
    panels = []
    targets: tuple[Target, ...] = ("mu", "pi")
    for target in targets:
        equal, weighted = [], []
        for gamma in gammas:
            tree = grown_laws(policy, gamma, replicates=4000, budget=5, cap=2).growth.tree
            complete = (tree.status != NodeStatus.TRUNCATED).astype(np.float64)
            equal.append(_mean_value(tree, policy, complete))
            weighted.append(_mean_value(tree, policy, tree.weights(target)))
        exact = [float((teacher_law(policy, gamma if target == "mu" else 0.0)) @ law.value) for gamma in gammas]
        curves = [
            Curve(label="exact", x=gammas, y=exact, style="k-"),
            Curve(label="weighted", x=gammas, y=[v for v, _ in weighted], error=[e for _, e in weighted], style="o"),
            Curve(label="all alike", x=gammas, y=[v for v, _ in equal], error=[e for _, e in equal], style="s"),
        ]
        title = f"E V under {target}, from 4000 trees"
        panels.append(Panel(title=title, x_label="gamma", y_label="mean V", curves=curves))
    return panels


def _mean_value(tree: RolloutTree[int], policy: PolicyTree, weight: np.ndarray) -> tuple[float, float]:
    """Weighted mean of V over the leaves of all trees, with two standard errors of that ratio."""
    law, leaf = enumerate_paths(policy), tree.leaves()
    leaf = leaf[tree.status[leaf] != NodeStatus.TRUNCATED]
    value = law.value[np.searchsorted(law.end, states_of(tree)[leaf])]
    sums, sizes = (
        np.bincount(tree.question[leaf], weights=terms, minlength=tree.num_questions)
        for terms in (weight[leaf] * value, weight[leaf])
    )
    mean = sums.sum() / sizes.sum()
    residual = (sums - mean * sizes) / sizes.mean()
    return float(mean), float(2 * residual.std(ddof=1) / np.sqrt(len(residual)))


def gaps() -> list[Panel]:
    """What the command measures beside what it sums exactly, by cap; and the laws of paths side by side."""
    policy, caps = random_policy_tree(np.random.default_rng(0), turns=3, branching=2), [1, 2, 3, 4, 5]
    exact = [gap(policy, cap=c) for c in caps]
    measured = [gap(policy, cap=c, replicates=2000, method="sampled") for c in caps]
    x = [*map(float, caps)]
    distances = []
    for label, field in (("teacher", "tv_teacher"), ("limit", "tv_limit")):
        sampled = [getattr(one, field) for one in measured]
        sums = [getattr(one, field).value for one in exact]
        bars = [2 * estimate.error for estimate in sampled]
        distances.append(Curve(label=f"to the {label}, exact", x=x, y=sums, style="-"))
        distances.append(
            Curve(label=f"to the {label}, 2000 trees", x=x, y=[one.value for one in sampled], error=bars, style="o")
        )
    mu, paths = teacher_law(policy, GAMMA), [float(path) for path in range(len(policy.ends))]
    laws = {
        "teacher": mu,
        "grown, B = 5, cap 2": exact[1].law,
        "limit under cap 2": mean_field(policy, GAMMA, 2).complete_law,
        "policy": enumerate_paths(policy).probability,
    }
    order = np.argsort(-mu)
    curves = [
        Curve(label=name, x=paths, y=law[order].tolist(), style=style)
        for (name, law), style in zip(laws.items(), ("ko", "s", "^", "x"), strict=True)
    ]
    return [
        Panel(title="Gap at B = 5: 3 turns of 2, gamma 1", x_label="cap c", y_label="TV", curves=distances),
        Panel(title="Laws of paths", x_label="path, by teacher", y_label="share", curves=curves),
    ]


FIGURES: dict[str, Callable[[], list[Panel]]] = {
    "theorem1": theorem1,
    "theorem2": theorem2,
    "reward": reward,
    "cap": cap,
    "answers": answers,
    "finite": finite,
    "schemes": schemes,
    "duplicates": duplicates,
    "weights": weights,
    "gap": gaps,
}
"""By the name of the page."""
