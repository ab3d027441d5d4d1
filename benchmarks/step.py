"""step: a recipe -> seconds and tokens of each phase of a training step, and peak memory.

    python -m benchmarks.step recipes/miniature/igrpo.toml --steps 12 --json step.json

Steps are real training steps; the first ones are left out. Shares and medians are what to compare: seconds depend on
the machine.
"""

import resource
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, get_args

import tyro

from benchmarks.reporting import check_counts, machine, report
from igrpo_train.recipes import load_recipe
from igrpo_train.tracking import PhaseName
from igrpo_train.trainer import Trainer

PHASES = get_args(PhaseName)
ROLLOUT = PHASES[:-1]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to measure."""

    recipe: Annotated[Path, tyro.conf.Positional] = Path("recipes/miniature/igrpo.toml")
    """Recipe to run."""
    set: tuple[str, ...] = ()
    """Settings that differ from the recipe's, as NAME=VALUE."""
    steps: int = 12
    """Measured steps."""
    skip: int = 3
    """Steps before them, not measured."""
    json: Path | None = None
    """Where to write the figures; only printed when left out."""


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run the steps; medians over the measured ones."""
    with tempfile.TemporaryDirectory() as folder:
        fixed = ("validation.every=0", f"run.folder={folder}/run", f"steps={arguments.skip + arguments.steps}")
        flags = [f"--{setting}" for setting in (*fixed, *arguments.set)]
        recipe = load_recipe([str(arguments.recipe), *flags])
        recipe = replace(recipe, run=replace(recipe.run, checkpoint_every=0))
        lines: list[dict[str, float]] = []
        trainer = Trainer(recipe, on_step=lambda step, metrics: lines.append(dict(metrics)))
        trainer.run()
    measured = lines[arguments.skip :]
    seconds = {phase: median(line[f"time/{phase}_s"] for line in measured) for phase in PHASES}
    tokens = {phase: median(line.get(f"tokens/{phase}", 0.0) for line in measured) for phase in PHASES}
    rollout = sum(seconds[phase] for phase in ROLLOUT)
    return {
        "recipe": str(arguments.recipe),
        "steps": arguments.steps,
        "step_s": median(line["time/step_s"] for line in measured),
        "seconds": seconds,
        "tokens": tokens,
        "scoring_share_of_rollout": seconds["scoring"] / rollout,
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "machine": machine(),
    }


def table(figures: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| phase | seconds a step | share of the step | tokens a step | tokens a second |",
        "|---|---|---|---|---|",
    ]
    for phase in PHASES:
        seconds, tokens = figures["seconds"][phase], figures["tokens"][phase]
        rate = f"{tokens / seconds:,.0f}" if tokens and seconds else "-"
        count = f"{tokens:,.0f}" if tokens else "-"
        lines.append(f"| {phase} | {seconds:.3f} | {seconds / figures['step_s']:.0%} | {count} | {rate} |")
    lines.append(f"| whole step | {figures['step_s']:.3f} | 100% | | |")
    lines.append("")
    lines.append(f"Answer scoring: {figures['scoring_share_of_rollout']:.1%} of rollout time.")
    lines.append(f"Peak memory: {figures['peak_memory_gib']:.2f} GiB.")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write where asked."""
    arguments = tyro.cli(Arguments, description=__doc__)
    check_counts(steps=arguments.steps)
    figures = measure(arguments)
    report(table(figures), figures, arguments.json)


if __name__ == "__main__":
    main()
