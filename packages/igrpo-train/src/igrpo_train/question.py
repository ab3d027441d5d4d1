"""question: a file of questions or passages -> checked values.

In: a path to .jsonl, .jsonl.gz or .parquet, `hf://datasets/OWNER/REPO/FILE`, or a `miniature:` specification.
Out: `Question`s with their accepted answers, or `Passage`s of a corpus.
Schemas: `golden_answers` of FlashRAG, the ground truth of Search-R1, or plain `answers` / `answer`.

Example:
    >>> question_from_row({"id": "7", "question": "Where is Ghent?", "golden_answers": ["Belgium"]}).answers
    ('Belgium',)
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from igrpo_train.rows import numbered_rows

_ANSWER_FIELDS = ("golden_answers", "answers", "answer")
_GROUND_TRUTH = "reward_model.ground_truth.target"
_HOPS = re.compile(r"(\d+)hop")


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A piece of a corpus."""

    id: str
    """Unique in its corpus."""
    title: str
    """Title of the page it comes from; may be empty."""
    text: str
    """What is read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question with the answers that count as right."""

    id: str
    """Unique in its file; keys every random draw of the question."""
    text: str
    """The question as asked."""
    answers: tuple[str, ...]
    """Accepted answers, at least one; the first is the canonical one."""
    source: str = ""
    """Data set it comes from, empty when its file does not say."""
    hops: int = 0
    """Facts to chain, 0 when unknown."""
    contexts: tuple[Passage, ...] = ()
    """Gold passages, when the file has them."""


_Item = TypeVar("_Item", Question, Passage)


def read_questions(spec: str) -> list[Question]:
    """Read all questions that a specification names.

    Raises:
        FileNotFoundError: there is no such file, or a hub file can neither be found nor fetched.
        ValueError: the file is empty or a row is wrong; the message names file and row.
    """
    if spec.startswith("miniature:"):
        from igrpo_train.miniature.dataset import miniature_questions

        return miniature_questions(spec)
    return _read(spec, question_from_row)


def read_passages(spec: str) -> list[Passage]:
    """Read all passages that a specification names; raises as `read_questions` does."""
    if spec.startswith("miniature:"):
        from igrpo_train.miniature.dataset import miniature_corpus

        return miniature_corpus(spec)
    return _read(spec, passage_from_row)


def first_question(spec: str) -> Question:
    """The first question of a file, read alone; raises as `read_questions` does."""
    return read_questions(spec)[0] if spec.startswith("miniature:") else _first(spec, question_from_row)


def first_passage(spec: str) -> Passage:
    """The first passage of a corpus, read alone; raises as `read_questions` does."""
    return read_passages(spec)[0] if spec.startswith("miniature:") else _first(spec, passage_from_row)


def select_hops(questions: Sequence[Question], hops: Sequence[int], spec: str) -> list[Question]:
    """Keep the questions with these numbers of hops; no numbers keep all.

    Raises:
        ValueError: no question is left; `spec` is the file that the message names.

    Example:
        >>> select_hops([Question(id="7", text="Where?", answers=("here",), hops=2)], (2, 3), "a.jsonl")[0].id
        '7'
    """
    kept = [question for question in questions if not hops or question.hops in hops]
    if not kept:
        found = sorted({question.hops for question in questions})
        raise ValueError(
            f"data.hops must name hops that occur in {spec}, got {list(hops)}: it has {found}, where 0 is unknown"
        )
    return kept


def question_from_row(row: Mapping[str, Any]) -> Question:
    """Check one row and turn it into a question.

    Where a row names its `data_source`, as rows of merged sets do, the id becomes `SOURCE/ID`:
    ids are unique only inside their own set.

    Raises:
        ValueError: a field is missing, empty or of the wrong type.
    """
    source = _text(row, "data_source") if row.get("data_source") else ""
    own_id = _text(row, "id")
    return Question(
        id=f"{source}/{own_id}" if source else own_id,
        text=_text(row, "question"),
        answers=_answers(row),
        source=source,
        hops=_hops(row),
        contexts=_gold_passages(row),
    )


def passage_from_row(row: Mapping[str, Any]) -> Passage:
    r"""Check one row, `{id, title, text}` or `{id, contents}` with the quoted title on the first line of contents.

    Raises:
        ValueError: a field is missing, empty or of the wrong type.

    Example:
        >>> passage_from_row({"id": 3, "contents": '"Ghent"\nA city.'})
        Passage(id='3', title='Ghent', text='A city.')
    """
    if "contents" in row:
        title, _, text = _text(row, "contents").partition("\n")
        return Passage(id=_text(row, "id"), title=title.strip().strip('"'), text=text)
    return Passage(id=_text(row, "id"), title=str(row.get("title") or ""), text=_text(row, "text"))


def _read(spec: str, convert: Callable[[Mapping[str, Any]], _Item]) -> list[_Item]:
    items: list[_Item] = []
    seen: dict[str, int] = {}
    for number, item in _converted(spec, convert):
        if item.id in seen:
            raise ValueError(
                f"{spec}, row {number}: id must be unique, got {item.id!r} of row {seen[item.id]} again: "
                "merge the rows or rename one"
            )
        seen[item.id] = number
        items.append(item)
    if not items:
        raise _empty(spec)
    return items


def _first(spec: str, convert: Callable[[Mapping[str, Any]], _Item]) -> _Item:
    for _, item in _converted(spec, convert):
        return item
    raise _empty(spec)


def _converted(spec: str, convert: Callable[[Mapping[str, Any]], _Item]) -> Iterator[tuple[int, _Item]]:
    """Numbered items, one by one."""
    for number, row in numbered_rows(spec):
        try:
            item = convert(row)
        except ValueError as error:
            raise ValueError(f"{spec}, row {number}: {error}") from error
        yield number, item


def _empty(spec: str) -> ValueError:
    return ValueError(f"{spec} must hold at least one row, got an empty file: check how it was written")


def _text(row: Mapping[str, Any], name: str) -> str:
    if name not in row:
        raise ValueError(f"{name} must be given, got the fields {sorted(row)}: add it or rename one")
    value = str(row[name]).strip() if isinstance(row[name], str | int) else ""
    if not value:
        raise ValueError(f"{name} must be a text that is not empty, got {row[name]!r}")
    return value


def _answers(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Accepted answers, without empty ones and repetitions."""
    column, value = next(((name, row[name]) for name in _ANSWER_FIELDS if row.get(name)), (_GROUND_TRUTH, None))
    if value is None:
        value = _ground_truth(row)
    if not value:
        raise ValueError(
            f"golden_answers must hold at least one answer, got {row.get('golden_answers')!r}: "
            f"{', '.join(_ANSWER_FIELDS[1:])} and {_GROUND_TRUTH} are read too"
        )
    accepted = [value] if isinstance(value, str) else value
    if not isinstance(accepted, Sequence) or not all(isinstance(answer, str) for answer in accepted):
        raise ValueError(f"{column} must be a text or a list of texts, got {value!r}")
    if isinstance(value, str) and _holds_list(value):
        raise ValueError(f"{column} must be a list of texts, got a text that holds one: {value!r}, unpack it")
    stripped = tuple(dict.fromkeys(answer.strip() for answer in accepted if answer.strip()))
    if not stripped:
        raise ValueError(f"{column} must hold an answer that is not empty, got {value!r}")
    return stripped


def _holds_list(text: str) -> bool:
    """Whether a text is a list of texts in JSON: taken for an answer, nothing would ever match it."""
    if not text.lstrip().startswith("["):
        return False
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(inner, list) and all(isinstance(answer, str) for answer in inner)


def _ground_truth(row: Mapping[str, Any]) -> Any:
    """Search-R1's place of the answers."""
    value: Any = row
    for name in _GROUND_TRUTH.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _hops(row: Mapping[str, Any]) -> int:
    """The `hops` field, or what MuSiQue says in its type or id (`2hop__...`)."""
    hops = row.get("hops")
    if hops is not None:
        if not isinstance(hops, int) or isinstance(hops, bool) or hops < 0:
            raise ValueError(f"hops must be a whole number, got {hops!r}")
        return hops
    found = _HOPS.match(str(row.get("type") or "")) or _HOPS.match(str(row["id"]))
    return int(found[1]) if found else 0


def _gold_passages(row: Mapping[str, Any]) -> tuple[Passage, ...]:
    """`contexts` as they are, or the paragraphs that FlashRAG's metadata marks as supporting; none is no error."""
    contexts = row.get("contexts") or ()
    if not isinstance(contexts, Sequence) or not all(isinstance(context, Mapping) for context in contexts):
        raise ValueError(f"contexts must be a list of objects with id, title and text, got {str(contexts)[:60]!r}")
    if contexts:
        return tuple(passage_from_row(context) for context in contexts)
    metadata = _mapping(row.get("metadata"))
    try:
        pairs = [
            *_supporting_steps(metadata.get("question_decomposition") or ()),
            *_supporting_paragraphs(_mapping(metadata.get("context")), _mapping(metadata.get("supporting_facts"))),
        ]
    except TypeError as error:
        raise ValueError(
            f"metadata must hold gold passages as FlashRAG writes them, got {str(metadata)[:60]!r} ({error}): mend or "
            "remove it"
        ) from error
    return tuple(Passage(id=title, title=title, text=text) for title, text in pairs)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _supporting_steps(steps: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """MuSiQue keeps a paragraph with each of its steps."""
    for step in steps:
        paragraph = _mapping(_mapping(step).get("support_paragraph"))
        if paragraph.get("title") and paragraph.get("paragraph_text"):
            yield paragraph["title"], paragraph["paragraph_text"]


def _supporting_paragraphs(context: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """HotpotQA's `sentences` carry their own spaces, 2Wiki's `content` does not."""
    gold = set(facts.get("title") or ())
    name, joiner = ("content", " ") if context.get("content") else ("sentences", "")
    for title, sentences in zip(context.get("title") or (), context.get(name) or (), strict=False):
        if title in gold:
            yield title, joiner.join(sentences).strip()
