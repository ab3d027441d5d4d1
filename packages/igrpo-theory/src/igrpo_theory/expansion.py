"""expansion: values of active nodes -> how many children each gets.

In: the values of the nodes that may go on, grouped by question. Out: one count a node.
Everything runs on all questions of a batch at once, and one question's counts do not depend on the others.

Letters: Q questions, A active nodes of one stage (over all questions).
Source: IGRPO (arXiv 2607.06223), expansion stage; the race form of the capped draw is ours.
"""

from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int, UInt64

from igrpo_theory.randomness import uniforms
from igrpo_theory.segments import rank_within, running_sum

BudgetMode = Literal["full", "mid", "low"]
"""Children a stage: the budget, the number of active nodes (low), or half way (mid)."""
Scheme = Literal["capped", "systematic"]
"""How counts are drawn: one at a time under a cap, or with one uniform a question and no cap."""


def stage_budget(mode: BudgetMode, budget: int, num_active: Int[np.ndarray, " Q"]) -> Int[np.ndarray, " Q"]:
    """How many children a stage may draw for each question; 0 where nothing is active.

    Source: IGRPO (arXiv 2607.06223), IGRPO-low and IGRPO-mid.

    Example:
        >>> [stage_budget(mode, 5, np.array([0, 2, 5])).tolist() for mode in ("full", "mid", "low")]
        [[0, 5, 5], [0, 3, 5], [0, 2, 5]]
    """
    budgets = {"full": np.full_like(num_active, budget), "mid": (budget + num_active) // 2, "low": num_active}
    return np.where(num_active > 0, budgets[mode], 0)


def expansion_probabilities(
    values: Float[np.ndarray, " A"], question: Int[np.ndarray, " A"], gamma: float
) -> Float[np.ndarray, " A"]:
    """p(h) proportional to exp(gamma * val(h)) among the active nodes of the same question.

    Source: IGRPO (arXiv 2607.06223), expansion probability.

    Example:
        >>> expansion_probabilities(np.array([0.9, 0.5, 0.1]), np.zeros(3, dtype=int), 1.0).round(3).tolist()
        [0.472, 0.316, 0.212]
    """
    check_gamma(gamma)
    if not np.isfinite(values).all():
        bad = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(
            f"values must be finite, got {values[bad]} for active node {bad} of question {question[bad]}: "
            "check the scorer, a node without a finite score cannot be weighed"
        )
    num_questions = int(question.max(initial=-1)) + 1
    highest = np.full(num_questions, -np.inf)
    np.maximum.at(highest, question, values)
    weights = np.exp(gamma * (values - highest[question]))
    return weights / np.bincount(question, weights=weights, minlength=num_questions)[question]


def draw_expansions(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    cap: int,
    keys: UInt64[np.ndarray, " Q"],
    scheme: Scheme = "capped",
) -> Int[np.ndarray, " A"]:
    """Child counts of one stage, for all questions at once.

    "capped" has the exact law of drawing children one at a time, where a node that has `cap` children leaves the pool
    and the others' probabilities are renormalised; a cap of at least the budget gives the plain multinomial. Each
    question draws min(budget, cap * active nodes) children. "systematic" places budget equally spaced points after a
    random reordering of the nodes, so that a count is budget * p rounded down or up.

    Probabilities need not be normalised, and a zero is drawn only when the cap forces it. `question` holds the slot of
    each node; the nodes of a question keep their order, which is all that names them. The budget of a question without
    active nodes is ignored. `keys` are already folded with the stage.

    Raises:
        ValueError: for a cap or a budget below 1, impossible probabilities, or a systematic draw with cap < budget.

    Source: IGRPO (arXiv 2607.06223), expansion stage; Kitagawa (1996) for systematic resampling.

    Example:
        >>> keys = np.array([11, 12], dtype=np.uint64)
        >>> question = np.array([0, 0, 1])
        >>> draw_expansions(np.array([0.9, 0.1, 1.0]), question, np.array([4, 5]), 2, keys).tolist()
        [2, 2, 2]
    """
    num_active = np.bincount(question, minlength=len(budget))
    _check_draw(probabilities, question, budget, num_active, cap, scheme)
    if scheme == "systematic":
        return _systematic(probabilities, question, budget, keys)
    return _capped(probabilities, question, budget, num_active, cap, keys)


def cap_at_step(cap: int, decay_steps: int, step: int) -> int:
    """The cap at a training step: one less every `decay_steps` steps, never below 1; 0 switches the decay off.

    Source: IGRPO's released code, an option that is off by default.

    Example:
        >>> [cap_at_step(3, 10, step) for step in (0, 9, 10, 25, 99)], cap_at_step(3, 0, 99)
        ([3, 3, 2, 1, 1], 3)
    """
    return max(1, cap - step // decay_steps) if decay_steps > 0 else cap


def check_gamma(gamma: float) -> None:
    """Refuse a tilt that the softmax has no meaning for.

    Source: ours.

    Example:
        >>> check_gamma(float("nan"))
        Traceback (most recent call last):
        ValueError: gamma must be finite and at least 0, got nan: 0 is uniform, 1 is the paper's
    """
    if not (np.isfinite(gamma) and gamma >= 0):
        raise ValueError(f"gamma must be finite and at least 0, got {gamma}: 0 is uniform, 1 is the paper's")


def check_cap(cap: int) -> None:
    """Refuse a cap that leaves nothing to draw.

    Source: ours.

    Example:
        >>> check_cap(0)
        Traceback (most recent call last):
        ValueError: cap must be at least 1, got 0: 1 is a chain, cap = budget is no cap
    """
    if cap < 1:
        raise ValueError(f"cap must be at least 1, got {cap}: 1 is a chain, cap = budget is no cap")


def _check_draw(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    num_active: Int[np.ndarray, " Q"],
    cap: int,
    scheme: Scheme,
) -> None:
    check_cap(cap)
    if scheme not in get_args(Scheme):
        raise ValueError(f"scheme must be one of {', '.join(get_args(Scheme))}, got {scheme}: choose one of them")
    if (budget[num_active > 0] < 1).any():
        slot = int(np.flatnonzero((num_active > 0) & (budget < 1))[0])
        raise ValueError(
            f"budget must be at least 1 where nodes are active, got {budget[slot]} for question {slot}: "
            "drop the question's nodes from the stage instead"
        )
    sums = np.bincount(question, weights=probabilities, minlength=len(budget))
    if not (np.isfinite(probabilities).all() and (probabilities >= 0).all() and (sums[num_active > 0] > 0).all()):
        raise ValueError(
            f"probabilities must be finite and non-negative with a positive sum a question, got {probabilities}: "
            "use expansion_probabilities"
        )
    if scheme == "systematic" and cap < budget.max(initial=0):
        raise ValueError(
            f"systematic resampling takes no cap below the budget, got cap {cap} and budget {budget.max()}: "
            "set cap = budget"
        )


def _capped(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    num_active: Int[np.ndarray, " Q"],
    cap: int,
    keys: UInt64[np.ndarray, " Q"],
) -> Int[np.ndarray, " A"]:
    """The capped law; questions whose budget the cap cannot bind take the multinomial, which is the same law."""
    counts = np.zeros(len(question), dtype=np.int64)
    bound = (cap < budget)[question]
    free = ~bound
    if free.any():
        counts[free] = _multinomial(probabilities[free], question[free], np.where(cap < budget, 0, budget), keys)
    if bound.any():
        total = np.minimum(budget, np.minimum(cap, budget) * num_active)
        counts[bound] = _race(probabilities[bound], question[bound], total, cap, keys)
    return counts


def _multinomial(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    keys: UInt64[np.ndarray, " Q"],
) -> Int[np.ndarray, " A"]:
    """Independent draws by inverse CDF: a draw goes to the first node whose running sum reaches it."""
    cdf, total = running_sum(probabilities, question, len(budget))
    owner = np.repeat(np.arange(len(budget)), np.where(total > 0, budget, 0))
    draws = uniforms(keys[owner], rank_within(owner)) * total[owner]
    # One sort merges nodes and draws of a question: a draw belongs to the next node after it. On a tie the draw comes
    # first, so that neither rounding up to the total nor a node of no weight can misplace it.
    is_node = np.repeat([False, True], [len(draws), len(cdf)])
    order = np.lexsort((is_node, np.concatenate([draws, cdf]), np.concatenate([owner, question])))
    return _draws_before_each_node(order, is_node, question)


def _draws_before_each_node(
    order: Int[np.ndarray, " M"], is_node: np.ndarray, question: Int[np.ndarray, " A"]
) -> Int[np.ndarray, " A"]:
    """Counts of draws between consecutive nodes in the merged order."""
    node_places = np.flatnonzero(is_node[order])
    nodes = order[node_places] - (len(order) - len(question))
    counts = np.empty(len(question), dtype=np.int64)
    counts[nodes] = np.diff(node_places, prepend=-1) - 1
    return counts


def _race(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    total: Int[np.ndarray, " Q"],
    cap: int,
    keys: UInt64[np.ndarray, " Q"],
) -> Int[np.ndarray, " A"]:
    """Poisson clocks with rates p, each stopped after `cap` arrivals; the first `total` arrivals are the draw.

    Arrivals are made in blocks, and only for nodes whose every arrival so far is among the first `total`: memory is
    linear in total + nodes at any cap. Times are logarithms, so that tiny probabilities keep their order.
    """
    log_rate = np.log(np.maximum(probabilities, np.finfo(np.float64).smallest_subnormal))
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
        order = np.lexsort((arrival_time, question[arrival_node]))
        order = order[rank_within(question[arrival_node[order]]) < total[question[arrival_node[order]]]]
        arrival_node, arrival_time = arrival_node[order], arrival_time[order]
        made = int(block[-1]) + 1
        racing = np.flatnonzero(np.bincount(arrival_node, minlength=len(question)) == made)
    return np.bincount(arrival_node, minlength=len(question))


def _systematic(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    keys: UInt64[np.ndarray, " Q"],
) -> Int[np.ndarray, " A"]:
    """Equally spaced points with one random offset a question, over its nodes in random order."""
    shuffle = np.lexsort((uniforms(keys[question], 1, rank_within(question)), question))
    question = question[shuffle]
    cdf, total = running_sum(probabilities[shuffle], question, len(budget))
    # cdf / total is exactly 1 at a question's last node, so its points add up to the budget.
    passed = np.floor(cdf / total[question] * budget[question] + uniforms(keys, 0)[question])
    first = rank_within(question) == 0
    counts = np.empty(len(question), dtype=np.int64)
    counts[shuffle] = np.where(first, passed, np.diff(passed, prepend=0.0))
    return counts
