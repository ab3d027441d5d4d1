"""reporting: what a benchmark measured, and on what -> the terminal, and a JSON file where asked."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Class of the machine, versions and commit: what figures depend on besides recipe and seed."""
    here = Path(__file__).parent
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, check=False
    )
    return {
        "cpus": os.cpu_count(),
        "cpu": _cpu(),
        "threads": os.environ.get("OMP_NUM_THREADS", "as torch chooses"),
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "torch": metadata.version("torch"),
        "commit": described.stdout.strip() or None,
    }


def check_counts(**counts: int) -> None:
    """End with a message where a flag that counts is below 1."""
    for name, count in counts.items():
        if count < 1:
            raise SystemExit(f"--{name.replace('_', '-')} must be at least 1, got {count}: medians need a measurement")


def report(text: str, figures: Mapping[str, Any], path: Path | None) -> None:
    """Print the tables, and write the figures where asked."""
    print(text)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
