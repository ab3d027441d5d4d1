"""resampling: probabilities and a budget -> counts, without a cap and without bias.

In: the probabilities of the active nodes, grouped by question, and one budget a question. Out: one count a node.
Under each scheme the mean count is budget * p; they differ in how far a count strays from it.

Letters: Q questions, A active nodes of one stage (over all questions), M nodes and draws together.
Source: Douc, Cappe, Moulines (2005), "Comparison of resampling schemes for particle filtering", for all four.
"""

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from igrpo_theory.randomness import uniforms
from igrpo_theory.segments import group_bounds, members, order_within, rank_within, running_sum

_MANY_DRAWS = 64
# Draws a question above which questions are counted one by one; below, all at once.
_LARGE = 4096
# Budget or nodes of one question from which its randomness comes from a generator seeded by its key: hashing a number a
# draw and sorting would take most of the time of a large stage.


def multinomial(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    keys: UInt64[np.ndarray, " Q"],
) -> Int[np.ndarray, " A"]:
    """Independent draws by inverse CDF: a draw goes to the first node whose running sum reaches it.

    Source: textbook; Devroye (1986), chapter V.2, for uniforms that come sorted.

    Example:
        >>> multinomial(np.array([0.0, 1.0]), np.array([0, 0]), np.array([3]), np.array([1], dtype=np.uint64)).tolist()
        [0, 3]
    """
    large = budget >= _LARGE
    if large.all():
        counts = np.zeros(len(question), dtype=np.int64)
    else:
        owner = _owners(question, np.where(large, 0, budget))
        counts = _spread(uniforms(keys[owner], rank_within(owner)), owner, probabilities, question, len(budget))
    for slot in np.flatnonzero(large).tolist():
        own = members(question, slot)
        counts[own] = _sorted_draws(probabilities[own], int(budget[slot]), keys[slot])
    return counts


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
    shuffle = _random_order(question, keys)
    question = question[shuffle] if len(budget) > 1 else question
    cdf, total = running_sum(probabilities[shuffle], question, len(budget))
    slot = question if len(budget) > 1 else slice(None)
    # cdf / total is exactly 1 at a question's last node, so its points add up to the budget.
    passed = np.floor(cdf / total[slot] * budget[slot] + uniforms(keys, 0)[slot])
    gained = np.diff(passed, prepend=0.0)
    first = np.flatnonzero(rank_within(question) == 0)
    gained[first] = passed[first]
    counts = np.empty(len(question), dtype=np.int64)
    counts[shuffle] = gained
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
            np.bincount(np.searchsorted(cdf[first:last], points[start:stop]), minlength=last - first)
            for first, last, start, stop in zip(nodes[:-1], nodes[1:], edges[:-1], edges[1:], strict=True)
        ]
        return np.concatenate(counts)
    # One sort merges nodes and draws of a question: a draw belongs to the next node after it. On a tie the draw comes
    # first, so that neither rounding up to the total nor a node of no weight can misplace it.
    is_node = np.repeat([False, True], [len(draws), len(cdf)])
    order = np.lexsort((is_node, np.concatenate([draws * total[owner], cdf]), np.concatenate([owner, question])))
    return _draws_before_each_node(order, is_node, question)


def _sorted_draws(probabilities: Float[np.ndarray, " A"], budget: int, key: np.uint64) -> Int[np.ndarray, " A"]:
    """Independent draws of one question, made in order: running sums of exponential gaps are sorted uniforms."""
    if len(probabilities) == 0:
        return np.zeros(0, dtype=np.int64)
    cdf = np.cumsum(probabilities)
    points = np.cumsum(_generator(key).standard_exponential(budget + 1))
    points *= cdf[-1] / points[-1]
    # The last point, which ends at the total, is no draw.
    return np.diff(np.searchsorted(points[:-1], cdf, side="right"), prepend=0)


def _random_order(question: Int[np.ndarray, " A"], keys: UInt64[np.ndarray, " Q"]) -> Int[np.ndarray, " A"]:
    """Nodes by question, and in random order inside each."""
    sizes = np.bincount(question)
    if sizes.max(initial=0) < _LARGE:
        return order_within(uniforms(keys[question], 1, rank_within(question)), question)
    orders = []
    for slot, size in enumerate(sizes.tolist()):
        own = np.arange(len(question))[members(question, slot)]
        if size >= _LARGE:
            orders.append(own[_generator(keys[slot]).permutation(size)])
        else:
            orders.append(own[np.argsort(uniforms(keys[slot : slot + 1], 1, np.arange(size)))])
    return np.concatenate(orders)


def _generator(key: np.uint64) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(int(key)))


def _draws_before_each_node(
    order: Int[np.ndarray, " M"], is_node: Bool[np.ndarray, " M"], question: Int[np.ndarray, " A"]
) -> Int[np.ndarray, " A"]:
    """Counts of draws between consecutive nodes in the merged order."""
    node_places = np.flatnonzero(is_node[order])
    nodes = order[node_places] - (len(order) - len(question))
    counts = np.empty(len(question), dtype=np.int64)
    counts[nodes] = np.diff(node_places, prepend=-1) - 1
    return counts
