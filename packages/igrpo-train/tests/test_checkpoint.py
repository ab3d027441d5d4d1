"""Checkpoint: bitwise resume, all or nothing on disk, and refusals that say what to do."""

import json
import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from accelerate import Accelerator
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
)

from igrpo_train.config import Loss, Optimiser
from igrpo_train.learn import checkpoint
from igrpo_train.learn.checkpoint import TrainerState
from igrpo_train.learn.packing import TurnRow
from igrpo_train.learn.update import Updater

tiny_model = partial(tiny_models.tiny_model, dtype=torch.float32)

RECIPE: dict[str, Any] = {"seed": 1, "tree": {"gamma": 1.0, "cap": 2}, "data": {"hops": (1, 2)}}


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    words = Tokenizer(
        models.WordLevel({"<pad>": 0, **{f"w{index}": index for index in range(1, 23)}}, unk_token="<pad>")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>")


def make_updater(model: nn.Module) -> Updater:
    settings = Optimiser(learning_rate=0.01, warmup_fraction=0.5, update_rows=4)
    return Updater(Accelerator(cpu=True), model, None, settings, Loss(kl_coefficient=0.0), 10, 1.0, 0)


def rows_of(step: int) -> list[TurnRow]:
    rng = np.random.default_rng(step)
    return [
        TurnRow(
            question=index // 3,
            path=index,
            turn=0,
            context_ids=tuple(rng.integers(1, 23, 4).tolist()),
            response_ids=tuple(rng.integers(1, 23, 3).tolist()),
            old_logprobs=tuple((-rng.uniform(2, 4, 3)).tolist()),
            advantage=float(rng.normal()),
        )
        for index in range(9)
    ]


def state_at(step: int, recipe: dict[str, Any] = RECIPE) -> TrainerState:
    return TrainerState(
        step=step, positions={"metrics.jsonl": 100 * step}, best_metric=0.25, best_step=1, recipe=recipe
    )


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def save_steps(folder: Path, steps: range, tokenizer: PreTrainedTokenizerBase, **options: Any) -> None:
    updater = make_updater(tiny_model())
    for step in steps:
        checkpoint.save(folder, state_at(step), updater, tokenizer, **options)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_a_resumed_run_makes_bitwise_the_same_update(
    family: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    straight = make_updater(tiny_model(family))
    for step in range(2):
        straight.update(rows_of(step), step_key=step)
    saved = checkpoint.save(tmp_path / "checkpoints", state_at(2), straight, tokenizer)
    expected = straight.update(rows_of(2), step_key=2)

    assert checkpoint.latest(tmp_path / "checkpoints") == saved
    loaded = checkpoint.load(saved, RECIPE)
    assert loaded.trainer == state_at(2, recipe={**RECIPE, "data": {"hops": [1, 2]}})
    model = AutoModelForCausalLM.from_pretrained(loaded.folder)
    resumed = make_updater(model)
    resumed.load_state_dict(loaded.updater)
    assert resumed.step == 2
    assert resumed.update(rows_of(2), step_key=2) == expected
    assert torch.equal(weights_of(resumed.model), weights_of(straight.model))


def test_the_tokenizer_is_saved_beside_the_policy(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    # Not with a Qwen2 policy: there transformers replaces a tokenizer of another kind by Qwen2's own.
    saved = checkpoint.save(tmp_path, state_at(1), make_updater(tiny_model("llama")), tokenizer)
    assert AutoTokenizer.from_pretrained(saved)("w3 w1 w22")["input_ids"] == [3, 1, 22]


def test_the_newest_ones_and_the_best_one_are_kept(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.best(tmp_path) is None
    save_steps(tmp_path, range(1, 2), tokenizer, keep_last=2, best=True)
    save_steps(tmp_path, range(2, 6), tokenizer, keep_last=2)
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step-000001", "step-000004", "step-000005"]
    assert checkpoint.best(tmp_path) == (tmp_path / "step-000001").resolve()
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "best").config.vocab_size == 23
    save_steps(tmp_path, range(6, 7), tokenizer, keep_last=1, best=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "step-000006"]


def test_a_run_folder_with_its_checkpoints_can_be_moved(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    save_steps(tmp_path / "one", range(1, 2), tokenizer, best=True)
    (tmp_path / "one").rename(tmp_path / "two")
    assert checkpoint.best(tmp_path / "two") == (tmp_path / "two" / "step-000001").resolve()


@pytest.mark.parametrize("where", ["weights", "optimiser", "flush", "rename"])
def test_a_crash_while_saving_leaves_the_previous_checkpoint_whole(
    where: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(tmp_path, range(1, 2), tokenizer, keep_last=1)

    def crash(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        if where == "weights":
            patch.setattr(Qwen2ForCausalLM, "save_pretrained", crash)
        elif where == "optimiser":
            patch.setattr(torch, "save", crash)
        elif where == "flush":
            patch.setattr(os, "fsync", crash)
        else:
            patch.setattr(Path, "rename", crash)
        with pytest.raises(OSError, match="no space left"):
            save_steps(tmp_path, range(2, 3), tokenizer, keep_last=1)
    assert checkpoint.latest(tmp_path) == tmp_path / "step-000001"
    checkpoint.load(tmp_path / "step-000001", RECIPE)
    # The next save cleans up what the crash left.
    save_steps(tmp_path, range(2, 3), tokenizer, keep_last=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]


def test_saving_a_step_again_replaces_it(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    save_steps(tmp_path, range(1, 2), tokenizer)
    updater = make_updater(tiny_model("llama"))
    checkpoint.save(tmp_path, state_at(1, recipe={"seed": 2}), updater, tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert checkpoint.load(tmp_path / "step-000001", {"seed": 2}).trainer.recipe == {"seed": 2}


def test_another_recipe_is_refused_by_the_names_of_its_fields(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    save_steps(tmp_path, range(1, 2), tokenizer)
    folder = tmp_path / "step-000001"
    message = (
        f"checkpoint {folder} was made with tree.gamma = 1.0, this run has 2.0: "
        "resume with the recipe that it was made with, or start a new run folder"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        checkpoint.load(folder, {**RECIPE, "tree": {"gamma": 2.0, "cap": 2}})
    with pytest.raises(
        ValueError, match="made with seed = 1, this run has no value; with tree.cap = 2, this run has 5:"
    ):
        checkpoint.load(folder, {"tree": {"gamma": 1.0, "cap": 5}, "data": {"hops": [1, 2]}})


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        ("cut", r"model\.safetensors has \d+ bytes where \d+ were written"),
        ("flip", r"updater\.pt has other contents than were written"),
        ("remove", r"trainer\.json is missing"),
        ("manifest", r"manifest\.json cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_last_whole_one_named(
    harm: str, what: str, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    save_steps(tmp_path, range(1, 4), tokenizer, keep_last=3)
    (tmp_path / "step-000002" / "trainer.json").write_text("{}")
    folder = tmp_path / "step-000003"
    if harm == "cut":
        os.truncate(folder / "model.safetensors", 1000)
    elif harm == "flip":
        contents = bytearray((folder / "updater.pt").read_bytes())
        contents[len(contents) // 2] ^= 1
        (folder / "updater.pt").write_bytes(contents)
    elif harm == "remove":
        (folder / "trainer.json").unlink()
    else:
        (folder / "manifest.json").write_text('{"model.safe')
    whole = f"the newest whole one before it is {tmp_path / 'step-000001'}; delete the damaged folder and resume"
    with pytest.raises(ValueError, match=f"checkpoint {folder} is damaged .{what}.: {whole}"):
        checkpoint.load(folder, RECIPE)
    shutil.rmtree(tmp_path / "step-000001")
    with pytest.raises(ValueError, match="there is no whole one before it; start a new run folder"):
        checkpoint.load(folder, RECIPE)


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"checkpoint must be a folder, got .*step-000009"):
        checkpoint.load(tmp_path / "step-000009", RECIPE)


def test_what_is_written_is_readable_json(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    save_steps(tmp_path, range(3, 4), tokenizer)
    trainer = json.loads((tmp_path / "step-000003" / "trainer.json").read_text())
    assert trainer["step"] == 3
    assert trainer["positions"] == {"metrics.jsonl": 300}
    manifest = json.loads((tmp_path / "step-000003" / "manifest.json").read_text())
    assert {"model.safetensors", "config.json", "tokenizer.json", "updater.pt", "trainer.json"} <= set(manifest)
