"""rates: a padded policy tree and gamma -> how fast uncapped growth reaches the teacher law.

In: a policy tree whose paths all have the same length. Out: the constants of the limit theorem (covariance, bias) and a
bound that holds at every budget. They are those of multinomial growth with the same budget B at every stage.

With eta_t(h) the law of a particle at depth t before it is weighed, mu_t(h) the teacher's marginal, R_t = mu_t / eta_t
and kappa_t = sum_h mu_t(h) R_t(h), the share of path o among the B leaves has mean mu(o) + beta(o) / B and covariance
Sigma(o, o') / B, to first order.

Letters: S states, K complete paths in the order of `enumerate_paths`, D depth.
Source: Del Moral (2004), Feynman-Kac Formulae, for the limit theorem; the closed forms on a finite tree are ours, see
docs/theory/theorem1.md.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from igrpo_theory.expansion import check_gamma
from igrpo_theory.teacher import teacher_law
from igrpo_theory.worlds import PolicyTree, enumerate_paths


class Flow(NamedTuple):
    """What resampling sees and what the teacher wants, state by state."""

    eta: Float[np.ndarray, " S"]
    """Law of a particle at the state's own depth, before it is weighed; 0 for state 0."""
    weight: Float[np.ndarray, " S"]
    """w / eta_t(w) for w = exp(gamma val), of mean 1 under eta; 0 for the last states, whose values nothing reads."""
    marginal: Float[np.ndarray, " S"]
    """Teacher mass of the paths through the state; 0 for state 0."""
    ratio: Float[np.ndarray, " S"]
    """R = marginal / eta, 0 where eta is."""
    kappa: Float[np.ndarray, " D"]
    """1 + chi2(mu_t || eta_t) at each depth; 1 at the last."""


def particle_flow(policy: PolicyTree, gamma: float) -> Flow:
    """The laws that growing passes through, and their distance from the teacher's marginals.

    Raises:
        ValueError: when a path ends early (see `padded`), or gamma is so large that a path of the teacher is lost.

    Source: IGRPO (arXiv 2607.06223), proof of theorem 1; ratio and kappa are ours.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> flow = particle_flow(random_policy_tree(np.random.default_rng(0), turns=3, branching=2), 1.0)
        >>> bool((flow.kappa > 1 - 1e-12).all()), round(float(flow.kappa[-1]), 12)
        (True, 1.0)
    """
    check_gamma(gamma)
    depth, law = policy.depth, enumerate_paths(policy)
    early = law.end[depth[law.end] < policy.turns]
    if len(early) > 0:
        raise ValueError(
            f"policy must be padded, got a path that ends at depth {depth[early[0]]} of {policy.turns} (state "
            f"{early[0]}): use padded(policy).policy"
        )
    weight = np.zeros(len(depth))
    eta = np.where(depth == 1, policy.probability, 0.0)
    for level in range(1, policy.turns):
        here = (depth == level) & (eta > 0)
        with np.errstate(over="ignore"):  # minus infinity is the right exponent for a huge gamma
            weight[here] = np.exp(gamma * (policy.value[here] - policy.value[here].max()))
        weight[here] /= eta[here] @ weight[here]
        eta += np.where(depth == level + 1, (eta * weight)[policy.parent] * policy.probability, 0.0)
    mu = teacher_law(policy, gamma)
    marginal = np.bincount(law.states.ravel(), weights=np.repeat(mu, policy.turns), minlength=len(eta))
    there = eta >= np.finfo(np.float64).tiny
    if (marginal[~there] > 1e-300).any():
        raise ValueError(f"gamma must leave the teacher's paths a chance of 1e-308 a stage, got {gamma}: lower it")
    ratio = np.divide(marginal, eta, out=np.zeros_like(eta), where=there)
    kappa = np.bincount(depth, weights=marginal * ratio)[1:]
    return Flow(eta, weight, marginal, ratio, kappa)


def clt_covariance(policy: PolicyTree, gamma: float) -> Float[np.ndarray, "K K"]:
    """Sigma(o, o') = mu(o) mu(o') sum_t [ 1{o_t = o'_t} / eta_t(o_t) - R_t(o_t) - R_t(o'_t) + kappa_t ].

    sqrt(B) times the error of the empirical path law tends to a normal law with this covariance.

    Source: Del Moral (2004), section 9.4; closed form ours, see docs/theory/theorem1.md.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> sigma = clt_covariance(random_policy_tree(np.random.default_rng(0), turns=3, branching=2), 1.0)
        >>> bool(np.allclose(sigma.sum(axis=1), 0, atol=1e-12)), bool(np.linalg.eigvalsh(sigma).min() > -1e-12)
        (True, True)
    """
    flow, states = particle_flow(policy, gamma), enumerate_paths(policy).states
    inverse = np.divide(1.0, flow.eta, out=np.zeros_like(flow.eta), where=flow.eta > 0)
    terms = np.zeros((len(states), len(states)))
    for level in range(policy.turns):
        at = states[:, level]
        ratio = flow.ratio[at]
        shared = np.where(at[:, None] == at, inverse[at], 0.0)
        terms += shared - ratio[:, None] - ratio + flow.kappa[level]
    mu = teacher_law(policy, gamma)
    return mu[:, None] * mu * terms


def clt_variance(policy: PolicyTree, gamma: float) -> Float[np.ndarray, " K"]:
    """sigma^2(o), the diagonal of `clt_covariance`, without the matrix.

    Source: ours, see docs/theory/theorem1.md.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> bool(np.allclose(clt_variance(policy, 1.0), np.diag(clt_covariance(policy, 1.0)), atol=1e-15))
        True
    """
    flow, states = particle_flow(policy, gamma), enumerate_paths(policy).states
    mu = teacher_law(policy, gamma)[:, None]
    share = np.divide(mu, flow.eta[states], out=np.zeros(states.shape), where=flow.eta[states] > 0)
    return (mu * share - 2 * mu**2 * flow.ratio[states] + mu**2 * flow.kappa).sum(axis=1)


def bias_rate(policy: PolicyTree, gamma: float) -> Float[np.ndarray, " K"]:
    """beta(o) = mu(o) sum_{t<T} [ kappa_t - R_t(o_t) ]: the limit of B (q_B - mu)(o) for the expected path law q_B.

    Growing with a finite budget under-represents paths whose prefixes the teacher favours.

    Source: ours, see docs/theory/theorem1.md.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> beta = bias_rate(random_policy_tree(np.random.default_rng(0), turns=3, branching=2), 1.0)
        >>> abs(round(float(beta.sum()), 12)), bool(np.abs(beta).max() > 0)
        (0.0, True)
    """
    flow, states = particle_flow(policy, gamma), enumerate_paths(policy).states[:, :-1]
    return teacher_law(policy, gamma) * (flow.kappa[:-1] - flow.ratio[states]).sum(axis=1)


class RateConstants(NamedTuple):
    """How total variation to the teacher falls with the budget."""

    spread: float
    """C_emp: E TV(mu^B, mu) ~ C_emp / sqrt(B) for the empirical law of one tree."""
    iid_spread: float
    """The same for independent draws from mu."""
    bias: float
    """C_bias: TV(q_B, mu) ~ C_bias / B for the expected law."""


def rate_constants(policy: PolicyTree, gamma: float) -> RateConstants:
    """C_emp = (2 pi)^(-1/2) sum_o sigma(o) and C_bias = (1/2) sum_o |beta(o)|.

    Source: ours, see docs/theory/theorem1.md.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> constants = rate_constants(random_policy_tree(np.random.default_rng(0), turns=3, branching=2), 1.0)
        >>> constants.spread > constants.iid_spread > 0, constants.bias > 0
        (True, True)
    """
    sigma = np.sqrt(np.maximum(clt_variance(policy, gamma), 0.0))
    mu = teacher_law(policy, gamma)
    root = np.sqrt(2 * np.pi)
    return RateConstants(
        spread=float(sigma.sum() / root),
        iid_spread=float(np.sqrt(mu * np.maximum(1 - mu, 0.0)).sum() / root),
        bias=float(np.abs(bias_rate(policy, gamma)).sum() / 2),
    )


class BudgetBound(NamedTuple):
    """What holds at one budget, without asymptotics."""

    inflation: Float[np.ndarray, " K"]
    """L(o) = E_o[Zhat] / Z with one particle frozen on o; q_B(o) >= mu(o) / L(o). 1 for paths without teacher mass."""
    total_variation: float
    """At least TV(q_B, mu)."""
    kl: float
    """At least KL(mu || q_B), in nats."""


def finite_budget_bound(policy: PolicyTree, gamma: float, budget: int) -> BudgetBound:
    """TV(q_B, mu) <= sum_o mu(o) (1 - 1/L(o))_+ and KL(mu || q_B) <= sum_o mu(o) log L(o), both of order 1/B.

    q_B(o) = mu(o) E_o[Z / Zhat], where E_o runs the conditional filter with one particle on o; Jensen's inequality
    turns that into L(o), which a linear recursion over the depths gives exactly.

    Raises:
        ValueError: for a budget below 1; as `particle_flow` does for the rest.

    Source: Andrieu, Doucet, Holenstein (2010) for the conditional filter; bound and recursion ours, see
    docs/theory/theorem1.md.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> [round(finite_budget_bound(policy, 1.0, budget).total_variation, 4) for budget in (5, 50, 500)]
        [0.0246, 0.0027, 0.0003]
    """
    if budget < 1:
        raise ValueError(f"budget must be at least 1, got {budget}: the root needs a child")
    flow, law, depth = particle_flow(policy, gamma), enumerate_paths(policy), policy.depth
    rows = np.arange(len(law.end))
    # measure[o, h]: expected weight of a particle at h when one of the budget's particles is frozen on o.
    measure = np.tile((1 - 1 / budget) * np.where(depth == 1, policy.probability, 0.0), (len(rows), 1))
    measure[rows, law.states[:, 0]] += 1 / budget
    for level in range(1, policy.turns):
        weighed = measure * flow.weight
        below = np.where(depth == level + 1, weighed[:, policy.parent] * policy.probability, 0.0)
        measure = (1 - 1 / budget) * below
        measure[rows, law.states[:, level]] += weighed.sum(axis=1) / budget
    mu = teacher_law(policy, gamma)
    inflation = np.where(mu > 0, measure.sum(axis=1), 1.0)  # flow.weight has Z = 1
    return BudgetBound(
        inflation=inflation,
        total_variation=float(mu @ np.maximum(1 - 1 / inflation, 0.0)),
        kl=float(mu @ np.log(inflation)),
    )
