"""curves: metrics of runs -> one picture of how they learnt."""

import json
from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PANELS = {
    "validation/exact_match": "exact match, held out",
    "rollout/exact_match": "exact match, training rollouts",
    "update/entropy": "entropy (nats)",
    "tree/truncated_share": "truncated share of paths",
}


def read_metrics(run: Path) -> list[dict[str, float | None]]:
    """Lines of a run's `metrics.jsonl`, in order."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def draw_curves(runs: Mapping[str, Path], picture: Path) -> None:
    """Draw the panels, one line a run, over training steps.

    Args:
        runs: name and run folder.
        picture: PNG to write.
    """
    figure, axes = plt.subplots(2, 2, figsize=(9, 6), layout="constrained")
    for axis, (name, label) in zip(axes.flat, PANELS.items(), strict=True):
        for run, folder in runs.items():
            points = [(line["step"], line[name]) for line in read_metrics(folder) if line.get(name) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), label=run)
        axis.set_xlabel("step")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes.flat[0].legend()
    figure.savefig(picture, dpi=120)
    plt.close(figure)
