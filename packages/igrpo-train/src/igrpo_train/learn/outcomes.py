"""outcomes: what the passes of an update gave -> its metrics.

In: one `Part` a micro-batch of this process.
Out: one `Outcome` an optimiser step, over all processes, and the metrics of an update.
Source: ours.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from accelerate import Accelerator
from torch import Tensor

from igrpo_train.learn.loss import LossSums

UpdateMetrics: TypeAlias = dict[str, float]


class Part(NamedTuple):
    """What the pass over one micro-batch gave."""

    loss: Tensor
    sums: LossSums
    computed: int
    """Tokens that the model computed, repeated prefixes included."""
    padded: int
    """The same with padding."""


class Outcome(NamedTuple):
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
        """Whether the step was applied."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


def gather_outcome(accelerator: Accelerator, parts: Sequence[Part], gradient_norm: float) -> Outcome:
    """Add up micro-batches and processes; every process calls it.

    Args:
        accelerator: as the process was launched.
        parts: of this process, possibly none.
        gradient_norm: before the clip, the same on every process.

    Example:
        >>> one = torch.ones(())
        >>> sums = LossSums(tokens=2 * one, clipped=0 * one, k3=0 * one, entropy=one, difference=one,
        ...                 ratio_min=0.5 * one, ratio_max=one)
        >>> parts = [Part(loss=0.25 * one, sums=sums, computed=5, padded=6)] * 2
        >>> outcome = gather_outcome(Accelerator(cpu=True), parts, gradient_norm=1.0)
        >>> outcome.loss, outcome.tokens, outcome.computed, outcome.ratio_min
        (0.5, 4.0, 10.0, 0.5)
    """
    device = accelerator.device
    sums = torch.zeros(8, dtype=torch.float64, device=device)
    low = torch.full((1,), math.inf, dtype=torch.float64, device=device)
    high = -low
    for part in parts:
        counts = torch.tensor([part.computed, part.padded], dtype=torch.float64, device=device)
        values = torch.stack([value.double() for value in (part.loss, *_additive(part.sums))])
        sums += torch.cat([values, counts])
        low = torch.minimum(low, part.sums.ratio_min.double())
        high = torch.maximum(high, part.sums.ratio_max.double())
    sums = accelerator.reduce(sums, "sum")
    low, high = accelerator.gather(low).min(), accelerator.gather(high).max()
    loss, tokens, clipped, kl, entropy, difference, computed, padded = sums.tolist()
    return Outcome(
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


def mean_metrics(outcomes: Sequence[Outcome], *, with_kl: bool) -> UpdateMetrics:
    """Metrics of the finite optimiser steps of one update.

    Args:
        outcomes: of all optimiser steps, in order.
        with_kl: whether there is a reference.

    Returns:
        means over the tokens that were run, NaN where there were none. `update/logprob_difference` is over the first
        minibatch only, and NaN where none of its rows was run, also when rows of later minibatches were.

    Example:
        >>> metrics = mean_metrics([], with_kl=True)
        >>> metrics["update/steps"], metrics["update/kl"]
        (0.0, nan)
    """
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


def _additive(sums: LossSums) -> tuple[Tensor, ...]:
    return sums.tokens, sums.clipped, sums.k3, sums.entropy, sums.difference
