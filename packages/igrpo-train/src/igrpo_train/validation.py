"""validation: held-out questions -> exact match, by trees of width one; each process takes its share of them."""

import time
from itertools import chain

import numpy as np

from igrpo_theory.randomness import question_keys
from igrpo_train.config import Recipe
from igrpo_train.processes import Processes
from igrpo_train.question import Question
from igrpo_train.rollout import chain_rule, collect
from igrpo_train.search.world import SearchAgent
from igrpo_train.tracking import Phases


def validate(agent: SearchAgent, questions: list[Question], recipe: Recipe, processes: Processes) -> dict[str, float]:
    """Metrics of one validation, the same on every process; all call it.

    Args:
        agent: what answers; its passes may run at different times on different processes.
        questions: the fixed held-out ones, at least one.
        recipe: temperature and seed of the validation, and how many rows fit a batch.
        processes: those that share the questions.
    """
    start = time.perf_counter()
    config, rule = recipe.validation, chain_rule(recipe.agent.max_turns)
    ids = [question.id for question in questions]
    # Slot 0 for all, as in igrpo_eval: what is drawn for a question depends on its id, not on its place.
    keys = question_keys(config.seed, 0, np.zeros(len(ids), dtype=np.int64), ids)
    own = range(len(ids))[processes.share(len(ids))]
    # As many rows as a training rollout has.
    size = -(-recipe.questions_per_step // processes.size) * recipe.tree.budget

    def grade() -> list[float]:
        graded: list[float] = []
        for first in own[::size]:
            part = slice(first, min(first + size, own.stop))
            chains = collect(agent, questions[part], keys[part], rule, temperature=config.temperature, phases=Phases())
            graded.extend(chains.grades.tolist())
        return graded

    grades = list(chain.from_iterable(processes.each(grade)))
    seconds = max(processes.gather(time.perf_counter() - start))
    return {"validation/exact_match": float(np.mean(grades)), "time/validation_s": seconds}
