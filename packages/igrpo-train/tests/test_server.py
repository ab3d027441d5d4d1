"""The search server over real loopback HTTP: both bodies, refusals, many clients, and a clean end."""

import asyncio
import http.client
import json
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retrieval_servers import Command, served, wait_until

pytest.importorskip("starlette", reason="needs igrpo-train[server]")
pytest.importorskip("uvicorn", reason="needs igrpo-train[server]")

# The in-memory index of 12 towns: small enough to know what comes first.
TOWNS = ["Ghent", "Oslo", "Bergen", "Paris", "Lyon", "Turin", "Porto", "Seville", "Graz", "Basel", "Utrecht", "Malmo"]


def _passages():
    from igrpo_train.question import Passage

    return [
        Passage(id=str(number), title=town, text=f"{town} is town number {number}; people like it.")
        for number, town in enumerate(TOWNS)
    ]


@pytest.fixture(scope="module")
def retriever():
    from igrpo_train.search.retrieval import BM25Retriever

    return BM25Retriever(_passages())


@pytest.fixture(scope="module")
def url(retriever):
    with served(retriever) as address:
        yield address


def _request(url, body, method="POST", path="/retrieve"):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, raw)
    reply = connection.getresponse()
    content = json.loads(reply.read())
    connection.close()
    return reply.status, content


def test_search_r1_s_body_with_scores(url):
    status, reply = _request(url, {"queries": ["Oslo town", "zzz"], "topk": 2, "return_scores": True})
    assert status == 200
    first, second = reply["result"]
    assert second == []
    assert len(first) == 2
    assert first[0]["document"]["contents"] == '"Oslo"\nOslo is town number 1; people like it.'
    assert first[0]["document"]["id"] == "1"
    assert first[0]["score"] > first[1]["score"] > 0


def test_verl_agent_s_body_without_scores(url):
    for query in ("Oslo", ["Oslo"]):
        status, reply = _request(url, {"query": query})
        assert status == 200
        [[document]] = reply["result"]
        assert document["title"] == "Oslo"
    status, reply = _request(url, {"queries": ["town"], "topk": None, "return_scores": None, "more": 1})
    assert status == 200
    assert len(reply["result"][0]) == 3
    assert _request(url, {"queries": []}) == (200, {"result": []})
    # As editors of Windows save it.
    status, reply = _request(url, b'\xef\xbb\xbf{"query": "Oslo"}')
    assert (status, reply["result"][0][0]["title"]) == (200, "Oslo")


def test_health_and_other_paths(url):
    assert _request(url, None, "GET", "/health") == (200, {"status": "ok"})
    for method, path, status in (("GET", "/retrieve", 405), ("POST", "/search", 404), ("GET", "/", 404)):
        got, reply = _request(url, None, method, path)
        assert got == status
        assert reply["error"]["field"] == "path"


@pytest.mark.parametrize(
    ("body", "status", "field", "message"),
    [
        (b"", 400, "body", "must be JSON in UTF-8"),
        (b'{"queries": ["a"', 400, "body", "must be JSON"),
        (b'{"queries": ["\xff"]}', 400, "body", "must be JSON in UTF-8"),
        (b"[" * 100_000, 400, "body", "must be JSON"),
        (["a"], 400, "body", "must be a JSON object"),
        ({}, 400, "queries", r"must be given once, as queries or as query, got \[\]"),
        ({"queries": ["a"], "query": "a"}, 400, "queries", "must be given once"),
        ({"queries": "a"}, 400, "queries", "must be a list of texts"),
        ({"query": 3}, 400, "query", "must be a text or a list of texts"),
        ({"query": {"a": 1}}, 400, "query", "must be a text or a list"),
        ({"queries": ["a", 3]}, 400, r"queries\[1\]", "must be a text, got int"),
        ({"query": [None]}, 400, r"query\[0\]", "must be a text, got NoneType"),
        ({"queries": ["half \ud800"]}, 400, r"queries\[0\]", "half of a surrogate pair"),
        ({"queries": ["a"], "topk": 0}, 400, "topk", "whole number from 1 to 100, or null"),
        ({"queries": ["a"], "topk": 101}, 400, "topk", "whole number"),
        ({"queries": ["a"], "topk": True}, 400, "topk", "whole number"),
        ({"queries": ["a"], "topk": "3"}, 400, "topk", "whole number"),
        ({"queries": ["a"], "topk": 2.0}, 400, "topk", "whole number"),
        ({"queries": ["a"], "return_scores": 1}, 400, "return_scores", "must be true or false"),
        ({"queries": ["a"] * 1025}, 413, "queries", "must hold at most 1024 texts, got 1025"),
        ({"queries": ["x" * 8193]}, 413, r"queries\[0\]", "at most 8192 characters, got 8193"),
        ({"query": "x" * 8193}, 413, "query", "at most 8192 characters"),
    ],
)
def test_a_body_that_is_wrong_is_refused_and_the_field_named(url, body, status, field, message):
    import re

    got, reply = _request(url, body)
    assert got == status
    assert re.fullmatch(field, reply["error"]["field"])
    assert re.search(message, reply["error"]["message"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["queries", "query", "topk", "return_scores", "more"]), inner)
    ),
    max_leaves=8,
)


@given(body=st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_whatever_a_client_sends_is_understood_or_refused(body):
    from igrpo_train.search.bodies import Ask, BadRequest, parse_body

    refusal = None
    try:
        ask = parse_body(body, 3)
    except BadRequest as error:
        refusal = error
    if refusal is not None:
        assert refusal.field
        assert 400 <= refusal.status < 500
    else:
        assert isinstance(ask, Ask)
        assert all(query.encode().decode() == query for query in ask.queries)
        assert 1 <= ask.top_k <= 100


def test_a_body_that_is_too_large_is_refused_before_it_is_read(url):
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=30) as raw:
        raw.sendall(b"POST /retrieve HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b" " * 2**20 + b"\r\n"
        for _ in range(17):
            raw.sendall(chunk)
        reply = b""
        while b"}" not in reply:
            received = raw.recv(65536)
            assert received
            reply += received
    assert reply.startswith(b"HTTP/1.1 413")
    assert b'"field":"body"' in reply
    assert _request(url, {"query": "Oslo"})[0] == 200


def test_32_clients_at_once_get_what_each_asked_for(url, retriever):
    from igrpo_train.search.http_retriever import HTTPRetriever

    client = HTTPRetriever(url, retries=0, connections=32)

    def ask(number):
        queries = [f"{TOWNS[number % 12]} number {number % 12}", f"town {number}"][: 1 + number % 2]
        return client.search(queries, 1 + number % 4) == retriever.search(queries, 1 + number % 4)

    with ThreadPoolExecutor(32) as clients:
        assert all(clients.map(ask, range(640)))
    client.close()


class _Gate:
    """A retriever that notes its calls and waits until it may go on."""

    def __init__(self, retriever):
        self.calls, self.open, self._retriever = [], threading.Event(), retriever

    def search_scored(self, queries, top_k):
        self.calls.append((list(queries), top_k))
        assert self.open.wait(30)
        return self._retriever.search_scored(queries, top_k)


def test_requests_that_wait_together_are_one_search_for_each_topk(retriever):
    from igrpo_train.search.bodies import Ask
    from igrpo_train.search.server import Batcher

    gate = _Gate(retriever)

    async def scenario():
        batcher = Batcher(gate)
        searching = asyncio.create_task(batcher.run())
        first = asyncio.create_task(batcher.search(Ask(("Oslo",), 3, False)))
        while not gate.calls:
            await asyncio.sleep(0.001)
        asks = [Ask((TOWNS[n % 6], "Ghent"), 1 + n // 6, False) for n in range(8)]
        others = [asyncio.create_task(batcher.search(ask)) for ask in asks]
        # One turn of the loop, in which all of them are put down.
        await asyncio.sleep(0)
        gate.open.set()
        found = await asyncio.gather(first, *others)
        searching.cancel()
        return found

    found = asyncio.run(scenario())
    assert [each[0][0].passage.title for each in found] == ["Oslo", *(TOWNS[n % 6] for n in range(8))]
    towns = list(TOWNS[:6])
    assert gate.calls == [(["Oslo"], 3), ([towns[0], *towns[1:]], 1), ([towns[0], towns[1]], 2)]


def test_a_client_that_goes_away_harms_nobody(retriever):
    gate = _Gate(retriever)
    with served(gate) as url:
        raw = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))
        raw.sendall(b'POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n{"query": "Oslo"}')
        wait_until(lambda: len(gate.calls) == 1)
        raw.close()
        gate.open.set()
        assert _request(url, {"query": "Oslo"})[0] == 200


def test_a_search_that_fails_is_a_500_and_the_next_one_is_served(retriever, caplog):
    class Broken:
        def __init__(self):
            self.calls = 0

        def search_scored(self, queries, top_k):
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("secret path")
            return retriever.search_scored(queries, top_k)

    with served(Broken()) as url:
        status, reply = _request(url, {"query": "Oslo"})
        assert status == 500
        assert reply["error"]["message"] == "the search failed with RuntimeError; see the log of the server"
        assert _request(url, {"query": "Oslo"})[0] == 200
    assert "secret path" in caplog.text


def _corpus(folder):
    path = folder / "corpus.jsonl"
    rows = [{"id": p.id, "contents": f'"{p.title}"\n{p.text}'} for p in _passages()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_prints_its_address_serves_and_ends_cleanly(tmp_path, number):
    from igrpo_train.errors import RetrieverError
    from igrpo_train.search.http_retriever import HTTPRetriever

    command = Command(str(_corpus(tmp_path)), "--port", "0", "--topk", "2")
    try:
        url = command.address()
        assert url.startswith("http://127.0.0.1:")
        # Also with a connection that stays open.
        client = HTTPRetriever(url)
        client.check(100)
        with pytest.raises(
            RetrieverError, match=r"answer a search with topk = 101, got status 400 .*: lower agent.top_k"
        ):
            client.check(101)
        assert [passage.title for passage in client.search(["Oslo"], 5)[0]] == ["Oslo"]
        assert len(_request(url, {"query": "town"})[1]["result"][0]) == 2
    finally:
        code, error = command.end(number)
    assert (code, error) == (0, "")


def test_an_address_that_is_taken_is_told_before_the_corpus_is_read():
    from igrpo_train.search.server import Serve, serve

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"port must be free on this machine, got 127\.0\.0\.1:{port} \(Address"):
            serve(Serve(corpus="nowhere.jsonl", port=port))
    # 192.0.2.1 is kept for documentation: no machine has it.
    for host in ("no such host", "192.0.2.1", "x" * 70, "a..b"):
        with pytest.raises(
            ValueError, match=rf"^host must be an address of this machine, got '{host}' \(.*: give --host"
        ):
            serve(Serve(corpus="nowhere.jsonl", host=host, port=0))
    with pytest.raises(ValueError, match=r"port must be between 0 and 65535, got 70000"):
        Serve(corpus="a.jsonl", port=70000)
    with pytest.raises(ValueError, match=r"topk must be at most 100, got 101"):
        Serve(corpus="a.jsonl", topk=101)


def test_a_missing_extra_prints_its_pip_line(monkeypatch, retriever):
    from igrpo_train.errors import MissingExtra
    from igrpo_train.search.server import Serve, create_app, serve

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    with pytest.raises(MissingExtra, match=r"uvicorn is needed to serve passages: pip install 'igrpo-train\[server\]'"):
        serve(Serve(corpus="a.jsonl"))
    with pytest.raises(MissingExtra, match=r"starlette is needed to serve passages"):
        create_app(retriever)
