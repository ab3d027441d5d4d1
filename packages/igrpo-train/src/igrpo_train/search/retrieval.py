"""retrieval: queries -> passages, best first.

Searching comes in three places: in this process over BM25 (here) or vectors (`dense`), or behind HTTP
(`http_retriever`, answered by `server`).
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from igrpo_train.question import Passage


@runtime_checkable
class Retriever(Protocol):
    """Anything that finds passages."""

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """At most `top_k` passages a query, best first; an empty list where nothing matches."""
        ...


class Found(NamedTuple):
    """A passage with its score; higher is better, and only scores of one retriever can be compared."""

    passage: Passage
    score: float


@runtime_checkable
class ScoredRetriever(Protocol):
    """A retriever that a server can serve: it also tells its scores."""

    def search_scored(self, queries: Sequence[str], top_k: int) -> list[list[Found]]:
        """What `Retriever.search` finds, with scores that do not rise along a list."""
        ...


def contents(passage: Passage) -> str:
    r"""Title and text as Search-R1 writes them in one field: the quoted title on the first line.

    Source: [searchr1].

    Example:
        >>> contents(Passage(id="1", title="Ghent", text="A city."))
        '"Ghent"\nA city.'
    """
    return f'"{passage.title}"\n{passage.text}'


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
        return [[found.passage for found in each] for each in self.search_scored(queries, top_k)]

    def search_scored(self, queries: Sequence[str], top_k: int) -> list[list[Found]]:
        """The same with BM25 scores, all above 0."""
        if not queries:
            return []
        tokens = self._bm25s.tokenize(list(queries), stopwords="en", show_progress=False, return_ids=False)
        return [self._search(query, top_k) for query in tokens]

    def _search(self, query: list[str], top_k: int) -> list[Found]:
        if not query:
            return []
        ids, scores = self._index.retrieve([query], k=min(top_k, len(self._passages)), show_progress=False, sorted=True)
        return [Found(self._passages[i], float(score)) for i, score in zip(ids[0], scores[0], strict=True) if score > 0]
