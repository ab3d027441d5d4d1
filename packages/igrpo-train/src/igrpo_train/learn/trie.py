"""trie: sequences of token ids -> one packed sequence in which every shared prefix stands once.

In: sequences in lexicographic order, where those that share a prefix are neighbours.
Out: their prefix trie in preorder, and the cut of the sequences into packs that costs least.
Source: ours. What a causal model gives at a token is a function of the ids up to it, so equal prefixes of any rows
(prompts, passages, responses, equal draws) are computed once and nothing about turns needs to be known. In preorder a
token's descendants follow it in one run: token k sees token j exactly when j <= k < end[j], and a forest needs no
other rule.

Axes: N sequences, T packed tokens, n tokens of one sequence.

Example:
    >>> trie = plant([(5, 6, 7), (5, 6, 8, 9)])
    >>> trie.ids.tolist(), trie.position.tolist(), trie.end.tolist()
    ([5, 6, 7, 8, 9], [0, 1, 2, 2, 3], [5, 5, 3, 5, 5])
    >>> [path.tolist() for path in trie.paths]
    [[0, 1, 2], [0, 1, 3, 4]]
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int

Tokens: TypeAlias = Sequence[int]


class Trie(NamedTuple):
    """Packed tokens in depth-first order; several tries stand one after another."""

    ids: Int[np.ndarray, " T"]
    position: Int[np.ndarray, " T"]
    """Depth in the trie: the token's place in every sequence that it belongs to."""
    parent: Int[np.ndarray, " T"]
    """Packed index of the token before it; -1 for a first one."""
    end: Int[np.ndarray, " T"]
    """One past the last descendant."""
    paths: list[Int[np.ndarray, " n"]]
    """Packed index of every token of each sequence."""


def lexicographic_order(sequences: Sequence[Tokens]) -> list[int]:
    """Places of the sequences in lexicographic order; equal ones keep their order.

    Example:
        >>> lexicographic_order([(2,), (1, 300), (1, 3), (1,)])
        [3, 2, 1, 0]
    """
    # Ids are not negative, so big-endian bytes compare as the ids do, and in C.
    keys = [np.array(sequence, dtype=">u4").tobytes() for sequence in sequences]
    return sorted(range(len(keys)), key=keys.__getitem__)


def shared_prefixes(sequences: Sequence[Tokens]) -> Int[np.ndarray, " N"]:
    """Length of the common prefix of each sequence and the one before it; 0 for the first.

    Example:
        >>> shared_prefixes([(1, 2), (1, 2, 3), (1, 4)]).tolist()
        [0, 2, 1]
    """
    arrays = [np.array(sequence, dtype=np.int64) for sequence in sequences]
    shared = np.zeros(len(arrays), dtype=np.int64)
    for k in range(1, len(arrays)):
        common = min(len(arrays[k - 1]), len(arrays[k]))
        differs = arrays[k - 1][:common] != arrays[k][:common]
        shared[k] = differs.argmax() if differs.any() else common
    return shared


def plant(sequences: Sequence[Tokens]) -> Trie:
    """Pack sequences into their trie.

    Args:
        sequences: in lexicographic order, each with at least one id.

    Example:
        >>> plant([(5, 6), (5, 7)]).parent.tolist()
        [-1, 0, 0]
    """
    shared = shared_prefixes(sequences).tolist()
    num_tokens = sum(map(len, sequences)) - sum(shared)
    ids, position, parent, end = (np.empty(num_tokens, dtype=np.int64) for _ in range(4))
    paths: list[Int[np.ndarray, " n"]] = []
    path = np.zeros(0, dtype=np.int64)
    total = 0
    for sequence, common in zip(sequences, shared, strict=True):
        stop = total + len(sequence) - common
        # What the last sequence does not share with this one has no further descendant.
        end[path[common:]] = total
        path = np.concatenate([path[:common], np.arange(total, stop)])
        ids[total:stop] = sequence[common:]
        position[total:stop] = np.arange(common, len(sequence))
        parent[total:stop] = np.concatenate([[-1], path])[common:-1]
        paths.append(path)
        total = stop
    end[path] = total
    return Trie(ids, position, parent, end, paths)


def cheapest_packs(
    lengths: Int[np.ndarray, " N"], shared: Int[np.ndarray, " N"], budget: int, pairs_per_token: int
) -> list[tuple[int, int]]:
    """Cut neighbours into packs within the budget, so that all packs together cost least.

    A cut repeats the prefix that it goes through. A token costs what it takes by itself, and attention to the tokens
    up to it: one pair for itself and one for each ancestor. Exact, by dynamic programming over the place of the last
    cut; in integers, so that equal costs are equal.

    Args:
        lengths: tokens of each sequence, in lexicographic order.
        shared: tokens that each has in common with the one before.
        budget: tokens of a pack; a single longer sequence is a pack of its own.
        pairs_per_token: pairs that cost as much as the rest of what is computed for a token.

    Returns:
        (first, stop) of each pack, in order; the fewest packs among the cheapest cuts.

    Example:
        >>> cheapest_packs(np.array([4, 4, 4, 4]), np.array([0, 3, 1, 3]), budget=6, pairs_per_token=100)
        [(0, 2), (2, 4)]
    """
    assert budget >= 1, f"budget is {budget}"
    num = len(lengths)
    fresh = np.cumsum(lengths - shared)
    # Pack i..j holds opening[i] + fresh[j] tokens, which falls as i rises; its cost is a sum of the same form.
    opening = lengths - fresh
    whole = _chain_cost(lengths, pairs_per_token)
    fresh_cost = np.cumsum(whole - _chain_cost(shared, pairs_per_token))
    opening_cost = whole - fresh_cost
    # One number orders by cost, then by packs.
    unit = num + 1
    best = np.zeros(num + 1, dtype=np.int64)
    cut = np.zeros(num + 1, dtype=np.int64)
    first = 0
    for j in range(num):
        while first < j and opening[first] + fresh[j] > budget:
            first += 1
        costs = best[first : j + 1] + unit * (opening_cost[first : j + 1] + fresh_cost[j]) + 1
        choice = int(costs.argmin())
        best[j + 1], cut[j + 1] = costs[choice], first + choice
    packs = []
    stop = num
    while stop:
        packs.append((int(cut[stop]), stop))
        stop = int(cut[stop])
    return packs[::-1]


def _chain_cost(lengths: Int[np.ndarray, " N"], pairs_per_token: int) -> Int[np.ndarray, " N"]:
    """Of the first tokens of a sequence, in pairs: the token at depth d attends to d + 1."""
    return lengths * pairs_per_token + lengths * (lengths + 1) // 2
