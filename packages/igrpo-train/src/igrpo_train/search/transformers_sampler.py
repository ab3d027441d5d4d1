"""transformers sampler: the reference engine, with one key-value cache a frontier.

Rows are ragged: the key-value tensors hold columns, `valid` says which of them belong to a row, and explicit position
ids keep rotary embeddings right. A block of new tokens is padded on its left, so that every row's last token is in the
last column and only one position needs logits.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt64
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from igrpo_theory.randomness import uniforms
from igrpo_train.search.ending import Ending, eos_ids
from igrpo_train.search.sampling import Completion, Tokens


class CachedRows(NamedTuple):
    """Computed contexts, R rows of at most K columns."""

    layers: list[tuple[Tensor, Tensor]]
    """Keys and values a layer, each [R, heads, K, head size]."""
    valid: Bool[Tensor, "R K"]
    last_logits: Float[Tensor, "R V"] | None
    """Logits after each row's last token; None for rows without any token."""


class TransformersSampler:
    """Samples and scores with a causal language model of transformers.

    Args:
        model: any decoder with a standard key-value cache; put in evaluation mode while in use.
        tokenizer: decodes the last tokens of a row to find closing tags.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model = model
        pad = tokenizer.pad_token_id
        self._pad_id = 0 if pad is None else int(pad)
        self._ending = Ending(tokenizer, range(len(tokenizer)), eos_ids(model, tokenizer))

    @torch.no_grad()
    def prefill(self, base: CachedRows | None, rows: Int[np.ndarray, " n"], segments: Sequence[Tokens]) -> CachedRows:
        """See `Sampler.prefill`; selected rows are copied, so `base` stays usable."""
        return self._append(None if base is None else _select(base, rows), segments, logits_to_keep=1)[0]

    @torch.no_grad()
    def score(
        self, prefix: CachedRows, rows: Int[np.ndarray, " n"], continuations: Sequence[Tokens]
    ) -> list[Float[np.ndarray, " L"]]:
        """See `Sampler.score`; nothing of the continuations stays in the cache."""
        if not len(rows):
            return []
        # Nothing is written to a cache in place, so the whole frontier needs no copy.
        whole = len(rows) == len(prefix.valid) and np.array_equal(rows, np.arange(len(rows)))
        selected = prefix if whole else _select(prefix, rows)
        assert selected.last_logits is not None
        width = max(map(len, continuations))
        _, logits = self._append(selected, continuations, logits_to_keep=width)
        assert logits is not None
        forced = torch.from_numpy(_left_padded(continuations, width, self._pad_id)[0]).to(logits.device)
        logprobs = [_token_logprobs(selected.last_logits, forced[:, 0])]
        logprobs += [_token_logprobs(logits[:, column - 1], forced[:, column]) for column in range(1, width)]
        values = torch.stack(logprobs, dim=1)
        # A shorter continuation starts further right, but its first token is still predicted by the prefix.
        firsts = torch.tensor([width - len(continuation) for continuation in continuations], device=logits.device)
        first_ids = forced.gather(1, firsts[:, None])[:, 0]
        values.scatter_(1, firsts[:, None], _token_logprobs(selected.last_logits, first_ids)[:, None])
        table = values.double().cpu().numpy()
        return [table[row, width - len(continuation) :] for row, continuation in enumerate(continuations)]

    @torch.no_grad()
    def generate(
        self,
        prefix: CachedRows,
        rows: Int[np.ndarray, " n"],
        tails: Sequence[Tokens],
        keys: UInt64[np.ndarray, " n"],
        *,
        temperature: float,
        max_tokens: int,
    ) -> list[Completion]:
        """See `Sampler.generate`; a row that has ended leaves the batch as soon as half of it has."""
        state = self._append(_select(prefix, rows), tails, logits_to_keep=1)[0]
        ids: list[list[int]] = [[] for _ in rows]
        logprobs: list[list[float]] = [[] for _ in rows]
        finish = ["length"] * len(rows)
        active = np.arange(len(rows))
        live = np.ones(len(rows), dtype=bool)
        for position in range(max_tokens):
            assert state.last_logits is not None
            drawn, logprob = _draw(state.last_logits, uniforms(keys[active], position), temperature)
            for column in np.flatnonzero(live[active]):
                row = active[column]
                ids[row].append(int(drawn[column]))
                logprobs[row].append(float(logprob[column]))
                ended = self._ending.of(ids[row])
                if ended:
                    finish[row] = ended
                    live[row] = False
            if not live.any() or position == max_tokens - 1:
                break
            keep = live[active]
            if keep.sum() * 2 <= len(active):
                state, drawn, active = _select(state, np.flatnonzero(keep)), drawn[keep], active[keep]
            state = self._append(state, [(int(token),) for token in drawn], logits_to_keep=1)[0]
        return [Completion(tuple(i), tuple(p), f) for i, p, f in zip(ids, logprobs, finish, strict=True)]

    def _append(
        self, state: CachedRows | None, segments: Sequence[Tokens], *, logits_to_keep: int
    ) -> tuple[CachedRows, Tensor | None]:
        """Run the model on one left-padded block of new tokens a row."""
        width = max((len(segment) for segment in segments), default=0)
        if width == 0:
            assert state is not None, "a context needs at least one token"
            return state, None
        device = self.model.device
        block, fresh = _left_padded(segments, width, self._pad_id)
        new = torch.from_numpy(fresh).to(device)
        valid = new if state is None else torch.cat([state.valid, new], dim=1)
        positions = (valid.cumsum(1) - 1).clamp_min(0)[:, -width:]
        cache = DynamicCache(None if state is None else state.layers)
        output = self.model(
            input_ids=torch.from_numpy(block).to(device),
            attention_mask=valid.long(),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
        )
        last = output.logits[:, -1]
        if state is not None and state.last_logits is not None:
            last = torch.where(new.any(1)[:, None], last, state.last_logits)
        layers = [(layer.keys, layer.values) for layer in cache.layers]  # type: ignore[union-attr]  # all are dynamic
        return CachedRows(layers, valid, last), output.logits  # type: ignore[arg-type]


def _left_padded(
    segments: Sequence[Tokens], width: int, pad_id: int
) -> tuple[Int[np.ndarray, "n width"], Bool[np.ndarray, "n width"]]:
    """Segments as one block, and which of its cells hold a token."""
    block = np.full((len(segments), width), pad_id)
    filled = np.zeros((len(segments), width), dtype=bool)
    for row, segment in enumerate(segments):
        block[row, width - len(segment) :] = segment
        filled[row, width - len(segment) :] = True
    return block, filled


def _token_logprobs(logits: Float[Tensor, "R V"], tokens: Int[Tensor, " R"]) -> Float[Tensor, " R"]:
    """Log-probability of one id a row."""
    chosen = logits.gather(1, tokens[:, None])[:, 0]
    return chosen.float() - torch.logsumexp(logits.float(), dim=-1)


def _draw(
    logits: Float[Tensor, "R V"], numbers: Float[np.ndarray, " R"], temperature: float
) -> tuple[Int[np.ndarray, " R"], Float[np.ndarray, " R"]]:
    """One id a row by inversion of the cumulative distribution, with its log-probability; temperature 0 is greedy."""
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    if temperature == 0:
        drawn = logprobs.argmax(-1)
    else:
        cumulative = logprobs.double().exp().cumsum(-1)
        threshold = torch.from_numpy(numbers).to(cumulative.device)[:, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp_max(logits.shape[-1] - 1)
    chosen = logprobs.gather(1, drawn[:, None])[:, 0]
    return drawn.cpu().numpy(), chosen.cpu().numpy()


def _select(state: CachedRows, rows: Int[np.ndarray, " n"]) -> CachedRows:
    """Copy rows (repeats allowed) and squeeze out the columns that none of their tokens fill."""
    index = torch.as_tensor(np.asarray(rows, dtype=np.int64), device=state.valid.device)
    valid = state.valid[index]
    width = int(valid.sum(1).max()) if len(rows) else 0
    last = None if state.last_logits is None else state.last_logits[index]
    if bool((valid.sum(1) == valid.shape[1]).all()):
        return CachedRows([(keys[index], values[index]) for keys, values in state.layers], valid, last)
    # Stable sort: holes go left, tokens keep their order on the right.
    order = torch.argsort(valid.to(torch.uint8), dim=1, stable=True)[:, valid.shape[1] - width :]
    layers = []
    for keys, values in state.layers:
        columns = order[:, None, :, None].expand(-1, keys.shape[1], -1, keys.shape[3])
        layers.append((keys[index].gather(2, columns), values[index].gather(2, columns)))
    return CachedRows(layers, valid.gather(1, order), last)
