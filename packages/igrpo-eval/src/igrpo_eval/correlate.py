"""correlate: folders of scored paths -> tables, verdicts, `correlate.json`, the curves of figure 3.

    igrpo-eval correlate FOLDER [FOLDER ...] [--out FILE.json] [--figure FILE.svg]

Source: ours, see docs/correlate.md.

Example:
    >>> load_correlation(["evaluations/a", "--seed", "3"]).file.name
    'correlate.json'
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import tyro
from rich.console import Console

from igrpo_eval.association import RESAMPLES
from igrpo_eval.correlation import study
from igrpo_eval.correlation_report import gains_csv, studies_json, study_tables, verdict_table
from igrpo_eval.gain_figure import check_figures, draw_gains
from igrpo_eval.trajectories import read_trajectories
from igrpo_theory.growth import RootScore
from igrpo_train.checks import check, count, seed
from igrpo_train.folders import writing
from igrpo_train.tracking import write_text

USAGE: Final = "igrpo-eval correlate FOLDER [FOLDER ...] [--key value ...]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Correlation:
    """Does V(o) tell R(o)? Compares successes and failures of the same question."""

    folders: tyro.conf.Positional[tuple[str, ...]]
    """Of evaluations with scores (records.jsonl), or of training runs (trees.jsonl)."""
    out: str | None = None
    """JSON file with every number; correlate.json in the first folder by default. A CSV of figure 3 goes beside it."""
    figure: str | None = None
    """Where to draw figure 3, as SVG; not drawn by default."""
    root_score: RootScore = "zero"
    """Score of the bare question in V: 0 (the paper), or as it was evaluated."""
    seed: int = 0
    """Of the intervals: equal seeds give equal ones."""
    resamples: int = RESAMPLES
    """Bootstrap resamples of questions behind each interval."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the JSON instead of the tables."""

    def __post_init__(self) -> None:
        check("folders", self.folders, bool(self.folders), "at least one folder", f"usage: {USAGE}")
        check("seed", self.seed, seed(self.seed), "between 0 and 2**64 - 1")
        check("resamples", self.resamples, count(self.resamples), "at least 1", f"{RESAMPLES} is usual")
        for name, suffix in (("out", ".json"), ("figure", ".svg")):
            value = getattr(self, name)
            check(name, value, value is None or value.endswith(suffix), f"a path that ends in {suffix}")
        taken = Path(self.out or "").name in ("settings.json", "summary.json", "config.json", "code.json")
        check("out", self.out, not taken, "a file of its own", "what is read stands under that name")

    @property
    def file(self) -> Path:
        """Where the numbers go."""
        return Path(self.folders[0] if self.out is None else self.out).expanduser() / (
            "correlate.json" if self.out is None else ""
        )


def load_correlation(args: Sequence[str]) -> Correlation:
    """Read the command's words.

    Raises:
        ValueError: a setting is out of range.
        SystemExit: an unknown key or a wrong value (code 2, explained on standard error), or `--help` (code 0).
    """
    return tyro.cli(Correlation, prog="igrpo-eval correlate", description=USAGE, args=args, use_underscores=True)


def correlate(settings: Correlation) -> None:
    """Read the folders, write the files and show the tables.

    Raises:
        ValueError, FileNotFoundError: the folders do not hold what is needed; the message says what to do.
        MissingExtra: a figure is asked for without matplotlib.
        DiskError: a file cannot be written.
    """
    if settings.figure is not None:
        check_figures()
    paths = read_trajectories([Path(folder).expanduser() for folder in settings.folders])
    studies = study(paths, root_score=settings.root_score, seed=settings.seed, resamples=settings.resamples)
    given = {name: getattr(settings, name) for name in ("folders", "root_score", "seed", "resamples")}
    numbers = json.dumps(studies_json(studies, given), indent=2, ensure_ascii=False, allow_nan=False)
    curves = settings.file.with_suffix(".csv")
    with writing(settings.file):
        settings.file.parent.mkdir(parents=True, exist_ok=True)
    write_text(settings.file, numbers + "\n")
    write_text(curves, gains_csv(studies))
    written = [settings.file, curves]
    if settings.figure is not None:
        draw_gains(studies, Path(settings.figure).expanduser())
        written.append(Path(settings.figure).expanduser())
    # Elsewhere rich takes 80 columns, which cut the tables.
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    if settings.json:
        sys.stdout.write(numbers + "\n")
        return
    for one in studies:
        for table in study_tables(one):
            console.print(table)
    if any(one.verdicts for one in studies):
        console.print()
        console.print(verdict_table(studies))
    console.print(f"\nwrote {', '.join(map(str, written))}", markup=False, soft_wrap=True)
