"""A run over HTTP equals a run in one process, and a retriever that dies takes nothing with it."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs igrpo-train[server]")

from retrieval_servers import Command, free_port

CORPUS = "miniature:leak/train+validation+test"


def _folder(arguments):
    [flag] = [argument for argument in arguments if argument.startswith("--run.folder=")]
    return Path(flag.partition("=")[2])


def _metrics(arguments):
    lines = (_folder(arguments) / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def _trainer(arguments, **options):
    from igrpo_train.recipes import load_recipe
    from igrpo_train.trainer import Trainer

    return Trainer(load_recipe(arguments), **options)


def _over_http(port, **settings):
    flags = {"kind": "http", "url": f"http://127.0.0.1:{port}/retrieve", **settings}
    return [f"--retrieval.{name}={value}" for name, value in flags.items()]


def _served(port):
    server = Command(CORPUS, "--port", str(port))
    server.address()
    return server


@pytest.fixture
def whole(small_run):
    """Metrics of a run that searches in its own process."""
    arguments = small_run("--retrieval.kind=bm25", folder="whole")
    _trainer(arguments).run()
    return _metrics(arguments)


@pytest.mark.slow
def test_a_run_waits_for_a_server_that_was_killed_and_goes_on_as_if_nothing_had_happened(small_run, whole):
    port = free_port()
    servers = [_served(port)]
    arguments = small_run(*_over_http(port), folder="http")
    later = threading.Timer(1.0, lambda: servers.append(_served(port)))

    def kill(step, metrics):
        if step == 2:
            servers[0].end()
            later.start()

    _trainer(arguments, on_step=kill).run()
    later.join()
    assert servers[1].end()[0] < 0
    assert _metrics(arguments) == whole


@pytest.mark.slow
def test_a_run_whose_server_stays_down_stops_with_its_checkpoint_and_resumes(small_run, whole):
    from igrpo_train.errors import RetrieverError
    from igrpo_train.learn import checkpoint

    port = free_port()
    server = _served(port)
    arguments = small_run(*_over_http(port, retries=1), folder="http")

    def kill(step, metrics):
        if step == 3:
            server.end()

    with pytest.raises(RetrieverError, match=r"got ConnectError .* in 2 tries: mend or restart it, then go on with"):
        _trainer(arguments, on_step=kill).run()
    assert checkpoint.latest(_folder(arguments) / "checkpoints").name == "step-000003"
    # From outside: a panel and code 2 while nothing answers, and then the same end as a run without a break.
    command = [sys.executable, "-m", "igrpo_train", *arguments, "--resume"]
    environment = {**os.environ, "JAXTYPING_DISABLE": "1"}
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2
    assert "retrieval.url must answer a search" in " ".join(refused.stderr.replace("│", " ").split())
    server = _served(port)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    server.end()
    assert done.returncode == 0, done.stderr
    assert _metrics(arguments) == whole
