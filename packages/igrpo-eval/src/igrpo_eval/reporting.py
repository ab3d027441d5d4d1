"""reporting: folders of evaluations -> their tables, and the difference of two.

Source: ours.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from igrpo_eval.comparison import check_comparable, compare
from igrpo_eval.metrics import summarise
from igrpo_eval.records import RECORDS, SETTINGS, Record, read_records
from igrpo_eval.report import comparison_json, comparison_table, pass_table, report_json, summary_table
from igrpo_train.checks import check
from igrpo_train.tracking import write_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Tables of an evaluation, or of two and their difference."""

    folders: Annotated[tuple[str, ...], tyro.conf.Positional]
    """One folder of `igrpo-eval run`, or two to compare: the second less the first."""
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Compare evaluations that differ in more than their models, on the questions that they share."""
    seed: int = 0
    """Of intervals and sign changes."""
    json: str = ""
    """Write everything to this file, too."""

    def __post_init__(self) -> None:
        check("folders", " ".join(self.folders), len(self.folders) in (1, 2), "one folder, or two to compare")
        check("seed", self.seed, self.seed >= 0, "at least 0")


def report(settings: Report) -> dict[str, Any]:
    """Print the tables and return what they hold.

    Raises:
        FileNotFoundError: a folder holds no finished evaluation.
        ValueError: a file was changed, or two evaluations cannot be compared and `force` is not given.
        DiskError: the JSON file cannot be written.
    """
    console = Console(width=None if sys.stdout.isatty() else 120)
    evaluations = [_read(Path(folder).expanduser()) for folder in settings.folders]
    found: dict[str, Any] = {"evaluations": []}
    for folder, (own, records) in zip(settings.folders, evaluations, strict=True):
        summaries = summarise(records, seed=settings.seed)
        found["evaluations"].append({"folder": folder, **report_json(summaries, own, {}, records)})
        console.print(f"\n{folder}", markup=False, highlight=False)
        console.print(summary_table(summaries, records))
        passes = pass_table(summaries)
        if passes is not None:
            console.print(passes)
    if len(evaluations) == 2:
        (first, first_records), (second, second_records) = evaluations
        differing = check_comparable(first, second, first_records, second_records)
        if differing and not settings.force:
            raise ValueError(
                f"evaluations must agree in all but their models to be compared, got {'; '.join(differing)}: "
                "evaluate again alike, or add --force"
            )
        for line in differing:
            console.print(f"differs: {line}", markup=False, highlight=False)
        comparisons = compare(first_records, second_records, seed=settings.seed)
        found["comparison"] = comparison_json(comparisons, differing)
        console.print(comparison_table(comparisons))
    if settings.json:
        write_text(Path(settings.json).expanduser(), json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return found


def _read(folder: Path) -> tuple[dict[str, Any], list[Record]]:
    """Settings and records of a folder.

    Raises:
        FileNotFoundError: there are none.
        ValueError: the settings are no JSON, or there is no whole record.
    """
    path = folder / SETTINGS
    if not path.is_file():
        raise FileNotFoundError(f"folders must hold evaluations, got {str(folder)!r} without {SETTINGS}: run it first")
    try:
        own = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be JSON, got {error}: restore it or evaluate again") from error
    if any(folder.glob("records.*.part.jsonl")):
        raise ValueError(f"{folder} must hold a finished evaluation, got parts of one: go on with its --resume first")
    records = read_records(folder / RECORDS)
    if not records:
        raise ValueError(f"{folder / RECORDS} must hold a record, got none: go on with its --resume first")
    return own, records
