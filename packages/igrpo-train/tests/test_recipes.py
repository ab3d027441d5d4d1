"""test_recipes: files and flags meet one parser; later wins; what is wrong is named with its file."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from igrpo_train.config import Agent, Data, Model, Optimiser, Recipe, Scoring, Tree
from igrpo_train.recipes import load_recipe, recipe_to_toml, to_dict


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def refusal(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a person reads, without the panel's frame and line breaks."""
    with pytest.raises(SystemExit) as stop:
        load_recipe(args)
    assert stop.value.code == 2
    shown = capsys.readouterr()
    assert not shown.out
    return re.sub(r"([\s│╭╮╰╯─]|-{3,})+", " ", shown.err)


def test_later_settings_win_from_defaults_over_system_and_files_to_flags(tmp_path: Path) -> None:
    first = write(tmp_path / "first.toml", "system = 'grpo'\nseed = 1\n[tree]\nbudget = 7\n[agent]\nmax_turns = 3\n")
    second = write(tmp_path / "second.toml", "[tree]\nbudget = 8\ncap = 4\n[reward]\ntruncated = 'zero'\n")
    recipe = load_recipe([first, second, "--tree.cap", "2", "--tree.cap=3", "--seed", "9"])
    assert (recipe.system, recipe.seed, recipe.agent.max_turns) == ("grpo", 9, 3)
    assert (recipe.tree.budget, recipe.tree.cap, recipe.tree.criterion) == (8, 3, "zero")


def test_a_system_given_as_flag_brings_its_own_settings(tmp_path: Path) -> None:
    file = write(tmp_path / "a.toml", "system = 'grpo'\n")
    recipe = load_recipe([file, "--system=igrpo_low"])
    assert (recipe.system, recipe.tree.budget_mode, recipe.tree.cap) == ("igrpo_low", "low", 2)


def test_a_base_is_read_before_the_recipe_that_names_it(tmp_path: Path, capsys) -> None:
    (tmp_path / "small").mkdir()
    write(tmp_path / "root.toml", "system = 'grpo'\nseed = 1\nsteps = 3\n[tree]\nbudget = 7\n")
    write(tmp_path / "small" / "middle.toml", "base = '../root.toml'\nseed = 2\n[tree]\ngamma = -1\n")
    top = write(tmp_path / "small" / "top.toml", "base = 'middle.toml'\nsystem = 'igrpo'\n[tree]\ngamma = 2\n")
    recipe = load_recipe([top])
    assert (recipe.system, recipe.seed, recipe.steps, recipe.tree) == ("igrpo", 2, 3, Tree(budget=7, gamma=2.0))
    other = write(tmp_path / "other.toml", "seed = 5\n")
    assert [load_recipe(args).seed for args in ([top, other], [other, top])] == [5, 2]
    shown = refusal([str(tmp_path / "small" / "middle.toml")], capsys)
    assert "tree.gamma was set in" in shown
    assert "middle.toml" in shown


def test_a_base_that_is_missing_or_leads_back_is_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "first.toml", "base = 'second.toml'\n")
    with pytest.raises(FileNotFoundError, match=r"recipe must be a file, got '.*second.toml'"):
        load_recipe([first])
    write(tmp_path / "second.toml", "base = 'first.toml'\n")
    with pytest.raises(ValueError, match=r"base must name another recipe, from the folder of .*first.toml, got 'seco"):
        load_recipe([first])
    with pytest.raises(ValueError, match=r"base must name another recipe, from the folder of .*a.toml, got 3: take"):
        load_recipe([write(tmp_path / "a.toml", "base = 3\n")])


def test_values_of_every_kind_pass_from_file_and_flag(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.toml",
        """
        [scoring]
        always = true
        preamble = '--not-a-flag\n"quoted" = $HOME'
        [data]
        hops = [2, 3]
        [optimiser]
        betas = [0.8, 0.95]
        learning_rate = 5e-4
        """.replace("'--not-a-flag\n", "'''--not-a-flag\n").replace("$HOME'", "$HOME'''"),
    )
    recipe = load_recipe([file])
    assert recipe.scoring.always is True
    assert recipe.scoring.preamble == '--not-a-flag\n"quoted" = $HOME'
    assert recipe.data.hops == (2, 3)
    assert (recipe.optimiser.betas, recipe.optimiser.learning_rate) == ((0.8, 0.95), 5e-4)
    flags = ["--scoring.always", "False", "--data.hops", "--run.threads", "2", "--tree.budget-mode", "mid"]
    recipe = load_recipe([file, *flags])
    assert (recipe.scoring.always, recipe.data.hops, recipe.run.threads) == (False, (), 2)
    assert recipe.tree.budget_mode == "mid"


def test_a_misspelt_key_is_answered_with_the_nearest_and_its_file(tmp_path: Path, capsys) -> None:
    file = write(tmp_path / "a.toml", "[tree]\nbudgett = 4\n")
    message = refusal([file], capsys)
    assert "Unrecognized options: --tree.budgett=4 Perhaps you meant: --tree.budget INT" in message
    assert f"tree.budgett was set in {file}" in message


def test_a_misspelt_flag_is_answered_with_the_nearest(capsys) -> None:
    message = refusal(["--tree.gama", "3"], capsys)
    assert "Unrecognized options: --tree.gama" in message
    assert "Perhaps you meant: --tree.gamma FLOAT" in message
    assert "was set in" not in message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("budget = 'four'", "--tree.budget: invalid literal for int() with base 10: 'four'"),
        ("budget = 4.5", "--tree.budget: invalid literal for int() with base 10: '4.5'"),
        ("gamma = -1.0", "tree.gamma must be finite and at least 0, got -1.0"),
        ("gamma = nan", "tree.gamma must be finite and at least 0, got nan"),
        (
            "scheme = 'cap'",
            "invalid choice 'cap' for argument '--tree.scheme'. Expected one of ('capped', 'systematic', '",
        ),
        (
            "weights = 'teacher'",
            "invalid choice 'teacher' for argument '--tree.weights'. Expected one of ('none', 'mu', 'pi')",
        ),
    ],
)
def test_a_wrong_value_is_named_with_the_file_that_set_it(line: str, message: str, tmp_path: Path, capsys) -> None:
    file = write(tmp_path / "a.toml", f"[tree]\n{line}\n")
    shown = refusal([file, "--seed", "1"], capsys)
    assert message in shown
    assert f"tree.{line.split()[0]} was set in {file}" in shown


def test_a_flag_that_overrides_a_file_takes_the_blame_itself(tmp_path: Path, capsys) -> None:
    file = write(tmp_path / "a.toml", "steps = 3\n[tree]\ngamma = 2.0\n")
    assert "was set in" not in refusal([file, "--tree.gamma=-1"], capsys)


def test_a_missing_recipe_is_answered_with_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path / "igrpo.toml", "")
    missing = tmp_path / "igrp.toml"
    with pytest.raises(
        FileNotFoundError, match=r"recipe must be a file, got '.*igrp.toml': did you mean .*igrpo.toml\?"
    ):
        load_recipe([str(missing)])
    with pytest.raises(FileNotFoundError, match="got 'nowhere': give a path to a .toml file, flags start with --"):
        load_recipe(["nowhere"])


def test_a_file_that_is_no_toml_is_named_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"recipe must be TOML in UTF-8, got '.*a.toml': .*line 2"):
        load_recipe([write(tmp_path / "a.toml", "seed = 1\nsteps 2\n")])
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"recipe must be TOML in UTF-8, got '.*b.toml'"):
        load_recipe([str(tmp_path / "b.toml")])


def test_help_ends_well_and_lists_settings_with_their_documentation(capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        load_recipe(["--help"])
    assert stop.value.code == 0
    shown = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    assert "--tree.budget INT Children of the root" in shown
    assert "igrpo-train RECIPE.toml [MORE.toml ...] [--key value ...]: later settings win." in shown


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)


@given(
    preamble=TEXT,
    template=TEXT.filter(lambda text: "{" not in text),
    rate=st.floats(1e-12, 1e6),
    hops=st.lists(st.integers(1, 4), max_size=3),
    always=st.booleans(),
    gamma=st.floats(0, 1e300),
)
def test_a_recipe_survives_its_way_through_a_file(
    tmp_path_factory, preamble, template, rate, hops, always, gamma
) -> None:
    recipe = Recipe(
        seed=7,
        model=Model(path="miniature:leak"),
        data=Data(hops=tuple(hops)),
        agent=Agent(template=template + "{question} {history}"),
        scoring=Scoring(preamble=preamble, always=always),
        optimiser=Optimiser(learning_rate=rate),
        tree=Tree(gamma=gamma),
    )
    file = tmp_path_factory.getbasetemp() / "round.toml"
    assert load_recipe([write(file, recipe_to_toml(recipe))]) == recipe


def test_a_preset_does_not_change_a_saved_recipe(tmp_path: Path) -> None:
    recipe = replace(load_recipe(["--system", "grpo"]), tree=Tree(cap=4))
    assert load_recipe([write(tmp_path / "a.toml", recipe_to_toml(recipe))]) == recipe


def test_the_dictionary_of_a_recipe_is_plain_json() -> None:
    assert json.loads(json.dumps(to_dict(Recipe())))["data"]["hops"] == []


def test_reading_a_recipe_loads_no_torch() -> None:
    code = (
        "import sys; from igrpo_train.recipes import load_recipe; import igrpo_train.tracking, igrpo_train.question; "
        "load_recipe(['--seed', '1']); assert 'torch' not in sys.modules; assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
