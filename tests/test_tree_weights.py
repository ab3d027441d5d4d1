"""Weights that the tree carries reach the loss: they multiply advantages, and change nothing else."""

import json

import numpy as np
import pytest

from igrpo_theory.tree import NodeStatus


@pytest.fixture
def first_step(small_run):
    """Trains one step; returns what goes into the rows, and the metrics."""
    from igrpo_train import trainer as module
    from igrpo_train.recipes import load_recipe

    def train(*flags):
        packed = []
        original = module.pack_paths
        arguments = small_run("--steps=1", "--validation.every=0", *flags, folder="-".join(["run", *flags]))
        trainer = module.Trainer(load_recipe(arguments))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "pack_paths", lambda *given: packed.append(given) or original(*given))
            trainer.run()
        (tree, paths, advantages, keep) = packed[0]
        lines = (trainer.folder.path / "metrics.jsonl").read_text().splitlines()
        return tree, paths, advantages, keep, json.loads(lines[-1])

    return train


def test_without_weights_a_step_is_the_same_to_the_bit(first_step, monkeypatch):
    from igrpo_train import trainer as module

    def refuse(*given):
        raise AssertionError("weights were asked for")

    default = first_step()
    monkeypatch.setattr(module, "relative_weights", refuse)
    named = first_step("--tree.weights=none")
    assert named[2].tobytes() == default[2].tobytes()
    metrics = [{key: value for key, value in run[4].items() if "time/" not in key} for run in (default, named)]
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize("target", ["mu", "pi"])
def test_weights_multiply_the_advantages_of_a_path(first_step, target):
    _, _, plain, _, plain_metrics = first_step()
    tree, paths, weighted, keep, metrics = first_step(f"--tree.weights={target}")
    weights = np.where(keep, tree.weights(target)[paths.leaf], 0.0)
    for slot in range(tree.num_questions):
        mine = (paths.question == slot) & keep
        relative = weights[mine] / weights[mine].mean()
        assert weighted[mine] == pytest.approx(plain[mine] * relative[:, None], rel=1e-12)
    truncated = tree.status[paths.leaf] == NodeStatus.TRUNCATED
    assert truncated.any()
    assert (weighted[truncated] == 0).all()
    assert not np.array_equal(weighted, plain)
    assert metrics["rollout/exact_match"] == plain_metrics["rollout/exact_match"]
    assert metrics["update/gradient_norm"] != plain_metrics["update/gradient_norm"]
