"""race: rates, a cap and a budget -> counts under the cap.

In: the rates of the active nodes, grouped by question, and the draws of each question. Out: one count a node.
Clocks race: the first m arrivals of Poisson clocks, each stopped after `cap` arrivals, are distributed as m draws made
one at a time where a full node leaves the pool, because clocks forget.

Letters: Q questions, A active nodes of one stage (over all questions).
Source: ours, see docs/theory/cap.md.
"""

import numpy as np
from jaxtyping import Float, Int, UInt64

from igrpo_theory.capped import capped_rate
from igrpo_theory.randomness import uniforms
from igrpo_theory.segments import order_within, rank_within


def race(
    rates: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    total: Int[np.ndarray, " Q"],
    cap: int,
    keys: UInt64[np.ndarray, " Q"],
) -> Int[np.ndarray, " A"]:
    """Counts of the first `total` arrivals of Poisson clocks, each stopped after `cap`; total <= cap * nodes.

    Arrivals are made in blocks, and only for nodes whose every arrival so far is among the first `total`: memory is
    linear in total + nodes at any cap. Times are logarithms, so that tiny rates keep their order; an infinite rate
    takes the cap before all others.

    Source: ours, see docs/theory/cap.md.

    Example:
        >>> keys = np.array([1], dtype=np.uint64)
        >>> race(np.array([np.inf, 1.0, 1e-30]), np.array([0, 0, 0]), np.array([4]), 2, keys).tolist()
        [2, 2, 0]
    """
    log_rate = np.log(np.maximum(rates, np.finfo(np.float64).smallest_subnormal))
    position = rank_within(question)
    clock = np.zeros(len(question))
    racing = np.arange(len(question))
    arrival_node = np.empty(0, dtype=np.int64)
    arrival_time = np.empty(0)
    made = 0
    while len(racing) > 0 and made < cap:
        block = np.arange(made, min(cap, max(2, 2 * made)))
        gaps = -np.log(uniforms(keys[question[racing], None], position[racing, None], block))
        clocks = clock[racing, None] + np.cumsum(gaps, axis=1)
        clock[racing] = clocks[:, -1]
        times = np.log(clocks) - log_rate[racing, None]
        arrival_node = np.concatenate([arrival_node, np.repeat(racing, len(block))])
        arrival_time = np.concatenate([arrival_time, times.ravel()])
        order = order_within(arrival_time, question[arrival_node])
        order = order[rank_within(question[arrival_node[order]]) < total[question[arrival_node[order]]]]
        arrival_node, arrival_time = arrival_node[order], arrival_time[order]
        made = int(block[-1]) + 1
        racing = np.flatnonzero(np.bincount(arrival_node, minlength=len(question)) == made)
    return np.bincount(arrival_node, minlength=len(question))


def calibrated_rates(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    total: Int[np.ndarray, " Q"],
    cap: int,
) -> Float[np.ndarray, " A"]:
    """Rates that undo what the cap does to the means: F_c^{-1}(total * p), infinite where total * p reaches the cap.

    As the budget grows, the mean counts of a race at these rates tend to total * p as long as no node's share passes
    the cap, so that capped growth targets the teacher law; where shares pass the cap they are clipped to it.

    Source: ours, see docs/theory/schemes.md.

    Example:
        >>> calibrated_rates(np.array([0.5, 0.25, 0.25]), np.array([0, 0, 0]), np.array([4]), 2).round(5).tolist()
        [inf, 1.14619, 1.14619]
    """
    sums = np.bincount(question, weights=probabilities, minlength=len(total))
    return capped_rate(probabilities * total[question] / sums[question], cap)
