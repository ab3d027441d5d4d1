"""retrieval_servers: servers on the loopback interface that tests talk to."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = tuple[int, bytes]


def as_json(value: object, status: int = 200) -> Reply:
    return status, json.dumps(value).encode()


@contextlib.contextmanager
def scripted(answer: Callable[[int, dict], Reply]) -> Iterator[tuple[str, list[dict]]]:
    """A foreign server: answers request number n (from 0) as told; yields its address and the bodies that it got."""
    bodies: list[dict] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                bodies.append(body)
                number = len(bodies) - 1
            status, reply = answer(number, body)
            self.send_response(status)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(reply)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    # A client that gave up is what some tests are about, not an error to print.
    server.handle_error = lambda request, client: None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/retrieve", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def served(retriever: object, top_k: int = 3) -> Iterator[str]:
    """Our own application over a retriever, in a thread; yields its address."""
    import uvicorn

    from igrpo_train.search.server import create_app

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        config = uvicorn.Config(create_app(retriever, top_k=top_k), log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/retrieve"
        finally:
            server.should_exit = True
            thread.join()


class Command:
    """`igrpo-train serve` in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "igrpo_train", "serve", *arguments],
            env={**os.environ, "JAXTYPING_DISABLE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def address(self) -> str:
        """Waits until it takes requests."""
        line = self.process.stdout.readline().strip()
        assert line.startswith("http://"), self.process.communicate()[1]
        return line

    def end(self, number: int = signal.SIGKILL) -> tuple[int, str]:
        """Code and what stood on standard error."""
        self.process.send_signal(number)
        error = self.process.communicate(timeout=60)[1]
        return self.process.returncode, error


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
