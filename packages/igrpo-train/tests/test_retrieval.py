"""BM25 over a handful of passages."""

import pytest


def _corpus():
    from igrpo_train.question import Passage

    return [
        Passage(id="1", title="Ghent", text="a city in Belgium with a mayor"),
        Passage(id="2", title="Oslo", text="the capital of Norway"),
        Passage(id="3", title="Bergen", text="a city in Norway"),
    ]


def test_the_best_passages_come_first_and_strangers_do_not_come():
    from igrpo_train.search.retrieval import BM25Retriever

    retriever = BM25Retriever(_corpus())
    found = retriever.search(["capital Norway", "mayor", "zzz", "", "the of"], top_k=3)
    assert [passage.id for passage in found[0]] == ["2", "3"]
    assert [passage.id for passage in found[1]] == ["1"]
    assert found[2:] == [[], [], []]


def test_top_k_beyond_the_corpus_is_fine_and_no_query_is_no_work():
    from igrpo_train.search.retrieval import BM25Retriever

    retriever = BM25Retriever(_corpus())
    assert len(retriever.search(["city"], top_k=50)[0]) == 2
    assert retriever.search([], top_k=3) == []


def test_an_empty_corpus_is_refused():
    from igrpo_train.search.retrieval import BM25Retriever

    with pytest.raises(ValueError, match="the corpus holds no passage"):
        BM25Retriever([])


def test_a_corpus_of_stop_words_is_refused():
    from igrpo_train.question import Passage
    from igrpo_train.search.retrieval import BM25Retriever

    with pytest.raises(ValueError, match=r"no word to search for: give data\.corpus"):
        BM25Retriever([Passage(id="1", title="", text="the of")])
