"""supervised: rows of context and response -> a policy that imitates the responses.

Source: ours, plain maximum likelihood of the response given its context.

Example:
    >>> rows = [SupervisedRow(context_ids=(1,) * n, response_ids=(2, 3), weights=(1.0, 1.0)) for n in (9, 2, 8, 3)]
    >>> [len(batch) for batch in bucket_batches(rows, max_tokens=22, rng=np.random.default_rng(0))]
    [2, 2]
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from igrpo_train.checks import check_fields, count, positive


class SupervisedRow(NamedTuple):
    """One response in its context."""

    context_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    weights: tuple[float, ...]
    """Loss weight of each token of the response."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole row."""
        return len(self.context_ids) + len(self.response_ids)


class SupervisedBatch(NamedTuple):
    """Rows padded on the right."""

    ids: Int[Tensor, "R T"]
    weights: Float[Tensor, "R T"]
    """Loss weight of each token as a target; 0 in contexts and padding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SupervisedSettings:
    """How to optimise."""

    learning_rate: float
    """Peak learning rate of AdamW."""
    steps: int
    """Optimiser steps; the batches must not end earlier."""
    warmup_steps: int = 50
    """Steps of linear warm-up."""
    decay_share: float = 0.3
    """Last share of the steps, in which the rate falls linearly."""
    final_share: float = 0.05
    """What is left of the peak rate at the end."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay rates of AdamW's moments."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense.

        Raises:
            ValueError: with the field and the value.
        """
        check_fields("", self, "steps", count, "at least 1")
        check_fields("", self, "learning_rate max_grad_norm", positive, "finite and above 0")

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0.

        Example:
            >>> settings = SupervisedSettings(learning_rate=1.0, steps=100, warmup_steps=10, decay_share=0.5)
            >>> settings.rate(0), settings.rate(30), round(settings.rate(90), 3)
            (0.1, 1.0, 0.2)
        """
        warm = min(1.0, (step + 1) / max(1, self.warmup_steps))
        left = (self.steps - step) / self.steps
        cool = 1.0 if left >= self.decay_share else max(self.final_share, left / self.decay_share)
        return self.learning_rate * warm * cool


def bucket_batches(
    rows: Sequence[SupervisedRow], max_tokens: int, rng: np.random.Generator
) -> list[list[SupervisedRow]]:
    """Cut rows of similar length into batches, in random order.

    Args:
        rows: any number of rows.
        max_tokens: limit on rows x longest row of a batch; a single longer row still makes a batch.
        rng: orders the batches.
    """
    batches: list[list[SupervisedRow]] = []
    for row in sorted(rows, key=lambda row: row.num_tokens):
        if batches and (len(batches[-1]) + 1) * row.num_tokens <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return [batches[i] for i in rng.permutation(len(batches))]


def pad_rows(rows: Sequence[SupervisedRow], pad_id: int, device: torch.device | str = "cpu") -> SupervisedBatch:
    """Lay rows out as one batch.

    Example:
        >>> row = SupervisedRow(context_ids=(4, 5), response_ids=(6,), weights=(2.0,))
        >>> pad_rows([row, row._replace(context_ids=(4,))], pad_id=0).weights.tolist()
        [[0.0, 0.0, 2.0], [0.0, 2.0, 0.0]]
    """
    width = max(row.num_tokens for row in rows)
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    weights = np.zeros((len(rows), width), dtype=np.float32)
    for i, row in enumerate(rows):
        ids[i, : row.num_tokens] = row.context_ids + row.response_ids
        weights[i, len(row.context_ids) : row.num_tokens] = row.weights
    return SupervisedBatch(torch.from_numpy(ids).to(device), torch.from_numpy(weights).to(device))


def supervised_loss(model: PreTrainedModel, batch: SupervisedBatch) -> Float[Tensor, ""]:
    """Weighted mean of the negative log-likelihood (nats a token) of the responses.

    Logits are computed only at positions that predict a response token of some row. There is no attention mask: a
    causal model never looks at padding on the right.
    """
    targets_RT, weights_RT = batch.ids[:, 1:], batch.weights[:, 1:]
    positions = weights_RT.any(dim=0).nonzero()[:, 0]
    logits_RTV = model(input_ids=batch.ids[:, :-1], logits_to_keep=positions, use_cache=False).logits
    nll_RT = torch.nn.functional.cross_entropy(
        logits_RTV.float().transpose(1, 2), targets_RT[:, positions], reduction="none"
    )
    weights_RT = weights_RT[:, positions]
    return (nll_RT * weights_RT).sum() / weights_RT.sum()


def train_supervised(
    model: PreTrainedModel,
    batches: Iterable[Sequence[SupervisedRow]],
    settings: SupervisedSettings,
    pad_id: int,
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train the model in place.

    Args:
        model: any causal language model, on any device.
        batches: one a step; may be endless.
        settings: how to optimise.
        pad_id: fills the rows; never a target.
        on_step: told the number of steps done and the loss of the last one.

    Returns:
        The loss of each step.
    """
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
    )
    model.train()
    losses: list[float] = []
    for step, rows in zip(range(settings.steps), batches, strict=False):
        for group in optimiser.param_groups:
            group["lr"] = settings.rate(step)
        loss = supervised_loss(model, pad_rows(rows, pad_id, model.device))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimiser.step()
        losses.append(loss.item())
        if on_step is not None:
            on_step(step + 1, losses[-1])
    if len(losses) < settings.steps:
        raise ValueError(f"steps asks for {settings.steps} batches, got {len(losses)}: give more rows or fewer steps")
    model.eval()
    return losses
