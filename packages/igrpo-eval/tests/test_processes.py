"""Several processes: shares, parts, and the same records as one process."""

import json
import os
import subprocess
import sys

import pytest


def _records(folder):
    from igrpo_eval.records import read_records

    return read_records(folder / "records.jsonl")


def _as_processes(monkeypatch, count, missing=()):
    """Let a command play all processes of a launch in turn; those in `missing` die before they answer anything."""
    from igrpo_eval import run
    from igrpo_train.processes import Processes

    choose, evaluations, waits = run.chosen_questions, [], []

    def remember(evaluation):
        evaluations.append(evaluation)
        return choose(evaluation)

    def others(value):
        """What happens elsewhere while the main process waits at the end of its share."""
        waits.append(None)
        if len(waits) != 2:
            return [value]
        for index in set(range(1, count)) - set(missing):
            monkeypatch.setattr(run, "join_processes", lambda device, own=index: Processes(own, count))
            run.run(evaluations[-1])
        if missing:
            raise KeyboardInterrupt
        return [value]

    # It would end this process, which plays all of them.
    monkeypatch.setattr(Processes, "finish", lambda self: None)
    monkeypatch.setattr(run, "chosen_questions", remember)
    monkeypatch.setattr(run, "join_processes", lambda device: Processes(0, count, exchange=others))


def test_shares_are_apart_and_together_everything():
    from igrpo_eval.processes import share
    from igrpo_train.processes import Processes

    shares = [share(Processes(rank, 3), range(8)) for rank in range(3)]
    assert sorted(number for share in shares for number in share) == list(range(8))


def test_one_process_needs_no_launcher(monkeypatch):
    from igrpo_eval.processes import join_processes

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    group = join_processes("cpu")
    assert (group.rank, group.size, group.is_main) == (0, 1, True)
    group.finish()


@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_leave_the_records_and_figures_of_one(command, monkeypatch, count):
    one = command("--samples=2", out="one")
    _as_processes(monkeypatch, count)
    many = command("--samples=2", out="many")
    assert _records(many) == _records(one)
    assert sorted(path.name for path in many.iterdir()) == [".lock", "records.jsonl", "settings.json", "summary.json"]
    groups = [json.loads((folder / "summary.json").read_text())["groups"] for folder in (one, many)]
    assert groups[0] == groups[1]
    assert json.loads((many / "summary.json").read_text())["measured"]["processes"] == count


def test_what_some_processes_did_is_kept_by_another_number_of_them(command, monkeypatch, tmp_path):
    whole = _records(command(out="whole"))
    with monkeypatch.context() as patch:
        _as_processes(patch, 3, missing=(1,))
        with pytest.raises(SystemExit) as stopped:
            command()
    assert stopped.value.code == 130
    folder = tmp_path / "out"
    assert {path.name for path in folder.iterdir()} == {
        ".lock",
        "records.part-0.jsonl",
        "records.part-2.jsonl",
        "settings.json",
    }
    # A process that is killed leaves half a line.
    with (folder / "records.part-2.jsonl").open("a") as file:
        file.write('{"id": "torn')
    with pytest.raises(SystemExit):
        command()
    with monkeypatch.context() as patch:
        _as_processes(patch, 2)
        assert _records(command("--resume")) == whole


def test_two_evaluations_cannot_write_one_folder(command, tmp_path, capsys):
    from igrpo_train.tracking import lock_folder

    command(limit=1)
    lock = lock_folder(tmp_path / "out", "out")
    with pytest.raises(SystemExit):
        command("--resume", limit=2)
    lock.release()
    assert "out must be written by one run at a time" in " ".join(capsys.readouterr().err.replace("│", "").split())
    assert len(_records(command("--resume", limit=2))) == 2


@pytest.mark.slow
def test_a_real_launch_of_two_processes_gives_the_records_of_one(command, run_flags, tmp_path):
    one = _records(command(out="one"))
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "igrpo_eval")
    done = subprocess.run(
        [sys.executable, *launch, "run", *run_flags, f"--out={tmp_path / 'two'}", "--limit=6"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert _records(tmp_path / "two") == one
    assert done.stdout.count("exact match") == 1
