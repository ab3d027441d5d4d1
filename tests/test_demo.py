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


def test_training_and_held_out_questions_share_no_name(small_recipe):
    from experiments.demo import held_out
    from igrpo_train.data import load_questions
    from igrpo_train.recipes import load_recipe

    recipe = load_recipe([str(small_recipe)])
    questions = held_out(recipe, 200)
    assert len(questions) == 400
    titles = [{p.title for q in group for p in q.contexts} for group in (questions, load_questions(recipe.data.train))]
    assert titles[0].isdisjoint(titles[1])
