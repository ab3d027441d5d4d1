"""gpu_check: a model of Qwen2.5-3B's shape on scripted trees -> seconds, tokens and memory of a step, on one GPU.

    scripts/gpu_check.sh OUT_FOLDER
    scripts/gpu_check.sh OUT_FOLDER --size tiny --num-questions 2 --response-tokens 24 --repeats 1   # on any CPU

Weights are random, so a turn is decoded for its full length and then replaced by a script of that length: it searches
in words, or answers, rightly half of the time, at depths that the seed fixes. Documents have the length of real ones.
What is measured (decoding, prefill, answer scoring, and training with both packings) depends on shapes alone, not on
what the weights know. Argument parsing and annotations are plain: this runs where only torch, transformers, accelerate
and numpy are installed.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from igrpo_theory.advantages import group_advantages
from igrpo_theory.randomness import question_keys, uniforms
from igrpo_train.config import Agent, Loss, Model, Optimiser, Packing, Recipe, Sampling
from igrpo_train.learn.packing import TurnRow, pack_paths
from igrpo_train.learn.update import Updater
from igrpo_train.policy import Policy
from igrpo_train.question import Passage, Question
from igrpo_train.rewards import path_rewards, turn_penalties
from igrpo_train.rollout import Rollout, collect
from igrpo_train.search.prompting import Prompting
from igrpo_train.search.sampling import Completion
from igrpo_train.search.scoring import AnswerScorer
from igrpo_train.search.transformers_sampler import Contexts, TransformersSampler
from igrpo_train.search.world import SearchAgent
from igrpo_train.tracking import Phases

GIB = 2**30
SIZES: dict[str, dict[str, Any]] = {
    # Qwen/Qwen2.5-3B-Instruct's config.json.
    "qwen2.5-3b": {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
    },
}
_TAGS = ("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>", "<information>", "</information>")
_GOLD = "w1 w2 w3"
_PASSAGE_WORDS = 140
"""Qwen's tokens of a passage of Wikipedia cut to 100 words."""


class ScriptedTurns(TransformersSampler):
    """Decodes as the engine does, then writes a scripted turn of the same length over the random words.

    Args:
        model: the policy.
        tokenizer: one token a word.
        words: how many words `w0`, `w1`, ... it has.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, words: int) -> None:
        super().__init__(model, tokenizer)
        self._ids: dict[str, int] = tokenizer.get_vocab()
        self._words = words

    def generate(
        self, prefix: Contexts, rows: np.ndarray, keys: np.ndarray, *, temperature: float, max_tokens: int
    ) -> list[Completion]:
        """Turn 1 searches; from turn 2 on a quarter of the turns answers."""
        super().generate(prefix, rows, keys, temperature=temperature, max_tokens=max_tokens)
        completions = []
        for row, key in zip(rows.tolist(), keys, strict=True):
            draws = uniforms(np.full(max_tokens, key, dtype=np.uint64), np.arange(max_tokens))
            words = [f"w{int(self._words * draw)}" for draw in draws]
            # The instructions name the tags, too: a context with more of them has searched.
            answers = prefix.ids[row].count(self._ids["</search>"]) > 1 and draws[0] < 0.25
            if answers:
                action = f"<answer> {_GOLD if draws[1] < 0.5 else words[1]} </answer>"
            else:
                action = f"<search> {' '.join(words[1:6])} </search>"
            length = max_tokens - len(action.split()) - 2
            text = " ".join(("<think>", *words[-length:], "</think>", action))
            ids = tuple(map(self._ids.__getitem__, text.split()))
            assert len(ids) == max_tokens
            completions.append(Completion(ids, (-1.0,) * len(ids), "stop"))
        return completions


class FixedPassages:
    """A retriever that finds passages of real length for every query.

    Args:
        words: how many words there are.
    """

    def __init__(self, words: int) -> None:
        self._words = words

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Passages of random words, a function of the query's place."""
        draw = np.random.default_rng(len(queries)).integers(self._words, size=(len(queries), top_k, _PASSAGE_WORDS))
        return [
            [Passage(id=f"{q}-{k}", title="w0", text=" ".join(f"w{word}" for word in draw[q, k])) for k in range(top_k)]
            for q in range(len(queries))
        ]


class Setup(NamedTuple):
    """What is measured."""

    recipe: Recipe
    agent: SearchAgent
    updater: Updater
    questions: list[Question]
    device: torch.device
    phases: Phases


def word_tokenizer(vocabulary: int) -> tuple[PreTrainedTokenizerFast, int]:
    """One token a word, `vocabulary` in all; and how many of them are `w0`, `w1` and so on."""
    named = ("<pad>", "<unk>", "<eos>", *_TAGS)
    words = vocabulary - len(named)
    table = {word: index for index, word in enumerate((*named, *(f"w{k}" for k in range(words))))}
    backend = Tokenizer(WordLevel(table, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    ), words


def prepare(arguments: argparse.Namespace) -> Setup:
    """Model, optimiser, agent and questions."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recipe = Recipe(
        questions_per_step=arguments.num_questions,
        model=Model(dtype="bfloat16" if device == "cuda" else "float32", device=device),
        agent=Agent(
            chat=False,
            max_response_tokens=arguments.response_tokens,
            observation_open=" <information> ",
            observation_close=" </information> ",
        ),
        sampling=Sampling(),
        loss=Loss(old_logprobs="policy", kl_coefficient=0.0 if arguments.no_reference else 0.001),
        optimiser=Optimiser(
            update_rows=10**9,
            tokens_per_micro_batch=arguments.tokens_per_micro_batch,
            gradient_checkpointing=arguments.gradient_checkpointing,
        ),
    )
    accelerator = Accelerator(cpu=device == "cpu", mixed_precision="bf16" if device == "cuda" else "no")
    config = Qwen2Config(**SIZES[arguments.size])
    tokenizer, words = word_tokenizer(config.vocab_size)
    with torch.device(accelerator.device):
        model = Qwen2ForCausalLM(config).eval()
        reference = None if arguments.no_reference else Qwen2ForCausalLM(config).bfloat16().eval()
    updater = Updater(accelerator, model, reference, recipe.optimiser, recipe.loss, 10, 1.0, 0)
    policy = Policy(accelerator.unwrap_model(updater.model), tokenizer)
    prompting = Prompting(tokenizer, recipe.agent, recipe.scoring, policy.context_limit)
    sampler = ScriptedTurns(policy.model, tokenizer, words)
    scorer = AnswerScorer(sampler, prompting, replace(recipe.scoring, warn_below=0.0))
    agent = SearchAgent(sampler, prompting, FixedPassages(words), scorer)
    questions = [
        Question(id=str(k), text=f"w{k} w{k + 1} w{k + 2} ?", answers=(_GOLD,)) for k in range(arguments.num_questions)
    ]
    return Setup(recipe, agent, updater, questions, accelerator.device, Phases(_clock(accelerator.device)))


def _clock(device: torch.device) -> Callable[[], float]:
    """Seconds, once the device has done what it was given."""

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def _peak(device: torch.device) -> float:
    """Most memory (GiB) that torch held on a GPU since the last call; NaN on a CPU."""
    if device.type != "cuda":
        return float("nan")
    peak = torch.cuda.max_memory_allocated(device) / GIB
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def grow(setup: Setup, step: int) -> Rollout:
    """Trees of all questions."""
    keys = question_keys(0, step, np.arange(len(setup.questions)), [question.id for question in setup.questions])
    rule = setup.recipe.growth_rule(0)
    return collect(setup.agent, setup.questions, keys, rule, temperature=1.0, phases=setup.phases)


def rows_of(setup: Setup, rollout: Rollout) -> list[TurnRow]:
    """Training rows, with the rewards and advantages of the recipe."""
    recipe = setup.recipe
    rewards = path_rewards(
        rollout.grades, rollout.scores, rollout.truncated, rule=recipe.reward.truncated, progress=0.0, switch_fraction=1
    )
    penalties = turn_penalties(rollout.valid, recipe.reward.invalid_penalty)
    advantages = group_advantages(rollout.paths, rewards.rewards, penalties, keep=rewards.keep)
    return pack_paths(rollout.tree, rollout.paths, advantages, rewards.keep)


def train(setup: Setup, rows: Sequence[TurnRow], packing: Packing) -> dict[str, float]:
    """One optimiser step on the rows."""
    setup.updater.packing = packing
    _peak(setup.device)
    start = setup.phases.clock()
    metrics = setup.updater.update(rows, step_key=0)
    seconds = setup.phases.clock() - start
    tokens = metrics["update/computed_tokens"]
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "peak_gib": _peak(setup.device),
        "loss": metrics["update/loss"],
        "gradient_norm": metrics["update/gradient_norm"],
    }


def measure(arguments: argparse.Namespace, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Grow trees and train on them; figures are handed to `save` after each part, in case the time runs out."""
    start = time.perf_counter()
    setup = prepare(arguments)
    accepted = setup.updater.packing
    packings: tuple[Packing, ...] = ("tree", "path") if accepted == "tree" else ("path",)
    figures: dict[str, Any] = {
        "arguments": {
            name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()
        },
        "machine": _machine(setup.device),
        "parameters": sum(parameter.numel() for parameter in setup.updater.model.parameters()),
        "accepted_packing": accepted,
        "setup_s": time.perf_counter() - start,
        "setup_peak_gib": _peak(setup.device),
        "rollout": [],
        "training": {packing: [] for packing in packings},
    }
    save(figures)
    rows: list[TurnRow] = []
    for repeat in range(1 + arguments.repeats):
        setup.phases.take()
        rollout = grow(setup, repeat)
        phases = setup.phases.take()
        rows = rows_of(setup, rollout)
        if repeat:  # the first one warms up
            shape = {"nodes": float(len(rollout.tree.parent)), "paths": float(len(rollout.paths.leaf))}
            figures["rollout"].append(phases | shape | {"rows": float(len(rows)), "peak_gib": _peak(setup.device)})
            save(figures)
    for packing in packings:
        for repeat in range(1 + arguments.repeats):
            trained = train(setup, rows, packing)
            if repeat:
                figures["training"][packing].append(trained)
                save(figures)
    figures["summary"] = summary(figures)
    save(figures)
    return figures


def summary(figures: dict[str, Any]) -> dict[str, float]:
    """Medians over the repeats, and the ratios that matter."""
    rollout = {name: median(one[name] for one in figures["rollout"]) for name in figures["rollout"][0]}
    seconds = {phase: rollout[f"time/{phase}_s"] for phase in ("prefill", "generation", "scoring", "retrieval")}
    trained = {
        packing: {name: median(one[name] for one in several) for name in several[0]}
        for packing, several in figures["training"].items()
    }
    best = trained["tree" if "tree" in trained else "path"]
    step = sum(seconds.values()) + best["seconds"]
    found = {f"{phase}_s": value for phase, value in seconds.items()} | {"training_s": best["seconds"]}
    found |= {
        "generated_tokens_per_second": rollout["tokens/generation"] / seconds["generation"],
        "prefilled_tokens_per_second": rollout["tokens/prefill"] / seconds["prefill"],
        "trained_tokens_per_second": best["tokens_per_second"],
        "scoring_share_of_rollout": seconds["scoring"] / sum(seconds.values()),
        "scoring_share_of_step": seconds["scoring"] / step,
        "rollout_peak_gib": rollout["peak_gib"],
        "training_peak_gib": best["peak_gib"],
    }
    if "tree" in trained:
        tree, path = trained["tree"], trained["path"]
        found |= {f"tree_to_path_{name}": tree[name] / path[name] for name in ("seconds", "tokens", "peak_gib")}
    return found


def _machine(device: torch.device) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "memory_gib": torch.cuda.get_device_properties(device).total_memory / GIB if device.type == "cuda" else None,
        **{name: metadata.version(name) for name in ("torch", "transformers", "accelerate", "numpy")},
    }


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags."""
    parser = argparse.ArgumentParser(prog="scripts/gpu_check.sh", description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder that gets gpu_check.json")
    parser.add_argument("--size", choices=sorted(SIZES), default="qwen2.5-3b", help="shape of the model")
    parser.add_argument("--num-questions", type=int, default=16, help="trees of a step")
    parser.add_argument("--response-tokens", type=int, default=128, help="tokens of every turn")
    parser.add_argument("--tokens-per-micro-batch", type=int, default=16384, help="most tokens in a forward pass")
    parser.add_argument("--repeats", type=int, default=2, help="measurements after one that warms up")
    parser.add_argument("--no-reference", action="store_true", help="train without a KL term and its model")
    parser.add_argument(
        "--gradient-checkpointing", action=argparse.BooleanOptionalAction, default=True, help="recompute activations"
    )
    arguments = parser.parse_args(words)
    for name, least in {"num_questions": 1, "response_tokens": 16, "tokens_per_micro_batch": 1, "repeats": 1}.items():
        if getattr(arguments, name) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, got {getattr(arguments, name)}")
    return arguments


def main() -> None:
    """Measure, write and print."""
    arguments = parse()
    path = arguments.out / "gpu_check.json"

    def save(figures: dict[str, Any]) -> None:
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")

    figures = measure(arguments, save)
    for name, value in figures["summary"].items():
        print(f"{name:32} {value:.4g}")


if __name__ == "__main__":
    main()
