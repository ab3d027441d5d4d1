"""correlate: simulated scored paths -> seconds and memory of within-question statistics and their bootstrap.

    python -m benchmarks.correlate --json correlate.json

Paths come in questions of a few chains. A question has a chance of success of its own, and a value is a normal number,
shifted for a success and with the question's ease. "One score" is AUC and Pearson's correlation of one number with
their intervals; "whole study" is every table of `igrpo-eval correlate` for one policy, without reading files.
"""

import os

# Before numpy is loaded: further threads gain nothing here.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import resource
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tyro

from benchmarks.reporting import check_counts, machine, report
from igrpo_eval.association import auc, estimate, pearson, question_sums
from igrpo_eval.correlation import path_values, study
from igrpo_eval.trajectories import Policy, Trajectories

TURNS = 4


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What to measure."""

    trajectories: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """Numbers of paths, from small to large: the memory is the peak so far."""
    samples: int = 5
    """Chains of a question."""
    resamples: int = 1_000
    """Bootstrap resamples of questions."""
    repeats: int = 3
    """Rounds; figures are medians over rounds, with the range."""
    study: bool = True
    """Also measure the whole study, once."""
    json: Path | None = None
    """Where to write the figures; only printed when left out."""


def simulate(num_paths: int, samples: int, rng: np.random.Generator) -> Trajectories:
    """Chains whose value tells their outcome, in a few data sets."""
    question = np.arange(num_paths) // samples
    ease = rng.beta(1, 1, question[-1] + 1)[question]
    success = rng.random(num_paths) < ease
    length = rng.integers(2, TURNS + 1, num_paths)
    score = rng.beta(1.0 + success + ease, 3.0, (TURNS, num_paths)).T.copy()
    score[np.arange(TURNS) >= length[:, None] - 1] = np.nan
    return Trajectories(
        policy=np.zeros(num_paths, dtype=np.int64),
        step=np.full(num_paths, -1),
        question=question,
        unit=question,
        source=question % 7,
        hops=question % 3 + 1,
        success=success,
        complete=np.ones(num_paths, dtype=bool),
        length=length,
        score=score,
        root=np.zeros(num_paths),
        seen=rng.random((num_paths, TURNS)).cumsum(axis=1) > 1,
        policies=(Policy("simulated", None, None, 1.0, False, 0),),
        sources=tuple(f"set {number}" for number in range(7)),
    )


def measure(arguments: Arguments) -> dict[str, Any]:
    """Rounds of each size, small first."""
    check_counts(samples=arguments.samples, resamples=arguments.resamples, repeats=arguments.repeats)
    check_counts(trajectories=min(arguments.trajectories, default=0))
    rows = []
    for num_paths in sorted(arguments.trajectories):
        paths = simulate(num_paths, arguments.samples, np.random.default_rng(0))
        rounds = [_one_score(paths, arguments.resamples) for _ in range(arguments.repeats)]
        row = {"trajectories": num_paths, "rounds": rounds, "one_score_peak_gib": _peak_gib()}
        if arguments.study:
            start, used = time.perf_counter(), time.process_time()
            study(paths, resamples=arguments.resamples)
            row |= {"study_s": time.perf_counter() - start, "study_cpu_s": time.process_time() - used}
            row["study_peak_gib"] = _peak_gib()
        rows.append(row)
    return {"samples": arguments.samples, "resamples": arguments.resamples, "rows": rows, "machine": machine()}


def _one_score(paths: Trajectories, resamples: int) -> dict[str, float]:
    """Seconds of V, of the sums and of the intervals, with the AUC."""
    start, used = time.perf_counter(), time.process_time()
    values = np.nansum(path_values(paths), axis=1)
    sums = question_sums(values, paths.success, paths.unit, paths.question)
    middle = time.perf_counter()
    area, _ = estimate(sums, (auc, pearson), seed=0, resamples=resamples)
    stop = time.perf_counter()
    assert area.value is not None
    return {
        "sums_s": middle - start,
        "bootstrap_s": stop - middle,
        "whole_s": stop - start,
        "cpu_s": time.process_time() - used,
        "auc": area.value,
    }


def _peak_gib() -> float:
    """Largest memory of the process so far; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def table(figures: dict[str, Any]) -> str:
    """The figures as a Markdown table."""
    titles = ["trajectories", "sums s", "bootstrap s", "one score s", "range", "CPU s", "peak GiB"]
    titles += ["whole study s", "CPU s", "peak GiB"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in figures["rows"]:
        names = ("sums_s", "bootstrap_s", "whole_s", "cpu_s")
        sums, bootstrap, whole, cpu = (median(one[name] for one in row["rounds"]) for name in names)
        rounds = [one["whole_s"] for one in row["rounds"]]
        cells = [f"{row['trajectories']:,}", f"{sums:.2f}", f"{bootstrap:.2f}", f"{whole:.2f}"]
        cells += [f"{min(rounds):.2f} to {max(rounds):.2f}", f"{cpu:.2f}", f"{row['one_score_peak_gib']:.2f}"]
        if "study_s" in row:
            cells += [f"{row['study_s']:.1f}", f"{row['study_cpu_s']:.1f}", f"{row['study_peak_gib']:.2f}"]
        else:
            cells += ["-"] * 3
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    arguments = tyro.cli(Arguments, description=__doc__)
    figures = measure(arguments)
    report(table(figures), figures, arguments.json)


if __name__ == "__main__":
    main()
