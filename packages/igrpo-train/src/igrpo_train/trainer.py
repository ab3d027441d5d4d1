"""trainer: a recipe -> a run folder with a trained policy.

Each step goes one way: questions -> trees -> paths -> rewards -> advantages -> rows -> update. Every random number is
a function of recipe, seed and step, so a run that was stopped goes on as if nothing had happened.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from accelerate import Accelerator

from igrpo_theory.advantages import group_advantages
from igrpo_theory.growth import GrowthRule
from igrpo_theory.paths import relative_weights
from igrpo_theory.randomness import Stream, fold, question_keys
from igrpo_train.accounting import comparison_tokens
from igrpo_train.config import FREE_ON_RESUME, Recipe
from igrpo_train.data import batch_indices, load_questions, load_retriever, validation_questions
from igrpo_train.errors import EngineError, NonFiniteError, RetrieverError
from igrpo_train.interrupt import Interrupt
from igrpo_train.learn import checkpoint
from igrpo_train.learn.checkpoint import Checkpoint, TrainerState
from igrpo_train.learn.packing import pack_paths
from igrpo_train.learn.update import Updater
from igrpo_train.policy import Policy, find_device, load_policy
from igrpo_train.question import Question
from igrpo_train.recipes import to_dict
from igrpo_train.rewards import path_rewards, turn_penalties
from igrpo_train.rollout import Rollout, chain_rule, collect
from igrpo_train.search.sampling import updating
from igrpo_train.search.session import turn_record
from igrpo_train.settings import flatten
from igrpo_train.setup import build_agent, check_answers, check_prompts, fitting_questions, set_threads
from igrpo_train.statistics import group_metrics, tree_metrics
from igrpo_train.tracking import Phases, RunFolder, check_run_folder, disk_errors

Metrics: TypeAlias = dict[str, float]
OnStep: TypeAlias = Callable[[int, Mapping[str, float]], None]

logger = logging.getLogger(__name__)


class Trainer:
    """One training run.

    Everything that can be wrong with a recipe or its data is found before the first step.

    Args:
        recipe: what to do.
        resume: go on from the newest checkpoint in `run.folder`.
        on_step: called after every step with its number (from 1) and metrics; shows progress.

    Raises:
        ValueError, FileNotFoundError: recipe, data or model do not fit together, or there is nothing to resume.
    """

    def __init__(self, recipe: Recipe, *, resume: bool = False, on_step: OnStep | None = None) -> None:
        set_threads(recipe)
        check_run_folder(recipe, resume=resume)
        self.recipe = recipe
        self.on_step = on_step
        self.questions = load_questions(recipe.data.train, recipe.data.hops)
        self.held_out: list[Question] = []
        if recipe.validation.every:
            self.held_out = validation_questions(load_questions(recipe.data.validation, recipe.data.hops), recipe)
        retriever = load_retriever(recipe.data.corpus, recipe.retrieval, top_k=recipe.agent.top_k)
        restored = self._restore() if resume else None
        # Weights stay in float32, so that small steps are not rounded away; only activations are in half precision.
        self.accelerator = Accelerator(
            cpu=recipe.model.device == "cpu", mixed_precision="bf16" if recipe.model.dtype == "bfloat16" else "no"
        )
        if self.accelerator.num_processes > 1:
            raise ValueError(f"training must run in one process, got {self.accelerator.num_processes}: launch one")
        _check_device(recipe.model.device, self.accelerator.device)
        policy = load_policy(recipe.model, folder=None if restored is None else restored.folder)
        self.updater = self._updater(policy)
        self.policy = Policy(self.accelerator.unwrap_model(self.updater.model), policy.tokenizer)
        self.agent = build_agent(self.policy, retriever, recipe)
        self.questions = fitting_questions(self.agent.prompting, self.questions, "data.train")
        check_prompts(self.agent.prompting, self.held_out)
        if recipe.growth_rule(step=0).needs_scores:
            check_answers(self.agent.prompting, self.questions)
        start = {"metrics": 0, "trees": 0}
        self.state = TrainerState(step=0, positions=start, best_metric=None, best_step=None, recipe=self._fingerprint())
        self.folder = RunFolder(recipe, resume=resume)
        if restored is not None:
            self.state = restored.trainer
            self.updater.load_state_dict(restored.updater)
        # Also without a checkpoint: a run that was stopped before its first one has written lines that come again.
        self.folder.rewind(self.state.positions)
        self.phases = Phases()
        self._warned = False
        self._nonfinite = 0

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
        with closing(self.folder):
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
        newest = checkpoint.latest(self._checkpoints)
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
            rows = pack_paths(rollout.tree, rollout.paths, advantages, rewards.keep)
            key = int(fold(np.array([recipe.seed], dtype=np.uint64), Stream.ORDER, step)[0])
            with updating(self.agent.sampler, self.policy.model):
                updated = self.updater.update(rows, key)
            phase.tokens += int(updated["update/computed_tokens"])
        metrics = (
            tree_metrics(rollout, rule) | group_metrics(rollout, rewards.rewards, rewards.keep, penalties) | updated
        )
        forced = self.agent.scorer.forced_tokens(rollout.questions) if rule.needs_scores else None
        metrics |= comparison_tokens(rollout, rewards.keep, budget=rule.budget, forced=forced)
        metrics["time/step_s"] = self.phases.clock() - start
        self._check_engine(updated["update/logprob_difference"])
        return metrics | self.phases.take()

    def validate(self) -> Metrics:
        """Exact match on the fixed held-out questions, by trees of width one."""
        config = self.recipe.validation
        rule = chain_rule(self.recipe.agent.max_turns)
        start = time.perf_counter()
        ids = [question.id for question in self.held_out]
        # Slot 0 for all, as in igrpo_eval: what is drawn for a question depends on its id, not on its place.
        keys = question_keys(config.seed, 0, np.zeros(len(ids), dtype=np.int64), ids)
        graded: list[float] = []
        size = self.recipe.questions_per_step * self.recipe.tree.budget
        for first in range(0, len(self.held_out), size):
            part = slice(first, first + size)
            chains = collect(
                self.agent,
                self.held_out[part],
                keys[part],
                rule,
                temperature=config.temperature,
                phases=Phases(),
            )
            graded.extend(chains.grades.tolist())
        return {
            "validation/exact_match": float(np.mean(graded)),
            "time/validation_s": time.perf_counter() - start,
        }

    def _grow(self, step: int, rule: GrowthRule) -> Rollout:
        recipe = self.recipe
        chosen = batch_indices(len(self.questions), recipe.questions_per_step, seed=recipe.seed, step=step)
        questions = [self.questions[i] for i in chosen]
        keys = question_keys(recipe.seed, step, np.arange(len(questions)), [question.id for question in questions])
        rollout = collect(
            self.agent, questions, keys, rule, temperature=recipe.sampling.temperature, phases=self.phases
        )
        if recipe.run.trees_every and step % recipe.run.trees_every == 0:
            for record in rollout.tree.to_records(turn_record):
                self.folder.trees.append({"step": step + 1, **record})
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

    def _check_engine(self, difference: float) -> None:
        """Warn, once, when the engine samples from another policy than the one that is trained."""
        limit = self.recipe.sampling.warn_difference
        if limit and difference > limit and not self._warned:
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
            metrics |= self.validate()
            score = metrics["validation/exact_match"]
            improved = self.state.best_metric is None or score > self.state.best_metric
        self._record(done, metrics)
        self.state = replace(self.state, step=done)
        if improved:
            self.state = replace(self.state, best_metric=metrics["validation/exact_match"], best_step=done)
        due = recipe.run.checkpoint_every and done % recipe.run.checkpoint_every == 0
        # Read once, as late as possible: a validation takes long, and who interrupts it gets a checkpoint too.
        stopping = interrupt.requested
        if due or improved or last or stopping:
            self._save(best=improved)
        return stopping

    def _record(self, done: int, metrics: Metrics) -> None:
        self.folder.metrics.append({"step": done, **metrics})
        if self.on_step is not None:
            self.on_step(done, metrics)

    def _save(self, *, best: bool) -> None:
        self.state = replace(self.state, positions=self.folder.positions())
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

    def _updater(self, policy: Policy) -> Updater:
        recipe = self.recipe
        reference = load_policy(recipe.model).model if recipe.loss.kl_coefficient > 0 else None
        return Updater(
            self.accelerator,
            policy.model,
            reference,
            recipe.optimiser,
            recipe.loss,
            recipe.steps,
            recipe.sampling.temperature,
            policy.pad_id,
            exact_sampler=recipe.sampling.engine == "transformers",
        )


def _check_device(name: str, given: torch.device) -> None:
    """Refuse a device other than the one that accelerate trains on."""
    wanted = given if name == "auto" else find_device(name)
    if wanted.type != given.type or wanted.index not in (None, given.index or 0):
        raise ValueError(
            f"model.device must be auto, cpu or the accelerator that this process has ({given}), got {name!r}: "
            "choose another GPU with CUDA_VISIBLE_DEVICES"
        )
