"""The records file: written line by line, gone on from exactly, never mixed."""

import dataclasses
import json

import pytest

SETTINGS = {"model.path": "a", "temperature": 0.0, "agent.max_turns": 4, "seed": 0}


@pytest.fixture
def write(make_record):
    """Write a folder with records, and perhaps the start of another line."""

    def build(folder, records, torn=""):
        from igrpo_eval.records import open_folder, record_to_line

        open_folder(folder, SETTINGS, samples=1, resume=False)
        text = "".join(record_to_line(record) + "\n" for record in records)
        (folder / "records.jsonl").write_text(text + torn, encoding="utf-8")
        return folder

    return build


def _resume(folder, samples=1, **changed):
    from igrpo_eval.records import open_folder

    return open_folder(folder, SETTINGS | changed, samples=samples, resume=True)


def test_a_record_comes_back_as_it_was_written(make_record):
    from igrpo_eval.records import record_from_row, record_to_line

    record = make_record(golds=("Émile", "\u2028"), prediction=None, answered=False)
    line = record_to_line(record)
    assert "\n" not in line
    back = record_from_row(json.loads(line))
    assert back == record
    assert back.seconds == record.seconds


def test_resuming_keeps_what_is_done(tmp_path, write, make_record):
    records = [make_record(id="a"), make_record(id="b")]
    before = (write(tmp_path, records) / "records.jsonl").read_bytes()
    assert _resume(tmp_path) == records
    assert (tmp_path / "records.jsonl").read_bytes() == before


@pytest.mark.parametrize("torn", ['{"id": "b", "sam', "x", '{"id": "b"}'])
def test_a_torn_last_line_is_dropped_from_the_file_too(tmp_path, write, make_record, torn, caplog):
    records = [make_record(id="a")]
    write(tmp_path, records, torn)
    assert _resume(tmp_path) == records
    assert "ends in the middle of a record: it is dropped and redone" in caplog.text
    assert (tmp_path / "records.jsonl").read_text(encoding="utf-8").count("\n") == 1
    assert _resume(tmp_path) == records


def test_every_cut_of_the_file_leaves_whole_records(tmp_path, write, make_record):
    records = [make_record(id=id_) for id_ in "abc"]
    whole = (write(tmp_path, records) / "records.jsonl").read_bytes()
    for size in range(0, len(whole) + 1, 37):
        (tmp_path / "records.jsonl").write_bytes(whole[:size])
        assert _resume(tmp_path) == records[: whole[:size].count(b"\n")]


def test_a_question_without_all_of_its_samples_is_redone(tmp_path, write, make_record):
    records = [make_record(id="a", sample=0), make_record(id="a", sample=1), make_record(id="b", sample=0)]
    write(tmp_path, records)
    assert _resume(tmp_path, samples=2) == records[:2]
    assert (tmp_path / "records.jsonl").read_text(encoding="utf-8").count("\n") == 2


def test_records_are_not_overwritten_unless_asked_to_go_on(tmp_path, write, make_record):
    from igrpo_eval.records import open_folder

    write(tmp_path, [make_record()])
    with pytest.raises(ValueError, match=r"out must be a new folder, got '.*', which holds records: add --resume, or"):
        open_folder(tmp_path, SETTINGS, samples=1, resume=False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"temperature": 1.0}, r"temperature must be 0\.0 as in .*settings\.json to resume, got 1\.0: set it back, or"),
        ({"model.path": "b"}, r'model\.path must be "a" as in .* to resume, got "b"'),
        ({"agent.new": 1}, r"agent\.new must be no value as in .* to resume, got 1"),
    ],
)
def test_records_of_other_settings_are_refused_and_the_field_is_named(tmp_path, write, make_record, changed, message):
    write(tmp_path, [make_record()])
    before = (tmp_path / "settings.json").read_bytes()
    with pytest.raises(ValueError, match=message):
        _resume(tmp_path, **changed)
    assert (tmp_path / "settings.json").read_bytes() == before


def test_records_without_their_settings_are_refused(tmp_path, write, make_record):
    write(tmp_path, [make_record()])
    (tmp_path / "settings.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"out must hold settings\.json to resume, got no"):
        _resume(tmp_path)


def test_resuming_an_empty_folder_starts(tmp_path):
    assert _resume(tmp_path / "new" / "folder") == []
    assert json.loads((tmp_path / "new" / "folder" / "settings.json").read_text()) == SETTINGS


def test_a_changed_line_is_refused_and_named(tmp_path, write, make_record):
    write(tmp_path, [make_record()])
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"id": "b"}\n')
    with pytest.raises(
        ValueError, match=r"records\.jsonl, line 2: a record must have the fields id, sample, .* remove"
    ):
        _resume(tmp_path)
    (tmp_path / "records.jsonl").write_text("[\n")
    with pytest.raises(ValueError, match=r"records\.jsonl, line 1: .* the file was changed"):
        _resume(tmp_path)


def test_a_question_that_changed_since_is_refused(tmp_path, make_record):
    from igrpo_eval.records import check_questions
    from igrpo_train.question import Question

    question = Question(id="q", text="who?", answers=("Ghent",))
    check_questions([make_record(), make_record(id="gone")], [question], tmp_path)
    for other in (dataclasses.replace(question, text="where?"), dataclasses.replace(question, answers=("Oslo",))):
        with pytest.raises(ValueError, match=r"question 'q' must be .*'who\?'.* to resume, got .*: restore the file"):
            check_questions([make_record()], [other], tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    from igrpo_eval.records import open_folder
    from igrpo_train.errors import DiskError

    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match=r"out must be a folder that can be written, got '.*file'"):
        open_folder(tmp_path / "file", SETTINGS, samples=1, resume=False)


def test_reading_no_file_is_an_error(tmp_path):
    from igrpo_eval.records import read_records

    with pytest.raises(FileNotFoundError, match=r"records must be a file, got .* evaluate first"):
        read_records(tmp_path / "records.jsonl")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("exact_match", float("nan")),
        ("exact_match", "1"),
        ("f1", 7.5),
        ("id", 7),
        ("sample", -1),
        ("turns", 0),
        ("golds", None),
        ("answer_seen", "ab"),
        ("scores", [2.0]),
        ("answered", "yes"),
    ],
)
def test_a_record_that_holds_what_it_cannot_is_named_with_its_line(make_record, tmp_path, name, value):
    from dataclasses import asdict

    from igrpo_eval.records import read_records

    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({**asdict(make_record()), name: value}) + "\n")
    with pytest.raises(ValueError, match=rf"records.jsonl, line 1: {name} must be"):
        read_records(path)
