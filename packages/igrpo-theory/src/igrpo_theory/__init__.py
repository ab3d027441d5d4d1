"""igrpo_theory: trees of turns, grown, measured and proved on; numpy only.

The functions here are the ones that training and evaluation run. A tree is generic over what a node carries: a state of
a synthetic policy in this package, a turn of a language model elsewhere.

Order of the pipeline: `tree` <- `values`, `randomness`, `expansion` -> `growth` -> `paths` -> `advantages`. Beside it:
`worlds` (synthetic policies that can be enumerated), `teacher` (the law that growing targets), `rates` (how fast),
`limits` and `finite` (where practice goes instead), `stages` and `weights` (the way back), `gap` (the distance,
measured).

Letters in shapes:
    Q  questions of a batch; a question's slot is its place in it
    N  nodes of the forest; L its leaves; n the nodes of one call
    A  active nodes of one stage, over all questions
    P  root-to-leaf paths; D the depth of the deepest; a row is a (path, turn) pair
    G  groups that statistics are taken over
    S  states of a policy tree; K its complete paths

Symbols:
    pi(o)    law of a path under the policy          s(h)    score of a node
    val(h)   value of a node                         IG(h)   s(h) - s(parent)
    V(o)     sum of val over a path but its leaf     gamma   strength of the tilt
    mu(o)    teacher law, pi(o) exp(gamma V(o)) / Z  B, c    budget and cap of a stage
"""

from igrpo_theory.advantages import GroupStatistics, Unit, group_advantages, group_statistics, normalise_by
from igrpo_theory.adversaries import ADVERSARIES, MergingWorld, adversarial_policy_tree, misleading_policy_tree
from igrpo_theory.capped import capped_law, capped_mean, capped_rate, elasticity, expected_counts, finite_elasticity
from igrpo_theory.expansion import (
    BudgetMode,
    Scheme,
    cap_at_step,
    draw_expansions,
    expansion_probabilities,
    expected_expansions,
    stage_budget,
)
from igrpo_theory.finite import FiniteLeaves, finite_law, finite_leaves, finite_work
from igrpo_theory.gap import Estimate, Gap, gap
from igrpo_theory.growth import Growth, GrowthRule, Proposal, RootScore, World, grow
from igrpo_theory.limits import (
    MeanField,
    cap_distance_bound,
    cap_slope,
    capped_reward_derivative,
    capped_reward_gain,
    capped_teacher_law,
    mean_field,
    saturation_bound,
)
from igrpo_theory.paths import Paths, multiplicity, path_values, relative_weights, root_to_leaf_paths
from igrpo_theory.policy_files import read_policy_tree
from igrpo_theory.randomness import Stream, fold, question_keys, text_key, uniforms
from igrpo_theory.rates import (
    BudgetBound,
    Flow,
    RateConstants,
    bias_rate,
    clt_covariance,
    clt_variance,
    finite_budget_bound,
    particle_flow,
    rate_constants,
)
from igrpo_theory.replicates import GrownLaws, grown_laws
from igrpo_theory.stages import Stage
from igrpo_theory.teacher import (
    Recursion,
    expected_reward,
    greedy_law,
    kl_divergence,
    log_partition,
    merged_law,
    objective,
    reward_derivative,
    reward_gain,
    teacher_law,
    teacher_law_by_recursion,
    total_variation,
)
from igrpo_theory.tree import NodeStatus, RolloutTree
from igrpo_theory.values import Criterion, information_gain, node_value
from igrpo_theory.weights import Target
from igrpo_theory.worlds import (
    PaddedTree,
    PathLaw,
    PolicyTree,
    PolicyTreeWorld,
    enumerate_paths,
    padded,
    random_policy_tree,
    states_of,
)

__all__ = [
    "ADVERSARIES",
    "BudgetBound",
    "BudgetMode",
    "Criterion",
    "Estimate",
    "FiniteLeaves",
    "Flow",
    "Gap",
    "GroupStatistics",
    "GrownLaws",
    "Growth",
    "GrowthRule",
    "MeanField",
    "MergingWorld",
    "NodeStatus",
    "PaddedTree",
    "PathLaw",
    "Paths",
    "PolicyTree",
    "PolicyTreeWorld",
    "Proposal",
    "RateConstants",
    "Recursion",
    "RolloutTree",
    "RootScore",
    "Scheme",
    "Stage",
    "Stream",
    "Target",
    "Unit",
    "World",
    "adversarial_policy_tree",
    "bias_rate",
    "cap_at_step",
    "cap_distance_bound",
    "cap_slope",
    "capped_law",
    "capped_mean",
    "capped_rate",
    "capped_reward_derivative",
    "capped_reward_gain",
    "capped_teacher_law",
    "clt_covariance",
    "clt_variance",
    "draw_expansions",
    "elasticity",
    "enumerate_paths",
    "expansion_probabilities",
    "expected_counts",
    "expected_expansions",
    "expected_reward",
    "finite_budget_bound",
    "finite_elasticity",
    "finite_law",
    "finite_leaves",
    "finite_work",
    "fold",
    "gap",
    "greedy_law",
    "group_advantages",
    "group_statistics",
    "grow",
    "grown_laws",
    "information_gain",
    "kl_divergence",
    "log_partition",
    "mean_field",
    "merged_law",
    "misleading_policy_tree",
    "multiplicity",
    "node_value",
    "normalise_by",
    "objective",
    "padded",
    "particle_flow",
    "path_values",
    "question_keys",
    "random_policy_tree",
    "rate_constants",
    "read_policy_tree",
    "relative_weights",
    "reward_derivative",
    "reward_gain",
    "root_to_leaf_paths",
    "saturation_bound",
    "stage_budget",
    "states_of",
    "teacher_law",
    "teacher_law_by_recursion",
    "text_key",
    "total_variation",
    "uniforms",
]
