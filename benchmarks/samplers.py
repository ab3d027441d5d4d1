"""samplers: one policy in both engines -> seconds of prefill, scoring and generation on contexts that share prefixes.

    python -m benchmarks.samplers --json samplers.json

One stage of trees: 8 questions, 8 nodes each. Roots are prefilled, then the 64 nodes as their extensions; all nodes are
scored, and each writes one response. Responses have a fixed length, so that both engines write the same number of
tokens. Run it in the virtual environment that has vllm. Ratios and shares are what to compare.
"""

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import tyro

from igrpo_train.config import Agent, Model, Sampling, Scoring
from igrpo_train.fetch import smollm2_folder
from igrpo_train.policy import Policy, load_policy
from igrpo_train.question import Passage, Question
from igrpo_train.search.prompting import Prompting
from igrpo_train.search.sampling import Sampler
from igrpo_train.search.scoring import AnswerScorer
from igrpo_train.search.transformers_sampler import TransformersSampler
from igrpo_train.search.vllm_sampler import VllmSampler

PHASES = ("prefill", "scoring", "generation")
QUESTIONS, WIDTH = 8, 8
_KINDS = ("seconds", "cpu_seconds")
_TOWNS = ("Ghent", "Oslo", "Porto", "Turku", "Bergen", "Graz", "Lyon", "Cork")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to measure."""

    model: Path = field(default_factory=smollm2_folder)
    """Folder of the policy."""
    response_tokens: int = 64
    """Tokens of every response."""
    repeats: int = 2
    """Rounds of each engine; figures are medians over rounds."""
    threads: int = 1
    """CPU threads of torch."""
    json: Path | None = None
    """Where to write the figures; only printed when left out."""


@dataclass(frozen=True)
class Workload:
    """What both engines are given."""

    heads: list[tuple[int, ...]]
    """Root contexts, a question."""
    histories: list[tuple[int, ...]]
    """What each node adds to its root."""
    tails: list[tuple[int, ...]]
    answers: list[tuple[str, ...]]

    @property
    def owners(self) -> Any:
        """Question of each node."""
        return np.repeat(np.arange(QUESTIONS), WIDTH)


def workload(prompting: Prompting) -> Workload:
    """Prompts of the default template, and histories of one search with one passage."""
    questions = [Question(id=town, text=f"Who was the first mayor of {town}?", answers=(town,)) for town in _TOWNS]
    prompts = [prompting.prompt(question) for question in questions]
    histories = []
    for town in _TOWNS:
        for number in range(WIDTH):
            action = f"<search> mayor number {number} of the town of {town} </search>"
            text = f"{town} had {number + 3} mayors before the war. Its first one held the office for {number} years."
            passage = Passage(id="", title=f"Mayors of {town}", text=text)
            ids = prompting.tokenizer(action, add_special_tokens=False)["input_ids"]
            histories.append((*ids, *prompting.observe([passage], 500).ids))
    return Workload(
        heads=[prompt.head_ids for prompt in prompts],
        histories=histories,
        tails=[prompt.tail_ids for prompt in prompts for _ in range(WIDTH)],
        answers=[question.answers for question in questions for _ in range(WIDTH)],
    )


class Stopwatch:
    """Adds up wall and CPU seconds of the phases of one round."""

    def __init__(self) -> None:
        self.wall = dict.fromkeys(PHASES, 0.0)
        self.cpu = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Time a block."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall[phase] += time.perf_counter() - wall
        self.cpu[phase] += time.process_time() - cpu


def play(
    sampler: Sampler, prompting: Prompting, work: Workload, response_tokens: int, watch: Stopwatch
) -> tuple[Any, int]:
    """One round; returns the nodes' scores and the number of tokens that were written."""
    scorer = AnswerScorer(sampler, prompting, prompting.scoring)
    nodes = np.arange(len(work.histories))
    with watch.measure("prefill"):
        roots = sampler.prefill(None, np.arange(QUESTIONS), work.heads)
        prefix = sampler.prefill(roots, work.owners, work.histories)
    with watch.measure("scoring"):
        scores = scorer.score(prefix, nodes, work.tails, work.answers)
    with watch.measure("generation"):
        keys = nodes.astype(np.uint64)
        written = sampler.generate(prefix, nodes, work.tails, keys, temperature=1.0, max_tokens=response_tokens)
    return scores, sum(len(completion.token_ids) for completion in written)


def measure(arguments: Arguments) -> dict[str, Any]:
    """Rounds of both engines by turns, so that a busy machine hits both."""
    torch.set_num_threads(arguments.threads)
    policy = load_policy(Model(path=str(arguments.model), dtype="float32", device="cpu"))
    # No end-of-sequence id: no response ends early.
    policy.tokenizer.eos_token = None
    policy.model.generation_config.eos_token_id = None  # type: ignore[union-attr]  # a causal model has one
    agent = Agent(max_prompt_tokens=768, max_response_tokens=max(arguments.response_tokens, 64))
    prompting = Prompting(policy.tokenizer, agent, Scoring(), policy.context_limit)
    work = workload(prompting)
    start = time.perf_counter()
    engines = {"transformers": TransformersSampler(policy.model, policy.tokenizer), "vllm": _vllm(policy, agent)}
    started = time.perf_counter() - start
    rounds: dict[str, list[Stopwatch]] = {name: [] for name in engines}
    scores: dict[str, Any] = {}
    tokens: dict[str, int] = {}
    for sampler in engines.values():
        # Compiles what is compiled on first use.
        play(sampler, prompting, work, 1, Stopwatch())
    for _ in range(arguments.repeats):
        for name, sampler in engines.items():
            if isinstance(sampler, VllmSampler):
                sampler.engine.forget()
            watch = Stopwatch()
            answered, tokens[name] = play(sampler, prompting, work, arguments.response_tokens, watch)
            rounds[name].append(watch)
            scores[name] = answered.score
    forced = engines["vllm"].num_forced / engines["vllm"].num_scored  # type: ignore[union-attr]
    return {
        "model": arguments.model.name,
        "contexts": len(work.histories),
        "context_tokens": {
            "shared": float(np.mean([len(head) for head in work.heads])),
            "own": float(np.mean([len(history) for history in work.histories])),
            "scored": answered.tokens / len(work.histories),
        },
        "response_tokens": arguments.response_tokens,
        "repeats": arguments.repeats,
        "threads": arguments.threads,
        "vllm_start_s": started,
        "engines": {name: _figures(rounds[name], tokens[name]) for name in engines},
        "largest_score_difference": float(np.abs(scores["vllm"] - scores["transformers"]).max()),
        "forced_share": forced,
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
    }


def _vllm(policy: Policy, agent: Agent) -> VllmSampler:
    return VllmSampler(policy, Model(dtype="float32"), Sampling(engine="vllm", cache_gib=2.0), agent)


def _figures(watches: list[Stopwatch], tokens: int) -> dict[str, Any]:
    wall = {phase: median(watch.wall[phase] for watch in watches) for phase in PHASES}
    cpu = {phase: median(watch.cpu[phase] for watch in watches) for phase in PHASES}
    return {
        "seconds": wall,
        "cpu_seconds": cpu,
        "rounds_s": [watch.wall for watch in watches],
        "tokens_written": tokens,
        "scoring_share_of_rollout": wall["scoring"] / sum(wall.values()),
        "scoring_share_of_rollout_cpu": cpu["scoring"] / sum(cpu.values()),
    }


def table(figures: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    ours, theirs = figures["engines"]["vllm"], figures["engines"]["transformers"]
    lines = [
        "| phase | transformers s | vllm s | ratio | transformers CPU s | vllm CPU s | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [(phase, [side[kind][phase] for kind in _KINDS for side in (theirs, ours)]) for phase in PHASES]
    totals = [sum(side[kind].values()) for kind in _KINDS for side in (theirs, ours)]
    for phase, (a, b, c, d) in [*rows, ("whole round", totals)]:
        lines.append(f"| {phase} | {a:.2f} | {b:.2f} | {a / b:.1f} | {c:.2f} | {d:.2f} | {c / d:.1f} |")
    lines.append("")
    for name, side in figures["engines"].items():
        wall, cpu = side["scoring_share_of_rollout"], side["scoring_share_of_rollout_cpu"]
        lines.append(f"Answer scoring, {name}: {wall:.1%} of rollout time ({cpu:.1%} of its CPU time).")
    lines.append(f"Largest difference of an answer score: {figures['largest_score_difference']:.1e}.")
    lines.append(f"Decoded by force: {figures['forced_share']:.1%} of the scored continuations.")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write where asked."""
    arguments = tyro.cli(Arguments, description=__doc__)
    figures = measure(arguments)
    print(table(figures))
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
