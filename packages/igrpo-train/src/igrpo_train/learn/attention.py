"""attention: the subtree ends of a packed trie -> attention to ancestors only.

In: `end` of every packed token, see `trie`.
Out: a plan that one forward pass shares among its layers, and an attention function of transformers that follows it.
Source: ours. Queries are taken in blocks of neighbours. A block sees its own tokens and the ancestors of its first
token, because whatever lies before the block and still has a descendant in it is an ancestor of them all. So the cost
is that of the paths' depth, not of the square of the packed length, and nothing of that square is ever in memory.
On CUDA the same rule is a `BlockMask` of torch's flex attention.

Axes: T packed tokens, C queries of a block, m keys of a block, H heads, K key heads, M keys of all blocks, D head size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.flex_attention import flex_attention_forward

_NAME: Final = "igrpo_tree"
_BLOCK: Final = 128
"""Queries of a block."""
_NOT_FOLLOWED: Final = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments of attention functions that change what a token sees or how much; none of them is followed here."""


class QueryBlocks(NamedTuple):
    """Which keys each block of queries reads."""

    sizes: list[int]
    """Queries of each block."""
    keys: Int[Tensor, " M"]
    """Packed indices of the blocks' keys, block after block."""
    key_sizes: list[int]
    """Keys of each block."""
    masks: list[Bool[Tensor, "C m"]]
    """Of each block: which keys a query sees. Booleans do for every number format, and cost what numbers cost."""


TreePlan: TypeAlias = QueryBlocks | BlockMask


def plan_attention(end: Int[np.ndarray, " T"], device: torch.device | str = "cpu") -> TreePlan:
    """How to attend to ancestors only.

    Args:
        end: one past the last descendant of each packed token.
        device: of the model.

    Example:
        >>> plan = plan_attention(np.array([3, 2, 3]))
        >>> plan.masks[0].int().tolist()
        [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    if torch.device(device).type == "cuda":
        return _block_mask(torch.from_numpy(end).to(device))
    sizes, keys, masks = [], [], []
    for start in range(0, len(end), _BLOCK):
        queries = np.arange(start, min(start + _BLOCK, len(end)))
        seen = np.concatenate([np.flatnonzero(end[:start] > start), queries])
        sees = (seen <= queries[:, None]) & (queries[:, None] < end[seen])
        sizes.append(len(queries))
        keys.append(seen)
        masks.append(torch.from_numpy(sees).to(device))
    return QueryBlocks(sizes, torch.from_numpy(np.concatenate(keys)).to(device), list(map(len, keys)), masks)


def _block_mask(end: Int[Tensor, " T"]) -> BlockMask:
    """The mask for flex attention, from block bounds: the square of the length is never in memory."""
    num_tokens = len(end)
    num_blocks = -(-num_tokens // _BLOCK)
    padding = num_blocks * _BLOCK - num_tokens
    highest = nn.functional.pad(end, (0, padding), value=0).view(num_blocks, _BLOCK).amax(1)
    lowest = nn.functional.pad(end, (0, padding), value=num_tokens).view(num_blocks, _BLOCK).amin(1)
    block = torch.arange(num_blocks, device=end.device)
    start_Q1, stop_Q1 = (block * _BLOCK)[:, None], ((block + 1) * _BLOCK).clamp_max(num_tokens)[:, None]
    earlier_QK = block[None, :] < block[:, None]
    # Every key of an earlier block is seen by every query, or at least one by one; a block sees itself in part.
    full_QK = earlier_QK & (lowest >= stop_Q1)
    partial_QK = (earlier_QK & (highest > start_Q1) & ~full_QK) | (block[None, :] == block[:, None])

    def listed(blocks_QK: Tensor) -> tuple[Tensor, Tensor]:
        order = blocks_QK.int().argsort(dim=1, descending=True, stable=True)
        return blocks_QK.sum(1, dtype=torch.int32)[None, None], order.int()[None, None]

    return BlockMask.from_kv_blocks(
        *listed(partial_QK),
        *listed(full_QK),
        BLOCK_SIZE=_BLOCK,
        mask_mod=lambda _batch, _head, query, key: (key <= query) & (query < end[key]),
        seq_lengths=(num_tokens, num_tokens),
    )


@contextmanager
def tree_attention(*models: nn.Module | None) -> Iterator[None]:
    """Let models attend to ancestors only; keep it on until the backward pass is done.

    Gradient checkpointing runs layers again in the backward pass. Inside, every forward pass needs a plan.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(vocab_size=20, hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1)
        >>> model, ids = LlamaForCausalLM(LlamaConfig(**sizes)).eval(), torch.tensor([[5, 6, 7]])
        >>> plan, position_ids = plan_attention(np.array([3, 2, 3])), torch.tensor([[0, 1, 1]])
        >>> with tree_attention(model):
        ...     logits = model(input_ids=ids, position_ids=position_ids, tree_plan=plan).logits
        >>> torch.allclose(logits[:, [0, 2]], model(ids[:, [0, 2]]).logits, atol=1e-6)
        True
    """
    configs: list[Any] = [getattr(model, "module", model).config for model in models if model is not None]
    previous = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = _NAME
        yield
    finally:
        for config, name in zip(configs, previous, strict=True):
            config._attn_implementation = name


def _attend(
    module: nn.Module,
    query: Float[Tensor, "1 H T D"],
    key: Float[Tensor, "1 K T D"],
    value: Float[Tensor, "1 K T D"],
    attention_mask: None,
    *,
    tree_plan: TreePlan | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Float[Tensor, "1 T H D"], Tensor | None]:
    """An attention function of transformers; the model hands `tree_plan` through to it."""
    if tree_plan is None:
        raise ValueError("its layers do not get the plan of the tree")
    for name in _NOT_FOLLOWED:
        if kwargs.get(name) is not None:
            raise ValueError(f"its attention uses {name}")
    if isinstance(tree_plan, BlockMask):
        return flex_attention_forward(module, query, key, value, tree_plan, scaling=scaling, dropout=dropout, **kwargs)
    outputs = _attend_blocks(query[0], key[0], value[0], tree_plan, scaling, dropout)
    return outputs.transpose(0, 1)[None].contiguous(), None


def _attend_blocks(
    query: Float[Tensor, "H T D"],
    key: Float[Tensor, "K T D"],
    value: Float[Tensor, "K T D"],
    plan: QueryBlocks,
    scaling: float | None,
    dropout: float,
) -> Float[Tensor, "H T D2"]:
    """One attention call a block; query heads that share a key head read one copy of it."""
    num_heads, num_keys = len(query), len(key)
    groups = query.unflatten(0, (num_keys, num_heads // num_keys)).split(plan.sizes, dim=2)
    # One selection for all blocks: its gradient is added up once, not once a block.
    keys = key.index_select(1, plan.keys)[:, None].split(plan.key_sizes, dim=2)
    values = value.index_select(1, plan.keys)[:, None].split(plan.key_sizes, dim=2)
    outputs = [
        scaled_dot_product_attention(
            group,
            block_keys.expand(-1, num_heads // num_keys, -1, -1),
            block_values.expand(-1, num_heads // num_keys, -1, -1),
            attn_mask=mask,
            scale=scaling,
            dropout_p=dropout,
        )
        for group, block_keys, block_values, mask in zip(groups, keys, values, plan.masks, strict=True)
    ]
    return torch.cat(outputs, dim=2).flatten(0, 1)


AttentionInterface.register(_NAME, _attend)
