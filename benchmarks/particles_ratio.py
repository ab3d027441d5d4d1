"""particles_ratio: growth and the PyPI package particles on one model -> seconds side by side, log Z, peak memory.

    python -m venv .venv-particles && .venv-particles/bin/pip install -r benchmarks/particles/requirements.txt
    OMP_NUM_THREADS=1 PYTHONPATH=packages/igrpo-theory/src .venv-particles/bin/python -m benchmarks.particles_ratio

The model: a policy tree of 4 turns, growing with 10**6 nodes a stage. particles runs the same Feynman-Kac model: states
are nodes of the policy tree, log G = gamma val but 0 at the last turn, and it resamples at every step. Its children are
sampled as ours are, and it keeps no history; ours builds the whole tree. Both estimate log Z, a check of each other.
Rounds alternate between the two sides; times are CPU seconds of one thread, medians over the rounds.
"""

import argparse
import importlib
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from igrpo_theory import (
    GrowthRule,
    PolicyTree,
    PolicyTreeWorld,
    RolloutTree,
    draw_expansions,
    expansion_probabilities,
    fold,
    grow,
    log_partition,
    question_keys,
    random_policy_tree,
)
from igrpo_theory.expansion import Scheme
from igrpo_theory.randomness import spaced_keys
from igrpo_theory.segments import blocks, repeat_rising

TURNS, GAMMA, SEED = 4, 1.0, 3
TARGETS = {"multinomial": 0.8, "systematic": 1.3, "loop": 50.0, "memory_gib": 1.0}


def model() -> PolicyTree:
    """The policy tree that both sides run on."""
    return random_policy_tree(np.random.default_rng(SEED), turns=TURNS, branching=3)


def grow_once(policy: PolicyTree, num_nodes: int, scheme: Scheme, cap: int) -> float:
    """Grow one tree; returns log Zhat - log Z."""
    rule = GrowthRule(budget=num_nodes, cap=cap, gamma=GAMMA, scheme=scheme, criterion="score", turn_limit=TURNS)
    keys = question_keys(SEED, 0, np.arange(1), ["benchmark"])
    growth = grow(PolicyTreeWorld(policy), np.zeros(1, dtype=np.int64), keys, rule)
    # The mean weight of a stage from its first node, whose chance is its weight over the sum: particles, too, takes it
    # from its softmax.
    value = growth.tree.value
    means = [
        GAMMA * value[stage.nodes[0]] - np.log(stage.probabilities[0] * len(stage.nodes)) for stage in growth.stages
    ]
    return float(sum(means)) - log_partition(policy, GAMMA)


def particle_filter(policy: PolicyTree) -> Any:
    """The same model for particles: its class of Feynman-Kac models, filled in."""
    base: Any = importlib.import_module("particles").FeynmanKac
    world = PolicyTreeWorld(policy)
    first, cdf = world._first_child, (world._ends + 0.5) / 2.0**52
    log_weight = GAMMA * policy.value

    class Model(base):  # type: ignore[misc]
        def child(self, states: np.ndarray) -> np.ndarray:
            draws, children = np.random.rand(len(states)), first[states]  # noqa: NPY002 as particles itself does
            for column in cdf:
                children += column[states] <= draws
            return children

        def M0(self, N: int) -> np.ndarray:  # noqa: N802
            return self.child(np.zeros(N, dtype=np.int64))

        def M(self, t: int, xp: np.ndarray) -> np.ndarray:  # noqa: N802
            return self.child(xp)

        def logG(self, t: int, xp: np.ndarray, x: np.ndarray) -> np.ndarray:  # noqa: N802
            return log_weight[x] if t < TURNS - 1 else np.zeros(len(x))

    return Model(TURNS)


def filter_once(policy: PolicyTree, num_particles: int, scheme: str) -> float:
    """Run particles; returns log Zhat - log Z."""
    particles = importlib.import_module("particles")
    run = particles.SMC(fk=particle_filter(policy), N=num_particles, resampling=scheme, ESSrmin=1.0)
    run.run()
    return float(run.logLt) - log_partition(policy, GAMMA)


def side_by_side(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> dict[str, Any]:
    """CPU seconds of both, in turn; a first round is thrown away (compilation, memory)."""
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(rounds + 1):
        for name, run in (("ours", ours), ("theirs", theirs)):
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    ours_s, theirs_s = (median(seconds[name][1:]) for name in ("ours", "theirs"))
    ratios = [theirs / ours for ours, theirs in zip(seconds["ours"][1:], seconds["theirs"][1:], strict=True)]
    return {
        "ours_s": ours_s,
        "theirs_s": theirs_s,
        "ratio": median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


def stage_by_loop(probabilities: np.ndarray, budget: int, cap: int, rng: np.random.Generator) -> np.ndarray:
    """The capped draw of one stage as it is usually written: one Generator.choice a child, full nodes taken out."""
    counts = np.zeros(probabilities.shape, dtype=np.int64)
    for question, row in enumerate(probabilities):
        for _ in range(min(budget, cap * len(row))):
            left = np.where(counts[question] < cap, row, 0.0)
            counts[question, rng.choice(len(row), p=left / left.sum())] += 1
    return counts


def compare_loop(rounds: int, num_questions: int = 256, num_nodes: int = 5, cap: int = 2) -> dict[str, Any]:
    """One expansion stage of a training batch: all questions at once against the loop."""
    probabilities = np.random.default_rng(SEED).dirichlet(np.ones(num_nodes), size=num_questions)
    question = np.repeat(np.arange(num_questions), num_nodes)
    budget, keys = np.full(num_questions, num_nodes), fold(np.arange(num_questions, dtype=np.uint64), SEED)
    rng, flat, repeats = np.random.default_rng(SEED), probabilities.ravel(), 50

    def ours() -> None:
        for _ in range(repeats):
            draw_expansions(flat, question, budget, cap, keys)

    figures = side_by_side(ours, lambda: stage_by_loop(probabilities, num_nodes, cap, rng), rounds)
    figures["ours_s"] /= repeats
    return {name: value if name.endswith("_s") else value * repeats for name, value in figures.items()}


def compare_resampling(num_nodes: int, scheme: Scheme, rounds: int) -> dict[str, Any]:
    """The draw alone: child counts of 10**6 nodes against particles' ancestor indices."""
    resampling = importlib.import_module("particles.resampling")
    weights = np.random.default_rng(SEED).exponential(size=num_nodes)
    weights /= weights.sum()
    question, keys = np.zeros(num_nodes, dtype=np.int64), fold(np.arange(1, dtype=np.uint64), SEED)
    budget, name = np.array([num_nodes]), "multinomial" if scheme == "capped" else scheme

    def ours() -> None:
        draw_expansions(weights, question, budget, num_nodes, keys, scheme)

    return side_by_side(ours, lambda: getattr(resampling, name)(weights, num_nodes), rounds)


def measure(num_nodes: int, rounds: int) -> dict[str, Any]:
    """Every comparison, and the peak memory of a process that grows one tree."""
    policy, figures = model(), dict[str, Any]()
    schemes: dict[str, Scheme] = {"multinomial": "capped", "systematic": "systematic"}
    for name, scheme in schemes.items():

        def ours(scheme: Scheme = scheme) -> float:
            return grow_once(policy, num_nodes, scheme, num_nodes)

        def theirs(name: str = name) -> float:
            return filter_once(policy, num_nodes, name)

        figures[name] = {**side_by_side(ours, theirs, rounds), "ours_log_z": ours(), "theirs_log_z": theirs()}
        figures[f"{name} draw alone"] = compare_resampling(num_nodes, scheme, rounds)
    figures["loop"] = compare_loop(rounds)
    command = [sys.executable, "-m", "benchmarks.particles_ratio", "--memory", "--nodes", str(num_nodes)]
    figures["memory_gib"] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {
        "nodes": num_nodes,
        "rounds": rounds,
        "seed": SEED,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "figures": figures,
    }


def milliseconds(run: Callable[[], object], rounds: int) -> float:
    """Median CPU time of a call; a first one is thrown away."""
    times = []
    for _ in range(rounds + 1):
        start = time.process_time()
        run()
        times.append(1e3 * (time.process_time() - start))
    return median(times[1:])


def profile(num_nodes: int, rounds: int) -> str:
    """Where the time of one stage goes on both sides, part by part, as a Markdown table of milliseconds."""
    policy = model()
    world, resampling = PolicyTreeWorld(policy), importlib.import_module("particles.resampling")
    rule = GrowthRule(budget=num_nodes, cap=num_nodes, gamma=GAMMA, criterion="score", turn_limit=TURNS)
    keys = question_keys(SEED, 0, np.arange(1), ["benchmark"])
    growth = grow(world, np.zeros(1, dtype=np.int64), keys, rule)
    tree, (_, stage, _) = growth.tree, growth.stages
    nodes, question, budget = stage.nodes, tree.question[stage.nodes], np.array([num_nodes])
    values, states, filter_model = tree.value[nodes], np.asarray(tree.payload)[nodes], particle_filter(policy)
    parents, local = np.repeat(nodes, stage.counts), np.arange(num_nodes)
    proposal = world.propose(tree, parents, spaced_keys(keys, local))
    node_bytes = 2 * 4 + 2 * 8 + 1 + 8  # parent and depth, score and value, status, payload

    def draw(scheme: Scheme) -> np.ndarray:
        return draw_expansions(stage.probabilities, question, budget, num_nodes, keys, scheme)

    def turns() -> None:
        for block in blocks(num_nodes):
            world.propose(tree, parents[block], spaced_keys(keys, local[block]))

    def append() -> None:
        fresh, root = RolloutTree[int].plant(np.zeros(1, dtype=np.int64), capacity=1 + num_nodes), np.zeros_like(local)
        for block in blocks(num_nodes):
            fresh.append(root[block], proposal.payloads[block], proposal.terminal[block], TURNS, local[block])
        fresh.set_scores(slice(1, num_nodes + 1), values)
        fresh.set_values(slice(1, num_nodes + 1), values)

    def scores() -> None:
        for block in blocks(num_nodes):
            world.score(tree, nodes[block])

    rows: list[tuple[str, Callable[[], object] | None, Callable[[], object] | None]] = [
        ("keys", lambda: spaced_keys(keys, local), None),
        (
            "a turn a node",
            turns,
            lambda: filter_model.M(1, states),
        ),
        ("scores", scores, lambda: filter_model.logG(1, states, states)),
        (
            "softmax",
            lambda: expansion_probabilities(values, question, GAMMA),
            lambda: resampling.Weights(lw=GAMMA * values),
        ),
        ("multinomial draw", lambda: draw("capped"), lambda: resampling.multinomial(stage.probabilities, num_nodes)),
        ("systematic draw", lambda: draw("systematic"), lambda: resampling.systematic(stage.probabilities, num_nodes)),
        ("counts to parents", lambda: repeat_rising(nodes, stage.counts), None),
        ("tree", append, None),
        (f"first touch of {node_bytes} bytes a node", lambda: np.empty(node_bytes * num_nodes, np.uint8).fill(1), None),
    ]
    lines = ["| milliseconds a stage | ours | theirs |", "|---|---|---|"]
    for name, *sides in rows:
        lines.append(
            " | ".join([f"| {name}", *("" if run is None else f"{milliseconds(run, rounds):.1f}" for run in sides)])
            + " |"
        )
    return "\n".join(lines)


def table(result: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    lines = ["| | ours, s | theirs, s | times their speed | range | target |", "|---|---|---|---|---|---|"]
    for name, row in result["figures"].items():
        if not isinstance(row, dict):
            continue
        span, target = f"{row['lowest']:.2f} to {row['highest']:.2f}", TARGETS.get(name, "")
        lines.append(
            f"| {name} | {row['ours_s']:.4g} | {row['theirs_s']:.4g} | {row['ratio']:.2f} | {span} | {target} |"
        )
    lines.append("")
    for name in ("multinomial", "systematic"):
        row = result["figures"][name]
        lines.append(f"log Zhat - log Z, {name}: ours {row['ours_log_z']:+.5f}, particles {row['theirs_log_z']:+.5f}")
    lines.append(
        f"peak memory of one growth: {result['figures']['memory_gib']:.2f} GiB (target below {TARGETS['memory_gib']:g})"
    )
    return "\n".join(lines)


def main() -> None:
    """Measure and print; with --memory, only grow one tree and print the peak in GiB."""
    parser = argparse.ArgumentParser(description="Growth beside the package particles.")
    parser.add_argument("--nodes", type=int, default=10**6, help="nodes a stage")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--memory", action="store_true", help="print the peak memory of one growth, in GiB")
    parser.add_argument("--profile", action="store_true", help="print where the time of one stage goes")
    options = parser.parse_args()
    if options.profile:
        print(profile(options.nodes, options.rounds))
        return
    if options.memory:
        grow_once(model(), options.nodes, "capped", options.nodes)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        return
    result = measure(options.nodes, options.rounds)
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
