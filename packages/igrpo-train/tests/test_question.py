"""test_question: every schema is read, and every wrong row is named by file, row and remedy."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from igrpo_train.errors import MissingExtra
from igrpo_train.question import Passage, Question, read_passages, read_questions, select_hops

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
GOOD = {"id": "7", "question": "Where is Ghent?", "golden_answers": ["Belgium"]}


def write(path: Path, *rows: object) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return str(path)


def read_one(path: Path, row: dict[str, object]) -> Question:
    (question,) = read_questions(write(path / "a.jsonl", row))
    return question


@pytest.mark.parametrize(
    "gold",
    [
        {"golden_answers": ["Paris", "City of Light"]},
        {"answers": ["Paris", "City of Light"]},
        {"golden_answers": [], "answers": [" Paris", "Paris", "City of Light", ""]},
        {"reward_model": {"style": "rule", "ground_truth": {"target": ["Paris", "City of Light"]}}},
    ],
)
def test_answers_are_read_from_every_schema(gold: dict[str, object], tmp_path: Path) -> None:
    question = read_one(tmp_path, {"id": "1", "question": "Which city?", **gold})
    assert question == Question(id="1", text="Which city?", answers=("Paris", "City of Light"))


@pytest.mark.parametrize("gold", [{"answer": "Paris"}, {"reward_model": {"ground_truth": {"target": "Paris"}}}])
def test_a_single_answer_is_a_list_of_one(gold: dict[str, object], tmp_path: Path) -> None:
    assert read_one(tmp_path, {"id": 1, "question": "Which city?", **gold}).answers == ("Paris",)


def test_ids_of_merged_sets_carry_the_name_of_their_set(tmp_path: Path) -> None:
    rows = [GOOD | {"id": "train_0", "data_source": source} for source in ("nq", "hotpotqa")]
    read = read_questions(write(tmp_path / "a.jsonl", *rows))
    assert [(q.id, q.source) for q in read] == [("nq/train_0", "nq"), ("hotpotqa/train_0", "hotpotqa")]


@pytest.mark.parametrize(
    ("extra", "hops"),
    [({}, 0), ({"hops": 2}, 2), ({"type": "3hop1"}, 3), ({"id": "4hop1__1_2_3_4"}, 4), ({"type": "bridge"}, 0)],
)
def test_hops_come_from_their_field_or_from_musique_names(extra: dict, hops: int, tmp_path: Path) -> None:
    assert read_one(tmp_path, GOOD | extra).hops == hops


def test_gold_passages_are_taken_as_they_stand(tmp_path: Path) -> None:
    contexts = [{"id": "p1", "title": "Ghent", "text": "A city in Belgium."}]
    assert read_one(tmp_path, GOOD | {"contexts": contexts}).contexts == (Passage(**contexts[0]),)


TITLES = {"title": ["Ghent", "Oslo", "Belgium"]}
SENTENCES = [["Ghent is a city.", " It is old."], ["Oslo."], ["A country."]]


@pytest.mark.parametrize(
    ("context", "text"),
    [
        (TITLES | {"sentences": SENTENCES}, "Ghent is a city. It is old."),  # HotpotQA
        (TITLES | {"content": [["Ghent is a city.", "It is old."], *SENTENCES[1:]]}, "Ghent is a city. It is old."),
    ],
)
def test_supporting_paragraphs_are_taken_from_metadata(context: dict, text: str, tmp_path: Path) -> None:
    facts = {"title": ["Belgium", "Ghent", "Ghent"], "sent_id": [0, 0, 1]}
    question = read_one(tmp_path, GOOD | {"metadata": {"supporting_facts": facts, "context": context}})
    assert question.contexts == (
        Passage(id="Ghent", title="Ghent", text=text),
        Passage(id="Belgium", title="Belgium", text="A country."),
    )


def test_supporting_paragraphs_are_taken_from_musique_steps(tmp_path: Path) -> None:
    paragraph = {"idx": 3, "title": "Ghent", "paragraph_text": "A city.", "is_supporting": True}
    steps = [{"question": "x", "support_paragraph": paragraph}, {"question": "y", "support_paragraph": None}]
    question = read_one(tmp_path, GOOD | {"metadata": {"question_decomposition": steps}})
    assert question.contexts == (Passage(id="Ghent", title="Ghent", text="A city."),)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "free text",
        {"supporting_facts": {"title": ["A"]}, "context": {"title": [], "sentences": []}},
        {"supporting_facts": None, "context": None},
        {"s_pop": 3},
    ],
)
def test_a_row_without_its_paragraphs_has_no_gold_passages(metadata: object, tmp_path: Path) -> None:
    assert read_one(tmp_path, GOOD | {"metadata": metadata}).contexts == ()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"id": "8", ', r"a.jsonl, row 2: row must be JSON, got '{\"id\": \"8\",': Expecting property name"),
        ('{"id": ' + "9" * 5000 + "}", r"a.jsonl, row 2: row must be JSON, got .*: Exceeds the limit"),
        ("[" * 100_000, r"a.jsonl, row 2: row must be JSON, got '\[\[.*: maximum recursion depth"),
        (
            GOOD | {"id": "8", "question": "\ud800"},
            r"a.jsonl, row 2: row must be Unicode text, got half of a surrogate",
        ),
        ("[1]", r"a.jsonl, row 2: row must be a JSON object with named fields, got '\[1\]'"),
        ({"question": "x", "answer": "y"}, r"row 2: id must be given, got the fields \['answer', 'question'\]: add it"),
        (GOOD | {"id": " "}, r"a.jsonl, row 2: id must be a text that is not empty, got ' '"),
        ({"id": "8", "answer": "y"}, r"a.jsonl, row 2: question must be given, got the fields \['answer', 'id'\]"),
        ({"id": "8", "question": "", "answer": "y"}, r"row 2: question must be a text that is not empty, got ''"),
        ({"id": "8", "question": None, "answer": "y"}, r"row 2: question must be a text that is not empty, got None"),
        (
            {"id": "8", "question": "x"},
            r"row 2: golden_answers must hold at least one answer, got None: answers, answer",
        ),
        ({"id": "8", "question": "x", "golden_answers": []}, r"row 2: golden_answers must hold at least one answer"),
        ({"id": "8", "question": "x", "answers": [" "]}, r"row 2: answers must hold an answer that is not empty, got"),
        ({"id": "8", "question": "x", "answers": [4]}, r"row 2: answers must be a text or a list of texts, got \[4\]"),
        (
            GOOD | {"id": "8", "golden_answers": [["a"]]},
            r"row 2: golden_answers must be a text or a list of texts, got",
        ),
        (
            GOOD | {"id": "8", "golden_answers": '["a", "b"]'},
            r"row 2: golden_answers must be a list of texts, got a text",
        ),
        (
            {"id": "8", "question": "x", "reward_model": {"ground_truth": {"target": [None]}}},
            r"row 2: reward_model.ground_truth.target must be a text or a list of texts, got \[None\]",
        ),
        ({"id": "8", "question": "x", "reward_model": {"ground_truth": {}}}, r"golden_answers must hold at least one"),
        (GOOD | {"id": "8", "hops": "two"}, r"row 2: hops must be a whole number, got 'two'"),
        (GOOD | {"id": "8", "hops": True}, r"row 2: hops must be a whole number, got True"),
        (GOOD | {"id": "8", "metadata": {"question_decomposition": 3}}, r"row 2: metadata must hold gold passages as"),
        (GOOD | {"id": "8", "contexts": ["a"]}, r"row 2: contexts must be a list of objects with id, title and text"),
        (GOOD | {"id": "8", "contexts": [{"id": "p"}]}, r"row 2: text must be given, got the fields \['id'\]"),
        (GOOD, r"a.jsonl, row 2: id must be unique, got '7' of row 1 again: merge the rows or rename one"),
    ],
)
def test_a_wrong_row_is_named_by_file_and_number(row: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_questions(write(tmp_path / "a.jsonl", GOOD, row))


def test_blank_lines_are_skipped_but_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", "", GOOD, "", "oops")
    with pytest.raises(ValueError, match="row 4: row must be JSON"):
        read_questions(file)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a.jsonl must hold at least one row, got an empty file"):
        read_questions(write(tmp_path / "a.jsonl", ""))


def test_a_missing_file_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data file must exist, got '.*b.jsonl' \(nothing there\): check"):
        read_questions(str(tmp_path / "b.jsonl"))
    with pytest.raises(FileNotFoundError, match=r"data file must exist, got '.*' \(a folder\)"):
        read_questions(str(tmp_path))


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"data file must end in .jsonl, .jsonl.gz or .parquet, got '.*a.csv': convert"
    ):
        read_questions(write(tmp_path / "a.csv", "id,question"))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json.dumps(GOOD).encode() + b"\n\xff\xfe\n")
    with pytest.raises(
        ValueError, match=r"a.jsonl, row 2: row must be UTF-8 text, got b'\\xff\\xfe.*: convert the file"
    ):
        read_questions(str(tmp_path / "a.jsonl"))


def test_compressed_files_are_read_and_broken_ones_refused(tmp_path: Path) -> None:
    whole = gzip.compress((json.dumps({"id": 0, "contents": '"Ghent"\nA city.\nOld.'}) + "\n").encode())
    (tmp_path / "a.jsonl.gz").write_bytes(whole)
    assert read_passages(str(tmp_path / "a.jsonl.gz")) == [Passage(id="0", title="Ghent", text="A city.\nOld.")]
    (tmp_path / "b.jsonl.gz").write_bytes(whole[:-9])
    with pytest.raises(
        ValueError, match=r"b.jsonl.gz must be a whole gzip file, got an error after row 1 .*: copy it again"
    ):
        read_passages(str(tmp_path / "b.jsonl.gz"))
    (tmp_path / "c.jsonl.gz").write_bytes(b"plain")
    with pytest.raises(
        ValueError, match=r"c.jsonl.gz must be a whole gzip file, got an error after row 0 .*: copy it again"
    ):
        read_passages(str(tmp_path / "c.jsonl.gz"))
    (tmp_path / "d.jsonl.gz").write_bytes(whole[:12] + b"\xff" + whole[13:])
    with pytest.raises(ValueError, match=r"d.jsonl.gz must be a whole gzip file"):
        read_passages(str(tmp_path / "d.jsonl.gz"))


def test_passages_are_checked_like_questions(tmp_path: Path) -> None:
    good = {"id": "p", "title": "Ghent", "text": "A city."}
    with pytest.raises(ValueError, match=r"row 2: id must be unique, got 'p' of row 1 again"):
        read_passages(write(tmp_path / "a.jsonl", good, good))
    with pytest.raises(ValueError, match=r"row 1: text must be given, got the fields \['id', 'title'\]"):
        read_passages(write(tmp_path / "a.jsonl", {"id": "p", "title": "Ghent"}))


def test_a_malformed_hub_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"hub file must be written hf://datasets/OWNER/REPO/FILE, got 'hf://nq'"):
        read_questions("hf://nq")


def test_a_hub_file_that_cannot_be_fetched_is_answered_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def fail(**_: object) -> str:
        raise LocalEntryNotFoundError("the hub is out of reach")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    message = (
        r"got 'hf://datasets/a/b/c/d.jsonl' \(the hub is out of reach\): fetch it where there is a network with "
        r"'hf download a/b c/d.jsonl --repo-type dataset', or name a local copy"
    )
    with pytest.raises(FileNotFoundError, match=message):
        read_questions("hf://datasets/a/b/c/d.jsonl")


def test_a_hub_file_is_read_from_where_the_hub_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = {}

    def fetched(**arguments: str) -> str:
        asked.update(arguments)
        return write(tmp_path / "blob.jsonl", GOOD)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetched)
    assert read_questions("hf://datasets/a/b/c/d.jsonl")[0].id == "7"
    assert asked == {"repo_id": "a/b", "filename": "c/d.jsonl", "repo_type": "dataset", "local_dir": None}


def test_parquet_without_its_package_is_answered_with_the_pip_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"to read .parquet files: pip install 'igrpo-train\[parquet\]'"):
        read_questions(write(tmp_path / "a.parquet", ""))


def test_parquet_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the parquet extra")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the parquet extra")
    row = {"id": "0", "question": "x", "reward_model": {"ground_truth": {"target": ["a", "b"]}}, "data_source": "nq"}
    parquet.write_table(pyarrow.Table.from_pylist([row, row | {"id": "1"}]), tmp_path / "a.parquet")
    assert [q.id for q in read_questions(str(tmp_path / "a.parquet"))] == ["nq/0", "nq/1"]
    with pytest.raises(ValueError, match="b.parquet must be a parquet file"):
        read_questions(write(tmp_path / "b.parquet", "oops"))


def test_the_miniature_is_read_by_its_specification() -> None:
    questions, passages = read_questions("miniature:leak/test"), read_passages("miniature:leak/test")
    gold = {passage.id for question in questions for passage in question.contexts}
    assert questions
    assert gold <= {passage.id for passage in passages}


def test_hops_select_questions_and_refuse_to_leave_none() -> None:
    questions = [Question(id=str(hops), text="x", answers=("y",), hops=hops) for hops in (0, 2, 3)]
    assert [question.hops for question in select_hops(questions, (2, 3), "a.jsonl")] == [2, 3]
    assert select_hops(questions, (), "a.jsonl") == questions
    with pytest.raises(
        ValueError, match=r"hops that occur in a.jsonl, got \[4\]: it has \[0, 2, 3\], where 0 is unknown"
    ):
        select_hops(questions, (4,), "a.jsonl")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real samples are not beside this checkout")
def test_real_samples_of_the_benchmarks_are_read() -> None:
    for file in sorted(SHARED.glob("*.jsonl")):
        if not file.name.startswith("corpus"):
            questions = read_questions(str(file))
            assert all(question.text and question.answers for question in questions)
            if file.name.startswith(("hotpotqa", "2wiki", "musique")):
                assert min(Counter(len(question.contexts) for question in questions)) >= 2
    assert len(read_passages(str(SHARED / "corpus.jsonl"))) == 12011
