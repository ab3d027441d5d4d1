"""command: `igrpo-train RECIPE.toml [--key value ...]` -> a run folder; with `warmstart`, `fetch`, `index` and `serve`.

Also `accelerate launch -m igrpo_train ...`. Nothing heavy is imported before the arguments are read.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from igrpo_train.errors import run_command

HELP = """\
igrpo-train RECIPE.toml [MORE.toml ...] [--key value ...] [--resume]   train; later settings win
igrpo-train RECIPE.toml --dry-run [--json FILE] [--key value ...]      check and estimate, start nothing
igrpo-train warmstart RECIPE.toml --out FOLDER [--warm.key value ...]  supervised start from gold passages
igrpo-train fetch smollm2 [FOLDER]                                     a small real model, converted once
igrpo-train fetch data|corpus|index FOLDER                             the paper's data, from the Hugging Face hub
igrpo-train index CORPUS.jsonl --out FOLDER [--encoder MODEL]          a dense index; the same command goes on
igrpo-train serve CORPUS [--index FOLDER] [--port 8000]                a search server over BM25 or the index
igrpo-train --help-recipe                                              every key of a recipe
"""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 2 after an error that a person can put right."""
    given = list(sys.argv[1:] if args is None else args)
    # Of many processes one speaks.
    main_process = os.environ.get("RANK", "0") == "0"
    logging.basicConfig(level=logging.WARNING if main_process else logging.ERROR, format="%(message)s")
    if not given or given[0] in ("-h", "--help"):
        sys.stdout.write(HELP)
        return
    commands: dict[str, Callable[[list[str]], None]] = {
        "warmstart": _warmstart,
        "fetch": _fetch,
        "index": _index,
        "serve": _serve,
    }
    command, rest = commands.get(given[0]), given[1:]
    if command is None:
        command = _dry_run if "--dry-run" in given else _train
        rest = [arg for arg in given if arg != "--dry-run"]
    run_command(lambda: command(rest))


def _train(args: list[str]) -> None:
    from igrpo_train.recipes import load_recipe

    resume = "--resume" in args
    recipe = load_recipe([_help_flag(arg) for arg in args if arg != "--resume"])
    from igrpo_train.launch import describe
    from igrpo_train.progress import Progress
    from igrpo_train.trainer import Trainer

    trainer = Trainer(recipe, resume=resume)
    if not trainer.processes.is_main:
        trainer.run()
        trainer.processes.finish()
        return
    with Progress(recipe.steps, done=trainer.state.step) as progress:
        progress.note(describe(trainer.accelerator))
        trainer.on_step = lambda step, metrics: progress.update(step, headline(metrics))
        try:
            folder = trainer.run()
        except KeyboardInterrupt:
            progress.note(f"stopped; go on with --resume ({recipe.run.folder})")
            raise
        progress.note(f"last checkpoint: {folder}")
    trainer.processes.finish()


def _dry_run(args: list[str]) -> None:
    from igrpo_train.dry_run_command import command

    command(args)


def headline(metrics: Mapping[str, float]) -> dict[str, float]:
    """The few figures of a step that the progress line shows."""
    shown = {"reward": "reward/mean", "em": "rollout/exact_match", "valid em": "validation/exact_match"}
    figures = {label: metrics[name] for label, name in shown.items() if name in metrics}
    seconds = metrics.get("time/step_s")
    if seconds:
        figures["tokens/s"] = sum(value for name, value in metrics.items() if name.startswith("tokens/")) / seconds
    return figures


def _help_flag(arg: str) -> str:
    return "--help" if arg == "--help-recipe" else arg


def _warmstart(args: list[str]) -> None:
    import tyro

    from igrpo_train.config import Recipe
    from igrpo_train.recipes import load_settings
    from igrpo_train.warmstart import WarmStart, warm_start

    @dataclass(frozen=True, kw_only=True)
    class Arguments:
        recipe: Annotated[Recipe, tyro.conf.arg(name=""), tyro.conf.FlagConversionOff]
        out: Path
        """New folder for the model."""
        warm: WarmStart = field(default_factory=WarmStart)

    usage = "igrpo-train warmstart RECIPE.toml [MORE.toml ...] --out FOLDER [--warm.key value ...]"
    own = load_settings(Arguments, args, program="igrpo-train warmstart", usage=usage)
    from igrpo_train.progress import Progress

    with Progress(own.warm.steps) as progress:
        folder = warm_start(own.recipe, own.out, own.warm, on_step=progress.update)
        progress.note(f"model: {folder}")


def _fetch(args: list[str]) -> None:
    what, folder = (args[0] if args else ""), (Path(args[1]) if args[1:] else None)
    known = what == "smollm2" or (what in ("data", "corpus", "index") and folder is not None)
    if not known or len(args) > 2 or args[-1].startswith("-"):
        raise ValueError(
            f"fetch must name what to get, got {' '.join(args)!r}: igrpo-train fetch smollm2 [FOLDER], or "
            "igrpo-train fetch data|corpus|index FOLDER"
        )
    if folder is None or what == "smollm2":
        from igrpo_train.fetch import fetch_smollm2

        sys.stdout.write(f"{fetch_smollm2(folder)}\n")
        return
    from igrpo_train.hub import fetch_published

    for path in fetch_published(what, folder):
        sys.stdout.write(f"{path}\n")


def _index(args: list[str]) -> None:
    import tyro

    from igrpo_train.search.index_settings import BuildIndex

    usage = "igrpo-train index CORPUS.jsonl --out FOLDER [--key value ...]: the same command goes on after a stop."
    settings = tyro.cli(BuildIndex, prog="igrpo-train index", description=usage, args=args, use_underscores=True)
    from igrpo_train.progress import Progress
    from igrpo_train.search.index import IndexBuilder

    with (
        IndexBuilder(settings) as builder,
        Progress(builder.num_passages, done=builder.num_encoded, unit="passage") as progress,
    ):
        folder = builder.run(progress.update)
        progress.note(f"index: {folder}")


def _serve(args: list[str]) -> None:
    import tyro

    from igrpo_train.search.server import Serve, serve

    usage = "igrpo-train serve CORPUS [--index FOLDER] [--key value ...]: prints its address; Ctrl-C stops it."
    serve(tyro.cli(Serve, prog="igrpo-train serve", description=usage, args=args, use_underscores=True))


if __name__ == "__main__":
    main()
