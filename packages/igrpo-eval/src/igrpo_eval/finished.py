"""finished: the folder of an evaluation that came to its end -> its settings and records.

`summary.json` is written last and removed before anything is added, so it marks the end.
Source: ours.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from igrpo_eval.records import RECORDS, SETTINGS, Record, read_records

SUMMARY: Final = "summary.json"
_REMEDIES: Final = {
    SETTINGS: "restore it, or evaluate into a new folder",
    SUMMARY: "remove it, and igrpo-eval run with --resume writes it again",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """One evaluation."""

    name: str
    """Its folder, as given."""
    settings: Mapping[str, Any]
    records: tuple[Record, ...]


def read_finished(name: str) -> Finished:
    """Read a folder that `igrpo-eval run` wrote and finished.

    Raises:
        FileNotFoundError: it is no such folder, or the evaluation was stopped.
        ValueError: a file is damaged, or records are missing or there twice.
    """
    folder = Path(name).expanduser()
    if not (folder / SETTINGS).is_file():
        raise FileNotFoundError(f"folder must hold an evaluation, got {name!r} without {SETTINGS}: evaluate first")
    if not (folder / SUMMARY).is_file():
        raise FileNotFoundError(
            f"folder must hold a finished evaluation, got {name!r} without {SUMMARY}: finish it with igrpo-eval run "
            "and --resume"
        )
    settings, summary = _read_json(folder / SETTINGS), _read_json(folder / SUMMARY)
    records = read_records(folder / RECORDS)
    twice = next((key for key, number in Counter((r.id, r.sample) for r in records).items() if number > 1), None)
    if twice is not None:
        raise ValueError(
            f"{folder / RECORDS} must hold a record once, got sample {twice[1]} of question {twice[0]!r} twice: "
            "the file was changed, remove one"
        )
    try:
        least = int(summary["groups"][0]["num_records"])
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{folder / SUMMARY} must count its records, got {error!r}: {_REMEDIES[SUMMARY]}") from error
    if len(records) < least:
        raise ValueError(
            f"{folder / RECORDS} must hold the {least:,} records of {SUMMARY}, got {len(records):,}: the file was cut, "
            "go on with igrpo-eval run and --resume"
        )
    return Finished(name=name, settings=settings, records=tuple(records))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON, got {error}: {_REMEDIES[path.name]}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must be a JSON object, got {str(value)[:60]!r}: {_REMEDIES[path.name]}")
    return value
