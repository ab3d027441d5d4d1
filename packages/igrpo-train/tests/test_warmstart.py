"""A short supervised start: from questions with gold passages to a folder that a recipe can name."""

import json

import pytest

_PASSAGES = [
    {"id": "1", "title": "Ghent", "text": "Ghent is a city whose mayor is Ann."},
    {"id": "2", "title": "Oslo", "text": "Oslo is a city whose mayor is Bob."},
    {"id": "3", "title": "Lima", "text": "Lima is a city whose mayor is Cem."},
]


def _write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def recipe(tmp_path, toy_model, toy_tokenizer):
    """A recipe over three questions and the toy model."""
    from igrpo_train.config import Agent, Data, Model, Recipe, Scoring

    toy_model.save_pretrained(tmp_path / "toy")
    toy_tokenizer.save_pretrained(tmp_path / "toy")
    names = {"Ghent": "Ann", "Oslo": "Bob", "Lima": "Cem"}
    rows = [
        {"id": page["id"], "question": f"who is mayor of {page['title']}?", "contexts": [page]}
        | {"golden_answers": [names[page["title"]]]}
        for page in _PASSAGES
    ]
    questions = _write(tmp_path / "train.jsonl", rows)
    return Recipe(
        model=Model(path=str(tmp_path / "toy"), dtype="float32", device="cpu"),
        data=Data(train=questions, validation=questions, corpus=_write(tmp_path / "corpus.jsonl", _PASSAGES)),
        agent=Agent(
            template="Q: {question}\n{history}", max_turns=2, max_prompt_tokens=250, max_response_tokens=150, top_k=1
        ),
        scoring=Scoring(preamble="<think> enough </think>\n<answer>"),
    )


def _settings(**changes):
    from igrpo_train.warmstart import WarmStart

    return WarmStart(**{"steps": 4, "learning_rate": 3e-3, "tokens_per_batch": 600, "warmup_steps": 2} | changes)


def test_the_folder_loads_and_says_how_it_was_made(recipe, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from igrpo_train.recipes import to_dict
    from igrpo_train.warmstart import warm_start

    seen = []
    out = warm_start(recipe, tmp_path / "warm", _settings(), on_step=lambda step, figures: seen.append((step, figures)))
    assert out == tmp_path / "warm"
    assert AutoModelForCausalLM.from_pretrained(out).num_parameters() > 0
    assert AutoTokenizer.from_pretrained(out).chat_template
    record = json.loads((out / "warmstart.json").read_text())
    assert (record["questions"], record["skipped"], len(record["losses"])) == (3, {}, 4)
    assert record["recipe"] == json.loads(json.dumps(to_dict(recipe)))
    assert [step for step, _ in seen] == [1, 2, 3, 4]
    assert [round(figures["loss"], 4) for _, figures in seen] == record["losses"]


def test_a_toy_policy_learns_the_protocol(recipe, tmp_path):
    from igrpo_train.warmstart import warm_start

    out = warm_start(recipe, tmp_path / "warm", _settings(steps=60, learning_rate=1e-2, tokens_per_batch=2000))
    losses = json.loads((out / "warmstart.json").read_text())["losses"]
    assert losses[0] > 5
    assert losses[-1] < 1


def test_the_same_call_gives_the_same_weights(recipe, tmp_path):
    import dataclasses

    from igrpo_train.warmstart import warm_start

    first, second = (warm_start(recipe, tmp_path / name, _settings()) for name in ("one", "two"))
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    other = warm_start(dataclasses.replace(recipe, seed=1), tmp_path / "three", _settings())
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_questions_are_those_that_training_comes_to_last(recipe, tmp_path, monkeypatch):
    from igrpo_train import warmstart
    from igrpo_train.data import batch_indices

    shown = []
    whole = warmstart.demonstrate

    def watch(questions, *args):
        shown.extend(question.id for question in questions)
        return whole(questions, *args)

    monkeypatch.setattr(warmstart, "demonstrate", watch)
    warmstart.warm_start(recipe, tmp_path / "warm", _settings(questions=2))
    (first,) = batch_indices(3, 1, seed=recipe.seed, step=0)
    assert sorted(shown) == sorted({"1", "2", "3"} - {_PASSAGES[first]["id"]})


def test_a_full_folder_is_refused_before_anything_is_read(recipe, tmp_path):
    import dataclasses

    from igrpo_train.config import Data
    from igrpo_train.warmstart import warm_start

    (tmp_path / "warm").mkdir()
    (tmp_path / "warm" / "notes.txt").write_text("mine")
    nowhere = dataclasses.replace(recipe, data=Data(train="nowhere.jsonl"))
    with pytest.raises(FileExistsError, match=r"folder must be new or empty, got '.*warm'"):
        warm_start(nowhere, tmp_path / "warm", _settings())
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl"):
        warm_start(nowhere, tmp_path / "cold", _settings())
    assert not (tmp_path / "cold").exists()


def test_questions_without_gold_passages_are_an_error(recipe, tmp_path):
    import dataclasses

    from igrpo_train.config import Data
    from igrpo_train.warmstart import warm_start

    rows = [{"id": "1", "question": "who?", "golden_answers": ["Ann"]}]
    data = dataclasses.replace(recipe.data, train=_write(tmp_path / "bare.jsonl", rows))
    assert isinstance(data, Data)
    with pytest.raises(ValueError, match=r"got 1 questions, 1 with no gold passages"):
        warm_start(dataclasses.replace(recipe, data=data), tmp_path / "warm", _settings())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("steps", 0, "steps must be at least 1, got 0"),
        ("learning_rate", 0.0, r"learning_rate must be finite and above 0, got 0\.0"),
        ("questions", -1, "questions must be at least 0, got -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        _settings(**{field: value})


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--warm.stepz=1", "Unrecognized options: --warm.stepz=1 Perhaps you meant: --warm.steps INT"),
        ("--tree.gama=1", "Unrecognized options: --tree.gama=1 Perhaps you meant: --tree.gamma FLOAT"),
        ("--warm.steps=0", "warm.steps must be at least 1, got 0"),
    ],
)
def test_a_wrong_flag_is_answered_with_the_nearest(flag, message, capsys, tmp_path):
    from igrpo_train.__main__ import main

    with pytest.raises(SystemExit) as stopped:
        main(["warmstart", f"--out={tmp_path / 'warm'}", flag])
    assert stopped.value.code == 2
    # Neither the panel's lines count nor where it breaks its text.
    shown = capsys.readouterr().err.replace("│", " ").replace("─", "")
    assert message in " ".join(word for word in shown.split() if word.strip("-"))


def test_flags_reach_every_setting():
    import tyro

    from igrpo_train.warmstart import WarmStart

    settings = tyro.cli(WarmStart, args=["--steps", "3", "--manner.early-share", "0", "--learning-rate", "1e-5"])
    assert (settings.steps, settings.manner.early_share, settings.learning_rate) == (3, 0.0, 1e-5)
