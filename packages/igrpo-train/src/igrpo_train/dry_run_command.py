"""dry_run_command: arguments of `igrpo-train RECIPE.toml --dry-run` -> the report as text, and as JSON if asked for."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import tyro

from igrpo_train.checks import check_fields, positive
from igrpo_train.config import Recipe
from igrpo_train.dry_run import Report, dry_run
from igrpo_train.errors import DiskError
from igrpo_train.estimate import GB, Memory
from igrpo_train.recipes import load_settings

_WIDTH: Final = 80
"""Characters of a setting's value that are shown; the JSON report has them all."""
_ROOM: Final = 0.9
"""Share of a GPU's memory that a plan may fill: the allocator leaves gaps."""


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """A recipe, and what the report is compared with."""

    recipe: Annotated[Recipe, tyro.conf.arg(name=""), tyro.conf.FlagConversionOff]
    json: Path | None = None
    """File for the report in JSON."""
    gpu_gb: float = 141.0
    """Memory of one GPU in GB of 10^9 bytes."""
    step_s: float = 443.3
    """Seconds of a step, for the rate of searches; the paper reports this many."""

    def __post_init__(self) -> None:
        check_fields("", self, "gpu_gb step_s", positive, "finite and above 0")


def command(args: Sequence[str]) -> None:
    """Print the report of a dry run.

    Args:
        args: recipe files, then flags; with `--resume` as for a run that goes on.

    Raises:
        ValueError, FileNotFoundError, MissingExtra, SystemExit: as the run itself would.
        DiskError: the JSON file cannot be written.
    """
    usage = "igrpo-train RECIPE.toml [MORE.toml ...] --dry-run [--json FILE] [--key value ...]"
    given = [arg for arg in args if arg != "--resume"]
    own = load_settings(DryRun, given, program="igrpo-train", usage=usage)
    gpu_bytes = int(own.gpu_gb * GB)
    report = dry_run(own.recipe, gpu_bytes=gpu_bytes, resume="--resume" in args)
    if own.json is not None:
        try:
            own.json.write_text(report.to_json(), encoding="utf-8")
        except OSError as error:
            raise DiskError(
                f"json must be a file that can be written, got {str(own.json)!r} ({error.strerror})"
            ) from error
    sys.stdout.writelines(f"{line}\n" for line in report_lines(report, gpu_bytes=gpu_bytes, step_s=own.step_s))


def report_lines(report: Report, *, gpu_bytes: int, step_s: float) -> Iterator[str]:
    """The report as text.

    Args:
        report: what was found.
        gpu_bytes: memory of one GPU, which plans are compared with.
        step_s: seconds of a step, for the rate that a search server must keep up with.
    """
    yield "settings that differ from the defaults"
    yield from (f"  {name} = {_short(value)} (default {_short(old)})" for name, (old, value) in report.settings.items())
    yield from ("", "model", *_model_lines(report))
    yield from ("", "data")
    yield from (f"  {part.setting} {part.spec}: {part.checked}" for part in report.data)
    yield from ("", "one step, at most", *_load_lines(report, step_s))
    yield ""
    if not report.memory:
        yield "memory: no estimate, the shape of the model is unknown here"
        return
    if report.cpu:
        yield "memory of the process in GB, by formula, without the program's own"
    else:
        yield f"memory of one GPU in GB, by formula; it fits up to {_ROOM:.0%} of {gpu_bytes / GB:g} GB"
    header = "GPUs sharding weights gradients moments reference copies activations logits sampler update rollout fits"
    rows = [header.split()]
    for part in report.memory:
        for memory, name in ((part.memory, ""), (part.checkpointed, "*")):
            fits = "yes" if memory.peak <= _ROOM * gpu_bytes else "no"
            cells = [_gigabytes(size) for size in _columns(memory)]
            rows.append([f"{part.processes}{name}", part.sharding, *cells, "" if report.cpu else fits])
    yield from _aligned(rows)
    yield "  * with gradient checkpointing"


def _short(value: str) -> str:
    """A value on a part of a line."""
    return value if len(value) <= _WIDTH else f"{value[: _WIDTH - 3]}..."


def _model_lines(report: Report) -> Iterator[str]:
    model, shape = report.model, report.model.shape
    counted = "unknown" if model.parameters is None else f"{model.parameters:,}"
    yield f"  {model.path}: {model.checked}"
    yield f"  {model.architecture or 'architecture unknown here'}, {counted} parameters"
    if shape is not None:
        yield (
            f"  {shape.layers} layers, hidden {shape.hidden}, MLP {shape.intermediate}, {shape.heads} heads, "
            f"{shape.kv_heads} of keys and values, head size {shape.head_size}, vocabulary {shape.vocabulary}"
        )
    yield f"  tokenizer: {model.tokenizer}"
    yield f"  engine: {report.engine}"


def _load_lines(report: Report, step_s: float) -> Iterator[str]:
    load = report.load
    head = "unknown here" if report.head_tokens is None else f"{report.head_tokens} tokens"
    yield f"  prompt of the first question: {head}"
    yield f"  {load.nodes:,} nodes, {load.paths:,} paths, {load.rows:,} rows, {load.optimiser_steps} optimiser steps"
    yield (
        f"  {load.sampled_tokens:,} sampled tokens, {load.prompt_tokens:,} of contexts "
        f"({load.official_prompt_tokens:,} if every node computed its own), {load.trained_tokens:,} trained"
    )
    yield (
        f"  {load.searches:,} searches in {load.requests} requests: {load.searches / step_s:.1f} a second over a step "
        f"of {step_s:g} s, {10 * load.searches / step_s:.0f} if they may take a tenth of it"
    )


def _columns(memory: Memory) -> tuple[int, ...]:
    return (
        memory.weights,
        memory.gradients,
        memory.moments,
        memory.reference,
        memory.copies,
        memory.activations,
        memory.logits,
        memory.sampler,
        memory.update,
        memory.rollout,
    )


def _gigabytes(size: int) -> str:
    """Three digits, and no exponent for large ones."""
    return f"{size / GB:.0f}" if size >= 100 * GB else f"{size / GB:.3g}"


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
