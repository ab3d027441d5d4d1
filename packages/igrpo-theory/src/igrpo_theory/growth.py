"""growth: questions, a world and a rule -> grown trees.

In: roots, one key a question, and a `World` that proposes and scores turns. Out: the forest, each stage on record.
This is the one growing loop: a chain is cap 1, evaluation is a budget of 1, and the theorem is tested on it.

Letters: Q questions, A active nodes of one stage, n the nodes of one call.
Source: IGRPO (arXiv 2607.06223), tree construction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar, get_args, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from igrpo_theory import expansion
from igrpo_theory.capped import check_cap
from igrpo_theory.randomness import Stream, fold, spaced_keys
from igrpo_theory.segments import LARGE, blocks, group_counts, group_sizes, repeat_rising
from igrpo_theory.stages import Stage
from igrpo_theory.tree import Nodes, NodeStatus, RolloutTree
from igrpo_theory.values import Criterion, node_value

Payload = TypeVar("Payload")
RootScore = Literal["zero", "evaluate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthRule:
    """How trees grow; the defaults are the paper's.

    Source: IGRPO (arXiv 2607.06223), rollout settings.

    Example:
        >>> GrowthRule(cap=1).needs_scores, GrowthRule().needs_scores
        (False, True)
    """

    budget: int = 5
    """Children of the root, and the most children a later stage draws for a question."""
    cap: int = 2
    """Most children of a node below the root; 1 grows chains, cap = budget is no cap."""
    gamma: float = 1.0
    """Strength of the tilt towards valuable nodes; 0 is uniform."""
    budget_mode: expansion.BudgetMode = "full"
    """Children a stage: the budget (full), the number of active nodes (low), or half way (mid)."""
    scheme: expansion.Scheme = "capped"
    """How counts are drawn: under the cap (capped, calibrated), or without one (the others need cap = budget)."""
    criterion: Criterion = "mean"
    """What a node is worth: mean of score and gain, score, gain, or zero."""
    turn_limit: int = 4
    """Depth at which a path ends without an answer."""
    root_score: RootScore = "zero"
    """Score of the bare question: taken as 0 (the paper) or evaluated."""
    score_chains: bool = False
    """Score nodes even where no draw depends on it."""

    def __post_init__(self) -> None:
        expansion.check_gamma(self.gamma)
        check_cap(self.cap)
        if not self.budget >= 1:
            raise ValueError(f"budget must be at least 1, got {self.budget}: the root needs a child")
        if not self.turn_limit >= 1:
            raise ValueError(f"turn_limit must be at least 1, got {self.turn_limit}: a path needs a turn")
        for field in ("budget", "turn_limit"):
            if not isinstance(getattr(self, field), int | np.integer):
                raise ValueError(f"{field} must be a whole number, got {getattr(self, field)}: round it")
        for field, choices in _CHOICES.items():
            if getattr(self, field) not in choices:
                raise ValueError(
                    f"{field} must be one of {', '.join(choices)}, got {getattr(self, field)}: choose one of them"
                )
        expansion.check_scheme(self.scheme, self.cap, self.budget)

    @property
    def needs_scores(self) -> bool:
        """Whether active nodes are scored at all."""
        return (self.cap > 1 and self.criterion != "zero") or self.score_chains


_CHOICES = {
    "budget_mode": get_args(expansion.BudgetMode),
    "scheme": get_args(expansion.Scheme),
    "criterion": get_args(Criterion),
    "root_score": get_args(RootScore),
}


@dataclass(frozen=True, slots=True)
class Proposal(Generic[Payload]):
    """One turn a parent."""

    payloads: Sequence[Payload] | np.ndarray
    """What each child carries; an array where the roots are one."""
    terminal: Bool[np.ndarray, " n"]
    """Whether the child ends its path by itself."""


@runtime_checkable
class World(Protocol[Payload]):
    """What the loop needs of a policy with its environment; it is asked for the turns of a stage 65536 at a time."""

    def propose(
        self, tree: RolloutTree[Payload], parents: Int[np.ndarray, " n"], keys: UInt64[np.ndarray, " n"]
    ) -> Proposal[Payload]:
        """Sample one turn below each parent; `keys` holds one random stream a child."""
        ...

    def score(self, tree: RolloutTree[Payload], nodes: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """s(h) of nodes that may go on (and of roots, if the rule evaluates them)."""
        ...


@dataclass(frozen=True, slots=True)
class Growth(Generic[Payload]):
    """Grown trees; how they came about is on the tree, see `RolloutTree.stages`."""

    tree: RolloutTree[Payload]

    @property
    def stages(self) -> list[Stage]:
        """One record an expansion after the root, by depth."""
        return self.tree.stages


def grow(
    world: World[Payload], roots: Sequence[Payload] | np.ndarray, keys: UInt64[np.ndarray, " Q"], rule: GrowthRule
) -> Growth[Payload]:
    """Grow one tree a question, turn by turn, all questions in step.

    The root gets exactly `budget` children, whatever cap and budget mode say. At each later depth the active nodes are
    scored, the draw says how many children each gets, and those that get none become truncated leaves. `roots` holds
    one payload a question, `keys` one key (see `question_keys`). Roots in an array keep all payloads in one, which is
    what makes large budgets fast.

    Raises:
        ValueError: when the world returns a wrong number of turns, or a score that is not finite.

    Source: IGRPO (arXiv 2607.06223), tree construction.

    Example:
        >>> from igrpo_theory.worlds import PolicyTreeWorld, random_policy_tree
        >>> world = PolicyTreeWorld(random_policy_tree(np.random.default_rng(0), turns=3, branching=2))
        >>> growth = grow(world, [0], np.array([7], dtype=np.uint64), GrowthRule(turn_limit=3))
        >>> int((growth.tree.depth == 1).sum()), [int(stage.counts.sum()) for stage in growth.stages]
        (5, [5, 5])
    """
    if len(keys) != len(roots):
        raise ValueError(f"keys must be one a question, got {len(keys)} for {len(roots)} roots: see question_keys")
    tree = RolloutTree.plant(roots, capacity=len(roots) * (1 + rule.budget * rule.turn_limit))
    if rule.needs_scores and rule.root_score == "evaluate":
        _score(world, tree, np.arange(len(roots)))
    nodes = _propose(world, tree, np.arange(len(roots)), np.full(len(roots), rule.budget), keys, rule)
    for depth in range(1, rule.turn_limit):
        goes_on = tree.status[_span(nodes)] == NodeStatus.ACTIVE
        active = nodes if goes_on.all() else nodes[goes_on]
        if len(active) == 0:
            break
        tree.stages.append(_expand(world, tree, active, depth, keys, rule))
        counts = tree.stages[-1].counts
        tree.truncate(_span(active), counts == 0)
        nodes = _propose(world, tree, active, counts, keys, rule)
    return Growth(tree)


def _expand(
    world: World[Payload],
    tree: RolloutTree[Payload],
    active: Int[np.ndarray, " A"],
    depth: int,
    keys: UInt64[np.ndarray, " Q"],
    rule: GrowthRule,
) -> Stage:
    """Score, value and draw: the counts of one stage."""
    values = _evaluate(world, tree, active, rule) if rule.needs_scores else np.zeros(len(active))
    question = tree.question[_span(active)]
    probabilities = expansion.expansion_probabilities(values, question, rule.gamma)
    num_active = group_sizes(question, tree.num_questions)
    budget = expansion.stage_budget(rule.budget_mode, rule.budget, num_active)
    stage_keys = fold(keys, Stream.EXPANSION, depth)
    # Through the module, so that a test can replace the sampler.
    counts = expansion.draw_expansions(probabilities, question, budget, rule.cap, stage_keys, rule.scheme)
    # Nodes that are worth zero by rule have no values to be tilted by.
    gamma = 0.0 if rule.criterion == "zero" else rule.gamma
    return Stage(depth, active, probabilities, budget, counts, gamma, rule.cap, rule.scheme)


def _evaluate(
    world: World[Payload], tree: RolloutTree[Payload], active: Int[np.ndarray, " A"], rule: GrowthRule
) -> Float[np.ndarray, " A"]:
    """Scores and values of active nodes, written to the tree."""
    scores, span = _score(world, tree, active), _span(active)
    if rule.criterion in ("score", "zero"):
        parent_score = scores  # any: the value does not depend on it
    else:
        parent_score = tree.score[tree.parent[span]]
        if rule.root_score == "zero":
            parent_score = np.where(tree.depth[span] == 1, 0.0, parent_score)
    values = node_value(scores, parent_score, rule.criterion)
    tree.set_values(span, values)
    return values


def _score(world: World[Payload], tree: RolloutTree[Payload], nodes: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Scores of nodes in rising order, checked and written to the tree."""
    for block in blocks(len(nodes)):
        _score_block(world, tree, nodes[block])
    return tree.score[_span(nodes)]


def _score_block(world: World[Payload], tree: RolloutTree[Payload], nodes: Int[np.ndarray, " n"]) -> None:
    scores = world.score(tree, nodes)
    if len(scores) != len(nodes):
        raise ValueError(
            f"world.score must return one number a node, got {len(scores)} for {len(nodes)} nodes: check the scorer"
        )
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad) > 0:
        raise ValueError(
            f"scores must be finite, got {scores[bad[0]]} for node {nodes[bad[0]]} of question "
            f"{tree.question[nodes[bad[0]]]}: check the scorer"
        )
    tree.set_scores(_span(nodes), scores)


def _propose(
    world: World[Payload],
    tree: RolloutTree[Payload],
    nodes: Int[np.ndarray, " n"],
    counts: Int[np.ndarray, " n"],
    keys: UInt64[np.ndarray, " Q"],
    rule: GrowthRule,
) -> Int[np.ndarray, " m"]:
    """So many children of each node, each with its own random stream; returns them."""
    num_children = group_counts(counts, tree.questions_of(nodes), tree.num_questions)
    parents, streams = repeat_rising(nodes, counts), fold(keys, Stream.PROPOSAL)
    first = tree.num_nodes
    for block in blocks(len(parents)):
        above = parents[block]
        local = tree.reserve(above)
        child_keys = _child_keys(streams, num_children >= LARGE, tree.questions_of(above), local)
        proposal = world.propose(tree, above, child_keys)
        if not len(proposal.payloads) == len(proposal.terminal) == len(above):
            raise ValueError(
                f"world.propose must return one turn a parent, got {len(proposal.payloads)} payloads and "
                f"{len(proposal.terminal)} flags for {len(above)} parents: check the world"
            )
        tree.append(above, proposal.payloads, proposal.terminal, rule.turn_limit, local)
    return np.arange(first, tree.num_nodes)


def _child_keys(
    streams: UInt64[np.ndarray, " Q"],
    large: Bool[np.ndarray, " Q"],
    question: Int[np.ndarray, " n"],
    local: Int[np.ndarray, " n"],
) -> UInt64[np.ndarray, " n"]:
    """One key a child: hashed, or spaced for a question with many children in this stage."""
    own = streams if len(streams) == 1 else streams[question]
    if large.all():
        return spaced_keys(own, local)
    return np.where(large[question], spaced_keys(own, local), fold(own, local)) if large.any() else fold(own, local)


def _span(nodes: Int[np.ndarray, " n"]) -> Nodes:
    """What indexes nodes that are in rising order."""
    consecutive = len(nodes) > 0 and nodes[-1] - nodes[0] == len(nodes) - 1
    return slice(int(nodes[0]), int(nodes[-1]) + 1) if consecutive else nodes
