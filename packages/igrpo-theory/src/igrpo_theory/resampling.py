"""resampling: probabilities and a budget -> counts, without a cap and without bias.

In: the probabilities of the active nodes, grouped by question, and one budget a question. Out: one count a node.
Under each scheme the mean count is budget * p; they differ in how far a count strays from it.

Letters: Q questions, A active nodes of one stage (over all questions), M nodes and draws together.
Source: Douc, Cappe, Moulines (2005), "Comparison of resampling schemes for particle filtering", for all four.
"""

import numpy as np
from jaxtyping import Bool, Float, Int, Int8, UInt64

from igrpo_theory.randomness import generator, uniforms
from igrpo_theory.segments import (
    LARGE,
    blocks,
    group_bounds,
    group_sizes,
    members,
    order_within,
    rank_within,
    running_sum,
)

_MANY_DRAWS = 64
"""Draws a question above which questions are counted one by one; below, all at once."""
_ROWS = 64
"""Rows of the table that orders the nodes of a large stage: few, so that a step does much work at once."""
_INVERTED = 16.0
"""Mean up to which inversion, which counts up from zero, is the faster way."""


def multinomial(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    keys: UInt64[np.ndarray, " Q"],
) -> Int[np.ndarray, " A"]:
    """Independent draws by inverse CDF: a draw goes to the first node whose running sum reaches it.

    LARGE draws or more of one question are not made one by one: each node gets a Poisson number, given that the sum is
    at least the budget, less a uniform choice of the draws that are too many.

    Source: textbook; Devroye (1986), chapters V.2 and X.3, for the two facts about Poisson numbers.

    Example:
        >>> multinomial(np.array([0.0, 1.0]), np.array([0, 0]), np.array([3]), np.array([1], dtype=np.uint64)).tolist()
        [0, 3]
    """
    large = (budget >= LARGE) & (group_sizes(question, len(budget)) > 0)
    if len(budget) == 1 and large[0]:
        return _many_draws(probabilities, int(budget[0]), keys[0])
    owner = _owners(question, np.where(large, 0, budget))
    counts = _spread(uniforms(keys[owner], rank_within(owner)), owner, probabilities, question, len(budget))
    for slot in np.flatnonzero(large).tolist():
        own = members(question, slot, len(budget))
        counts[own] = _many_draws(probabilities[own], int(budget[slot]), keys[slot])
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

    A count is budget * p rounded down or up. The order is uniform, but for a question of LARGE nodes or more: its nodes
    fill the rows of a table, and the order goes column by column, through each in one random order of the rows that
    starts, and comes back to, a random row of its own. Within a column that is a uniform order too; nodes of one row,
    such as siblings, are never neighbours but at the ends of columns, and do not go in step.

    Source: Kitagawa (1996), systematic resampling; the random orders are ours.

    Example:
        >>> keys = np.array([1], dtype=np.uint64)
        >>> systematic(np.array([0.5, 0.25, 0.25]), np.array([0, 0, 0]), np.array([4]), keys).tolist()
        [2, 1, 1]
    """
    large = group_sizes(question, len(budget)) >= LARGE
    if len(budget) == 1 and large[0]:
        return _table_shares(probabilities, int(budget[0]), keys[0])
    small = np.flatnonzero(~large[question])
    order = small[order_within(uniforms(keys[question[small]], 1, rank_within(question[small])), question[small])]
    counts = np.empty(len(question), dtype=np.int64)
    counts[order] = _rounded_shares(probabilities[order], question[order], budget, keys)
    for slot in np.flatnonzero(large).tolist():
        own = members(question, slot, len(budget))
        counts[own] = _table_shares(probabilities[own], int(budget[slot]), keys[slot])
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


def _many_draws(probabilities: Float[np.ndarray, " A"], budget: int, key: np.uint64) -> Int[np.ndarray, " A"]:
    """Independent draws of one question: the law of Poisson numbers is multinomial, given their sum."""
    rng, scale = generator(key), (budget + 3 * np.sqrt(budget)) / probabilities.sum()
    counts = _poisson(probabilities, scale, rng)
    while (surplus := int(counts.sum()) - budget) < 0:
        counts = _poisson(probabilities, scale, rng)
    taken = np.sort(rng.choice(budget + surplus, surplus, replace=False, shuffle=False))
    np.subtract.at(counts, np.searchsorted(np.cumsum(counts), taken, side="right"), 1)
    return counts


def _poisson(probabilities: Float[np.ndarray, " A"], scale: float, rng: np.random.Generator) -> Int[np.ndarray, " A"]:
    """Poisson numbers of mean scale * p, in blocks that fit the cache: by inversion where all means are small."""
    counts = np.empty(len(probabilities), dtype=np.int64)
    nodes, rest = [], []
    for block in blocks(len(probabilities)):
        mean = probabilities[block] * scale
        if mean.max() > _INVERTED:
            counts[block] = rng.poisson(mean)
        else:
            counts[block], more, unfinished = _inverted(mean, rng)
            nodes.append(block.start + more)
            rest.append(unfinished)
    if nodes:
        _invert_rest(counts, np.concatenate(nodes), np.concatenate(rest, axis=1))
    return counts


def _inverted(
    mean: Float[np.ndarray, " n"], rng: np.random.Generator
) -> tuple[Int8[np.ndarray, " n"], Int[np.ndarray, " m"], Float[np.ndarray, "4 m"]]:
    """How many of the first three values of the Poisson CDF are below a uniform, and where the fourth is, too.

    The last array says how to count on there: the uniform, the chances of 3 and of at most 3, and the mean.
    """
    draws, term, counts = rng.random(len(mean)), np.exp(-mean), np.zeros(len(mean), dtype=np.int8)
    below = term.copy()
    for number in range(1, 4):
        counts += draws > below
        term *= mean
        term *= 1 / number
        below += term
    more = np.flatnonzero(draws > below)
    return counts, more, np.array([column[more] for column in (draws, term, below, mean)])


def _invert_rest(counts: Int[np.ndarray, " A"], nodes: Int[np.ndarray, " m"], rest: Float[np.ndarray, "4 m"]) -> None:
    """Count on where the number is 4 or more, which are few; 64 is out of reach for means up to _INVERTED."""
    for number in range(4, 65):
        if len(nodes) == 0:
            break
        counts[nodes] += 1
        draws, term, below, mean = rest
        term *= mean / number
        below += term
        more = np.flatnonzero(draws > below)
        nodes, rest = nodes[more], rest[:, more]


def _rounded_shares(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    keys: UInt64[np.ndarray, " Q"],
) -> Float[np.ndarray, " A"]:
    """Systematic counts over the nodes in the order given, which is by question."""
    cdf, total = running_sum(probabilities, question, len(budget))
    slot = question if len(budget) > 1 else slice(None)
    # cdf / total is exactly 1 at a question's last node, so its points add up to the budget.
    passed = np.floor(cdf / total[slot] * budget[slot] + uniforms(keys, 0)[slot])
    gained = np.diff(passed, prepend=0.0)
    first = np.flatnonzero(rank_within(question) == 0)
    gained[first] = passed[first]
    return gained


def _table_shares(probabilities: Float[np.ndarray, " A"], budget: int, key: np.uint64) -> Int[np.ndarray, " A"]:
    """Systematic counts of one large question, in the order that `systematic` describes, all columns in step."""
    rng, width = generator(key), -(-len(probabilities) // _ROWS)
    rows = [probabilities[start : start + width] for start in range(0, len(probabilities), width)]
    rows[-1] = np.concatenate([rows[-1], np.zeros(width - len(rows[-1]))])
    order, starts, offset = rng.permutation(len(rows)), rng.integers(len(rows), size=width), rng.random()
    begins = np.split(np.argsort(starts), np.cumsum(np.bincount(starts, minlength=len(rows)))[:-1])
    # Shares of 2^50 as whole numbers: their sums are exact, so a column ends where the next one starts, to the bit.
    unit = 2.0**50 / probabilities.sum()
    skipped, size = np.zeros(width), np.zeros(width)
    for row, here in zip(order, begins, strict=True):
        skipped[here] = size[here]
        size += np.rint(rows[row] * unit)
    scale = np.nextafter(budget / size.sum(), np.inf)

    def passed(position: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Points up to here; the whole budget at the end, however the product is rounded."""
        points = position * scale
        points += offset
        return np.floor(np.minimum(points, budget + 0.5, out=points), out=points)

    counts = np.empty((len(rows), width), dtype=np.int64)
    # A column goes on from its first row below its last one, until it comes to the row where it begins.
    position = np.cumsum(size) - skipped
    before = passed(position)
    for row, here in zip(order, begins, strict=True):
        position[here] -= size[here]
        before[here] = passed(position[here])
        position += np.rint(rows[row] * unit)
        after = passed(position)
        counts[row] = after - before
        before = after
    return counts.ravel()[: len(probabilities)]


def _draws_before_each_node(
    order: Int[np.ndarray, " M"], is_node: Bool[np.ndarray, " M"], question: Int[np.ndarray, " A"]
) -> Int[np.ndarray, " A"]:
    """Counts of draws between consecutive nodes in the merged order."""
    node_places = np.flatnonzero(is_node[order])
    nodes = order[node_places] - (len(order) - len(question))
    counts = np.empty(len(question), dtype=np.int64)
    counts[nodes] = np.diff(node_places, prepend=-1) - 1
    return counts
