"""test_scaling: the page on scaling says what the formulas say."""

import re
from pathlib import Path

import pytest

from experiments.scaling_table import KNOWN, ROOT, TABLES, Arguments, paper_recipe, run, with_tables
from igrpo_train.estimate import activation_bytes

PAGE = ROOT / "docs" / "scaling.md"


def test_the_tables_are_those_of_the_formulas() -> None:
    run(Arguments(check=True))
    assert set(re.findall(r"<!-- table: (\w+) -->", PAGE.read_text(encoding="utf-8"))) == set(TABLES)


def test_a_table_that_drifted_is_refused_and_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    whole = "before\n<!-- table: index -->\n| flat | 1 |\n<!-- end -->\nafter\n"
    page.write_text(whole, encoding="utf-8")
    with pytest.raises(ValueError, match=r"the tables of .*page.md must be as the formulas have them, got others"):
        run(Arguments(page=page, check=True))
    assert page.read_text(encoding="utf-8") == whole
    run(Arguments(page=page))
    written = page.read_text(encoding="utf-8")
    assert "| flat | 3072 | 64.6 |" in written
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert with_tables(written) == written


def test_numbers_in_the_text_are_those_of_the_formulas() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    recipe, shape = paper_recipe(), KNOWN["Qwen/Qwen2.5-3B-Instruct"]
    a_token = activation_bytes(shape, 1000, half=True, checkpointing=False) / 1000
    assert f"{recipe.optimiser.tokens_per_micro_batch:,} tokens a pass" in text
    assert f"{a_token / 1e6:.1f} MB a token for 3B" in text
    assert f"{2 * KNOWN['Qwen/Qwen2.5-32B-Instruct'].parameters / 1e9:.0f} GB for 32B" in text
    assert f"{recipe.questions_per_step * recipe.tree.budget:,} queries a stage" in text
