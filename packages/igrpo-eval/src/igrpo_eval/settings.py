"""settings: a recipe with flags of its own -> what an evaluation does.

In: `RECIPE.toml [MORE.toml ...] [--key value ...]`, read by the parser of `igrpo-train`.
Out: a checked `Evaluation`; a misspelt flag is answered with the nearest one, of the recipe or of these.

Example:
    >>> evaluation = load_evaluation(["--out", "runs/a", "--limit", "9", "--agent.max_turns", "2"])
    >>> evaluation.limit, evaluation.recipe.agent.max_turns, evaluation.sampling_temperature
    (9, 2, 0.0)
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import tyro

from igrpo_eval.suite import benchmark_names
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
    benchmarks: tuple[str, ...] = ()
    """Benchmarks to evaluate, or all; instead of data.validation."""
    benchmark_folder: str = ""
    """Folder of NAME.jsonl or NAME.parquet for the benchmarks, whole or samples; the hub by default."""
    limit: int | None = None
    """Evaluate so many questions, of each benchmark or of data.validation, always the same ones; all by default."""
    temperature: float | None = None
    """Sampling temperature, 0 is greedy; validation.temperature by default."""
    samples: int = 1
    """Episodes a question."""
    scores: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Score the gold answer before the first turn and after every turn that goes on; `correlate` needs it."""
    batch_questions: int = 64
    """Questions that are answered together; lower it when memory runs out, it changes nothing else."""
    resume: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Go on with the records that are in the folder."""

    def __post_init__(self) -> None:
        check("out", self.out, bool(self.out.strip()), "a path", "evaluations/NAME is a good one")
        check("limit", self.limit, self.limit is None or self.limit >= 1, "at least 1", "leave it out for all")
        check_fields("", self, "samples batch_questions", count, "at least 1")
        benchmark_names(self.benchmarks)
        unused = not self.benchmark_folder or bool(self.benchmarks)
        check("benchmark_folder", self.benchmark_folder, unused, "left out without benchmarks", "add --benchmarks all")
        temperature = self.sampling_temperature
        check("temperature", temperature, amount(temperature), "finite and at least 0")
        remedy = "greedy samples are all alike; set temperature above 0"
        check("samples", self.samples, self.samples == 1 or temperature > 0, "1 at temperature 0", remedy)

    @property
    def sampling_temperature(self) -> float:
        """The temperature that answers are sampled at."""
        return self.recipe.validation.temperature if self.temperature is None else self.temperature

    @property
    def questions_name(self) -> str:
        """What is asked: benchmarks, or a file."""
        return " ".join(benchmark_names(self.benchmarks)) or self.recipe.data.validation

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


def record_settings(evaluation: Evaluation) -> dict[str, object]:
    """Everything that a question's record depends on beside the question, flat: records mix only where this agrees.

    Which questions are asked (`data.hops`, `limit`), on what device and how many together is left out.

    Example:
        >>> record_settings(load_evaluation(["--out", "a", "--seed", "3"]))["seed"]
        3
    """
    recipe = evaluation.recipe
    groups = {"agent": asdict(recipe.agent), "retrieval": asdict(recipe.retrieval)}
    return {
        "model.path": recipe.model.path,
        "model.dtype": recipe.model.dtype,
        "model.weights": _fingerprint(Path(recipe.model.path).expanduser()),
        "step": _step(Path(recipe.model.path).expanduser()),
        "data.validation": evaluation.questions_name,
        "data.corpus": recipe.data.corpus,
        "data.corpus_hash": _file_hash(Path(recipe.data.corpus).expanduser()),
        "normaliser": "squad",
        **{f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()},
        "seed": recipe.seed,
        "temperature": evaluation.sampling_temperature,
        "samples": evaluation.samples,
        "scores": evaluation.scores,
        **({f"scoring.{name}": value for name, value in asdict(recipe.scoring).items()} if evaluation.scores else {}),
    }


def _fingerprint(folder: Path) -> str | None:
    """Hash of a local model's weights, since training may write another model to the same path; None elsewhere."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        return None
    return hashlib.blake2b("".join(map(str, map(_file_hash, files))).encode(), digest_size=8).hexdigest()


def _file_hash(path: Path) -> str | None:
    """Hash of a local file's content; None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:16]


def _step(folder: Path) -> int | None:
    """Training step of one of our checkpoints; None for other models."""
    state = folder / "trainer.json"
    return int(json.loads(state.read_text(encoding="utf-8"))["step"]) if state.is_file() else None
