"""trainer: a recipe -> a run folder with a trained policy.

Each step goes one way: questions -> trees -> paths -> rewards -> advantages -> rows -> update. Every random number is
a function of recipe, seed and step, so a run that was stopped goes on as if nothing had happened.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from igrpo_theory.advantages import group_advantages
from igrpo_theory.growth import GrowthRule
from igrpo_theory.paths import relative_weights
from igrpo_theory.randomness import Stream, fold, question_keys
from igrpo_train.accounting import comparison_tokens
from igrpo_train.config import FREE_ON_RESUME, Recipe
from igrpo_train.data import batch_indices
from igrpo_train.errors import EngineError, NonFiniteError, RetrieverError
from igrpo_train.gathering import merge_rollouts
from igrpo_train.interrupt import Interrupt
from igrpo_train.launch import processes_of, start
from igrpo_train.learn import checkpoint
from igrpo_train.learn.checkpoint import Checkpoint, TrainerState
from igrpo_train.learn.packing import pack_paths
from igrpo_train.learn.shares import own_rows
from igrpo_train.policy import Policy
from igrpo_train.recipes import to_dict
from igrpo_train.rewards import path_rewards, turn_penalties
from igrpo_train.rollout import Rollout, collect
from igrpo_train.search.sampling import updating
from igrpo_train.search.session import turn_record
from igrpo_train.settings import flatten
from igrpo_train.setup import Loaded, build_agent, build_updater, load_run, set_threads, usable_questions
from igrpo_train.statistics import group_metrics, tree_metrics
from igrpo_train.tracking import Phases, RunFolder, check_run_folder, disk_errors, merge_phases
from igrpo_train.validation import validate

Metrics: TypeAlias = dict[str, float]
OnStep: TypeAlias = Callable[[int, Mapping[str, float]], None]

logger = logging.getLogger(__name__)


class Trainer:
    """One training run, in one process or in many that each grow some of the trees.

    Everything that can be wrong with a recipe or its data is found before the first step.

    Args:
        recipe: what to do.
        resume: go on from the newest checkpoint in `run.folder`.
        on_step: called after every step with its number (from 1) and metrics, by the main process; shows progress.

    Raises:
        ValueError, FileNotFoundError: recipe, data or model do not fit together, or there is nothing to resume.
    """

    def __init__(self, recipe: Recipe, *, resume: bool = False, on_step: OnStep | None = None) -> None:
        set_threads(recipe)
        self.recipe = recipe
        self.on_step = on_step
        self.accelerator = start(recipe.model, recipe.run)
        self.processes = processes_of(self.accelerator)
        # What fails in one process ends all of them, with one message.
        loaded, restored = self.processes.together(lambda: self._load(resume=resume))
        self.held_out = loaded.held_out
        self.updater = build_updater(self.accelerator, loaded.policy, recipe)
        self.policy = Policy(self.updater.policy, loaded.policy.tokenizer)
        self.agent = build_agent(self.policy, loaded.retriever, recipe)
        self.questions = self.processes.together(lambda: usable_questions(loaded, self.agent.prompting, recipe))
        start_of_files = {"metrics": 0, "trees": 0}
        self.state = TrainerState(
            step=0, positions=start_of_files, best_metric=None, best_step=None, recipe=self._fingerprint()
        )
        if restored is not None:
            self.state = restored.trainer
            self.updater.load_state_dict(restored.updater)
        self._folder: RunFolder | None = None
        self.processes.main(lambda: self._open_folder(resume=resume))
        self.phases = Phases()
        self._warned = False
        self._nonfinite = 0

    @property
    def folder(self) -> RunFolder:
        """The run's folder, which only the main process writes."""
        assert self._folder is not None, "only the main process has the folder open"
        return self._folder

    def run(self) -> Path:
        """Train to the last step, or until interrupted; either way the last checkpoint is on disk.

        Returns:
            the newest checkpoint's folder.

        Raises:
            KeyboardInterrupt: the user stopped the run; raised after the checkpoint is written, like the next two.
            RetrieverError, EngineError: the search engine is gone, or the engine that samples hangs.
            NonFiniteError: `optimiser.nonfinite_limit` optimiser steps in a row were skipped.
        """
        message = "finishing this step, then saving a checkpoint; interrupt again to stop at once"
        with closing(self.folder) if self.processes.is_main else nullcontext():
            if self.state.step == 0 and self.held_out:
                self._record(0, self.validate())
            with Interrupt(message) as interrupt:
                for step in range(self.state.step, self.recipe.steps):
                    try:
                        metrics = self.step(step)
                    except (EngineError, RetrieverError):
                        # Searches come before the update: what is in memory is the end of the last step.
                        self._save(best=False)
                        raise
                    if self._finish_step(step + 1, metrics, interrupt):
                        raise KeyboardInterrupt
                    self._check_finite(metrics)
        # As the process that wrote it sees it: other machines may not.
        newest = self.processes.each(lambda: checkpoint.latest(self._checkpoints))[0]
        assert newest is not None
        return newest

    def step(self, step: int) -> Metrics:
        """Grow trees for the questions of a 0-based step and update the policy on them."""
        start = self.phases.clock()
        recipe = self.recipe
        rule = recipe.growth_rule(step)
        rollout = self._grow(step, rule)
        rewards = path_rewards(
            rollout.grades,
            rollout.scores,
            rollout.truncated,
            rule=recipe.reward.truncated,
            progress=step / recipe.steps,
            switch_fraction=recipe.reward.switch_fraction,
        )
        penalties = turn_penalties(rollout.valid, recipe.reward.invalid_penalty)
        advantages = group_advantages(
            rollout.paths,
            rewards.rewards,
            penalties,
            unit=recipe.advantage.unit,
            std_floor=recipe.advantage.std_floor,
            keep=rewards.keep,
        )
        if recipe.tree.weights != "none":
            advantages *= relative_weights(rollout.tree, rollout.paths, recipe.tree.weights, rewards.keep)[:, None]
        with self.phases.measure("training") as phase:
            key = int(fold(np.array([recipe.seed], dtype=np.uint64), Stream.ORDER, step)[0])
            rows = pack_paths(rollout.tree, rollout.paths, advantages, rewards.keep)
            rows = own_rows(rows, recipe.optimiser.update_rows, key, self.processes)
            with updating(self.agent.sampler, self.policy.model):
                updated = self.updater.update(rows, key)
            # The count is over all processes already.
            phase.tokens += int(updated["update/computed_tokens"]) if self.processes.is_main else 0
        metrics = (
            tree_metrics(rollout, rule) | group_metrics(rollout, rewards.rewards, rewards.keep, penalties) | updated
        )
        forced = self.agent.scorer.forced_tokens(rollout.questions) if rule.needs_scores else None
        metrics |= comparison_tokens(rollout, rewards.keep, budget=rule.budget, forced=forced)
        self._check_engine(updated["update/logprob_difference"])
        taken = {"time/step_s": self.phases.clock() - start} | self.phases.take()
        return metrics | merge_phases(self.processes.gather(taken))

    def validate(self) -> Metrics:
        """Exact match on the fixed held-out questions, by trees of width one."""
        with self._sampling():
            return validate(self.agent, self.held_out, self.recipe, self.processes)

    def _grow(self, step: int, rule: GrowthRule) -> Rollout:
        recipe = self.recipe
        chosen = batch_indices(len(self.questions), recipe.questions_per_step, seed=recipe.seed, step=step)
        questions = [self.questions[i] for i in chosen]
        keys = question_keys(recipe.seed, step, np.arange(len(questions)), [question.id for question in questions])
        own = self.processes.share(len(questions))

        def grow() -> Rollout | None:
            if not questions[own]:
                return None
            return collect(
                self.agent,
                questions[own],
                keys[own],
                rule,
                temperature=recipe.sampling.temperature,
                phases=self.phases,
            )

        with self._sampling():
            rollout = merge_rollouts(self.processes.each(grow))
        if recipe.run.trees_every and step % recipe.run.trees_every == 0:
            self.processes.main(lambda: self._record_trees(step, rollout))
        return rollout

    def _check_finite(self, metrics: Mapping[str, float]) -> None:
        """End the run, saved, where it has skipped too many optimiser steps; its weights are the last good ones."""
        skipped, limit = int(metrics["update/nonfinite"]), self.recipe.optimiser.nonfinite_limit
        self._nonfinite = 0 if metrics["update/steps"] else self._nonfinite + skipped
        if limit and self._nonfinite >= limit:
            self._save(best=False)
            raise NonFiniteError(
                f"loss and gradient must be finite, got {self._nonfinite} optimiser steps in a row that were not "
                f"(optimiser.nonfinite_limit = {limit}): start again from an earlier checkpoint in "
                f"{self._checkpoints} with a lower optimiser.learning_rate"
            )

    def _sampling(self) -> AbstractContextManager[None]:
        """Around rollouts, in which each process makes passes of its own."""
        own_weights = self.recipe.sampling.engine == "vllm"
        return nullcontext() if own_weights else self.updater.whole()

    def _record_trees(self, step: int, rollout: Rollout) -> None:
        for record in rollout.tree.to_records(turn_record):
            self.folder.trees.append({"step": step + 1, **record})

    def _check_engine(self, difference: float) -> None:
        """Warn, once, when the engine samples from another policy than the one that is trained."""
        limit = self.recipe.sampling.warn_difference
        if limit and difference > limit and not self._warned and self.processes.is_main:
            self._warned = True
            logger.warning(
                "log-probabilities of engine and trainer differ by %.3f nats a token in the mean, more than "
                "sampling.warn_difference = %.3f: look for another number format or stale weights",
                difference,
                limit,
            )

    def _finish_step(self, done: int, metrics: Metrics, interrupt: Interrupt) -> bool:
        """Validate where due, write the metrics, save where due; returns whether the run is to stop here, saved."""
        recipe, last = self.recipe, done == self.recipe.steps
        improved = False
        if self.held_out and (done % recipe.validation.every == 0 or last):
            try:
                metrics |= self.validate()
            except (EngineError, RetrieverError):
                # The update is done: only its validation is missing.
                self._record(done, metrics)
                self.state = replace(self.state, step=done)
                self._save(best=False)
                raise
            score = metrics["validation/exact_match"]
            improved = self.state.best_metric is None or score > self.state.best_metric
        self._record(done, metrics)
        self.state = replace(self.state, step=done)
        if improved:
            self.state = replace(self.state, best_metric=metrics["validation/exact_match"], best_step=done)
        due = recipe.run.checkpoint_every and done % recipe.run.checkpoint_every == 0
        # Read once, as late as possible: a validation takes long, and who interrupts it gets a checkpoint too.
        stopping = self.processes.any(interrupt.requested)
        if due or improved or last or stopping:
            self._save(best=improved)
        return stopping

    def _record(self, done: int, metrics: Metrics) -> None:
        self.processes.main(lambda: self.folder.metrics.append({"step": done, **metrics}))
        if self.on_step is not None and self.processes.is_main:
            self.on_step(done, metrics)

    def _save(self, *, best: bool) -> None:
        positions = self.processes.each(lambda: self.folder.positions() if self.processes.is_main else {})[0]
        self.state = replace(self.state, positions=positions)
        with disk_errors(self._checkpoints):
            checkpoint.save(
                self._checkpoints,
                self.state,
                self.updater,
                self.policy.tokenizer,
                keep_last=self.recipe.run.keep_last,
                best=best,
            )

    @property
    def _checkpoints(self) -> Path:
        return Path(self.recipe.run.folder).expanduser() / "checkpoints"

    def _restore(self) -> Checkpoint | None:
        newest = checkpoint.latest(self._checkpoints)
        if newest is None:
            logger.warning("no checkpoint in %s yet: starting over", self._checkpoints)
            return None
        return checkpoint.load(newest, self._fingerprint())

    def _fingerprint(self) -> dict[str, object]:
        """The settings that define the run."""
        named = flatten(to_dict(self.recipe))
        return {name: value for name, value in named.items() if not name.startswith(FREE_ON_RESUME)}

    def _load(self, *, resume: bool) -> tuple[Loaded, Checkpoint | None]:
        check_run_folder(self.recipe, resume=resume)
        restored = self._restore() if resume else None
        return load_run(self.recipe, None if restored is None else restored.folder), restored

    def _open_folder(self, *, resume: bool) -> None:
        self._folder = RunFolder(self.recipe, resume=resume)
        # Also without a checkpoint: a run that was stopped before its first one has written lines that come again.
        self._folder.rewind(self.state.positions)
