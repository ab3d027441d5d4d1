"""rollout: a recipe -> tokens and seconds of growing trees, against ways without a cache and without trees.

    python -m benchmarks.rollout recipes/miniature/igrpo.toml --repeats 9 --json rollout.json

Three comparisons, alternating in one run, of a policy that stays as it is:

1. prompt tokens of rollout and scoring, as a share of the official way's (`igrpo_train.accounting`);
2. seconds of a rollout, against the same sampler computing every prompt as a whole, on the same random numbers;
3. seconds of a training step, against chain GRPO with as many chains as come closest to the trees' number of turns;
   both are divided by the turns that they generated. Rows whose gradient is known to be zero are not run by either.

Ratios are what to compare: seconds depend on the machine.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro
from jaxtyping import Float, Int, UInt64

from benchmarks.reporting import check_counts, machine, report
from benchmarks.watched import WatchedTrainer, watched_trainer
from igrpo_theory.growth import GrowthRule
from igrpo_theory.randomness import question_keys
from igrpo_train.question import Question
from igrpo_train.rollout import Rollout, chain_rule, collect
from igrpo_train.search.sampling import Completion, Prefix, Sampler, Tokens
from igrpo_train.search.scoring import AnswerScorer
from igrpo_train.search.session import Turn
from igrpo_train.search.world import SearchAgent
from igrpo_train.tracking import Phases
from igrpo_train.trainer import Metrics


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to measure."""

    recipe: Annotated[Path, tyro.conf.Positional] = Path("recipes/miniature/igrpo.toml")
    """Recipe to run."""
    set: tuple[str, ...] = ()
    """Settings that differ from the recipe's, as NAME=VALUE."""
    repeats: int = 9
    """Repeats of each comparison."""
    skip: int = 1
    """Repeats before them, not measured."""
    steps: bool = True
    """Also compare training steps (3.); without them two policies fewer are in memory."""
    chains: int = 0
    """Chains a question of the comparison; 0 chooses those whose turns come closest, by one rollout of each."""
    json: Path | None = None
    """Where to write the figures; only printed when left out."""


class _Context(NamedTuple):
    stem: tuple[int, ...]
    tail: tuple[int, ...]


class Forgetful:
    """A `Sampler` that remembers ids alone and has an engine compute every prompt as a whole, whenever it is used."""

    def __init__(self, engine: Sampler) -> None:
        self._engine = engine

    def prefill(
        self,
        base: Sequence[_Context] | None,
        rows: Int[np.ndarray, " n"],
        segments: Sequence[Tokens],
        tails: Sequence[Tokens],
    ) -> Sequence[_Context]:
        """Extend the ids."""
        stems = [() if base is None else base[row].stem for row in rows.tolist()]
        return [_Context((*stem, *s), tuple(t)) for stem, s, t in zip(stems, segments, tails, strict=True)]

    def generate(
        self,
        prefix: Sequence[_Context],
        rows: Int[np.ndarray, " n"],
        keys: UInt64[np.ndarray, " n"],
        *,
        temperature: float,
        max_tokens: int,
    ) -> list[Completion]:
        """Compute a prompt for each child, and draw."""
        fresh, places = self._compute(prefix, rows)
        return self._engine.generate(fresh, places, keys, temperature=temperature, max_tokens=max_tokens)

    def score(
        self, prefix: Sequence[_Context], rows: Int[np.ndarray, " n"], continuations: Sequence[Tokens]
    ) -> list[Float[np.ndarray, " L"]]:
        """Compute a prompt for each score."""
        fresh, places = self._compute(prefix, rows)
        return self._engine.score(fresh, places, continuations)

    def take_recomputed(self) -> int:
        """Nothing is called a repetition where everything is repeated."""
        return 0

    def _compute(self, prefix: Sequence[_Context], rows: Int[np.ndarray, " n"]) -> tuple[Prefix, Int[np.ndarray, " n"]]:
        contexts = [prefix[row] for row in rows.tolist()]
        places = np.arange(len(contexts))
        return self._engine.prefill(None, places, [c.stem for c in contexts], [c.tail for c in contexts]), places


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run all three comparisons; medians over the measured repeats."""
    with tempfile.TemporaryDirectory() as folder:
        trees = watched_trainer(arguments.recipe, arguments.set, Path(folder) / "trees")
        trees.folder.close()
        num_chains, chains = 0, None
        if arguments.steps:
            num_chains = arguments.chains or _matching_chains(trees)
            overrides = (*arguments.set, "system=grpo", f"tree.budget={num_chains}", "tree.cap=1")
            chains = watched_trainer(arguments.recipe, overrides, Path(folder) / "chains")
            chains.folder.close()
        total = arguments.skip + arguments.repeats
        lines = [_repeat(trees, chains, step) for step in range(total)][arguments.skip :]
    return {
        "recipe": str(arguments.recipe),
        "repeats": arguments.repeats,
        "chains_a_question": num_chains,
        "figures": {name: median(line[name] for line in lines) for name in lines[0]},
        "spread": {
            name: [min(line[name] for line in lines), max(line[name] for line in lines)]
            for name in lines[0]
            if name.endswith("_ratio")
        },
        "machine": machine(),
    }


def _matching_chains(trees: WatchedTrainer) -> int:
    """Chains a question that generate about as many turns as its trees do, by one rollout of each."""
    rule = trees.recipe.growth_rule(0)
    questions = trees.questions[: trees.recipe.questions_per_step]
    grown = _collect(trees, trees.agent, questions, 0, rule)[0]
    chains = _collect(trees, trees.agent, questions, 0, chain_rule(rule.turn_limit, rule.budget))[0]
    return max(1, round(rule.budget * _num_turns(grown) / _num_turns(chains)))


def _collect(
    trees: WatchedTrainer, agent: SearchAgent, questions: Sequence[Question], step: int, rule: GrowthRule
) -> tuple[Rollout, float]:
    """A rollout on the random numbers of a training step, and the seconds of its phases."""
    phases = Phases(trees.phases.clock)
    keys = question_keys(trees.recipe.seed, step, np.arange(len(questions)), [question.id for question in questions])
    temperature = trees.recipe.sampling.temperature
    rollout = collect(agent, questions, keys, rule, temperature=temperature, phases=phases)
    return rollout, _rollout_s(phases.take())


def _rollout_s(metrics: Mapping[str, float]) -> float:
    return sum(metrics[f"time/{phase}_s"] for phase in ("prefill", "generation", "scoring", "retrieval"))


def _num_turns(rollout: Rollout) -> int:
    return rollout.tree.num_nodes - rollout.tree.num_questions


def _repeat(trees: WatchedTrainer, chains: WatchedTrainer | None, step: int) -> dict[str, float]:
    """Trees with a cache and the same trees without one; with `chains`, in a step of each."""
    ours = trees.grow(step) if chains is None else trees.step(step)
    sampler = Forgetful(trees.agent.sampler)
    scorer = AnswerScorer(sampler, trees.agent.prompting, trees.agent.prompting.scoring)
    forgetful = trees.agent._replace(sampler=sampler, scorer=scorer)
    rule = trees.recipe.growth_rule(step)
    grown, recomputed_s = _collect(trees, forgetful, trees.rollout.questions, step, rule)
    turns = zip(trees.rollout.tree.payload, grown.tree.payload, strict=False)
    same = mean(a.response_ids == b.response_ids for a, b in turns if isinstance(a, Turn) and isinstance(b, Turn))
    prompts = ours["tokens/prefill"] + ours["tokens/scoring"]
    official = ours["official/prompt"] + ours["official/scoring"]
    needed = ours["official/prompt"] + ours["official/scoring_needed"]
    line = {
        "prompt_tokens": prompts,
        "official_prompt_tokens": official,
        "needed_prompt_tokens": needed,
        "official_tokens_ratio": prompts / official,
        "needed_tokens_ratio": prompts / needed,
        "generated_tokens": ours["tokens/generation"],
        "official_generated_tokens": ours["official/generation"],
        "generation_tokens_ratio": ours["tokens/generation"] / ours["official/generation"],
        "same_turns": same,
        "cached_s": _rollout_s(ours),
        "recomputed_s": recomputed_s,
        "rollout_ratio": _rollout_s(ours) / recomputed_s,
    }
    return line if chains is None else line | _against_chains(ours, _num_turns(trees.rollout), chains, step)


def _against_chains(ours: Metrics, num_turns: int, chains: WatchedTrainer, step: int) -> dict[str, float]:
    """One step of chains beside one of trees."""
    theirs = chains.step(step)
    chain_turns = _num_turns(chains.rollout)

    def per_turn(own: float, other: float) -> float:
        return (own / num_turns) / (other / chain_turns)

    return {
        "tree_step_s": ours["time/step_s"],
        "tree_turns": float(num_turns),
        "tree_rows": ours["update/rows"] - ours["update/rows_skipped"],
        "chain_step_s": theirs["time/step_s"],
        "chain_turns": float(chain_turns),
        "chain_rows": theirs["update/rows"] - theirs["update/rows_skipped"],
        "step_ratio": per_turn(ours["time/step_s"], theirs["time/step_s"]),
        "grow_ratio": per_turn(_rollout_s(ours), _rollout_s(theirs)),
        "training_ratio": per_turn(ours["time/training_s"], theirs["time/training_s"]),
    }


def table(measured: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    f, spread = measured["figures"], measured["spread"]
    lines = ["| a step | ours | the other | ratio, median (range) |", "|---|---|---|---|"]

    def add(name: str, ours: str, other: str, ratio: str) -> None:
        low, high = spread[ratio]
        lines.append(f"| {name} | {ours} | {other} | {f[ratio]:.3f} ({low:.3f} to {high:.3f}) |")

    prompts = f"{f['prompt_tokens']:,.0f}"
    official, needed = (f"{f[name]:,.0f}" for name in ("official_prompt_tokens", "needed_prompt_tokens"))
    generated, theirs = (f"{f[name]:,.0f}" for name in ("generated_tokens", "official_generated_tokens"))
    add("prompt tokens of rollout and scoring, official way", prompts, official, "official_tokens_ratio")
    add("the same, only scores that are used", prompts, needed, "needed_tokens_ratio")
    add("generated tokens, official way", generated, theirs, "generation_tokens_ratio")
    add("rollout, every prompt computed again", f"{f['cached_s']:.3f} s", f"{f['recomputed_s']:.3f} s", "rollout_ratio")
    same = f"{f['same_turns']:.1%} of the turns are the same with and without the cache."
    if "step_ratio" in f:
        step, chain_step = (f"{f[f'{way}_step_s']:.3f} s, {f[f'{way}_turns']:.0f} turns" for way in ("tree", "chain"))
        rows, chain_rows = (f"{f[f'{way}_rows']:.0f} rows" for way in ("tree", "chain"))
        add("training step, chain GRPO, per turn", step, chain_step, "step_ratio")
        add("its rollout, per turn", "", "", "grow_ratio")
        add("its training, per turn", rows, chain_rows, "training_ratio")
        same += f" {measured['chains_a_question']} chains a question."
    return "\n".join([*lines, "", same])


def main() -> None:
    """Measure, print, and write where asked."""
    arguments = tyro.cli(Arguments, description=__doc__)
    check_counts(repeats=arguments.repeats)
    figures = measure(arguments)
    report(table(figures), figures, arguments.json)


if __name__ == "__main__":
    main()
