"""dry_run: a recipe -> what it resolves to, reads and needs; no weights are loaded and nothing is started.

In: a checked recipe. Out: a `Report`; an error that a person can put right is raised as the run itself would raise it.
What lies neither on this machine nor in the hub's cache is reported as unchecked: nothing is fetched.
"""

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from igrpo_train.config import Recipe
from igrpo_train.estimate import (
    KNOWN,
    Memory,
    Plan,
    Shape,
    Sharding,
    cache_bytes_per_token,
    estimate_memory,
    shape_from_config,
)
from igrpo_train.question import Question, first_passage, first_question
from igrpo_train.recipes import to_dict
from igrpo_train.rows import cached_file
from igrpo_train.settings import changes
from igrpo_train.tracking import check_run_folder
from igrpo_train.workload import Load, step_load

GRID: Final[tuple[tuple[int, Sharding], ...]] = (
    (1, "none"),
    (8, "none"),
    (2, "fsdp2"),
    (4, "fsdp2"),
    (8, "fsdp2"),
    (16, "fsdp2"),
    (32, "fsdp2"),
    (64, "fsdp2"),
)
"""Processes and sharding for which memory is estimated."""

UNCACHED: Final = "unchecked (not in the hub cache)"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPart:
    """What is known of the policy without its weights."""

    path: str
    checked: str
    """Where its sizes come from."""
    architecture: str
    """Class of the model; empty when unknown."""
    parameters: int | None
    """Counted on the model itself, built without memory, or by formula from the table."""
    shape: Shape | None
    tokenizer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPart:
    """One file or service of the run."""

    setting: str
    spec: str
    checked: str
    """What its first row is, or why it is unchecked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPart:
    """Bytes on one GPU for a number of processes, as `tokens_per_micro_batch` is set."""

    processes: int
    sharding: Sharding
    memory: Memory
    checkpointed: Memory
    """The same with activations computed again in the backward pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All that a dry run finds."""

    settings: dict[str, tuple[str, str]]
    """Settings that differ from the defaults: default and value, as JSON."""
    model: ModelPart
    data: tuple[DataPart, ...]
    engine: str
    memory: tuple[MemoryPart, ...]
    """Empty where the model's shape is unknown."""
    cpu: bool
    """Whether the run is meant for a CPU, in one process."""
    load: Load
    head_tokens: int | None
    """Tokens of the first question's prompt without history; None when it could not be made."""

    def to_json(self) -> str:
        """The report as a JSON text; sums of memory stand beside their parts."""
        values = asdict(self)
        for part, own in zip(values["memory"], self.memory, strict=True):
            for name in ("memory", "checkpointed"):
                whole: Memory = getattr(own, name)
                part[name] |= {"update": whole.update, "rollout": whole.rollout, "peak": whole.peak}
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def dry_run(recipe: Recipe, *, gpu_bytes: int, resume: bool = False) -> Report:
    """Resolve and check all of a recipe that can be checked here.

    Args:
        recipe: the run.
        gpu_bytes: memory of one GPU, of which vllm takes its share.
        resume: whether `run.folder` must hold a run, and not be new.

    Raises:
        ValueError, FileNotFoundError: recipe, data and model do not fit together.
        DiskError: `run.folder` cannot be written.
        MissingExtra: a file needs a package that is not installed.
    """
    check_run_folder(recipe, resume=resume)
    data, question = _data_parts(recipe)
    model, prompting = _model_part(recipe)
    head = None
    if prompting is not None and question is not None:
        prompt = prompting.prompt(question)
        head = len(prompt.head_ids) + len(prompt.tail_ids)
    cpu = recipe.model.device == "cpu"
    grid = GRID[:1] if cpu else GRID
    shape = model.shape
    memory = () if shape is None else tuple(_memory_part(shape, recipe, *place, gpu_bytes) for place in grid)
    return Report(
        settings=changes(to_dict(Recipe()), to_dict(recipe)),
        model=model,
        data=data,
        engine=_engine(recipe),
        memory=memory,
        cpu=cpu,
        load=step_load(recipe, head_tokens=head),
        head_tokens=head,
    )


def _engine(recipe: Recipe) -> str:
    if recipe.sampling.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        return "vllm: unchecked (not installed here: pip install 'igrpo-train[vllm]')"
    return recipe.sampling.engine


def _data_parts(recipe: Recipe) -> tuple[tuple[DataPart, ...], Question | None]:
    """Questions and passages, and the first question to train on."""
    first: dict[str, Question | None] = {}
    parts = []
    named = {"data.train": recipe.data.train}
    if recipe.validation.every:
        named["data.validation"] = recipe.data.validation
    for setting, spec in named.items():
        found = cached_file(spec)
        first[setting] = None if found is None else first_question(found)
        parts.append(DataPart(setting=setting, spec=spec, checked=_described(first[setting])))
    return (*parts, *_retrieval_parts(recipe)), first["data.train"]


def _described(question: Question | None) -> str:
    if question is None:
        return UNCACHED
    gold = f", {len(question.contexts)} gold passages" if question.contexts else ""
    source = f" of {question.source}" if question.source else ""
    return f"first row{source}: id {question.id}, {len(question.answers)} answers{gold}"


def _retrieval_parts(recipe: Recipe) -> list[DataPart]:
    kind, corpus = recipe.retrieval.kind, recipe.data.corpus
    if kind == "http":
        checked = "unchecked (asked when the run starts)"
        return [DataPart(setting="retrieval.url", spec=recipe.retrieval.url, checked=checked)]
    parts = []
    if kind == "dense":
        # Late: the encoder's libraries.
        from igrpo_train.search.dense import read_manifest

        manifest = read_manifest(Path(recipe.retrieval.index))
        checked = f"{manifest.type} index of {manifest.passages} passages by {manifest.encoding.encoder}"
        parts.append(DataPart(setting="retrieval.index", spec=recipe.retrieval.index, checked=checked))
    found = cached_file(corpus)
    checked = UNCACHED if found is None else f"first row: id {first_passage(found).id}"
    return [*parts, DataPart(setting="data.corpus", spec=corpus, checked=checked)]


def _model_part(recipe: Recipe) -> tuple[ModelPart, Any]:
    """What is known of the model, and its prompting where the tokenizer is here."""
    from igrpo_train.policy import resolve_model

    path = recipe.model.path
    source = resolve_model(path)
    folder = Path(source) if Path(source).is_dir() else _cached_folder(source)
    if folder is None:
        shape = KNOWN.get(path)
        checked = UNCACHED if shape is None else f"from the table, {UNCACHED}"
        parameters = None if shape is None else shape.parameters
        unknown = ModelPart(
            path=path, checked=checked, architecture="", parameters=parameters, shape=shape, tokenizer=UNCACHED
        )
        return unknown, None
    config, architecture, parameters = _built_without_memory(folder, path)
    # The estimates know gated MLPs only: other models are counted, and not estimated.
    shape = shape_from_config(config) if config.get("model_type") in ("llama", "qwen2") else None
    prompting, tokenizer = _prompting(recipe, folder, config)
    part = ModelPart(
        path=path,
        checked=f"config.json of {folder}",
        architecture=architecture,
        parameters=parameters,
        shape=shape,
        tokenizer=tokenizer,
    )
    return part, prompting


def _cached_folder(repo: str) -> Path | None:
    """Where the hub's cache has the config of a model."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repo, "config.json")
    except HFValidationError as error:
        raise ValueError(
            f"model.path must be a folder or a hub id OWNER/NAME, got {repo!r}: {str(error).splitlines()[0]}"
        ) from error
    return Path(found).parent if isinstance(found, str) else None


def _built_without_memory(folder: Path, path: str) -> tuple[dict[str, Any], str, int]:
    """Config, class and number of parameters of a model whose weights are not loaded."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ValueError(
            f"model.path must be a causal language model with its config.json, got {path!r} ({reason}): give a whole "
            "local folder or a hub id"
        ) from error
    return config.to_dict(), type(model).__name__, sum(parameter.numel() for parameter in model.parameters())


def _prompting(recipe: Recipe, folder: Path, config: Mapping[str, Any]) -> tuple[Any, str]:
    """Prompts by the model's own tokenizer, which also checks template and limits."""
    if not (folder / "tokenizer.json").is_file():
        return None, "unchecked (no tokenizer.json beside the config)"
    from transformers import AutoTokenizer

    from igrpo_train.search.prompting import Prompting
    from igrpo_train.search.vllm_requests import engine_limit

    limit = config.get("max_position_embeddings")
    if recipe.sampling.engine == "vllm":
        limit = engine_limit(recipe.agent, limit)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompting = Prompting(tokenizer, recipe.agent, recipe.scoring, limit)
    return prompting, f"{len(tokenizer)} ids, limits fit {limit} positions"


def _memory_part(shape: Shape, recipe: Recipe, processes: int, sharding: Sharding, gpu_bytes: int) -> MemoryPart:
    both = [
        estimate_memory(shape, plan_of(shape, recipe, processes, sharding, checkpointing=on, gpu_bytes=gpu_bytes))
        for on in (False, True)
    ]
    return MemoryPart(processes=processes, sharding=sharding, memory=both[0], checkpointed=both[1])


def plan_of(
    shape: Shape, recipe: Recipe, processes: int, sharding: Sharding, *, checkpointing: bool, gpu_bytes: int
) -> Plan:
    """How a recipe uses the memory of each of its GPUs; every token of a pass may be a sampled one."""
    tokens = recipe.optimiser.tokens_per_micro_batch
    return Plan(
        processes=processes,
        sharding=sharding,
        half=recipe.model.dtype == "bfloat16",
        reference=recipe.loss.kl_coefficient > 0,
        checkpointing=checkpointing,
        tokens=tokens,
        sampled=tokens,
        sampler=_sampler_bytes(shape, recipe, processes, gpu_bytes),
        whole_weights=recipe.sampling.engine == "transformers",
    )


def _sampler_bytes(shape: Shape, recipe: Recipe, processes: int, gpu_bytes: int) -> int:
    sampling, agent = recipe.sampling, recipe.agent
    if sampling.engine == "vllm":
        own = (2 if recipe.model.dtype == "bfloat16" else 4) * shape.parameters
        return own + int(sampling.cache_gib * 2**30) if sampling.cache_gib else int(sampling.memory_share * gpu_bytes)
    rows = -(-recipe.questions_per_step // processes) * recipe.tree.budget
    columns = rows * (agent.max_prompt_tokens + agent.max_response_tokens)
    bound = sampling.cache_tokens
    return cache_bytes_per_token(shape, itemsize=4) * (min(bound, columns) if bound else columns)
