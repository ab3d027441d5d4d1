"""samplers: one policy in both engines -> seconds of prefill, scoring and generation on contexts that share prefixes.

    python -m benchmarks.samplers --json samplers.json

One stage of trees: 8 questions, 8 nodes each, whose histories hold a search and passages of 100 words. Roots are
prefilled, then the 64 nodes as their extensions; all nodes are scored, and each writes one response. No end-of-sequence
id ends a response, so that both engines write about as many tokens. Run it in the virtual environment that has vllm.
Ratios and shares are what to compare.
"""

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

from benchmarks.reporting import machine, report
from igrpo_train.config import Agent, Engine, Model, Sampling, Scoring
from igrpo_train.fetch import smollm2_folder
from igrpo_train.policy import Policy, load_policy
from igrpo_train.question import Passage, Question
from igrpo_train.search.prompting import Prompting
from igrpo_train.search.sampling import Sampler
from igrpo_train.search.scoring import AnswerScorer
from igrpo_train.search.transformers_sampler import TransformersSampler
from igrpo_train.search.vllm_sampler import VllmSampler

PHASES = ("prefill", "scoring", "generation")
WIDTH = 8
_KINDS = ("seconds", "cpu_seconds")
_TOWNS = ("Ghent", "Oslo", "Porto", "Turku", "Bergen", "Graz", "Lyon", "Cork")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to measure."""

    model: Path = field(default_factory=smollm2_folder)
    """Folder of the policy."""
    response_tokens: int = 64
    """Tokens of every response that closes no tag before."""
    passages: int = 1
    """Passages of a history; the recipes of the paper bring 3."""
    engines: tuple[Engine, ...] = ("transformers", "vllm")
    """Engines to run."""
    repeats: int = 1
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
        return np.arange(len(self.histories)) // WIDTH


def workload(prompting: Prompting, passages: int) -> Workload:
    """Prompts of the default template, and histories of one search with its passages."""
    questions = [Question(id=town, text=f"Who was the first mayor of {town}?", answers=(town,)) for town in _TOWNS]
    prompts = [prompting.prompt(question) for question in questions]
    histories = []
    for town in _TOWNS:
        for number in range(WIDTH):
            action = f"<search> mayor number {number} of the town of {town} </search>"
            texts = [_passage(town, number, place) for place in range(passages)]
            found = [Passage(id="", title=f"Mayors of {town}", text=text) for text in texts]
            ids = prompting.tokenizer(action, add_special_tokens=False)["input_ids"]
            histories.append((*ids, *prompting.observe(found, 500).ids))
    return Workload(
        heads=[prompt.head_ids for prompt in prompts],
        histories=histories,
        tails=[prompt.tail_ids for prompt in prompts for _ in range(WIDTH)],
        answers=[question.answers for question in questions for _ in range(WIDTH)],
    )


def _passage(town: str, number: int, place: int) -> str:
    """100 words."""
    sentence = "{town} had mayor {k} for {years} years, who built a bridge, a school and a harbour there. "
    words = [sentence.format(town=town, k=number + k, years=k + place + 2) for k in range(7)]
    return " ".join(" ".join(words).split()[:100])


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
        # A tail of a root is computed with it, as in trees.
        roots = sampler.prefill(None, np.arange(len(work.heads)), work.heads, work.tails[::WIDTH])
        prefix = sampler.prefill(roots, work.owners, work.histories, work.tails)
    with watch.measure("scoring"):
        scores = scorer.score(prefix, nodes, work.answers)
    with watch.measure("generation"):
        keys = nodes.astype(np.uint64)
        written = sampler.generate(prefix, nodes, keys, temperature=1.0, max_tokens=response_tokens)
    return scores, sum(len(completion.token_ids) for completion in written)


def measure(arguments: Arguments) -> dict[str, Any]:
    """Rounds of both engines by turns, so that a busy machine hits both."""
    torch.set_num_threads(arguments.threads)
    policy = load_policy(Model(path=str(arguments.model), dtype="float32", device="cpu"))
    # No end-of-sequence id: no response ends early.
    policy.tokenizer.eos_token = None
    policy.model.generation_config.eos_token_id = None
    agent = Agent(max_prompt_tokens=768, max_response_tokens=max(arguments.response_tokens, 64))
    prompting = Prompting(policy.tokenizer, agent, Scoring(), policy.context_limit)
    work = workload(prompting, arguments.passages)
    engines = {name: _start(name, policy, agent) for name in arguments.engines}
    rounds: dict[str, list[Stopwatch]] = {name: [] for name in engines}
    scores: dict[str, Any] = {}
    tokens: dict[str, int] = {}
    # Compiles what is compiled on first use.
    first = Workload(heads=work.heads[:1], histories=work.histories[:1], tails=work.tails[:1], answers=work.answers[:1])
    for sampler in engines.values():
        play(sampler, prompting, first, 2, Stopwatch())
    for _ in range(arguments.repeats):
        for name, sampler in engines.items():
            if isinstance(sampler, VllmSampler):
                sampler.engine.forget()
            watch = Stopwatch()
            scores[name], tokens[name] = play(sampler, prompting, work, arguments.response_tokens, watch)
            rounds[name].append(watch)
    answered = next(iter(scores.values()))
    return {
        "model": arguments.model.name,
        "contexts": len(work.histories),
        "context_tokens": {
            "shared": float(np.mean([len(head) for head in work.heads])),
            "own": float(np.mean([len(history) for history in work.histories])),
            "scored": answered.tokens / len(work.histories),
            "response": arguments.response_tokens,
        },
        "repeats": arguments.repeats,
        "threads": arguments.threads,
        "engines": {name: _figures(rounds[name], tokens[name]) for name in engines},
        "largest_score_difference": max(float(np.abs(side.score - answered.score).max()) for side in scores.values()),
        "decoded_by_force": {name: side.num_forced for name, side in engines.items() if isinstance(side, VllmSampler)},
        "machine": machine(),
    }


def _start(name: Engine, policy: Policy, agent: Agent) -> Sampler:
    if name == "transformers":
        return TransformersSampler(policy.model, policy.tokenizer)
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
    names = list(figures["engines"])
    titles = [f"{name} {unit}" for unit in ("s", "CPU s") for name in names]
    lines = [f"| phase | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for phase in PHASES:
        cells = [figures["engines"][name][kind][phase] for kind in _KINDS for name in names]
        lines.append(f"| {phase} | {' | '.join(f'{seconds:.1f}' for seconds in cells)} |")
    totals = [sum(figures["engines"][name][kind].values()) for kind in _KINDS for name in names]
    lines.append(f"| whole round | {' | '.join(f'{seconds:.1f}' for seconds in totals)} |")
    if len(names) == 2:
        cells = [f"{theirs / ours:.1f} times" for theirs, ours in (totals[:2], totals[2:])]
        lines += [
            "",
            f"{names[1]} against {names[0]}, whole round: {cells[0]} as fast by the clock, {cells[1]} by CPU time.",
        ]
    lines.append("")
    for name, side in figures["engines"].items():
        wall, cpu = side["scoring_share_of_rollout"], side["scoring_share_of_rollout_cpu"]
        share = f"Answer scoring, {name}: {wall:.1%} of rollout time ({cpu:.1%} of its CPU time)"
        lines.append(f"{share}; {side['tokens_written']} tokens were written.")
    lines.append(f"Largest difference of an answer score: {figures['largest_score_difference']:.1e}.")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write where asked."""
    arguments = tyro.cli(Arguments, description=__doc__)
    figures = measure(arguments)
    report(table(figures), figures, arguments.json)


if __name__ == "__main__":
    main()
