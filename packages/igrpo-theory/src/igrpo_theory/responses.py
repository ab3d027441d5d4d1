"""responses: the states of one stage and their weights -> what a stage of infinite budget does to each.

In: the law of the active nodes over states, their values, and b, the children a node. Out: the mean number of children
of a node at each state, and its chance of none. A node of weight w has b w / E w children without a cap and
F_c(lambda w) under a cap c, where lambda makes the mean b. Where b >= c all get c children, whatever they weigh.

Letters: A states with active nodes.
Source: ours, see docs/theory/cap.md.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

from igrpo_theory.capped import capped_mean, capped_rate
from igrpo_theory.expansion import Scheme

# A gap in log-weight that is as good as an infinite one: of two clocks this far apart, one has stopped before the other
# starts. It keeps the search for lambda within the reach of floating point at any gamma.
_WIDEST_GAP = 2000.0


class StageResponse(NamedTuple):
    """What one stage does to its active states."""

    log_rate: float
    """log lambda: infinite where every node gets the cap, NaN without a cap."""
    log_mean: Float[np.ndarray, " A"]
    """The log of the mean number of children."""
    none: Float[np.ndarray, " A"]
    """Chance of drawing no child."""


def stage_response(
    law: Float[np.ndarray, " A"],
    values: Float[np.ndarray, " A"],
    gamma: float,
    children_per_node: float,
    cap: int | None,
    scheme: Scheme = "capped",
) -> StageResponse:
    """Mean children and chance of none for weights exp(gamma * value), where the nodes are spread over states by `law`.

    Source: ours, see docs/theory/cap.md.

    Example:
        >>> response = stage_response(np.array([0.5, 0.5]), np.array([0.0, 0.0]), 1.0, 1.0, 2)
        >>> round(float(np.exp(response.log_rate)), 5), np.exp(response.log_mean).round(5).tolist()
        (1.14619, [1.0, 1.0])
    """
    with np.errstate(over="ignore"):
        log_weight = _close_gaps(np.nan_to_num(gamma * (values - values.max())))
    log_share = np.log(children_per_node) + log_weight - np.log(law @ np.exp(log_weight))
    if cap is None:
        return StageResponse(np.nan, log_share, _CHANCE_OF_NONE[scheme](np.exp(log_share)))
    if children_per_node >= cap:
        return StageResponse(np.inf, np.full(len(law), np.log(cap)), np.zeros(len(law)))
    calibrated = scheme == "calibrated"
    log_weight = _log_capped_rate(log_share, cap) if calibrated else log_weight
    log_rate = _solve(law, log_weight, children_per_node, cap)
    log_arrivals = log_rate + log_weight
    highest = 0.0 if calibrated else gamma * float(values.max())
    none = np.exp(-np.exp(np.minimum(log_arrivals, 700.0)))
    return StageResponse(log_rate - highest, _log_capped_mean(log_arrivals, cap), none)


def _close_gaps(log_weight: Float[np.ndarray, " A"]) -> Float[np.ndarray, " A"]:
    if np.ptp(log_weight) < _WIDEST_GAP:
        return log_weight
    order = np.argsort(-log_weight)
    gaps = np.minimum(-np.diff(log_weight[order], prepend=0.0), _WIDEST_GAP)
    closed = np.empty(len(log_weight))
    closed[order] = -np.cumsum(gaps)
    return closed


def _solve(
    law: Float[np.ndarray, " A"], log_weight: Float[np.ndarray, " A"], children_per_node: float, cap: int
) -> float:
    """The log rate at which the mean count is b < c."""

    def excess(log_rate: float) -> float:
        return float(law @ np.exp(_log_capped_mean(log_rate + log_weight, cap)) - children_per_node)

    finite = log_weight[np.isfinite(log_weight)]
    # F_c(x) <= x bounds the root from below, and at x = 100 + 10 c every clock has stopped. Beside infinite rates (a
    # calibrated share that passes the cap) the rest may have next to nothing left to draw.
    low = np.log(children_per_node) - finite.max() - (1.0 if len(finite) == len(log_weight) else 700.0)
    high = np.log(100 + 10 * cap) - finite.min()
    if excess(low) >= 0:
        return float(low)
    if excess(high) <= 0:
        return float(high)
    return float(brentq(excess, low, high, xtol=1e-14, rtol=8.9e-16, maxiter=500))


def _log_capped_mean(log_arrivals: Float[np.ndarray, " A"], cap: int) -> Float[np.ndarray, " A"]:
    """Log F_c(x); log x itself where x is so small that exp would underflow."""
    arrivals = np.exp(np.clip(log_arrivals, -40, 700))
    return np.where(log_arrivals < -40, log_arrivals, np.log(capped_mean(arrivals, cap)))


def _log_capped_rate(log_mean: Float[np.ndarray, " A"], cap: int) -> Float[np.ndarray, " A"]:
    """The inverse of `_log_capped_mean`."""
    return np.where(log_mean < -40, log_mean, np.log(capped_rate(np.exp(np.maximum(log_mean, -40)), cap)))


def _none_if_stratified(share: Float[np.ndarray, " A"]) -> Float[np.ndarray, " A"]:
    """An interval of this length, anywhere on slices of length 1 that hold one point each, misses all points."""
    return np.where(share < 1, 1 - share + share**3 / 6, np.maximum(2 - share, 0.0) ** 3 / 6)


_CHANCE_OF_NONE: dict[str, Callable[[Float[np.ndarray, " A"]], Float[np.ndarray, " A"]]] = {
    "capped": lambda share: np.exp(-share),
    "calibrated": lambda share: np.exp(-share),
    "systematic": lambda share: np.maximum(1 - share, 0.0),
    "residual": lambda share: np.where(share < 1, np.exp(-share), 0.0),
    "stratified": _none_if_stratified,
}
