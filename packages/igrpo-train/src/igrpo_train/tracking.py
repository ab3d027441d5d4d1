"""tracking: a recipe and what happens during its run -> the files of a run folder.

In: the resolved recipe, metrics of each step, records of grown trees, seconds and tokens of each phase.
Out: recipe.toml, config.json, code.json, metrics.jsonl and trees.jsonl; on resume the last two are cut back to the
byte where the checkpoint was taken, so that a step is never recorded twice.

Example:
    >>> phases = Phases()
    >>> with phases.measure("generation") as phase:
    ...     phase.tokens += 12
    >>> phases.take()["tokens/generation"]
    12.0
"""

import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
from filelock import FileLock, Timeout

from igrpo_train.config import FREE_ON_RESUME, Recipe
from igrpo_train.errors import DiskError
from igrpo_train.recipes import recipe_to_toml, to_dict
from igrpo_train.settings import changes

PhaseName = Literal["prefill", "generation", "scoring", "retrieval", "training"]

_PACKAGES: Final = ("igrpo-theory", "igrpo-train", "torch", "transformers", "accelerate", "numpy", "bm25s")
_LOCK: Final = ".lock"
_REMEDY: Final = "free space or mend its permissions, then go on with --resume"


@dataclass(slots=True)
class Phase:
    """What one phase took since it was last read."""

    seconds: float = 0.0
    """Wall time."""
    tokens: int = 0
    """Tokens that the model computed; the caller adds them."""


class Phases:
    """Adds up seconds and tokens of the phases of a step.

    Args:
        clock: seconds from any start.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._phases: dict[PhaseName, Phase] = {name: Phase() for name in get_args(PhaseName)}
        self.recomputed_tokens = 0
        """Context tokens that the sampler ran once more because they had been evicted; the caller adds them."""

    @contextmanager
    def measure(self, name: PhaseName) -> Iterator[Phase]:
        """Time a block, also when it fails; the block adds its tokens to the phase that it is given."""
        phase = self._phases[name]
        start = self.clock()
        try:
            yield phase
        finally:
            phase.seconds += self.clock() - start

    def take(self) -> dict[str, float]:
        """Metrics `time/PHASE_s`, `tokens/PHASE` (not of retrieval) and `tokens/recomputed` since the last call."""
        taken = {f"time/{name}_s": phase.seconds for name, phase in self._phases.items()}
        taken |= {f"tokens/{name}": float(p.tokens) for name, p in self._phases.items() if name != "retrieval"}
        taken["tokens/recomputed"] = float(self.recomputed_tokens)
        self._phases, self.recomputed_tokens = {name: Phase() for name in self._phases}, 0
        return taken


def merge_phases(taken: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What `Phases.take` gave on each process, over all: tokens are added up, seconds are those of the slowest.

    Example:
        >>> merge_phases([{"time/step_s": 1.0, "tokens/prefill": 5.0}, {"time/step_s": 3.0, "tokens/prefill": 2.0}])
        {'time/step_s': 3.0, 'tokens/prefill': 7.0}
    """
    return {name: (max if name.startswith("time/") else sum)(entry[name] for entry in taken) for name in taken[0]}


class JsonLines:
    """A file of one JSON object a line, written line by line and cut back on resume.

    Args:
        path: the file; made when it does not exist, appended to when it does.

    Raises:
        DiskError: the file cannot be opened for writing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            # Unbuffered: a line is in the file or it failed here, never later in a destructor.
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    @property
    def position(self) -> int:
        """Bytes written so far; what a checkpoint records."""
        return os.fstat(self._file.fileno()).st_size

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line; numbers that are not finite become null.

        Raises:
            DiskError: the disk is full or gone; the file then ends with the line before.
        """
        line = json.dumps(_finite(record), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        start = self.position
        with disk_errors(self.path):
            try:
                while line:
                    line = line[self._file.write(line) :]
            except OSError:
                with suppress(OSError):
                    self._file.truncate(start)
                raise

    def truncate(self, position: int) -> None:
        """Drop everything after a recorded position.

        Raises:
            ValueError: the file is shorter than that.
        """
        if position > self.position:
            raise ValueError(
                f"{self.path} must hold at least {position} bytes, got {self.position}: it was changed since its "
                "checkpoint was written; restore it or start a new run"
            )
        with disk_errors(self.path):
            self._file.truncate(position)

    def sync(self) -> int:
        """Force the file to the disk and return its position: call it before a checkpoint that records it."""
        with disk_errors(self.path):
            os.fsync(self._file.fileno())
        return self.position

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class RunFolder:
    """The folder of one run.

    Args:
        recipe: the resolved recipe; `recipe.run.folder` names the folder.
        resume: go on in a folder that holds a run of the same recipe, instead of starting a new one.

    Raises:
        ValueError: a new run would overwrite another, a resumed run has another recipe, or another process is writing.
        FileNotFoundError: there is no run to resume.
        DiskError: the folder cannot be written.
    """

    def __init__(self, recipe: Recipe, *, resume: bool = False) -> None:
        check_run_folder(recipe, resume=resume)
        self.path = Path(recipe.run.folder).expanduser()
        settings = json.loads(json.dumps(to_dict(recipe)))
        config = self.path / "config.json"
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(self.path, "run.folder")
        code = self.path / "code.json"
        starts = json.loads(code.read_text(encoding="utf-8")) if resume and code.exists() else []
        write_text(code, json.dumps([*starts, code_state()], indent=2) + "\n")
        write_text(self.path / "recipe.toml", recipe_to_toml(recipe))
        write_text(config, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
        self.metrics = JsonLines(self.path / "metrics.jsonl")
        """One line a step, names `stage/quantity_unit`."""
        self.trees = JsonLines(self.path / "trees.jsonl")
        """One line a question of the recorded steps."""

    def positions(self) -> dict[str, int]:
        """Sync both files and return how far they are; goes into a checkpoint."""
        return {"metrics": self.metrics.sync(), "trees": self.trees.sync()}

    def rewind(self, positions: Mapping[str, int]) -> None:
        """Cut both files back to a checkpoint's positions."""
        self.metrics.truncate(positions["metrics"])
        self.trees.truncate(positions["trees"])

    def close(self) -> None:
        """Close both files and let others write the folder."""
        self.metrics.close()
        self.trees.close()
        self._lock.release()


def check_run_folder(recipe: Recipe, *, resume: bool) -> None:
    """Refuse a folder that a run cannot be written to, before anything is loaded.

    Raises:
        ValueError, FileNotFoundError, DiskError: see `RunFolder`.
    """
    folder = Path(recipe.run.folder).expanduser()
    config = folder / "config.json"
    if resume:
        _check_same(config, json.loads(json.dumps(to_dict(recipe))))
    elif config.exists():
        raise ValueError(
            f"run.folder must be a new folder, got {recipe.run.folder!r}, which holds a run: name another one, "
            "go on with --resume, or remove it"
        )
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        what = "cannot be written" if nearest.is_dir() else "is no folder"
        raise DiskError(
            f"run.folder must be a folder that can be written, got {recipe.run.folder!r}, where {str(nearest)!r} "
            f"{what}: name another one"
        )


def lock_folder(folder: Path, setting: str) -> FileLock:
    """The folder's lock, taken; it goes when the process does.

    Args:
        folder: exists.
        setting: names the folder in the message.

    Raises:
        ValueError: another process has it.
        DiskError: the folder cannot be written.
    """
    lock = FileLock(folder / _LOCK)
    with disk_errors(folder):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(
                f"{setting} must be written by one run at a time, got {str(folder)!r}, which another process writes: "
                "wait for it, stop it, or name another folder"
            ) from None
    return lock


def write_text(path: Path, text: str) -> None:
    """Write a whole file or leave the old one as it was.

    Raises:
        DiskError: the disk is full or the folder cannot be written.
    """
    part = path.with_name(path.name + ".part")
    with disk_errors(path):
        part.write_text(text, encoding="utf-8")
        part.replace(path)


def code_state() -> dict[str, Any]:
    """What produced a run: commit and whether it was changed (None outside a checkout), versions, platform, time."""
    commit, dirty = _commit()
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "versions": {"python": platform.python_version(), **versions},
        "platform": platform.platform(),
    }


def _commit() -> tuple[str | None, bool | None]:
    here = Path(__file__)

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(["git", *args], cwd=here.parent, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    # An installed copy may lie inside somebody else's checkout: only a tracked file tells about its own.
    if git("ls-files", "--error-unmatch", here.name) is None:
        return None, None
    commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    return (commit.strip() if commit else None), (None if changes is None else bool(changes.strip()))


def _check_same(config: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to resume under another recipe."""
    if not config.is_file():
        raise FileNotFoundError(f"run.folder must hold a run to resume, got {str(config.parent)!r}: leave out --resume")
    try:
        read = json.loads(config.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{config} must be JSON to resume, got {error}: restore it or name a new run.folder"
        ) from error
    changed = {name: pair for name, pair in changes(read, settings).items() if not name.startswith(FREE_ON_RESUME)}
    if changed:
        listed = ", ".join(f"{name} = {now} (was {made})" for name, (made, now) in changed.items())
        raise ValueError(
            f"recipe must be the saved one to resume, got {listed}: resume with {config.with_name('recipe.toml')}, or "
            "name a new run.folder"
        )


def _finite(value: Any) -> Any:
    """Plain JSON values: numpy's numbers become Python's, and what is not finite becomes None."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an operating system's error in a block into a `DiskError` that names `path` and the remedy."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        failure = DiskError(f"{path} must be writable, got {reason!r}: {_REMEDY}")
        # Another process shows its own error.
        failure.peer = getattr(error, "peer", None)
        raise failure from error
