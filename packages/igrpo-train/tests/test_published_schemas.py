"""test_published_schemas: small files with the columns of Search-R1 and FlashRAG are read, in bounded memory."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from igrpo_train.question import Passage, first_question, read_passages, read_questions

pyarrow = pytest.importorskip("pyarrow", reason="needs the parquet extra")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs the parquet extra")

TEXT, TEXTS = pyarrow.string(), pyarrow.list_(pyarrow.string())
FACTS = pyarrow.struct([("sent_id", pyarrow.list_(pyarrow.int64())), ("title", TEXTS)])
CONTEXT = pyarrow.struct([("sentences", pyarrow.list_(TEXTS)), ("title", TEXTS)])
SEARCH_R1 = pyarrow.schema(
    [
        ("id", TEXT),
        ("question", TEXT),
        ("golden_answers", TEXTS),
        ("data_source", TEXT),
        ("prompt", pyarrow.list_(pyarrow.struct([("content", TEXT), ("role", TEXT)]))),
        ("ability", TEXT),
        ("reward_model", pyarrow.struct([("ground_truth", pyarrow.struct([("target", TEXTS)])), ("style", TEXT)])),
        ("extra_info", pyarrow.struct([("index", pyarrow.int64()), ("split", TEXT)])),
        (
            "metadata",
            pyarrow.struct([("context", CONTEXT), ("level", TEXT), ("supporting_facts", FACTS), ("type", TEXT)]),
        ),
    ]
)
SOURCES = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")


def search_r1_row(source: str, number: int, split: str = "train") -> dict[str, Any]:
    """A row as Search-R1's preprocessing writes it; only HotpotQA brings its paragraphs."""
    metadata = {
        "type": "bridge",
        "level": "easy",
        "supporting_facts": {"title": ["Ghent", "Belgium"], "sent_id": [0, 0]},
        "context": {
            "title": ["Oslo", "Ghent", "Belgium"],
            "sentences": [["Oslo."], ["Ghent is a city.", " It is old."], ["A country."]],
        },
    }
    return {
        "id": f"{split}_{number}",
        "question": f"Where is place {number}?",
        "golden_answers": ["Belgium", "Kingdom of Belgium"],
        "data_source": source,
        "prompt": [{"role": "user", "content": f"Answer the given question. Where is place {number}?"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Belgium", "Kingdom of Belgium"]}},
        "extra_info": {"split": split, "index": number},
        "metadata": metadata if source == "hotpotqa" else None,
    }


def write_parquet(path: Path, rows: list[dict[str, Any]], schema: Any = SEARCH_R1) -> str:
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)
    return str(path)


def test_search_r1_s_training_file_is_read(tmp_path: Path) -> None:
    rows = [search_r1_row(source, 0) for source in ("nq", "hotpotqa")]
    nq, hotpotqa = read_questions(write_parquet(tmp_path / "train.parquet", rows))
    assert (nq.id, nq.source, nq.text) == ("nq/train_0", "nq", "Where is place 0?")
    assert nq.answers == ("Belgium", "Kingdom of Belgium")
    assert nq.contexts == ()
    assert [passage.text for passage in hotpotqa.contexts] == ["Ghent is a city. It is old.", "A country."]


def test_search_r1_s_merged_test_file_keeps_its_seven_sets_apart(tmp_path: Path) -> None:
    rows = [search_r1_row(source, number, "test") for source in SOURCES for number in range(2)]
    file = write_parquet(tmp_path / "test.parquet", rows)
    questions = read_questions(file)
    assert [question.id for question in questions] == [f"{source}/test_{k}" for source in SOURCES for k in range(2)]
    assert first_question(file) == questions[0]


def test_answers_in_the_reward_model_alone_are_enough(tmp_path: Path) -> None:
    rows = [search_r1_row("nq", 0) | {"golden_answers": None}]
    assert read_questions(write_parquet(tmp_path / "a.parquet", rows))[0].answers[0] == "Belgium"


def test_flashrag_s_lines_are_read_as_search_r1_s_rows(tmp_path: Path) -> None:
    row = search_r1_row("hotpotqa", 0)
    line = {name: row[name] for name in ("id", "question", "golden_answers", "metadata")}
    (tmp_path / "train.jsonl").write_text(json.dumps(line) + "\r\n", "utf-8-sig")
    (question,) = read_questions(str(tmp_path / "train.jsonl"))
    (merged,) = read_questions(write_parquet(tmp_path / "train.parquet", [row]))
    assert (question.id, question.source) == ("train_0", "")
    assert (question.text, question.answers, question.contexts) == (merged.text, merged.answers, merged.contexts)


def test_wiki_18_s_passages_are_read(tmp_path: Path) -> None:
    (tmp_path / "wiki.jsonl").write_text('{"id": "0", "contents": "\\"Ghent\\"\\nA city.\\nOld."}\n', "utf-8")
    assert read_passages(str(tmp_path / "wiki.jsonl")) == [Passage(id="0", title="Ghent", text="A city.\nOld.")]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"id": None}, r"a.parquet, row 2: id must be a text that is not empty, got None"),
        ({"question": " "}, r"a.parquet, row 2: question must be a text that is not empty, got ' '"),
        ({"golden_answers": ["x", None]}, r"a.parquet, row 2: golden_answers must be a text or a list of texts, got"),
        ({"golden_answers": [" "]}, r"a.parquet, row 2: golden_answers must hold an answer that is not empty, got"),
        (
            {"golden_answers": [], "reward_model": {"ground_truth": {"target": [None]}}},
            r"a.parquet, row 2: reward_model.ground_truth.target must be a text or a list of texts, got \[None\]",
        ),
        (
            {"golden_answers": None, "reward_model": None},
            r"a.parquet, row 2: golden_answers must hold at least one answer, got None: answers, answer and reward",
        ),
        ({"id": "train_0"}, r"a.parquet, row 2: id must be unique, got 'nq/train_0' of row 1 again"),
    ],
)
def test_a_wrong_row_of_a_parquet_file_is_named_by_file_row_and_column(
    wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    rows = [search_r1_row("nq", 0), search_r1_row("nq", 1) | wrong]
    with pytest.raises(ValueError, match=message):
        read_questions(write_parquet(tmp_path / "a.parquet", rows))


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    names = [name for name in SEARCH_R1.names if name != "question"]
    schema = pyarrow.schema([SEARCH_R1.field(name) for name in names])
    with pytest.raises(ValueError, match=r"a.parquet, row 1: question must be given, got the fields \['ability', "):
        read_questions(write_parquet(tmp_path / "a.parquet", [search_r1_row("nq", 0)], schema))


def test_text_in_another_encoding_is_named_by_file_row_and_column(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json.dumps(search_r1_row("nq", 0)).encode("utf-16"))
    with pytest.raises(ValueError, match=r"a.jsonl, row 1: row must be UTF-8 text, got b"):
        read_questions(str(tmp_path / "a.jsonl"))
    latin = pyarrow.array([b"0", "Z\u00fcrich?".encode("latin-1")]).view(pyarrow.string())
    table = pyarrow.table({"id": ["0", "1"], "question": latin, "golden_answers": [["a"], ["b"]]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a.parquet, row 2: question must be UTF-8 text, got other bytes"):
        read_questions(str(tmp_path / "a.parquet"))


def test_a_file_that_was_cut_is_named_with_its_last_whole_row(tmp_path: Path) -> None:
    line = json.dumps(search_r1_row("nq", 0))
    (tmp_path / "a.jsonl").write_text(line + "\n" + line[:-9], "utf-8")
    with pytest.raises(ValueError, match=r"a.jsonl, row 2: row must be JSON, got '{\"id\": \"train_0\""):
        read_questions(str(tmp_path / "a.jsonl"))
    whole = Path(write_parquet(tmp_path / "whole.parquet", [search_r1_row("nq", k) for k in range(50)])).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=r"cut.parquet must be a parquet file, got an error after row 0"):
        read_questions(str(tmp_path / "cut.parquet"))
    # The directory at the end is whole, a page is not.
    (tmp_path / "bad.parquet").write_bytes(whole[:8] + bytes(600) + whole[608:])
    with pytest.raises(ValueError, match=r"bad.parquet must be a (whole )?parquet file, got an error after row 0"):
        read_questions(str(tmp_path / "bad.parquet"))


@pytest.fixture
def _traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_questions_are_read_in_memory_of_a_few_rows_beside_their_own(kind: str, tmp_path: Path) -> None:
    num = 6000
    file = tmp_path / f"train.{kind}"
    if kind == "parquet":
        write_parquet(file, [search_r1_row("nq", number) for number in range(num)])
    else:
        with file.open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(search_r1_row("nq", number)) + "\n" for number in range(num))
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    questions = read_questions(str(file))
    held, peak = (size - before for size in tracemalloc.get_traced_memory())
    assert len(questions) == num
    # Texts, answers, the id, and Python's headers.
    assert held / num < 800
    # The table of ids that must be unique, and at most 1024 rows with all their columns.
    assert peak - held < 250 * num + 5000 * 1024
