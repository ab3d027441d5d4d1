"""A run that was stopped, however rudely, ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def _start(arguments):
    command = [sys.executable, "-m", "igrpo_train", *arguments]
    return subprocess.Popen(
        command,
        env={**os.environ, "JAXTYPING_DISABLE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _folder(arguments):
    [flag] = [argument for argument in arguments if argument.startswith("--run.folder=")]
    return Path(flag.partition("=")[2])


def _metrics(arguments):
    lines = (_folder(arguments) / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def _wait_for_step(arguments, step, process):
    deadline = time.monotonic() + 120
    path = _folder(arguments) / "metrics.jsonl"
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and any(
            json.loads(line)["step"] >= step
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ):
            return
        time.sleep(0.02)
    pytest.fail(f"the run did not reach step {step}: {process.communicate()[0]}")


def _finish(arguments):
    process = _start(arguments)
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output


def _trees(arguments):
    return (_folder(arguments) / "trees.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(small_run, stop, code):
    flags = ("--steps=12", "--run.checkpoint_every=3", "--loss.kl_coefficient=0.01")
    whole, stopped = small_run(*flags, folder="whole"), small_run(*flags, folder="stopped")
    _finish(whole)
    process = _start(stopped)
    _wait_for_step(stopped, 5, process)
    process.send_signal(stop)
    process.communicate(timeout=120)
    assert process.returncode == code
    assert _metrics(stopped)[-1]["step"] < 12
    _finish([*stopped, "--resume"])
    assert _metrics(stopped) == _metrics(whole)
    assert _trees(stopped) == _trees(whole)


@pytest.mark.slow
def test_resuming_under_another_recipe_is_refused_and_named(small_run):
    _finish(small_run())
    process = _start([*small_run("--tree.gamma=2"), "--resume"])
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 2
    assert "got tree.gamma = 2.0 (was 1.0): resume with" in " ".join(output.replace("│", " ").split())


@pytest.mark.slow
def test_a_second_run_does_not_overwrite_the_first(small_run):
    _finish(small_run())
    process = _start(small_run())
    assert "holds a run" in " ".join(process.communicate(timeout=120)[0].replace("│", " ").split())
    assert process.returncode == 2


def _trainer(arguments, **options):
    from igrpo_train.recipes import load_recipe
    from igrpo_train.trainer import Trainer

    return Trainer(load_recipe(arguments), **options)


def test_a_run_that_is_interrupted_while_it_validates_is_saved_at_that_step(small_run):
    from igrpo_train.learn import checkpoint

    arguments = small_run("--steps=6", "--run.checkpoint_every=0")
    trainer = _trainer(arguments)
    scores = iter([0.5, 0.5, 0.4])

    def validate():
        score = next(scores)
        if score == 0.4:
            os.kill(os.getpid(), signal.SIGINT)
        return {"validation/exact_match": score}

    trainer.validate = validate
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert _metrics(arguments)[-1]["step"] == 4
    assert checkpoint.latest(_folder(arguments) / "checkpoints").name == "step-000004"


def test_resuming_before_the_first_checkpoint_starts_over_without_old_lines(small_run):
    arguments = small_run("--steps=1")
    stopped = _trainer(arguments)
    stopped.folder.metrics.append({"step": 0})
    stopped.folder.trees.append({"step": 1})
    stopped.folder.close()
    _trainer(arguments, resume=True).run()
    assert [line["step"] for line in _metrics(arguments)] == [0, 1]
    assert _trees(arguments).count("\n") == 3
