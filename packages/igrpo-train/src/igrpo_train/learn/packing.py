"""packing: paths with advantages -> the rows of each forward pass.

In: a grown tree of search turns, its paths, and one advantage a (path, turn).
Out: `TurnRow`s, cut into minibatches at questions, then into micro-batches.
Source: ours. A row is one turn of one kept path, so a turn that c paths share gives c rows, in both packings: the
loss sees rows. `path` computes each of them, `tree` computes what they share once.

Axes: Q questions, P paths, D turns a path.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int

from igrpo_theory.paths import Paths
from igrpo_theory.randomness import Stream, uniforms
from igrpo_train.config import Packing
from igrpo_train.learn.trie import cheapest_packs, lexicographic_order, shared_prefixes
from igrpo_train.search.session import SearchTree, Turn, context_segments

_PAIRS_PER_HIDDEN: Final = 6
"""A layer of width h multiplies a token by about 12 h^2 weights, and spends 2 h multiplications on an attended pair."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRow:
    """One turn of one path: what the policy saw, what it said, and how good that was."""

    question: int
    """Slot of the question in the whole batch, over all processes."""
    path: int
    turn: int
    """Turn of the path, from 0."""
    context_ids: tuple[int, ...]
    """Never trained; rows of one context share one tuple."""
    response_ids: tuple[int, ...]
    """The ids that were sampled: the only ones with a loss."""
    old_logprobs: tuple[float, ...]
    """Log-probability (nats) of each sampled id when it was sampled."""
    advantage: float
    engine_logprobs: tuple[float, ...] = ()
    """What the engine gave, where `old_logprobs` were computed again; empty where those are the engine's."""

    @property
    def num_tokens(self) -> int:
        """Columns that the model sees for this row."""
        return len(self.context_ids) + len(self.response_ids)

    @property
    def identity(self) -> tuple[int, int, int]:
        """(question, path, turn): no two rows of a step have the same."""
        return self.question, self.path, self.turn


def pack_paths(
    tree: SearchTree,
    paths: Paths,
    advantages: Float[np.ndarray, "P D"],
    keep: Bool[np.ndarray, " P"],
    slots: Int[np.ndarray, " Q"] | None = None,
) -> list[TurnRow]:
    """One row a turn of a kept path, ordered by (path, turn).

    Args:
        tree: roots carry a `Prompt`, other nodes a `Turn`.
        paths: the tree's root-to-leaf paths.
        advantages: one a (path, turn).
        keep: paths to train on.
        slots: slot of each of the tree's questions in the whole batch; 0, 1, ... when the tree holds the whole batch.

    Returns:
        rows in which the context is the one that the turn was sampled in, token by token. A turn without a sampled id
        has no row: it has nothing to train.
    """
    assert advantages.shape == paths.nodes.shape, f"advantages {advantages.shape} do not fit paths {paths.nodes.shape}"
    contexts: dict[int, tuple[int, ...]] = {}
    rows = []
    for path in np.flatnonzero(keep).tolist():
        question = int(paths.question[path])
        for turn in range(int(paths.length[path])):
            node = int(paths.nodes[path, turn])
            parent = int(tree.parent[node])
            if parent not in contexts:
                contexts[parent] = tuple(chain.from_iterable(context_segments(tree, parent)))
            payload = tree.payload[node]
            assert isinstance(payload, Turn), f"node {node} is not a turn"
            if not payload.response_ids:
                continue
            row = TurnRow(
                question=question if slots is None else int(slots[question]),
                path=path,
                turn=turn,
                context_ids=contexts[parent],
                response_ids=payload.response_ids,
                old_logprobs=payload.response_logprobs,
                advantage=float(advantages[path, turn]),
            )
            rows.append(row)
    return rows


def cut_questions(row_counts: Mapping[int, int], update_rows: int, key: int) -> list[list[int]]:
    """Questions of each minibatch: a random order in which the emptiest minibatch takes the next question.

    Args:
        row_counts: rows of each question slot, over all processes.
        update_rows: rows a minibatch should have.
        key: counter-based random key of the step.

    Returns:
        max(1, round(rows / update_rows)) minibatches, or one a question where there are fewer questions; their row
        counts differ by no more than the rows of one question.

    Example:
        >>> groups = cut_questions({0: 4, 1: 4, 2: 4, 3: 4}, update_rows=8, key=1)
        >>> [len(group) for group in groups]
        [2, 2]
    """
    assert update_rows >= 1, f"update_rows is {update_rows}"
    slots = np.array(sorted(slot for slot, count in row_counts.items() if count > 0), dtype=np.int64)
    if slots.size == 0:
        return []
    num_rows = sum(row_counts.values())
    num_groups = min(len(slots), max(1, round(num_rows / update_rows)))
    draws = uniforms(np.full(slots.shape, key, dtype=np.uint64), int(Stream.ORDER), slots)
    groups: list[list[int]] = [[] for _ in range(num_groups)]
    loads = [(0, group) for group in range(num_groups)]
    for slot in slots[np.argsort(draws, kind="stable")].tolist():
        load, group = heapq.heappop(loads)
        groups[group].append(slot)
        heapq.heappush(loads, (load + row_counts[slot], group))
    return groups


def minibatches(
    rows: Sequence[TurnRow], update_rows: int, key: int, row_counts: Mapping[int, int] | None = None
) -> list[list[TurnRow]]:
    """Rows of each optimiser step, cut at questions; see `cut_questions`.

    Args:
        rows: rows of this process.
        update_rows: rows a minibatch should have, over all processes.
        key: counter-based random key of the step.
        row_counts: rows of each question over all processes; those of `rows` when None.

    Returns:
        as many minibatches on every process; one may be empty where other processes hold its questions.

    Example:
        >>> ids = dict(turn=0, context_ids=(5,), response_ids=(6,), old_logprobs=(-1.0,), advantage=1.0)
        >>> rows = [TurnRow(question=slot, path=slot, **ids) for slot in range(4)]
        >>> groups = minibatches(rows, update_rows=2, key=1)
        >>> [len(group) for group in groups], sorted(row.question for group in groups for row in group)
        ([2, 2], [0, 1, 2, 3])
    """
    by_question: dict[int, list[TurnRow]] = {}
    for row in rows:
        by_question.setdefault(row.question, []).append(row)
    counts = count_rows(rows) if row_counts is None else row_counts
    groups = cut_questions(counts, update_rows, key)
    return [[row for slot in group for row in by_question.get(slot, [])] for group in groups]


def count_rows(rows: Iterable[TurnRow]) -> dict[int, int]:
    """Rows of each question slot.

    Example:
        >>> ids = dict(turn=0, context_ids=(5,), response_ids=(6,), old_logprobs=(-1.0,), advantage=1.0)
        >>> count_rows([TurnRow(question=slot, path=path, **ids) for path, slot in enumerate([3, 3, 8])])
        {3: 2, 8: 1}
    """
    return dict(Counter(row.question for row in rows))


def micro_batches(
    rows: Sequence[TurnRow], tokens_per_micro_batch: int, packing: Packing = "path", hidden_size: int = 1024
) -> list[list[TurnRow]]:
    """Rows of each forward pass: longest first, so that a batch that is too big for memory shows at once.

    Args:
        rows: rows of one minibatch.
        tokens_per_micro_batch: bound on rows x longest row (path) or on the tokens of the trie (tree); a single longer
            row is a micro-batch of its own.
        packing: as the batches will be collated.
        hidden_size: of the model; it weighs tokens against attention where a trie is cut.

    Returns:
        every row exactly once.

    Example:
        >>> ids = dict(question=0, turn=0, old_logprobs=(-1.0,), advantage=1.0, context_ids=(5, 6))
        >>> rows = [TurnRow(path=path, response_ids=(path,), **ids) for path in range(4)]
        >>> [[len(batch) for batch in micro_batches(rows, 6, packing)] for packing in ("path", "tree")]
        [[2, 2], [4]]
    """
    assert tokens_per_micro_batch >= 1, f"tokens_per_micro_batch is {tokens_per_micro_batch}"
    if packing == "tree":
        return _tree_batches(rows, tokens_per_micro_batch, _PAIRS_PER_HIDDEN * hidden_size)
    batches: list[list[TurnRow]] = []
    for row in sorted(rows, key=lambda row: (-row.num_tokens, *row.identity)):
        # Sorted: the first row of a batch is its longest.
        if batches and (len(batches[-1]) + 1) * batches[-1][0].num_tokens <= tokens_per_micro_batch:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _tree_batches(rows: Sequence[TurnRow], budget: int, pairs_per_token: int) -> list[list[TurnRow]]:
    """Rows that share prefixes together, so that the passes cost least."""
    if not rows:
        return []
    known = sorted(rows, key=lambda row: row.identity)
    sequences = [row.context_ids + row.response_ids for row in known]
    order = lexicographic_order(sequences)
    shared = shared_prefixes([sequences[k] for k in order])
    lengths = np.array([len(sequences[k]) for k in order])
    packs = cheapest_packs(lengths, shared, budget, pairs_per_token)
    sizes = [int(lengths[first] + (lengths - shared)[first + 1 : stop].sum()) for first, stop in packs]
    largest_first = sorted(range(len(packs)), key=lambda pack: (-sizes[pack], pack))
    return [[known[k] for k in order[slice(*packs[pack])]] for pack in largest_first]
