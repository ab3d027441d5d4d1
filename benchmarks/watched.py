"""watched: a recipe and overrides -> a trainer whose steps are taken one by one, with the trees that they grew."""

import os
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from igrpo_theory.growth import GrowthRule
from igrpo_train.accounting import comparison_tokens
from igrpo_train.recipes import load_recipe
from igrpo_train.rollout import Rollout
from igrpo_train.trainer import Metrics, Trainer


class WatchedTrainer(Trainer):
    """Keeps the trees of the last step."""

    rollout: Rollout

    def grow(self, step: int) -> Metrics:
        """The rollout of a step without its update; metrics of its phases, and what other ways would take."""
        rule = self.recipe.growth_rule(step)
        rollout = self._grow(step, rule)
        forced = self.agent.scorer.forced_tokens(rollout.questions) if rule.needs_scores else None
        keep = np.ones(len(rollout.paths.leaf), dtype=bool)
        return self.phases.take() | comparison_tokens(rollout, keep, budget=rule.budget, forced=forced)

    def _grow(self, step: int, rule: GrowthRule) -> Rollout:
        self.rollout = super()._grow(step, rule)
        return self.rollout


def watched_trainer(recipe: Path, overrides: tuple[str, ...], folder: Path) -> WatchedTrainer:
    """A trainer that validates and records nothing.

    The learning rate is so small that the policy stays the one that was given: every step is a repeat. On a CPU, clocks
    show seconds of the process from then on, so that other programs on a busy machine count little.

    Args:
        recipe: recipe file.
        overrides: settings that differ, as NAME=VALUE.
        folder: where the run folder goes; must not hold one.
    """
    # Steps are taken from outside; their number only places the warm-up and the reward's switch.
    fixed = ["validation.every=0", "run.trees_every=0", "optimiser.learning_rate=1e-12", "steps=1000"]
    flags = [f"--{setting}" for setting in (*fixed, *overrides, f"run.folder={folder}")]
    loaded = load_recipe([str(recipe), *flags])
    trainer = WatchedTrainer(replace(loaded, run=replace(loaded.run, checkpoint_every=0)))
    if trainer.accelerator.device.type == "cpu":
        time.perf_counter = time.process_time
    return trainer


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()}
