"""records: graded answers -> lines of a file that an evaluation can go on from.

In: `Record`s as they come, and the settings that they depend on. Out: `records.jsonl` with one JSON object a
question-sample, and `settings.json` beside it. Of several processes each writes a part, `records.part-K.jsonl`, until
one of them merges the parts.
A question counts as done when all of its samples are in the file; what a crash left half written is dropped and redone.
Source: ours.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeAlias

from igrpo_train.errors import DiskError
from igrpo_train.question import Question
from igrpo_train.settings import changes
from igrpo_train.tracking import write_text

RECORDS: Final = "records.jsonl"
SETTINGS: Final = "settings.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One answer to one question, graded, with how it came about."""

    id: str
    """Of the question."""
    sample: int
    """Which of the question's samples, from 0."""
    question: str
    source: str
    """Data set, empty when unknown."""
    hops: int
    """Facts to chain, 0 when unknown."""
    golds: tuple[str, ...]
    """Accepted answers."""
    prediction: str | None
    """The answer, None when there is none."""
    answered: bool
    exact_match: float
    """1 or 0, by `igrpo_train.rewards.exact_match`."""
    f1: float
    """In [0, 1], by `igrpo_train.rewards.f1`."""
    turns: int
    searches: int
    """Searches that were carried out: one in the last allowed turn is not."""
    tool_calls_official: int
    """Tool calls as the official code counts them: every turn that does not end the episode, whatever it holds."""
    invalid_turns: int
    """Turns without exactly one clear action."""
    truncated_turns: int
    """Turns whose response was cut by `agent.max_response_tokens`."""
    prompt_tokens: int
    """Tokens of the contexts that the turns were sampled in, a whole context a turn."""
    response_tokens: int
    """Tokens that the policy sampled, all turns together."""
    root_score: float | None
    """s(h_0; a), the answer score before the first turn, in [0, 1]; None when scores were not asked for."""
    scores: tuple[float | None, ...]
    """s after each turn, in [0, 1]; None for a turn that ends the episode or was not scored."""
    answer_seen: tuple[bool, ...]
    """Whether an accepted answer stands in the documents of this turn or an earlier one (`igrpo_eval.evidence`)."""
    transcript: tuple[Mapping[str, Any], ...]
    """The turns as `igrpo_train.search.session.turn_record` writes them: text, action, observation and so on."""
    seconds: float = field(compare=False)
    """Wall time of its batch over the batch's records; a measurement, so it is no part of a record's identity."""


def record_to_line(record: Record) -> str:
    """One line of JSON, without its end; `record_from_row` reads it back."""
    return json.dumps(asdict(record), ensure_ascii=False, allow_nan=False)


def record_from_row(row: Mapping[str, Any]) -> Record:
    """A record from its JSON object.

    Raises:
        ValueError: the object does not have exactly the fields of a record, or one holds what it cannot.
    """
    if not isinstance(row, Mapping) or set(row) != set(_FIELDS):
        given = sorted(row) if isinstance(row, Mapping) else row
        raise ValueError(f"a record must have the fields {', '.join(_FIELDS)}, got {given}")
    for name, (passes, rule) in _RULES.items():
        if not passes(row[name]):
            raise ValueError(f"{name} must be {rule}, got {str(row[name])[:60]!r}")
    return Record(**{**row, **{name: tuple(row[name]) for name in _LISTS}})


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_share(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1  # type: ignore[operator]


def _is_list(value: object, passes: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and all(map(passes, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_COUNTS: Final = ("sample", "hops", "searches", "tool_calls_official", "invalid_turns", "truncated_turns")
_Rule: TypeAlias = tuple[Callable[[Any], bool], str]
_RULES: Final[dict[str, _Rule]] = {
    **dict.fromkeys(("id", "question", "source"), (_is_text, "a text")),
    **dict.fromkeys((*_COUNTS, "prompt_tokens", "response_tokens"), (_is_count, "a whole number of at least 0")),
    "turns": (lambda value: _is_count(value) and value >= 1, "a whole number of at least 1"),
    "golds": (lambda value: _is_list(value, _is_text), "a list of texts"),
    "prediction": (lambda value: value is None or _is_text(value), "a text or null"),
    "answered": (lambda value: isinstance(value, bool), "true or false"),
    "exact_match": (lambda value: _is_share(value) and value in (0, 1), "0 or 1"),
    "f1": (_is_share, "between 0 and 1"),
    "root_score": (lambda value: value is None or _is_share(value), "null or between 0 and 1"),
    "scores": (
        lambda value: _is_list(value, lambda one: one is None or _is_share(one)),
        "a list of nulls and numbers between 0 and 1",
    ),
    "answer_seen": (lambda value: _is_list(value, lambda one: isinstance(one, bool)), "a list of true and false"),
    "transcript": (lambda value: _is_list(value, lambda one: isinstance(one, Mapping)), "a list of objects"),
    "seconds": (lambda value: type(value) in (int, float) and 0 <= value < float("inf"), "a number of at least 0"),
}
_FIELDS: Final = tuple(entry.name for entry in fields(Record))
_LISTS: Final = ("golds", "scores", "answer_seen", "transcript")


def read_records(path: Path) -> list[Record]:
    """All records of a file; a last line without its end was cut off by a crash and is left out.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another line is no record; the message names it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"records must be a file, got {str(path)!r}: evaluate first")
    lines = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            records.append(record_from_row(json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: {error}: the file was changed, remove the line") from error
    if lines[-1]:
        logger.warning("%s ends in the middle of a record: it is dropped and redone", path)
    return records


def open_folder(folder: Path, settings: Mapping[str, object], *, samples: int, resume: bool) -> list[Record]:
    """Make or reopen the folder of an evaluation.

    Args:
        folder: gets `settings.json`, and later the records.
        settings: everything that a record depends on, flat.
        samples: records that a question has when it is done.
        resume: go on with the records that are there, if any.

    Returns:
        the records of all questions that are done; the file then holds exactly these.

    Raises:
        ValueError: the folder holds records and `resume` is not given, or they were written by other settings.
        FileNotFoundError: there are records without the settings that they depend on.
        DiskError: the folder cannot be written.
    """
    kept: list[Record] = []
    if any(path.stat().st_size for path in (folder / RECORDS, *_parts(folder)) if path.exists()):
        if not resume:
            raise ValueError(
                f"out must be a new folder, got {str(folder)!r}, which holds records: add --resume, or name another"
            )
        _check_same(folder / SETTINGS, json.loads(json.dumps(settings)))
        kept = settle_records(folder, samples)
    make_folder(folder)
    write_text(folder / SETTINGS, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    return kept


def part_path(folder: Path, process: int, processes: int) -> Path:
    """The file that a process writes to: the whole one where it is alone, else its own part.

    Example:
        >>> part_path(Path("out"), 1, 2).name, part_path(Path("out"), 0, 1).name
        ('records.part-1.jsonl', 'records.jsonl')
    """
    return folder / (RECORDS if processes == 1 else f"records.part-{process}.jsonl")


def settle_records(folder: Path, samples: int, order: Sequence[str] = ()) -> list[Record]:
    """Merge the parts, however many there are, into one file that holds finished questions only.

    Safe to repeat: parts go after the merged file is on the disk, and a record that is in both counts once.

    Args:
        folder: of the evaluation.
        samples: records that a question has when it is done.
        order: ids whose records come first, in this order and then by sample; others keep their place behind them.

    Raises:
        ValueError: a line is no record.
    """
    path, parts = folder / RECORDS, _parts(folder)
    found: dict[tuple[str, int], Record] = {}
    for file in (path, *parts):
        for record in read_records(file) if file.exists() else ():
            found.setdefault((record.id, record.sample), record)
    have = Counter(id_ for id_, _ in found)
    place = {id_: number for number, id_ in enumerate(order)}
    kept = [record for record in found.values() if have[record.id] == samples]
    kept.sort(key=lambda record: (place[record.id], record.sample) if record.id in place else (len(place), 0))
    text = "".join(record_to_line(record) + "\n" for record in kept)
    if not path.exists() or text.encode() != path.read_bytes():
        write_text(path, text)
    for part in parts:
        part.unlink()
    return kept


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("records.part-*.jsonl"))


def check_questions(records: Sequence[Record], questions: Sequence[Question], folder: Path) -> None:
    """Refuse to go on with records of questions that now have another text or other answers.

    Raises:
        ValueError: names the first such question.
    """
    asked = {question.id: question for question in questions}
    for record in records:
        question = asked.get(record.id)
        recorded = (record.question, record.golds)
        given = recorded if question is None else (question.text, question.answers)
        if recorded != given:
            raise ValueError(
                f"question {record.id!r} must be {recorded!r} as in {folder / RECORDS} to resume, got {given!r}: "
                "restore the file of data.validation, or give --out a new folder"
            )


def make_folder(folder: Path) -> None:
    """Make the folder of an evaluation unless it is there.

    Raises:
        DiskError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(
            f"out must be a folder that can be written, got {str(folder)!r} ({error.strerror}): name another"
        ) from error


def _check_same(path: Path, settings: Mapping[str, object]) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"out must hold {SETTINGS} to resume, got no {str(path)!r}: give --out a new folder")
    try:
        saved = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} must be JSON to resume, got {error}: restore it or give --out a new folder"
        ) from error
    for name, (made, now) in changes(saved, settings).items():
        raise ValueError(
            f"{name} must be {made} as in {path} to resume, got {now}: set it back, or give --out a new folder"
        )
