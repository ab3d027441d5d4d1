"""data: a recipe's data settings -> questions, passages, and which questions a step trains on.

Order is a function of recipe and seed: each pass over the questions is a fresh counter-based shuffle, and a step's
batch is a window of it, so that a resumed run, or one with more processes, sees the same questions.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from igrpo_theory.randomness import Stream, fold, uniforms
from igrpo_train.config import Recipe, Retrieval
from igrpo_train.miniature.retriever import MiniatureRetriever
from igrpo_train.question import Question, read_passages, read_questions, select_hops
from igrpo_train.search.retrieval import BM25Retriever, Retriever


def load_questions(spec: str, hops: Sequence[int] = ()) -> list[Question]:
    """Questions of a file or a built-in world, kept to some numbers of hops.

    Raises:
        ValueError: nothing is left, or the file is malformed.
        FileNotFoundError: the file does not exist.
    """
    return select_hops(read_questions(spec), hops, spec)


def load_retriever(corpus: str, config: Retrieval, *, top_k: int = 1) -> Retriever:
    """The search engine of a run, ready to search.

    Args:
        corpus: passages, as `data.corpus` names them.
        config: which engine.
        top_k: passages that a search will ask for; a server is asked for as many beforehand.

    Raises:
        ValueError, FileNotFoundError: the corpus is empty, malformed or absent, or the index does not belong to it.
        RetrieverError: `retrieval.url` does not answer a search.
        MissingExtra: faiss is needed and not installed.
    """
    if config.kind == "miniature":
        return MiniatureRetriever(corpus)
    if config.kind == "http":
        from igrpo_train.search.http_retriever import HTTPRetriever

        remote = HTTPRetriever(
            config.url,
            timeout_s=config.timeout_s,
            retries=config.retries,
            batch=config.batch,
            connections=config.connections,
        )
        remote.check(top_k)
        return remote
    if config.kind == "dense":
        from igrpo_train.search.dense import DenseRetriever

        return DenseRetriever(
            Path(config.index), corpus, encoder=config.encoder, device=config.device, batch=config.batch
        )
    return BM25Retriever(read_passages(corpus), k1=config.k1, b=config.b)


def batch_indices(num_questions: int, batch: int, *, seed: int, step: int) -> Int[np.ndarray, " batch"]:
    """Questions of a 0-based step, as positions in the file.

    Example:
        >>> sorted(int(i) for step in (0, 1) for i in batch_indices(6, 3, seed=0, step=step))
        [0, 1, 2, 3, 4, 5]
    """
    places = np.arange(step * batch, (step + 1) * batch)
    passes = {int(number): _shuffle(num_questions, seed, int(number)) for number in np.unique(places // num_questions)}
    return np.array([passes[int(place) // num_questions][place % num_questions] for place in places])


def validation_questions(questions: Sequence[Question], recipe: Recipe) -> list[Question]:
    """The fixed subset that every validation of a run uses."""
    chosen = _shuffle(len(questions), recipe.validation.seed, 0)[: recipe.validation.questions]
    return [questions[i] for i in np.sort(chosen)]


def _shuffle(size: int, seed: int, number: int) -> Int[np.ndarray, " size"]:
    key = fold(np.array([seed], dtype=np.uint64), Stream.DATA, number)
    return np.argsort(uniforms(np.repeat(key, size), np.arange(size)), kind="stable")
