"""randomness: (seed, step, slot, question, node, draw) -> uniforms.

In: counters. Out: 64-bit keys and uniforms in the open interval (0, 1), as a hash of those counters.
There is no generator state, so a number depends neither on batch size, order nor the number of processes.

Source: Steele, Lea, Flood (2014), "Fast splittable pseudorandom number generators" (the splitmix64 finaliser).
"""

from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b

import numpy as np
from jaxtyping import Float64, Int, Int64, UInt64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# The fractional bits of sqrt(2): any odd constant other than _GOLDEN keeps key and word apart.
_WORD_SALT = np.uint64(0x6A09E667F3BCC909)
_MASK = (1 << 64) - 1
_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)
_BLOCK = 1 << 15

Word = int | Int[np.ndarray, "..."] | UInt64[np.ndarray, "..."]


class Stream(IntEnum):
    """First word after a question's key: one number per use, so that uses never share a uniform."""

    EXPANSION = 1
    """How many children each node gets."""
    PROPOSAL = 2
    """What a child is: the sampling of one turn."""
    ORDER = 3
    """The order in which a stage visits questions or nodes."""
    DATA = 4
    """Which questions make up a batch."""


def text_key(text: str) -> int:
    """A 64-bit number for a text, the same on every machine and in every process.

    Source: ours (BLAKE2b, 8 bytes, little endian).

    Example:
        >>> text_key("nq-17") == text_key("nq-17"), text_key("nq-17") == text_key("nq-18")
        (True, False)
    """
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def question_keys(
    seed: int, step: int, slots: Int[np.ndarray, " Q"], question_ids: Sequence[str]
) -> UInt64[np.ndarray, " Q"]:
    """One key a question: the start of every stream of this question at this step.

    Args:
        seed: the run's seed.
        step: the training step, or 0 where there are none.
        slots: the question's place in the global batch; separates two copies of one question.
        question_ids: the stable ids of the questions.

    Source: ours.

    Example:
        >>> keys = question_keys(0, 3, np.array([0, 1]), ["a", "b"])
        >>> bool(keys[1] == question_keys(0, 3, np.array([1]), ["b"])[0])
        True
    """
    assert len(slots) == len(question_ids), "one slot a question id"
    texts = np.array([text_key(question_id) for question_id in question_ids], dtype=np.uint64)
    return fold(texts, seed, step, slots)


def fold(keys: UInt64[np.ndarray, "..."], *words: Word) -> UInt64[np.ndarray, "..."]:
    """Mix more counters into keys; words broadcast against the keys.

    For a fixed key, different words give different keys (each round is a bijection of the word).

    Source: ours, on the splitmix64 finaliser.

    Example:
        >>> keys = np.array([1, 2], dtype=np.uint64)
        >>> bool((fold(keys, Stream.PROPOSAL, np.arange(2)) == fold(fold(keys, Stream.PROPOSAL), np.arange(2))).all())
        True
    """
    for word in words:
        mixed = _mix(_as_uint64(word) + _WORD_SALT)
        start = _mix(keys + _GOLDEN)
        fits = np.broadcast_shapes(start.shape, mixed.shape) == mixed.shape
        keys = _mix(np.bitwise_xor(start, mixed, out=mixed if fits else None))
    return keys


def uniforms(keys: UInt64[np.ndarray, "..."], *words: Word) -> Float64[np.ndarray, "..."]:
    """Uniforms on the open interval (0, 1), one for each key after folding in the words.

    Source: ours; 52 bits at half-integer points, so that neither 0 nor 1 can occur.

    Example:
        >>> draws = uniforms(np.array([5], dtype=np.uint64), np.arange(1000))
        >>> bool(0 < draws.min()), bool(draws.max() < 1), bool(abs(draws.mean() - 0.5) < 0.06)
        (True, True, True)
    """
    draws = random_bits(keys, *words).astype(np.float64)
    draws += 0.5
    draws *= 2.0**-52
    return draws


def random_bits(keys: UInt64[np.ndarray, "..."], *words: Word) -> Int64[np.ndarray, "..."]:
    """The 52 random bits b of each of `uniforms`, which are (b + 1/2) / 2^52: to compare without floating point.

    Source: ours.

    Example:
        >>> key = np.array([5], dtype=np.uint64)
        >>> bool(((random_bits(key, 3) + 0.5) / 2**52 == uniforms(key, 3)).all())
        True
    """
    bits = _mix(fold(keys, *words) + _GOLDEN)
    bits >>= np.uint64(12)
    return bits.view(np.int64)


def spaced_keys(keys: UInt64[np.ndarray, "..."], numbers: Int[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """Keys at equal distances: as good as `fold(keys, numbers)` for drawing from, and far cheaper.

    Uniforms of these keys are the output of the SplitMix64 generator that starts at the key; unlike folded keys they
    are not random themselves.

    Source: Steele, Lea, Flood (2014), the splitmix64 sequence.

    Example:
        >>> draws = uniforms(spaced_keys(np.array([5], dtype=np.uint64), np.arange(1000)))
        >>> bool(abs(draws.mean() - 0.5) < 0.05)
        True
    """
    spaced = _as_uint64(numbers) * _GOLDEN
    spaced += keys
    return spaced


def generator(key: np.uint64) -> np.random.Generator:
    """A generator for one question's draw in a large stage.

    Source: SFC64 of PractRand (Doty-Humphrey), as numpy has it.

    Example:
        >>> bool(generator(np.uint64(7)).random() == generator(np.uint64(7)).random())
        True
    """
    return np.random.Generator(np.random.SFC64(int(key)))


def _as_uint64(word: Word) -> UInt64[np.ndarray, "..."]:
    # One-element arrays instead of scalars: numpy warns when a scalar wraps around, and wrapping is the point.
    if isinstance(word, np.ndarray):
        return word.view(np.uint64) if word.dtype == np.int64 else word.astype(np.uint64, copy=False)
    return np.array([int(word) & _MASK], dtype=np.uint64)


def _mix(bits: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """The splitmix64 finaliser, in place: callers pass a fresh array. In blocks, so that all steps find it in cache."""
    bits = np.asarray(bits)
    flat = bits.reshape(-1)
    shifted = np.empty(min(len(flat), _BLOCK), dtype=np.uint64)
    for start in range(0, len(flat), _BLOCK):
        block = flat[start : start + _BLOCK]
        scratch = shifted[: len(block)]
        for shift, factor in _ROUNDS:
            np.right_shift(block, shift, out=scratch)
            np.bitwise_xor(block, scratch, out=block)
            np.multiply(block, factor, out=block)
        np.right_shift(block, _LAST_SHIFT, out=scratch)
        np.bitwise_xor(block, scratch, out=block)
    return bits
