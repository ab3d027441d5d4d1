"""Trie: every shared prefix once, ancestors by one number, and the best of all cuts."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from igrpo_train.learn.trie import cheapest_packs, lexicographic_order, plant, shared_prefixes

Sequences = list[tuple[int, ...]]
# Few different ids, so that prefixes are shared; large ones, so that the order of bytes would show.
ids = st.sampled_from([0, 1, 255, 256, 70_000])
sequences = st.lists(st.lists(ids, min_size=1, max_size=6).map(tuple), min_size=1, max_size=8)


def in_order(given_sequences: Sequences) -> Sequences:
    return [given_sequences[k] for k in lexicographic_order(given_sequences)]


@given(sequences)
def test_the_order_is_that_of_the_ids(given_sequences: Sequences) -> None:
    assert in_order(given_sequences) == sorted(given_sequences)


@given(sequences)
def test_a_trie_holds_each_distinct_prefix_once(given_sequences: Sequences) -> None:
    ordered = in_order(given_sequences)
    trie = plant(ordered)
    prefixes = {sequence[: n + 1] for sequence in ordered for n in range(len(sequence))}
    assert len(trie.ids) == len(prefixes)
    for sequence, path in zip(ordered, trie.paths, strict=True):
        assert trie.ids[path].tolist() == list(sequence)
        assert trie.position[path].tolist() == list(range(len(sequence)))
        assert trie.parent[path].tolist() == [-1, *path[:-1].tolist()]


@given(sequences)
def test_a_token_sees_its_ancestors_and_itself_and_nothing_else(given_sequences: Sequences) -> None:
    trie = plant(in_order(given_sequences))
    index = np.arange(len(trie.ids))
    sees = (index <= index[:, None]) & (index[:, None] < trie.end)
    for token in index.tolist():
        ancestors, at = {token}, token
        while trie.parent[at] >= 0:
            at = int(trie.parent[at])
            ancestors.add(at)
        assert set(np.flatnonzero(sees[token]).tolist()) == ancestors


def tokens_of(pack: Sequences) -> int:
    return sum(map(len, pack)) - int(shared_prefixes(pack).sum())


def pairs_of(pack: Sequences) -> int:
    """Counted in the trie: every token with its ancestors and itself."""
    return int((plant(pack).position + 1).sum())


def packs_of(ordered: Sequences, budget: int, pairs_per_token: int) -> list[tuple[int, int]]:
    lengths = np.array([len(sequence) for sequence in ordered])
    return cheapest_packs(lengths, shared_prefixes(ordered), budget, pairs_per_token)


@given(sequences, st.integers(1, 20), st.sampled_from([0, 1, 5, 1000]))
def test_no_other_cut_costs_less(given_sequences: Sequences, budget: int, pairs_per_token: int) -> None:
    ordered = in_order(given_sequences)
    num = len(ordered)

    def cost(cuts: tuple[int, ...]) -> tuple[int, int] | None:
        packs = [ordered[first:stop] for first, stop in itertools.pairwise((0, *cuts, num))]
        if any(len(pack) > 1 and tokens_of(pack) > budget for pack in packs):
            return None
        return sum(pairs_per_token * tokens_of(pack) + pairs_of(pack) for pack in packs), len(packs)

    every = (cuts for count in range(num) for cuts in itertools.combinations(range(1, num), count))
    best = min(found for cuts in every if (found := cost(cuts)) is not None)
    packs = packs_of(ordered, budget, pairs_per_token)
    assert [first for first, _ in packs] == [0, *(stop for _, stop in packs[:-1])]
    assert cost(tuple(first for first, _ in packs[1:])) == best


def test_attention_decides_between_cuts_of_equally_many_tokens() -> None:
    ordered = [(2, 1, 2, 2), (2, 2, 1, 1, 2), (2, 2, 1, 2, 1, 2), (2, 2, 2)]
    cheapest, other = [(0, 1), (1, 3), (3, 4)], [(0, 2), (2, 4)]
    # Both repeat prefixes of 3 tokens in all, one of 3 or one of 1 and one of 2.
    assert [sum(tokens_of(ordered[slice(*pack)]) for pack in packs) for packs in (cheapest, other)] == [15, 15]
    assert [sum(pairs_of(ordered[slice(*pack)]) for pack in packs) for packs in (cheapest, other)] == [46, 48]
    assert packs_of(ordered, budget=8, pairs_per_token=1000) == cheapest


def test_attention_may_outweigh_a_token() -> None:
    # One cut through 5 tokens (15 pairs), or two through 3 each (12 pairs).
    ordered = [(1, 1, 1, 1, 1, 1), (1, 1, 1, 2, 1, 1), (1, 1, 1, 2, 1, 2), (1, 1, 1, 3, 1, 1)]
    assert packs_of(ordered, budget=9, pairs_per_token=4) == [(0, 2), (2, 4)]
    assert packs_of(ordered, budget=9, pairs_per_token=2) == [(0, 1), (1, 3), (3, 4)]


def test_nothing_is_cut_where_everything_fits() -> None:
    ordered = in_order([(1, 2, 3), (1, 2, 4), (5,), (1, 2, 3)])
    assert packs_of(ordered, budget=5, pairs_per_token=100) == [(0, 4)]
    assert plant(ordered).ids.tolist() == [1, 2, 3, 4, 5]
