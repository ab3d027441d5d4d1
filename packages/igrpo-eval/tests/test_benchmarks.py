"""The seven sets by name: the hub's schemas, folders, sizes, typos. The rows are ours, in the published schemas."""

import json
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
SIZES = {
    "nq": 3_610,
    "triviaqa": 11_313,
    "popqa": 14_267,
    "hotpotqa": 7_405,
    "2wikimultihopqa": 12_576,
    "musique": 2_417,
    "bamboogle": 125,
}


def _flashrag(name, number):
    """A row as `RUC-NLPIR/FlashRAG_datasets` writes it."""
    row = {"id": f"test_{number}", "question": f"which river crosses town {number}", "golden_answers": ["the Lys"]}
    if name == "hotpotqa":
        row["metadata"] = {
            "type": "bridge",
            "supporting_facts": {"title": ["Lys"], "sent_id": [0]},
            "context": {"title": ["Lys", "Oslo"], "sentences": [["It flows.", " Slowly."], ["A city."]]},
        }
    return row


def _searchr1(name, number):
    """A row as `PeterJinGo/nq_hotpotqa_train/test.parquet` holds it."""
    plain = _flashrag(name, number)
    question = plain["question"] + "?"
    return {
        "id": plain["id"],
        "question": question,
        "golden_answers": plain["golden_answers"],
        "data_source": name,
        "prompt": [{"role": "user", "content": f"Answer the given question. Question: {question}"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": plain["golden_answers"]}},
        "extra_info": {"split": "test", "index": number},
        "metadata": None,
    }


def _write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_the_table_is_the_published_one():
    from igrpo_eval.benchmarks import BENCHMARKS

    assert {name: entry.size for name, entry in BENCHMARKS.items()} == SIZES
    assert sum(SIZES.values()) == 51_713
    assert list(BENCHMARKS) == list(SIZES)
    assert [name for name, entry in BENCHMARKS.items() if entry.split == "dev"] == [
        "hotpotqa",
        "2wikimultihopqa",
        "musique",
    ]


def test_names_are_a_list_and_all_stands_for_seven():
    from igrpo_eval.benchmarks import parse_names

    assert parse_names("all") == tuple(SIZES)
    assert parse_names(" musique , nq") == ("musique", "nq")
    assert parse_names("miniature:leak,miniature:plain/validation") == (
        "miniature:leak/test",
        "miniature:plain/validation",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hotpot", "got 'hotpot': did you mean hotpotqa\\?"),
        ("nq,2wiki", "got '2wiki': did you mean 2wikimultihopqa\\?"),
        ("NQ", "got 'NQ': did you mean nq\\?"),
        ("squad", "benchmark must be one of nq, triviaqa, .*, all, miniature:NAME, got 'squad'"),
        ("nq,all", "got 'nq' twice in 'nq,all': remove one"),
        (" , ", "benchmark must name a set"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(text, message):
    from igrpo_eval.benchmarks import parse_names

    with pytest.raises(ValueError, match=message):
        parse_names(text)


@pytest.mark.parametrize("name", ["nq", "hotpotqa"])
def test_both_hub_schemas_give_the_same_ids_and_answers(tmp_path, name):
    import pyarrow
    import pyarrow.parquet

    from igrpo_eval.benchmarks import load_benchmark

    lines, merged = tmp_path / "lines", tmp_path / "merged"
    lines.mkdir()
    merged.mkdir()
    _write_jsonl(lines / f"{name}.jsonl", [_flashrag(name, number) for number in range(3)])
    rows = [_searchr1(other, number) for other in ("nq", "hotpotqa", "musique") for number in range(3)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), merged / "test.parquet")
    ours, theirs = load_benchmark(name, lines), load_benchmark(name, merged)
    assert [question.id for question in ours] == [f"{name}/test_{number}" for number in range(3)]
    assert [question.id for question in theirs] == [question.id for question in ours]
    assert [question.answers for question in theirs] == [question.answers for question in ours]
    assert {question.source for question in (*ours, *theirs)} == {name}
    if name == "hotpotqa":
        assert ours[0].contexts[0].text == "It flows. Slowly."


def test_a_set_that_is_not_in_the_merged_file_is_named(tmp_path):
    import pyarrow
    import pyarrow.parquet

    from igrpo_eval.benchmarks import load_benchmark

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([_searchr1("nq", 0)]), tmp_path / "test.parquet")
    with pytest.raises(ValueError, match=r"must hold rows with data_source 'popqa', got \['nq'\]: leave popqa out"):
        load_benchmark("popqa", tmp_path)


def test_a_whole_set_is_read_from_the_hub_and_counted(tmp_path, monkeypatch):
    from igrpo_eval import benchmarks
    from igrpo_train.question import Question

    asked = []

    def read(spec, size=125):
        asked.append(spec)
        return [Question(id=f"test_{number}", text="?", answers=("x",)) for number in range(size)]

    monkeypatch.setattr(benchmarks, "read_questions", read)
    assert len(benchmarks.load_benchmark("bamboogle")) == 125
    assert asked == ["hf://datasets/RUC-NLPIR/FlashRAG_datasets/bamboogle/test.jsonl"]
    for size in (124, 126):
        monkeypatch.setattr(benchmarks, "read_questions", lambda spec, size=size: read(spec, size))
        with pytest.raises(
            ValueError, match=rf"must hold the 125 questions of Bamboogle \(test\), got {size}: it is an"
        ):
            benchmarks.load_benchmark("bamboogle")


def test_a_sample_is_said_to_be_one_and_too_many_questions_are_refused(tmp_path, caplog):
    from igrpo_eval.benchmarks import load_benchmark

    _write_jsonl(tmp_path / "bamboogle.jsonl", [_flashrag("bamboogle", number) for number in range(2)])
    assert len(load_benchmark("bamboogle", tmp_path)) == 2
    assert "bamboogle.jsonl is a sample: 2 of 125 questions of Bamboogle" in caplog.text
    _write_jsonl(tmp_path / "bamboogle.jsonl", [_flashrag("bamboogle", number) for number in range(126)])
    with pytest.raises(ValueError, match="must hold the 125 questions of Bamboogle"):
        load_benchmark("bamboogle", tmp_path)


def test_a_missing_file_is_named_with_what_is_there(tmp_path):
    from igrpo_eval.benchmarks import load_benchmark

    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(FileNotFoundError, match=r"benchmark_folder must hold nq\.jsonl, got .* \(notes\.txt\): add it"):
        load_benchmark("nq", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"\(no such folder\)"):
        load_benchmark("nq", tmp_path / "none")


GOOD = json.dumps(_flashrag("nq", 0)).encode()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "1", "golden_answers": ["a"]}', r"nq\.jsonl, row 2: question must be given, got the fields"),
        (b'{"question": "q", "golden_answers": ["a"]}', r"row 2: id must be given"),
        (b'{"id": "1", "question": "q", "golden_answers": []}', r"row 2: golden_answers must hold at least one answer"),
        (
            b'{"id": "1", "question": "q", "golden_answers": [" "]}',
            r"row 2: golden_answers must hold an answer that is",
        ),
        (GOOD, r"row 2: id must be unique, got 'test_0' of row 1 again: merge the rows or rename one"),
        ('{"id": "1", "question": "où", "golden_answers": ["a"]}'.encode("latin-1"), r"row 2: row must be UTF-8 text"),
        (GOOD[:40], r"row 2: row must be JSON, got"),
        (b'["id"]', r"row 2: row must be a JSON object with named fields"),
    ],
)
def test_a_wrong_row_is_named_by_file_and_line_with_the_remedy(tmp_path, line, message):
    from igrpo_eval.benchmarks import load_benchmark

    (tmp_path / "nq.jsonl").write_bytes(GOOD + b"\n" + line + b"\n")
    with pytest.raises(ValueError, match=message):
        load_benchmark("nq", tmp_path)


def test_miniature_worlds_come_through_the_same_door():
    from igrpo_eval.benchmarks import load_benchmark
    from igrpo_train.question import read_questions

    questions = load_benchmark("miniature:leak/test")
    assert questions == read_questions("miniature:leak/test")
    assert questions[0].source == "miniature:leak/test"


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs samples of the seven sets in ../shared/data beside the checkout")
@pytest.mark.parametrize("name", SIZES)
def test_real_samples_are_read(name):
    from igrpo_eval.benchmarks import load_benchmark

    questions = load_benchmark(name, SHARED)
    assert 50 < len(questions) <= SIZES[name]
    assert all(question.id.startswith(f"{name}/") for question in questions)
