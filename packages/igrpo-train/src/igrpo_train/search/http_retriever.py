"""http_retriever: queries -> passages that a Search-R1-compatible server finds.

In: `POST {"queries": [...], "topk": k, "return_scores": true}`.
Out: `{"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}`, one list a query, with or without scores.
What is not of that form is never taken for passages: it is tried again, and then it is a `RetrieverError`.
Source: [searchr1].
"""

import contextlib
import hashlib
import json
import logging
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from igrpo_train.errors import MissingExtra, RetrieverError
from igrpo_train.question import Passage

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.5
"""Mean wait before the first further try; it doubles each time."""
LONGEST_PAUSE_S: Final = 30.0
"""No wait is longer."""

MAX_QUERY_CHARACTERS: Final = 4096
"""Queries are cut here: what a policy writes must not become a request that a server refuses."""

_TRANSIENT: Final = frozenset({408, 425, 429})
_SHOWN: Final = 120


class HTTPRetriever:
    """The client of a search server; safe to share between threads.

    Proxies of the environment are not used: a retriever is a neighbour.

    Args:
        url: address of its `/retrieve`.
        timeout_s: longest wait for one reply, in seconds.
        retries: further tries of a request that got no answer, an error of the server or a malformed reply.
        batch: most queries in a request.
        connections: most requests under way at the same time.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 60.0,
        retries: int = 10,
        batch: int = 256,
        connections: int = 4,
    ) -> None:
        try:
            import httpx2
        except ImportError as error:
            raise MissingExtra("httpx2", "to search over HTTP", "pip install httpx2") from error
        self._httpx = httpx2
        self._url, self._retries, self._batch = url, retries, batch
        limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
        self._client = httpx2.Client(timeout=httpx2.Timeout(timeout_s), limits=limits, trust_env=False)
        self._pool = ThreadPoolExecutor(connections, thread_name_prefix="retriever")
        self._close = weakref.finalize(self, _close, self._pool, self._client)
        # It spreads the tries of several processes and touches no result, so it is not drawn from the recipe's seed.
        self._jitter = np.random.default_rng()

    def check(self, top_k: int = 1) -> None:
        """Make one search without further tries; call it before anything is spent.

        Args:
            top_k: passages that later searches will ask for: a server may have a limit.

        Raises:
            RetrieverError: the server does not answer as it should.
        """
        try:
            self._post(["health check"], top_k)
        except _Failure as failure:
            remedy = "start a server, for example with igrpo-train serve CORPUS, or mend the address"
            if failure.field == "topk":
                remedy = "lower agent.top_k"
            raise RetrieverError(
                f"retrieval.url must answer a search with topk = {top_k}, got {failure} from {self._url}: {remedy}"
            ) from failure.__cause__

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """At most `top_k` passages a query, best first; an empty list where nothing matches.

        Raises:
            RetrieverError: a request failed for good.
        """
        batches = [queries[first : first + self._batch] for first in range(0, len(queries), self._batch)]
        # Set when nobody waits for the rest: one batch failed for good, or the user stopped the program.
        over = threading.Event()
        try:
            if len(batches) == 1:
                return self._persist(batches[0], top_k, over)
            replies = self._pool.map(lambda part: self._persist(part, top_k, over), batches)
            return [found for reply in replies for found in reply]
        finally:
            over.set()

    def close(self) -> None:
        """Close the connections; done besides when nobody holds the retriever any more."""
        self._close()

    def _persist(self, queries: Sequence[str], top_k: int, over: threading.Event) -> list[list[Passage]]:
        """Ask until there is an answer, or the tries are used up."""
        attempt = 0
        while True:
            try:
                return self._post(queries, top_k)
            except _Failure as failure:
                if not failure.transient or attempt == self._retries or over.is_set():
                    raise RetrieverError(
                        f"retriever must answer, got {failure} from {self._url} in {attempt + 1} tries: mend or "
                        "restart it, then go on with --resume"
                    ) from failure.__cause__
                pause = min(FIRST_PAUSE_S * 2.0 ** min(attempt, 16), LONGEST_PAUSE_S) * self._jitter.uniform(0.75, 1.25)
                attempt += 1
                logger.warning(
                    "retriever at %s: %s; try %d of %d in %.1f s", self._url, failure, attempt, self._retries, pause
                )
                over.wait(pause)

    def _post(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        body = {"queries": [query[:MAX_QUERY_CHARACTERS] for query in queries], "topk": top_k, "return_scores": True}
        try:
            reply = self._client.post(self._url, json=body)
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
            raise _Failure(f"{type(error).__name__} ({error})") from error
        if reply.status_code != 200:
            transient = reply.status_code >= 500 or reply.status_code in _TRANSIENT
            shown = f"status {reply.status_code} ({_short(reply.text)})"
            raise _Failure(shown, transient=transient, field=_refused_field(reply.text))
        try:
            return parse_reply(reply.json(), len(queries), top_k)
        # A reply that is no JSON is a ValueError too, and nesting too deep a RecursionError.
        except (ValueError, RecursionError) as error:
            raise _Failure(f"a malformed reply ({_short(str(error))})") from error


def parse_reply(reply: Any, num_queries: int, top_k: int) -> list[list[Passage]]:
    r"""The passages of a server's reply; passages beyond `top_k` are dropped.

    Args:
        reply: JSON values.
        num_queries: lists that it must hold.
        top_k: passages asked for.

    Raises:
        ValueError: it has another form; the message names the place.

    Example:
        >>> parse_reply({"result": [[{"document": {"id": 3, "contents": '"Ghent"\nA city.'}, "score": 0.5}]]}, 1, 3)
        [[Passage(id='3', title='Ghent', text='A city.')]]
    """
    result = reply.get("result") if isinstance(reply, dict) else None
    if not isinstance(result, list):
        raise ValueError(f"reply must be an object with a list as result, got {_short(repr(reply))}")
    if len(result) != num_queries:
        raise ValueError(f"result must hold {num_queries} lists, one a query, got {len(result)}")
    passages = []
    for place, found in enumerate(result):
        if not isinstance(found, list):
            raise ValueError(f"result[{place}] must be a list, got {_short(repr(found))}")
        passages.append([_passage(entry, f"result[{place}][{rank}]") for rank, entry in enumerate(found[:top_k])])
    return passages


def _passage(entry: Any, place: str) -> Passage:
    document = entry.get("document", entry) if isinstance(entry, dict) else None
    if not isinstance(document, dict):
        raise ValueError(f"{place} must be an object with a document, got {_short(repr(entry))}")
    title, text, whole = (document.get(name) for name in ("title", "text", "contents"))
    # Where a server sends both forms, title and text keep the quotation marks that belong to a title.
    if not (isinstance(title, str) and isinstance(text, str) and (title or text)):
        if not isinstance(whole, str) or not whole.strip():
            raise ValueError(f"{place}.contents must be a text that is not empty, got {_short(repr(whole))}")
        title, _, text = whole.partition("\n")
        title = title.strip().strip('"')
    written = f"{title}\n{text}"
    try:
        encoded = written.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{place}.contents must be Unicode text, got half of a surrogate pair") from error
    # Search-R1's BM25 server leaves the id out.
    own_id = document.get("id")
    name = str(own_id) if isinstance(own_id, str | int) and own_id != "" else hashlib.sha256(encoded).hexdigest()[:16]
    return Passage(id=name, title=title, text=text)


def _close(pool: ThreadPoolExecutor, client: "httpx2.Client") -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    client.close()


class _Failure(Exception):
    """A request that brought no passages; transient when a later try may."""

    def __init__(self, message: str, *, transient: bool = True, field: str = "") -> None:
        super().__init__(message)
        self.transient, self.field = transient, field


def _refused_field(text: str) -> str:
    """The field that our own server names when it refuses a body; empty for any other text."""
    with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError):
        return str(json.loads(text)["error"]["field"])
    return ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "..."
