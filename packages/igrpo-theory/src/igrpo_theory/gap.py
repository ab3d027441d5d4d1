"""gap: a policy and how trees are grown -> how far the grown paths are from what theory promises.

In: a finite policy tree and the settings of growth. Out: distances between the law of a complete path, pooled over many
trees, and the teacher law and the limit of these very settings; what the cap leaves of gamma; and how much of a tree is
shared or cut off. Exact sums where they are quick; elsewhere measured on trees of `grow`, with standard errors over
trees.

Letters: R replicates, K complete paths, E stages.
Source: ours, see docs/theory/gap.md.
"""

from typing import Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import brentq
from scipy.special import softmax

from igrpo_theory.expansion import BudgetMode, Scheme
from igrpo_theory.finite import finite_leaves, finite_work
from igrpo_theory.growth import Growth, GrowthRule
from igrpo_theory.limits import mean_field
from igrpo_theory.replicates import grown_laws
from igrpo_theory.teacher import kl_divergence, teacher_law, total_variation
from igrpo_theory.tree import NodeStatus
from igrpo_theory.worlds import PathLaw, PolicyTree, enumerate_paths

Method = Literal["auto", "exact", "sampled"]
"""Exact sums, trees that are grown, or exact sums where they take seconds and trees elsewhere."""
_MOST_WORK = 4_000_000
"""Of exact sums under "auto", in steps of `finite_work`: less than about 5 seconds."""


class Estimate(NamedTuple):
    """A number that was measured."""

    value: float
    error: float
    """Standard error; 0 where the value is exact."""


class Gap(NamedTuple):
    """Growth at a finite budget beside the teacher law and beside its own limit."""

    law: Float[np.ndarray, " K"]
    """Share of each path among the complete paths of all trees."""
    tv_teacher: Estimate
    """Total variation from the teacher law mu."""
    kl_teacher: Estimate
    """KL(law || mu) in nats; over gamma it is what the objective loses."""
    tv_limit: Estimate
    """Total variation from the law at an infinite budget, mu_cap on padded trees."""
    kl_limit: Estimate
    """KL(law || limit) in nats."""
    effective_gamma: Estimate
    """The gamma whose teacher law has the same mean V; NaN where V is constant, infinite where none has."""
    distinct_parents: tuple[Estimate, ...]
    """Nodes of a tree that have children, one number a stage; trees without active nodes count 0."""
    truncated_share: Estimate
    """Truncated leaves among all leaves."""
    num_trees: int
    """Trees that were grown; 0 where all numbers are exact."""


def gap(
    policy: PolicyTree,
    *,
    budget: int = 5,
    cap: int = 2,
    gamma: float = 1.0,
    mode: BudgetMode = "full",
    scheme: Scheme = "capped",
    seed: int = 0,
    replicates: int = 4000,
    method: Method = "auto",
) -> Gap:
    """Measure growth on a policy that can be enumerated. A cap of at least the budget is no cap.

    By default numbers are exact where that takes seconds, and the seed and the replicates play no part; elsewhere trees
    are grown. Then total variation is measured with signs from the other half of the trees, and KL is corrected to
    first order, so that noise does not pass for distance. Distances are a little low rather than high where noise hides
    a sign.

    Raises:
        ValueError: when there are fewer than 10 replicates, or exact sums are asked for where `finite_leaves` has none;
            see also `GrowthRule`.

    Source: ours, see docs/theory/gap.md.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> exact, measured = gap(policy), gap(policy, replicates=2000, method="sampled")
        >>> round(exact.tv_teacher.value, 4), exact.tv_teacher.error, len(exact.distinct_parents)
        (0.0387, 0.0, 2)
        >>> abs(measured.tv_teacher.value - 0.0387) < 7 * measured.tv_teacher.error
        True
    """
    if replicates < 10:
        raise ValueError(f"replicates must be at least 10, got {replicates}: standard errors are taken over trees")
    GrowthRule(budget=budget, cap=cap, gamma=gamma, budget_mode=mode, scheme=scheme)  # refuses what has no meaning
    if sums_exactly(policy, budget=budget, cap=cap, scheme=scheme, method=method):
        return _exact_gap(policy, budget, cap, gamma, mode, scheme)
    grown = grown_laws(
        policy, gamma, replicates=replicates, budget=budget, cap=cap, scheme=scheme, mode=mode, seed=seed
    )
    total = grown.counts.sum()  # a tree has a complete path at least
    paths = enumerate_paths(policy)
    mu = teacher_law(policy, gamma)
    limit = mean_field(policy, gamma, cap if cap < budget else None, mode=mode, scheme=scheme).complete_law
    law = grown.counts.sum(axis=0) / total
    influence = (grown.counts - law * grown.counts.sum(axis=1, keepdims=True)) / (total / replicates)
    return Gap(
        law=law,
        tv_teacher=_total_variation(grown.counts, influence, mu),
        kl_teacher=_divergence(law, influence, mu),
        tv_limit=_total_variation(grown.counts, influence, limit),
        kl_limit=_divergence(law, influence, limit),
        effective_gamma=_effective_gamma(paths, law, influence),
        distinct_parents=_distinct_parents(grown.growth),
        truncated_share=_truncated_share(grown.growth),
        num_trees=replicates,
    )


def sums_exactly(policy: PolicyTree, *, budget: int, cap: int, scheme: Scheme, method: Method) -> bool:
    """Whether `gap` sums exactly at these settings, instead of growing trees.

    Raises:
        ValueError: for an unknown method.

    Source: ours, see docs/theory/gap.md.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> [sums_exactly(policy, budget=budget, cap=2, scheme="capped", method="auto") for budget in (5, 500)]
        [True, False]
    """
    check_method(method)
    if method != "auto":
        return method == "exact"
    return scheme in ("capped", "calibrated") and finite_work(policy, budget, cap) <= _MOST_WORK


def check_method(method: str) -> None:
    """Refuse an unknown method.

    Raises:
        ValueError: for a method that is none of `Method`.

    Source: ours.

    Example:
        >>> check_method("guess")
        Traceback (most recent call last):
        ValueError: method must be one of auto, exact, sampled, got guess: choose one of them
    """
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {', '.join(get_args(Method))}, got {method}: choose one of them")


def _exact_gap(policy: PolicyTree, budget: int, cap: int, gamma: float, mode: BudgetMode, scheme: Scheme) -> Gap:
    leaves = finite_leaves(policy, gamma, budget, cap, mode=mode, scheme=scheme)
    law, mu = leaves.complete_law, teacher_law(policy, gamma)
    limit = mean_field(policy, gamma, cap if cap < budget else None, mode=mode, scheme=scheme).complete_law
    no_noise = np.zeros((2, len(law)))
    parents = np.bincount(policy.depth, weights=leaves.parents)[1 : policy.turns]
    return Gap(
        law=law,
        tv_teacher=Estimate(total_variation(law, mu), 0.0),
        kl_teacher=_divergence(law, no_noise, mu),
        tv_limit=Estimate(total_variation(law, limit), 0.0),
        kl_limit=_divergence(law, no_noise, limit),
        effective_gamma=_effective_gamma(enumerate_paths(policy), law, no_noise),
        distinct_parents=tuple(Estimate(number, 0.0) for number in parents.tolist()),
        truncated_share=Estimate(leaves.truncated_share, 0.0),
        num_trees=0,
    )


def _mean(samples: Float[np.ndarray, " R"]) -> Estimate:
    return Estimate(float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(len(samples))))


def _total_variation(
    counts: Int[np.ndarray, "R K"], influence: Float[np.ndarray, "R K"], target: Float[np.ndarray, " K"]
) -> Estimate:
    """Half the sum of sign * (law - target), each half of the trees with the signs of the other."""
    halves = [counts[start::2].sum(axis=0) for start in (0, 1)]
    laws = [half / max(half.sum(), 1) for half in halves]
    signs = [np.sign(law - target) for law in reversed(laws)]
    value = np.mean([sign @ (law - target) / 2 for sign, law in zip(signs, laws, strict=True)])
    moved = np.empty(len(counts))
    for start, sign in enumerate(signs):
        moved[start::2] = influence[start::2] @ sign / 2
    return Estimate(float(value), _mean(moved).error)


def _divergence(
    law: Float[np.ndarray, " K"], influence: Float[np.ndarray, "R K"], target: Float[np.ndarray, " K"]
) -> Estimate:
    """KL(law || target), less the half trace that noise adds to it; infinite where the target underflows to 0."""
    seen = law > 0
    if (target[seen] == 0).any():
        return Estimate(np.inf, np.nan)
    seen_influence = influence[:, seen]
    scaled = seen_influence / np.sqrt(law[seen])
    noise = scaled.T @ scaled / len(influence) ** 2
    first = _mean(seen_influence @ np.log(law[seen] / target[seen])).error
    # Near the target the slope vanishes and the square of the noise is what is left of the error.
    error = np.sqrt(first**2 + (noise**2).sum() / 2)
    return Estimate(kl_divergence(law, target) - float(np.trace(noise)) / 2, float(error))


def _effective_gamma(paths: PathLaw, law: Float[np.ndarray, " K"], influence: Float[np.ndarray, "R K"]) -> Estimate:
    possible = paths.probability > 0
    log_pi, value = np.log(paths.probability[possible]), paths.value[possible]
    spread = np.ptp(value)
    if spread < 1e-12:
        return Estimate(np.nan, np.nan)
    wanted = float(law[possible] @ value)

    def excess(gamma: float) -> float:
        return float(softmax(log_pi + gamma * value) @ value) - wanted

    steepest = 1e4 / spread
    if not excess(-steepest) < 0 < excess(steepest):
        return Estimate(np.inf if excess(steepest) <= 0 else -np.inf, np.nan)
    gamma = float(brentq(excess, -steepest, steepest))
    tilted = softmax(log_pi + gamma * value)
    variance = tilted @ (value - tilted @ value) ** 2
    if variance == 0:
        return Estimate(gamma, np.nan)
    return Estimate(gamma, _mean(influence[:, possible] @ value).error / float(variance))


def _distinct_parents(growth: Growth[int]) -> tuple[Estimate, ...]:
    num_trees = growth.tree.num_questions
    parents = [growth.tree.question[stage.nodes[stage.counts > 0]] for stage in growth.stages]
    return tuple(_mean(np.bincount(question, minlength=num_trees).astype(np.float64)) for question in parents)


def _truncated_share(growth: Growth[int]) -> Estimate:
    tree = growth.tree
    leaves = tree.leaves()
    cut = leaves[tree.status[leaves] == NodeStatus.TRUNCATED]
    num_leaves = np.bincount(tree.question[leaves], minlength=tree.num_questions)
    num_cut = np.bincount(tree.question[cut], minlength=tree.num_questions)
    share = num_cut.sum() / num_leaves.sum()
    return Estimate(float(share), _mean((num_cut - share * num_leaves) / num_leaves.mean()).error)
