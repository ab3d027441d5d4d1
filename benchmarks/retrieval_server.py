"""retrieval_server: a corpus -> requests a second and waiting times of `igrpo-train serve` under many clients.

    python -m benchmarks.retrieval_server corpus.jsonl --json retrieval_server.json

The server runs in a process of its own; the clients, threads with one kept connection each, share the machine with it.
Every request is one query of five words of a passage, and every reply is checked; nothing is tried again.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from typing import Annotated, Any
from urllib.parse import urlsplit

import numpy as np
import tyro

from igrpo_train.question import read_passages


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to measure."""

    corpus: Annotated[str, tyro.conf.Positional]
    """Passages to serve."""
    index: str = ""
    """Folder of a dense index of them; BM25 without."""
    clients: int = 32
    """Clients at the same time."""
    requests: int = 10_000
    """Requests of all clients together, in each repetition."""
    repetitions: int = 3
    """Measurements; their median and spread are shown."""
    topk: int = 3
    """Passages a query."""
    json: Path | None = None
    """Where to write the figures; only printed when left out."""


def measure(arguments: Arguments) -> dict[str, Any]:
    """Serve the corpus and ask."""
    passages = read_passages(arguments.corpus)
    rng = np.random.default_rng(0)
    words = [passage.text.split() or [passage.title] for passage in passages]
    chosen = [words[row] for row in rng.integers(len(words), size=arguments.requests)]
    queries = [" ".join(rng.choice(text, size=5)) for text in chosen]
    with _server(arguments) as url:
        _ask(url, queries[: 8 * arguments.clients], arguments)
        runs = [_ask(url, queries, arguments) for _ in range(arguments.repetitions)]
    return {
        "retriever": "dense" if arguments.index else "bm25",
        "passages": len(passages),
        "clients": arguments.clients,
        "requests": arguments.requests * arguments.repetitions,
        "failures": sum(run["failures"] for run in runs),
        **{
            name: {"median": median(run[name] for run in runs), "all": [run[name] for run in runs]}
            for name in ("requests_per_s", "p50_ms", "p99_ms")
        },
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
    }


@contextmanager
def _server(arguments: Arguments) -> Iterator[str]:
    command = [sys.executable, "-m", "igrpo_train", "serve", arguments.corpus, "--port", "0"]
    command += ["--index", arguments.index] if arguments.index else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        process.stdout.close()


def _ask(url: str, queries: list[str], arguments: Arguments) -> dict[str, float]:
    """Send every query once; client c takes every c-th."""
    seconds = np.full(len(queries), np.nan)
    start = threading.Barrier(arguments.clients + 1)

    def client(number: int) -> None:
        connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
        start.wait()
        for place in range(number, len(queries), arguments.clients):
            body = json.dumps({"queries": [queries[place]], "topk": arguments.topk, "return_scores": True})
            begin = time.perf_counter()
            try:
                connection.request("POST", "/retrieve", body)
                reply = connection.getresponse()
                [found] = json.loads(reply.read())["result"]
                # A query of stop words alone finds nothing, which is an answer.
                if reply.status == 200 and all(each["document"]["contents"] for each in found):
                    seconds[place] = time.perf_counter() - begin
            except (OSError, HTTPException, ValueError, KeyError, TypeError):
                connection.close()
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(arguments.clients)]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    whole = time.perf_counter() - begin
    answered = seconds[~np.isnan(seconds)]
    p50, p99 = np.percentile(answered, [50, 99]) * 1000 if len(answered) else (np.nan, np.nan)
    return {
        "requests_per_s": len(answered) / whole,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "failures": len(queries) - len(answered),
    }


def table(figures: dict[str, Any]) -> str:
    """The figures as a Markdown table."""

    def cell(name: str, form: str) -> str:
        values = figures[name]
        return f"{values['median']:{form}} ({min(values['all']):{form}} to {max(values['all']):{form}})"

    return "\n".join(
        [
            "| retriever | passages | clients | requests | failures | requests a second | p50, ms | p99, ms |",
            "|---|---|---|---|---|---|---|---|",
            f"| {figures['retriever']} | {figures['passages']:,} | {figures['clients']} | {figures['requests']:,} "
            f"| {figures['failures']} | {cell('requests_per_s', ',.0f')} | {cell('p50_ms', '.1f')} "
            f"| {cell('p99_ms', '.1f')} |",
        ]
    )


def main() -> None:
    """Measure, print, and write where asked."""
    arguments = tyro.cli(Arguments, description=__doc__)
    figures = measure(arguments)
    print(table(figures))
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
