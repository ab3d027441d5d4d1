"""The GPU script at its smallest size on a CPU, with nothing at hand but what its GPU machine has."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def required(*names: str) -> set[str]:
    """Names of distributions that these bring, themselves included."""
    found: set[str] = set()
    left = list(names)
    while left:
        name = left.pop().lower().replace("_", "-")
        if name not in found:
            found.add(name)
            wanted = map(Requirement, metadata.requires(name) or [])
            left += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


@pytest.mark.slow
def test_it_runs_with_torch_transformers_accelerate_and_numpy_alone(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    for name in required("torch", "transformers", "accelerate", "numpy"):
        for file in metadata.files(name) or []:
            link = site / file.parts[0]
            if not link.exists() and file.parts[0] not in ("..", "__pycache__"):
                link.symlink_to(Path(str(file.locate())).parents[len(file.parts) - 1] / file.parts[0])
    assert not any((site / name).exists() for name in ("scipy", "jaxtyping", "tyro", "bm25s"))
    python = tmp_path / "python"
    # Without the environment's own site-packages.
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python), "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    small = ("--size", "tiny", "--num-questions", "2", "--response-tokens", "20", "--repeats", "1")
    done = subprocess.run(
        [ROOT / "scripts" / "gpu_check.sh", tmp_path / "out", *small],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert figures["accepted_packing"] == "tree"
    assert 0 < figures["summary"]["scoring_share_of_rollout"] < 1
    assert figures["summary"]["tree_to_path_tokens"] < 0.5
    norms = {packing: several[0]["gradient_norm"] for packing, several in figures["training"].items()}
    assert norms["tree"] == pytest.approx(norms["path"], rel=0.01)
