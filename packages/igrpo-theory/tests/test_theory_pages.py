"""The pages under docs/theory: their examples run, and what they name exists."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import igrpo_theory

TESTS = Path(__file__).parent
FOLDER = TESTS.parents[2] / "docs" / "theory"
PAGES = sorted(FOLDER.glob("*.md"))
SOURCES = sorted(Path(igrpo_theory.__file__).parent.glob("*.py"))

pytestmark = pytest.mark.skipif(not PAGES, reason=f"the pages are not beside this package ({FOLDER})")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_of_a_page_hold(page: Path) -> None:
    assert doctest.testfile(str(page), module_relative=False).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_no_placeholder(page: Path) -> None:
    assert not re.findall(r"\b(?:X{2,}|TODO|TBD|FIXME)\b", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tests_functions_and_pages_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file, name in re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?`", text):
        assert (TESTS / file).is_file(), file
        assert not name or f"def {name}(" in (TESTS / file).read_text(encoding="utf-8"), f"{file}::{name}"
    for module, name in re.findall(r"`([a-z_]+)\.([A-Za-z_]+)`", text):
        if name != "py":
            assert hasattr(importlib.import_module(f"igrpo_theory.{module}"), name), f"{module}.{name}"
    for link in re.findall(r"\]\((\w+\.md|figures/\w+\.svg)\)", text):
        assert (FOLDER / link).is_file(), link


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_pages_that_a_module_names_exist(source: Path) -> None:
    for name in re.findall(r"docs/theory/(\w+\.md)?", source.read_text(encoding="utf-8")):
        assert not name or (FOLDER / name).is_file(), name


def test_every_figure_is_small_and_on_the_page_of_its_name() -> None:
    figures = sorted((FOLDER / "figures").glob("*"))
    # The index and the table of mistakes claim nothing that could be drawn.
    assert {figure.stem for figure in figures} == {page.stem for page in PAGES} - {"index", "mutations"}
    for figure in figures:
        assert figure.stat().st_size < 60_000
        assert f"](figures/{figure.name})" in (FOLDER / f"{figure.stem}.md").read_text(encoding="utf-8")


def test_the_index_lists_every_page() -> None:
    listed = set(re.findall(r"\]\((\w+)\.md\)", (FOLDER / "index.md").read_text(encoding="utf-8")))
    assert listed == {page.stem for page in PAGES} - {"index"}
