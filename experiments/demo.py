"""demo: a warm-started miniature agent learns to search -> table, curves and `summary.json`.

Evaluate on held-out questions, train by the recipe, evaluate again. CPU, 2 cores: a few minutes.

    python -m experiments.demo --seed 0
    python -m experiments.demo --seed 0 --compare      chain GRPO and gamma = 0 at the same budget beside it
    python -m experiments.demo --seed 0 --resume       after an interrupt
"""

import json
import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from experiments.curves import draw_curves
from igrpo_eval.evaluate import evaluate
from igrpo_eval.metrics import Summary, summarise
from igrpo_eval.selection import limit_questions
from igrpo_train.__main__ import headline
from igrpo_train.checks import check, check_fields, count
from igrpo_train.config import Recipe
from igrpo_train.data import load_questions, load_retriever
from igrpo_train.errors import run_command
from igrpo_train.policy import load_policy
from igrpo_train.progress import Progress
from igrpo_train.question import Question
from igrpo_train.recipes import load_recipe
from igrpo_train.setup import build_agent, set_threads
from igrpo_train.trainer import Trainer

_ARMS = ("igrpo", "grpo", "igrpo_gamma0")
EVALUATION_SEED = 1
"""Of sampling during evaluation: the same before and after, for every training seed."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to run."""

    seed: int = 0
    """Seed of the training run."""
    recipe: Path = Path("recipes/miniature/igrpo.toml")
    """Recipe of the training run."""
    folder: Path = Path("runs/demo")
    """Where summary.json, curves.png and the run go; an earlier demo there is replaced."""
    per_hop: int = 240
    """Held-out questions of each number of hops."""
    compare: bool = False
    """Also train chain GRPO and gamma = 0 at the same budget."""
    resume: bool = False
    """Go on with the run in the folder."""

    def __post_init__(self) -> None:
        check_fields("", self, "per_hop", count, "at least 1")


def main() -> None:
    """Run the demo; errors that a person can put right are shown in a panel."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    arguments = tyro.cli(Arguments, description=__doc__)
    run_command(lambda: run(arguments))


def run(arguments: Arguments) -> dict[str, Any]:
    """Run every arm, print the table, write `summary.json` and `curves.png`.

    Returns:
        what `summary.json` holds.
    """
    start = time.perf_counter()
    console = Console()
    recipes = {arm: _recipe(arguments, arm) for arm in (_ARMS if arguments.compare else _ARMS[:1])}
    questions = held_out(recipes["igrpo"], arguments.per_hop)
    # Only now: a wrong setting does not cost the earlier demo.
    if not arguments.resume:
        _clear(arguments.folder)
    console.print(f"before: {len(questions)} held-out questions", highlight=False)
    before = measure(recipes["igrpo"], questions, folder=None)
    results: dict[str, dict[str, Any]] = {}
    for arm, recipe in recipes.items():
        seconds = _train(recipe, arm, resume=arguments.resume and Path(recipe.run.folder).exists())
        results[arm] = {"after": measure(recipe, questions, _newest(recipe)), "train_seconds": seconds}
    summary = summarise_demo(before, results, questions, arguments.seed)
    summary["seconds_total"] = round(time.perf_counter() - start, 1)
    (arguments.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    draw_curves({arm: Path(recipe.run.folder) for arm, recipe in recipes.items()}, arguments.folder / "curves.png")
    console.print(_table(before, {arm: result["after"] for arm, result in results.items()}))
    console.print(f"{arguments.folder / 'summary.json'}, {arguments.folder / 'curves.png'}", highlight=False)
    return summary


def held_out(recipe: Recipe, per_hop: int) -> list[Question]:
    """Questions of the test world, whose names no training question holds: as many of each number of hops."""
    train, hops = recipe.data.train, recipe.data.hops
    ours = train.startswith("miniature:") and train.endswith("/train")
    check("data.train", train, ours, "miniature:NAME/train", "the demo asks the test questions of the same world")
    check("data.hops", hops, bool(hops), "the numbers of hops to evaluate", "[2, 3] is a good choice")
    spec = train.replace("/train", "/test")
    return [q for hops in recipe.data.hops for q in limit_questions(load_questions(spec, (hops,)), per_hop)]


def measure(recipe: Recipe, questions: Sequence[Question], folder: Path | None) -> dict[str, list[Summary]]:
    """Sampled and greedy exact match of a checkpoint, or of the recipe's starting policy."""
    set_threads(recipe)
    policy = load_policy(recipe.model, folder=folder)
    agent = build_agent(policy, load_retriever(recipe.data.corpus, recipe.retrieval), recipe)
    return {
        name: summarise(
            evaluate(
                agent,
                questions,
                turn_limit=recipe.agent.max_turns,
                temperature=temperature,
                seed=EVALUATION_SEED,
                batch_questions=240,
            )
        )
        for name, temperature in (("sampled", 1.0), ("greedy", 0.0))
    }


def summarise_demo(
    before: dict[str, list[Summary]], results: dict[str, Any], questions: Sequence[Question], seed: int
) -> dict[str, Any]:
    """The figures of `summary.json`; exact match in [0, 1], with 95% bootstrap intervals over questions."""

    def figures(when: str, measured: dict[str, list[Summary]]) -> dict[str, Any]:
        overall, *groups = measured["sampled"]
        return {
            f"em_{when}": overall.exact_match.mean,
            f"em_{when}_ci": [overall.exact_match.low, overall.exact_match.high],
            f"em_{when}_by_hops": {group.group: group.exact_match.mean for group in groups},
            f"greedy_{when}": measured["greedy"][0].exact_match.mean,
        }

    arms = {
        arm: {**figures("after", result["after"]), "train_seconds": round(result["train_seconds"], 1)}
        for arm, result in results.items()
    }
    others = {arm: values for arm, values in arms.items() if arm != "igrpo"}
    return {
        **figures("before", before),
        **arms["igrpo"],
        **({"compared": others} if others else {}),
        "questions": len(questions),
        "seed": seed,
    }


def _clear(folder: Path) -> None:
    """Delete an earlier demo, and never anything else.

    Raises:
        FileExistsError: the folder holds what no demo writes, or is none.
    """
    if not folder.exists():
        return
    others = [path.name for path in folder.iterdir() if not _is_ours(path)] if folder.is_dir() else ["a file"]
    if others:
        raise FileExistsError(
            f"folder must be new or hold nothing but an earlier demo, got {str(folder)!r} with "
            f"{', '.join(others[:3])}: name another one, or remove it"
        )
    shutil.rmtree(folder)


def _is_ours(path: Path) -> bool:
    if path.is_dir():
        return path.name in _ARMS and ((path / "code.json").exists() or not any(path.iterdir()))
    return path.name in ("summary.json", "curves.png")


def _recipe(arguments: Arguments, arm: str) -> Recipe:
    recipe = load_recipe([str(arguments.recipe), "--system", arm, "--seed", str(arguments.seed)])
    return replace(recipe, run=replace(recipe.run, folder=str(arguments.folder / arm)))


def _train(recipe: Recipe, arm: str, *, resume: bool) -> float:
    start = time.perf_counter()
    trainer = Trainer(recipe, resume=resume)
    with Progress(recipe.steps, done=trainer.state.step, unit=f"{arm} step") as progress:
        trainer.on_step = lambda step, metrics: progress.update(step, headline(metrics))
        trainer.run()
    return time.perf_counter() - start


def _newest(recipe: Recipe) -> Path:
    from igrpo_train.learn.checkpoint import latest

    folder = latest(Path(recipe.run.folder) / "checkpoints")
    assert folder is not None
    return folder


def _table(before: dict[str, list[Summary]], after: dict[str, dict[str, list[Summary]]]) -> Table:
    table = Table(title="exact match on held-out questions (95% interval)")
    for column in ("policy", "sampled", "greedy", "turns", "searches"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name, measured in {"before": before, **after}.items():
        for sampled, greedy in zip(measured["sampled"], measured["greedy"], strict=True):
            em = sampled.exact_match
            label = name if sampled.group == "all" else f"  {sampled.group}"
            interval = f"{em.mean:.3f} [{em.low:.3f}, {em.high:.3f}]"
            turns, searches = f"{sampled.turns:.2f}", f"{sampled.searches:.2f}"
            table.add_row(label, interval, f"{greedy.exact_match.mean:.3f}", turns, searches)
    return table


if __name__ == "__main__":
    main()
