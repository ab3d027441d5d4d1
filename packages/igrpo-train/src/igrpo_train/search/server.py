"""server: POST /retrieve -> passages as JSON, a drop-in for the servers of Search-R1 and verl-agent.

In: `{"queries": [...]}` or `{"query": "..."}` (a list does too), with `topk` and `return_scores` if wanted.
Out: `{"result": [[{"document": {...}, "score": ...}, ...], ...]}`, one list a query; else lists of documents.
Requests that wait together are answered by one search. A body that is wrong gets a 4xx status and
`{"error": {"field", "message"}}`. `GET /health` says that the server is up.
Source: [searchr1].
"""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import tyro

from igrpo_train.checks import amount, check, check_fields, count, fraction
from igrpo_train.errors import MissingExtra
from igrpo_train.question import Passage, read_passages
from igrpo_train.search.bodies import MAX_BODY_BYTES, MAX_QUERIES, MAX_TOP_K, Ask, BadRequest, parse_body
from igrpo_train.search.retrieval import BM25Retriever, Found, ScoredRetriever, contents

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

logger = logging.getLogger(__name__)

MAX_DELAY_S: Final = 0.002
"""Longest wait for more requests before a search begins."""
MAX_WAITING: Final = 1024
"""Requests that may wait for a search; more wait for room in the queue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Serve:
    """What is served, and where."""

    corpus: Annotated[str, tyro.conf.Positional]
    """Passages: a .jsonl, .jsonl.gz or .parquet file, hf://datasets/OWNER/REPO/FILE, or miniature:NAME/SPLIT."""
    index: str = ""
    """Folder that `igrpo-train index` wrote for this corpus; without one, BM25 searches."""
    encoder: str = ""
    """Model that encodes queries; empty takes the one that the index names."""
    device: str = "cpu"
    """Where queries are encoded and, with faiss-gpu, searched; cpu, cuda or cuda:0."""
    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 lets every machine that reaches this one search."""
    port: int = 8000
    """Port to listen at; 0 takes a free one."""
    topk: int = 3
    """Passages a query where a request does not say."""
    k1: float = 0.9
    """BM25: how fast repeated words stop counting."""
    b: float = 0.4
    """BM25: how much long passages are discounted, 0 to 1."""

    def __post_init__(self) -> None:
        check_fields("", self, "topk", count, "at least 1")
        check("topk", self.topk, self.topk <= MAX_TOP_K, f"at most {MAX_TOP_K}")
        check("k1", self.k1, amount(self.k1), "finite and at least 0")
        check("b", self.b, fraction(self.b), "between 0 and 1")
        check("port", self.port, 0 <= self.port < 2**16, "between 0 and 65535")


class _Waiting(NamedTuple):
    ask: Ask
    answer: asyncio.Future[list[list[Found]]]


class Batcher:
    """Answers requests that wait together by one search at a time, in a thread of its own.

    Args:
        retriever: what searches.
    """

    def __init__(self, retriever: ScoredRetriever) -> None:
        self._retriever = retriever
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(MAX_WAITING)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")

    async def search(self, ask: Ask) -> list[list[Found]]:
        """Wait for what a request asks for; raises what the search raised."""
        answer: asyncio.Future[list[list[Found]]] = asyncio.get_running_loop().create_future()
        await self._queue.put(_Waiting(ask, answer))
        return await answer

    async def run(self) -> None:
        """Search until cancelled."""
        try:
            while True:
                batch = [await self._queue.get()]
                await asyncio.sleep(MAX_DELAY_S)
                queries = len(batch[0].ask.queries)
                while queries < MAX_QUERIES and not self._queue.empty():
                    batch.append(self._queue.get_nowait())
                    queries += len(batch[-1].ask.queries)
                # Apart by topk: how ties are broken may depend on it, and no answer may depend on the company.
                for top_k in sorted({waiting.ask.top_k for waiting in batch}):
                    await self._answer([waiting for waiting in batch if waiting.ask.top_k == top_k], top_k)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, batch: Sequence[_Waiting], top_k: int) -> None:
        queries = list(dict.fromkeys(query for waiting in batch for query in waiting.ask.queries))
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._retriever.search_scored, queries, top_k)
            by_query = dict(zip(queries, found, strict=True))
        # Whatever it is: those who wait must hear of it, and the next ones must be served.
        except Exception as error:
            logger.exception("a search for %d queries failed", len(queries))
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
            return
        for waiting in batch:
            # Done already: its client went away.
            if not waiting.answer.done():
                waiting.answer.set_result([by_query[query] for query in waiting.ask.queries])


def create_app(retriever: ScoredRetriever, *, top_k: int = 3) -> "Starlette":
    """The ASGI application over a retriever.

    Args:
        retriever: what searches; called from one thread.
        top_k: passages a query where a request does not say.

    Raises:
        MissingExtra: starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.requests import Request
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError as error:
        raise _missing("starlette") from error

    batcher = Batcher(retriever)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        searching = asyncio.create_task(batcher.run())
        yield
        searching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await searching

    def refuse(field: str, message: str, status: int) -> JSONResponse:
        return JSONResponse({"error": {"field": field, "message": message}}, status)

    async def retrieve(request: Request) -> JSONResponse:
        try:
            ask = parse_body(await _body(request), top_k)
        except BadRequest as error:
            return refuse(error.field, error.message, error.status)
        try:
            found = await batcher.search(ask)
        # The log has the whole of it; strangers need no details.
        except Exception as error:
            return refuse("", f"the search failed with {type(error).__name__}; see the log of the server", 500)
        documents = [[_document(each, scores=ask.scores) for each in one] for one in found]
        return JSONResponse({"result": documents})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def other(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return refuse("path", f"must be POST /retrieve or GET /health ({error.detail})", error.status_code)

    routes = [Route("/retrieve", retrieve, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: other})


async def _body(request: "Request") -> bytes:
    """The body, unless it is too large; what is beyond the limit is not read into memory."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise BadRequest("body", f"must have at most {MAX_BODY_BYTES} bytes: send several requests", 413)
    return bytes(body)


def _document(found: Found, *, scores: bool) -> dict[str, Any]:
    passage: Passage = found.passage
    # Title and text besides, since contents cannot tell quotation marks around a title from those in it.
    document: dict[str, Any] = {
        "id": passage.id,
        "contents": contents(passage),
        "title": passage.title,
        "text": passage.text,
    }
    return {"document": document, "score": found.score} if scores else document


def load_scored(settings: Serve) -> ScoredRetriever:
    """The retriever to serve; raises as `igrpo_train.data.load_retriever`."""
    if not settings.index:
        return BM25Retriever(read_passages(settings.corpus), k1=settings.k1, b=settings.b)
    from igrpo_train.search.dense import DenseRetriever

    return DenseRetriever(Path(settings.index), settings.corpus, encoder=settings.encoder, device=settings.device)


def serve(settings: Serve) -> None:
    """Serve until interrupted or terminated; prints the address on standard output once requests are taken.

    Raises:
        MissingExtra: starlette or uvicorn is not installed.
        ValueError: host or port cannot be had, or corpus and index do not fit.
        FileNotFoundError: there is no such corpus or index.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise _missing("uvicorn") from error
    # Before the corpus is read: an address that is taken is told at once.
    with _listen(settings.host, settings.port) as listener:
        app = create_app(load_scored(settings), top_k=settings.topk)
        if settings.host not in ("127.0.0.1", "localhost", "::1"):
            logger.warning("listening at %s: who reaches this machine can search, without a password", settings.host)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_keep_alive=30, timeout_graceful_shutdown=10
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            # uvicorn raises the signal again when it has stopped, and then the program is to end as after any success.
            signal.signal(number, lambda number, frame: None)
        listener.listen(2048)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        sys.stdout.write(f"http://{host}:{listener.getsockname()[1]}/retrieve\n")
        sys.stdout.flush()
        uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    wrong_host = f"host must be an address of this machine, got {host!r}"
    remedy = "give --host 127.0.0.1, or 0.0.0.0 for all of them"
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind, protocol)
    # A UnicodeError is a name that cannot be one.
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{wrong_host} ({getattr(error, 'strerror', None) or error}): {remedy}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ValueError(f"{wrong_host} ({error.strerror}): {remedy}") from error
        raise ValueError(
            f"port must be free on this machine, got {host}:{port} ({error.strerror or error}): give another --port or "
            "--host"
        ) from error
    return listener


def _missing(package: str) -> MissingExtra:
    return MissingExtra(package, "to serve passages", "pip install 'igrpo-train[server]'")
