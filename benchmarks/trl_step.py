"""trl_step: one model, the same prompts and lengths -> seconds of an optimiser step, here and in TRL's GRPOTrainer.

    python -m benchmarks.trl_step --json figures.json      # in the environment of benchmarks/trl/requirements.txt

Both sides run chain GRPO without tools: a random Llama with a plain word tokenizer, 16 prompts, groups of 5, responses
of 32 tokens in float32, one optimiser step a batch, AdamW, transformers as the engine. Neither stops early: no id
spells a tag, and the end of a sequence is one id in thousands. Rewards are random zeros and ones, so nearly all rows
count.
Measurements alternate, each in a process of its own; the first steps of each are left out.
"""

import json
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import tyro
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.reporting import check_counts, machine, report
from igrpo_theory.growth import GrowthRule
from igrpo_train.recipes import load_recipe
from igrpo_train.rollout import Rollout
from igrpo_train.trainer import Trainer

Side = Literal["ours", "trl"]

VOCABULARY, RESPONSE, PROMPTS, GROUP = 2048, 32, 16, 5
MODELS = {"128 wide, 2 layers": (128, 2), "256 wide, 4 layers": (256, 4)}
WARM_UP = 2


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to measure."""

    steps: int = 6
    """Measured optimiser steps of one process."""
    rounds: int = 5
    """Processes of each side, a model and a KL coefficient."""
    kl: tuple[float, ...] = (0.0, 0.04)
    """KL coefficients; above 0 both sides run a reference."""
    json: Path | None = None
    """Where to write the figures."""


class Job(NamedTuple):
    """One process."""

    side: Side
    folder: Path
    kl: float
    steps: int


def write_inputs(folder: Path, width: int, layers: int) -> None:
    """Model, tokenizer, questions and a passage."""
    words = [f"w{k}" for k in range(VOCABULARY - 3)]
    table = {word: index for index, word in enumerate(("<pad>", "<unk>", "<eos>", *words))}
    backend = Tokenizer(WordLevel(table, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>", padding_side="left"
    )
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    draw = np.random.default_rng(0)
    prompts = [" ".join(f"w{word}" for word in draw.integers(len(words), size=24)) for _ in range(PROMPTS)]
    rows = [{"id": str(k), "question": text, "golden_answers": ["w0"]} for k, text in enumerate(prompts)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "corpus.jsonl").write_text(json.dumps({"id": "0", "title": "w0", "text": "w1"}) + "\n")


class RandomRewards(Trainer):
    """A trainer whose paths are right at random."""

    def _grow(self, step: int, rule: GrowthRule) -> Rollout:
        rollout = super()._grow(step, rule)
        right = np.random.default_rng(step).integers(2, size=len(rollout.grades))
        return rollout._replace(grades=right.astype(np.float64))


def our_steps(job: Job) -> list[float]:
    """CPU seconds at the end of every step of our trainer."""
    settings = {
        "system": "grpo",
        "steps": WARM_UP + job.steps,
        "questions_per_step": PROMPTS,
        "model.path": job.folder / "model",
        "model.dtype": "float32",
        "model.device": "cpu",
        "data.train": job.folder / "questions.jsonl",
        "data.corpus": job.folder / "corpus.jsonl",
        "agent.template": "{question} {history}",
        "agent.chat": False,
        "agent.max_turns": 1,
        "agent.max_prompt_tokens": 64,
        "agent.max_response_tokens": RESPONSE,
        "tree.budget": GROUP,
        "reward.truncated": "zero",
        "loss.kl_coefficient": job.kl,
        "optimiser.update_rows": 10**6,
        "validation.every": 0,
        "run.folder": job.folder / f"run-{os.getpid()}",
        "run.checkpoint_every": 0,
        "run.trees_every": 0,
        "run.threads": 1,
    }
    ends = [time.process_time()]
    recipe = load_recipe([f"--{name}={value}" for name, value in settings.items()])
    RandomRewards(recipe, on_step=lambda *_: ends.append(time.process_time())).run()
    return ends


def trl_steps(job: Job) -> list[float]:
    """CPU seconds at the end of every step of TRL's trainer."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    lines = (job.folder / "questions.jsonl").read_text().splitlines()
    prompts = [json.loads(line)["question"] for line in lines]
    ends = [time.process_time()]

    class Clock(TrainerCallback):
        def on_step_end(self, *_args: Any, **_keywords: Any) -> None:
            ends.append(time.process_time())

    draw = np.random.default_rng(0)
    trainer = GRPOTrainer(
        model=str(job.folder / "model"),
        reward_funcs=lambda completions, **_: draw.integers(2, size=len(completions)).astype(float).tolist(),
        args=GRPOConfig(
            output_dir=str(job.folder / f"trl-{os.getpid()}"),
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=RESPONSE,
            max_steps=WARM_UP + job.steps,
            beta=job.kl,
            learning_rate=1e-6,
            max_grad_norm=1.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            model_init_kwargs={"dtype": "float32"},
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        callbacks=[Clock()],
    )
    trainer.train()
    return ends


def measure(job: Job) -> list[float]:
    """CPU seconds of each measured step; runs in a process of its own."""
    ends = our_steps(job) if job.side == "ours" else trl_steps(job)
    return np.diff(ends)[WARM_UP:].tolist()


def compare(arguments: Arguments, sides: tuple[Side, ...] = ("ours", "trl")) -> list[dict[str, Any]]:
    """Medians of every round's steps, by model and KL coefficient."""
    context = multiprocessing.get_context("spawn")
    found = []
    for name, (width, layers) in MODELS.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_inputs(folder, width, layers)
            for kl in arguments.kl:
                seconds: dict[str, list[float]] = {side: [] for side in sides}
                for _ in range(arguments.rounds):
                    for side in sides:
                        with context.Pool(1) as pool:
                            seconds[side].append(median(pool.apply(measure, (Job(side, folder, kl, arguments.steps),))))
                found.append({"model": name, "kl": kl, **seconds})
    return found


def table(figures: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| model | KL coefficient | ours, CPU s a step | TRL, CPU s a step | ours : TRL (range over rounds) |",
        "|---|---|---|---|---|",
    ]
    for row in figures["rows"]:
        ours, trl = median(row["ours"]), median(row["trl"])
        ratios = sorted(a / b for a, b in zip(row["ours"], row["trl"], strict=True))
        spread = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append(f"| {row['model']} | {row['kl']:g} | {ours:.3f} | {trl:.3f} | {spread} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write where asked."""
    arguments = tyro.cli(Arguments, description=__doc__)
    check_counts(steps=arguments.steps, rounds=arguments.rounds)
    figures = {"rows": compare(arguments), "steps": arguments.steps, "rounds": arguments.rounds, "machine": machine()}
    report(table(figures), figures, arguments.json)


if __name__ == "__main__":
    main()
