"""loss: log-probabilities of sampled tokens -> clipped policy loss.

In: log-probabilities of the policy now, at sampling and of the frozen reference, with one advantage a row.
Out: a differentiable loss with global denominators, and sums from which the metrics are made.
Source: [ppo] for the clip, [dualclip] for the bound on it, [gspo] for the ratio of a sequence, [k3] for the KL
estimate, [tis] for the weight that undoes what engine and trainer disagree by.

Axes: R rows, L columns of the responses, S sampled tokens that the model computes, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from igrpo_train.config import Aggregation, Loss
from igrpo_train.learn.batch import Batch

_CHUNK_TOKENS: Final = 1024
"""Rows of the vocabulary softmax in memory at once."""
_LOG_LIMIT: Final = 20.0
"""Bound on differences of log-probabilities, so that exp stays finite; far outside of what any clip lets through."""


class TokenLogprobs(NamedTuple):
    """What the policy gave to the tokens of a batch; 0 where nothing was sampled."""

    logprobs: Float[Tensor, "R L"]
    """Nats."""
    entropy: Float[Tensor, "R L"]
    """Of the whole next-token distribution, nats."""


class LossSums(NamedTuple):
    """Sums over sampled tokens (0-d, detached), so that parts of a minibatch add up to the whole."""

    tokens: Tensor
    clipped: Tensor
    """Tokens whose gradient the clip or the dual clip removed."""
    k3: Tensor
    """0 without a reference."""
    entropy: Tensor
    difference: Tensor
    """Sum of |new - old| log-probability."""
    ratio_min: Tensor
    ratio_max: Tensor


class LossOutput(NamedTuple):
    """A loss and what is worth knowing about it."""

    loss: Float[Tensor, ""]
    sums: LossSums


def token_logprobs(model: nn.Module, batch: Batch, temperature: float) -> TokenLogprobs:
    """Run the model; log-softmax and vocabulary logits exist only for sampled tokens.

    Args:
        model: causal language model of transformers, possibly wrapped for data-parallel training.
        batch: rows; a trie needs `tree_attention` around this call and the backward pass.
        temperature: logits are divided by it, as they were in sampling.

    Returns:
        differentiable in the model's parameters.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from igrpo_train.learn.batch import collate
        >>> from igrpo_train.learn.packing import TurnRow
        >>> sizes = dict(vocab_size=20, hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1)
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes))
        >>> _ = nn.init.zeros_(model.lm_head.weight)  # all tokens are equally likely
        >>> ids = dict(context_ids=(5, 6), response_ids=(7,), old_logprobs=(-1.0,), advantage=1.0)
        >>> batch = collate([TurnRow(question=0, path=0, turn=0, **ids)], pad_id=0)
        >>> token_logprobs(model, batch, temperature=1.0).logprobs.exp().detach()
        tensor([[0.0500]])
    """
    inputs: dict[str, Any] = {"attention_mask": batch.attention_mask} if batch.tree is None else batch.tree._asdict()
    with _logits_only_at(model, batch.predictors):
        output = model(input_ids=batch.input_ids, use_cache=False, **inputs)
    logits_SV = output.logits[0]
    parts = [
        checkpoint(_logprob_and_entropy, logits_CV, targets_C, temperature, use_reentrant=False)
        for logits_CV, targets_C in zip(
            torch.split(logits_SV, _CHUNK_TOKENS), torch.split(batch.targets, _CHUNK_TOKENS), strict=True
        )
    ]
    logprobs_S = torch.cat([logprobs_C for logprobs_C, _ in parts])
    entropy_S = torch.cat([entropy_C for _, entropy_C in parts])
    return TokenLogprobs(
        torch.where(batch.sampled, logprobs_S[batch.cells], 0.0),
        torch.where(batch.sampled, entropy_S[batch.cells], 0.0),
    )


@contextmanager
def _logits_only_at(model: nn.Module, columns: Int[Tensor, " S"]) -> Iterator[None]:
    """Let the output layer see only these columns, counted through all lines, as one line [1, S, hidden]."""
    # A hook, because data-parallel wrappers need their own forward to run and logits_to_keep is the same for all lines.
    inner: Any = getattr(model, "module", model)
    head: nn.Module = inner.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda _head, args: (args[0].flatten(0, 1)[columns][None], *args[1:]))
    try:
        yield
    finally:
        handle.remove()


def _logprob_and_entropy(
    logits: Float[Tensor, "C V"], targets: Int[Tensor, " C"], temperature: float
) -> tuple[Float[Tensor, " C"], Float[Tensor, " C"]]:
    """Log-probability of each target and entropy of each row, in float32 or better."""
    precise_CV = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    logprobs_CV = precise_CV.log_softmax(dim=-1)
    entropy_C = -(logprobs_CV.exp() * logprobs_CV).sum(dim=-1)
    return logprobs_CV.gather(1, targets[:, None])[:, 0], entropy_C


def policy_loss(
    new: TokenLogprobs,
    batch: Batch,
    config: Loss,
    *,
    num_tokens: int,
    num_rows: int,
    reference: Float[Tensor, "R L"] | None = None,
) -> LossOutput:
    """Clipped surrogate + KL to the reference - entropy bonus.

    A sequence, for `ratio_level = sequence` and `aggregation = sequence_mean`, is a row: one turn's response.

    Args:
        new: log-probabilities under the policy now; carries the gradient.
        batch: sampling log-probabilities, advantages and the mask of sampled tokens.
        config: clips, coefficients, cap of the engine's weights, ratio level and aggregation.
        num_tokens: sampled tokens of the whole minibatch, over all processes and micro-batches.
        num_rows: rows of the whole minibatch.
        reference: log-probabilities under the frozen reference; None without a KL term.

    Returns:
        loss of these rows' share of the minibatch: shares add up to the loss of the minibatch.

    Example:
        >>> from igrpo_train.learn.batch import collate
        >>> from igrpo_train.learn.packing import TurnRow
        >>> ids = dict(context_ids=(5,), response_ids=(7,), old_logprobs=(-1.0,))
        >>> row = TurnRow(question=0, path=0, turn=0, advantage=2.0, **ids)
        >>> new = TokenLogprobs(logprobs=torch.tensor([[-1.0]]), entropy=torch.tensor([[0.5]]))
        >>> policy_loss(new, collate([row], pad_id=0), Loss(), num_tokens=1, num_rows=1).loss
        tensor(-2.)
    """
    mask_RL = batch.sampled
    ratio_RL = _ratio(new.logprobs, batch.old_logprobs, mask_RL, config.ratio_level == "sequence")
    surrogate = _surrogate(ratio_RL, batch.advantages[:, None], config)
    tokens_RL = -surrogate.objective
    if config.importance_cap > 0:
        tokens_RL = tokens_RL * engine_weights(batch, config.importance_cap)
    k3_RL = torch.zeros_like(new.logprobs)
    if config.entropy_coefficient > 0:
        tokens_RL = tokens_RL - config.entropy_coefficient * new.entropy
    if reference is not None:
        k3_RL = k3(new.logprobs, reference)
        tokens_RL = tokens_RL + config.kl_coefficient * k3_RL
    loss = aggregate(tokens_RL, mask_RL, config.aggregation, num_tokens=num_tokens, num_rows=num_rows)
    with torch.no_grad():
        ratios_S = ratio_RL[mask_RL]
        sums = LossSums(
            tokens=mask_RL.sum(),
            clipped=(surrogate.clipped & mask_RL).sum(),
            k3=k3_RL[mask_RL].sum(),
            entropy=new.entropy[mask_RL].sum(),
            difference=(new.logprobs - batch.old_logprobs)[mask_RL].abs().sum(),
            ratio_min=ratios_S.min(),
            ratio_max=ratios_S.max(),
        )
    return LossOutput(loss, sums)


def _ratio(
    new: Float[Tensor, "R L"], old: Float[Tensor, "R L"], mask: Bool[Tensor, "R L"], whole_sequence: bool
) -> Float[Tensor, "R L"]:
    """pi_new / pi_old of each token, or the geometric mean over its row; 1 where nothing was sampled."""
    log_ratio_RL = torch.where(mask, new - old, 0.0)
    if whole_sequence:
        mean_R1 = log_ratio_RL.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)
        # The value is the row's, the gradient reaches every token with weight one: the mean over tokens completes it.
        log_ratio_RL = torch.where(mask, mean_R1.detach() + new - new.detach(), 0.0)
    return log_ratio_RL.clamp(-_LOG_LIMIT, _LOG_LIMIT).exp()


def engine_weights(batch: Batch, cap: float) -> Float[Tensor, "R L"]:
    """Truncated importance weight of each token, min(old / engine probability, cap); carries no gradient.

    Where the policy before its first update stands below the ratio, not the engine that sampled, the gradient is a
    mean over the engine's law; the weight makes it one over the policy's, but for what the cap takes away.

    Args:
        batch: `old_logprobs` of the policy and `engine_logprobs` of what was sampled from.
        cap: largest weight, at least 1.

    Source: [tis]. Example:
        >>> from igrpo_train.learn.batch import collate
        >>> from igrpo_train.learn.packing import TurnRow
        >>> ids = dict(context_ids=(5,), response_ids=(7, 8), old_logprobs=(-1.0, -1.0), engine_logprobs=(-1.5, -4.0))
        >>> engine_weights(collate([TurnRow(question=0, path=0, turn=0, advantage=2.0, **ids)], pad_id=0), cap=2.0)
        tensor([[1.6487, 2.0000]])
    """
    return (batch.old_logprobs - batch.engine_logprobs).clamp_max(_LOG_LIMIT).exp().clamp_max(cap)


class _Surrogate(NamedTuple):
    objective: Float[Tensor, "R L"]
    clipped: Bool[Tensor, "R L"]


def _surrogate(ratio: Float[Tensor, "R L"], advantages: Float[Tensor, "R 1"], config: Loss) -> _Surrogate:
    """The pessimistic minimum of the plain and the clipped objective, bounded below where the advantage is negative."""
    plain_RL = ratio * advantages
    inside_RL = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high) * advantages
    objective_RL = torch.minimum(plain_RL, inside_RL)
    clipped_RL = inside_RL < plain_RL
    if config.dual_clip > 0:
        bound_R1 = config.dual_clip * advantages
        too_bad_RL = (advantages < 0) & (objective_RL < bound_R1)
        objective_RL = torch.where(too_bad_RL, bound_R1.expand_as(objective_RL), objective_RL)
        clipped_RL = clipped_RL | too_bad_RL
    return _Surrogate(objective_RL, clipped_RL)


def k3(new: Float[Tensor, "*shape"], reference: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Estimate of KL(new || reference) at each token sampled from `new`: never negative, without bias.

    Args:
        new: log-probabilities under the policy, nats.
        reference: log-probabilities under the reference, nats.

    Source: [k3]

    Example:
        >>> k3(torch.tensor([-1.0]), torch.tensor([-1.0]))
        tensor([0.])
    """
    difference = (reference - new).clamp(-_LOG_LIMIT, _LOG_LIMIT)
    # expm1 keeps the small values that exp(d) - 1 would round away.
    return torch.expm1(difference) - difference


def aggregate(
    values: Float[Tensor, "R L"],
    mask: Bool[Tensor, "R L"],
    aggregation: Aggregation,
    *,
    num_tokens: int,
    num_rows: int,
) -> Float[Tensor, ""]:
    """Share of these rows in the minibatch mean of a per-token value.

    Args:
        values: anything where the mask is False.
        mask: cells that hold a token; at least one a row.
        aggregation: token_mean weighs tokens equally, sequence_mean rows equally.
        num_tokens: tokens of the whole minibatch.
        num_rows: rows of the whole minibatch.

    Example:
        >>> values, mask = torch.tensor([[1.0, 3.0], [5.0, 0.0]]), torch.tensor([[True, True], [True, False]])
        >>> aggregate(values, mask, "token_mean", num_tokens=3, num_rows=2)
        tensor(3.)
        >>> aggregate(values, mask, "sequence_mean", num_tokens=3, num_rows=2)
        tensor(3.5000)
    """
    kept_RL = torch.where(mask, values, 0.0)
    if aggregation == "token_mean":
        return kept_RL.sum() / num_tokens
    return (kept_RL.sum(dim=1) / mask.sum(dim=1)).sum() / num_rows
