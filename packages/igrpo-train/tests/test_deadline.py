"""Deadlines of an engine: a late call is interrupted, one that cannot be ends the process, and others see no trace."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from igrpo_train.errors import EngineError
from igrpo_train.search.deadline import deadline


def _untouched() -> bool:
    return signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_call_that_waits_too_long_is_interrupted_and_told_what_to_do():
    message = (
        r"engine must answer within sampling\.timeout_s = 0\.05 seconds, got no answer: .*, then go on with --resume"
    )
    with pytest.raises(EngineError, match=message), deadline(0.05, "sampling.timeout_s"):
        threading.Event().wait(600)
    assert _untouched()


def test_a_call_in_time_leaves_nothing_behind():
    for seconds in (0, 600):
        with deadline(seconds, "sampling.timeout_s"):
            pass
        with pytest.raises(KeyError), deadline(seconds, "sampling.timeout_s"):
            raise KeyError("its own error")
        assert _untouched()


def test_another_thread_cannot_be_interrupted_and_is_not():
    errors = []

    def work():
        try:
            with deadline(0.01, "sampling.timeout_s"):
                time.sleep(0.1)
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors
    assert _untouched()


def test_a_call_that_never_comes_back_to_python_ends_the_process_with_its_stack():
    # A loop in C that never looks for signals and keeps the interpreter's lock.
    code = (
        "from igrpo_train.search.deadline import deadline\n"
        "with deadline(0.2, 'sampling.timeout_s', grace_s=0.2):\n"
        "    sum(iter(int, 1))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "Timeout (0:00:00.4" in done.stderr
    assert 'File "<string>", line 3' in done.stderr


def test_the_second_timer_is_gone_when_the_first_has_rung():
    code = (
        "import time\n"
        "from igrpo_train.errors import EngineError\n"
        "from igrpo_train.search.deadline import deadline\n"
        "try:\n"
        "    with deadline(0.05, 'sampling.timeout_s', grace_s=0.2):\n"
        "        time.sleep(600)\n"
        "except EngineError:\n"
        "    time.sleep(0.5)\n"
        "    print('saved')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "saved\n", "")


@pytest.mark.slow
def test_a_run_whose_engine_hangs_ends_with_its_last_step_saved(tmp_path, monkeypatch):
    """Any engine: what hangs is the draw of the third step."""
    from igrpo_train.learn import checkpoint
    from igrpo_train.recipes import load_recipe
    from igrpo_train.search.transformers_sampler import TransformersSampler
    from igrpo_train.trainer import Trainer

    recipe = Path(__file__).parents[3] / "recipes" / "miniature" / "igrpo.toml"
    flags = {"steps": 4, "questions_per_step": 2, "validation.every": 0, "run.folder": tmp_path / "run"}
    trainer = Trainer(load_recipe([str(recipe), *(f"--{name}={value}" for name, value in flags.items())]))

    def hang(*given, **named):
        with deadline(0.05, "sampling.timeout_s"):
            time.sleep(600)

    def after(step, metrics):
        if step == 2:
            monkeypatch.setattr(TransformersSampler, "generate", hang)

    trainer.on_step = after
    with pytest.raises(EngineError):
        trainer.run()
    assert checkpoint.latest(tmp_path / "run" / "checkpoints").name == "step-000002"
