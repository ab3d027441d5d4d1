"""update: rows with advantages -> optimiser steps on the policy.

In: the rows of one training step, each process its own questions.
Out: a policy one training step further, and the metrics of how it got there.
Source: [ppo] for minibatches and for the policy before its first update as the denominator of the ratio, [adamw] for
the optimiser. Denominators are counts of the whole minibatch over all processes, so that micro-batches and
data-parallel processes change nothing but rounding.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from igrpo_train.config import Loss, Optimiser, Packing
from igrpo_train.learn.adapters import adapters_off, has_adapters
from igrpo_train.learn.attention import tree_attention
from igrpo_train.learn.batch import Batch, collate
from igrpo_train.learn.loss import policy_loss, token_logprobs
from igrpo_train.learn.models import adamw, hidden_size, needed_reference, recompute_layers, train_layers, widened
from igrpo_train.learn.outcomes import Outcome, Part, UpdateMetrics, gather_outcome, mean_metrics
from igrpo_train.learn.packing import TurnRow, count_rows, micro_batches, minibatches
from igrpo_train.learn.probe import usable_packing
from igrpo_train.learn.sharding import load_state, shard_frozen, whole, whole_state
from igrpo_train.weights import whole_tensor

_logger: Final = logging.getLogger(__name__)


class _Share(NamedTuple):
    """What all processes together hold of a minibatch."""

    num_tokens: int
    num_rows: int
    num_micro: int
    """Forward and backward passes that every process makes."""


class Updater:
    """Policy, frozen reference and optimiser; holds what changes from step to step.

    Args:
        accelerator: as the process was launched; its mixed precision decides the format of activations.
        model: the policy. Weights in half precision are widened to float32: steps of 1e-6 would round to nothing.
        reference: a copy of the starting policy, needed where `loss_config.kl_coefficient` is above 0 and the model
            has no adapters, without which it is the starting policy.
        optimiser_config: AdamW, warm-up, minibatch and micro-batch sizes.
        loss_config: the loss; its `old_logprobs = "auto"` takes the sampler's where they are what the policy would
            give: an exact sampler in full precision.
        total_steps: training steps of the run; the warm-up is a share of them.
        temperature: sampling temperature of the rollouts.
        pad_id: id of the padding.
        exact_sampler: the rollouts' engine runs this very policy, not a copy with arithmetic of its own.

    Raises:
        ValueError: there is a KL coefficient and no reference.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        reference: nn.Module | None,
        optimiser_config: Optimiser,
        loss_config: Loss,
        total_steps: int,
        temperature: float,
        pad_id: int,
        *,
        exact_sampler: bool = True,
    ) -> None:
        self.accelerator = accelerator
        self.optimiser_config = optimiser_config
        self.loss_config = loss_config
        self.warmup_steps = round(optimiser_config.warmup_fraction * total_steps)
        self.temperature = temperature
        self.pad_id = pad_id
        self.step = 0
        half = accelerator.mixed_precision != "no"
        inexact = half or not exact_sampler
        self.recomputes = loss_config.old_logprobs == "policy" or (loss_config.old_logprobs == "auto" and inexact)
        self.with_kl = loss_config.kl_coefficient > 0
        kept = None if has_adapters(model) else needed_reference(reference, loss_config)
        models = [model] if kept is None else [model, kept]
        parameters = widened(model)
        self.dtype = torch.promote_types(parameters[0].dtype, torch.float32)
        self.sharded = bool(accelerator.is_fsdp2)
        for unwrapped in models:
            # What will be sharded need not fit the device as a whole.
            unwrapped.eval().to("cpu" if self.sharded else accelerator.device)
        self.packing = self._packing(models)
        self.hidden_size = hidden_size(model)
        if optimiser_config.gradient_checkpointing:
            recompute_layers(model)
        self.model, self.optimiser = accelerator.prepare(model, adamw(parameters, optimiser_config))
        self.reference = kept
        if kept is not None and self.sharded:
            self.reference = shard_frozen(accelerator, kept)
        elif kept is not None:
            self.reference = accelerator.prepare_model(kept, evaluation_mode=True)

    @property
    def policy(self) -> Any:
        """The model without data-parallel wrapper."""
        return self.accelerator.unwrap_model(self.model)

    def whole(self) -> AbstractContextManager[None]:
        """Around passes that processes make on their own, such as rollouts; every process enters together."""
        if not self.sharded:
            return nullcontext()
        return whole(self.policy, reshard=bool(self.accelerator.state.fsdp_plugin.reshard_after_forward))

    def _packing(self, models: Sequence[nn.Module]) -> Packing:
        """The packing that all models take."""
        packing = self.optimiser_config.packing
        for model in models:
            mixed = self.accelerator.mixed_precision != "no" and not self.sharded
            autocast = self.accelerator.autocast() if mixed else None
            device = "cpu" if self.sharded else self.accelerator.device
            packing = usable_packing(packing, model, device, autocast=autocast)
        return packing

    def learning_rate(self, step: int) -> float:
        """Learning rate of a 0-based training step: linear up to the end of the warm-up, then constant."""
        return self.optimiser_config.learning_rate * min(1.0, (step + 1) / max(1, self.warmup_steps))

    def update(self, rows: Sequence[TurnRow], step_key: int) -> UpdateMetrics:
        """Train on the rows of one step; every process calls it, with its own rows, possibly none.

        Args:
            rows: rows of this process; question slots count over all processes.
            step_key: counter-based random key of the step, the same on every process.

        Returns:
            metrics over all processes. Means over tokens are over those that were run through the model: rows whose
            gradient is zero beforehand are counted in every denominator, but not run. `update/computed_tokens` are
            the tokens that the policy was trained on, repeated prefixes included, `update/padded_tokens` the same with
            padding. A minibatch whose loss or gradient is not finite is not applied; a mean over nothing is NaN.
            `update/logprob_difference` is over the first minibatch only, as the policy has not moved before it: it is
            NaN where none of its rows was run, also when rows of later minibatches were.
        """
        learning_rate = self.learning_rate(self.step)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        row_counts: Counter[int] = Counter()
        for slot, count in gather_object(list(count_rows(rows).items())):
            row_counts[slot] += count
        train_layers(self.policy)
        groups = minibatches(rows, self.optimiser_config.update_rows, step_key, row_counts)
        with tree_attention(self.model, self.reference) if self.packing == "tree" else nullcontext():
            if self.recomputes:
                groups = groups[:1] + [self._with_own_logprobs(group) for group in groups[1:]]
            # The first minibatch is trained on the policy that is asked: its own log-probabilities come for free.
            outcomes = [self._optimise(group, own=self.recomputes and not k) for k, group in enumerate(groups)]
        self.model.eval()
        self.step += 1
        return {
            **mean_metrics(outcomes, with_kl=self.with_kl),
            **self._counts(rows),
            "update/learning_rate": learning_rate,
        }

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs besides the weights, for any number of processes; all call it, the main one gets it."""
        return {"step": self.step, "optimiser": whole_state(self.optimiser, keep=self.accelerator.is_main_process)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; the model must hold the weights of that moment."""
        self.step = int(state["step"])
        load_state(self.optimiser, state["optimiser"])

    def _needs_forward(self, row: TurnRow) -> bool:
        return row.advantage != 0 or self.loss_config.kl_coefficient > 0 or self.loss_config.entropy_coefficient > 0

    def _micro_batches(self, rows: Sequence[TurnRow]) -> list[list[TurnRow]]:
        """Those rows of a minibatch that are run, in forward passes."""
        run = [row for row in rows if self._needs_forward(row)]
        return micro_batches(run, self.optimiser_config.tokens_per_micro_batch, self.packing, self.hidden_size)

    def _collate(self, rows: Sequence[TurnRow]) -> Batch:
        return collate(rows, self.pad_id, self.accelerator.device, self.dtype, self.packing)

    def _with_own_logprobs(self, rows: Sequence[TurnRow]) -> list[TurnRow]:
        """The rows of a minibatch with log-probabilities of the policy as it is."""
        batches = self._micro_batches(rows)
        own = {row.identity: row for row in rows}
        # As many passes on every process: data-parallel wrappers exchange buffers in them.
        for index in range(self._share(rows, len(batches)).num_micro):
            run = batches[index] if index < len(batches) else [self._idle_row()]
            with torch.no_grad():
                logprobs_RL = token_logprobs(self.model, self._collate(run), self.temperature).logprobs.tolist()
            if index < len(batches):
                for row, logprobs_L in zip(run, logprobs_RL, strict=True):
                    old = tuple(logprobs_L[: len(row.response_ids)])
                    own[row.identity] = replace(row, old_logprobs=old, engine_logprobs=row.old_logprobs)
        return [own[row.identity] for row in rows]

    def _optimise(self, rows: Sequence[TurnRow], *, own: bool) -> Outcome:
        """One optimiser step on this process's rows of a minibatch; `own` puts the policy as it is below the ratio."""
        batches = self._micro_batches(rows)
        share = self._share(rows, len(batches))
        parts = []
        for index in range(share.num_micro):
            # Gradients are exchanged once, in the last backward pass; shards would be whole up to there.
            now = self.sharded or index == share.num_micro - 1
            with nullcontext() if now else self.accelerator.no_sync(self.model):
                if index < len(batches):
                    parts.append(self._backward(batches[index], share, own=own))
                else:
                    self._idle_backward()
        gradient_norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.optimiser_config.gradient_clip)
        outcome = gather_outcome(self.accelerator, parts, float(whole_tensor(gradient_norm)))
        if outcome.finite:
            self.optimiser.step()
        else:
            _logger.warning("skipped an optimiser step: loss %s, gradient norm %s", outcome.loss, outcome.gradient_norm)
        self.optimiser.zero_grad()
        return outcome

    def _share(self, rows: Sequence[TurnRow], num_batches: int) -> _Share:
        counts = [_num_sampled(rows), len(rows), num_batches]
        counts_W3 = self.accelerator.gather(torch.tensor([counts], device=self.accelerator.device))
        num_tokens, num_rows, _ = counts_W3.sum(dim=0).tolist()
        # At least one pass: it leaves zero gradients, not missing ones, so that momentum acts as if all rows had run.
        return _Share(num_tokens, num_rows, max(1, int(counts_W3[:, 2].max())))

    def _backward(self, rows: Sequence[TurnRow], share: _Share, *, own: bool) -> Part:
        """Forward and backward pass of one micro-batch."""
        batch = self._collate(rows)
        reference = self._reference_logprobs(batch)
        new = token_logprobs(self.model, batch, self.temperature)
        sampler_RL = batch.old_logprobs
        if own:
            batch = batch._replace(old_logprobs=new.logprobs.detach())
        output = policy_loss(
            new,
            batch,
            self.loss_config,
            num_tokens=share.num_tokens,
            num_rows=share.num_rows,
            reference=reference,
        )
        # Data-parallel wrappers average gradients over processes; the denominators already count all of them.
        self.accelerator.backward(output.loss * self.accelerator.num_processes)
        difference = (new.logprobs.detach() - sampler_RL).abs().sum()
        sums = output.sums._replace(difference=difference) if own else output.sums
        return Part(output.loss.detach(), sums, batch.num_tokens, batch.input_ids.numel())

    def _reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Log-probabilities of the policy before training; None where no KL term needs them."""
        if not self.with_kl:
            return None
        with torch.no_grad():
            if self.reference is not None:
                return token_logprobs(self.reference, batch, self.temperature).logprobs
            with adapters_off(self.policy):
                return token_logprobs(self.model, batch, self.temperature).logprobs

    def _idle_row(self) -> TurnRow:
        return TurnRow(
            question=0,
            path=0,
            turn=0,
            context_ids=(self.pad_id,),
            response_ids=(self.pad_id,),
            old_logprobs=(0.0,),
            advantage=0.0,
        )

    def _idle_backward(self) -> None:
        """A pass that adds zero gradients: processes exchange gradients together, also where one has fewer rows."""
        batch = self._collate([self._idle_row()])
        self._reference_logprobs(batch)
        self.accelerator.backward(0.0 * token_logprobs(self.model, batch, self.temperature).logprobs.sum())

    def _counts(self, rows: Sequence[TurnRow]) -> UpdateMetrics:
        """What all processes were given."""
        skipped = sum(not self._needs_forward(row) for row in rows)
        counts = torch.tensor([_num_sampled(rows), len(rows), skipped], device=self.accelerator.device)
        tokens, all_rows, all_skipped = map(float, self.accelerator.reduce(counts, "sum").tolist())
        return {"update/tokens": tokens, "update/rows": all_rows, "update/rows_skipped": all_skipped}


def _num_sampled(rows: Sequence[TurnRow]) -> int:
    return sum(len(row.response_ids) for row in rows)
