"""tree_vs_path: trees of search turns -> tokens, seconds and memory of training on them, packed both ways.

    python -m benchmarks.tree_vs_path recipes/miniature/igrpo.toml --train-steps 40 --num-questions 16
    python -m benchmarks.tree_vs_path recipes/smollm2/hotpotqa.toml --model FOLDER --questions FILE --corpus FILE \
        --scripted --turns 4 --branches 5 --passages 3 --num-questions 1 --json figures.json

The same rows train the same weights, in turns: each measurement is one `Updater.update` in a process of its own, after
a small one that warms up. Advantages are random: they change no cost, and no row is left out for having none.
`official` counts a row with its whole prompt for every turn of every path, which `path` packing computes;
`append` counts one row a path (both as `igrpo_train.accounting` defines them); `unique` counts each shared token
once, which `tree` packing computes where the budget of a pass does not cut.
"""

import multiprocessing
import pickle
import resource
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import tyro
from accelerate import Accelerator

from benchmarks.reporting import check_counts, machine, report
from benchmarks.scripted import ScriptedSampler
from igrpo_theory.randomness import question_keys
from igrpo_train.accounting import comparison_tokens
from igrpo_train.config import Packing, Recipe
from igrpo_train.data import load_questions, load_retriever
from igrpo_train.learn.batch import collate
from igrpo_train.learn.packing import TurnRow, micro_batches, pack_paths
from igrpo_train.learn.trie import lexicographic_order, plant
from igrpo_train.learn.update import Updater
from igrpo_train.policy import load_policy
from igrpo_train.recipes import load_recipe
from igrpo_train.rollout import Rollout, collect
from igrpo_train.search.scoring import AnswerScorer
from igrpo_train.setup import build_agent
from igrpo_train.tracking import Phases
from igrpo_train.trainer import Trainer

PACKINGS: tuple[Packing, ...] = ("path", "tree")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to measure."""

    recipe: Annotated[Path, tyro.conf.Positional] = Path("recipes/miniature/igrpo.toml")
    """Recipe whose model, prompts, trees, loss and budgets are used."""
    model: str | None = None
    """Policy, where not the recipe's."""
    questions: str | None = None
    """Questions file, where not the recipe's."""
    corpus: str | None = None
    """Passages file, where not the recipe's."""
    turns: int | None = None
    """Turns of a path, where not the recipe's."""
    branches: int | None = None
    """tree.budget, where not the recipe's."""
    passages: int | None = None
    """Passages of a search, where not the recipe's."""
    observation_tokens: int | None = None
    """Longest result of a search in tokens, where not the recipe's; prompts get room for all of them."""
    tokens: int | None = None
    """Budget of one forward pass, where not the recipe's."""
    num_questions: int = 16
    """Questions whose trees are trained on in one update."""
    train_steps: int = 0
    """Train the policy that grows the trees so many steps first."""
    scripted: bool = False
    """Let a script take the turns instead of the policy: it searches to the last turn."""
    kl: tuple[float, ...] = (0.0, 0.001)
    """KL coefficients to measure with; above 0 a reference is run too."""
    repeats: int = 3
    """Measurements of each packing; 0 only counts tokens."""
    updates: int = 1
    """Updates in one measurement."""
    json: Path | None = None
    """Where to write the figures."""


class Job(NamedTuple):
    """One measurement."""

    recipe: Recipe
    rows: Path
    packing: Packing
    updates: int


def resolve(arguments: Arguments, folder: str) -> Recipe:
    """The recipe with what the flags change."""
    recipe = load_recipe([str(arguments.recipe), "--validation.every=0", f"--run.folder={folder}/run"])
    agent, tree = recipe.agent, recipe.tree
    turns, passages = arguments.turns or agent.max_turns, arguments.passages or agent.top_k
    observed = arguments.observation_tokens or agent.max_observation_tokens
    response = max(agent.max_response_tokens, 160) if arguments.scripted else agent.max_response_tokens
    # Room for what the flags add: nothing may be cut that the official way would have.
    prompt = max(agent.max_prompt_tokens, turns * (observed + 100)) if arguments.scripted else agent.max_prompt_tokens
    optimiser = replace(
        recipe.optimiser,
        update_rows=10**9,
        tokens_per_micro_batch=arguments.tokens or recipe.optimiser.tokens_per_micro_batch,
    )
    return replace(
        recipe,
        model=replace(recipe.model, path=arguments.model or recipe.model.path),
        data=replace(
            recipe.data,
            train=arguments.questions or recipe.data.train,
            corpus=arguments.corpus or recipe.data.corpus,
        ),
        agent=replace(
            agent,
            max_turns=turns,
            top_k=passages,
            max_observation_tokens=observed,
            max_prompt_tokens=prompt,
            max_response_tokens=response,
        ),
        tree=replace(tree, budget=arguments.branches or tree.budget),
        optimiser=optimiser,
    )


def grow(arguments: Arguments, recipe: Recipe) -> tuple[Rollout, int]:
    """Trees of the first questions, by the policy or by the script; and the policy's hidden size."""
    checkpoint = None
    if arguments.train_steps:
        trained = load_recipe([str(arguments.recipe), "--validation.every=0", f"--run.folder={recipe.run.folder}"])
        run = replace(trained.run, checkpoint_every=0, trees_every=0)
        checkpoint = Trainer(replace(trained, steps=arguments.train_steps, run=run)).run()
    policy = load_policy(recipe.model, folder=checkpoint)
    questions = load_questions(recipe.data.train, recipe.data.hops)[: arguments.num_questions]
    agent = build_agent(policy, load_retriever(recipe.data.corpus, recipe.retrieval), recipe)
    if arguments.scripted:
        sampler = ScriptedSampler(policy.tokenizer)
        agent = agent._replace(sampler=sampler, scorer=AnswerScorer(sampler, agent.prompting, recipe.scoring))
    keys = question_keys(recipe.seed, 0, np.arange(len(questions)), [question.id for question in questions])
    rule = recipe.growth_rule(step=0)
    policy.model.eval()
    rollout = collect(agent, questions, keys, rule, temperature=recipe.sampling.temperature, phases=Phases())
    return rollout, policy.model.config.hidden_size


def rows_of(rollout: Rollout) -> list[TurnRow]:
    """Rows of all paths, each with a random advantage."""
    advantages = np.random.default_rng(0).normal(size=rollout.paths.nodes.shape)
    return pack_paths(rollout.tree, rollout.paths, advantages, np.ones(len(rollout.paths.leaf), dtype=bool))


def count_tokens(rollout: Rollout, rows: list[TurnRow], budget: int, hidden_size: int) -> dict[str, int]:
    """Tokens that the ways of laying paths out compute."""
    others = comparison_tokens(rollout, np.ones(len(rollout.paths.leaf), dtype=bool), budget=1, forced=None)
    sequences = [row.context_ids + row.response_ids for row in rows]
    unique = plant([sequences[k] for k in lexicographic_order(sequences)])
    passes = micro_batches(rows, budget, "tree", hidden_size)
    return {
        "questions": len(rollout.questions),
        "paths": len(rollout.paths.leaf),
        "rows": len(rows),
        "official": int(others["official/training"]),
        "append": int(others["append/training"]),
        "unique": len(unique.ids),
        "tree": sum(collate(part, 0, packing="tree").num_tokens for part in passes),
    }


def peak_memory_gib() -> float:
    """Most memory that this process had resident."""
    status = Path("/proc/self/status")
    if status.is_file():
        # A child's ru_maxrss starts at its parent's.
        high = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(high.split()[1]) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(job: Job) -> dict[str, float]:
    """Seconds and peak memory of updates; runs in a process of its own."""
    torch.set_num_threads(job.recipe.run.threads or 1)
    rows: list[TurnRow] = pickle.loads(job.rows.read_bytes())
    loss = job.recipe.loss
    reference = load_policy(job.recipe.model).model if loss.kl_coefficient > 0 else None
    policy = load_policy(job.recipe.model)
    optimiser = replace(job.recipe.optimiser, packing=job.packing)
    updater = Updater(Accelerator(cpu=True), policy.model, reference, optimiser, loss, 10, 1.0, policy.pad_id)
    assert updater.packing == job.packing
    updater.update(rows[:1], step_key=0)
    before = peak_memory_gib()
    wall, cpu = time.perf_counter(), time.process_time()
    for key in range(job.updates):
        metrics = updater.update(rows, step_key=1 + key)
    return {
        "seconds": (time.perf_counter() - wall) / job.updates,
        "cpu_seconds": (time.process_time() - cpu) / job.updates,
        "memory_gib": peak_memory_gib(),
        "memory_before_gib": before,
        "computed_tokens": metrics["update/computed_tokens"],
        "padded_tokens": metrics["update/padded_tokens"],
        "loss": metrics["update/loss"],
    }


def alternate(arguments: Arguments, recipe: Recipe, rows: Path) -> dict[str, dict[str, float]]:
    """Medians over the repeats, by packing and KL coefficient."""
    found: dict[tuple[str, float], list[dict[str, float]]] = {}
    context = multiprocessing.get_context("spawn")
    for coefficient in arguments.kl:
        # The script's log-probabilities are made up: the policy's own stand below the ratio.
        loss = replace(recipe.loss, kl_coefficient=coefficient, old_logprobs="policy")
        for _ in range(arguments.repeats):
            for packing in PACKINGS:
                job = Job(replace(recipe, loss=loss), rows, packing, arguments.updates)
                with context.Pool(1) as pool:
                    found.setdefault((packing, coefficient), []).append(pool.apply(measure, (job,)))
    return {
        f"{packing}, KL {coefficient:g}": {
            **{name: median(one[name] for one in several) for name in several[0]},
            "seconds_lowest": min(one["seconds"] for one in several),
            "seconds_highest": max(one["seconds"] for one in several),
        }
        for (packing, coefficient), several in found.items()
    }


def table(figures: dict[str, Any]) -> str:
    """The figures as Markdown tables."""
    tokens = figures["tokens"]
    official = tokens["official"]
    lines = [
        f"{tokens['questions']} questions, {tokens['paths']} paths, {tokens['rows']} rows; "
        f"{figures['tokens_per_pass']:,} tokens a pass.",
        "",
        "| tokens of one update | tokens | of the official way | of append-style rows |",
        "|---|---|---|---|",
    ]
    counts = {
        "official: every turn of every path": official,
        "append-style: every path once": tokens["append"],
        "unique": tokens["unique"],
        "computed by `tree`": tokens["tree"],
    }
    for name, count in counts.items():
        lines.append(f"| {name} | {count:,} | {count / official:.3f} | {count / tokens['append']:.3f} |")
    if not figures["training"]:
        return "\n".join(lines)
    lines += [
        "",
        "| training phase | seconds (lowest to highest) | CPU seconds | peak memory, GiB |",
        "|---|---|---|---|",
    ]
    for name, one in figures["training"].items():
        spread = f"{one['seconds']:.2f} ({one['seconds_lowest']:.2f} to {one['seconds_highest']:.2f})"
        lines.append(f"| {name} | {spread} | {one['cpu_seconds']:.2f} | {one['memory_gib']:.2f} |")
    for coefficient in figures["kl"]:
        tree, path = (figures["training"][f"{packing}, KL {coefficient:g}"] for packing in ("tree", "path"))
        ratios = [f"{tree[name] / path[name]:.3f}" for name in ("seconds", "cpu_seconds", "memory_gib")]
        lines.append(f"| tree : path, KL {coefficient:g} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def main() -> None:
    """Grow, measure, print, and write where asked."""
    arguments = tyro.cli(Arguments, description=__doc__)
    check_counts(num_questions=arguments.num_questions)
    with tempfile.TemporaryDirectory() as folder:
        recipe = resolve(arguments, folder)
        rollout, hidden_size = grow(arguments, recipe)
        rows = rows_of(rollout)
        held = Path(folder) / "rows"
        held.write_bytes(pickle.dumps(rows))
        figures = {
            "recipe": str(arguments.recipe),
            "train_steps": arguments.train_steps,
            "scripted": arguments.scripted,
            "tokens_per_pass": recipe.optimiser.tokens_per_micro_batch,
            "repeats": arguments.repeats,
            "kl": list(arguments.kl),
            "tokens": count_tokens(rollout, rows, recipe.optimiser.tokens_per_micro_batch, hidden_size),
            "training": alternate(arguments, recipe, held) if arguments.repeats else {},
            "machine": machine(),
        }
    report(table(figures), figures, arguments.json)


if __name__ == "__main__":
    main()
