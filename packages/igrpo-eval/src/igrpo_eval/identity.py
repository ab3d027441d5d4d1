"""identity: an evaluation -> everything that its records depend on beside the questions.

What is large or may change in place (weights, passages, the prompt) goes in as a hash. Loads no torch.
Source: ours.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

from igrpo_eval.benchmarks import BENCHMARKS
from igrpo_eval.settings import Evaluation
from igrpo_train.config import FREE_ON_RESUME, Agent, Recipe
from igrpo_train.question import read_passages
from igrpo_train.rows import local_path
from igrpo_train.search.corpus import fingerprint

NORMALISER: Final = "squad"
"""What `igrpo_train.rewards.normalise_answer` does."""

_PROMPT: Final = (
    "template",
    "history",
    "document",
    "observation_open",
    "observation_close",
    "no_documents",
    "chat",
)


def record_settings(evaluation: Evaluation) -> dict[str, object]:
    """The settings that records depend on, flat: records mix, and runs compare, only where these agree.

    Left out: which questions are asked (`data.hops`, `limit`), on what device, in how many processes and how many
    together; the passages, which `corpus_hash` knows.

    Example:
        >>> from igrpo_eval.settings import load_evaluation
        >>> record_settings(load_evaluation(["--out", "a", "--seed", "3"]))["seed"]
        3
    """
    recipe = evaluation.recipe
    groups = {"agent": asdict(recipe.agent), "retrieval": asdict(recipe.retrieval)}
    named = {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
    scoring = {"scoring.preamble": recipe.scoring.preamble, "scoring.aliases": recipe.scoring.aliases}
    return {
        "model.path": recipe.model.path,
        "model.dtype": recipe.model.dtype,
        "sampling.engine": recipe.sampling.engine,
        "model.weights": _weights_hash(Path(recipe.model.path).expanduser()),
        "step": training_step(recipe.model.path),
        "data.validation": None if evaluation.benchmarks else recipe.data.validation,
        "benchmark": [_with_split(name) for name in evaluation.benchmarks],
        "data.corpus": recipe.data.corpus,
        **{name: value for name, value in named.items() if not name.startswith(FREE_ON_RESUME)},
        "prompt.hash": prompt_hash(recipe.agent),
        "normaliser": NORMALISER,
        "seed": recipe.seed,
        "temperature": evaluation.sampling_temperature,
        "samples": evaluation.samples,
        "scores": evaluation.scores,
        **(scoring if evaluation.scores else {}),
    }


def _with_split(name: str) -> str:
    return f"{name}/{BENCHMARKS[name].split}" if name in BENCHMARKS else name


def training_step(path: str) -> int | None:
    """Steps that a checkpoint of ours was trained for; None for any other model.

    Raises:
        ValueError: the checkpoint's `trainer.json` is damaged.

    Example:
        >>> training_step("Qwen/Qwen2.5-3B-Instruct") is None
        True
    """
    file = Path(path).expanduser() / "trainer.json"
    if not file.is_file():
        return None
    try:
        return int(json.loads(file.read_text(encoding="utf-8"))["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"model.path must be a whole checkpoint, got {path!r}, whose trainer.json names no step ({error!r}): take "
            "another step-* folder"
        ) from error


def prompt_hash(agent: Agent) -> str:
    """Hash of the settings that write prompts; the chat template is the model's.

    Example:
        >>> prompt_hash(Agent()) == prompt_hash(Agent(top_k=9)) != prompt_hash(Agent(chat=False))
        True
    """
    values = [getattr(agent, name) for name in _PROMPT]
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=8).hexdigest()


def corpus_hash(recipe: Recipe) -> str | None:
    """Hash of the passages that searches can bring; None where a server holds them.

    Raises:
        FileNotFoundError: there is no such file, or it cannot be fetched.
        ValueError: a `miniature:` specification is not one.
    """
    spec = recipe.data.corpus
    if recipe.retrieval.kind == "http":
        return None
    if spec.startswith("miniature:"):
        text = json.dumps([(passage.id, passage.title, passage.text) for passage in read_passages(spec)])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return fingerprint(local_path(spec))[:16]


def _weights_hash(folder: Path) -> str | None:
    """Hash of a local model's weights, since training may write another model to the same path; None elsewhere."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        return None
    digests = []
    for path in files:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "blake2b").digest())
    return hashlib.blake2b(b"".join(digests), digest_size=8).hexdigest()
