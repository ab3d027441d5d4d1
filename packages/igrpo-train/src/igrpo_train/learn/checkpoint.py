"""checkpoint: a run after some step <-> a folder to go on from.

In: policy, tokenizer, state of the updater, state of the trainer.
Out: `step-000010/` with `model.safetensors`, its configuration and tokenizer (a folder that
`AutoModelForCausalLM.from_pretrained` loads), `updater.pt`, `trainer.json`, and `manifest.json` with size and CRC-32 of
each file. Adapters are merged into the model, and stand alone in `adapter/` for who goes on. A folder is written beside
its place, flushed to disk and renamed, so it is there whole or not at all.
`best` is a link to the step that validated best.
"""

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from igrpo_train.launch import processes_of
from igrpo_train.learn.adapters import FOLDER as ADAPTERS
from igrpo_train.learn.adapters import save_adapters
from igrpo_train.learn.update import Updater
from igrpo_train.settings import changes
from igrpo_train.weights import adapter_weights, whole_weights

_MANIFEST: Final = "manifest.json"
_TRAINER: Final = "trainer.json"
_UPDATER: Final = "updater.pt"
_BEST: Final = "best"
_PARTIAL: Final = ".partial"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerState:
    """Where a run stands."""

    step: int
    """Training steps done."""
    positions: dict[str, int]
    """Bytes of each of the run's growing files at this step; a resume cuts off what was written later."""
    best_metric: float | None
    """Best validation so far; None before the first."""
    best_step: int | None
    recipe: dict[str, Any]
    """The fields that define the run, nested or flat."""


class Checkpoint(NamedTuple):
    """What `load` gives back."""

    folder: Path
    """Also the path to load policy and tokenizer from."""
    trainer: TrainerState
    updater: dict[str, Any]
    """For `Updater.load_state_dict`."""


def save(
    folder: Path,
    state: TrainerState,
    updater: Updater,
    tokenizer: PreTrainedTokenizerBase,
    *,
    keep_last: int = 2,
    best: bool = False,
) -> Path:
    """Write `folder/step-N`, then drop what is no longer kept; every process calls it, one writes.

    Args:
        folder: holds all checkpoints of the run; created where missing.
        state: where the run stands; its `step` names the checkpoint.
        updater: policy and optimiser.
        tokenizer: saved beside the policy.
        keep_last: newest checkpoints to keep; the best one is kept besides.
        best: make this one the best.

    Returns:
        the checkpoint's folder.
    """
    assert keep_last >= 1, f"keep_last is {keep_last}"
    accelerator, model = updater.accelerator, updater.policy
    # Whole tensors come one by one on every process; only the one that writes keeps them.
    main = bool(accelerator.is_main_process)
    weights = {name: weight.cpu() for name, weight in whole_weights(model) if main}
    adapters = {name: weight.cpu() for name, weight in adapter_weights(model) if main}
    state_of_updater = updater.state_dict()
    target = folder / f"step-{state.step:06d}"

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        partial = folder / f".{target.name}{_PARTIAL}"
        partial.mkdir()
        model.save_pretrained(partial, state_dict=weights)
        if adapters:
            save_adapters(adapters, model, partial / ADAPTERS)
        tokenizer.save_pretrained(partial)
        torch.save(state_of_updater, partial / _UPDATER)
        (partial / _TRAINER).write_text(json.dumps(asdict(state), indent=1) + "\n", encoding="utf-8")
        _seal(partial)
        _replace_folder(partial, target)
        if best:
            _link_best(folder, target.name)
        _prune(folder, keep_last)

    processes_of(accelerator).main(write)
    return target


def steps(folder: Path) -> list[Path]:
    """Checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def latest(folder: Path) -> Path | None:
    """Newest checkpoint of a run; None when there is none."""
    return next(reversed(steps(folder)), None)


def best(folder: Path) -> Path | None:
    """Checkpoint that validated best; None when none was marked."""
    link = folder / _BEST
    return link.resolve() if link.exists() else None


def load(folder: Path, recipe: Mapping[str, Any]) -> Checkpoint:
    """Read a checkpoint back after checking that it is whole and belongs to this run.

    Args:
        folder: one checkpoint, see `latest`.
        recipe: the fields that define this run, as given to `save`.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: a file is missing, cut off or altered; or the checkpoint was made with another recipe.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"checkpoint must be a folder, got {str(folder)!r}: give one of the run's step-* folders"
        )
    damage = _damage(folder)
    if damage is not None:
        raise ValueError(f"checkpoint {folder} is damaged ({damage}): {_damage_remedy(folder)}")
    state = TrainerState(**json.loads((folder / _TRAINER).read_text(encoding="utf-8")))
    changed = changes(state.recipe, recipe)
    if changed:
        listed = "; with ".join(f"{name} = {made}, this run has {now}" for name, (made, now) in changed.items())
        raise ValueError(
            f"checkpoint {folder} was made with {listed}: "
            "resume with the recipe that it was made with, or start a new run folder"
        )
    updater = torch.load(folder / _UPDATER, map_location="cpu", weights_only=True)
    return Checkpoint(folder, state, updater)


def _seal(folder: Path) -> None:
    """Write the manifest and flush everything to disk."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[str(path.relative_to(folder))] = {"bytes": path.stat().st_size, "crc32": _crc32(path)}
            _flush(path)
    (folder / _MANIFEST).write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")
    _flush(folder / _MANIFEST)
    _flush(folder)


def _damage(folder: Path) -> str | None:
    """What is wrong with the files of a checkpoint; None when nothing is."""
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"{_MANIFEST} cannot be read"
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["bytes"]:
            return f"{name} has {path.stat().st_size} bytes where {entry['bytes']} were written"
        if _crc32(path) != entry["crc32"]:
            return f"{name} has other contents than were written"
    return None


def _damage_remedy(folder: Path) -> str:
    """What to do about a damaged checkpoint: the newest whole one before it."""
    older = [path for path in reversed(steps(folder.parent)) if path.name < folder.name]
    intact = next((path for path in older if _damage(path) is None), None)
    if intact is None:
        return "there is no whole one before it; start a new run folder"
    return f"the newest whole one before it is {intact}; delete the damaged folder and resume from there"


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            value = zlib.crc32(block, value)
    return value


def _flush(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace_folder(partial: Path, target: Path) -> None:
    """Move a finished folder to its place."""
    old = target.with_name(f".{target.name}.old{_PARTIAL}")
    if target.exists():
        target.rename(old)
    partial.rename(target)
    _flush(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Delete what a crash left half written."""
    for path in folder.glob(f".*{_PARTIAL}"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _link_best(folder: Path, name: str) -> None:
    link = folder / f".{_BEST}{_PARTIAL}"
    link.symlink_to(name, target_is_directory=True)
    os.replace(link, folder / _BEST)
    _flush(folder)


def _prune(folder: Path, keep_last: int) -> None:
    kept_best = best(folder)
    for path in steps(folder)[:-keep_last]:
        if kept_best is None or path.resolve() != kept_best:
            shutil.rmtree(path)
