"""retrieval: queries -> passages, best first."""

import logging
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from igrpo_train.question import Passage


@runtime_checkable
class Retriever(Protocol):
    """Anything that finds passages."""

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """At most `top_k` passages a query, best first; an empty list where nothing matches."""
        ...


class BM25Retriever:
    """BM25 over titles and texts, in memory.

    Source: Robertson and Zaragoza (2009); Lucene's variant as implemented by bm25s.

    Args:
        passages: the corpus.
        k1: term-frequency saturation.
        b: length normalisation in [0, 1].

    Example:
        >>> corpus = [Passage(id="1", title="Ghent", text="a city in Belgium"),
        ...           Passage(id="2", title="Oslo", text="the capital of Norway")]
        >>> BM25Retriever(corpus).search(["capital of Norway"], top_k=1)[0][0].title
        'Oslo'
    """

    def __init__(self, passages: Sequence[Passage], *, k1: float = 0.9, b: float = 0.4) -> None:
        import bm25s

        # It reports its stages at DEBUG through a handler of its own.
        logging.getLogger("bm25s").setLevel(logging.WARNING)
        if not passages:
            raise ValueError("the corpus holds no passage: give data.corpus a file with at least one")
        self._passages = list(passages)
        self._bm25s = bm25s
        texts = [f"{passage.title} {passage.text}" for passage in self._passages]
        self._index = bm25s.BM25(k1=k1, b=b)
        tokens = bm25s.tokenize(texts, stopwords="en", show_progress=False)
        if not tokens.vocab:
            raise ValueError(
                "the corpus holds no word to search for: give data.corpus passages with more than stop words"
            )
        self._index.index(tokens, show_progress=False)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """At most `top_k` passages a query that share at least one term with it."""
        if not queries:
            return []
        tokens = self._bm25s.tokenize(list(queries), stopwords="en", show_progress=False, return_ids=False)
        found: list[list[Passage]] = []
        for query in tokens:
            if not query:
                found.append([])
                continue
            ids, scores = self._index.retrieve(
                [query], k=min(top_k, len(self._passages)), show_progress=False, sorted=True
            )
            found.append([self._passages[i] for i, score in zip(ids[0], scores[0], strict=True) if score > 0])
        return found
