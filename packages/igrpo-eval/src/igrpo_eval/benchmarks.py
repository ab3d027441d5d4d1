"""benchmarks: names such as `nq,hotpotqa` or `all` -> questions, each marked with its set.

One table says what the seven sets are called, where they are published, which split is asked and how many questions it
has. The same names work for a folder of files (samples, or Search-R1's merged `test.parquet`) and for the miniature
worlds. Every id becomes `SET/ID`, as in the merged file: ids are unique only inside their own set.

Source: [searchr1] for sets and splits (test where there is one, else dev); sizes are those of the published files.

Example:
    >>> parse_names("bamboogle,nq")
    ('bamboogle', 'nq')
    >>> BENCHMARKS["nq"].hub_file
    'hf://datasets/RUC-NLPIR/FlashRAG_datasets/nq/test.jsonl'
"""

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from igrpo_train.question import Question, read_questions

logger = logging.getLogger(__name__)

_HUB: Final = "hf://datasets/RUC-NLPIR/FlashRAG_datasets"
_ENDINGS: Final = (".jsonl", ".jsonl.gz", ".parquet")
_MERGED: Final = "test.parquet"
_MINIATURE: Final = "miniature:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """One published set."""

    name: str
    """As FlashRAG names its folder and Search-R1 its `data_source`."""
    title: str
    """As papers write it."""
    split: Literal["test", "dev"]
    size: int
    """Questions of that split."""
    multi_hop: bool

    @property
    def hub_file(self) -> str:
        """Where it is published: JSONL with `id`, `question` and `golden_answers`."""
        return f"{_HUB}/{self.name}/{self.split}.jsonl"


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    entry.name: entry
    for entry in (
        Benchmark(name="nq", title="NQ", split="test", size=3_610, multi_hop=False),
        Benchmark(name="triviaqa", title="TriviaQA", split="test", size=11_313, multi_hop=False),
        Benchmark(name="popqa", title="PopQA", split="test", size=14_267, multi_hop=False),
        Benchmark(name="hotpotqa", title="HotpotQA", split="dev", size=7_405, multi_hop=True),
        Benchmark(name="2wikimultihopqa", title="2WikiMultiHopQA", split="dev", size=12_576, multi_hop=True),
        Benchmark(name="musique", title="MuSiQue", split="dev", size=2_417, multi_hop=True),
        Benchmark(name="bamboogle", title="Bamboogle", split="test", size=125, multi_hop=True),
    )
}
"""In the order of Search-R1's merged file."""


def parse_names(text: str) -> tuple[str, ...]:
    """Names in a list with commas; `all` stands for the seven, `miniature:NAME` for its test split.

    Raises:
        ValueError: a name is unknown, with the nearest one, or given twice.
    """
    names: list[str] = []
    for given in filter(None, map(str.strip, text.split(","))):
        names += list(BENCHMARKS) if given == "all" else [_known(given)]
    if not names:
        raise ValueError(f"benchmark must name a set, got {text!r}: give one of {_choices()}")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"benchmark must name every set once, got {twice!r} twice in {text!r}: remove one")
    return tuple(names)


def load_benchmark(name: str, folder: Path | None = None) -> list[Question]:
    """All questions of one set, their `source` its name.

    Args:
        name: as `parse_names` gives it.
        folder: holds `NAME.jsonl` (or .jsonl.gz, .parquet), or the merged `test.parquet`; None takes the hub's file.

    Raises:
        FileNotFoundError: the folder does not hold the set, or the hub's file cannot be had.
        ValueError: a row is wrong, or there are more questions than the set has, or, from the hub, fewer.
    """
    if name.startswith(_MINIATURE):
        return [replace(question, source=name) for question in read_questions(name)]
    benchmark = BENCHMARKS[name]
    spec = benchmark.hub_file if folder is None else _file_of(name, folder)
    questions = read_questions(spec)
    if Path(spec).name == _MERGED:
        questions = _of_source(questions, name, spec)
    _check_size(benchmark, len(questions), spec, whole=folder is None)
    return [
        replace(question, id=f"{name}/{question.id.removeprefix(f'{question.source}/')}", source=name)
        for question in questions
    ]


def _known(name: str) -> str:
    if name.startswith(_MINIATURE):
        return name if "/" in name else f"{name}/test"
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name.lower(), [*BENCHMARKS, "all"], n=1, cutoff=0.4)
        remedy = f"did you mean {near[0]}?" if near else "choose one"
        raise ValueError(f"benchmark must be one of {_choices()}, got {name!r}: {remedy}")
    return name


def _choices() -> str:
    return f"{', '.join(BENCHMARKS)}, all, miniature:NAME"


def _file_of(name: str, folder: Path) -> str:
    candidates = [folder / f"{name}{ending}" for ending in _ENDINGS] + [folder / _MERGED]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        what = "no such folder" if not folder.is_dir() else ", ".join(sorted(p.name for p in folder.iterdir())[:8])
        raise FileNotFoundError(
            f"benchmark_folder must hold {name}.jsonl, got {str(folder)!r} ({what or 'empty'}): add it, put the merged "
            f"{_MERGED} there with 'igrpo-train fetch data', or leave {name} out of benchmark"
        )
    return str(found)


def _of_source(questions: Sequence[Question], name: str, spec: str) -> list[Question]:
    kept = [question for question in questions if question.source == name]
    if not kept:
        found = sorted({question.source for question in questions})
        raise ValueError(f"{spec} must hold rows with data_source {name!r}, got {found}: leave {name} out of benchmark")
    return kept


def _check_size(benchmark: Benchmark, size: int, spec: str, *, whole: bool) -> None:
    """A folder may hold a sample; more than there are, or a hub file with fewer, is another set."""
    if size > benchmark.size or (whole and size != benchmark.size):
        raise ValueError(
            f"{spec} must hold the {benchmark.size:,} questions of {benchmark.title} ({benchmark.split}), got "
            f"{size:,}: it is another split or version; name the file with data.validation to ask it all the same"
        )
    if size < benchmark.size:
        logger.warning("%s is a sample: %s of %s questions of %s", spec, size, benchmark.size, benchmark.title)
