"""cache: keys and values of ragged rows -> the same, extended by tokens, selected, or with rows let go.

Rows are ragged: the tensors hold columns, `valid` says which of them belong to a row, and explicit position ids keep
rotary embeddings right. A block of new tokens is padded on its left, so that every row's last token is in the last
column and only one position needs logits. Tensors have spare columns, so that a decoding step writes one column
instead of copying all that came before.

Axes: R rows, K columns in use, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from igrpo_train.search.sampling import Tokens

SPARE_COLUMNS: Final = 64
"""Columns by which tensors grow when one more token has no room."""


@dataclass(slots=True, eq=False)
class CachedRows:
    """Computed contexts, R rows of at most K columns; working memory, which `append` and `keep_rows` use up."""

    layers: list[tuple[Tensor, Tensor]]
    """Keys and values a layer, each [R, heads, at least K, head size]; what lies behind column K is not theirs."""
    valid: Bool[Tensor, "R K"]
    """Which columns hold a token of the row."""
    last_logits: Float[Tensor, "R V"] | None
    """Logits after each row's last token; None for rows without any token."""


class _RoomyLayer(DynamicLayer):
    """One layer whose new tokens are written behind the old ones, in place where there is room."""

    def __init__(self, keys: Tensor, values: Tensor, used: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.room = [keys, values]
        self.keys, self.values = keys[:, :, :used], values[:, :, :used]
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        used = self.keys.shape[2]
        stop = used + key_states.shape[2]
        for which, new in enumerate((key_states, value_states)):
            if self.room[which].shape[2] < stop:
                spare = SPARE_COLUMNS if stop == used + 1 else new.shape[2]
                self.room[which] = pad(self.room[which][:, :, :used], (0, 0, 0, spare))
            self.room[which][:, :, used:stop] = new
        self.keys, self.values = (tensor[:, :, :stop] for tensor in self.room)
        return self.keys, self.values


def append(
    model: PreTrainedModel,
    state: CachedRows | None,
    segments: Sequence[Tokens],
    *,
    pad_id: int,
    logits_to_keep: int = 1,
) -> tuple[CachedRows, Float[Tensor, "R kept V"] | None]:
    """Run the model on one left-padded block of new tokens a row.

    Args:
        model: a decoder with a standard key-value cache.
        state: what is computed already, None to start rows; it is used up, since its tensors are written to.
        segments: new tokens of each row; may be empty for rows that have some.
        pad_id: any id; it is masked.
        logits_to_keep: last columns of the block whose logits are wanted.

    Returns:
        The extended rows, and the block's logits; None when there is no new token at all.
    """
    width = max((len(segment) for segment in segments), default=0)
    if width == 0:
        assert state is not None, "a context needs at least one token"
        return state, None
    block, fresh = left_padded(segments, width, pad_id)
    new = torch.from_numpy(fresh).to(model.device)
    valid = new if state is None else torch.cat([state.valid, new], dim=1)
    positions = (valid.cumsum(1) - 1).clamp_min(0)[:, -width:]
    used = 0 if state is None else state.valid.shape[1]
    cache = DynamicCache() if state is None else Cache([_RoomyLayer(k, v, used) for k, v in state.layers])
    if state is not None:
        # Where a tensor has to grow, its old form goes a layer at a time.
        state.layers.clear()
    output = model(
        input_ids=torch.from_numpy(block).to(model.device),
        attention_mask=valid.long(),
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=logits_to_keep,
    )
    last = output.logits[:, -1]
    if state is not None and state.last_logits is not None:
        last = torch.where(new.any(1)[:, None], last, state.last_logits)
    return CachedRows([_tensors(layer) for layer in cache.layers], valid, last), output.logits


def _tensors(layer: Any) -> tuple[Tensor, Tensor]:
    keys, values = layer.room if isinstance(layer, _RoomyLayer) else (layer.keys, layer.values)
    return keys, values


def left_padded(
    segments: Sequence[Tokens], width: int, pad_id: int
) -> tuple[Int[np.ndarray, "n width"], Bool[np.ndarray, "n width"]]:
    """Segments as one block, and which of its cells hold a token.

    Example:
        >>> block, filled = left_padded([(5, 6), (7,)], width=3, pad_id=0)
        >>> block.tolist(), filled.astype(int).tolist()
        ([[0, 5, 6], [0, 0, 7]], [[0, 1, 1], [0, 0, 1]])
    """
    block = np.full((len(segments), width), pad_id)
    filled = np.zeros((len(segments), width), dtype=bool)
    for row, segment in enumerate(segments):
        block[row, width - len(segment) :] = segment
        filled[row, width - len(segment) :] = True
    return block, filled


def select(
    state: CachedRows, rows: Int[np.ndarray, " n"], room: int = 0, drop: Int[np.ndarray, " n"] | None = None
) -> CachedRows:
    """Copy rows and squeeze out the columns that none of their tokens fill.

    Args:
        state: where they are.
        rows: which, repeats allowed.
        room: spare columns of the copy.
        drop: tokens that each copy leaves out at its end; where it leaves out some, last logits mean nothing.

    Example:
        >>> layer = torch.arange(6.0).reshape(2, 1, 3, 1)
        >>> valid = torch.tensor([[True, True, True], [False, True, True]])
        >>> copies = select(CachedRows([(layer, layer)], valid, None), np.array([1, 1]))
        >>> copies.layers[0][0].flatten().tolist(), copies.valid.tolist()
        ([4.0, 5.0, 4.0, 5.0], [[True, True], [True, True]])
    """
    index = torch.as_tensor(np.asarray(rows, dtype=np.int64), device=state.valid.device)
    valid = state.valid[index]
    if drop is not None:
        kept = torch.as_tensor(valid.shape[1] - drop, device=valid.device)
        valid = valid & (torch.arange(valid.shape[1], device=valid.device) < kept[:, None])
    width = int(valid.sum(1).max())
    # Stable sort: holes go left, tokens keep their order on the right.
    order = torch.argsort(valid.to(torch.uint8), dim=1, stable=True)[:, valid.shape[1] - width :]
    # Keys and values are copied as one list of vectors: a gather with an index a number is far slower.
    _, heads, capacity, _ = state.layers[0][0].shape
    head = torch.arange(heads, device=index.device)
    cells = ((index[:, None] * heads + head)[:, :, None] * capacity + pad(order, (0, room))[:, None, :]).flatten()

    def copied(tensor: Tensor) -> Tensor:
        vectors = tensor.reshape(-1, tensor.shape[3]).index_select(0, cells)
        return vectors.view(len(index), heads, width + room, tensor.shape[3])

    layers = [(copied(keys), copied(values)) for keys, values in state.layers]
    last = None if state.last_logits is None else state.last_logits[index]
    return CachedRows(layers, valid.gather(1, order), last)


def keep_rows(state: CachedRows, rows: Int[np.ndarray, " n"]) -> CachedRows:
    """Let go of all other rows and of leading columns without a token; `state` is used up, a layer at a time.

    Example:
        >>> layer = torch.arange(6.0).reshape(2, 1, 3, 1)
        >>> valid = torch.tensor([[True, True, True], [False, True, True]])
        >>> kept = keep_rows(CachedRows([(layer, layer)], valid, None), np.array([1]))
        >>> kept.layers[0][0].flatten().tolist(), kept.valid.tolist()
        ([4.0, 5.0], [[True, True]])
    """
    index = torch.as_tensor(np.asarray(rows, dtype=np.int64), device=state.valid.device)
    valid = state.valid[index]
    first = int(valid.any(0).to(torch.uint8).argmax())
    for number, (keys, values) in enumerate(state.layers):
        state.layers[number] = (keys[:, :, first:][index], values[:, :, first:][index])
    last = None if state.last_logits is None else state.last_logits[index]
    return CachedRows(state.layers, valid[:, first:], last)
