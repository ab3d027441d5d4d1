"""test_house: what a machine can hold of the house's rules without harm."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("igrpo-theory", "igrpo-train", "igrpo-eval")
MODULES = sorted(
    path
    for folder in (*(ROOT / "packages" / name / "src" for name in PACKAGES), ROOT / "experiments", ROOT / "benchmarks")
    for path in folder.rglob("*.py")
)
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))
README = ROOT / "README.md"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tracked_text() -> list[tuple[str, str]]:
    """Every text file that git would keep, and what it says."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    texts = []
    for name in sorted(set(listed.stdout.splitlines())):
        try:
            texts.append((name, (ROOT / name).read_text(encoding="utf-8")))
        except (UnicodeDecodeError, FileNotFoundError):
            continue
    return texts


@pytest.mark.slow
def test_imports_run_one_way() -> None:
    program = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    assert program, "import-linter is not installed beside this Python"
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_starts_with_its_noun_and_what_goes_in_and_out(path: Path) -> None:
    first = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]
    assert re.match(r"[\w -]+: \S", first), f'the docstring must start with """noun: in -> out.""", got {first!r}'


@pytest.mark.parametrize("path", RECIPES, ids=name_of)
def test_a_recipe_says_what_it_needs_and_loads(path: Path) -> None:
    from igrpo_train.recipes import load_recipe

    first = path.read_text("utf-8").partition("\n")[0]
    assert re.match(r"# .*(CPU|GPU).*(seconds|minutes|hours?|days?|duration)", first), (
        "line 1 says hardware and duration"
    )
    recipe = load_recipe([str(path)])
    assert recipe.run.folder.startswith("runs/")


def test_recipes_write_to_folders_of_their_own() -> None:
    folders = [tomllib.loads(path.read_text("utf-8"))["run"]["folder"] for path in RECIPES]
    assert len(set(folders)) == len(folders)


def readme_commands() -> list[list[str]]:
    """The commands of the README's indented blocks, without comments; continued lines are joined."""
    if not README.is_file():
        return []
    text = README.read_text("utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return [words for line in lines if (words := shlex.split(line, comments=True)) and words[0] in COMMANDS]


COMMANDS = ("make", "igrpo-train", "igrpo-eval", "pytest", "python")


@pytest.mark.parametrize("words", readme_commands(), ids=" ".join)
def test_a_command_of_the_readme_exists(words: list[str]) -> None:
    if words[0] == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
        assert words[1] in targets
    if words[0].startswith("igrpo-"):
        assert shutil.which(words[0], path=str(Path(sys.executable).parent)), f"{words[0]} is not installed"
    for word in words[1:]:
        if word.startswith(("recipes/", "packages/", "experiments/", "benchmarks/", "docs/")):
            assert (ROOT / word).exists(), f"{word} does not exist"


@pytest.mark.parametrize("words", [words for words in readme_commands() if words[0] == "igrpo-train"], ids=" ".join)
def test_the_flags_of_a_training_command_are_known(words: list[str]) -> None:
    from igrpo_train.recipes import load_recipe

    if words[1].endswith(".toml"):
        load_recipe([word for word in words[1:] if word not in ("--resume", "--dry-run")])


def test_the_layout_of_the_readme_is_the_real_one() -> None:
    if README.is_file():
        for folder in re.findall(r"^    ([\w.-]+(?:/[\w.-]+)*/)\s{2,}\w", README.read_text("utf-8"), re.M):
            assert (ROOT / folder).is_dir(), f"{folder} does not exist"


def test_no_file_names_a_place_on_somebody_s_machine() -> None:
    places = re.compile(r"(?<![\w.])/(home|root|Users|work|mnt|opt|srv)/\w")
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked_text()
        for number, line in enumerate(text.splitlines(), start=1)
        if places.search(line)
    ]
    assert not found, "\n".join(found)


def test_packages_and_recipes_do_not_lean_on_what_lies_beside_the_checkout() -> None:
    kept = ("packages/", "recipes/", "README.md", "docs/", "experiments/")
    found = [
        name for name, text in tracked_text() if name.startswith(kept) and "/tests/" not in name and "shared/" in text
    ]
    assert not found


def test_every_package_asks_for_its_siblings_by_name_and_has_the_same_licence() -> None:
    projects = {
        name: tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text("utf-8"))["project"]
        for name in PACKAGES
    }
    assert {project["license"] for project in projects.values()} == {"Apache-2.0"}
    assert len({project["version"] for project in projects.values()}) == 1
    for name, below in zip(PACKAGES[1:], PACKAGES, strict=False):
        assert any(re.match(rf"{below}\b", need) for need in projects[name]["dependencies"])
