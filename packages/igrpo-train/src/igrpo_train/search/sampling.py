"""sampler: token ids in, token ids out; the one door between trees and an engine.

An engine keeps the computed contexts of the current frontier behind an opaque handle. The agent extends a handle row
by row, draws completions from it and scores forced continuations on it, so that one prefill of a node serves its
answer score and all of its expansions. A context may end in a tail (the generation prompt of a chat template) that
completions and scores come after, and that extensions leave out.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, UInt64

Tokens: TypeAlias = Sequence[int]
Prefix: TypeAlias = Any
"""An engine's handle on computed contexts, one row each."""


class Completion(NamedTuple):
    """One sampled response."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Nats, one a token, under the tempered distribution (the plain one for greedy decoding)."""
    finish: str
    """`stop`, `eos` or `length`."""


@runtime_checkable
class Sampler(Protocol):
    """What the search agent needs from an engine."""

    def prefill(
        self, base: Prefix | None, rows: Int[np.ndarray, " n"], segments: Sequence[Tokens], tails: Sequence[Tokens]
    ) -> Prefix:
        """Extend rows of `base`, without their tails, by a segment and a new tail each; with no base, start n rows."""
        ...

    def generate(
        self,
        prefix: Prefix,
        rows: Int[np.ndarray, " n"],
        keys: UInt64[np.ndarray, " n"],
        *,
        temperature: float,
        max_tokens: int,
    ) -> list[Completion]:
        """Draw one completion a row of `rows` (rows may repeat); the randomness of draw k comes from `keys[k]`."""
        ...

    def score(
        self, prefix: Prefix, rows: Int[np.ndarray, " n"], continuations: Sequence[Tokens]
    ) -> list[Float[np.ndarray, " L"]]:
        """Log-probability (nats, temperature 1) of every token of a forced continuation of each row.

        What all continuations of a row begin with is computed once; see `shared_stems`.
        """
        ...

    def take_recomputed(self) -> int:
        """Context tokens that were run once more since the last call, because they had been evicted."""
        ...


@runtime_checkable
class ColocatedEngine(Protocol):
    """An engine with weights of its own beside the policy that is trained."""

    def sleep(self) -> None:
        """Free the device's memory for an update, as far as the device lets it."""
        ...

    def wake(self, model: Any) -> None:
        """Take the memory back, load the weights of `model` and forget every prefix of the old ones."""
        ...


@contextmanager
def updating(sampler: Sampler, model: Any) -> Iterator[None]:
    """Around an update of `model`: an engine with weights of its own makes room before and takes them over after."""
    engine = sampler if isinstance(sampler, ColocatedEngine) else None
    if engine is not None:
        engine.sleep()
    yield
    if engine is not None:
        engine.wake(model)


def shared_stems(owner: Int[np.ndarray, " n"], continuations: Sequence[Tokens]) -> list[Tokens]:
    """What all continuations of an owner begin with, an owner; all of it where there is only one.

    Example:
        >>> shared_stems(np.array([0, 0, 1]), [(5, 6, 7), (5, 6, 8, 9), (3,)])
        [(5, 6), (3,)]
    """
    groups: list[list[tuple[int, ...]]] = [[] for _ in range(int(owner.max(initial=-1)) + 1)]
    for row, continuation in zip(owner.tolist(), continuations, strict=True):
        groups[row].append(tuple(continuation))
    # Between the first and the last in sorted order lies every other: what these two share, all share.
    return [tuple(a for a, b in takewhile(_same, zip(min(group), max(group), strict=False))) for group in groups]


def _same(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]
