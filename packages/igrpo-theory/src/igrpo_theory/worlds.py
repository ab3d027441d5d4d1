"""worlds: synthetic policies that can be enumerated.

In: a random generator, or a table of states (`policy_files` reads one). Out: a finite policy tree, its
world for `grow`, and its path law.

Letters: S states (state 0 is the question itself), W most children of a state, K complete paths, D depth.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from igrpo_theory.growth import Proposal
from igrpo_theory.randomness import random_bits
from igrpo_theory.tree import RolloutTree

LARGEST_NUMBER = 1e100
"""Of values and rewards: sums and squares of larger ones would leave the range of floats."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PolicyTree:
    """A policy over finitely many turns: states in breadth-first order, state 0 the question.

    A state without children ends a path: an answer, or the last turn.

    Source: ours.

    Example:
        >>> policy = PolicyTree(
        ...     parent=np.array([-1, 0, 0]),
        ...     probability=np.array([1.0, 0.3, 0.7]),
        ...     value=np.array([0.0, 0.5, -0.5]),
        ...     answer=np.array([False, True, False]),
        ...     reward=np.zeros(3),
        ... )
        >>> policy.turns, policy.ends.tolist()
        (1, [1, 2])
    """

    parent: Int[np.ndarray, " S"]
    """The state above, -1 for state 0; never decreasing."""
    probability: Float[np.ndarray, " S"]
    """pi(state | parent)."""
    value: Float[np.ndarray, " S"]
    """val(state)."""
    answer: Bool[np.ndarray, " S"]
    """Whether the agent answers here."""
    reward: Float[np.ndarray, " S"]
    """Reward of a path that ends here."""

    def __post_init__(self) -> None:
        _check_shape(self)
        above = self.parent[1:]
        num_states = len(self.parent)
        answered = above[self.answer[above]]
        if len(answered) > 0:
            raise ValueError(f"answer must end a path, got children below answer state {answered[0]}: remove them")
        negative = np.flatnonzero(~(self.probability >= 0))
        if len(negative) > 0:
            state = negative[0]
            raise ValueError(
                f"probability must be at least 0, got {self.probability[state]} for state {state}: correct the policy"
            )
        for name, numbers in (("value", self.value), ("reward", self.reward)):
            bad = np.flatnonzero(~(np.abs(numbers) <= LARGEST_NUMBER))
            if len(bad) > 0:
                raise ValueError(
                    f"{name} must be finite and of size 1e100 at most, got {numbers[bad[0]]} for state {bad[0]}: a "
                    "path adds up what it meets; scale values down and gamma up"
                )
        sums = np.bincount(above, weights=self.probability[1:], minlength=num_states)
        wrong = np.intersect1d(np.flatnonzero(np.abs(sums - 1) > 1e-9), above)
        if len(wrong) > 0:
            raise ValueError(
                f"probability must sum to 1 below each state, got {sums[wrong[0]]} below state {wrong[0]}: "
                "divide by the sum"
            )

    @property
    def depth(self) -> Int[np.ndarray, " S"]:
        """Turns from the question."""
        depth = np.zeros(len(self.parent), dtype=np.int64)
        above = self.parent.copy()
        while (above >= 0).any():
            depth[above >= 0] += 1
            above = np.where(above >= 0, self.parent[above], -1)
        return depth

    @property
    def turns(self) -> int:
        """T, the depth of the deepest state."""
        return int(self.depth.max())

    @property
    def ends(self) -> Int[np.ndarray, " K"]:
        """States without children, in order: each ends one complete path."""
        return np.flatnonzero(np.bincount(self.parent[1:], minlength=len(self.parent)) == 0)


def _check_shape(policy: PolicyTree) -> None:
    """The parent array is a tree of at least one turn, and every field has one entry a state."""
    num_states = len(policy.parent)
    for name in ("probability", "value", "answer", "reward"):
        if len(getattr(policy, name)) != num_states:
            raise ValueError(
                f"{name} must have one entry a state, got {len(getattr(policy, name))} for {num_states} states: "
                "state 0 is the question and needs one too"
            )
    if num_states < 2:
        raise ValueError(f"parent must hold at least one turn, got {num_states} states: add a child to state 0")
    roots = int((policy.parent < 0).sum())
    if policy.parent[0] != -1 or roots != 1:
        raise ValueError(f"parent must be -1 for state 0 and for no other, got {policy.parent}: one question a tree")
    if (np.diff(policy.parent) < 0).any() or (policy.parent >= np.arange(num_states)).any():
        raise ValueError(f"parent must list states breadth first, got {policy.parent}: sort the states by parent")


class PathLaw(NamedTuple):
    """All complete paths of a policy tree, in the order of `PolicyTree.ends`."""

    end: Int[np.ndarray, " K"]
    """The last state."""
    states: Int[np.ndarray, "K D"]
    """States from depth 1 to the end, -1 padded."""
    probability: Float[np.ndarray, " K"]
    """pi(o)."""
    value: Float[np.ndarray, " K"]
    """V(o), the sum of val over all states of the path but the last."""
    reward: Float[np.ndarray, " K"]
    """R(o)."""


def enumerate_paths(policy: PolicyTree) -> PathLaw:
    """Every complete path with its probability, V and reward.

    Source: ours.

    Example:
        >>> law = enumerate_paths(random_policy_tree(np.random.default_rng(0), turns=3, branching=2))
        >>> len(law.end), round(float(law.probability.sum()), 12)
        (8, 1.0)
    """
    end, depth = policy.ends, policy.depth
    states = np.full((len(end), policy.turns), -1, dtype=np.int64)
    current = end.copy()
    for level in range(policy.turns, 0, -1):
        there = depth[current] == level
        states[there, level - 1] = current[there]
        current[there] = policy.parent[current[there]]
    on_path = states >= 0
    probability = np.where(on_path, policy.probability[states], 1.0).prod(axis=1)
    value = np.where(on_path & (states != end[:, None]), policy.value[states], 0.0).sum(axis=1)
    return PathLaw(end, states, probability, value, policy.reward[end])


def random_policy_tree(
    rng: np.random.Generator, *, turns: int, branching: int, answer_rate: float = 0.0, value_range: float = 1.0
) -> PolicyTree:
    """A policy with `branching` children a state, Dirichlet(1) probabilities, and values uniform on +-value_range.

    Each state below the last turn answers with probability `answer_rate` and then has no children; 0 pads all paths to
    the same length. Rewards are 0 or 1.

    Raises:
        ValueError: for less than one turn or child, a rate outside [0, 1], or a range that is negative or not finite.

    Source: ours.

    Example:
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=2, branching=3)
        >>> len(policy.parent), len(policy.ends)
        (13, 9)
    """
    for name, number in (("turns", turns), ("branching", branching)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}: a path needs a turn")
    if not 0 <= answer_rate <= 1:
        raise ValueError(f"answer_rate must be between 0 and 1, got {answer_rate}: it is a probability")
    if not 0 <= value_range < np.inf:
        raise ValueError(f"value_range must be at least 0 and finite, got {value_range}: values are within it")
    parents, answers, open_states = [np.array([-1])], [np.array([False])], np.array([0])
    for depth in range(1, turns + 1):
        start = sum(map(len, parents))
        parents.append(np.repeat(open_states, branching))
        states = np.arange(start, start + len(parents[-1]))
        answers.append(rng.random(len(states)) < answer_rate if depth < turns else np.zeros(len(states), dtype=bool))
        open_states = states[~answers[-1]]
    parent = np.concatenate(parents)
    probability = rng.dirichlet(np.ones(branching), size=(len(parent) - 1) // branching).ravel()
    return PolicyTree(
        parent=parent,
        probability=np.concatenate([[1.0], probability]),
        value=rng.uniform(-value_range, value_range, len(parent)),
        answer=np.concatenate(answers),
        reward=rng.integers(0, 2, len(parent)).astype(np.float64),
    )


class PaddedTree(NamedTuple):
    """A policy tree all of whose paths have the same length, and which of the original paths each of its paths is."""

    policy: PolicyTree
    """Without answers: early ends are followed by pads, states of value 0 that have one child or none."""
    path: Int[np.ndarray, " K"]
    """Place in `enumerate_paths` of the original tree, in the order of the padded one."""


def padded(policy: PolicyTree) -> PaddedTree:
    """Lengthen early ends to the last turn by pads; a state that ended a path early gets value 0.

    The teacher law keeps its masses. Growing the padded tree is what theorem 1 speaks of: answered paths stay in the
    resampling, which `grow` on the original tree takes them out of.

    Source: IGRPO (arXiv 2607.06223), theorem 1: sequences padded to T turns; value 0 for answers and pads is ours.

    Example:
        >>> policy = random_policy_tree(np.random.default_rng(1), turns=3, branching=2, answer_rate=0.5)
        >>> longer = padded(policy)
        >>> bool((longer.policy.depth[longer.policy.ends] == 3).all()), longer.path.tolist()
        (True, [0, 3, 4, 1, 2])
    """
    depth, ends = policy.depth, policy.ends
    early = ends[depth[ends] < policy.turns]
    value = policy.value.copy()
    value[early] = 0.0
    levels, parents = [np.array([0])], [np.array([-1])]
    for _ in range(policy.turns):
        above = levels[-1]
        # The states of this level: real children, or one pad that repeats the number of the state it lengthens.
        children = [np.flatnonzero(policy.parent == s) if s not in ends else np.array([s]) for s in above]
        parents.append(sum(map(len, levels[:-1])) + np.repeat(np.arange(len(above)), [len(c) for c in children]))
        levels.append(np.concatenate(children))
    state = np.concatenate(levels)
    pad = np.repeat(np.arange(len(levels)), [len(level) for level in levels]) > depth[state]
    longer = PolicyTree(
        parent=np.concatenate(parents),
        probability=np.where(pad, 1.0, policy.probability[state]),
        value=np.where(pad, 0.0, value[state]),
        answer=np.zeros(len(state), dtype=bool),
        reward=policy.reward[state],
    )
    return PaddedTree(longer, np.searchsorted(ends, levels[-1]))


class PolicyTreeWorld:
    """The `World` of a policy tree: a payload is a state, a score is its val.

    Grow it with criterion "score" to tilt by val, and with the tree's `turns` as turn limit.

    Source: ours.

    Example:
        >>> world = PolicyTreeWorld(random_policy_tree(np.random.default_rng(0), turns=2, branching=2))
        >>> tree = RolloutTree.plant([0])
        >>> sorted(set(world.propose(tree, np.zeros(50, dtype=int), np.arange(50, dtype=np.uint64)).payloads))
        [1, 2]
    """

    def __init__(self, policy: PolicyTree) -> None:
        self.policy = policy
        children = np.arange(1, len(policy.parent))
        above = policy.parent[1:]
        self._first_child = np.searchsorted(above, np.arange(len(policy.parent))) + 1
        width = int(np.bincount(above).max())
        # Small numbers are added up faster.
        self._places = np.min_scalar_type(width)
        # Upper ends of the children's intervals; the last child's is infinite, so that rounding leaves no gap.
        table = np.full((width, len(policy.parent)), np.inf)
        table[children - self._first_child[above], above] = policy.probability[1:]
        cdf = np.cumsum(table, axis=0)
        num_children = np.bincount(above, minlength=len(policy.parent))
        cdf[num_children[above] - 1, above] = np.inf
        # One row a child; the last row is infinite for all. A uniform (b + 1/2) / 2^52 reaches an interval's upper end
        # where its 52 bits b reach a whole number.
        self._ends = np.ceil(np.minimum(cdf[:-1], 2.0) * 2.0**52 - 0.5).astype(np.int64)

    def propose(
        self, tree: RolloutTree[int], parents: Int[np.ndarray, " n"], keys: UInt64[np.ndarray, " n"]
    ) -> Proposal[int]:
        """Draw a child state for each parent.

        Raises:
            ValueError: the parents are at the policy's last turn.
        """
        if len(parents) and tree.depth[parents[0]] >= self.policy.turns:
            raise ValueError(
                f"turn_limit must be at most the policy's {self.policy.turns} turns, got a larger one: lower it"
            )
        states, bits = _payloads(tree, parents), random_bits(keys)
        passed = np.zeros(len(states), dtype=self._places)
        for ends in self._ends:
            passed += ends.take(states, mode="clip") <= bits
        children = self._first_child.take(states, mode="clip")
        children += passed
        payloads = children if isinstance(tree.payload, np.ndarray) else children.tolist()
        return Proposal(payloads, self.policy.answer.take(children, mode="clip"))

    def score(self, tree: RolloutTree[int], nodes: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Val of each node's state."""
        return self.policy.value[_payloads(tree, nodes)]


def states_of(tree: RolloutTree[int]) -> Int[np.ndarray, " N"]:
    """The state of every node of a tree grown in a `PolicyTreeWorld`.

    Source: ours.

    Example:
        >>> states_of(RolloutTree.plant([0, 0])).tolist()
        [0, 0]
    """
    return np.array(tree.payload, dtype=np.int64)


def _payloads(tree: RolloutTree[int], nodes: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    if isinstance(tree.payload, np.ndarray):
        return tree.payload[nodes]
    return np.fromiter(map(tree.payload.__getitem__, nodes.tolist()), dtype=np.int64, count=len(nodes))
