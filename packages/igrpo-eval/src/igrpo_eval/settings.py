"""settings: a recipe with flags of its own -> what an evaluation does.

In: `RECIPE.toml [MORE.toml ...] [--key value ...]`, read by the parser of `igrpo-train`.
Out: a checked `Evaluation`; a misspelt flag is answered with the nearest one, of the recipe or of these.

Example:
    >>> evaluation = load_evaluation(["--out", "runs/a", "--limit", "9", "--agent.max_turns", "2"])
    >>> evaluation.limit, evaluation.recipe.agent.max_turns, evaluation.sampling_temperature
    (9, 2, 0.0)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import tyro

from igrpo_eval.benchmarks import parse_names
from igrpo_train.checks import amount, check, check_fields, count
from igrpo_train.config import Recipe
from igrpo_train.recipes import load_settings

PROGRAM: Final = "igrpo-eval run"
USAGE: Final = f"{PROGRAM} RECIPE.toml [MORE.toml ...] --out FOLDER [--key value ...]: later settings win."


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """A recipe, of which model, data, agent and retrieval count here, and how to evaluate."""

    recipe: Annotated[Recipe, tyro.conf.arg(name=""), tyro.conf.FlagConversionOff]
    out: str
    """Folder of the evaluation: records, settings, summary."""
    benchmark: str = ""
    """Sets to ask, such as nq,hotpotqa or all (seven) or miniature:leak; data.validation by default."""
    benchmark_folder: str = ""
    """Folder with nq.jsonl and so on, or the merged test.parquet; the hub's files by default."""
    limit: int | None = None
    """Evaluate so many questions of each set, always the same ones; all of them by default."""
    temperature: float | None = None
    """Sampling temperature, 0 is greedy; validation.temperature by default."""
    samples: int = 1
    """Episodes a question."""
    pass_k: tuple[int, ...] = ()
    """Also report pass@k: the chance that one of k samples is right; each k at most samples."""
    scores: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also record the answer score of every state, as training computes it; costs a forward pass a turn."""
    batch_questions: int = 64
    """Questions that are answered together; lower it when memory runs out, it changes nothing else."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on with the records that are in the folder."""

    def __post_init__(self) -> None:
        check("out", self.out, bool(self.out.strip()), "a path", "evaluations/NAME is a good one")
        check("limit", self.limit, self.limit is None or self.limit >= 1, "at least 1", "leave it out for all")
        check_fields("", self, "samples batch_questions", count, "at least 1")
        temperature = self.sampling_temperature
        check("temperature", temperature, amount(temperature), "finite and at least 0")
        remedy = "greedy samples are all alike; set temperature above 0"
        check("samples", self.samples, self.samples == 1 or temperature > 0, "1 at temperature 0", remedy)
        fits = all(1 <= k <= self.samples for k in self.pass_k)
        check("pass_k", self.pass_k, fits, f"between 1 and samples = {self.samples}", "raise samples")
        needless = self.benchmark_folder and not self.benchmark
        check("benchmark_folder", self.benchmark_folder, not needless, "given with benchmark", "add --benchmark all")
        if self.benchmark:
            parse_names(self.benchmark)

    @property
    def sampling_temperature(self) -> float:
        """The temperature that answers are sampled at."""
        return self.recipe.validation.temperature if self.temperature is None else self.temperature

    @property
    def benchmarks(self) -> tuple[str, ...]:
        """Names of the sets; none where data.validation is asked."""
        return parse_names(self.benchmark) if self.benchmark else ()

    @property
    def folder(self) -> Path:
        """Where records go."""
        return Path(self.out).expanduser()


def load_evaluation(args: Sequence[str]) -> Evaluation:
    """Read recipe files and flags, as `igrpo_train.recipes.load_recipe` does.

    Raises:
        FileNotFoundError: a recipe file does not exist.
        ValueError: a recipe file is not TOML.
        SystemExit: an unknown key or a wrong value (code 2, explained on standard error), or `--help` (code 0).
    """
    return load_settings(Evaluation, args, program=PROGRAM, usage=USAGE)
