"""Flags of an evaluation: a recipe's and its own, by one parser."""

import sys

import pytest


def _load(*args):
    from igrpo_eval.settings import load_evaluation

    return load_evaluation(args)


def test_recipe_files_and_both_kinds_of_flags_meet_one_parser(tmp_path):
    recipe = tmp_path / "a.toml"
    recipe.write_text("seed = 3\nsamples = 2\n[validation]\ntemperature = 0.7\n[agent]\nmax_turns = 3\n")
    evaluation = _load(str(recipe), "--out", "x", "--agent.max_turns=2", "--resume")
    assert (evaluation.recipe.seed, evaluation.samples, evaluation.recipe.agent.max_turns) == (3, 2, 2)
    assert evaluation.resume
    assert evaluation.sampling_temperature == 0.7
    assert _load(str(recipe), "--out", "x", "--temperature", "0.5").sampling_temperature == 0.5


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (("--limt", "3"), "--limit"),
        (("--sampels", "3"), "--samples"),
        (("--resum",), "--resume"),
        (("--data.validaton", "x"), "--data.validation"),
        (("--limit", "0"), "limit must be at least 1, got 0"),
        (("--samples", "2"), "samples must be 1 at temperature 0, got 2: greedy"),
        (("--temperature", "-1"), "temperature must be finite and at least 0, got -1.0"),
        (("--batch_questions", "0"), "batch_questions must be at least 1, got 0"),
        (("--out", " "), "out must be a path, got ' '"),
        (("--tree.budget", "0"), "tree.budget must be at least 1, got 0"),
    ],
)
def test_wrong_flags_end_with_code_2_and_the_remedy(args, shown, capsys):
    with pytest.raises(SystemExit) as stopped:
        _load("--out", "x", *args)
    assert stopped.value.code == 2
    assert shown in " ".join(capsys.readouterr().err.replace("│", "").split())


def test_a_wrong_key_of_a_file_is_answered_with_the_file(tmp_path, capsys):
    recipe = tmp_path / "a.toml"
    recipe.write_text("limitt = 3\n")
    with pytest.raises(SystemExit):
        _load(str(recipe), "--out", "x")
    shown = capsys.readouterr().err
    assert "--limit" in shown
    assert f"limitt was set in {recipe}" in shown.replace("\n", "")


def test_a_folder_for_the_records_must_be_named(capsys):
    with pytest.raises(SystemExit):
        _load("--limit", "3")
    assert "--out" in capsys.readouterr().err


def test_settings_of_records_leave_out_what_only_chooses_questions_or_speed():
    from igrpo_eval.identity import record_settings

    plain = record_settings(_load("--out", "x"))
    same = (
        "--limit",
        "5",
        "--batch_questions",
        "3",
        "--data.hops",
        "2",
        "--model.device",
        "cpu",
        "--resume",
        "--steps",
        "7",
    )
    assert record_settings(_load("--out", "y", *same)) == plain
    for flag, value in (
        ("--seed", "1"),
        ("--retrieval.b", "0.5"),
        ("--agent.top_k", "9"),
        ("--temperature", "1"),
        ("--sampling.engine", "vllm"),
    ):
        assert record_settings(_load("--out", "x", flag, value)) != plain


def test_another_model_at_the_same_path_is_other_settings(tmp_path):
    from igrpo_eval.identity import record_settings

    found = []
    for weights in (b"1", b"1", b"2"):
        (tmp_path / "model.safetensors").write_bytes(weights)
        found.append(record_settings(_load("--out", "x", "--model.path", str(tmp_path)))["model.weights"])
    assert found[0] == found[1] != found[2]
    assert record_settings(_load("--out", "x"))["model.weights"] is None


def test_a_wrong_flag_is_answered_before_torch_is_imported():
    import os
    import subprocess

    code = (
        "import sys\n"
        "from igrpo_eval.__main__ import main\n"
        "try:\n    main(['run', '--limt', '3'])\n"
        "except SystemExit as stopped:\n    print(stopped.code, 'torch' in sys.modules)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)
    assert done.stdout.split() == ["2", "False"], done.stderr
