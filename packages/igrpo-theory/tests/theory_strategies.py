"""Hypothesis strategies: policy trees of every shape that the theory must hold on."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from igrpo_theory import ADVERSARIES, PolicyTree, adversarial_policy_tree, padded, random_policy_tree


@st.composite
def random_policies(
    draw: st.DrawFn, *, max_turns: int = 4, max_branching: int = 3, answer_rates: tuple[float, ...] = (0.0, 0.3)
) -> PolicyTree:
    """Random trees; some with impossible branches, tied values or values far apart."""
    policy = random_policy_tree(
        np.random.default_rng(draw(st.integers(0, 10**6))),
        turns=draw(st.integers(1, max_turns)),
        branching=draw(st.integers(1, max_branching)),
        answer_rate=draw(st.sampled_from(answer_rates)),
        value_range=draw(st.sampled_from([1.0, 0.01, 5.0])),
    )
    twist = draw(st.sampled_from(["none", "impossible", "ties"]))
    if twist == "impossible":
        return _without_small_branches(policy)
    return replace(policy, value=policy.value.round(0)) if twist == "ties" else policy


def _without_small_branches(policy: PolicyTree) -> PolicyTree:
    """Every branch below half the mean probability of its siblings becomes impossible."""
    above = policy.parent[1:]
    siblings = np.bincount(above)[above]
    kept = np.where(policy.probability[1:] * siblings < 0.5, 0.0, policy.probability[1:])
    return replace(policy, probability=np.append(1.0, kept / np.bincount(above, weights=kept)[above]))


def policies(**limits: int) -> st.SearchStrategy[PolicyTree]:
    """Random trees and the adversarial worlds."""
    return st.one_of(random_policies(**limits), st.sampled_from(ADVERSARIES).map(adversarial_policy_tree))


def padded_policies(**limits: int) -> st.SearchStrategy[PolicyTree]:
    """The same, with pads after early answers."""
    return policies(**limits).map(lambda policy: padded(policy).policy)


def path_laws(policy: PolicyTree, *, sparse: bool = False) -> st.SearchStrategy[np.ndarray]:
    """Laws on the paths that the policy can take; sparse ones leave some out."""

    def law(seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        possible = _possible(policy)
        mass = rng.exponential(size=len(possible)) * possible
        if sparse:
            keep = rng.random(len(mass)) < 0.5
            keep[rng.choice(np.flatnonzero(possible))] = True
            mass *= keep
        return mass / mass.sum()

    return st.integers(0, 10**6).map(law)


def _possible(policy: PolicyTree) -> np.ndarray:
    reach = policy.probability.copy()
    for state in range(1, len(reach)):
        reach[state] *= reach[policy.parent[state]]
    return reach[policy.ends] > 0
