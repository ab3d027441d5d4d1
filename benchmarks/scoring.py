"""scoring: a recipe -> what answer scores cost as a share of a training step, and against the official way.

    python -m benchmarks.scoring recipes/miniature/igrpo.toml --steps 10 --json scoring.json

Steps are real training steps of a policy that stays as it is. The time of prefilling nodes that were scored and drew
no child is their share of the prefilled tokens. The official way computes each scored node's whole prompt again; it is
timed on the same trees, right after each step. Shares and ratios are what to compare: seconds depend on the machine.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any, get_args

import numpy as np
import tyro

from benchmarks.reporting import check_counts, machine, report
from benchmarks.watched import WatchedTrainer, watched_trainer
from igrpo_theory.tree import NodeStatus
from igrpo_train.rollout import Rollout
from igrpo_train.search.session import Prompt, context_segments
from igrpo_train.tracking import PhaseName

PHASES = get_args(PhaseName)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to measure."""

    recipe: Annotated[Path, tyro.conf.Positional] = Path("recipes/miniature/igrpo.toml")
    """Recipe to run."""
    set: tuple[str, ...] = ()
    """Settings that differ from the recipe's, as NAME=VALUE."""
    steps: int = 10
    """Measured steps."""
    skip: int = 1
    """Steps before them, not measured."""
    json: Path | None = None
    """Where to write the figures; only printed when left out."""


def measure(arguments: Arguments) -> dict[str, Any]:
    """Take the steps; medians over the measured ones."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = watched_trainer(arguments.recipe, arguments.set, Path(folder) / "run")
        if not trainer.recipe.growth_rule(0).needs_scores:
            raise SystemExit(f"{arguments.recipe} must score nodes: set tree.cap above 1, or scoring.always = True")
        lines = [_step(trainer, step) for step in range(arguments.skip + arguments.steps)][arguments.skip :]
        trainer.folder.close()
    figures = {name: median(line[name] for line in lines) for name in lines[0]}
    spread = {name: [min(line[name] for line in lines), max(line[name] for line in lines)] for name in SHARES}
    return {
        "recipe": str(arguments.recipe),
        "steps": arguments.steps,
        "figures": figures,
        "spread": spread,
        "machine": machine(),
    }


SHARES = ("forced_share", "scoring_share", "official_share", "official_ratio")


def _step(trainer: WatchedTrainer, step: int) -> dict[str, float]:
    """One training step, and the same scores the official way."""
    metrics = trainer.step(step)
    unused = unexpanded_tokens(trainer.rollout)
    official_s, official_tokens = whole_prompt_scores(trainer)
    forced_s, step_s = metrics["time/scoring_s"], metrics["time/step_s"]
    unused_s = metrics["time/prefill_s"] * unused / metrics["tokens/prefill"]
    line = {f"{phase}_s": metrics[f"time/{phase}_s"] for phase in PHASES}
    line |= {f"{phase}_tokens": metrics.get(f"tokens/{phase}", 0.0) for phase in PHASES}
    return line | {
        "step_s": step_s,
        "scored": float((~np.isnan(trainer.rollout.tree.score)).sum()),
        "unexpanded_tokens": float(unused),
        "unexpanded_s": unused_s,
        "official_s": official_s,
        "official_tokens": float(official_tokens),
        "forced_share": forced_s / step_s,
        "scoring_share": (forced_s + unused_s) / step_s,
        "official_share": official_s / (step_s - forced_s - unused_s + official_s),
        "official_ratio": official_s / (forced_s + unused_s),
    }


def unexpanded_tokens(rollout: Rollout) -> int:
    """Tokens that were prefilled for nodes which were scored and drew no child, tails included."""
    tree = rollout.tree
    tokens = 0
    for node in np.flatnonzero((tree.status == NodeStatus.TRUNCATED) & ~np.isnan(tree.score)).tolist():
        *_, history, tail = context_segments(tree, node)
        tokens += len(history) + len(tail)
    return tokens


def whole_prompt_scores(trainer: WatchedTrainer) -> tuple[float, int]:
    """Seconds and tokens of scoring the same nodes, a stage at a time, each with its whole prompt."""
    agent, tree = trainer.agent, trainer.rollout.tree
    start, tokens = trainer.phases.clock(), 0
    for depth in range(1, int(tree.depth.max()) + 1):
        nodes = np.flatnonzero((tree.depth == depth) & ~np.isnan(tree.score)).tolist()
        if not nodes:
            continue
        contexts = [sum(context_segments(tree, node), ()) for node in nodes]
        prompts = [tree.payload[int(tree.question[node])] for node in nodes]
        rows = np.arange(len(nodes))
        prefix = agent.sampler.prefill(None, rows, contexts, [()] * len(nodes))
        answers = [prompt.question.answers for prompt in prompts if isinstance(prompt, Prompt)]
        tokens += sum(map(len, contexts)) + agent.scorer.score(prefix, rows, answers).tokens
    return trainer.phases.clock() - start, tokens


def table(measured: dict[str, Any]) -> str:
    """The figures as Markdown tables."""
    f, spread = measured["figures"], measured["spread"]
    lines = ["| phase | seconds a step | share of the step | tokens a step |", "|---|---|---|---|"]
    for phase in PHASES:
        seconds, tokens = f[f"{phase}_s"], f[f"{phase}_tokens"]
        lines.append(f"| {phase} | {seconds:.3f} | {seconds / f['step_s']:.1%} | {tokens:,.0f} |")
    lines += [
        f"| whole step | {f['step_s']:.3f} | 100% | |",
        "",
        "| answer scores | seconds a step | share of the step, median (range) | tokens a step |",
        "|---|---|---|---|",
    ]

    def line(name: str, seconds: float, share: str, tokens: float) -> str:
        low, high = spread[share]
        return f"| {name} | {seconds:.3f} | {f[share]:.1%} ({low:.1%} to {high:.1%}) | {tokens:,.0f} |"

    both_s, both = f["scoring_s"] + f["unexpanded_s"], f["scoring_tokens"] + f["unexpanded_tokens"]
    low, high = spread["official_ratio"]
    return "\n".join(
        [
            *lines,
            line("forced answers with their preamble", f["scoring_s"], "forced_share", f["scoring_tokens"]),
            line("those, and nodes that are never expanded", both_s, "scoring_share", both),
            line("the official way: whole prompts", f["official_s"], "official_share", f["official_tokens"]),
            "",
            f"{f['scored']:.0f} nodes scored a step. The official way takes {f['official_ratio']:.1f} times "
            f"({low:.1f} to {high:.1f}) as long.",
        ]
    )


def main() -> None:
    """Measure, print, and write where asked."""
    arguments = tyro.cli(Arguments, description=__doc__)
    check_counts(steps=arguments.steps)
    figures = measure(arguments)
    report(table(figures), figures, arguments.json)


if __name__ == "__main__":
    main()
