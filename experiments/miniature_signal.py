"""miniature_signal: does the answer score of the warm-started agents tell anything before the answer is found?

    python -m experiments.miniature_signal --json docs/results/miniature_signal.json

CPU, 2 cores: about 2 minutes. For each world (leak on and off) and number of hops, on held-out questions:
AUC of s after the first search against success, from chains sampled at temperature 1; mean s after a first search that
found the right fact, and after another; and the total variation of the expansion probabilities from uniform by stage at
gamma 1, 2 and 5, on evenly grown trees, over questions with at least 3 active nodes.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from jaxtyping import Bool, Float
from rich.console import Console
from rich.table import Table
from scipy import stats

from igrpo_eval.selection import limit_questions
from igrpo_theory.expansion import expansion_probabilities
from igrpo_theory.growth import GrowthRule
from igrpo_theory.randomness import question_keys
from igrpo_train.config import Recipe
from igrpo_train.data import load_questions, load_retriever
from igrpo_train.errors import run_command
from igrpo_train.policy import load_policy
from igrpo_train.question import Question
from igrpo_train.recipes import load_recipe
from igrpo_train.rollout import Rollout, collect
from igrpo_train.search.session import Turn
from igrpo_train.search.world import SearchAgent
from igrpo_train.setup import build_agent, set_threads
from igrpo_train.tracking import Phases

GAMMAS = (1.0, 2.0, 5.0)
CHAINS = 4
"""Chains a question."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to measure."""

    recipes: tuple[Path, ...] = (Path("recipes/miniature/igrpo.toml"), Path("recipes/miniature/plain.toml"))
    """Recipes that name policy and world."""
    questions: int = 200
    """Held-out questions of each number of hops."""
    seed: int = 0
    """Of sampling."""
    json: Path | None = None
    """Where to write the figures."""


def auc(scores: Float[np.ndarray, " n"], success: Bool[np.ndarray, " n"]) -> float:
    """Probability that a success has the higher score, ties counted half; NaN without both outcomes."""
    wins, losses = int(success.sum()), int((~success).sum())
    if not wins or not losses:
        return float("nan")
    return float((stats.rankdata(scores)[success].sum() - wins * (wins + 1) / 2) / (wins * losses))


def measure(recipe: Recipe, hops: int, arguments: Arguments) -> dict[str, Any]:
    """The figures of one world and number of hops."""
    spec = recipe.data.train.replace("/train", "/test")
    questions = limit_questions(load_questions(spec, (hops,)), arguments.questions)
    agent = build_agent(load_policy(recipe.model), load_retriever(recipe.data.corpus, recipe.retrieval), recipe)
    chains = _collect(agent, questions, GrowthRule(budget=CHAINS, cap=1, score_chains=True), arguments.seed)
    trees = _collect(agent, questions, GrowthRule(gamma=0.0), arguments.seed)
    return {
        "world": recipe.model.path,
        "hops": hops,
        "questions": len(questions),
        "chains": len(chains.paths.leaf),
        "exact_match": float(chains.grades.mean()),
        **first_search(chains),
        "preamble_probability": chains.preamble_probability,
        "tv_uniform": {f"gamma_{gamma:g}": distances(trees, gamma) for gamma in GAMMAS},
    }


def first_search(chains: Rollout) -> dict[str, float]:
    """AUC of s after the first search, and its mean after the right fact and after another one."""
    nodes = chains.paths.nodes[:, 0]
    scores = chains.tree.score[nodes]
    searched = ~np.isnan(scores)
    right = np.array([_found_first_fact(chains, path) for path in range(len(nodes))])
    success = chains.grades > 0
    return {
        "searched_share": float(searched.mean()),
        "auc_first_score": auc(scores[searched], success[searched]),
        "score_right_first": float(scores[searched & right].mean()),
        "score_wrong_first": float(scores[searched & ~right].mean()),
    }


def distances(trees: Rollout, gamma: float) -> list[float]:
    """Mean total variation from uniform of each stage's probabilities at this gamma."""
    means = []
    for stage in trees.stages:
        slots = trees.tree.question[stage.nodes]
        active = np.bincount(slots, minlength=trees.tree.num_questions)
        probabilities = expansion_probabilities(trees.tree.value[stage.nodes], slots, gamma)
        spread = np.bincount(slots, weights=np.abs(probabilities - 1 / active[slots]), minlength=len(active)) / 2
        means.append(float(spread[active >= 3].mean()) if (active >= 3).any() else float("nan"))
    return means


def _found_first_fact(chains: Rollout, path: int) -> bool:
    turn = chains.tree.payload[int(chains.paths.nodes[path, 0])]
    first = chains.questions[int(chains.paths.question[path])].contexts[0]
    assert isinstance(turn, Turn)
    return first.id in turn.documents


def _collect(agent: SearchAgent, questions: list[Question], rule: GrowthRule, seed: int) -> Rollout:
    keys = question_keys(seed, 0, np.zeros(len(questions), dtype=np.int64), [question.id for question in questions])
    return collect(agent, questions, keys, rule, temperature=1.0, phases=Phases())


def run(arguments: Arguments) -> None:
    """Measure every world, print the table, write the figures where asked."""
    rows = []
    for path in arguments.recipes:
        recipe = load_recipe([str(path)])
        set_threads(recipe)
        rows += [measure(recipe, hops, arguments) for hops in (2, 3)]
    table = Table(title="what the answer score tells")
    for column in ("world", "hops", "EM", "AUC of first s", "s right / wrong", *(f"TV, gamma {g:g}" for g in GAMMAS)):
        table.add_column(column)
    for row in rows:
        spread = [" ".join(f"{value:.3f}" for value in values) for values in row["tv_uniform"].values()]
        scores = f"{row['score_right_first']:.3f} / {row['score_wrong_first']:.3f}"
        em, area = f"{row['exact_match']:.3f}", f"{row['auc_first_score']:.2f}"
        table.add_row(row["world"], str(row["hops"]), em, area, scores, *spread)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"seed": arguments.seed, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_command(lambda: run(tyro.cli(Arguments, description=__doc__)))
