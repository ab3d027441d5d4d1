"""test_workload: the bounds hold for every tree that can grow, and are reached."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from igrpo_theory.expansion import stage_budget
from igrpo_train.config import Agent, Loss, Recipe, Retrieval, Tree
from igrpo_train.estimate import GB, KNOWN
from igrpo_train.workload import Lengths, Machine, step_load, step_seconds, tree_bound

RECIPE = Recipe()
MACHINE = Machine(name="M", memory=80 * GB, flops=1e15, bandwidth=3e12, link=4e11, network=5e10)
LENGTHS = Lengths(head=200, response=128, history=480, forced=32)


def all_trees(budget: int, cap: int, mode, turns: int, turn: int = 1, nodes: int | None = None):
    """(nodes, paths, rows) below one turn, for every way of ending nodes and of giving out children."""
    nodes = budget if nodes is None else nodes
    yield nodes, nodes, nodes * turn
    if turn == turns:
        return
    for active in range(1, nodes + 1):
        children = min(int(stage_budget(mode, budget, np.array([active]))[0]), cap * active)
        for counts in product(range(cap + 1), repeat=active):
            if sum(counts) == children:
                leaves = nodes - active + counts.count(0)
                for rest in all_trees(budget, cap, mode, turns, turn + 1, children):
                    yield nodes + rest[0], leaves + rest[1], leaves * turn + rest[2]


@pytest.mark.parametrize("mode", ["full", "mid", "low"])
@pytest.mark.parametrize(("budget", "cap", "turns"), [(1, 1, 3), (3, 1, 3), (3, 2, 3), (4, 2, 2), (3, 3, 3), (2, 4, 4)])
def test_the_bounds_are_the_largest_of_all_trees(mode, budget: int, cap: int, turns: int) -> None:
    grown = list(all_trees(budget, cap, mode, turns))
    assert tree_bound(budget, cap, mode, turns) == tuple(max(column) for column in zip(*grown, strict=True))


def test_the_paper_s_step_takes_32_updates_at_most() -> None:
    load = step_load(RECIPE)
    assert (load.nodes, load.paths, load.rows) == (256 * 20, 256 * 11, 256 * 32)
    assert load.optimiser_steps == load.rows // 256 == 32
    assert load.sampled_tokens == 256 * 20 * 512
    assert load.searches == 256 * 15


def test_short_heads_and_more_processes_change_what_depends_on_them() -> None:
    load, short = step_load(RECIPE), step_load(RECIPE, head_tokens=200)
    assert load.prompt_tokens - short.prompt_tokens == 256 * (4096 - 200)
    # 1280 queries of a stage in requests of 256, or 8 processes with 160 each.
    assert load.requests == 3 * 5
    assert step_load(RECIPE, processes=8).requests == 3 * 8


def test_one_turn_searches_nothing() -> None:
    load = step_load(replace(RECIPE, agent=Agent(max_turns=1), retrieval=Retrieval(batch=1)))
    assert (load.searches, load.requests) == (0, 0)
    assert load.rows == load.nodes == 256 * 5


def test_times_follow_their_formulas() -> None:
    shape = KNOWN["Qwen/Qwen2.5-7B-Instruct"]

    def seconds(recipe: Recipe = RECIPE, processes: int = 1, sharding="none", checkpointing=False, cache_bytes=10**12):
        options = {
            "processes": processes,
            "sharding": sharding,
            "checkpointing": checkpointing,
            "cache_bytes": cache_bytes,
        }
        return step_seconds(shape, recipe, LENGTHS, MACHINE, **options)

    base = seconds()
    assert base.exchange == 0
    assert base.total == pytest.approx(sum(base))
    # Policy 3, reference 1 and own log-probabilities 1; checkpointing runs the policy once more.
    assert seconds(checkpointing=True).training == pytest.approx(base.training * 6 / 5)
    assert seconds(replace(RECIPE, loss=Loss(kl_coefficient=0.0))).training == pytest.approx(base.training * 4 / 5)
    eight = seconds(processes=8, sharding="fsdp2")
    assert eight.training == pytest.approx(base.training / 8)
    assert eight.exchange > 0
    assert eight.generation >= base.generation / 8
    # A cache for a tenth of the rows: the weights are read ten times a position.
    small = seconds(cache_bytes=10**9)
    assert small.generation > base.generation
    # Between machines the network counts.
    assert seconds(processes=16, sharding="fsdp2").exchange > 4 * eight.exchange
    assert seconds(replace(RECIPE, tree=Tree(budget=10))).scoring == pytest.approx(2 * base.scoring)
