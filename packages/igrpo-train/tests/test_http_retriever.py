"""The client over real loopback HTTP: what it takes for passages, what it tries again, and when it gives up."""

import contextlib
import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retrieval_servers import as_json, free_port, scripted


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    from igrpo_train.search import http_retriever

    monkeypatch.setattr(http_retriever, "FIRST_PAUSE_S", 0.01)


def _client(url, **settings):
    from igrpo_train.search.http_retriever import HTTPRetriever

    return HTTPRetriever(url, **{"timeout_s": 10.0, "retries": 2, **settings})


def _echo(number, body):
    """One document a query that holds it."""
    found = [[{"document": {"id": q, "contents": f'"{q}"\nAbout {q}.'}, "score": 1.0}] for q in body["queries"]]
    return as_json({"result": found})


def test_a_request_has_search_r1_s_form_and_documents_are_read_as_its_clients_do():
    with scripted(_echo) as (url, bodies):
        [[passage]] = _client(url).search(["Ghent"], 3)
    assert bodies == [{"queries": ["Ghent"], "topk": 3, "return_scores": True}]
    assert (passage.id, passage.title, passage.text) == ("Ghent", "Ghent", "About Ghent.")


def test_many_queries_go_in_batches_and_come_back_in_order():
    def slow_at_first(number, body):
        time.sleep(0.05 if "0" in body["queries"] else 0)
        return _echo(number, body)

    queries = [str(number) for number in range(50)]
    with scripted(slow_at_first) as (url, bodies):
        found = _client(url, batch=4, connections=3).search(queries, 1)
        assert _client(url).search([], 1) == []
    assert [[passage.title for passage in each] for each in found] == [[query] for query in queries]
    assert len(bodies) == 13
    assert max(len(body["queries"]) for body in bodies) == 4


def test_documents_without_scores_ids_or_with_separate_titles_are_understood():
    from igrpo_train.search.http_retriever import parse_reply

    documents = [
        {"contents": "Ghent\nA city.\nOld."},
        {"document": {"id": 7, "title": '"Heroes"', "text": "An album.", "contents": '""Heroes""\nAn album.'}},
        {"id": "x", "contents": '"Only a title"'},
    ]
    [found] = parse_reply({"result": [documents]}, 1, 5)
    assert [(passage.title, passage.text) for passage in found] == [
        ("Ghent", "A city.\nOld."),
        ('"Heroes"', "An album."),
        ("Only a title", ""),
    ]
    assert len(found[0].id) == 16
    assert [passage.id for passage in found[1:]] == ["7", "x"]
    assert parse_reply({"result": [documents, []]}, 2, 1) == [found[:1], []]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ([], r"reply must be an object with a list as result, got \[\]"),
        ({"error": "out of memory"}, "reply must be an object"),
        ({"result": "error"}, "reply must be an object"),
        ({"result": [[]]}, "result must hold 2 lists, one a query, got 1"),
        ({"result": [[], [], []]}, "result must hold 2 lists"),
        ({"result": [[], "error"]}, r"result\[1\] must be a list, got 'error'"),
        ({"result": [["error"], []]}, r"result\[0\]\[0\] must be an object with a document"),
        ({"result": [[{"document": "error", "score": 1}], []]}, r"result\[0\]\[0\] must be an object"),
        ({"result": [[{"document": {"id": 1}}], []]}, r"result\[0\]\[0\]\.contents must be a text .* got None"),
        ({"result": [[{"document": {"contents": ["a"]}}], []]}, "contents must be a text"),
        ({"result": [[{"contents": " \n "}], []]}, "contents must be a text that is not empty"),
        ({"result": [[{"title": "", "text": ""}], []]}, "contents must be a text that is not empty"),
        ({"result": [[{"contents": "half \ud800"}], []]}, "Unicode text, got half of a surrogate pair"),
    ],
)
def test_what_is_no_list_of_passages_is_refused(reply, message):
    from igrpo_train.search.http_retriever import parse_reply

    with pytest.raises(ValueError, match=message):
        parse_reply(reply, 2, 3)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["result", "document", "contents", "title", "text", "id", "score"]), inner)
    ),
    max_leaves=12,
)


@given(reply=JSON, lists=st.booleans())
def test_whatever_a_server_says_is_passages_or_refused(reply, lists):
    from igrpo_train.search.http_retriever import parse_reply

    with contextlib.suppress(ValueError):
        [found] = parse_reply({"result": [[reply]]} if lists else reply, 1, 3)
        for passage in found:
            assert (passage.title + passage.text).encode()
            assert passage.id


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        ((500, b"Internal Server Error"), r"status 500 \(Internal Server Error\)"),
        ((503, b"<html>busy</html>"), "status 503"),
        ((429, b"slow down"), "status 429"),
        ((200, b"<html><body>It works!</body></html>"), "a malformed reply"),
        ((200, b'{"result": [[{"document": {"contents": "cut o'), "a malformed reply"),
        ((200, b'{"result": []}'), r"a malformed reply \(result must hold 1 lists"),
        ((200, b'{"result": ' + b"[" * 100_000), "a malformed reply"),
        ((200, b'{"result": [[{"contents": "\xff"}]]}'), "a malformed reply"),
    ],
)
def test_errors_of_the_server_are_tried_again_and_never_become_passages(reply, shown, caplog):
    from igrpo_train.errors import RetrieverError

    with scripted(lambda number, body: reply if number < 2 else _echo(number, body)) as (url, bodies):
        assert _client(url).search(["Ghent"], 1)[0][0].text == "About Ghent."
    assert len(bodies) == 3
    assert "try 1 of 2" in caplog.text
    message = rf"retriever must answer, got {shown}.* in 3 tries: mend or restart"
    with scripted(lambda number, body: reply) as (url, bodies), pytest.raises(RetrieverError, match=message):
        _client(url).search(["Ghent"], 1)
    assert len(bodies) == 3


def test_a_request_that_the_server_refuses_is_not_repeated():
    from igrpo_train.errors import RetrieverError

    message = r'got status 400 \(\{"error": \{"field": "topk"\}\}\) from .* in 1 tries'
    refusal = as_json({"error": {"field": "topk"}}, 400)
    with scripted(lambda number, body: refusal) as (url, bodies), pytest.raises(RetrieverError, match=message):
        _client(url).search(["Ghent"], 1)
    assert len(bodies) == 1


def test_a_server_that_hangs_times_out():
    from igrpo_train.errors import RetrieverError

    release = threading.Event()

    def hang(number, body):
        release.wait(20)
        return _echo(number, body)

    with scripted(hang) as (url, bodies):
        with pytest.raises(RetrieverError, match="got ReadTimeout"):
            _client(url, timeout_s=0.2, retries=1).search(["Ghent"], 1)
        release.set()
    assert len(bodies) == 2


def test_one_batch_that_fails_for_good_ends_the_others():
    from igrpo_train.errors import RetrieverError

    with scripted(lambda number, body: (500, b"")) as (url, bodies):
        client = _client(url, batch=1, connections=2, retries=3)
        with pytest.raises(RetrieverError):
            client.search([str(number) for number in range(100)], 1)
        client.close()
    assert len(bodies) < 30


def test_what_a_policy_writes_never_makes_a_request_that_is_refused():
    with scripted(_echo) as (url, bodies):
        _client(url).search(["x" * 100_000 + "\x00", "\u2028 'quoted' \\ \x07"], 1)
    assert [len(query) for query in bodies[0]["queries"]] == [4096, 14]
    assert bodies[0]["queries"][1] == "\u2028 'quoted' \\ \x07"


def test_the_check_before_a_run_says_what_is_wrong_and_does_not_wait():
    from igrpo_train.errors import RetrieverError

    url = f"http://127.0.0.1:{free_port()}/retrieve"
    start = "must answer a search with topk = 1, got"
    with pytest.raises(RetrieverError, match=rf"retrieval\.url {start} ConnectError .*: start a server, for example"):
        _client(url, retries=1000).check()
    message = rf"{start} status 404 \(Not Found\) from http"
    with scripted(lambda number, body: (404, b"Not Found")) as (url, _), pytest.raises(RetrieverError, match=message):
        _client(url).check()
    with scripted(lambda number, body: as_json({"result": [[]]})) as (url, bodies):
        _client(url).check()
    assert json.dumps(bodies) == '[{"queries": ["health check"], "topk": 1, "return_scores": true}]'


def test_a_recipe_with_http_is_checked_before_anything_loads():
    from igrpo_train.config import Retrieval
    from igrpo_train.data import load_retriever
    from igrpo_train.errors import RetrieverError

    with pytest.raises(ValueError, match=r"retrieval\.url must be an address like http://127.* got 'localhost:8000'"):
        Retrieval(kind="http", url="localhost:8000")
    with pytest.raises(ValueError, match=r"retrieval\.url must be free of passwords") as raised:
        Retrieval(kind="http", url="http://me:secret@host/retrieve")
    assert "secret" not in str(raised.value)
    with pytest.raises(RetrieverError, match=r"retrieval\.url must answer"):
        load_retriever("", Retrieval(kind="http", url=f"http://127.0.0.1:{free_port()}/retrieve"))
    with scripted(_echo) as (url, bodies):
        assert load_retriever("", Retrieval(kind="http", url=url), top_k=7).search(["a"], 1)[0][0].title == "a"
    assert [body["topk"] for body in bodies] == [7, 1]


def test_a_retriever_that_is_down_is_a_panel_with_code_2(capsys):
    from igrpo_train.errors import RetrieverError, run_command

    def fail():
        raise RetrieverError("retriever must answer, got nothing")

    with pytest.raises(SystemExit) as stopped:
        run_command(fail)
    assert stopped.value.code == 2
    assert "retriever must answer, got nothing" in capsys.readouterr().err
