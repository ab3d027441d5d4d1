"""A run that cannot go on ends with what it has, and two runs do not write one folder."""

import json
import os
from pathlib import Path

import pytest

from igrpo_train.errors import NonFiniteError, RetrieverError
from igrpo_train.learn import checkpoint


def _trainer(arguments, **options):
    from igrpo_train.recipes import load_recipe
    from igrpo_train.trainer import Trainer

    return Trainer(load_recipe(arguments), **options)


@pytest.mark.slow
def test_a_run_whose_loss_is_not_finite_ends_after_the_stated_number_of_steps(small_run, tmp_path):
    trainer = _trainer(small_run("--optimiser.nonfinite_limit=2", "--validation.every=0"))
    real_update = trainer.updater.update

    def broken_update(rows, key):
        weights = next(trainer.policy.model.parameters())
        kept = weights.detach().clone()
        weights.data.fill_(float("nan"))
        metrics = real_update(rows, key)
        weights.data.copy_(kept)
        return metrics

    trainer.updater.update = broken_update
    with pytest.raises(NonFiniteError, match=r"got [2-9] optimiser steps in a row .*nonfinite_limit = 2"):
        trainer.run()
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["update/nonfinite"] for line in metrics) >= 2
    assert sum(line["update/steps"] for line in metrics) == 0
    saved = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert saved is not None
    assert saved.name.endswith(str(len(metrics)))


@pytest.mark.slow
def test_a_search_engine_that_dies_in_a_validation_costs_no_update(small_run, tmp_path):
    trainer = _trainer(small_run("--run.checkpoint_every=0", "--validation.every=1"))
    validate, calls = trainer.validate, []

    def lost():
        calls.append(None)
        if len(calls) == 3:
            raise RetrieverError("the server is gone")
        return validate()

    trainer.validate = lost
    with pytest.raises(RetrieverError):
        trainer.run()
    saved = checkpoint.latest(tmp_path / "run" / "checkpoints")
    assert saved is not None
    assert saved.name == "step-000002"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]


@pytest.mark.slow
def test_two_runs_cannot_write_one_folder(small_run):
    arguments = small_run("--steps=1", "--validation.every=0")
    first = _trainer(arguments)
    with pytest.raises(ValueError, match="run.folder must be written by one run at a time"):
        _trainer(arguments, resume=True)
    first.run()
    _trainer(arguments, resume=True).folder.close()


@pytest.mark.slow
def test_a_run_folder_keeps_no_secret_of_the_environment(small_run, tmp_path, monkeypatch):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "hf_" + "secret" * 5)
    _trainer(small_run("--steps=1", "--validation.every=0")).run()
    files = [Path(folder) / name for folder, _, names in os.walk(tmp_path / "run") for name in names]
    assert len(files) > 5
    assert not any(b"secretsecret" in file.read_bytes() for file in files)
