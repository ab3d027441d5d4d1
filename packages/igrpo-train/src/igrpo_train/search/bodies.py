"""bodies: the body of a search request -> what is asked for, or the field that is wrong.

Source: [searchr1] for `queries`; verl-agent's servers for `query`.
"""

import json
from typing import Any, Final, NamedTuple

MAX_BODY_BYTES: Final = 16 * 2**20
"""Largest body of a request."""
MAX_QUERIES: Final = 1024
"""Most queries of a request, and of one search."""
MAX_QUERY_CHARACTERS: Final = 8192
"""Longest query."""
MAX_TOP_K: Final = 100
"""Most passages that a query may ask for."""


class BadRequest(ValueError):
    """A body that is refused; `field` says where it is wrong."""

    def __init__(self, field: str, message: str, status: int = 400) -> None:
        super().__init__(f"{field} {message}")
        self.field, self.message, self.status = field, message, status


class Ask(NamedTuple):
    """A request that was understood."""

    queries: tuple[str, ...]
    top_k: int
    scores: bool
    """Whether documents come with their scores."""


def parse_body(body: bytes, top_k: int) -> Ask:
    """Read the body of a request, in either form.

    Args:
        body: as it came.
        top_k: passages a query where the body does not say.

    Raises:
        BadRequest: names the field that is wrong.

    Example:
        >>> parse_body(b'{"query": "Ghent", "return_scores": true}', 3)
        Ask(queries=('Ghent',), top_k=3, scores=True)
    """
    try:
        # Some clients begin with a byte-order mark.
        fields = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadRequest("body", f"must be JSON in UTF-8 ({error})") from None
    if not isinstance(fields, dict):
        raise BadRequest("body", "must be a JSON object")
    given = [name for name in ("queries", "query") if fields.get(name) is not None]
    if len(given) != 1:
        raise BadRequest("queries", f"must be given once, as queries or as query, got {given or sorted(fields)[:10]}")
    wanted = fields.get("topk")
    wanted = top_k if wanted is None else wanted
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not 1 <= wanted <= MAX_TOP_K:
        raise BadRequest("topk", f"must be a whole number from 1 to {MAX_TOP_K}, or null")
    scores = fields.get("return_scores")
    if scores is not None and not isinstance(scores, bool):
        raise BadRequest("return_scores", "must be true or false")
    return Ask(_queries(given[0], fields[given[0]]), wanted, bool(scores))


def _queries(field: str, value: Any) -> tuple[str, ...]:
    queries = [value] if field == "query" and isinstance(value, str) else value
    if not isinstance(queries, list):
        raise BadRequest(
            field, "must be a list of texts" if field == "queries" else "must be a text or a list of texts"
        )
    if len(queries) > MAX_QUERIES:
        raise BadRequest(
            field, f"must hold at most {MAX_QUERIES} texts, got {len(queries)}: send several requests", 413
        )
    for place, query in enumerate(queries):
        name = field if queries is not value else f"{field}[{place}]"
        if not isinstance(query, str):
            raise BadRequest(name, f"must be a text, got {type(query).__name__}")
        if len(query) > MAX_QUERY_CHARACTERS:
            raise BadRequest(name, f"must have at most {MAX_QUERY_CHARACTERS} characters, got {len(query)}", 413)
        try:
            query.encode()
        except UnicodeEncodeError:
            raise BadRequest(name, "must be Unicode text, got half of a surrogate pair") from None
    return tuple(queries)
