"""reporting: folders of finished evaluations -> tables, and the difference of each to the first.

In: `FOLDER [FOLDER ...] [--force] [--json] [--pass_k K ...]`. Out: what is shown on standard output.
Source: ours.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import tyro
from rich.console import RenderableType
from rich.text import Text

from igrpo_eval.comparison import Comparison, compare, comparison_to_dict
from igrpo_eval.finished import Finished, read_finished
from igrpo_eval.metrics import Summary, summary_to_dict
from igrpo_eval.report import behaviour_table, comparison_table, show_table, summary_table
from igrpo_eval.sets import summarise_sets
from igrpo_train.checks import check, natural

PROGRAM: Final = "igrpo-eval report"
USAGE: Final = f"{PROGRAM} FOLDER [FOLDER ...] [--force] [--json] [--pass_k K ...]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Which evaluations to show, and how."""

    folders: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders that igrpo-eval run wrote; every further one is compared with the first."""
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Compare runs that differ in more than the policy, on the questions that both have."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON instead of tables."""
    pass_k: tuple[int, ...] = ()
    """Also report pass@k for these k, each at most the samples of a question."""
    seed: int = 0
    """Of intervals and drawn sign patterns."""

    def __post_init__(self) -> None:
        check("folders", self.folders, bool(self.folders), "at least one", USAGE)
        places = {os.path.realpath(os.path.expanduser(folder)) for folder in self.folders}
        check("folders", self.folders, len(places) == len(self.folders), "different ones", "remove one")
        check("seed", self.seed, natural(self.seed), "at least 0")
        check("pass_k", self.pass_k, all(k >= 1 for k in self.pass_k), "at least 1 each")


def load_report(args: Sequence[str]) -> Report:
    """Read the flags of a report.

    Raises:
        SystemExit: an unknown flag or a wrong value (code 2, explained on standard error), or `--help` (code 0).

    Example:
        >>> load_report(["runs/a", "runs/b", "--force"]).folders
        ('runs/a', 'runs/b')
    """
    return tyro.cli(Report, prog=PROGRAM, description=USAGE, args=list(args), use_underscores=True)


def show_report(report: Report) -> None:
    """Read, summarise, compare, then show everything at once.

    Raises:
        FileNotFoundError, ValueError: a folder holds no finished evaluation; or runs differ in more than the policy.
    """
    runs = [read_finished(folder) for folder in report.folders]
    summaries = [_summarise(run, report) for run in runs]
    comparisons = [compare(runs[0], run, force=report.force, seed=report.seed) for run in runs[1:]]
    if report.json:
        sys.stdout.write(json.dumps(_as_json(runs, summaries, comparisons), indent=2, ensure_ascii=False) + "\n")
        return
    parts: list[RenderableType] = []
    for run, rows in zip(runs, summaries, strict=True):
        parts += [_heading(run), summary_table(rows), behaviour_table(rows), ""]
    for comparison in comparisons:
        parts += [*_warning(comparison), comparison_table(comparison), ""]
    show_table(*parts)


def _summarise(run: Finished, report: Report) -> list[Summary]:
    try:
        return summarise_sets(run.records, seed=report.seed, pass_k=report.pass_k)
    except ValueError as error:
        raise ValueError(f"{run.name}: {error}") from error


def _as_json(
    runs: Sequence[Finished], summaries: Sequence[Sequence[Summary]], comparisons: Sequence[Comparison]
) -> dict[str, object]:
    described = [
        {"folder": run.name, "settings": dict(run.settings), "groups": [summary_to_dict(row) for row in rows]}
        for run, rows in zip(runs, summaries, strict=True)
    ]
    return {"runs": described, "comparisons": [comparison_to_dict(comparison) for comparison in comparisons]}


def _heading(run: Finished) -> Text:
    step = run.settings.get("step")
    model = f"{run.settings.get('model.path')}" + ("" if step is None else f", step {step}")
    return Text(f"{run.name}: {model}, temperature {run.settings.get('temperature')}", style="bold")


def _warning(comparison: Comparison) -> list[RenderableType]:
    """What makes a forced comparison unfair, to stand above its table."""
    if not comparison.differing:
        return []
    lines = [f"  {name}: {made} | {now}" for name, (made, now) in comparison.differing.items()]
    head = f"{comparison.first} | {comparison.second} differ in more than the policy:"
    return [Text("\n".join([head, *lines]), style="yellow")]
