"""test_systems: the table of systems is well formed and means what the paper says."""

from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from igrpo_train.config import Recipe, Tree
from igrpo_train.recipes import load_recipe, to_dict
from igrpo_train.settings import flatten
from igrpo_train.systems import SYSTEMS, System


def test_every_system_has_a_row_and_every_row_a_system() -> None:
    assert set(SYSTEMS) == set(get_args(System))


@pytest.mark.parametrize("system", get_args(System))
def test_every_system_makes_a_valid_recipe_that_sets_what_its_row_says(system: System) -> None:
    recipe = load_recipe(["--system", system])
    assert recipe.system == system
    for key, value in SYSTEMS[system].items():
        group, name = key.split(".")
        assert getattr(getattr(recipe, group), name) == value


def test_igrpo_is_the_defaults() -> None:
    assert load_recipe([]) == Recipe() == load_recipe(["--system", "igrpo"])


def test_igrpo_has_the_settings_of_the_paper() -> None:
    recipe = Recipe()
    assert (recipe.steps, recipe.questions_per_step, recipe.agent.max_turns, recipe.agent.top_k) == (200, 256, 4, 3)
    assert (recipe.agent.max_prompt_tokens, recipe.agent.max_response_tokens) == (4096, 512)
    assert (recipe.tree.budget, recipe.tree.cap, recipe.tree.gamma, recipe.tree.criterion) == (5, 2, 1.0, "mean")
    assert (recipe.loss.clip_low, recipe.loss.clip_high, recipe.loss.dual_clip) == (0.2, 0.2, 3.0)
    assert (recipe.loss.kl_coefficient, recipe.reward.invalid_penalty) == (0.001, 0.01)
    assert (recipe.optimiser.learning_rate, recipe.optimiser.update_rows) == (1e-6, 256)
    # The official switch comes after step 150 of 200.
    assert recipe.reward.switch_fraction * recipe.steps == 150


def test_grpo_grows_chains_that_score_nothing() -> None:
    rule = load_recipe(["--system", "grpo"]).growth_rule(step=0)
    assert (rule.budget, rule.cap, rule.needs_scores) == (5, 1, False)


def test_gamma_zero_differs_from_igrpo_by_gamma_alone() -> None:
    plain, uniform = load_recipe([]).tree, load_recipe(["--system", "igrpo_gamma0"]).tree
    changed = [field.name for field in fields(Tree) if getattr(plain, field.name) != getattr(uniform, field.name)]
    assert changed == ["gamma"]


@pytest.mark.parametrize("path", sorted((Path(__file__).resolve().parents[3] / "recipes").rglob("*.toml")), ids=str)
def test_a_system_given_as_flag_is_not_undone_by_a_recipe(path: Path) -> None:
    for system, settings in SYSTEMS.items():
        recipe = load_recipe([str(path), "--system", system])
        found = flatten(to_dict(recipe))
        assert {key: found[key] for key in settings} == settings
        assert recipe.growth_rule(0).needs_scores == (system != "grpo")
