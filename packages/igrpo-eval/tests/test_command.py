"""The command from flags to table, with a policy of random weights: records, resume, refusals, interrupts."""

import json
import re

import pytest


def _shown(capsys):
    return " ".join(capsys.readouterr().err.replace("│", "").split())


def _records(folder):
    from igrpo_eval.records import read_records

    return read_records(folder / "records.jsonl")


def test_a_run_leaves_records_settings_and_a_summary_and_shows_a_table(command, capsys):
    folder = command("--samples=2")
    shown = capsys.readouterr()
    assert re.search(r"^all +6 ", shown.out, re.MULTILINE)
    assert "question 6/6" in shown.err
    assert len(_records(folder)) == 12
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["settings"] == json.loads((folder / "settings.json").read_text())
    assert summary["groups"][0]["num_questions"] == 6
    assert summary["measured"]["tokens/generation"] > 0


def test_a_resumed_run_ends_with_the_records_of_an_uninterrupted_one(command, monkeypatch, capsys):
    whole = _records(command("--batch_questions=2", out="whole"))
    folder = command("--batch_questions=2", limit=2)
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"id": "torn')
    assert _records(command("--batch_questions=3", "--resume")) == [*_records(folder)]
    assert sorted(_records(folder), key=lambda r: r.id) == sorted(whole, key=lambda r: r.id)
    # All is done: no model is needed, and a smaller limit summarises fewer questions.
    monkeypatch.setattr("igrpo_eval.agent.load_agent", lambda recipe: pytest.fail("nothing is left to evaluate"))
    command("--resume", limit=2)
    assert json.loads((folder / "summary.json").read_text())["groups"][0]["num_questions"] == 2
    assert len(_records(folder)) == 6


def test_records_of_other_settings_are_refused_before_a_model_loads(command, monkeypatch, capsys):
    command(limit=1)
    monkeypatch.setattr("igrpo_eval.agent.load_agent", lambda recipe: pytest.fail("refused too late"))
    for flags, reason in (
        ((), "which holds records: add --resume"),
        (("--resume", "--seed=5"), "seed must be 0 as in"),
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            command(*flags, limit=1)
        assert stopped.value.code == 2
        assert reason in " ".join(capsys.readouterr().err.replace("│", "").split())


def test_damaged_settings_are_named(command, capsys):
    folder = command(limit=1)
    (folder / "settings.json").write_text("{")
    with pytest.raises(SystemExit) as stopped:
        command("--resume", limit=1)
    assert stopped.value.code == 2
    assert "restore it or give --out a new folder" in _shown(capsys)


def test_an_interrupt_finishes_its_batch_and_resuming_goes_on(command, monkeypatch, tmp_path):
    import signal

    from igrpo_eval import evaluate

    collect = evaluate.collect

    def interrupted(*args, **settings):
        signal.raise_signal(signal.SIGINT)
        return collect(*args, **settings)

    monkeypatch.setattr(evaluate, "collect", interrupted)
    with pytest.raises(SystemExit) as stopped:
        command("--batch_questions=2")
    assert stopped.value.code == 130
    assert len(_records(tmp_path / "out")) == 2
    monkeypatch.setattr(evaluate, "collect", collect)
    assert len(_records(command("--resume"))) == 6


def test_the_command_must_be_known(capsys):
    from igrpo_eval.__main__ import main

    with pytest.raises(SystemExit) as stopped:
        main(["runn"])
    assert stopped.value.code == 2
    shown = " ".join(capsys.readouterr().err.replace("│", "").split())
    assert "command must be one of run, report, correlate, got 'runn': did you mean run?" in shown
    main(["--help"])
    assert "igrpo-eval run" in capsys.readouterr().out


def test_an_unknown_device_is_named(command, capsys):
    with pytest.raises(SystemExit):
        command("--model.device=gpu")
    assert "model.device must be auto or a torch device of this machine, got 'gpu'" in _shown(capsys)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_batch_size_does_not_change_the_records_of_the_shipped_policy(temperature, agent_flags):
    from igrpo_eval.agent import load_agent
    from igrpo_eval.evaluate import evaluate
    from igrpo_eval.selection import limit_questions
    from igrpo_train.question import read_questions
    from igrpo_train.recipes import load_recipe

    data = ("--data.corpus=miniature:leak/test", "--retrieval.kind=miniature", *agent_flags)
    agent = load_agent(
        load_recipe(["--model.path=miniature:leak", "--model.dtype=float32", "--model.device=cpu", *data])
    )
    questions = limit_questions(read_questions("miniature:leak/test"), 8)
    whole, single, three = (
        evaluate(agent, questions, turn_limit=4, temperature=temperature, seed=0, batch_questions=batch)
        for batch in (8, 1, 3)
    )
    assert single == whole
    assert three == whole
    assert sum(record.searches for record in whole) > 0


def test_scores_are_recorded_when_asked_for_and_change_nothing_else(command):
    import dataclasses

    plain, scored = _records(command(out="plain")), _records(command("--scores", out="scored"))
    assert [dataclasses.replace(r, root_score=None, scores=(None,) * r.turns) for r in scored] == plain
    assert all(0 < record.root_score < 1 for record in scored)
    assert all(score is not None for record in scored for score in record.scores[:-1])
