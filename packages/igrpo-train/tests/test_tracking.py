"""test_tracking: a run folder tells what ran, loses no step, repeats none, and says what is wrong with the disk."""

import json
import math
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from igrpo_train import tracking
from igrpo_train.config import Model, Recipe, Run, Tree
from igrpo_train.errors import DiskError
from igrpo_train.recipes import load_recipe, to_dict
from igrpo_train.tracking import JsonLines, Phases, RunFolder, code_state, write_text


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return Recipe(run=Run(folder=str(tmp_path / "runs" / "a")), model=Model(path="miniature:leak"))


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_new_run_folder_holds_recipe_settings_and_code(recipe: Recipe) -> None:
    folder = RunFolder(recipe)
    folder.close()
    assert {path.name for path in folder.path.iterdir()} == {
        ".lock", "recipe.toml", "config.json", "code.json", "metrics.jsonl", "trees.jsonl",
    }  # fmt: skip
    assert load_recipe([str(folder.path / "recipe.toml")]) == recipe
    assert json.loads((folder.path / "config.json").read_text()) == json.loads(json.dumps(to_dict(recipe)))
    (start,) = json.loads((folder.path / "code.json").read_text())
    assert start["versions"]["torch"] == tracking.metadata.version("torch")
    assert {"commit", "dirty", "platform", "started_at"} <= start.keys()


def test_a_second_run_in_the_same_folder_is_refused(recipe: Recipe) -> None:
    RunFolder(recipe).close()
    with pytest.raises(ValueError, match=r"run.folder must be a new folder, got '.*a', which holds a run: .* --resume"):
        RunFolder(recipe)


def test_resuming_needs_a_run_and_the_same_recipe(recipe: Recipe) -> None:
    with pytest.raises(FileNotFoundError, match=r"run.folder must hold a run to resume, got '.*': leave out --resume"):
        RunFolder(recipe, resume=True)
    RunFolder(recipe).close()
    config = Path(recipe.run.folder) / "config.json"
    whole = config.read_text()
    config.write_text(whole[:9])
    with pytest.raises(ValueError, match=r"config.json must be JSON to resume, got .*: restore it or name a new run"):
        RunFolder(recipe, resume=True)
    config.write_text(whole)
    changed = replace(recipe, tree=Tree(gamma=2.0, budget=4))
    with pytest.raises(ValueError, match=r"got tree.budget = 4 \(was 5\), tree.gamma = 2.0 \(was 1.0\): resume with"):
        RunFolder(changed, resume=True)


def test_a_resumed_run_may_be_written_differently_and_records_its_start(recipe: Recipe) -> None:
    RunFolder(recipe).close()
    folder = RunFolder(replace(recipe, run=replace(recipe.run, threads=2)), resume=True)
    folder.close()
    assert len(json.loads((folder.path / "code.json").read_text())) == 2
    assert load_recipe([str(folder.path / "recipe.toml")]).run.threads == 2


def test_rewinding_to_a_checkpoint_loses_and_repeats_no_step(recipe: Recipe) -> None:
    folder = RunFolder(recipe)
    for step in range(5):
        if step == 3:
            positions = folder.positions()
        folder.metrics.append({"step": step, "reward/mean": 0.5})
        folder.trees.append({"step": step, "text": "Émile \u2028 Zola"})
    folder.close()
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 5, "rew')  # what a killed process leaves
    again = RunFolder(recipe, resume=True)
    again.rewind(positions)
    again.metrics.append({"step": 3, "reward/mean": 0.75})
    again.close()
    assert [line["step"] for line in lines(folder.path / "metrics.jsonl")] == [0, 1, 2, 3]
    assert lines(folder.path / "metrics.jsonl")[-1]["reward/mean"] == 0.75
    trees = (folder.path / "trees.jsonl").read_bytes().split(b"\n")
    assert [json.loads(line)["step"] for line in trees if line] == [0, 1, 2]


def test_a_file_shorter_than_its_checkpoint_says_is_refused(tmp_path: Path) -> None:
    file = JsonLines(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match=r"metrics.jsonl must hold at least 10 bytes, got 0: it was changed since"):
        file.truncate(10)
    file.close()


def test_numbers_that_are_not_finite_and_numpy_numbers_become_plain_json(tmp_path: Path) -> None:
    file = JsonLines(tmp_path / "a.jsonl")
    file.append(
        {"a": math.nan, "b": [math.inf, 1.5], "c": {"d": np.float32(0.5), "e": np.int64(3), "f": np.float32("nan")}}
    )
    file.close()
    assert lines(tmp_path / "a.jsonl") == [{"a": None, "b": [None, 1.5], "c": {"d": 0.5, "e": 3, "f": None}}]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_full_disk_is_told_with_file_reason_and_remedy() -> None:
    file = JsonLines(Path("/dev/full"))
    with pytest.raises(DiskError, match=r"/dev/full must be writable, got 'No space left on device': free space"):
        file.append({"step": 1})
    file.close()


class HalfFull:
    """A raw file that takes a few bytes of a line, then no more."""

    def __init__(self, file) -> None:
        self.file, self.room = file, 4

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        written = self.file.write(data[: self.room])
        self.room -= written
        return written

    def __getattr__(self, name: str):
        return getattr(self.file, name)


def test_a_line_that_does_not_fit_is_taken_back_whole(tmp_path: Path) -> None:
    file = JsonLines(tmp_path / "a.jsonl")
    file.append({"step": 0})
    file._file = HalfFull(file._file)
    with pytest.raises(DiskError, match="No space left on device"):
        file.append({"step": 1})
    file.close()
    assert lines(tmp_path / "a.jsonl") == [{"step": 0}]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DiskError, match=r"run.folder must be a folder .*, got '.*/file/run', where '.*/file' is no folder"
    ):
        RunFolder(Recipe(run=Run(folder=str(tmp_path / "file" / "run"))))


def test_a_whole_file_is_replaced_or_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "a.json", "old")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(DiskError, match="a.json must be writable"):
        write_text(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "old"


def test_phases_add_up_time_and_tokens_until_they_are_taken() -> None:
    now = iter([0.0, 1.5, 2.0, 2.5, 3.0, 4.0])
    phases = Phases(lambda: next(now))
    for tokens in (10, 5):
        with phases.measure("prefill") as phase:
            phase.tokens += tokens
    with pytest.raises(KeyError), phases.measure("training"):
        raise KeyError("a failing phase is timed too")
    taken = phases.take()
    assert (taken["time/prefill_s"], taken["tokens/prefill"], taken["time/training_s"]) == (2.0, 15.0, 1.0)
    names = {f"time/{name}_s" for name in ("prefill", "generation", "scoring", "retrieval", "training")}
    names |= {f"tokens/{name}" for name in ("prefill", "generation", "scoring", "training", "recomputed")}
    assert taken.keys() == names
    assert set(phases.take().values()) == {0.0}


def test_code_outside_a_checkout_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking.subprocess, "run", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError("git")))
    state = code_state()
    assert (state["commit"], state["dirty"]) == (None, None)


def test_code_in_a_checkout_names_commit_and_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*args: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", *identity, *args]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    module = tmp_path / "tracking.py"
    module.write_text("one")
    git("init", "--quiet")
    monkeypatch.setattr(tracking, "__file__", str(module))
    assert tracking._commit() == (None, None)  # somebody else's checkout: the file is not tracked
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    head = git("rev-parse", "HEAD").strip()
    assert tracking._commit() == (head, False)
    module.write_text("two")
    assert tracking._commit() == (head, True)
