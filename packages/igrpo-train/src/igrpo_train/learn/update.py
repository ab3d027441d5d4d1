"""update: rows with advantages -> optimiser steps on the policy.

In: the rows of one training step, each process its own questions.
Out: a policy one training step further, and the metrics of how it got there.
Source: [ppo] for minibatches and for the policy before its first update as the denominator of the ratio, [adamw] for
the optimiser. Denominators are counts of the whole minibatch over all processes, so that micro-batches and
data-parallel processes change nothing but rounding.
"""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from igrpo_train.config import Loss, Optimiser, Packing
from igrpo_train.learn.attention import tree_attention
from igrpo_train.learn.batch import Batch, collate
from igrpo_train.learn.loss import LossSums, policy_loss, token_logprobs
from igrpo_train.learn.packing import TurnRow, count_rows, micro_batches, minibatches
from igrpo_train.learn.probe import usable_packing

_logger: Final = logging.getLogger(__name__)

UpdateMetrics: TypeAlias = dict[str, float]


class _Share(NamedTuple):
    """What all processes together hold of a minibatch."""

    num_tokens: int
    num_rows: int
    num_micro: int
    """Forward and backward passes that every process makes."""


class _Part(NamedTuple):
    """What the pass over one micro-batch gave."""

    loss: Tensor
    sums: LossSums
    computed: int
    """Tokens that the model computed, repeated prefixes included."""
    padded: int
    """The same with padding."""


class _Outcome(NamedTuple):
    """What one optimiser step did; sums are over all processes."""

    loss: float
    gradient_norm: float
    computed: float
    padded: float
    tokens: float
    clipped: float
    k3: float
    entropy: float
    difference: float
    ratio_min: float
    ratio_max: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


class Updater:
    """Policy, frozen reference and optimiser; holds what changes from step to step.

    Args:
        accelerator: as the process was launched; its mixed precision decides the format of activations.
        model: the policy. Weights in half precision are widened to float32: steps of 1e-6 would round to nothing.
        reference: a copy of the starting policy, needed where `loss_config.kl_coefficient` is above 0.
        optimiser_config: AdamW, warm-up, minibatch and micro-batch sizes.
        loss_config: the loss; its `old_logprobs = "auto"` takes the sampler's where it computes in full precision, as a
            sampler that shares the policy then gives what the policy would.
        total_steps: training steps of the run; the warm-up is a share of them.
        temperature: sampling temperature of the rollouts.
        pad_id: id of the padding.

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
    ) -> None:
        if loss_config.kl_coefficient > 0 and reference is None:
            raise ValueError(
                f"loss.kl_coefficient must be 0 without a reference model, got {loss_config.kl_coefficient}: "
                "load the starting policy a second time, or set loss.kl_coefficient = 0"
            )
        self.accelerator = accelerator
        self.optimiser_config = optimiser_config
        self.loss_config = loss_config
        self.warmup_steps = round(optimiser_config.warmup_fraction * total_steps)
        self.temperature = temperature
        self.pad_id = pad_id
        self.step = 0
        parameters = _widened(model)
        self.dtype = torch.promote_types(parameters[0].dtype, torch.float32)
        half = accelerator.mixed_precision != "no"
        self.recomputes = loss_config.old_logprobs == "policy" or (loss_config.old_logprobs == "auto" and half)
        kept = reference if loss_config.kl_coefficient > 0 else None
        self.packing = self._packing([model] if kept is None else [model, kept])
        optimiser = torch.optim.AdamW(
            parameters,
            lr=optimiser_config.learning_rate,
            betas=optimiser_config.betas,
            weight_decay=optimiser_config.weight_decay,
        )
        self.model, self.optimiser = accelerator.prepare(model, optimiser)
        self.reference = None
        if kept is not None:
            self.reference = accelerator.prepare_model(kept.requires_grad_(False), evaluation_mode=True)

    def _packing(self, models: Sequence[nn.Module]) -> Packing:
        """The packing that all models take, before they are wrapped."""
        packing = self.optimiser_config.packing
        for model in models:
            autocast = None if self.accelerator.mixed_precision == "no" else self.accelerator.autocast()
            model.eval().to(self.accelerator.device)
            packing = usable_packing(packing, model, self.accelerator.device, autocast=autocast)
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
        """
        learning_rate = self.learning_rate(self.step)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        row_counts: Counter[int] = Counter()
        for slot, count in gather_object(list(count_rows(rows).items())):
            row_counts[slot] += count
        # Dropout stays off, as it was in sampling; only gradient checkpointing asks for training mode.
        self.model.train(getattr(self.accelerator.unwrap_model(self.model), "is_gradient_checkpointing", False))
        groups = minibatches(rows, self.optimiser_config.update_rows, step_key, row_counts)
        with tree_attention(self.model, self.reference) if self.packing == "tree" else nullcontext():
            if self.recomputes:
                groups = groups[:1] + [self._with_own_logprobs(group) for group in groups[1:]]
            # The first minibatch is trained on the policy that is asked: its own log-probabilities come for free.
            outcomes = [self._optimise(group, own=self.recomputes and not k) for k, group in enumerate(groups)]
        self.model.eval()
        self.step += 1
        return {
            **_means(outcomes, with_kl=self.reference is not None),
            **self._counts(rows),
            "update/learning_rate": learning_rate,
        }

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs besides the weights."""
        return {"step": self.step, "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; the model must hold the weights of that moment."""
        self.step = int(state["step"])
        self.optimiser.load_state_dict(state["optimiser"])

    def _needs_forward(self, row: TurnRow) -> bool:
        return row.advantage != 0 or self.loss_config.kl_coefficient > 0 or self.loss_config.entropy_coefficient > 0

    def _micro_batches(self, rows: Sequence[TurnRow]) -> list[list[TurnRow]]:
        """Those rows of a minibatch that are run, in forward passes."""
        run = [row for row in rows if self._needs_forward(row)]
        return micro_batches(run, self.optimiser_config.tokens_per_micro_batch, self.packing)

    def _collate(self, rows: Sequence[TurnRow]) -> Batch:
        return collate(rows, self.pad_id, self.accelerator.device, self.dtype, self.packing)

    def _with_own_logprobs(self, rows: Sequence[TurnRow]) -> list[TurnRow]:
        """The rows of a minibatch with log-probabilities of the policy as it is."""
        batches = self._micro_batches(rows)
        own = {_identity(row): row for row in rows}
        # As many passes on every process: data-parallel wrappers exchange buffers in them.
        for index in range(self._share(rows, len(batches)).num_micro):
            run = batches[index] if index < len(batches) else [self._idle_row()]
            with torch.no_grad():
                logprobs_RL = token_logprobs(self.model, self._collate(run), self.temperature).logprobs.tolist()
            if index < len(batches):
                for row, logprobs_L in zip(run, logprobs_RL, strict=True):
                    own[_identity(row)] = replace(row, old_logprobs=tuple(logprobs_L[: len(row.response_ids)]))
        return [own[_identity(row)] for row in rows]

    def _optimise(self, rows: Sequence[TurnRow], *, own: bool) -> _Outcome:
        """One optimiser step on this process's rows of a minibatch; `own` puts the policy as it is below the ratio."""
        batches = self._micro_batches(rows)
        share = self._share(rows, len(batches))
        outputs = []
        for index in range(share.num_micro):
            # Gradients are exchanged once, in the last backward pass.
            last = index == share.num_micro - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                if index < len(batches):
                    outputs.append(self._backward(batches[index], share, own=own))
                else:
                    self._idle_backward()
        gradient_norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.optimiser_config.gradient_clip)
        outcome = self._gather(outputs, float(gradient_norm))
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

    def _backward(self, rows: Sequence[TurnRow], share: _Share, *, own: bool) -> _Part:
        """Forward and backward pass of one micro-batch."""
        batch = self._collate(rows)
        reference = None
        if self.reference is not None:
            with torch.no_grad():
                reference = token_logprobs(self.reference, batch, self.temperature).logprobs
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
        return _Part(output.loss.detach(), sums, batch.num_tokens, batch.input_ids.numel())

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
        self.accelerator.backward(0.0 * token_logprobs(self.model, batch, self.temperature).logprobs.sum())

    def _gather(self, outputs: Sequence[_Part], gradient_norm: float) -> _Outcome:
        """Add up micro-batches and processes."""
        device = self.accelerator.device
        sums = torch.zeros(8, dtype=torch.float64, device=device)
        low = torch.full((1,), math.inf, dtype=torch.float64, device=device)
        high = -low
        for part in outputs:
            counts = torch.tensor([part.computed, part.padded], dtype=torch.float64, device=device)
            values = torch.stack([value.double() for value in (part.loss, *_additive(part.sums))])
            sums += torch.cat([values, counts])
            low = torch.minimum(low, part.sums.ratio_min.double())
            high = torch.maximum(high, part.sums.ratio_max.double())
        sums = self.accelerator.reduce(sums, "sum")
        low, high = self.accelerator.gather(low).min(), self.accelerator.gather(high).max()
        loss, tokens, clipped, kl, entropy, difference, computed, padded = sums.tolist()
        return _Outcome(
            loss=loss,
            gradient_norm=gradient_norm,
            computed=computed,
            padded=padded,
            tokens=tokens,
            clipped=clipped,
            k3=kl,
            entropy=entropy,
            difference=difference,
            ratio_min=float(low),
            ratio_max=float(high),
        )

    def _counts(self, rows: Sequence[TurnRow]) -> UpdateMetrics:
        """What all processes were given."""
        skipped = sum(not self._needs_forward(row) for row in rows)
        counts = torch.tensor([_num_sampled(rows), len(rows), skipped], device=self.accelerator.device)
        tokens, all_rows, all_skipped = map(float, self.accelerator.reduce(counts, "sum").tolist())
        return {"update/tokens": tokens, "update/rows": all_rows, "update/rows_skipped": all_skipped}


def _identity(row: TurnRow) -> tuple[int, int, int]:
    return row.question, row.path, row.turn


def _widened(model: nn.Module) -> list[nn.Parameter]:
    """Parameters that are trained, after those in half precision have become float32 in place."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in parameters):
        parameters = [parameter for parameter in model.float().parameters() if parameter.requires_grad]
    return parameters


def _num_sampled(rows: Sequence[TurnRow]) -> int:
    return sum(len(row.response_ids) for row in rows)


def _additive(sums: LossSums) -> tuple[Tensor, ...]:
    return sums.tokens, sums.clipped, sums.k3, sums.entropy, sums.difference


def _means(outcomes: Sequence[_Outcome], with_kl: bool) -> UpdateMetrics:
    """Metrics of the finite optimiser steps of one update."""
    finite = [outcome for outcome in outcomes if outcome.finite]
    ran = [outcome for outcome in finite if outcome.tokens > 0]
    num_tokens = sum(outcome.tokens for outcome in ran)
    first = outcomes[0] if outcomes else None

    def per_token(total: float) -> float:
        return total / num_tokens if num_tokens else math.nan

    def per_step(total: float) -> float:
        return total / len(finite) if finite else math.nan

    metrics = {
        "update/loss": per_step(sum(outcome.loss for outcome in finite)),
        "update/gradient_norm": per_step(sum(outcome.gradient_norm for outcome in finite)),
        "update/entropy": per_token(sum(outcome.entropy for outcome in ran)),
        "update/clip_fraction": per_token(sum(outcome.clipped for outcome in ran)),
        "update/ratio_min": min((outcome.ratio_min for outcome in ran), default=math.nan),
        "update/ratio_max": max((outcome.ratio_max for outcome in ran), default=math.nan),
        # Before the first step the policy is the one that sampled: what is left is the engines' disagreement.
        "update/logprob_difference": first.difference / first.tokens if first and first.tokens else math.nan,
        "update/computed_tokens": sum(outcome.computed for outcome in outcomes),
        "update/padded_tokens": sum(outcome.padded for outcome in outcomes),
        "update/steps": float(len(finite)),
        "update/nonfinite": float(len(outcomes) - len(finite)),
    }
    if with_kl:
        metrics["update/kl"] = per_token(sum(outcome.k3 for outcome in ran))
    return metrics
