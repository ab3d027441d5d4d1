"""resampling: probabilities and a budget -> counts, without a cap and without bias.

In: the probabilities of the active nodes, grouped by question, and one budget a question. Out: one count a node.
Under each scheme the mean count is budget * p; they differ in how far a count strays from it.

Letters: Q questions, A active nodes of one stage (over all questions), M nodes and draws together.
Source: Douc, Cappe, Moulines (2005), "Comparison of resampling schemes for particle filtering", for all four.
"""

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from igrpo_theory.randomness import uniforms
from igrpo_theory.segments import group_bounds, order_within, rank_within, running_sum

_MANY_DRAWS = 64
# Draws a question above which questions are counted one by one; below, all at once.
_FEW_NODES = 256
# Nodes below which a binary search for each draw is fast.
_STEPS = 6
# Steps from the guide table before a binary search takes over.
_BLOCK = 1 << 14
# Draws worked on at once, so that they stay in the cache.


def multinomial(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    keys: UInt64[np.ndarray, " Q"],
) -> Int[np.ndarray, " A"]:
    """Independent draws by inverse CDF: a draw goes to the first node whose running sum reaches it.

    Source: textbook.

    Example:
        >>> multinomial(np.array([0.0, 1.0]), np.array([0, 0]), np.array([3]), np.array([1], dtype=np.uint64)).tolist()
        [0, 3]
    """
    owner = _owners(question, budget)
    return _spread(uniforms(keys[owner], rank_within(owner)), owner, probabilities, question, len(budget))


def stratified(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    keys: UInt64[np.ndarray, " Q"],
) -> Int[np.ndarray, " A"]:
    """One independent draw from each of `budget` equal slices of the running sum, over the nodes in their order.

    A count is off from budget * p by less than 2.

    Source: Kitagawa (1996), stratified resampling.

    Example:
        >>> keys = np.array([1], dtype=np.uint64)
        >>> stratified(np.array([0.5, 0.25, 0.25]), np.array([0, 0, 0]), np.array([4]), keys).tolist()
        [2, 1, 1]
    """
    owner = _owners(question, budget)
    slices = (rank_within(owner) + uniforms(keys[owner], rank_within(owner))) / budget[owner]
    return _spread(slices, owner, probabilities, question, len(budget))


def systematic(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    keys: UInt64[np.ndarray, " Q"],
) -> Int[np.ndarray, " A"]:
    """Equally spaced points with one random offset a question, over its nodes in random order.

    A count is budget * p rounded down or up.

    Source: Kitagawa (1996), systematic resampling; the random order is ours.

    Example:
        >>> keys = np.array([1], dtype=np.uint64)
        >>> systematic(np.array([0.5, 0.25, 0.25]), np.array([0, 0, 0]), np.array([4]), keys).tolist()
        [2, 1, 1]
    """
    shuffle = order_within(uniforms(keys[question], 1, rank_within(question)), question)
    question = question[shuffle]
    cdf, total = running_sum(probabilities[shuffle], question, len(budget))
    # cdf / total is exactly 1 at a question's last node, so its points add up to the budget.
    passed = np.floor(cdf / total[question] * budget[question] + uniforms(keys, 0)[question])
    first = rank_within(question) == 0
    counts = np.empty(len(question), dtype=np.int64)
    counts[shuffle] = np.where(first, passed, np.diff(passed, prepend=0.0))
    return counts


def residual(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    keys: UInt64[np.ndarray, " Q"],
) -> Int[np.ndarray, " A"]:
    """The whole part of budget * p for sure, and independent draws from what is left over.

    Source: Liu, Chen (1998), residual resampling.

    Example:
        >>> keys = np.array([1], dtype=np.uint64)
        >>> residual(np.array([0.5, 0.25, 0.25]), np.array([0, 0, 0]), np.array([4]), keys).tolist()
        [2, 1, 1]
    """
    total = np.bincount(question, weights=probabilities, minlength=len(budget))
    # Not p / total * budget: the largest of several equal shares would round to just below a whole number.
    share = probabilities * budget[question] / total[question]
    whole = np.floor(share + 1e-12 * budget[question])
    left = np.maximum(share - whole, 0.0)
    spent = np.bincount(question, weights=whole, minlength=len(budget)).astype(np.int64)
    # A question that shares out evenly has nothing left; its leftover weights are zero or rounding.
    return whole.astype(np.int64) + multinomial(left, question, budget - spent, keys)


def _owners(question: Int[np.ndarray, " A"], budget: Int[np.ndarray, " Q"]) -> Int[np.ndarray, " n"]:
    """The question of each draw."""
    active = np.bincount(question, minlength=len(budget)) > 0
    return np.repeat(np.arange(len(budget)), np.where(active, budget, 0))


def _spread(
    draws: Float[np.ndarray, " n"],
    owner: Int[np.ndarray, " n"],
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    num_questions: int,
) -> Int[np.ndarray, " A"]:
    """Counts of the draws, numbers in (0, 1), that fall to each node's interval of the running sum."""
    cdf, total = running_sum(probabilities, question, num_questions)
    nodes = group_bounds(question, num_questions) if len(draws) > _MANY_DRAWS * num_questions else None
    if nodes is not None:
        points = draws * total[owner]
        edges = np.searchsorted(owner, np.arange(num_questions + 1))
        counts = [
            _count(points[edges[slot] : edges[slot + 1]], cdf[nodes[slot] : nodes[slot + 1]])
            for slot in range(num_questions)
        ]
        return np.concatenate(counts)
    # One sort merges nodes and draws of a question: a draw belongs to the next node after it. On a tie the draw comes
    # first, so that neither rounding up to the total nor a node of no weight can misplace it.
    is_node = np.repeat([False, True], [len(draws), len(cdf)])
    order = np.lexsort((is_node, np.concatenate([draws * total[owner], cdf]), np.concatenate([owner, question])))
    return _draws_before_each_node(order, is_node, question)


def _count(points: Float[np.ndarray, " n"], cdf: Float[np.ndarray, " A"]) -> Int[np.ndarray, " A"]:
    """Points of one question that fall to each node: to the first whose running sum reaches them.

    A guide table of equal slices says which nodes end below a point's slice; from there it is a few steps to its node,
    and a binary search for what is left after some. Multiplying by one factor keeps order, so no rounding misleads.

    Source: Chen, Asau (1974), "On generating random variates from an empirical distribution" (the guide table).
    """
    if len(cdf) < _FEW_NODES:
        return np.bincount(np.searchsorted(cdf, points), minlength=len(cdf))
    slices_per_mass = len(cdf) / cdf[-1]
    ends = np.bincount((cdf * slices_per_mass).astype(np.int64), minlength=len(cdf) + 1)
    guide = np.cumsum(ends) - ends
    owner = np.empty(len(points), dtype=np.int64)
    for start in range(0, len(points), _BLOCK):
        block = points[start : start + _BLOCK]
        node = guide[(block * slices_per_mass).astype(np.int64)]
        walking = np.flatnonzero(cdf[node] < block)
        for _ in range(_STEPS):
            node[walking] += 1
            walking = walking[cdf[node[walking]] < block[walking]]
        node[walking] = np.searchsorted(cdf, block[walking])
        owner[start : start + _BLOCK] = node
    return np.bincount(owner, minlength=len(cdf))


def _draws_before_each_node(
    order: Int[np.ndarray, " M"], is_node: Bool[np.ndarray, " M"], question: Int[np.ndarray, " A"]
) -> Int[np.ndarray, " A"]:
    """Counts of draws between consecutive nodes in the merged order."""
    node_places = np.flatnonzero(is_node[order])
    nodes = order[node_places] - (len(order) - len(question))
    counts = np.empty(len(question), dtype=np.int64)
    counts[nodes] = np.diff(node_places, prepend=-1) - 1
    return counts
