"""batch: rows of one forward pass -> tensors.

In: rows, and how they are packed: each on a line of its own (`path`), or merged into their prefix trie (`tree`).
Out: what the model takes, and where the log-probabilities of each row's sampled tokens come from. The loss sees the
same rows in both packings; only what is computed once, and read by how many, differs.
Source: ours.

Axes: R rows, B lines and T columns of the model's input, L columns of the responses, S sampled tokens that the model
computes: those of all rows in `path`, the unique ones in `tree`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from igrpo_train.config import Packing
from igrpo_train.learn.attention import TreePlan, plan_attention
from igrpo_train.learn.packing import TurnRow
from igrpo_train.learn.trie import lexicographic_order, plant


class TreeInputs(NamedTuple):
    """What the model takes besides the ids of a trie."""

    position_ids: Int[Tensor, "1 T"]
    tree_plan: TreePlan


class Batch(NamedTuple):
    """Rows as tensors, in the order in which they were given."""

    input_ids: Int[Tensor, "B T"]
    attention_mask: Int[Tensor, "B T"] | None
    """1 on the rows' own tokens; None for a trie, which has no padding."""
    tree: TreeInputs | None
    """None where each row stands on a line of its own."""
    predictors: Int[Tensor, " S"]
    """Columns, counted through all lines, whose logits predict a sampled token."""
    targets: Int[Tensor, " S"]
    """The sampled ids."""
    cells: Int[Tensor, "R L"]
    """Which of the S tokens each cell of a row's response is; 0 where nothing was sampled."""
    sampled: Bool[Tensor, "R L"]
    """True on cells that hold a token."""
    old_logprobs: Float[Tensor, "R L"]
    """0 where nothing was sampled."""
    engine_logprobs: Float[Tensor, "R L"]
    """Of the engine that sampled; 0 where nothing was."""
    advantages: Float[Tensor, " R"]
    num_tokens: int
    """Tokens that the model computes, without padding."""


class _Layout(NamedTuple):
    """Where things are, in numpy."""

    input_ids: Int[np.ndarray, "B T"]
    predictors: Int[np.ndarray, " S"]
    targets: Int[np.ndarray, " S"]
    cells: Int[np.ndarray, " S2"]
    """Of the rows' sampled tokens, row after row."""


def collate(
    rows: Sequence[TurnRow],
    pad_id: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    packing: Packing = "path",
) -> Batch:
    """Rows as tensors.

    Args:
        rows: at least one row, each with a context and a response.
        pad_id: id of the padding; it is masked, so any id of the vocabulary does.
        device: where the tensors go.
        dtype: of log-probabilities and advantages.
        packing: path pads each row on the right of its line, tree computes every shared prefix once.

    Example:
        >>> ids = dict(question=0, turn=0, old_logprobs=(-1.0,), advantage=1.0, context_ids=(5, 6))
        >>> rows = [TurnRow(path=path, response_ids=(7 + path,), **ids) for path in range(2)]
        >>> collate(rows, pad_id=0).input_ids.tolist()
        [[5, 6, 7], [5, 6, 8]]
        >>> batch = collate(rows, pad_id=0, packing="tree")
        >>> batch.input_ids.tolist(), batch.predictors.tolist(), batch.targets.tolist()
        ([[5, 6, 7, 8]], [1, 1], [7, 8])
    """
    for row in rows:
        assert row.context_ids, "a row needs a context: its last token predicts the first sampled one"
        num_ids, num_logprobs = len(row.response_ids), len(row.old_logprobs)
        assert num_logprobs == num_ids, f"{num_logprobs} logprobs for {num_ids} ids"
    response_width = max(len(row.response_ids) for row in rows)
    sampled = np.zeros((len(rows), response_width), dtype=bool)
    old_logprobs, engine_logprobs = np.zeros((2, len(rows), response_width), dtype=np.float64)
    for index, row in enumerate(rows):
        sampled[index, : len(row.response_ids)] = True
        old_logprobs[index, : len(row.response_ids)] = row.old_logprobs
        engine_logprobs[index, : len(row.response_ids)] = row.engine_logprobs or row.old_logprobs
    if packing == "path":
        layout, mask = _lines(rows, pad_id)
        tree, attention_mask, num_tokens = None, torch.from_numpy(mask).to(device), int(mask.sum())
    else:
        layout, tree = _trie(rows, device)
        attention_mask, num_tokens = None, layout.input_ids.size
    cells = np.zeros(sampled.shape, dtype=np.int64)
    cells[sampled] = layout.cells
    return Batch(
        input_ids=torch.from_numpy(layout.input_ids).to(device),
        attention_mask=attention_mask,
        tree=tree,
        predictors=torch.from_numpy(layout.predictors).to(device),
        targets=torch.from_numpy(layout.targets).to(device),
        cells=torch.from_numpy(cells).to(device),
        sampled=torch.from_numpy(sampled).to(device),
        old_logprobs=torch.from_numpy(old_logprobs).to(dtype).to(device),
        engine_logprobs=torch.from_numpy(engine_logprobs).to(dtype).to(device),
        advantages=torch.tensor([row.advantage for row in rows], dtype=dtype, device=device),
        num_tokens=num_tokens,
    )


def _lines(rows: Sequence[TurnRow], pad_id: int) -> tuple[_Layout, Int[np.ndarray, "R T"]]:
    """Every row on its own line; also 1 on its tokens, 0 on padding."""
    width = max(row.num_tokens for row in rows)
    input_ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    attention_mask = np.zeros((len(rows), width), dtype=np.int64)
    places = []
    for index, row in enumerate(rows):
        input_ids[index, : row.num_tokens] = row.context_ids + row.response_ids
        attention_mask[index, : row.num_tokens] = 1
        places.append(index * width + np.arange(len(row.context_ids), row.num_tokens))
    place = np.concatenate(places)
    return _Layout(input_ids, place - 1, input_ids.ravel()[place], np.arange(len(place))), attention_mask


def _trie(rows: Sequence[TurnRow], device: torch.device | str) -> tuple[_Layout, TreeInputs]:
    """All rows in one line, every shared prefix once."""
    sequences = [row.context_ids + row.response_ids for row in rows]
    order = lexicographic_order(sequences)
    trie = plant([sequences[k] for k in order])
    path_of = dict(zip(order, trie.paths, strict=True))
    # Rows that share a sampled token read the same one: its log-probability and entropy are the same numbers.
    place = np.concatenate([path_of[k][len(row.context_ids) :] for k, row in enumerate(rows)])
    unique, cells = np.unique(place, return_inverse=True)
    layout = _Layout(trie.ids[None], trie.parent[unique], trie.ids[unique], cells)
    position_ids = torch.from_numpy(trie.position)[None].to(device)
    return layout, TreeInputs(position_ids, plan_attention(trie.end, device))
