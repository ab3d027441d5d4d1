"""gathering: rollouts of consecutive questions, one a process -> the rollout of all of them.

It is what one process would have grown: nodes get the numbers that they have where all questions grow in step. So what
follows (rewards, rows, metrics, records) is the same function of the same forest on any number of processes.
"""

from collections.abc import Sequence

import numpy as np

from igrpo_theory.forests import join
from igrpo_theory.paths import root_to_leaf_paths
from igrpo_train.rollout import Rollout


def merge_rollouts(parts: Sequence[Rollout | None]) -> Rollout:
    """One rollout of all questions, in the order of the parts.

    Args:
        parts: at least one that is not None; None stands for no question.
    """
    held = [part for part in parts if part is not None]
    if len(held) == 1:
        return held[0]
    tree = join([part.tree for part in held])
    paths = root_to_leaf_paths(tree)
    valid = np.ones(paths.nodes.shape, dtype=bool)
    first = 0
    for part in held:
        rows, turns = part.valid.shape
        valid[first : first + rows, :turns] = part.valid
        first += rows
    scored = [int((~np.isnan(part.tree.score)).sum()) for part in held]
    means = [part.preamble_probability for part, count in zip(held, scored, strict=True) if count]
    return Rollout(
        questions=tuple(question for part in held for question in part.questions),
        tree=tree,
        stages=tree.stages,
        paths=paths,
        grades=np.concatenate([part.grades for part in held]),
        truncated=np.concatenate([part.truncated for part in held]),
        scores=np.concatenate([part.scores for part in held]),
        valid=valid,
        preamble_probability=float(np.average(means, weights=[c for c in scored if c])) if means else float("nan"),
    )
