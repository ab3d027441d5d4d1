"""Bad input to the command: one message with place and remedy, early; nothing half done looks finished."""

import json

import pytest


@pytest.fixture
def refused(command, capsys, tmp_path, monkeypatch):
    """Run the command on some flags, which must be refused before a model loads; returns what was shown."""

    def run(*flags):
        with monkeypatch.context() as patch:
            patch.setattr("igrpo_eval.agent.load_agent", lambda recipe: pytest.fail("refused too late"))
            with pytest.raises(SystemExit) as stopped:
                command(*flags)
        assert stopped.value.code == 2
        assert not list(tmp_path.glob("out/summary.json"))
        return " ".join(capsys.readouterr().err.replace("│", "").split())

    return run


ROWS = [
    ('{"id": "1", "golden_answers": ["a"]}', "question must be given"),
    ('{"id": "1", "question": "q", "golden_answers": []}', "golden_answers must hold at least one answer"),
    ('{"id": "0", "question": "q", "golden_answers": ["a"]}', "id must be unique, got '0' of row 1 again"),
    ('{"id": "1", "question": "q", "golden_answers": ["a"', "row must be JSON"),
]


@pytest.mark.parametrize(("row", "message"), ROWS)
@pytest.mark.parametrize("door", ["validation", "benchmark"])
def test_a_wrong_row_stops_a_run_before_anything_is_written(refused, tmp_path, door, row, message):
    good = '{"id": "0", "question": "q", "golden_answers": ["a"]}'
    (tmp_path / "nq.jsonl").write_text(f"{good}\n{row}\n")
    flags = ("--benchmark=nq", f"--benchmark_folder={tmp_path}")
    shown = refused(*([f"--data.validation={tmp_path / 'nq.jsonl'}"] if door == "validation" else flags))
    assert message in shown
    # A panel breaks long paths.
    assert "nq.jsonl,row2:" in shown.replace(" ", "")
    assert not (tmp_path / "out").exists()


def test_text_in_another_encoding_is_named(refused, tmp_path):
    (tmp_path / "nq.jsonl").write_bytes('{"id": "0", "question": "où?", "golden_answers": ["a"]}'.encode("latin-1"))
    assert "row must be UTF-8 text" in refused("--benchmark=nq", f"--benchmark_folder={tmp_path}")


def test_a_misspelt_benchmark_is_answered_with_the_nearest(refused):
    assert "did you mean hotpotqa?" in refused("--benchmark=nq,hotpot")


def test_a_folder_without_a_benchmark_says_what_is_missing(refused, tmp_path):
    assert "benchmark_folder must be given with benchmark" in refused(f"--benchmark_folder={tmp_path}")


def test_a_corpus_that_is_not_there_is_named(refused):
    assert "data file must exist, got 'nowhere.jsonl'" in refused(
        "--data.corpus=nowhere.jsonl", "--retrieval.kind=bm25"
    )


def test_pass_at_k_needs_as_many_samples(refused):
    assert "pass_k must be between 1 and samples = 2, got (3,): raise samples" in refused(
        "--samples=2", "--pass_k", "3"
    )


def test_a_model_with_too_short_a_context_names_the_limits(command, capsys, tmp_path):
    with pytest.raises(SystemExit) as stopped:
        command("--agent.max_prompt_tokens=100000")
    assert stopped.value.code == 2
    shown = " ".join(capsys.readouterr().err.replace("│", "").split())
    assert "agent.max_prompt_tokens + agent.max_response_tokens must be at most the model's" in shown
    assert "lower one of them" in shown
    assert not list(tmp_path.glob("out/records*"))


def test_a_question_that_does_not_fit_is_named_before_the_first_is_answered(command, capsys, tmp_path):
    long = {"id": "far", "question": "what is the home of ba ko ? " * 60, "golden_answers": ["ba"]}
    (tmp_path / "mine.jsonl").write_text(json.dumps(long) + "\n")
    with pytest.raises(SystemExit):
        command(f"--data.validation={tmp_path / 'mine.jsonl'}")
    shown = " ".join(capsys.readouterr().err.replace("│", "").split())
    assert "question 'far' must fit agent.max_prompt_tokens = 192" in shown
    assert "raise the limit or drop the question" in shown
    assert not (tmp_path / "out" / "summary.json").exists()
    # Nothing was recorded, so the corrected command may use the same folder.
    command()


def test_a_run_that_is_extended_and_stopped_is_unfinished_until_it_is_done(command, monkeypatch, tmp_path, capsys):
    from igrpo_eval import evaluate
    from igrpo_eval.__main__ import main

    folder = command(limit=2)
    main(["report", str(folder)])
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "collect", lambda *args, **settings: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(SystemExit):
            command("--resume")
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["report", str(folder)])
    assert stopped.value.code == 2
    assert "must hold a finished evaluation" in " ".join(capsys.readouterr().err.replace("│", "").split())
    command("--resume")
    main(["report", str(folder)])


def test_benchmarks_of_a_folder_are_asked_with_the_limit_of_each_and_reported_apart(command, tmp_path, capsys):
    from igrpo_train.question import read_questions

    questions = read_questions("miniature:leak/test")
    for name, part in (("nq", questions[:5]), ("bamboogle", questions[-4:])):
        rows = [{"id": q.id, "question": q.text, "golden_answers": list(q.answers)} for q in part]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = command("--benchmark=nq,bamboogle", f"--benchmark_folder={tmp_path}", limit=3)
    groups = {group["group"]: group for group in json.loads((folder / "summary.json").read_text())["groups"]}
    assert (groups["all"]["num_questions"], groups["source=nq"]["num_questions"]) == (6, 3)
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["benchmark"] == ["nq/test", "bamboogle/test"]
    assert settings["data.validation"] is None
