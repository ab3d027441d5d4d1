"""suite: names of the seven benchmarks -> their questions, each with its benchmark as source.

In: names, and where their files are: the hub, or a folder of `NAME.jsonl` or `NAME.parquet` (full sets or samples).
Out: questions of all of them, ids unique across benchmarks.
Source: [flashrag] for the sets and their sizes; [searchr1] for the split rule: test where there is one, else dev.

Example:
    >>> sum(benchmark.size for benchmark in BENCHMARKS.values())
    51713
"""

import difflib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from igrpo_train.question import Question, read_questions

logger = logging.getLogger(__name__)

ALL: Final = "all"
_HUB: Final = "hf://datasets/RUC-NLPIR/FlashRAG_datasets"


class Benchmark(NamedTuple):
    """One set of questions as the papers use it."""

    title: str
    """As papers write it."""
    split: str
    """Of the hub's files: the one that is used for tests."""
    size: int
    """Questions in it."""
    multi_hop: bool
    """Whether its questions chain facts."""


BENCHMARKS: Final[dict[str, Benchmark]] = {
    "nq": Benchmark("NQ", "test", 3_610, False),
    "triviaqa": Benchmark("TriviaQA", "test", 11_313, False),
    "popqa": Benchmark("PopQA", "test", 14_267, False),
    "hotpotqa": Benchmark("HotpotQA", "dev", 7_405, True),
    "2wikimultihopqa": Benchmark("2WikiMultiHopQA", "dev", 12_576, True),
    "musique": Benchmark("MuSiQue", "dev", 2_417, True),
    "bamboogle": Benchmark("Bamboogle", "test", 125, True),
}


def benchmark_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names in the order of the table, `all` resolved.

    Raises:
        ValueError: a name is unknown, the nearest one is offered; or one is given twice.

    Example:
        >>> benchmark_names(["bamboogle", "nq"])
        ('nq', 'bamboogle')
    """
    for name in names:
        if name not in BENCHMARKS and name != ALL:
            near = difflib.get_close_matches(name.lower(), [*BENCHMARKS, ALL], n=1, cutoff=0.4)
            remedy = f"did you mean {near[0]}?" if near else "give --data.validation another file's path"
            raise ValueError(f"benchmarks must be of {', '.join(BENCHMARKS)} or all, got {name!r}: {remedy}")
    if len(set(names)) < len(names) or (ALL in names and len(names) > 1):
        raise ValueError(f"benchmarks must be named once, got {' '.join(names)}: leave the others out")
    return tuple(name for name in BENCHMARKS if name in names or ALL in names)


def benchmark_file(name: str, folder: Path | None) -> str:
    """Where a benchmark's questions are: a file of the folder, or of the hub where there is no folder.

    Raises:
        FileNotFoundError: the folder has no file of that name.

    Example:
        >>> benchmark_file("musique", None)
        'hf://datasets/RUC-NLPIR/FlashRAG_datasets/musique/dev.jsonl'
    """
    if folder is None:
        return f"{_HUB}/{name}/{BENCHMARKS[name].split}.jsonl"
    files = [folder / f"{name}{ending}" for ending in (".jsonl", ".jsonl.gz", ".parquet")]
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        raise FileNotFoundError(
            f"benchmark_folder must hold {name}.jsonl, .jsonl.gz or .parquet, got {str(folder)!r} without one: "
            "put it there, or leave the benchmark out"
        )
    return str(found)


def load_benchmarks(names: Sequence[str], folder: Path | None) -> list[Question]:
    """Questions of some benchmarks, by benchmark in the order of the table, then as in their files.

    A set of the hub must be whole; a folder may hold samples, whose share is logged.

    Raises:
        ValueError: a name is unknown, a row is wrong, or a set of the hub has another size than it should.
        FileNotFoundError: a file is missing.
    """
    questions: list[Question] = []
    for name in benchmark_names(names):
        spec = benchmark_file(name, folder)
        # The file's name decides: what its rows call themselves is not needed.
        own = [replace(question, source=name, id=_own_id(question, name)) for question in read_questions(spec)]
        _check_size(name, len(own), spec, whole=folder is None)
        questions += own
    return questions


def check_sources(questions: Sequence[Question], spec: str) -> None:
    """Warn where a merged file has another number of questions of a benchmark than that benchmark has.

    Args:
        questions: of one file whose rows name their `data_source`.
        spec: the file, for the message.
    """
    for name, count in Counter(question.source for question in questions).items():
        if name in BENCHMARKS:
            _check_size(name, count, spec, whole=False)


def _own_id(question: Question, name: str) -> str:
    own = question.id.removeprefix(f"{question.source}/") if question.source else question.id
    return f"{name}/{own}"


def _check_size(name: str, count: int, spec: str, *, whole: bool) -> None:
    benchmark = BENCHMARKS[name]
    if whole and count != benchmark.size:
        raise ValueError(
            f"{spec} must hold the {benchmark.size:,} questions of {benchmark.title}, got {count:,}: fetch it again"
        )
    if count != benchmark.size:
        logger.warning("%s: %s of %s questions of %s", spec, f"{count:,}", f"{benchmark.size:,}", benchmark.title)
