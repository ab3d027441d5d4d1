"""limits: a policy tree and a rule of growth -> the law that growing reaches as its budget goes to infinity.

In: a finite policy tree, and what `GrowthRule` says of growing. Out: how many leaves of each kind there are per unit of
budget: complete paths, and leaves truncated at each state. On a padded tree without a cap the complete paths have the
teacher law; the cap, early answers and truncated leaves each take it away from there.

Letters: S states, K complete paths in the order of `enumerate_paths`, D depth.
Source: ours, see docs/theory/cap.md.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from igrpo_theory.capped import check_cap, elasticity
from igrpo_theory.expansion import BudgetMode, Scheme, check_gamma, check_mode, check_scheme
from igrpo_theory.responses import stage_response
from igrpo_theory.worlds import PolicyTree, enumerate_paths, padded


class MeanField(NamedTuple):
    """Growth per unit of budget, as the budget goes to infinity."""

    complete: Float[np.ndarray, " K"]
    """Leaves that end complete paths."""
    truncated: Float[np.ndarray, " S"]
    """Leaves that were active at a state and drew no child."""
    nodes: Float[np.ndarray, " D"]
    """Nodes at depths 1..D; 1 at depth 1."""
    children_per_node: Float[np.ndarray, " E"]
    """b_t for t = 1..D-1: the budget of a stage over its active nodes; 0 where none is active."""
    log_rate: Float[np.ndarray, " E"]
    """log lambda_t for weights exp(gamma val) or calibrated rates; infinite if all get the cap, NaN without a race."""
    log_response: Float[np.ndarray, " S"]
    """log f_t(w): the log of the mean number of children; 0 at states that are never expanded."""

    @property
    def complete_law(self) -> Float[np.ndarray, " K"]:
        """The law of a complete path."""
        return self.complete / self.complete.sum()

    @property
    def training_law(self) -> Float[np.ndarray, " L"]:
        """The law of a path that training sees: K complete ones, then S truncated ones by the state they end at."""
        leaves = np.concatenate([self.complete, self.truncated])
        return leaves / leaves.sum()

    @property
    def truncated_share(self) -> float:
        """The share of truncated leaves among all."""
        return float(self.truncated.sum() / (self.complete.sum() + self.truncated.sum()))


def mean_field(
    policy: PolicyTree,
    gamma: float,
    cap: int | None,
    *,
    mode: BudgetMode = "full",
    scheme: Scheme = "capped",
    children_per_node: Sequence[float] | None = None,
) -> MeanField:
    """The limit of growth at a budget that goes to infinity; answers leave the pool of active nodes, as in `grow`.

    Args:
        policy: the policy; `padded` keeps answered paths in the pool, as theorem 1 does.
        gamma: strength of the tilt.
        cap: most children a node; None is no cap.
        mode: children a stage, as in `GrowthRule`.
        scheme: how counts are drawn; under an uncapped one only the truncated leaves differ.
        children_per_node: b_t for t = 1..T-1 in place of a budget mode, for budgets that change from stage to stage.

    Raises:
        ValueError: for a gamma, cap, mode, scheme or `children_per_node` without meaning, or a cap under an uncapped
            scheme.

    Source: ours, see docs/theory/answers.md.

    Example:
        >>> from igrpo_theory.teacher import teacher_law
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> bool(np.allclose(mean_field(policy, 1.0, None).complete_law, teacher_law(policy, 1.0)))
        True
        >>> round(mean_field(policy, 0.0, 2).truncated_share, 4)  # 2 p / (1 + 2 p) for p = exp(-1.14619)
        0.3886
    """
    _check_limit(policy, gamma, cap, mode, scheme, children_per_node)
    depth, num_stages = policy.depth, policy.turns - 1
    internal = np.bincount(policy.parent[1:], minlength=len(depth)) > 0
    mass = np.where(depth == 1, policy.probability, 0.0)
    truncated, log_response = np.zeros((2, len(depth)))
    ratios, rates = np.zeros(num_stages), np.full(num_stages, np.nan)
    for stage in range(num_stages):
        active = np.flatnonzero((depth == stage + 1) & internal & (mass > 0))
        if len(active) == 0:
            continue
        alive = mass[active].sum()
        wanted = _budget(mode, alive) / alive if children_per_node is None else children_per_node[stage]
        ratios[stage] = wanted if cap is None else min(wanted, cap)
        drawn = stage_response(mass[active] / alive, policy.value[active], gamma, ratios[stage], cap, scheme)
        rates[stage], log_response[active] = drawn.log_rate, drawn.log_mean
        truncated[active] = mass[active] * drawn.none
        below = depth == stage + 2
        born = (mass * np.exp(log_response))[policy.parent] * policy.probability
        mass[below] = np.where(internal[policy.parent], born, 0.0)[below]
    nodes = np.bincount(depth, weights=mass, minlength=policy.turns + 1)[1:]
    return MeanField(mass[policy.ends], truncated, nodes, ratios, rates, log_response)


def capped_teacher_law(
    policy: PolicyTree, gamma: float, cap: int | None, children_per_node: float = 1.0
) -> Float[np.ndarray, " K"]:
    """mu_cap(o) = pi(o) times the product of f_t(w_t) / b_t: what growth on the padded tree tends to under a cap.

    Without a cap it is the teacher law. With b >= c it is the policy itself.

    Raises:
        ValueError: as `mean_field` does.

    Source: ours, see docs/theory/cap.md.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> bool(np.allclose(capped_teacher_law(policy, 5.0, 1), enumerate_paths(policy).probability))
        True
    """
    longer = padded(policy)
    ratios = [children_per_node] * (policy.turns - 1)
    law = np.empty(len(policy.ends))
    law[longer.path] = mean_field(longer.policy, gamma, cap, children_per_node=ratios).complete_law
    return law


def capped_reward_gain(policy: PolicyTree, gamma: float, cap: int | None, children_per_node: float = 1.0) -> float:
    """E_mu_cap[R] - E_pi[R]: what growth under a cap earns more than the policy; `reward_gain` without a cap.

    Raises:
        ValueError: as `mean_field` does.

    Source: ours, see docs/theory/reward.md.

    Example:
        >>> from igrpo_theory.adversaries import misleading_policy_tree
        >>> [round(capped_reward_gain(misleading_policy_tree(), 1.0, cap), 4) for cap in (None, 2)]
        [-0.2311, -0.1863]
    """
    law = enumerate_paths(policy)
    return float((capped_teacher_law(policy, gamma, cap, children_per_node) - law.probability) @ law.reward)


def capped_reward_derivative(
    policy: PolicyTree, gamma: float, cap: int | None, children_per_node: float = 1.0
) -> float:
    """Slope in gamma of E_mu_cap[R], in closed form: Cov_mu_cap(S, R) with S = d log mu_cap / d gamma.

    S is the sum of e_t (val - m_t) over the stages; e_t is the `elasticity` at a node's own mean number of children,
    and m_t keeps the mass of stage t. Without a cap e_t = 1 and it is `reward_derivative`.

    Raises:
        ValueError: as `mean_field` does.

    Source: ours, see docs/theory/reward.md.

    Example:
        >>> from igrpo_theory.adversaries import misleading_policy_tree
        >>> [round(capped_reward_derivative(misleading_policy_tree(), 1.0, cap), 4) for cap in (None, 2)]
        [-0.1966, -0.1689]
    """
    longer = padded(policy).policy
    field = mean_field(longer, gamma, cap, children_per_node=[children_per_node] * (policy.turns - 1))
    paths = enumerate_paths(longer)
    law, score = paths.probability, np.zeros(len(paths.probability))
    for stage in range(policy.turns - 1):
        state = paths.states[:, stage]
        children = np.exp(field.log_response[state])
        law = law * children / (law @ children)  # weighed by the stages up to here
        # A mean that underflows to 0 responds like any small one, in full.
        small = np.maximum(children, np.finfo(np.float64).tiny).tolist()
        left = np.ones(len(law)) if cap is None else np.array([elasticity(mean, cap) for mean in small])
        if law @ left > 0:
            value = longer.value[state]
            score += left * (value - law @ (score + left * value) / (law @ left))
    return float(law @ (score * paths.reward))


def cap_distance_bound(policy: PolicyTree, gamma: float, cap: int, children_per_node: float = 1.0) -> float:
    """tanh(D / 4) >= TV(mu_cap, mu), where D sums the oscillation of log(f_t(w) / w) over the stages; for every gamma.

    Raises:
        ValueError: as `mean_field` does.

    Source: ours, see docs/theory/cap.md (two laws whose log-ratio has oscillation D).

    Example:
        >>> from igrpo_theory.teacher import teacher_law, total_variation
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> distance = total_variation(capped_teacher_law(policy, 1.0, 2), teacher_law(policy, 1.0))
        >>> distance < cap_distance_bound(policy, 1.0, 2) < 1
        True
    """
    longer = padded(policy).policy
    ratios = [children_per_node] * (policy.turns - 1)
    field = mean_field(longer, gamma, cap, children_per_node=ratios)
    possible = np.zeros(len(longer.parent), dtype=bool)
    law = enumerate_paths(longer)
    possible[law.states[law.probability > 0]] = True
    spread = 0.0
    with np.errstate(over="ignore"):
        for depth in range(1, longer.turns):
            here = possible & (longer.depth == depth)
            log_weight = gamma * (longer.value[here] - longer.value[here].max())
            spread += float(np.ptp(field.log_response[here] - log_weight))
    return float(np.tanh(spread / 4))


def saturation_bound(cap: int, children_per_node: Sequence[float]) -> float:
    """KL(mu_cap || pi) is at most the sum of log(c / b_t) nats, and mu_cap / pi at most its exponential, at any gamma.

    Raises:
        ValueError: for a cap below 1, or a ratio not above 0.

    Source: ours, see docs/theory/cap.md.

    Example:
        >>> round(saturation_bound(2, [1.0, 1.0, 1.0]), 3)
        2.079
    """
    check_cap(cap)
    if not all(ratio > 0 for ratio in children_per_node):
        raise ValueError(f"children_per_node must be above 0, got {list(children_per_node)}: budget / active nodes")
    return float(sum(np.log(max(cap / ratio, 1.0)) for ratio in children_per_node))


def cap_slope(policy: PolicyTree, cap: int, children_per_node: float = 1.0) -> float:
    """TV(mu_cap, mu) / gamma as gamma goes to 0: (1 - e) / 2 times the mean absolute deviation of V under the policy.

    Raises:
        ValueError: as `elasticity` does.

    Source: ours, see docs/theory/cap.md; e is `elasticity`.

    Example:
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> round(cap_slope(policy, 2), 4)
        0.0331
    """
    law = enumerate_paths(policy)
    deviation = law.probability @ np.abs(law.value - law.probability @ law.value)
    return float((1 - elasticity(children_per_node, cap)) * deviation / 2)


def _budget(mode: BudgetMode, alive: float) -> float:
    return {"full": 1.0, "mid": (1 + alive) / 2, "low": alive}[mode]


def _check_limit(
    policy: PolicyTree,
    gamma: float,
    cap: int | None,
    mode: str,
    scheme: str,
    children_per_node: Sequence[float] | None,
) -> None:
    check_gamma(gamma)
    check_mode(mode)
    check_scheme(scheme, cap=1, budget=1)
    if cap is not None:
        check_cap(cap)
        if scheme not in ("capped", "calibrated"):
            raise ValueError(f"{scheme} resampling takes no cap, got cap {cap}: set cap = None")
    if children_per_node is None:
        return
    if len(children_per_node) != policy.turns - 1:
        raise ValueError(
            f"children_per_node must be one number a stage, got {len(children_per_node)} for {policy.turns - 1}: "
            "stages are the depths 1..T-1"
        )
    if not all(0 < ratio < np.inf for ratio in children_per_node):
        raise ValueError(f"children_per_node must be above 0 and finite, got {list(children_per_node)}: it is b_t")
