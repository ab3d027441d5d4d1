"""workload: a recipe -> what one training step must do, at most; and how long that takes a machine, by formula.

Counts are upper bounds: every turn as long as `agent.max_response_tokens`, every observation full, no tree answered
early. Times are products of counts and a machine's stated rates; nothing has been measured on a GPU.
Source: ours.

Example:
    >>> load = step_load(Recipe())
    >>> load.nodes, load.searches, load.optimiser_steps
    (5120, 3840, 32)
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from igrpo_theory.expansion import BudgetMode, stage_budget
from igrpo_train.config import Recipe
from igrpo_train.estimate import Shape, Sharding, cache_bytes_per_token


class TreeBound(NamedTuple):
    """The most that one tree can have."""

    nodes: int
    paths: int
    rows: int
    """Turns of paths; a turn that c paths share counts c times."""


def tree_bound(budget: int, cap: int, mode: BudgetMode, turns: int) -> TreeBound:
    """Largest numbers of nodes, paths and rows of a tree, each over all ways in which it can grow.

    A stage with a active nodes draws min(stage budget, cap a) children; they have at least ceil(children / cap)
    parents, and every other active node becomes a leaf.

    Args:
        budget: children of the root, at least 1.
        cap: children of a later node, at least 1.
        mode: of the stage budget.
        turns: depth at which a tree ends, at least 1.

    Example:
        >>> tree_bound(budget=5, cap=2, mode="full", turns=4)
        TreeBound(nodes=20, paths=11, rows=32)
        >>> tree_bound(budget=5, cap=1, mode="full", turns=4)
        TreeBound(nodes=20, paths=5, rows=20)
    """

    @cache
    def below(turn: int, nodes: int) -> TreeBound:
        """The most that `nodes` nodes of a turn and all below them add."""
        best = TreeBound(nodes, nodes, nodes * turn)
        if turn == turns:
            return best
        for active in range(1, nodes + 1):
            stage = int(stage_budget(mode, budget, np.array([active]))[0])
            children = min(stage, cap * active)
            leaves = nodes - math.ceil(children / cap)
            rest = below(turn + 1, children)
            grown = TreeBound(nodes + rest.nodes, leaves + rest.paths, leaves * turn + rest.rows)
            best = TreeBound(*map(max, best, grown))
        return best

    return below(1, budget)


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Counts of one training step, over all processes; upper bounds."""

    nodes: int
    paths: int
    rows: int
    optimiser_steps: int
    """About rows / optimiser.update_rows."""
    sampled_tokens: int
    prompt_tokens: int
    """Contexts, each shared prefix once; markers around observations and the tail of the template are not counted."""
    trained_tokens: int
    """Columns of the tries: contexts and responses."""
    official_prompt_tokens: int
    """What computing every node's whole prompt would take."""
    searches: int
    requests: int
    """Requests over HTTP that hold them, `retrieval.batch` queries each, in one burst a stage and process."""


def step_load(recipe: Recipe, *, head_tokens: int | None = None, processes: int = 1) -> Load:
    """What the first step of a recipe must do, at most.

    Args:
        recipe: the run.
        head_tokens: of instructions and question; `agent.max_prompt_tokens` when unknown.
        processes: that share the questions.
    """
    agent, questions = recipe.agent, recipe.questions_per_step
    rule = recipe.growth_rule(step=0)
    bound = tree_bound(rule.budget, rule.cap, rule.budget_mode, agent.max_turns)
    head = agent.max_prompt_tokens if head_tokens is None else min(head_tokens, agent.max_prompt_tokens)
    history = min(agent.max_prompt_tokens, agent.max_response_tokens + agent.max_observation_tokens)
    inner = tree_bound(rule.budget, rule.cap, rule.budget_mode, agent.max_turns - 1).nodes if agent.max_turns > 1 else 0
    sampled = questions * bound.nodes * agent.max_response_tokens
    prompt = questions * (head + inner * history)
    burst = math.ceil(math.ceil(questions / processes) * rule.budget / recipe.retrieval.batch)
    rows = questions * bound.rows
    return Load(
        nodes=questions * bound.nodes,
        paths=questions * bound.paths,
        rows=rows,
        optimiser_steps=min(questions, max(1, round(rows / recipe.optimiser.update_rows))),
        sampled_tokens=sampled,
        prompt_tokens=prompt,
        trained_tokens=prompt + sampled,
        official_prompt_tokens=questions * bound.nodes * agent.max_prompt_tokens,
        searches=questions * inner,
        requests=processes * burst * (agent.max_turns - 1),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Rates of one GPU, as its vendor states them, and the share of its arithmetic that is reached: an assumption."""

    name: str
    memory: int
    """Bytes."""
    flops: float
    """Dense bfloat16 operations a second."""
    bandwidth: float
    """Bytes a second from its memory."""
    link: float
    """Bytes a second to GPUs of the same machine, one way."""
    network: float
    """Bytes a second to GPUs of other machines."""
    gpus: int = 8
    """GPUs of a machine."""
    efficiency: float = 0.4
    """Of `flops`, in passes over many tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Mean lengths that a time is computed for, in tokens: assumptions."""

    head: int
    response: int
    history: int
    """What a turn adds to the context of the next."""
    forced: int
    """Scoring preamble and answer."""


class Seconds(NamedTuple):
    """One training step, phase by phase."""

    prefill: float
    generation: float
    scoring: float
    training: float
    exchange: float
    """Of weights and gradients between GPUs."""
    handover: float
    """Of the weights to the engine."""

    @property
    def total(self) -> float:
        """Without retrieval, which is another machine's, and without waiting for the slowest GPU."""
        return sum(self)


def step_seconds(
    shape: Shape,
    recipe: Recipe,
    lengths: Lengths,
    machine: Machine,
    *,
    processes: int,
    sharding: Sharding,
    checkpointing: bool,
    cache_bytes: int,
) -> Seconds:
    """Seconds of one step of full trees, in which every GPU has its share of the questions.

    With F = 2 (P of the layers) + 4 a c layers operations a token, where c is the mean context that it attends to, and
    2 V h for each logit row:

    - prefill and scoring: F a token of a context or forced answer, at `efficiency`;
    - generation: each decoded position reads the weights once for every wave of rows that the cache holds, and all
      keys and values of the rows, or computes F a row, whichever takes longer;
    - training: 3 F a token, 4 F with checkpointing, F for the reference and F for the policy's own log-probabilities;
    - exchange over the slowest link: data-parallel processes send and receive float32 gradients once an optimiser
      step, 8 bytes a number; under fsdp2 each pass exchanges gradients, 4 bytes, and gathers weights, 2 bytes, for its
      forward and backward halves, the reference and the policy's own log-probabilities;
    - hand-over: 2 P bytes are read, gathered under fsdp2, and written.

    Args:
        shape: of the model.
        recipe: gives trees, minibatches and the KL term.
        lengths: assumed.
        machine: assumed.
        processes: GPUs.
        sharding: fsdp2 or none.
        checkpointing: whether activations are computed again.
        cache_bytes: of the engine's key-value cache.
    """
    load = step_load(recipe)
    questions = recipe.questions_per_step / processes
    nodes = load.nodes / recipe.questions_per_step
    inner = load.searches / recipe.questions_per_step
    turns = recipe.agent.max_turns
    context = lengths.head + turns / 2 * lengths.history
    forward = 2 * shape.layers * shape.layer_parameters + 4 * shape.layers * shape.queries * context
    row = 2 * shape.vocabulary * shape.hidden
    rate = machine.efficiency * machine.flops
    prompts = questions * (lengths.head + inner * lengths.history)
    sampled = questions * nodes * lengths.response
    weights, keys = 2 * shape.parameters, cache_bytes_per_token(shape, itemsize=2) * context
    rows = questions * nodes / turns
    waves = math.ceil(rows * keys / cache_bytes)
    position = max((waves * weights + rows * keys) / machine.bandwidth, rows * (forward + row) / rate)
    passes = (4 if checkpointing else 3) + (recipe.loss.kl_coefficient > 0) + 1
    link = machine.link if processes <= machine.gpus else machine.network
    part = (processes - 1) / processes
    micro = math.ceil((prompts + sampled) / recipe.optimiser.tokens_per_micro_batch)
    if sharding == "fsdp2":
        gathered = 3 + (recipe.loss.kl_coefficient > 0)
        exchanged = (gathered * weights + 4 * shape.parameters) * max(micro, load.optimiser_steps)
    else:
        exchanged = 8 * shape.parameters * load.optimiser_steps
    return Seconds(
        prefill=prompts * forward / rate,
        generation=turns * lengths.response * position,
        scoring=questions * inner * lengths.forced * (forward + row) / rate,
        training=passes * ((prompts + sampled) * forward + sampled * row) / rate,
        exchange=part * exchanged / link,
        handover=2 * weights / machine.bandwidth + (part * weights / link if sharding == "fsdp2" else 0.0),
    )
