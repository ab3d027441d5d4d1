"""The theory's sampler is the trainer's sampler: every draw of a training run passes through it."""

import json

import numpy as np
import pytest


def _train(arguments):
    from igrpo_train.recipes import load_recipe
    from igrpo_train.trainer import Trainer

    trainer = Trainer(load_recipe(arguments))
    trainer.run()
    return [json.loads(line) for line in (trainer.folder.path / "trees.jsonl").read_text().splitlines()]


@pytest.fixture
def recorded(monkeypatch):
    """All arguments and results of the theory's draw while the test runs."""
    from igrpo_theory import expansion

    draws = []
    original = expansion.draw_expansions

    def recorder(*args, **kwargs):
        counts = original(*args, **kwargs)
        draws.append((args, counts))
        return counts

    monkeypatch.setattr(expansion, "draw_expansions", recorder)
    return draws


@pytest.mark.parametrize("system", ["igrpo", "grpo", "igrpo_gamma0", "igrpo_low"])
def test_every_draw_of_a_training_run_passes_through_the_theorys_sampler(recorded, small_run, system):
    trees = _train(small_run("--system", system, "--validation.every=0"))
    nodes = [node for tree in trees for node in tree["nodes"]]
    below_the_first_turn = sum(node["depth"] >= 2 for node in nodes)
    assert below_the_first_turn > 0
    assert sum(int(counts.sum()) for _, counts in recorded) == below_the_first_turn
    truncated = sum(node["status"].lower() == "truncated" for node in nodes)
    assert sum(int((counts == 0).sum()) for _, counts in recorded) == truncated


def test_replacing_the_draw_changes_what_training_grows(monkeypatch, small_run):
    from igrpo_theory import expansion

    def first_node_only(probabilities, question, budget, cap, keys, scheme="capped"):
        counts = np.zeros(len(question), dtype=np.int64)
        counts[np.unique(question, return_index=True)[1]] = 1
        return counts

    monkeypatch.setattr(expansion, "draw_expansions", first_node_only)
    trees = _train(small_run("--steps=1", "--validation.every=0"))
    for tree in trees:
        assert max(sum(node["depth"] == depth for node in tree["nodes"]) for depth in (2, 3, 4)) <= 1


def test_a_width_one_tree_of_the_trainer_is_a_plain_chain(small_run):
    trees = _train(small_run("--system", "grpo", "--steps=1", "--validation.every=0"))
    for tree in trees:
        children = np.bincount([node["parent"] for node in tree["nodes"] if node["parent"] is not None])
        assert children[0] == 5
        assert (children[1:] <= 1).all()
