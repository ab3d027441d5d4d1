"""The demo end to end, in small: evaluate, train, evaluate, compare, and go on after an interrupt."""

import json
from pathlib import Path

import pytest

RECIPE = Path(__file__).parent.parent / "recipes" / "miniature" / "igrpo.toml"


@pytest.fixture
def small_recipe(tmp_path):
    text = RECIPE.read_text()
    for key, value in {"steps": 2, "questions_per_step": 2, "every": 1, "questions": 4}.items():
        lines = text.splitlines()
        text = "\n".join(f"{key} = {value}" if line.startswith(f"{key} =") else line for line in lines)
    path = tmp_path / "small.toml"
    path.write_text(text)
    return path


@pytest.mark.slow
def test_the_demo_writes_its_summary_and_curves(small_recipe, tmp_path, capsys):
    from experiments.demo import Arguments, run

    folder = tmp_path / "demo"
    run(Arguments(seed=3, recipe=small_recipe, folder=folder, per_hop=4, compare=True))
    summary = json.loads((folder / "summary.json").read_text())
    for when in ("before", "after"):
        low, high = summary[f"em_{when}_ci"]
        assert 0 <= low <= summary[f"em_{when}"] <= high <= 1
        assert 0 <= summary[f"greedy_{when}"] <= 1
        assert set(summary[f"em_{when}_by_hops"]) == {"hops=2", "hops=3"}
    assert (summary["questions"], summary["seed"]) == (8, 3)
    assert 0 < summary["train_seconds"] < summary["seconds_total"]
    assert set(summary["compared"]) == {"grpo", "igrpo_gamma0"}
    assert (folder / "curves.png").stat().st_size > 1000
    assert "exact match on held-out questions" in capsys.readouterr().out

    again = Arguments(seed=3, recipe=small_recipe, folder=folder, per_hop=4, resume=True)
    assert run(again)["em_after"] == summary["em_after"]


def test_an_earlier_demo_is_replaced_and_nothing_else(small_recipe, tmp_path):
    from experiments.demo import Arguments, _clear, run

    folder = tmp_path / "demo"
    for name in ("igrpo/code.json", "grpo/code.json", "summary.json", "curves.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    with pytest.raises(FileNotFoundError, match="recipe must be a file"):
        run(Arguments(recipe=tmp_path / "none.toml", folder=folder))
    assert (folder / "summary.json").exists()
    _clear(folder)
    assert not folder.exists()
    for name in ("thesis.txt", "igrpo/thesis.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
        with pytest.raises(FileExistsError, match=r"nothing but an earlier demo, got '.*demo' with .*: name another"):
            run(Arguments(recipe=small_recipe, folder=folder))
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hops = [2, 3]", "", r"data\.hops must be the numbers of hops to evaluate, got \(\): \[2, 3\]"),
        (
            'train = "miniature:leak/train"',
            'train = "a.jsonl"',
            r"data\.train must be miniature:NAME/train, got 'a.jsonl'",
        ),
    ],
)
def test_a_recipe_without_held_out_questions_is_refused(small_recipe, tmp_path, old, new, message):
    from experiments.demo import Arguments, run

    small_recipe.write_text(small_recipe.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        run(Arguments(recipe=small_recipe, folder=tmp_path / "demo"))
    with pytest.raises(ValueError, match="per_hop must be at least 1, got 0"):
        Arguments(per_hop=0)


def test_training_and_held_out_questions_share_no_name(small_recipe):
    from experiments.demo import held_out
    from igrpo_train.data import load_questions
    from igrpo_train.recipes import load_recipe

    recipe = load_recipe([str(small_recipe)])
    questions = held_out(recipe, 200)
    assert len(questions) == 400
    titles = [{p.title for q in group for p in q.contexts} for group in (questions, load_questions(recipe.data.train))]
    assert titles[0].isdisjoint(titles[1])
