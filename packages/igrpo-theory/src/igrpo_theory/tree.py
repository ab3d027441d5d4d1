"""tree: draws of turns -> one forest for a batch of questions.

In: the questions (roots), then batches of children. Out: flat arrays with one entry a node, and one payload a node.
A node is a draw, not a text: two equal draws stay two nodes. Nodes are only ever appended, so a parent has a smaller
number than its children; score, value and truncation are assigned once.

Letters: Q questions, N nodes, L leaves, n the nodes of one call.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int8, Int32

from igrpo_theory.segments import group_sizes, rank_within
from igrpo_theory.stages import Stage
from igrpo_theory.weights import LARGEST_LOG_WEIGHT, Target, check_target, log_factors

Payload = TypeVar("Payload")


class NodeStatus(IntEnum):
    """Why a node has, or has not, children. Everything but ACTIVE is a leaf for good."""

    ACTIVE = 0
    """May be expanded, or has been; roots are active."""
    TERMINAL = 1
    """The agent answered, or could not go on."""
    TURN_LIMIT = 2
    """Reached the last turn without an answer."""
    TRUNCATED = 3
    """Was active but drew no child."""


Nodes = slice | Int[np.ndarray, " n"]
"""Node numbers, each once; a slice, which copies nothing, where they are consecutive."""

_COLUMNS = {
    "parent": np.int32,
    "depth": np.int32,
    "question": np.int32,
    "local": np.int32,
    "score": np.float64,
    "value": np.float64,
    "status": np.int8,
}
_OF_MANY = ("question", "local")
"""Columns that a tree by itself does not keep: its question is 0, and its nodes are numbered as they are born."""


class RolloutTree(Generic[Payload]):
    """A forest, one tree a question, generic over what a node carries.

    Source: ours.

    Example:
        >>> tree = RolloutTree.plant(["who?"])
        >>> tree.append(np.array([0, 0]), ["search", "answer"], np.array([False, True]), turn_limit=4).tolist()
        [1, 2]
        >>> tree.parent.tolist(), tree.leaves().tolist()
        ([-1, 0, 0], [2])
    """

    def __init__(self, num_questions: int, capacity: int, payload_dtype: np.dtype[Any] | None = None) -> None:
        """An empty forest with room for some nodes; use `plant`."""
        self._num_nodes = 0
        self._sizes = np.zeros(num_questions, dtype=np.int64)
        self._payloads: list[Payload] | None = [] if payload_dtype is None else None
        kept = [name for name in _COLUMNS if num_questions > 1 or name not in _OF_MANY]
        self._columns = {name: np.empty(capacity, dtype=_COLUMNS[name]) for name in kept}
        if payload_dtype is not None:
            self._columns["payload"] = np.empty(capacity, dtype=payload_dtype)
        # Scores and values are written where they are known or asked for: NaN stands up to here in each.
        self._written = {"score": 0, "value": 0}
        self.stages: list[Stage] = []
        """How each expansion after the root was drawn, by depth; `grow` writes it."""

    @classmethod
    def plant(cls, roots: Sequence[Payload] | np.ndarray, capacity: int = 0) -> "RolloutTree[Payload]":
        """A forest of roots: nodes 0..Q-1, depth 0, one a question.

        Args:
            roots: what each root carries; when they are an array, all payloads are kept in one array.
            capacity: nodes to make room for at once.

        Raises:
            ValueError: without a root.
        """
        if len(roots) == 0:
            raise ValueError("roots must hold at least one question, got none: pass one root a question")
        num_questions = len(roots)
        payload_dtype = roots.dtype if isinstance(roots, np.ndarray) else None
        tree = cls(num_questions, max(capacity, 8 * num_questions), payload_dtype)
        tree._sizes += 1
        tree._fill(
            payloads=roots,
            parent=np.full(num_questions, -1),
            depth=np.zeros(num_questions),
            question=np.arange(num_questions),
            local=np.zeros(num_questions),
            status=np.full(num_questions, NodeStatus.ACTIVE),
        )
        return tree

    @property
    def num_nodes(self) -> int:
        """N, roots included."""
        return self._num_nodes

    @property
    def payload(self) -> Sequence[Payload] | np.ndarray:
        """What each node carries: a list, or a read-only array where the roots were one."""
        return self._filled("payload") if self._payloads is None else self._payloads

    @property
    def num_questions(self) -> int:
        """Q, the number of trees."""
        return len(self._sizes)

    @property
    def parent(self) -> Int32[np.ndarray, " N"]:
        """The parent's node number, -1 at roots."""
        return self._filled("parent")

    @property
    def depth(self) -> Int32[np.ndarray, " N"]:
        """Turns from the root; roots are at 0."""
        return self._filled("depth")

    @property
    def question(self) -> Int32[np.ndarray, " N"]:
        """The slot of the question whose tree this is; also its root's node number."""
        return self._filled("question") if self.num_questions > 1 else np.broadcast_to(np.int32(0), self.num_nodes)

    @property
    def local(self) -> Int32[np.ndarray, " N"]:
        """Birth order inside the question's tree, root 0: unlike the node number it ignores the rest of the batch."""
        return self._filled("local") if self.num_questions > 1 else np.arange(self.num_nodes, dtype=np.int32)

    @property
    def score(self) -> Float64[np.ndarray, " N"]:
        """s(h), NaN where not scored."""
        return self._filled("score")

    @property
    def value(self) -> Float64[np.ndarray, " N"]:
        """val(h), NaN where there is none."""
        return self._filled("value")

    @property
    def status(self) -> Int8[np.ndarray, " N"]:
        """A `NodeStatus` a node."""
        return self._filled("status")

    def reserve(self, parents: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The local numbers that children of these parents will get from the next `append`, in this order."""
        if self.num_questions == 1:
            return np.arange(self._sizes[0], self._sizes[0] + len(parents))
        slots = self.question[parents]
        return self._sizes[slots] + rank_within(slots)

    def questions_of(self, nodes: Int[np.ndarray, " n"]) -> Int32[np.ndarray, " n"]:
        """The question of each node; looks nothing up where there is one."""
        return self.question[nodes] if self.num_questions > 1 else np.broadcast_to(np.int32(0), nodes.shape)

    def append(
        self,
        parents: Int[np.ndarray, " n"],
        payloads: Sequence[Payload] | np.ndarray,
        terminal: Bool[np.ndarray, " n"],
        turn_limit: int,
        local: Int[np.ndarray, " n"] | None = None,
    ) -> Int[np.ndarray, " n"]:
        """Add one child a parent (repeat a parent for more).

        Args:
            parents: node numbers of active nodes.
            payloads: what each child carries.
            terminal: whether the child ends its path by itself.
            turn_limit: depth at which a path ends anyway.
            local: what `reserve` said for these parents, where it was asked already.

        Returns:
            The node numbers of the children.
        """
        assert len(parents) == len(payloads) == len(terminal), "one payload and one flag a parent"
        assert not self.status[parents].any(), "only active nodes have children"
        local = self.reserve(parents) if local is None else local
        nodes = np.arange(self.num_nodes, self.num_nodes + len(parents)) if self.num_questions > 1 else local
        depth = self.depth[parents] + 1
        question = self.questions_of(parents)
        # Products instead of choices, which are slow where they are hard to foretell.
        at_limit = (depth >= turn_limit) * np.int8(NodeStatus.TURN_LIMIT)
        status = at_limit * ~terminal + terminal * np.int8(NodeStatus.TERMINAL)
        self._fill(payloads=payloads, parent=parents, depth=depth, question=question, local=local, status=status)
        self._sizes += group_sizes(question, self.num_questions)
        return nodes

    def set_scores(self, nodes: Nodes, scores: Float[np.ndarray, " n"]) -> None:
        """Assign s(h); once a node."""
        self._assign("score", nodes, scores)

    def set_values(self, nodes: Nodes, values: Float[np.ndarray, " n"]) -> None:
        """Assign val(h); once a node."""
        self._assign("value", nodes, values)

    def truncate(self, nodes: Nodes, childless: Bool[np.ndarray, " n"] | Literal[True] = True) -> None:
        """Turn those active nodes that drew no child into leaves."""
        leaves = childless * np.int8(NodeStatus.TRUNCATED)
        turns = (self.status[nodes] == NodeStatus.ACTIVE) & (self.depth[nodes] > 0)
        assert np.logical_or(turns, np.logical_not(childless)).all(), "only active turns are truncated"
        self._columns["status"][nodes] += leaves

    def children_count(self) -> Int[np.ndarray, " N"]:
        """How many children each node has."""
        return np.bincount(self.parent[self.num_questions :], minlength=self.num_nodes)

    def leaves(self) -> Int[np.ndarray, " L"]:
        """Nodes that end a path (answered, at the turn limit, truncated), ordered by question, then by node number."""
        leaves = np.flatnonzero(self.status != NodeStatus.ACTIVE)
        return leaves[np.argsort(self.question[leaves], kind="stable")]

    def weights(self, target: Target = "mu") -> Float64[np.ndarray, " N"]:
        """A weight W for each node such that E[sum of W f over the complete leaves of a tree] = sum of target * f.

        The target is pi(o) exp(gamma V(o)), which is Z times the teacher law ("mu"), or pi(o) ("pi"). It holds for
        every function f of a path, at every budget, cap, budget mode and scheme. The children of a root start at
        1 / budget; a child of node i has W_i w_i / rho_i (mu) or W_i / rho_i (pi), where w = exp(gamma val) and rho is
        the mean number of children that the draw gives node i. Truncated leaves weigh 0, roots 1. Dividing by the sum
        of the weights of one tree brings back a bias of order 1 / budget; divide by sums over many trees.

        Raises:
            ValueError: as `log_weights`, or when weights overflow.

        Source: ours, see docs/theory/weights.md.

        Example:
            >>> from igrpo_theory import grown_laws, random_policy_tree
            >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
            >>> tree = grown_laws(policy, 1.0, replicates=4000, budget=5, cap=2).growth.tree
            >>> round(float(tree.weights("pi")[tree.leaves()].sum()) / 4000, 1)
            1.0
        """
        log_weights = self.log_weights(target)
        largest = log_weights.max()
        if largest > LARGEST_LOG_WEIGHT:
            gamma = max(stage.gamma for stage in self.stages)
            raise ValueError(f"gamma must keep weights within exp(700), got {gamma} and exp({largest:.0f}): lower it")
        return np.exp(log_weights)

    def log_weights(self, target: Target = "mu") -> Float64[np.ndarray, " N"]:
        """The logarithms of `weights`, which do not overflow; minus infinity at truncated leaves.

        Raises:
            ValueError: for an unknown target, a node of which no draw is on record, mu where expanded nodes have no
                values, or stages so large that their mean counts under the cap are too much work.
        """
        check_target(target)
        log_weights = self._log_weights(target)
        if np.isnan(log_weights).any():
            node = int(np.flatnonzero(np.isnan(log_weights))[0])
            raise ValueError(
                f"target {target} needs the draw of every expanded node and, for mu, its value, got none above node "
                f"{node}: grow the tree by grow, chains with score_chains, or weigh for pi"
            )
        return log_weights

    def to_records(self, payload_to_json: Callable[[Payload], Any]) -> list[dict[str, Any]]:
        """One JSON-able dict a question, for a line of trees.jsonl; nodes are listed and linked by local number."""
        by_target = {target: self._recorded_weights(target) for target in get_args(Target)}
        parent_local = np.where(self.parent >= 0, self.local[self.parent], -1)
        records: list[dict[str, Any]] = [{"slot": slot, "nodes": []} for slot in range(self.num_questions)]
        for node, slot in enumerate(self.question.tolist()):
            records[slot]["nodes"].append(
                {
                    "parent": None if parent_local[node] < 0 else int(parent_local[node]),
                    "depth": int(self.depth[node]),
                    "status": NodeStatus(self.status[node]).name,
                    "score": _none_if_not_finite(self.score[node]),
                    "value": _none_if_not_finite(self.value[node]),
                    **{f"weight_{target}": _none_if_not_finite(weights[node]) for target, weights in by_target.items()},
                    "payload": payload_to_json(self.payload[node]),
                }
            )
        return records

    def _recorded_weights(self, target: Target) -> Float64[np.ndarray, " N"]:
        """The weights, infinite where they overflow, NaN where they are not known or too much work."""
        try:
            with np.errstate(over="ignore"):
                return np.exp(self._log_weights(target))
        except ValueError:
            return np.full(self.num_nodes, np.nan)

    def _log_weights(self, target: Target) -> Float64[np.ndarray, " N"]:
        """Logarithms of the weights, NaN where one is not known."""
        factors = np.full(self.num_nodes, np.nan)
        factors[: self.num_questions] = -np.log(np.maximum(self.children_count()[: self.num_questions], 1))
        for stage in self.stages:
            question, values = self.question[stage.nodes], self.value[stage.nodes]
            factors[stage.nodes] = log_factors(stage, question, values, target)
        log_weights = np.zeros(self.num_nodes)
        for depth in range(1, int(self.depth.max()) + 1):
            here = np.flatnonzero(self.depth == depth)
            log_weights[here] = (log_weights + factors)[self.parent[here]]
        log_weights[self.status == NodeStatus.TRUNCATED] = -np.inf
        return log_weights

    def _assign(self, name: str, nodes: Nodes, numbers: Float[np.ndarray, " n"]) -> None:
        if isinstance(nodes, slice) and nodes.start >= self._written[name]:
            self._columns[name][self._written[name] : nodes.start] = np.nan
            self._written[name] = nodes.stop
        else:
            assert np.isnan(self._filled(name)[nodes]).all(), f"a {name} is assigned once"
        self._columns[name][nodes] = numbers

    def _filled(self, name: str) -> np.ndarray:
        if self._written.get(name, self.num_nodes) < self.num_nodes:
            self._columns[name][self._written[name] : self.num_nodes] = np.nan
            self._written[name] = self.num_nodes
        view = self._columns[name][: self.num_nodes]
        view.flags.writeable = False
        return view

    def _fill(self, payloads: Sequence[Payload] | np.ndarray, **columns: np.ndarray) -> None:
        start, stop = self.num_nodes, self.num_nodes + len(payloads)
        self._make_room(stop)
        for name, entries in columns.items():
            if name in self._columns:
                self._columns[name][start:stop] = entries
        if self._payloads is None:
            self._columns["payload"][start:stop] = payloads
        else:
            self._payloads.extend(payloads)
        self._num_nodes = stop

    def _make_room(self, num_nodes: int) -> None:
        capacity = len(self._columns["parent"])
        if num_nodes <= capacity:
            return
        for name, column in self._columns.items():
            grown = np.empty(max(num_nodes, 2 * capacity), dtype=column.dtype)
            grown[: self.num_nodes] = column[: self.num_nodes]
            self._columns[name] = grown


def _none_if_not_finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None
