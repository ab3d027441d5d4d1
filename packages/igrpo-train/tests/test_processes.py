"""Processes: how work is split and put together again, and real launches of two against one."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from igrpo_train.errors import RetrieverError
from igrpo_train.gathering import merge_rollouts
from igrpo_train.launch import check_processes
from igrpo_train.learn.packing import TurnRow, count_rows, cut_questions
from igrpo_train.learn.shares import own_rows
from igrpo_train.processes import Processes
from igrpo_train.recipes import load_recipe
from igrpo_train.trainer import Trainer

ROOT = Path(__file__).parents[3]


def world(size: int, work: Callable[[Processes], Any]) -> list[Any]:
    """What `work` returns or raises in each of `size` processes; threads stand for them."""
    barrier = threading.Barrier(size)
    posted, results = [b""] * size, [None] * size

    def run(rank: int) -> None:
        def exchange(value: Any) -> list[Any]:
            posted[rank] = pickle.dumps(value)
            barrier.wait(10)
            values = [pickle.loads(post) for post in posted]
            barrier.wait(10)
            return values

        try:
            results[rank] = work(Processes(rank, size, exchange))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize(("count", "size"), [(0, 2), (1, 2), (3, 2), (7, 3), (2, 5)])
def test_shares_are_consecutive_even_and_complete(count, size):
    shares = [list(range(count))[Processes(rank, size).share(count)] for rank in range(size)]
    assert [item for share in shares for item in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_all_processes_give_the_same_answer_and_get_the_results_of_all():
    assert world(3, lambda processes: processes.any(processes.rank == 2)) == [True] * 3
    assert world(3, lambda processes: processes.each(lambda: processes.rank**2)) == [[0, 1, 4]] * 3
    assert world(2, lambda processes: processes.together(lambda: processes.rank)) == [0, 1]


def test_an_error_of_one_process_is_raised_by_all_and_shown_by_that_one():
    def search(processes: Processes) -> None:
        def work() -> None:
            if processes.rank == 1:
                raise RetrieverError("the server is down")

        processes.together(work)

    errors = world(3, search)
    assert [type(error) for error in errors] == [RetrieverError] * 3
    assert {str(error) for error in errors} == {"the server is down"}
    assert [getattr(error, "peer", None) for error in errors] == [1, None, 1]


def test_an_error_that_cannot_be_sent_is_sent_as_its_text():
    class Local(Exception):
        """Not importable, so it cannot be pickled."""

    def work(processes: Processes) -> None:
        def fail() -> None:
            if processes.is_main:
                raise Local("broken")

        processes.together(fail)

    own, peer = world(2, work)
    assert isinstance(own, Local)
    assert (type(peer), str(peer), peer.peer) == (RuntimeError, "Local: broken", 0)


def test_another_number_of_processes_than_expected_is_refused():
    check_processes(2, 2, 2)
    with pytest.raises(ValueError, match=r"number of processes that were started \(1\), got 4: .* on CPUs, where"):
        check_processes(4, 1, 1)
    with pytest.raises(ValueError, match=r"got 2 that were launched and 1 in the group"):
        check_processes(0, 1, 2)


@pytest.mark.parametrize("path", sorted((ROOT / "recipes" / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_reads_its_configurations(path):
    from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
    from accelerate.utils import DistributedType

    config = load_config_from_file(str(path))
    assert isinstance(config, ClusterConfig)
    sharded = path.stem.startswith("fsdp2")
    many = DistributedType.FSDP if sharded else DistributedType.MULTI_GPU
    assert config.distributed_type == (many if config.num_processes > 1 else DistributedType.NO)
    numbers = {"one": 1, "four": 4, "eight": 8, "two": 16}
    assert config.num_processes == numbers[path.stem.removeprefix("fsdp2_").partition("_")[0]]
    assert config.num_machines == (2 if path.stem.endswith("two_nodes") else 1)
    assert not config.use_cpu
    if sharded:
        assert (config.fsdp_config["fsdp_version"], config.fsdp_config["fsdp_cpu_ram_efficient_loading"]) == (2, False)


def some_rows(num_questions: int) -> list[TurnRow]:
    ids: dict[str, Any] = {"response_ids": (6,), "old_logprobs": (-1.0,), "advantage": 1.0}
    return [
        TurnRow(question=slot, path=path, turn=0, context_ids=tuple(range(5 + 3 * slot)), **ids)
        for slot in range(num_questions)
        for path in range(1 + slot % 3)
    ]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_each_row_is_trained_once_and_minibatches_are_dealt_evenly(size):
    rows = some_rows(20)
    shares = [own_rows(rows, 10, 7, Processes(rank, size)) for rank in range(size)]
    assert sorted(row.identity for share in shares for row in share) == sorted(row.identity for row in rows)
    largest = max(sum(row.num_tokens for row in rows if row.question == slot) for slot in range(20))
    for group in cut_questions(count_rows(rows), 10, 7):
        loads = [sum(row.num_tokens for row in share if row.question in group) for share in shares]
        assert max(loads) - min(loads) <= largest
    assert shares[0] == rows or size > 1


def small_run(folder: Path, *flags: str) -> list[str]:
    small = {
        "steps": 4,
        "questions_per_step": 3,
        "validation.every": 2,
        "validation.questions": 5,
        "run.checkpoint_every": 2,
        "run.threads": 1,
        # Two optimiser steps of several passes each, in some of which a process has nothing to do.
        "optimiser.update_rows": 45,
        "optimiser.tokens_per_micro_batch": 200,
        "loss.kl_coefficient": 0.01,
        "run.folder": folder,
    }
    recipe = ROOT / "recipes" / "miniature" / "igrpo.toml"
    return [str(recipe), *(f"--{key}={value}" for key, value in small.items()), *flags]


def test_rollouts_of_shares_make_up_the_rollout_of_one_process(tmp_path):
    trainer = Trainer(load_recipe(small_run(tmp_path / "run", "--questions_per_step=5", "--scoring.always=True")))
    rule = trainer.recipe.growth_rule(0)
    parts = []
    with closing(trainer.folder):
        expected = trainer._grow(0, rule)
        for rank in range(3):
            # Slots 0-1, 2-3 and 4.
            trainer.processes = Processes(rank, 3, exchange=lambda value: [value])
            parts.append(trainer._grow(0, rule))
    merged = merge_rollouts([None, *parts])
    assert merged.questions == expected.questions
    for name in ("parent", "depth", "question", "local", "status"):
        np.testing.assert_array_equal(getattr(merged.tree, name), getattr(expected.tree, name))
    for name in ("score", "value"):
        np.testing.assert_allclose(getattr(merged.tree, name), getattr(expected.tree, name), rtol=1e-4)
    ids = [[getattr(node, "response_ids", None) for node in tree.payload] for tree in (merged.tree, expected.tree)]
    assert ids[0] == ids[1]
    for ours, theirs in zip(merged.paths, expected.paths, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for name in ("grades", "truncated", "valid"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(expected, name))
    assert merged.preamble_probability == pytest.approx(expected.preamble_probability, rel=1e-4)
    assert len(merged.stages) == len(expected.stages)
    for ours, theirs in zip(merged.stages, expected.stages, strict=True):
        assert ours.depth == theirs.depth
        for name in ("nodes", "budget", "counts"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        np.testing.assert_allclose(ours.probabilities, theirs.probabilities, rtol=1e-4)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def metrics_of(folder: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in read(folder / "metrics.jsonl")]


def check_same_run(one: Path, two: Path) -> None:
    """The same trees, token by token, and the same metrics up to rounding."""
    assert (two / "trees.jsonl").is_file()
    for ours, theirs in zip(read(one / "trees.jsonl"), read(two / "trees.jsonl"), strict=True):
        for left, right in zip(ours["nodes"], theirs["nodes"], strict=True):
            for name in ("score", "value", "weight_mu", "weight_pi"):
                assert left.pop(name) == pytest.approx(right.pop(name), abs=1e-4)
        assert ours == theirs
    for ours, theirs in zip(metrics_of(one), metrics_of(two), strict=True):
        assert list(ours) == list(theirs)
        # Passes are cut elsewhere: they share other prefixes.
        for name in ("update/computed_tokens", "update/padded_tokens", "tokens/training"):
            assert (theirs.pop(name, 0) > 0) == (ours.pop(name, 0) > 0)
        assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-5, nan_ok=True)


SHARDED = ("--run.sharding=fsdp2", "--optimiser.gradient_checkpointing=True")


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), SHARDED], ids=["data-parallel", "fsdp2"])
def test_two_processes_train_as_one_does(tmp_path, flags):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, *launcher, __file__, str(tmp_path), *flags],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            output = process.communicate(timeout=400)[0]
        finally:
            # Torchrun takes its processes with it.
            process.terminate()
    assert process.returncode == 0, output[-4000:]
    assert "2 processes (cpu), " + ("FSDP2: each with a part" if flags else "each with all weights") in output
    Trainer(load_recipe(small_run(tmp_path / "one"))).run()
    check_same_run(tmp_path / "one", tmp_path / "two")
    # Fewer questions than processes.
    Trainer(load_recipe(small_run(tmp_path / "one-few", *FEW))).run()
    check_same_run(tmp_path / "one-few", tmp_path / "few")
    # Stopped by a signal to one process, and gone on with: by two processes exactly, by one up to rounding.
    assert metrics_of(tmp_path / "stopped") == metrics_of(tmp_path / "two")
    assert (tmp_path / "stopped" / "trees.jsonl").read_text() == (tmp_path / "two" / "trees.jsonl").read_text()
    alone = [flag for flag in flags if "sharding" not in flag]
    Trainer(load_recipe(small_run(tmp_path / "handed-over", *alone)), resume=True).run()
    check_same_run(tmp_path / "one", tmp_path / "handed-over")
    # A search that fails on one process ends both, with the step before it saved.
    assert [path.name for path in (tmp_path / "lost" / "checkpoints").glob("step-*")] == ["step-000001"]
    assert len(metrics_of(tmp_path / "lost")) == 2


FEW = ("--questions_per_step=1", "--steps=2")


def worker(folder: Path, flags: list[str]) -> None:
    """One of two processes: a whole run, one that is stopped and resumed, one that loses its retriever, a tiny one."""
    from igrpo_train.__main__ import main

    def trainer_in(name: str, *, resume: bool = False) -> Trainer:
        return Trainer(load_recipe([*small_run(folder / name), *flags, "--run.processes=2"]), resume=resume)

    whole = trainer_in("two")
    check_weights(whole.run(), whole, sharded=bool(flags))
    stopped = trainer_in("stopped")
    second = stopped.processes.rank == 1

    def signalled_step(step: int) -> dict[str, float]:
        if step == 2 and second:
            os.kill(os.getpid(), signal.SIGINT)
        return Trainer.step(stopped, step)

    stopped.step = signalled_step  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    stopped.processes.main(lambda: shutil.copytree(folder / "stopped", folder / "handed-over"))
    trainer_in("stopped", resume=True).run()
    lost = trainer_in("lost")
    lost.agent = lost.agent._replace(retriever=Failing(lost) if second else lost.agent.retriever)
    with pytest.raises(RetrieverError, match="the server is down"):
        lost.run()
    # Through the command line, which takes the group down.
    main([*small_run(folder / "few", *FEW), *flags])


class Failing:
    """A retriever that is lost after the first step."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.retriever = trainer, trainer.agent.retriever

    def search(self, queries: list[str], top_k: int) -> Any:
        if self.trainer.state.step == 1:
            raise RetrieverError("the server is down")
        return self.retriever.search(queries, top_k)


def check_weights(saved: Path, trainer: Trainer, *, sharded: bool) -> None:
    """Parameters are sharded where they should be, and an engine gets whole ones: those of the checkpoint."""
    from safetensors.torch import load_file
    from torch import equal
    from torch.distributed.tensor import DTensor

    from igrpo_train.search.vllm_engine import named_weights

    model, reference = trainer.policy.model, trainer.updater.reference
    assert reference is not None
    kinds = [isinstance(parameter, DTensor) for part in (model, reference) for parameter in part.parameters()]
    assert all(kinds) if sharded else not any(kinds)
    written = load_file(saved / "model.safetensors")
    handed = dict(named_weights(model))
    assert set(handed) == set(written)
    assert all(equal(handed[name], weight) for name, weight in written.items())


if __name__ == "__main__":
    worker(Path(sys.argv[1]), sys.argv[2:])
