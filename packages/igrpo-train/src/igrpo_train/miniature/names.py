"""names: a split of the miniature world -> the entity names that it may use.

A name is an ordered pair of different syllables. A stable hash cuts the space of pairs into one pool a split, so an
entity of one split is an entity of no other.

Source: ours. Example:
    >>> name_pool("train").isdisjoint(name_pool("test"))
    True
"""

from functools import cache
from typing import Literal, NamedTuple, get_args

import numpy as np

from igrpo_theory.randomness import text_key

Split = Literal["warm", "train", "validation", "test"]
"""`warm` is for demonstrations, `train` for reinforcement learning, `validation` and `test` for measuring."""
SPLITS: tuple[Split, ...] = get_args(Split)

_ONSETS = ("b", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "ch", "sh", "th")
_ENGLISH = frozenset({"be", "do", "go", "he", "hi", "me", "no", "she", "so", "the", "to", "we"})
SYLLABLES: tuple[str, ...] = tuple(
    onset + vowel for onset in _ONSETS for vowel in "aeiou" if onset + vowel not in _ENGLISH
)
"""The building blocks of names; words of the language are left out."""


class Name(NamedTuple):
    """The name of an entity."""

    first: str
    second: str

    def __str__(self) -> str:
        """The name as it stands in texts.

        Example:
            >>> str(Name("ba", "ko"))
            'ba ko'
        """
        return f"{self.first} {self.second}"


@cache
def name_pool(split: Split) -> frozenset[Name]:
    """All names that a split may use.

    Example:
        >>> sum(len(name_pool(split)) for split in SPLITS) == len(SYLLABLES) * (len(SYLLABLES) - 1)
        True
    """
    pairs = (Name(first, second) for first in SYLLABLES for second in SYLLABLES if first != second)
    return frozenset(name for name in pairs if SPLITS[text_key(str(name)) % len(SPLITS)] == split)


class NameDrawer:
    """Hands out the names of one pool in random order, each once.

    Args:
        split: whose pool.
        rng: orders the pool.

    Example:
        >>> drawer = NameDrawer("test", np.random.default_rng(0))
        >>> drawer.draw(first="ba").first
        'ba'
    """

    def __init__(self, split: Split, rng: np.random.Generator) -> None:
        pool = sorted(name_pool(split))
        self._free = {pool[i]: None for i in rng.permutation(len(pool))}
        self._by_first: dict[str, list[Name]] = {}
        for name in reversed(self._free):
            self._by_first.setdefault(name.first, []).append(name)

    def draw(self, first: str | None = None) -> Name:
        """Take a free name that starts with `first`, or any free name where none is left or none is asked for.

        Raises:
            ValueError: the pool is used up.
        """
        name = self._free_with(first) if first is not None else None
        if name is None:
            name = next(iter(self._free), None)
        if name is None:
            raise ValueError("num_trees asks for more entities than the split has names: lower it")
        del self._free[name]
        return name

    def _free_with(self, first: str) -> Name | None:
        names = self._by_first.get(first, [])
        while names and names[-1] not in self._free:
            names.pop()
        return names[-1] if names else None
