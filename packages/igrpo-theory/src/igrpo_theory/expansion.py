"""expansion: values of active nodes -> how many children each gets.

In: the values of the nodes that may go on, grouped by question. Out: one count a node.
Everything runs on all questions of a batch at once, and one question's counts do not depend on the others. This module
is the one sampler; `race` and `resampling` hold its schemes.

Letters: Q questions, A active nodes of one stage (over all questions).
Source: IGRPO (arXiv 2607.06223), expansion stage.
"""

from typing import Literal, get_args

import numpy as np
from jaxtyping import Float, Int, UInt64

from igrpo_theory import resampling
from igrpo_theory.capped import check_cap, expected_counts
from igrpo_theory.race import calibrated_rates, race
from igrpo_theory.segments import group_max, group_sizes, group_sum

BudgetMode = Literal["full", "mid", "low"]
"""Children a stage: the budget, the number of active nodes (low), or half way (mid)."""
Scheme = Literal["capped", "systematic", "residual", "stratified", "calibrated"]
"""How counts are drawn: one at a time under a cap ("capped"; "calibrated" corrects the weights for the cap), or without
a cap and closer to the mean counts than independent draws (the others)."""

_UNCAPPED = {
    "systematic": resampling.systematic,
    "residual": resampling.residual,
    "stratified": resampling.stratified,
}


def stage_budget(mode: BudgetMode, budget: int, num_active: Int[np.ndarray, " Q"]) -> Int[np.ndarray, " Q"]:
    """How many children a stage may draw for each question; 0 where nothing is active.

    Raises:
        ValueError: for a budget below 1 or an unknown mode.

    Source: IGRPO (arXiv 2607.06223), IGRPO-low and IGRPO-mid.

    Example:
        >>> [stage_budget(mode, 5, np.array([0, 2, 5])).tolist() for mode in ("full", "mid", "low")]
        [[0, 5, 5], [0, 3, 5], [0, 2, 5]]
    """
    check_mode(mode)
    if budget < 1:
        raise ValueError(f"budget must be at least 1, got {budget}: a stage draws at least one child")
    budgets = {"full": np.full_like(num_active, budget), "mid": (budget + num_active) // 2, "low": num_active}
    return np.where(num_active > 0, budgets[mode], 0)


def expansion_probabilities(
    values: Float[np.ndarray, " A"], question: Int[np.ndarray, " A"], gamma: float
) -> Float[np.ndarray, " A"]:
    """p(h) proportional to exp(gamma * val(h)) among the active nodes of the same question.

    Raises:
        ValueError: for a gamma below 0 or not finite, or a value that is not finite.

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
    highest = group_max(values, question, num_questions)
    slot = question if num_questions > 1 else slice(None)
    # Halves, since the gap of two values may overflow; and minus infinity is the right exponent for a huge gamma.
    weights = values / 2 - highest[slot] / 2
    with np.errstate(over="ignore"):
        weights *= gamma
        weights *= 2
    np.exp(weights, out=weights)
    weights /= group_sum(weights, question, num_questions)[slot]
    return weights


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
    question draws min(budget, cap * active nodes) children. "calibrated" does the same with weights that make up for
    the cap (see `calibrated_rates`). The others take no cap and have mean counts budget * p: "systematic" places
    equally spaced points after a random reordering of the nodes, "stratified" one point in each of `budget` slices,
    "residual" hands out whole shares and draws the rest.

    Probabilities need not be normalised, and a zero is drawn only when the cap forces it. `question` holds the slot of
    each node; the nodes of a question keep their order, which is all that names them. The budget of a question without
    active nodes is ignored. `keys` are already folded with the stage.

    Raises:
        ValueError: for a cap or a budget below 1, impossible probabilities, or an uncapped scheme with cap < budget.

    Source: IGRPO (arXiv 2607.06223), expansion stage; Douc, Cappe, Moulines (2005) for the uncapped schemes.

    Example:
        >>> keys = np.array([11, 12], dtype=np.uint64)
        >>> question = np.array([0, 0, 1])
        >>> draw_expansions(np.array([0.9, 0.1, 1.0]), question, np.array([4, 5]), 2, keys).tolist()
        [2, 2, 2]
    """
    num_active = group_sizes(question, len(budget))
    _check_draw(probabilities, question, budget, num_active, cap, scheme)
    if scheme in _UNCAPPED:
        return _UNCAPPED[scheme](probabilities, question, budget, keys)
    # Where the cap cannot bind, the one-at-a-time law is the multinomial, and there is nothing to calibrate.
    if (cap >= budget).all():
        return resampling.multinomial(probabilities, question, budget, keys)
    counts = np.zeros(len(question), dtype=np.int64)
    bound = (cap < budget)[question]
    free = ~bound
    if free.any():
        unbound = np.where(cap < budget, 0, budget)
        counts[free] = resampling.multinomial(probabilities[free], question[free], unbound, keys)
    if bound.any():
        total = np.minimum(budget, np.minimum(cap, budget) * num_active)
        rates = _race_rates(probabilities[bound], question[bound], total, cap, scheme)
        counts[bound] = race(rates, question[bound], total, cap, keys)
    return counts


def expected_expansions(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    cap: int,
    scheme: Scheme = "capped",
) -> Float[np.ndarray, " A"]:
    """The mean of `draw_expansions`, to about 1e-12: budget * p where no cap binds, the race's integral elsewhere.

    Raises:
        ValueError: as `draw_expansions` does.

    Source: ours, see docs/theory/cap.md.

    Example:
        >>> expected_expansions(np.array([0.6, 0.4]), np.array([0, 0]), np.array([3]), 2).round(6).tolist()
        [1.648, 1.352]
    """
    num_active = group_sizes(question, len(budget))
    _check_draw(probabilities, question, budget, num_active, cap, scheme)
    sums = np.bincount(question, weights=probabilities, minlength=len(budget))
    means = probabilities * budget[question] / sums[question]
    bound = (cap < budget)[question]
    if bound.any():
        total = np.minimum(budget, np.minimum(cap, budget) * num_active)
        rates = _race_rates(probabilities[bound], question[bound], total, cap, scheme)
        means[bound] = expected_counts(rates, question[bound], total, cap)
    return means


def cap_at_step(cap: int, decay_steps: int, step: int) -> int:
    """The cap at a training step: one less every `decay_steps` steps, never below 1; 0 switches the decay off.

    Raises:
        ValueError: for a cap below 1, or steps below 0.

    Source: IGRPO's released code, an option that is off by default.

    Example:
        >>> [cap_at_step(3, 10, step) for step in (0, 9, 10, 25, 99)], cap_at_step(3, 0, 99)
        ([3, 3, 2, 1, 1], 3)
    """
    check_cap(cap)
    for name, number in (("decay_steps", decay_steps), ("step", step)):
        if number < 0:
            raise ValueError(f"{name} must be at least 0, got {number}: steps count from 0, and no decay is 0 steps")
    return max(1, cap - step // decay_steps) if decay_steps > 0 else cap


def check_gamma(gamma: float) -> None:
    """Refuse a tilt that is no finite number, and one that would favour the worse nodes.

    Raises:
        ValueError: for a gamma below 0, infinite or NaN.

    Source: ours.

    Example:
        >>> check_gamma(-1.0)
        Traceback (most recent call last):
        ValueError: gamma must be finite and at least 0, got -1.0: a negative tilt would favour the worse nodes ...
    """
    if not (np.isfinite(gamma) and gamma >= 0):
        raise ValueError(
            f"gamma must be finite and at least 0, got {gamma}: a negative tilt would favour the worse nodes, and the "
            "theorems are stated for gamma >= 0; 0 is uniform, 1 is the paper's"
        )


def check_mode(mode: str) -> None:
    """Refuse an unknown budget mode.

    Raises:
        ValueError: for a mode that is none of `BudgetMode`.

    Source: ours.

    Example:
        >>> check_mode("half")
        Traceback (most recent call last):
        ValueError: mode must be one of full, mid, low, got half: choose one of them
    """
    if mode not in get_args(BudgetMode):
        raise ValueError(f"mode must be one of {', '.join(get_args(BudgetMode))}, got {mode}: choose one of them")


def check_scheme(scheme: str, cap: int, budget: int) -> None:
    """Refuse an unknown scheme, and a cap where the scheme has none.

    Raises:
        ValueError: for either.

    Source: ours.

    Example:
        >>> check_scheme("residual", 2, 5)
        Traceback (most recent call last):
        ValueError: residual resampling takes no cap below the budget, got cap 2 and budget 5: set cap = budget
    """
    if scheme not in get_args(Scheme):
        raise ValueError(f"scheme must be one of {', '.join(get_args(Scheme))}, got {scheme}: choose one of them")
    if scheme in _UNCAPPED and cap < budget:
        raise ValueError(
            f"{scheme} resampling takes no cap below the budget, got cap {cap} and budget {budget}: set cap = budget"
        )


def _check_draw(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    budget: Int[np.ndarray, " Q"],
    num_active: Int[np.ndarray, " Q"],
    cap: int,
    scheme: Scheme,
) -> None:
    check_cap(cap)
    if not np.issubdtype(budget.dtype, np.integer):
        raise ValueError(f"budget must hold whole numbers, got {budget}: round them")
    if (budget[num_active > 0] < 1).any():
        slot = int(np.flatnonzero((num_active > 0) & (budget < 1))[0])
        raise ValueError(
            f"budget must be at least 1 where nodes are active, got {budget[slot]} for question {slot}: "
            "drop the question's nodes from the stage instead"
        )
    highest = group_max(probabilities, question, len(budget))[num_active > 0]
    # Not a number fails every comparison; sums and shares of what is further from 1 would leave the range of floats.
    if not (probabilities.min(initial=0) >= 0 and (highest > 1e-100).all() and (highest < 1e100).all()):
        raise ValueError(
            "probabilities must be finite and non-negative, with a largest between 1e-100 and 1e100 a question, got "
            f"{probabilities}: divide by their sum, or use expansion_probabilities"
        )
    check_scheme(scheme, cap, int(budget.max(initial=0)))


def _race_rates(
    probabilities: Float[np.ndarray, " A"],
    question: Int[np.ndarray, " A"],
    total: Int[np.ndarray, " Q"],
    cap: int,
    scheme: Scheme,
) -> Float[np.ndarray, " A"]:
    return calibrated_rates(probabilities, question, total, cap) if scheme == "calibrated" else probabilities
