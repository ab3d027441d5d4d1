"""retriever: queries -> documents of the miniature world by title, then by relation word.

A wrong relation word finds another fact about the same entity, a wrong name finds something else or nothing.

Source: ours. Example:
    >>> retriever = MiniatureRetriever("miniature:leak/train")
    >>> [passages] = retriever.search(["no such name"], top_k=1)
    >>> passages
    []
"""

from collections.abc import Sequence
from itertools import pairwise

from igrpo_train.miniature.dataset import corpus_worlds, fact_passage
from igrpo_train.miniature.names import Name
from igrpo_train.miniature.world import Fact, World
from igrpo_train.question import Passage

_TITLE_WORD = 1.0
_TITLE_IN_ORDER = 1.0
_RELATION_WORD = 0.8


class FactSearch:
    """Looks facts of a world up by the words of a query.

    Args:
        worlds: one or several knowledge bases without a name in common.
    """

    def __init__(self, *worlds: World) -> None:
        self._facts = {name: facts for world in worlds for name, facts in world.facts.items()}
        self._rank = {name: rank for rank, name in enumerate(self._facts)}
        self._by_word: dict[str, list[Name]] = {}
        for name in self._facts:
            for word in name:
                self._by_word.setdefault(word, []).append(name)

    def about(self, subject: Name) -> tuple[Fact, ...]:
        """The facts about an entity."""
        return self._facts.get(subject, ())

    def search(self, query: str, top_k: int) -> list[Fact]:
        """At most `top_k` facts whose subject shares a word with the query, best first; ties in corpus order.

        The score of a fact is 1 a shared title word, 1 if the title stands in the query in order, 0.8 if the name
        of the relation stands in it.
        """
        words = query.lower().split()
        titles: dict[Name, float] = {}
        for word in dict.fromkeys(words):
            for name in self._by_word.get(word, ()):
                titles[name] = titles.get(name, 0.0) + _TITLE_WORD
        for pair in set(pairwise(words)):
            if Name(*pair) in titles:
                titles[Name(*pair)] += _TITLE_IN_ORDER
        scored = [
            (-score - _RELATION_WORD * (fact.relation.name in words), self._rank[name], place, fact)
            for name, score in titles.items()
            for place, fact in enumerate(self._facts[name])
        ]
        return [fact for *_, fact in sorted(scored, key=lambda entry: entry[:3])[:top_k]]


class MiniatureRetriever:
    """The retriever of miniature worlds.

    Args:
        spec: such as `miniature:leak/train`, or `miniature:leak/train+test` for both.
    """

    def __init__(self, spec: str) -> None:
        self._facts = FactSearch(*corpus_worlds(spec))

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """At most `top_k` passages a query, best first; an empty list where nothing matches."""
        return [[fact_passage(fact) for fact in self._facts.search(query, top_k)] for query in queries]
