"""Training with the vLLM engine, for real: the miniature recipe with a random model that has heads of 32."""

import importlib.util
import logging
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[3] / "recipes" / "miniature" / "igrpo.toml"

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm: make test-vllm"),
    # vLLM imports deprecated parts of torch: torch.jit.script_method, torch.distributed.reduce_op.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture
def recipe(tmp_path):
    """Three steps on a random policy; the KL term lets every row move the weights, whatever it is worth."""
    import torch
    from transformers import LlamaForCausalLM

    from igrpo_train.config import Model
    from igrpo_train.policy import load_policy
    from igrpo_train.recipes import load_recipe

    shipped = load_policy(Model(path="miniature:leak", dtype="float32"))
    torch.manual_seed(0)
    config = shipped.model.config
    # The CPU engine has no kernel for the miniature's heads of 16.
    config.update({"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32})
    LlamaForCausalLM(config).save_pretrained(tmp_path / "policy")
    shipped.tokenizer.save_pretrained(tmp_path / "policy")
    flags = {
        "model.path": tmp_path / "policy",
        "steps": 3,
        "questions_per_step": 3,
        "loss.kl_coefficient": 0.01,
        "optimiser.learning_rate": 0.01,
        "sampling.engine": "vllm",
        "sampling.cache_gib": 0.05,
        "validation.every": 0,
        "run.folder": tmp_path / "run",
    }
    return load_recipe([str(RECIPE), *(f"--{name}={value}" for name, value in flags.items())])


def test_the_engine_follows_the_policy_step_by_step_and_a_stale_one_is_noticed(recipe, monkeypatch, caplog):
    from igrpo_train.search.vllm_engine import Engine
    from igrpo_train.trainer import Trainer

    trainer = Trainer(recipe)
    with caplog.at_level(logging.WARNING, logger="igrpo_train.trainer"):
        differences = [trainer.step(step)["update/logprob_difference"] for step in range(2)]
        assert max(differences) < 1e-4
        assert "differ" not in caplog.text
        # The engine misses the update of this step and samples the next one from old weights.
        with monkeypatch.context() as patched:
            patched.setattr(Engine, "load", lambda self, model: None)
            assert trainer.step(2)["update/logprob_difference"] < 1e-4
        stale = trainer.step(3)["update/logprob_difference"]
        assert stale > recipe.sampling.warn_difference
        assert "log-probabilities of engine and trainer differ" in caplog.text
        assert trainer.step(4)["update/logprob_difference"] < 1e-4
    trainer.folder.close()


def test_an_engine_that_hangs_ends_the_run_with_its_last_step_saved(recipe, monkeypatch):
    import time
    from dataclasses import replace

    from igrpo_train.errors import EngineError
    from igrpo_train.learn import checkpoint
    from igrpo_train.trainer import Trainer

    trainer = Trainer(replace(recipe, sampling=replace(recipe.sampling, timeout_s=120.0)))
    engine = trainer.agent.sampler.engine

    def hang(step, metrics):
        core = engine._llm.llm_engine.engine_core
        monkeypatch.setattr(core, "get_output", lambda: time.sleep(600))
        engine._timeout_s = 0.5

    trainer.on_step = hang
    with pytest.raises(EngineError, match=r"must answer within sampling.timeout_s = 0.5 seconds, got no answer"):
        trainer.run()
    assert checkpoint.latest(Path(recipe.run.folder) / "checkpoints").name == "step-000001"


def test_a_whole_run_writes_the_same_metrics_as_with_the_other_engine(recipe):
    import json
    from dataclasses import replace

    from igrpo_train.trainer import Trainer

    def names(engine):
        folder = Path(recipe.run.folder) / engine
        changed = replace(
            recipe,
            steps=1,
            sampling=replace(recipe.sampling, engine=engine),
            run=replace(recipe.run, folder=str(folder)),
        )
        Trainer(changed).run()
        [line] = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
        metrics = json.loads(line)
        assert metrics["time/scoring_s"] > 0
        assert metrics["tokens/generation"] > 0
        return set(metrics)

    assert names("vllm") == names("transformers")
