"""build: a world and a seed -> a small policy that has seen demonstrations, as ordinary transformers files.

`python -m igrpo_train.miniature.build --world leak --seed 0 --out FOLDER` takes about three minutes on one core. The
same call gives the same weights on the same machine with the same versions.

Source: ours.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from igrpo_theory.randomness import question_keys, text_key
from igrpo_train.checks import amount, check, check_fields, count, natural, seed
from igrpo_train.config import Recipe
from igrpo_train.errors import run_command
from igrpo_train.folders import new_folder
from igrpo_train.learn.supervised import SupervisedRow, SupervisedSettings, bucket_batches, train_supervised
from igrpo_train.miniature.dataset import miniature_questions
from igrpo_train.miniature.demonstrations import CLEAN_WITH_GUESSES, Noise, demonstrate, encode_row
from igrpo_train.miniature.protocol import MAX_TOKENS
from igrpo_train.miniature.retriever import FactSearch, MiniatureRetriever
from igrpo_train.miniature.settings import AGENT, SCORING
from igrpo_train.miniature.tokenizer import build_tokenizer
from igrpo_train.miniature.world import DEPTH, build_world
from igrpo_train.policy import Policy
from igrpo_train.question import Question
from igrpo_train.rollout import chain_rule, collect
from igrpo_train.setup import build_agent
from igrpo_train.tracking import Phases

logger = logging.getLogger(__name__)
_POOL_ROWS = 600
"""Rows that are sorted by length at a time."""
_PACKAGES = ("igrpo-train", "numpy", "tokenizers", "torch", "transformers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """How a miniature policy is made."""

    world: Literal["leak", "plain"] = "leak"
    """leak: names tell something about the entities above them; plain: they do not."""
    seed: int = 0
    """Seeds the weights and the demonstrations."""
    num_worlds: int = 30
    """Worlds that the demonstrations come from; many, so that no fact can be learnt by heart."""
    one_hop_share: float = 0.12
    """First share of the steps: questions of one hop, no mistakes."""
    clean_share: float = 0.5
    """Share of the steps after which the mistakes begin."""
    context_weight: float = 0.3
    """Loss weight of the words of the context before the mistakes begin: names that come again teach copying."""
    batch_tokens: int = 1280
    """Tokens a batch, padding included."""
    measure_questions: int = 100
    """Questions of each number of hops to measure the policy on; 0 measures nothing."""
    noise: Noise = field(default_factory=Noise)
    """The mistakes of the demonstrations."""
    optimiser: SupervisedSettings = field(default_factory=lambda: SupervisedSettings(learning_rate=4e-3, steps=3000))
    """How to optimise."""

    def __post_init__(self) -> None:
        """Refuse what cannot be built.

        Raises:
            ValueError: with the field and the value.
        """
        check_fields("", self, "seed", seed, "between 0 and 2**64 - 1")
        check_fields("", self, "num_worlds batch_tokens", count, "at least 1")
        check_fields("", self, "measure_questions", natural, "at least 0")
        check_fields("", self, "context_weight", amount, "finite and at least 0")
        ordered = 0 <= self.one_hop_share <= self.clean_share <= 1
        check("one_hop_share", self.one_hop_share, ordered, "between 0 and clean_share, and that at most 1")


def build_model(num_words: int, seed: int) -> LlamaForCausalLM:
    """A transformer of about 130 thousand parameters, its weights drawn from a seed of its own.

    A Llama, since `AutoTokenizer` gives some other architectures a tokenizer class of their own.

    Args:
        num_words: size of the vocabulary.
        seed: of the weights.
    """
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=num_words,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=MAX_TOKENS,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        # All other weights are gains of norms, and start at 1 anyway.
        for _, weights in sorted(model.named_parameters()):
            if weights.dim() == 2:
                weights.normal_(std=0.05, generator=generator)
    return model


def demonstration_batches(build: Build, index: dict[str, int]) -> Iterator[list[SupervisedRow]]:
    """Batches of the curriculum, without end: one hop, several hops, then mistakes.

    Args:
        build: how the policy is made.
        index: word -> id.
    """
    rng = np.random.default_rng([build.seed, text_key("demonstrations")])
    worlds = [build_world("warm", leak=build.world == "leak", seed=seed) for seed in range(build.num_worlds)]
    searches = [FactSearch(world) for world in worlds]
    routes = [[world.routes(hops) for hops in range(1, DEPTH + 1)] for world in worlds]
    done = 0
    while True:
        share = done / build.optimiser.steps
        first, clean = share < build.one_hop_share, share < build.clean_share
        noise = CLEAN_WITH_GUESSES if clean else build.noise
        rows: list[SupervisedRow] = []
        while len(rows) < _POOL_ROWS:
            world, hops = rng.integers(len(worlds)), rng.integers(1 if first else DEPTH)
            choices = routes[world][hops]
            episode = demonstrate(searches[world], choices[rng.integers(len(choices))], noise, rng)
            rows += [encode_row(row, index, build.context_weight if clean else 0.0) for row in episode]
        batches = bucket_batches(rows, build.batch_tokens, rng)
        done += len(batches)
        yield from batches


def build_policy(build: Build, on_step: Callable[[int, Mapping[str, float]], None] | None = None) -> Policy:
    """Train a policy on demonstrations.

    Args:
        build: how.
        on_step: told the number of steps done and figures to show.
    """
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), build.seed)
    train_supervised(
        model,
        demonstration_batches(build, tokenizer.get_vocab()),
        build.optimiser,
        tokenizer.pad_token_id,
        on_step=None if on_step is None else lambda step, loss: on_step(step, {"loss": loss}),
    )
    return Policy(model, tokenizer)


def measure(policy: Policy, spec: str, num_questions: int) -> dict[str, dict[str, float]]:
    """Exact match on some questions of each number of hops, greedy and sampled at temperature 1.

    Args:
        policy: model and tokenizer.
        spec: such as `miniature:leak/validation`.
        num_questions: how many of each number of hops.
    """
    agent = build_agent(policy, MiniatureRetriever(spec), Recipe(agent=AGENT, scoring=SCORING))
    rule = chain_rule(AGENT.max_turns)
    questions = miniature_questions(spec)
    measured: dict[str, dict[str, float]] = {}
    for label, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        measured[label] = {}
        for hops in range(1, DEPTH + 1):
            chosen = _chosen([question for question in questions if question.hops == hops], num_questions)
            keys = question_keys(0, 0, np.arange(len(chosen)), [question.id for question in chosen])
            chains = collect(agent, chosen, keys, rule, temperature=temperature, phases=Phases())
            measured[label][f"{hops}_hop"] = round(float(chains.grades.mean()), 3)
    return measured


def _chosen(questions: list[Question], count: int) -> list[Question]:
    """Always the same random ones: the list repeats its relations, so every n-th would be a biased sample."""
    order = np.random.default_rng(text_key("measured questions")).permutation(len(questions))
    return [questions[i] for i in np.sort(order[:count])]


def save_policy(policy: Policy, build: Build, folder: Path, seconds: float) -> None:
    """Write model, tokenizer and `build.json`.

    Args:
        policy: what to write.
        build: how it was made.
        folder: where to.
        seconds: how long that took.
    """
    record: dict[str, object] = {
        "settings": asdict(build),
        "parameters": sum(weights.numel() for weights in policy.model.parameters()),
        "seconds": round(seconds, 1),
        "versions": {package: version(package) for package in _PACKAGES},
    }
    if build.measure_questions:
        spec = f"miniature:{build.world}/validation"
        record["exact_match"] = measure(policy, spec, build.measure_questions)
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    (folder / "build.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Run the command line."""
    import tyro

    from igrpo_train.progress import Progress

    @dataclass(frozen=True, kw_only=True)
    class Arguments(Build):
        out: Path
        """New folder for the policy."""

    arguments = tyro.cli(Arguments, prog="python -m igrpo_train.miniature.build", use_underscores=True)
    build = Build(**{name: getattr(arguments, name) for name in Build.__dataclass_fields__})
    # One thread: sums in another order would give other weights, and more threads are no faster at this size.
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    start = time.perf_counter()
    # The folder first: one that cannot be written is told before the minutes of training.
    with new_folder(arguments.out) as folder, Progress(build.optimiser.steps) as progress:
        policy = build_policy(build, progress.update)
        save_policy(policy, build, folder, time.perf_counter() - start)
        progress.note(f"policy: {arguments.out}")


if __name__ == "__main__":
    run_command(main)
