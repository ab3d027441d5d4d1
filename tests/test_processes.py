"""Runs of several processes on CPUs: the trees and the updates of one process, sharded or not, and resume."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = ("--validation.questions=3", "--optimiser.update_rows=20")
SHARDED = Path(__file__).parent / "sharded_run.py"


def _launch(arguments, *, program=("-m", "igrpo_train"), processes=2):
    """Run under torchrun on a free port; returns what it printed."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), *program]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, *command, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    return done


def _alone(arguments):
    from igrpo_train.recipes import load_recipe
    from igrpo_train.trainer import Trainer

    Trainer(load_recipe(arguments)).run()


def _lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def _texts(records):
    """Trees without numbers that rounding may touch."""
    rounded = ("score", "value", "weight_mu", "weight_pi")
    return [
        {**record, "nodes": [{k: v for k, v in node.items() if k not in rounded} for node in record["nodes"]]}
        for record in records
    ]


def _same_run(one, other):
    """Trees with equal ids, metrics equal to float tolerance; seconds and how rows were packed may differ."""
    assert _texts(_lines(one, "trees.jsonl")) == _texts(_lines(other, "trees.jsonl"))
    for first, second in zip(_lines(one, "metrics.jsonl"), _lines(other, "metrics.jsonl"), strict=True):
        assert first.keys() == second.keys()
        for name, value in first.items():
            if name.startswith("time/") or name in _PACKED:
                continue
            # NaN is null in the file.
            expected = value if value is None else pytest.approx(value, rel=1e-3, abs=1e-6)
            assert second[name] == expected, name


_PACKED = ("tokens/training", "update/computed_tokens", "update/padded_tokens")


def _forget_last_step(folder):
    """The run as it was after step 2, but for lines that a resume cuts off."""
    shutil.rmtree(folder / "checkpoints" / "step-000004")
    (folder / "checkpoints" / "best").unlink(missing_ok=True)


@pytest.mark.slow
def test_two_processes_train_as_one_does_and_go_on_as_if_nothing_had_happened(small_run, tmp_path):
    flags = (*SMALL, "--run.keep_last=9")
    _alone(small_run(*flags, folder="one"))
    arguments = small_run(*flags, "--run.processes=2", folder="two")
    done = _launch(arguments)
    assert done.returncode == 0, done.stderr
    assert "2 processes, a whole copy each (data parallel)" in done.stderr + done.stdout
    _same_run(tmp_path / "one", tmp_path / "two")
    whole = {name: (tmp_path / "two" / name).read_text() for name in ("metrics.jsonl", "trees.jsonl")}
    _forget_last_step(tmp_path / "two")
    again = _launch([*arguments, "--resume"])
    assert again.returncode == 0, again.stderr
    for name, text in whole.items():
        lines, told = (
            [json.loads(line) for line in t.splitlines()] for t in ((tmp_path / "two" / name).read_text(), text)
        )
        for first, second in zip(lines, told, strict=True):
            assert {k: v for k, v in first.items() if not k.startswith("time/")} == {
                k: v for k, v in second.items() if not k.startswith("time/")
            }


@pytest.mark.slow
def test_shards_train_as_one_process_does_and_one_process_goes_on_with_their_checkpoint(small_run, tmp_path):
    # One question a step: the other process has none.
    flags = (*SMALL, "--questions_per_step=1", "--loss.kl_coefficient=0.01", "--run.keep_last=9")
    _alone(small_run(*flags, folder="one"))
    arguments = small_run(*flags, "--run.sharding=fsdp2", folder="shards")
    done = _launch(arguments, program=(str(SHARDED),))
    assert done.returncode == 0, done.stderr
    assert "sharded: True" in done.stdout
    _same_run(tmp_path / "one", tmp_path / "shards")
    _forget_last_step(tmp_path / "shards")
    from igrpo_train.recipes import load_recipe
    from igrpo_train.trainer import Trainer

    Trainer(load_recipe([*arguments[:-1], "--run.sharding=auto"]), resume=True).run()
    _same_run(tmp_path / "one", tmp_path / "shards")


def test_another_number_of_processes_than_expected_is_refused(small_run):
    from igrpo_train.recipes import load_recipe
    from igrpo_train.trainer import Trainer

    with pytest.raises(
        ValueError, match=r"run.processes must be the number that was launched, got 4 and 1: use torchrun"
    ):
        Trainer(load_recipe(small_run("--run.processes=4")))


def test_sharding_alone_is_refused(small_run):
    from igrpo_train.recipes import load_recipe
    from igrpo_train.trainer import Trainer

    with pytest.raises(ValueError, match="run.sharding must be auto in one process"):
        Trainer(load_recipe(small_run("--run.sharding=fsdp2")))


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("items", [0, 1, 2, 5, 256])
def test_shares_are_consecutive_even_and_whole(count, items):
    from igrpo_train.processes import Processes

    spans = []
    for number in range(count):
        process = Processes()
        process.number, process.count = number, count
        spans.append(range(items)[process.span(items)])
    assert [item for span in spans for item in span] == list(range(items))
    assert max(map(len, spans)) - min(map(len, spans)) <= 1


@pytest.mark.parametrize("name", sorted(path.name for path in Path("recipes/accelerate").glob("*.yaml")))
def test_launch_settings_are_what_accelerate_reads(name):
    from accelerate.commands.config.config_args import load_config_from_file

    settings = load_config_from_file(str(Path("recipes/accelerate") / name))
    assert settings.num_processes >= 1
    assert settings.mixed_precision == "bf16"
    if "fsdp2" in name:
        assert settings.fsdp_config["fsdp_version"] == 2
