"""scaling_table: formulas of `igrpo_train.estimate`, `workload` and `search.dense` -> the tables of docs/scaling.md.

    python -m experiments.scaling_table

CPU, seconds. Every table stands in the page between `<!-- table: NAME -->` and `<!-- end -->`, and is written there;
`--check` writes nothing and fails where the page says something else. Nothing is measured: these are estimates.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import tyro

from igrpo_train.config import Recipe, Sampling
from igrpo_train.dry_run import plan_of
from igrpo_train.errors import run_command
from igrpo_train.estimate import GB, KNOWN, Memory, Shape, Sharding, estimate_memory
from igrpo_train.hub import PUBLISHED
from igrpo_train.recipes import load_recipe
from igrpo_train.search.dense import index_bytes
from igrpo_train.workload import Lengths, Machine, Seconds, step_load, step_seconds

ROOT: Final = Path(__file__).resolve().parents[1]
MODELS: Final[Mapping[str, Shape]] = {size: KNOWN[f"Qwen/Qwen2.5-{size}-Instruct"] for size in ("3B", "7B", "32B")}
GPUS: Final = (1, 2, 4, 8, 16, 32, 64)
MEMORIES: Final = (80, 141)
ROOM: Final = 0.9
CACHE_GIB: Final = 20
MACHINE: Final = Machine(
    name="141 GB", memory=141 * GB, flops=989e12, bandwidth=4.8e12, link=450e9, network=50e9, efficiency=0.4
)
LENGTHS: Final = Lengths(head=200, response=150, history=480, forced=30)
_BLOCK: Final = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

Row = Sequence[object]


def paper_recipe() -> Recipe:
    """The paper's run, with a fixed key-value cache for the engine, so that GPUs of any memory compare."""
    recipe = load_recipe([str(ROOT / "recipes" / "qwen2.5-3b" / "igrpo.toml")])
    return replace(recipe, sampling=Sampling(engine="vllm", cache_gib=CACHE_GIB))


def sharding(gpus: int) -> Sharding:
    """FSDP2 wherever there is something to shard over."""
    return "fsdp2" if gpus > 1 else "none"


def memory(shape: Shape, gpus: int, *, checkpointing: bool) -> Memory:
    """Of the paper's run on so many GPUs."""
    plan = plan_of(shape, paper_recipe(), gpus, sharding(gpus), checkpointing=checkpointing, gpu_bytes=MACHINE.memory)
    return estimate_memory(shape, plan)


def fits(shape: Shape, gpus: int, size_gb: int, *, checkpointing: bool) -> bool:
    """Whether the larger of update and rollout leaves a tenth of a GPU free."""
    return memory(shape, gpus, checkpointing=checkpointing).peak <= ROOM * size_gb * GB


def memory_table() -> Iterator[Row]:
    """GB on one GPU."""
    yield (
        "model",
        "GPUs",
        "state",
        "gradients",
        "activations",
        "logits",
        "update",
        "activations *",
        "update *",
        "rollout",
    )
    for name, shape in MODELS.items():
        for gpus in GPUS:
            plain, light = (memory(shape, gpus, checkpointing=on) for on in (False, True))
            sizes = (
                plain.state,
                plain.gradients,
                plain.activations,
                plain.logits,
                plain.update,
                light.activations,
                light.update,
                plain.rollout,
            )
            yield (name, gpus, *(f"{size / GB:.1f}" for size in sizes))


def fewest_table() -> Iterator[Row]:
    """GPUs that a model takes."""
    ways = {"": False, " *": True}
    yield ("model", *(f"{size} GB{mark}" for size in MEMORIES for mark in ways))
    for name, shape in MODELS.items():
        cells: list[object] = [name]
        for size in MEMORIES:
            for light in ways.values():
                enough = (n for n in GPUS if fits(shape, n, size, checkpointing=light))
                cells.append(next(enough, "more than 64"))
        yield cells


def seconds(shape: Shape, gpus: int) -> Seconds:
    """Of one step of the paper's run, with gradient checkpointing."""
    return step_seconds(
        shape,
        paper_recipe(),
        LENGTHS,
        MACHINE,
        processes=gpus,
        sharding=sharding(gpus),
        checkpointing=True,
        cache_bytes=CACHE_GIB * 2**30,
    )


def time_table() -> Iterator[Row]:
    """Seconds of one step where the model fits, and the searches a second that keep retrieval to a tenth of it."""
    yield ("model", "GPUs", *Seconds._fields, "total", "largest", "searches a second")
    searches = step_load(paper_recipe()).searches
    for name, shape in MODELS.items():
        for gpus in GPUS:
            if fits(shape, gpus, MACHINE.memory // GB, checkpointing=True):
                phases = seconds(shape, gpus)
                largest = max(phases._asdict().items(), key=lambda phase: phase[1])[0]
                cells = [f"{value:.1f}" for value in (*phases, phases.total)]
                yield (name, gpus, *cells, largest, f"{10 * searches / phases.total:.0f}")


def index_table() -> Iterator[Row]:
    """Size of an index of all of Wikipedia."""
    (corpus,) = PUBLISHED["corpus"]
    yield ("type", "bytes a passage", "GB")
    for kind in ("flat", "hnsw", "ivfpq"):
        size = index_bytes(kind, 768, corpus.size)
        yield (kind, f"{size / corpus.size:.0f}", f"{size / GB:.1f}")


TABLES: Final[Mapping[str, Callable[[], Iterator[Row]]]] = {
    "memory": memory_table,
    "fewest": fewest_table,
    "time": time_table,
    "index": index_table,
}


def with_tables(page: str) -> str:
    """A page with its tables as the formulas have them."""

    def table(found: re.Match[str]) -> str:
        head, *rows = ["| " + " | ".join(map(str, row)) + " |" for row in TABLES[found[2]]()]
        rule = "|" + "---|" * (head.count("|") - 1)
        return found[1] + "\n".join([head, rule, *rows]) + "\n" + found[4]

    return _BLOCK.sub(table, page)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Which page."""

    page: Path = ROOT / "docs" / "scaling.md"
    """Its tables are written in place."""
    check: bool = False
    """Write nothing, and fail where a table is not as the formulas have it."""


def run(arguments: Arguments) -> None:
    """Write or check the page.

    Raises:
        ValueError: `check`, and a table differs.
    """
    page = arguments.page.read_text(encoding="utf-8")
    written = with_tables(page)
    if arguments.check and written != page:
        raise ValueError(
            f"the tables of {arguments.page} must be as the formulas have them, got others: write them anew"
        )
    if not arguments.check:
        arguments.page.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    run_command(lambda: run(tyro.cli(Arguments, args=sys.argv[1:])))
