"""capped: weights, a budget and a cap -> exact laws and means of the capped draw.

In: the weights of the active nodes. Out: what `draw_expansions` does with them, without drawing: the law of the counts,
their means, and the response to the weights that is left under the cap.

The draw is a race (see `race`): node i has a Poisson clock of rate w_i that stops after `cap` arrivals, and the first m
arrivals, m = min(budget, cap * nodes), are the children. Everything here follows from that.

Letters: Q questions, A active nodes of one stage (over all questions), W active nodes of one question; inside, R stages
that are alike, K points in time, C and M numbers of children.
Source: ours, see docs/theory/cap.md.
"""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammainc, gammaincc

from igrpo_theory.segments import rank_within

# Nodes that a law may be enumerated for: (cap + 1) ** nodes count vectors at most.
_MOST_COUNT_VECTORS = 200_000
# Stages times nodes times draws that one quadrature handles at once; bounds its memory.
_CHUNK = 10_000
# Nodes times draws of one stage, some seconds and 300 MB of work.
_MOST_WORK = 20_000


def check_cap(cap: int) -> None:
    """Refuse a cap that leaves nothing to draw.

    Raises:
        ValueError: for a cap below 1.

    Source: ours.

    Example:
        >>> check_cap(0)
        Traceback (most recent call last):
        ValueError: cap must be at least 1, got 0: 1 is a chain, cap = budget is no cap
    """
    if not cap >= 1:
        raise ValueError(f"cap must be at least 1, got {cap}: 1 is a chain, cap = budget is no cap")
    if cap != int(cap):
        raise ValueError(f"cap must be a whole number, got {cap}: round it")


def capped_mean(rate: Float[np.ndarray, "..."], cap: int) -> Float[np.ndarray, "..."]:
    """F_c(x) = E min(c, Poisson(x)): mean arrivals of a clock that stops after c.

    It equals x Q(c, x) + c P(c + 1, x) with the regularised gamma functions, behaves as x for small x and tends to c.

    Raises:
        ValueError: for a rate that is negative or NaN, or a cap below 1.

    Source: ours, see docs/theory/cap.md.

    Example:
        >>> capped_mean(np.array([0.0, 1.0, np.inf]), 1).round(6).tolist()  # 1 - exp(-x)
        [0.0, 0.632121, 1.0]
    """
    check_cap(cap)
    if not (rate >= 0).all():
        raise ValueError(f"rate must be at least 0, got {rate[~(rate >= 0)][0]}: rates are weights times a time")
    finite = np.where(np.isfinite(rate), rate, 0.0)
    mean = finite * gammaincc(cap, finite) + cap * gammainc(cap + 1, finite)
    return np.where(np.isfinite(rate), mean, float(cap))


def capped_rate(mean: Float[np.ndarray, "..."], cap: int) -> Float[np.ndarray, "..."]:
    """The inverse of `capped_mean`: the rate at which a clock that stops after c has this mean; infinite from c on.

    Raises:
        ValueError: for a mean that is negative or NaN, or a cap below 1.

    Source: ours, see docs/theory/cap.md.

    Example:
        >>> capped_rate(np.array([0.0, 1.0, 2.0]), 2).round(5).tolist()
        [0.0, 1.14619, inf]
    """
    check_cap(cap)
    if not (mean >= 0).all():
        raise ValueError(f"mean must be at least 0, got {mean[~(mean >= 0)][0]}: it is a mean number of children")
    inside = mean < cap
    target = np.where(inside, mean, 0.0)
    rate = target.astype(np.float64)
    # F_c is concave and F_c(x) <= x, so Newton's steps from x = mean climb to the root and never pass it.
    step = np.ones_like(rate)
    while step.any():
        step = (target - capped_mean(rate, cap)) / np.maximum(gammaincc(cap, rate), 1e-300)
        step = np.where(step > 4e-16 * rate, step, 0.0)
        rate = rate + step
    return np.where(inside, rate, np.inf)


def elasticity(children_per_node: float, cap: int) -> float:
    """e(b, c) = lambda Q(c, lambda) / b with F_c(lambda) = b: the share of gamma that the cap leaves, to first order.

    For a large budget, b children a node and a small gamma, growth under the cap has the law of uncapped growth at
    e * gamma. It is 1 without a cap and 0 where every node gets the cap (b >= c).

    Raises:
        ValueError: for a cap below 1, or `children_per_node` not above 0.

    Source: ours, see docs/theory/cap.md.

    Example:
        >>> [round(elasticity(1.0, cap), 3) for cap in (1, 2, 3, 5)]
        [0.0, 0.782, 0.938, 0.997]
    """
    check_cap(cap)
    if not children_per_node > 0:
        raise ValueError(f"children_per_node must be above 0, got {children_per_node}: it is budget / active nodes")
    if children_per_node >= cap:
        return 0.0
    rate = float(capped_rate(np.array([children_per_node]), cap)[0])
    return rate * float(gammaincc(cap, rate)) / children_per_node


def finite_elasticity(num_active: int, budget: int, cap: int) -> float:
    """Response d log(E n_i / E n_j) / d log(w_i / w_j) of a stage of few nodes at equal weights; 1 without a cap.

    Raises:
        ValueError: for fewer than 2 nodes, or a budget or a cap below 1.

    Source: ours, see docs/theory/cap.md.

    Example:
        >>> [round(finite_elasticity(num_active, 5, 2), 3) for num_active in (2, 3, 4, 5)]
        [0.0, 0.364, 0.706, 0.824]
    """
    check_cap(cap)
    if num_active < 2:
        raise ValueError(f"num_active must be at least 2, got {num_active}: a lone node competes with nobody")
    if budget < 1:
        raise ValueError(f"budget must be at least 1, got {budget}: a stage draws at least one child")
    step = 1e-4
    weights = np.ones((2, num_active))
    weights[:, 0] = np.exp([step, -step])
    stages = np.repeat([0, 1], num_active)
    counts = expected_counts(weights.ravel(), stages, np.full(2, budget), cap).reshape(2, num_active)
    up, down = np.log(counts[:, 0] / counts[:, 1])
    return float((up - down) / (2 * step))


def capped_law(weights: Sequence[Fraction | int | float], budget: int, cap: int) -> dict[tuple[int, ...], Fraction]:
    """Probability of each vector of counts, in exact arithmetic, from the one-at-a-time definition of the draw.

    Raises:
        ValueError: for more than 200,000 vectors of counts, no weights, one not positive and finite, or a budget
            or a cap below 1.

    Source: IGRPO (arXiv 2607.06223), expansion stage.

    Example:
        >>> {counts: str(mass) for counts, mass in capped_law([2, 1], 3, 2).items()}
        {(2, 1): '20/27', (1, 2): '7/27'}
    """
    check_cap(cap)
    if budget < 1:
        raise ValueError(f"budget must be at least 1, got {budget}: a stage draws at least one child")
    if len(weights) == 0:
        raise ValueError("weights must hold at least one node, got none: nothing is drawn where nothing is active")
    if not all(0 < weight < np.inf for weight in weights):
        raise ValueError(f"weights must be positive and finite, got {list(weights)}: drop nodes of no weight")
    total = min(budget, cap * len(weights))
    if (min(cap, total) + 1) ** len(weights) > _MOST_COUNT_VECTORS:
        raise ValueError(
            f"weights must be few enough to enumerate, got {len(weights)} at cap {cap} and budget {budget}: "
            "use expected_counts, or draw"
        )
    exact = [Fraction(weight) for weight in weights]
    law = {(0,) * len(exact): Fraction(1)}
    for _ in range(total):
        law = _one_more_draw(law, exact, cap)
    return law


def expected_counts(
    rates: Float[np.ndarray, " A"], question: Int[np.ndarray, " A"], budget: Int[np.ndarray, " Q"], cap: int
) -> Float[np.ndarray, " A"]:
    """E[n_i] of the capped draw with these rates, for all questions at once; to about 1e-12.

    The mean is that of a race: int_0^inf w_i P(N_i <= c - 1, N_i + sum over j != i of min(c, N_j) <= m - 1) dt. Rates
    need not be normalised; a node of infinite rate takes the cap first.

    Raises:
        ValueError: for a rate that is negative or NaN, a cap below 1, or a budget below 1 where nodes are active.

    Source: ours, see docs/theory/cap.md.

    Example:
        >>> counts = expected_counts(np.array([2.0, 1.0]), np.array([0, 0]), np.array([3]), 2)
        >>> counts.round(9).tolist(), [round(1 + 20 / 27, 9), round(1 + 7 / 27, 9)]
        ([1.740740741, 1.259259259], [1.740740741, 1.259259259])
    """
    check_cap(cap)
    if not (rates >= 0).all():
        raise ValueError(f"rates must be at least 0, got {rates[~(rates >= 0)][0]}: they are weights of nodes")
    num_active = np.bincount(question, minlength=len(budget))
    if (budget[num_active > 0] < 1).any():
        raise ValueError(f"budget must be at least 1 where nodes are active, got {budget}: a stage draws a child")
    total = np.minimum(budget, np.minimum(cap, budget) * num_active)
    column = rank_within(question)
    # -1 marks the padding: sorted columns let stages that differ by the order of their nodes share the work.
    table = np.full((len(budget), int(num_active.max(initial=0))), -1.0)
    table[question, column] = np.maximum(rates, np.finfo(np.float64).smallest_subnormal)
    order = np.argsort(-table, axis=1, kind="stable")
    rows, inverse = np.unique(
        np.column_stack([total, np.take_along_axis(table, order, axis=1)]), axis=0, return_inverse=True
    )
    means = np.zeros((len(rows), table.shape[1]))
    sure, present = np.isinf(rows[:, 1:]).sum(axis=1), (rows[:, 1:] > 0).sum(axis=1)
    kinds, kind = np.unique(np.column_stack([rows[:, 0], sure, present]).astype(np.int64), axis=0, return_inverse=True)
    for number, (draws, first, last) in enumerate(kinds.tolist()):
        alike = np.flatnonzero(kind.reshape(-1) == number)
        means[alike, :first] = cap
        size = max(1, _CHUNK // max(1, draws * (last - first)))
        for chunk in np.split(alike, range(size, len(alike), size)):
            means[chunk, first:last] = _race_means(rows[chunk, 1 + first : 1 + last].T, draws - cap * first, cap).T
    counts = np.empty(table.shape)
    np.put_along_axis(counts, order, means[inverse.reshape(-1)], axis=1)
    return counts[question, column]


def _race_means(rates: Float[np.ndarray, "W R"], total: int, cap: int) -> Float[np.ndarray, "W R"]:
    """E[n_i] of stages that differ in their rates only."""
    num_nodes = len(rates)
    if num_nodes == 0 or total == cap * num_nodes:
        return np.full(rates.shape, float(cap))
    # Of their largest, so that sums stay in the range of floats; a share that underflows is as good as the smallest.
    shares = np.maximum(rates / rates.max(axis=0), np.finfo(np.float64).smallest_subnormal)
    if total <= cap:
        return total * shares / shares.sum(axis=0)
    if total * num_nodes > _MOST_WORK:
        raise ValueError(
            f"budget times active nodes must be at most {_MOST_WORK:,} for exact means under a cap, got {total} draws "
            f"for {num_nodes} nodes: lower the budget, or set cap = budget"
        )
    return _quadrature(shares, total, cap)


def _quadrature(rates: Float[np.ndarray, "W R"], total: int, cap: int) -> Float[np.ndarray, "W R"]:
    """The race's integral over t = exp(u - exp(-u)) by the trapezoidal rule, which is exponentially accurate here."""
    step = 0.1 * np.sqrt(5 / max(total, 5))
    # Late enough that even the slowest clock has stopped: its c-th arrival comes by then but for a chance of 1e-20.
    last = np.log(60 + 4 * cap) - np.log(rates.min())
    u = np.arange(-4.0, last + step, step)
    log_mean = np.log(rates)[..., None] + u - np.exp(-u)
    width = min(cap, total)
    stops = _stopped_clocks(log_mean, width)
    # P(N_i = k) P(others <= m - 1 - k), summed over k < c.
    room = np.cumsum(_sums_of_others(stops, total), axis=-1)[..., ::-1]
    chance = (stops[..., :width] * room[..., :width]).sum(axis=-1)
    speed = np.exp(np.minimum(log_mean + np.log1p(np.exp(-u)), 700.0))  # the chance is 0 long before this
    return (speed * chance).sum(axis=-1) * step


def _stopped_clocks(log_mean: Float[np.ndarray, "W R K"], cap: int) -> Float[np.ndarray, "W R K C"]:
    """P(min(cap, N) = k) for k = 0..cap at each of K times."""
    mean = np.exp(np.minimum(log_mean, 700.0))
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, cap)))])
    below = np.exp(np.arange(cap) * log_mean[..., None] - mean[..., None] - log_factorial)
    return np.concatenate([below, gammainc(cap, mean)[..., None]], axis=-1)


def _sums_of_others(stops: Float[np.ndarray, "W R K C"], total: int) -> Float[np.ndarray, "W R K M"]:
    """P(sum over j != i of the stopped clocks = k) for k = 0..total - 1, from products before and after i."""
    before, after = np.zeros((2, *stops.shape[:-1], total))
    before[0, ..., 0] = after[-1, ..., 0] = 1.0
    for node in range(1, len(stops)):
        before[node] = _convolve(before[node - 1], stops[node - 1])
        after[-1 - node] = _convolve(after[-node], stops[-node])
    return _convolve(before, after)


def _convolve(one: Float[np.ndarray, "*B M"], other: Float[np.ndarray, "*B C"]) -> Float[np.ndarray, "*B M"]:
    """The law of a sum of independent counts, up to the largest count of the first."""
    size = one.shape[-1]
    out = np.zeros_like(one)
    for k in range(min(other.shape[-1], size)):
        out[..., k:] += one[..., : size - k] * other[..., k, None]
    return out


def _one_more_draw(
    law: dict[tuple[int, ...], Fraction], weights: list[Fraction], cap: int
) -> dict[tuple[int, ...], Fraction]:
    following: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    for counts, mass in law.items():
        pool = [node for node, count in enumerate(counts) if count < cap]
        pool_weight = sum((weights[node] for node in pool), Fraction(0))
        for node in pool:
            drawn = (*counts[:node], counts[node] + 1, *counts[node + 1 :])
            following[drawn] += mass * weights[node] / pool_weight
    return dict(following)
