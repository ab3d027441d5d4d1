"""transformers sampler: the reference engine, with one key-value cache a frontier.

A handle remembers the token ids of its rows, and how many of them are the tail, which an extension leaves out. Under a
bound (`cache_tokens`), a handle keeps the leading rows that fill at most half of it; the other rows are evicted, and
computed again from their ids whenever they are used. Generation and scoring go through their rows in chunks that fit
beside what the handle keeps.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt64
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from igrpo_theory.randomness import uniforms
from igrpo_train.search import cache
from igrpo_train.search.cache import CachedRows
from igrpo_train.search.ending import Ending, eos_ids
from igrpo_train.search.sampling import Completion, Tokens, shared_stems


@dataclass(slots=True, eq=False)
class Contexts:
    """A handle: R contexts, of which the leading ones are computed; using it changes what it owes, nothing else."""

    ids: list[tuple[int, ...]]
    """Token ids of every row, tail included."""
    tail_length: Int[np.ndarray, " R"]
    """How many of its ids are a row's tail."""
    held: CachedRows | None
    """The leading rows; None when none is kept."""
    owed: Int[np.ndarray, " R"]
    """Tokens of an evicted row that were asked for and not run yet: running them is no repetition."""

    @property
    def num_held(self) -> int:
        """Rows that are kept."""
        return 0 if self.held is None else len(self.held.valid)

    def stem(self, row: int) -> tuple[int, ...]:
        """A row's ids without its tail."""
        return self.ids[row][: len(self.ids[row]) - int(self.tail_length[row])]

    def take_owed(self, rows: Int[np.ndarray, " n"]) -> int:
        """Tokens that these rows owe, which are about to be run: from here on they owe none."""
        owed = int(self.owed[rows].sum())
        self.owed[rows] = 0
        return owed


class TransformersSampler:
    """Samples and scores with a causal language model of transformers.

    Args:
        model: any decoder with a standard key-value cache; put in evaluation mode while in use.
        tokenizer: decodes the last tokens of a row to find closing tags.
        cache_tokens: most key-value columns, over all rows, that are kept or worked on at once; 0 is no bound. It
            changes no result but for rounding. A single row that needs more is served all the same.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, cache_tokens: int = 0) -> None:
        self.model = model
        self.cache_tokens = cache_tokens
        self._recomputed = 0
        pad = tokenizer.pad_token_id
        self._pad_id = 0 if pad is None else int(pad)
        self._ending = Ending(tokenizer, range(len(tokenizer)), eos_ids(model, tokenizer))

    def take_recomputed(self) -> int:
        """See `Sampler.take_recomputed`."""
        taken, self._recomputed = self._recomputed, 0
        return taken

    @torch.no_grad()
    def prefill(
        self, base: Contexts | None, rows: Int[np.ndarray, " n"], segments: Sequence[Tokens], tails: Sequence[Tokens]
    ) -> Contexts:
        """See `Sampler.prefill`; rows are copied, so `base` stays usable. A row whose base is evicted is too."""
        new = [(*segment, *tail) for segment, tail in zip(segments, tails, strict=True)]
        before = [()] * len(rows) if base is None else [base.stem(row) for row in rows.tolist()]
        ids = [(*stem, *tokens) for stem, tokens in zip(before, new, strict=True)]
        kept = self._num_kept(before, new)
        if base is not None:
            kept = next((k for k, row in enumerate(rows[:kept].tolist()) if row >= base.num_held), kept)
        held = None
        if kept > 0:
            state = None
            if base is not None:
                assert base.held is not None
                room, drop = max(map(len, new[:kept])), base.tail_length[rows[:kept]]
                assert all(tokens or not length for tokens, length in zip(new, drop, strict=False)), "no last token"
                state = cache.select(base.held, rows[:kept], room, drop)
            held = self._append(state, new[:kept])
        owed = np.array([len(tokens) * (k >= kept) for k, tokens in enumerate(new)], dtype=np.int64)
        return Contexts(ids, np.array([len(tail) for tail in tails], dtype=np.int64), held, owed)

    @torch.no_grad()
    def score(
        self, prefix: Contexts, rows: Int[np.ndarray, " n"], continuations: Sequence[Tokens]
    ) -> list[Float[np.ndarray, " L"]]:
        """See `Sampler.score`; nothing of the continuations stays in the cache."""
        values: list[Float[np.ndarray, " L"]] = []
        for part in self._chunks(prefix, rows, [len(continuation) for continuation in continuations], staged=True):
            values += self._score(prefix, rows[part], continuations[part])
        return values

    @torch.no_grad()
    def generate(
        self,
        prefix: Contexts,
        rows: Int[np.ndarray, " n"],
        keys: UInt64[np.ndarray, " n"],
        *,
        temperature: float,
        max_tokens: int,
    ) -> list[Completion]:
        """See `Sampler.generate`; a row that has ended leaves the batch as soon as half of it has."""
        drawn: list[Completion] = []
        room = min(max_tokens, cache.SPARE_COLUMNS)
        # Room grows by whole pieces.
        most = room * math.ceil(max_tokens / room)
        for part in self._chunks(prefix, rows, [most] * len(rows), staged=False):
            # Only the callee holds a chunk: it is gone before the next one is made.
            drawn += self._generate(
                cache.select(*self._source(prefix, rows[part]), room), keys[part], temperature, max_tokens
            )
        return drawn

    def _generate(
        self, state: CachedRows, keys: UInt64[np.ndarray, " n"], temperature: float, max_tokens: int
    ) -> list[Completion]:
        ids: list[list[int]] = [[] for _ in keys]
        logprobs: list[list[float]] = [[] for _ in keys]
        finish = ["length"] * len(keys)
        active = np.arange(len(keys))
        live = np.ones(len(keys), dtype=bool)
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
                state, drawn, active = cache.keep_rows(state, np.flatnonzero(keep)), drawn[keep], active[keep]
            state = self._append(state, [(int(token),) for token in drawn])
        return [Completion(tuple(i), tuple(p), f) for i, p, f in zip(ids, logprobs, finish, strict=True)]

    def _score(
        self, prefix: Contexts, rows: Int[np.ndarray, " n"], continuations: Sequence[Tokens]
    ) -> list[Float[np.ndarray, " L"]]:
        """Scores of one chunk; what all continuations of a row begin with is run once a row."""
        unique, owner = np.unique(rows, return_inverse=True)
        state, places = self._source(prefix, unique)
        before = [np.zeros(0)] * len(unique)
        if len(unique) < len(rows):
            stems = shared_stems(owner, continuations)
            continuations = [c[len(stems[row]) :] for c, row in zip(continuations, owner.tolist(), strict=True)]
            state, before = self._force(state, places, stems)
            places = np.arange(len(unique))
        values = self._force(state, places[owner], continuations)[1]
        return [np.concatenate([before[row], value]) for row, value in zip(owner.tolist(), values, strict=True)]

    def _force(
        self, state: CachedRows, rows: Int[np.ndarray, " n"], forced: Sequence[Tokens]
    ) -> tuple[CachedRows, list[Float[np.ndarray, " L"]]]:
        """Copies of rows, extended by forced tokens, and these tokens' log-probabilities."""
        width = max(map(len, forced))
        selected = cache.select(state, rows, room=width)
        if width == 0:
            return selected, [np.zeros(0)] * len(rows)
        extended, logits = cache.append(self.model, selected, forced, pad_id=self._pad_id, logits_to_keep=width)
        assert logits is not None
        assert selected.last_logits is not None
        tokens = torch.from_numpy(cache.left_padded(forced, width, self._pad_id)[0]).to(logits.device)
        logprobs = [_token_logprobs(selected.last_logits, tokens[:, 0])]
        logprobs += [_token_logprobs(logits[:, column - 1], tokens[:, column]) for column in range(1, width)]
        values = torch.stack(logprobs, dim=1)
        # A row's first forced token follows its context, wherever the padding puts it.
        firsts = torch.tensor([max(0, min(width - 1, width - len(f))) for f in forced], device=logits.device)
        first_ids = tokens.gather(1, firsts[:, None])[:, 0]
        values.scatter_(1, firsts[:, None], _token_logprobs(selected.last_logits, first_ids)[:, None])
        table = values.double().cpu().numpy()
        return extended, [table[row, width - len(f) :] for row, f in enumerate(forced)]

    def _num_kept(self, before: Sequence[Tokens], new: Sequence[Tokens]) -> int:
        """Leading rows whose columns fill at most half of the bound."""
        if not self.cache_tokens:
            return len(new)
        widths = sum(np.maximum.accumulate([len(part) for part in parts]) for parts in (before, new))
        return int((widths * np.arange(1, len(new) + 1) <= self.cache_tokens // 2).sum())

    def _chunks(
        self, prefix: Contexts, rows: Int[np.ndarray, " n"], extra: Sequence[int], *, staged: bool
    ) -> Iterator[slice]:
        """Consecutive entries, all kept or all evicted, whose columns fit beside what the handle keeps.

        A row counts once for each entry, and once more where its context is computed, or copied for a stem (`staged`).
        """
        num_held = prefix.num_held
        space = self.cache_tokens - (prefix.held.valid.numel() if prefix.held is not None else 0)
        start, longest, more, seen = 0, 0, 0, set[int]()
        for stop, row in enumerate(rows.tolist()):
            evicted, length = row >= num_held, len(prefix.ids[row])
            longest, more, seen = max(longest, length), max(more, extra[stop]), seen | {row}
            columns = (longest + more) * (stop + 1 - start + (len(seen) if evicted or staged else 0))
            full = self.cache_tokens and columns > space
            if stop > start and (full or evicted != (rows[start] >= num_held)):
                yield slice(start, stop)
                start, longest, more, seen = stop, length, extra[stop], {row}
        if len(rows):
            yield slice(start, len(rows))

    def _source(self, prefix: Contexts, rows: Int[np.ndarray, " n"]) -> tuple[CachedRows, Int[np.ndarray, " n"]]:
        """Computed rows that hold the given ones, all kept or all evicted, and their places there."""
        if prefix.held is not None and rows[0] < prefix.num_held:
            return prefix.held, rows
        unique, places = np.unique(rows, return_inverse=True)
        contexts = [prefix.ids[row] for row in unique.tolist()]
        self._recomputed += sum(map(len, contexts)) - prefix.take_owed(unique)
        return self._append(None, contexts), places

    def _append(self, state: CachedRows | None, segments: Sequence[Tokens]) -> CachedRows:
        return cache.append(self.model, state, segments, pad_id=self._pad_id)[0]


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
