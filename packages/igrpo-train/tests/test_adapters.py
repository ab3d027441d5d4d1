"""Adapters: what is trained, what the reference is, and what a checkpoint holds."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="needs igrpo-train[lora]")

import torch
from accelerate import Accelerator
from tiny_models import tiny_model
from transformers import AutoModelForCausalLM

from igrpo_train.config import Loss, Model, Optimiser
from igrpo_train.learn.adapters import adapters_off, add_adapters, has_adapters
from igrpo_train.learn.packing import TurnRow
from igrpo_train.learn.update import Updater
from igrpo_train.recipes import load_recipe
from igrpo_train.trainer import Trainer
from igrpo_train.weights import whole_weights

ROOT = Path(__file__).parents[3]
IDS = torch.arange(2, 14)[None]
CONFIG = Model(lora_rank=2, lora_alpha=8.0)


def adapted(config=CONFIG, seed=0, dtype=torch.float32):
    model = tiny_model(dtype=torch.float32).to(dtype)
    add_adapters(model, config, seed)
    return model


def rows():
    ids = {"turn": 0, "context_ids": (3, 4, 5), "old_logprobs": (-1.0, -1.0)}
    return [
        TurnRow(question=0, path=path, response_ids=(6 + path, 7), advantage=1.0 - 2.0 * path, **ids)
        for path in range(2)
    ]


def updater_of(model, kl=0.1):
    optimiser = Optimiser(learning_rate=0.05, warmup_fraction=0.0)
    return Updater(Accelerator(cpu=True), model, None, optimiser, Loss(kl_coefficient=kl), 10, 1.0, 0)


def test_the_first_policy_is_the_models_own_and_the_draws_are_a_function_of_the_seed():
    plain, model = tiny_model(dtype=torch.float32), adapted()
    assert has_adapters(model)
    assert not has_adapters(plain)
    assert torch.equal(model(IDS).logits, plain(IDS).logits)
    draws = [[p.clone() for name, p in adapted(seed=seed).named_parameters() if "lora_A" in name] for seed in (0, 0, 1)]
    assert all(torch.equal(a, b) for a, b in zip(draws[0], draws[1], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(draws[0], draws[2], strict=True))


def test_only_adapters_change_and_without_them_the_policy_is_the_reference():
    model = adapted()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    expected = model(IDS).logits
    updater = updater_of(model)
    first, second = updater.update(rows(), 0), updater.update(rows(), 1)
    assert abs(first["update/kl"]) < 1e-9
    assert second["update/kl"] > 1e-6
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == {name for name in before if ".lora_" in name}
    assert not torch.equal(model(IDS).logits, expected)
    with adapters_off(model):
        assert torch.equal(model(IDS).logits, expected)


def test_a_base_in_half_precision_stays_there_while_adapters_are_in_full():
    model = adapted(dtype=torch.bfloat16)
    updater_of(model, kl=0.0)
    kinds = {".lora_" in name: parameter.dtype for name, parameter in model.named_parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}


def test_merged_weights_give_the_adapted_policy():
    model = adapted()
    updater_of(model).update(rows(), 0)
    merged = tiny_model(dtype=torch.float32)
    missing = merged.load_state_dict(dict(whole_weights(model)), strict=False)
    assert (missing.missing_keys, missing.unexpected_keys) == (["lm_head.weight"], [])
    torch.testing.assert_close(merged(IDS).logits, model(IDS).logits, atol=1e-5, rtol=1e-5)


def test_layers_can_be_named_and_unknown_ones_are_refused():
    model = adapted(Model(lora_rank=2, lora_targets=("q_proj",)))
    assert {name.split(".")[-4] for name, _ in model.named_parameters() if ".lora_A" in name} == {"q_proj"}
    with pytest.raises(ValueError, match=r"model.lora_targets must name linear layers of Qwen2ForCausalLM, got \('no"):
        adapted(Model(lora_rank=2, lora_targets=("nowhere",)))


def metrics_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


def test_a_resumed_run_with_adapters_equals_an_uninterrupted_one(tmp_path):
    settings = {
        "steps": 3,
        "questions_per_step": 2,
        "validation.every": 0,
        "run.checkpoint_every": 1,
        "run.keep_last": 3,
        "run.threads": 1,
        "run.trees_every": 0,
        "optimiser.learning_rate": 0.01,
        "loss.kl_coefficient": 0.01,
        "model.lora_rank": 2,
        "run.folder": tmp_path / "whole",
    }
    flags = [f"--{name}={value}" for name, value in settings.items()]
    arguments = [str(ROOT / "recipes" / "miniature" / "igrpo.toml"), *flags]
    whole = Trainer(load_recipe(arguments))
    newest = whole.run()
    shutil.copytree(tmp_path / "whole", tmp_path / "stopped")
    shutil.rmtree(tmp_path / "stopped" / "checkpoints" / "step-000003")
    Trainer(load_recipe([*arguments, f"--run.folder={tmp_path / 'stopped'}"]), resume=True).run()
    assert metrics_of(tmp_path / "stopped") == metrics_of(tmp_path / "whole")
    # What is saved loads without peft, and with it.
    loaded = AutoModelForCausalLM.from_pretrained(newest)
    torch.testing.assert_close(loaded(IDS).logits, whole.policy.model(IDS).logits, atol=1e-4, rtol=1e-4)
    assert not has_adapters(loaded)
    from peft import PeftModel

    start = Trainer(load_recipe([*arguments, "--model.lora_rank=0", f"--run.folder={tmp_path / 'plain'}"]))
    start.folder.close()
    peft = PeftModel.from_pretrained(start.policy.model, newest / "adapter")
    torch.testing.assert_close(peft(IDS).logits, whole.policy.model(IDS).logits, atol=1e-4, rtol=1e-4)
