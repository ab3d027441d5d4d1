"""What identifies the records of an evaluation: the step, the prompt, the passages."""

import json

import pytest


def _recipe(*args):
    from igrpo_train.recipes import load_recipe

    return load_recipe(args)


def test_a_checkpoint_of_ours_says_its_step_and_other_models_none(tmp_path):
    from igrpo_eval.identity import training_step

    assert training_step(str(tmp_path)) is None
    (tmp_path / "trainer.json").write_text(json.dumps({"step": 40}))
    assert training_step(str(tmp_path)) == 40


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"step": null}'])
def test_a_damaged_checkpoint_is_named(tmp_path, text):
    from igrpo_eval.identity import training_step

    (tmp_path / "trainer.json").write_text(text)
    with pytest.raises(
        ValueError, match=r"model\.path must be a whole checkpoint, got .*: take another step-\* folder"
    ):
        training_step(str(tmp_path))


def test_the_corpus_is_known_by_what_it_holds(tmp_path):
    from igrpo_eval.identity import corpus_hash

    texts = ('{"id": 1, "contents": "Ghent\\nA city."}\n', '{"id": 1, "contents": "Ghent\\nA town."}\n')
    hashes = []
    for name, text in (("a", texts[0]), ("b", texts[0]), ("c", texts[1])):
        (tmp_path / f"{name}.jsonl").write_text(text)
        hashes.append(corpus_hash(_recipe("--data.corpus", str(tmp_path / f"{name}.jsonl"))))
    assert hashes[0] == hashes[1] != hashes[2]
    miniature = [corpus_hash(_recipe("--data.corpus", f"miniature:{name}/test")) for name in ("leak", "plain", "leak")]
    assert miniature[0] == miniature[2] != miniature[1]
    assert corpus_hash(_recipe("--retrieval.kind", "http", "--data.corpus", "nothing.jsonl")) is None
    with pytest.raises(FileNotFoundError, match="data file must exist, got 'nothing.jsonl'"):
        corpus_hash(_recipe("--data.corpus", "nothing.jsonl"))


def test_settings_name_the_prompt_the_normaliser_and_whether_scores_were_asked_for():
    from igrpo_eval.identity import record_settings
    from igrpo_eval.settings import load_evaluation

    plain = record_settings(load_evaluation(["--out", "x"]))
    scored = record_settings(load_evaluation(["--out", "x", "--scores"]))
    assert (plain["normaliser"], plain["step"], plain["scores"]) == ("squad", None, False)
    assert set(scored) - set(plain) == {"scoring.preamble", "scoring.aliases"}
    other = record_settings(load_evaluation(["--out", "x", "--agent.no_documents", "none"]))
    assert other["prompt.hash"] != plain["prompt.hash"]
    moved = ("--retrieval.url", "http://other:1/retrieve", "--retrieval.timeout_s", "3")
    assert record_settings(load_evaluation(["--out", "x", *moved])) == plain
