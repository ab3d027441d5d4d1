"""statistics: a rollout and its rewards -> metrics of trees, groups and rewards.

Names are `stage/quantity_unit`; shares are in [0, 1].
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from igrpo_theory.growth import GrowthRule
from igrpo_theory.stages import Stage
from igrpo_train.rollout import Rollout
from igrpo_train.search.agent import ActionKind
from igrpo_train.search.session import Turn

TINY_REWARD = 0.05
"""A truncated leaf's reward below this is noise that group normalisation would blow up to full size."""


def tree_metrics(rollout: Rollout, rule: GrowthRule) -> dict[str, float]:
    """How large the trees are and how they ended.

    `tree/unique_turns` counts nodes, `tree/path_turns` the rows that the paths make of them, `rollout/searches` the
    searches that were carried out (one in the last allowed turn is not), all a question.

    Args:
        rollout: the grown batch.
        rule: what it was grown by.
    """
    tree, paths = rollout.tree, rollout.paths
    num_questions = tree.num_questions
    turns = [payload for payload in tree.payload if isinstance(payload, Turn)]
    inner = [tree.payload[node] for node in np.flatnonzero(tree.depth < rule.turn_limit)]
    searches = [turn for turn in inner if isinstance(turn, Turn) and turn.action.kind is ActionKind.SEARCH]
    finished = ~rollout.truncated
    answered = np.array([prediction is not None for prediction in rollout.predictions()])
    metrics = {
        "tree/unique_turns": len(turns) / num_questions,
        "tree/path_turns": float(paths.length.sum()) / num_questions,
        "tree/paths": len(paths.leaf) / num_questions,
        "tree/truncated_share": float(rollout.truncated.mean()),
        "rollout/exact_match": _mean(rollout.grades[finished]),
        "rollout/no_answer_share": 1.0 - _mean(answered[finished]),
        "rollout/invalid_share": _mean([not turn.action.valid for turn in turns]),
        "rollout/searches": len(searches) / num_questions,
        "rollout/response_tokens": _mean([len(turn.response_ids) for turn in turns]),
        "rollout/cut_observations": float(sum(turn.observation_cut for turn in turns)),
        "rollout/full_contexts": float(sum(turn.finish == "context" for turn in turns)),
        "scoring/answer_score": _mean(tree.score[~np.isnan(tree.score)]),
        "scoring/preamble_probability": rollout.preamble_probability,
    }
    return metrics | expansion_metrics(rollout.stages, tree.question, num_questions, rule.cap)


def expansion_metrics(
    stages: Sequence[Stage], question: Int[np.ndarray, " N"], num_questions: int, cap: int
) -> dict[str, float]:
    """What the expansion draws had to choose from and how far they were from uniform.

    `expansion/forced_share`: question-stages whose every active node had to be filled to the cap or to the budget, so
    that values had no say. `expansion/tv_uniform`: mean total variation of the draw's probabilities from uniform on
    question-stages with at least 3 active nodes and a real choice.

    Args:
        stages: the expansion stages after the root.
        question: slot of every node.
        num_questions: Q.
        cap: children that a node may get.
    """
    metrics: dict[str, float] = {}
    forced: list[bool] = []
    distances: list[float] = []
    for stage in stages:
        slots = question[stage.nodes]
        active = np.bincount(slots, minlength=num_questions)
        spread = np.abs(stage.probabilities - 1.0 / active[slots])
        distance = 0.5 * np.bincount(slots, weights=spread, minlength=num_questions)
        alive = active > 0
        fixed = np.minimum(cap, stage.budget) * active <= stage.budget
        metrics[f"expansion/active_turn_{stage.depth}"] = float(active.sum()) / num_questions
        forced.extend(fixed[alive].tolist())
        distances.extend(distance[alive & ~fixed & (active >= 3)].tolist())
    metrics["expansion/forced_share"] = _mean(forced)
    metrics["expansion/tv_uniform"] = _mean(distances)
    return metrics


def group_metrics(
    rollout: Rollout,
    rewards: Float[np.ndarray, " P"],
    keep: Bool[np.ndarray, " P"],
    penalties: Float[np.ndarray, "P D"],
) -> dict[str, float]:
    """Reward parts, and groups that teach nothing or only noise.

    `group/zero_variance_share`: questions whose kept paths all have one reward. `group/noise_share`: questions whose
    finished paths all have one grade while truncated leaves below `TINY_REWARD` supply the only spread.
    """
    slots = rollout.paths.question
    zero, noise = [], []
    for slot in range(rollout.tree.num_questions):
        own = keep & (slots == slot)
        finished = own & ~rollout.truncated
        spread = np.ptp(rewards[own]) > 0 if own.any() else False
        settled = not finished.any() or np.ptp(rewards[finished]) == 0
        cut = rewards[own & rollout.truncated]
        zero.append(not spread)
        noise.append(bool(spread and settled and len(cut) and cut.max() < TINY_REWARD))
    finished_reward = rewards[keep & ~rollout.truncated]
    return {
        "group/zero_variance_share": _mean(zero),
        "group/noise_share": _mean(noise),
        "reward/mean": _mean(rewards[keep]),
        "reward/finished": _mean(finished_reward),
        "reward/truncated": _mean(rewards[keep & rollout.truncated]),
        "reward/penalty": float(penalties.sum()) / max(1, len(slots)),
    }


def _mean(values: Sequence[float] | Sequence[bool] | np.ndarray) -> float:
    """Mean as a float; NaN of nothing."""
    return float(np.mean(values)) if len(values) else float("nan")
