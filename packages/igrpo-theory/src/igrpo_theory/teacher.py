"""teacher: a policy's path law and gamma -> the law that tree growing targets.

In: a finite policy tree. Out: mu(o) proportional to pi(o) exp(gamma V(o)), its normaliser, and what it maximises.
Paths that answer early follow the padding convention: answers and pads have val 0.

Letters: K complete paths, in the order of `enumerate_paths`.
Source: IGRPO (arXiv 2607.06223), theorems 1 and 2.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, rel_entr

from igrpo_theory.expansion import check_gamma
from igrpo_theory.worlds import PathLaw, PolicyTree, enumerate_paths


def log_partition(policy: PolicyTree, gamma: float) -> float:
    """Log Z = log E_pi[exp(gamma V)], in nats; infinite where gamma V overflows.

    Source: IGRPO (arXiv 2607.06223), theorem 1.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> abs(log_partition(policy, 0.0)) < 1e-12
        True
    """
    law = enumerate_paths(policy)
    best = float(law.value[law.probability > 0].max())
    return float(gamma) * best + float(np.log(law.probability @ np.exp(_log_tilt(law, gamma))))


def teacher_law(policy: PolicyTree, gamma: float) -> Float[np.ndarray, " K"]:
    """mu(o) = pi(o) exp(gamma V(o)) / Z, path by path.

    Source: IGRPO (arXiv 2607.06223), theorem 1.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> bool(np.allclose(teacher_law(policy, 0.0), enumerate_paths(policy).probability))
        True
    """
    law = enumerate_paths(policy)
    mass = law.probability * np.exp(_log_tilt(law, gamma))
    return mass / mass.sum()


def _log_tilt(law: PathLaw, gamma: float) -> Float[np.ndarray, " K"]:
    """Gamma (V - the largest possible V), which no gamma makes overflow; minus infinity for impossible paths."""
    check_gamma(gamma)
    possible = law.probability > 0
    with np.errstate(over="ignore"):  # minus infinity is the right exponent for a huge gamma
        return np.where(possible, gamma * np.minimum(law.value - law.value[possible].max(), 0.0), -np.inf)


class Recursion(NamedTuple):
    """The teacher law depth by depth."""

    mu: Float[np.ndarray, " K"]
    """mu(o)."""
    log_partition: float
    """log Z, the sum over the stages."""
    log_stage_means: Float[np.ndarray, " D"]
    """log eta_t(w_t) for t = 1..T-1: the mean weight of the nodes that stage t resamples."""


def teacher_law_by_recursion(policy: PolicyTree, gamma: float) -> Recursion:
    """Mu as the flow of the growing loop: weigh the nodes of a depth, normalise, step to their children.

    Must agree with `teacher_law`; this is the form that the proof of theorem 1 follows.

    Raises:
        ValueError: when gamma V overflows.

    Source: IGRPO (arXiv 2607.06223), proof of theorem 1 (a Feynman-Kac flow).

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> mu = teacher_law(policy, 2.0)
        >>> bool(np.allclose(teacher_law_by_recursion(policy, 2.0).mu, mu, rtol=1e-12))
        True
    """
    check_gamma(gamma)
    if not np.isfinite(gamma * float(np.abs(policy.value).max()) * policy.turns):
        raise ValueError(f"gamma must keep gamma V finite, got {gamma}: use teacher_law, which has the limit")
    depth, ends = policy.depth, policy.ends
    has_children = np.bincount(policy.parent[1:], minlength=len(policy.parent)) > 0
    with np.errstate(divide="ignore"):
        log_probability = np.log(policy.probability)
    # log_mass[s] is log eta_t(s) while s is alive or padded; ended states keep their share through later stages.
    log_mass = np.where(depth == 1, log_probability, -np.inf)
    log_means = []
    for level in range(1, policy.turns):
        weighed = log_mass + np.where((depth == level) & has_children, gamma * policy.value, 0.0)
        log_means.append(float(logsumexp(weighed)))
        weighed = weighed - log_means[-1]
        inherited = np.where(depth == level + 1, weighed[policy.parent] + log_probability, -np.inf)
        log_mass = np.where(has_children & (depth <= level), inherited, np.maximum(weighed, inherited))
    return Recursion(
        mu=np.exp(log_mass[ends]), log_partition=float(sum(log_means)), log_stage_means=np.array(log_means)
    )


def objective(q: Float[np.ndarray, " K"], policy: PolicyTree, gamma: float) -> float:
    """J(q) = E_q[V] - KL(q || pi) / gamma, which the teacher law maximises.

    For every law q on paths that the policy can take, log(Z) / gamma - J(q) = KL(q || mu) / gamma.

    Raises:
        ValueError: for gamma = 0, where the objective is not defined, or a q that is no law.

    Source: IGRPO (arXiv 2607.06223), theorem 2 (the Gibbs variational principle).

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> mu = teacher_law(policy, 2.0)
        >>> bool(np.isclose(objective(mu, policy, 2.0), log_partition(policy, 2.0) / 2.0))
        True
    """
    if not (np.isfinite(gamma) and gamma > 0):
        raise ValueError(f"gamma must be finite and above 0, got {gamma}: the objective divides by it")
    check_law("q", q)
    law = enumerate_paths(policy)
    return float(q @ law.value) - kl_divergence(q, law.probability) / gamma


def reward_derivative(policy: PolicyTree, gamma: float) -> float:
    """d/dgamma E_mu[R] = Cov_mu(R, V): whether a stronger tilt raises the expected reward.

    Source: ours (the derivative of an exponential family's mean).

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> step = (teacher_law(policy, 1.001) - teacher_law(policy, 0.999)) @ enumerate_paths(policy).reward / 0.002
        >>> bool(np.isclose(reward_derivative(policy, 1.0), step, rtol=1e-5))
        True
    """
    law, mu = enumerate_paths(policy), teacher_law(policy, gamma)
    return float(mu @ ((law.reward - mu @ law.reward) * (law.value - mu @ law.value)))


def expected_reward(policy: PolicyTree, gamma: float) -> float:
    """E_mu[R]; at gamma = 0 that of the policy itself.

    Source: IGRPO (arXiv 2607.06223), the teacher's reward.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> round(expected_reward(policy, 0.0), 4), round(expected_reward(policy, 1.0), 4)
        (0.7672, 0.8102)
    """
    return float(teacher_law(policy, gamma) @ enumerate_paths(policy).reward)


def reward_gain(policy: PolicyTree, gamma: float) -> float:
    """E_mu[R] - E_pi[R] = Cov_pi(exp(gamma V), R) / Z: what the teacher earns more than the policy.

    It is positive exactly when the reward and the tilt are positively correlated under the policy, and it equals the
    integral of `reward_derivative` from 0 to gamma.

    Source: ours, see docs/theory/reward.md.

    Example:
        >>> from igrpo_theory.adversaries import misleading_policy_tree
        >>> round(reward_gain(misleading_policy_tree(), 1.0), 4)
        -0.2311
    """
    return float((teacher_law(policy, gamma) - enumerate_paths(policy).probability) @ enumerate_paths(policy).reward)


def greedy_law(policy: PolicyTree) -> Float[np.ndarray, " K"]:
    """The limit of the teacher law for gamma to infinity: the policy on the possible paths of largest V.

    Source: ours, see docs/theory/theorem1.md.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> bool(np.allclose(teacher_law(policy, 1e4), greedy_law(policy), atol=1e-12))
        True
    """
    law = enumerate_paths(policy)
    best = law.value[law.probability > 0].max()
    # Sums of the same values in the same order: ties are equal to the bit, up to rounding of the sum itself.
    tied = np.isclose(law.value, best, rtol=1e-12, atol=1e-12)
    return np.where(tied, law.probability, 0.0) / law.probability[tied].sum()


def merged_law(policy: PolicyTree, gamma: float) -> Float[np.ndarray, " K"]:
    """Where growth goes when equal children are merged into one node: a law that forgets almost everything.

    With a large budget every possible child is present, once. Then pi(h) is gone from the chance of a node, and of all
    tilts only the last stage's is left: (w(h_{T-1}) / sum of w over possible nodes of that depth) * pi(o | h_{T-1}).

    Raises:
        ValueError: when a path ends early (see `padded`).

    Source: ours, see docs/theory/duplicates.md.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=3)
        >>> mu, pi = teacher_law(policy, 1.0), enumerate_paths(policy).probability
        >>> round(total_variation(merged_law(policy, 1.0), mu), 3), round(total_variation(pi, mu), 3)
        (0.365, 0.243)
    """
    check_gamma(gamma)
    depth, law = policy.depth, enumerate_paths(policy)
    if (depth[law.end] < policy.turns).any():
        raise ValueError("policy must be padded, got a path that ends early: use padded(policy).policy")
    if policy.turns == 1:
        return law.probability
    last = law.states[:, -2]
    possible = np.unique(last[law.probability > 0])
    weight = np.zeros(len(depth))
    with np.errstate(over="ignore"):  # minus infinity is the right exponent for a huge gamma
        weight[possible] = np.exp(gamma * (policy.value[possible] - policy.value[possible].max()))
    return weight[last] / weight.sum() * policy.probability[law.end]


def kl_divergence(q: Float[np.ndarray, " K"], p: Float[np.ndarray, " K"]) -> float:
    """KL(q || p) in nats; infinite when q has mass where p has none.

    Raises:
        ValueError: when one of the two is no law.

    Source: textbook.

    Example:
        >>> round(kl_divergence(np.array([1.0, 0.0]), np.array([0.5, 0.5])), 6)
        0.693147
    """
    check_law("q", q)
    check_law("p", p)
    return float(rel_entr(q, p).sum())


def total_variation(q: Float[np.ndarray, " K"], p: Float[np.ndarray, " K"]) -> float:
    """Half the l1 distance of two laws.

    Raises:
        ValueError: when one of the two is no law.

    Source: textbook.

    Example:
        >>> total_variation(np.array([1.0, 0.0]), np.array([0.5, 0.5]))
        0.5
    """
    check_law("q", q)
    check_law("p", p)
    return float(np.abs(q - p).sum() / 2)


def check_law(name: str, law: Float[np.ndarray, " K"]) -> None:
    """Refuse masses that are negative, not finite, or do not sum to 1 within 1e-6.

    Source: ours.

    Example:
        >>> check_law("q", np.array([0.5, 0.4]))
        Traceback (most recent call last):
        ValueError: q must be at least 0 and sum to 1, got a sum of 0.9: divide by it
    """
    if not (law >= 0).all():
        raise ValueError(f"{name} must be at least 0 and sum to 1, got {law[~(law >= 0)][0]}: it is a law of paths")
    if not abs(law.sum() - 1) <= 1e-6:
        raise ValueError(f"{name} must be at least 0 and sum to 1, got a sum of {law.sum():.6g}: divide by it")
