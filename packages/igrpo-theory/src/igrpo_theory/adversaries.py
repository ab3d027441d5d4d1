"""adversaries: -> policy trees on which careless samplers and careless proofs fail.

In: nothing, or the name of a world. Out: small policy trees, the same ones every time.
Each aims at one mistake: dividing by a mass of zero, a tie, an overflow, a value read where none should be, or the
belief that a stronger tilt earns more.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from igrpo_theory.tree import RolloutTree
from igrpo_theory.worlds import PolicyTree, PolicyTreeWorld, random_policy_tree, states_of


def adversarial_policy_tree(name: str) -> PolicyTree:
    """One hard world; the names are `ADVERSARIES`.

    Raises:
        ValueError: for a name that is none.

    Source: ours.

    Example:
        >>> adversarial_policy_tree("equal values").value.tolist() == [0.5] * 15
        True
    """
    if name not in _MAKERS:
        raise ValueError(f"name must be one of {', '.join(ADVERSARIES)}, got {name}: choose one of them")
    return _MAKERS[name]()


def misleading_policy_tree(strength: float = 1.0) -> PolicyTree:
    """A world where a larger gamma earns less: the value points to the turn that is never rewarded.

    One of two first turns has value `strength` and reward 0 below it, the other value 0 and reward 1. E_mu[R] is
    1 / (1 + exp(gamma * strength)), falling from 1/2 to 0.

    Source: ours.

    Example:
        >>> from igrpo_theory.teacher import expected_reward
        >>> [round(expected_reward(misleading_policy_tree(), gamma), 3) for gamma in (0.0, 1.0, 5.0)]
        [0.5, 0.269, 0.007]
    """
    return PolicyTree(
        parent=np.array([-1, 0, 0, 1, 2]),
        probability=np.array([1.0, 0.5, 0.5, 1.0, 1.0]),
        value=np.array([0.0, strength, 0.0, 0.0, 0.0]),
        answer=np.zeros(5, dtype=bool),
        reward=np.array([0.0, 0.0, 0.0, 0.0, 1.0]),
    )


class MergingWorld(PolicyTreeWorld):
    """A wrong world: equal turns of a question count as one node, by a score that keeps all but one out of the draw.

    Grow it to see why a node must be a draw: the limit is `merged_law` instead of the teacher law.

    Source: ours, see docs/theory/duplicates.md.

    Example:
        >>> tree = RolloutTree.plant([0])
        >>> twins = tree.append(np.array([0, 0]), [2, 2], np.array([False, False]), turn_limit=2)
        >>> MergingWorld(misleading_policy_tree()).score(tree, twins).tolist()
        [0.0, -1000000.0]
    """

    def score(self, tree: RolloutTree[int], nodes: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Val of the first node in each state and question; far below every val for the others."""
        # Over the whole depth, since growth may ask for its nodes in blocks.
        depth = np.flatnonzero(tree.depth == tree.depth[nodes[0]])
        same = tree.question[depth].astype(np.int64) * len(self.policy.parent) + states_of(tree)[depth]
        first = np.isin(nodes, depth[np.unique(same, return_index=True)[1]])
        return np.where(first, super().score(tree, nodes), -1e6)


def _base(turns: int = 3, branching: int = 2) -> PolicyTree:
    return random_policy_tree(np.random.default_rng(11), turns=turns, branching=branching)


def _equal_values() -> PolicyTree:
    policy = _base()
    return replace(policy, value=np.full(len(policy.parent), 0.5))


def _dominating_node() -> PolicyTree:
    """One rare first turn outweighs all others by exp(12), so that resampling keeps its descendants only."""
    policy = _base(branching=3)
    probability, value = policy.probability.copy(), policy.value.copy()
    probability[1:4] = [0.02, 0.49, 0.49]
    value[1] = 12.0
    return replace(policy, probability=probability, value=value)


def _huge_values() -> PolicyTree:
    """exp(value) overflows and differences do not: only a softmax that subtracts the maximum survives."""
    policy = _base()
    return replace(policy, value=policy.value + 2000.0)


def _impossible_branches() -> PolicyTree:
    """The first child of every state has probability 0 and the best value of all."""
    policy = _base(branching=3)
    probability, value = policy.probability.copy(), policy.value.copy()
    first = np.searchsorted(policy.parent[1:], np.unique(policy.parent[1:])) + 1
    probability[first] = 0.0
    value[first] = 5.0
    sums = np.bincount(policy.parent[1:], weights=probability[1:])
    probability[1:] /= sums[policy.parent[1:]]
    return replace(policy, probability=probability, value=value)


def _last_values() -> PolicyTree:
    """Values of the last states, which no draw may read, are far larger than all others."""
    policy = _base()
    return replace(policy, value=np.where(policy.depth == policy.turns, 40.0 * policy.reward, policy.value))


def _early_answers() -> PolicyTree:
    return random_policy_tree(np.random.default_rng(11), turns=4, branching=2, answer_rate=0.4)


def _all_answer() -> PolicyTree:
    """Every first turn answers, although the turn limit would allow more."""
    policy = _base(turns=1, branching=4)
    return replace(policy, answer=np.array([False, True, True, True, True]))


_MAKERS: dict[str, Callable[[], PolicyTree]] = {
    "equal values": _equal_values,
    "dominating node": _dominating_node,
    "huge values": _huge_values,
    "impossible branches": _impossible_branches,
    "last values": _last_values,
    "one turn": lambda: _base(turns=1, branching=4),
    "no choice": lambda: _base(turns=4, branching=1),
    "early answers": _early_answers,
    "all answer": _all_answer,
    "misleading": misleading_policy_tree,
}
ADVERSARIES: tuple[str, ...] = tuple(_MAKERS)
"""Names of the hard worlds."""
