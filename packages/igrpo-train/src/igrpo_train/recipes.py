"""recipes: TOML files and flags -> one `Recipe`, and back.

In: `RECIPE.toml [MORE.toml ...] [--key value ...]`, the arguments of `igrpo-train`.
Out: a checked `Recipe`; unknown keys and wrong values end the program with tyro's panel and the file that set them.
A recipe is a written-down command line: its keys become flags, so files and flags meet one parser and the later wins.
Its key `base` names another recipe, from its own folder, that is read before it.

Example:
    >>> load_recipe(["--tree.budget", "8", "--data.hops", "2", "3"]).tree.budget
    8
"""

import contextlib
import difflib
import io
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

import tyro

from igrpo_train.config import Recipe
from igrpo_train.settings import flatten
from igrpo_train.systems import SYSTEMS

USAGE: Final = "igrpo-train RECIPE.toml [MORE.toml ...] [--key value ...]: later settings win."

_Settings = TypeVar("_Settings")


def load_recipe(args: Sequence[str]) -> Recipe:
    """Read recipe files and flags, weakest first: defaults, the system's settings, files from left to right, flags.

    Args:
        args: recipe files, each behind its base, then flags.

    Raises:
        FileNotFoundError: a recipe file does not exist.
        ValueError: a recipe file is not TOML, or its base leads back to it.
        SystemExit: an unknown key or a wrong value (code 2, explained on standard error), or `--help` (code 0).

    Example:
        >>> tree = load_recipe(["--system", "grpo", "--tree.budget=8"]).tree
        >>> tree.budget, tree.cap
        (8, 1)
    """
    return load_settings(Recipe, args, program="igrpo-train", usage=USAGE, markers=(tyro.conf.FlagConversionOff,))


def load_settings(
    schema: type[_Settings], args: Sequence[str], *, program: str, usage: str, markers: Sequence[Any] = ()
) -> _Settings:
    """What `load_recipe` does, for a command whose settings are a recipe and flags of its own.

    Args:
        schema: a dataclass with the flags of `Recipe` at its top, and others.
        args: recipe files, then flags.
        program: as typed, for messages.
        usage: first line of `--help`.
        markers: tyro's, for all fields.

    Raises:
        FileNotFoundError, ValueError, SystemExit: as `load_recipe`.
    """
    num_files = next((place for place, arg in enumerate(args) if arg.startswith("-")), len(args))
    files, user_flags = args[:num_files], list(args[num_files:])
    settings: dict[str, object] = {}
    origin: dict[str, str] = {}
    for file in files:
        for path, values in _with_base(Path(file)):
            settings |= values
            origin |= dict.fromkeys(values, str(path))
    given = _given_keys(user_flags)
    system = given.get("system") or settings.get("system")
    preset = SYSTEMS.get(system, {})  # type: ignore[call-overload]  # an unknown name is left to the parser's message
    for key in given:
        origin.pop(key, None)
    flags = [*_flags(dict(preset) | settings), *user_flags]
    with _named_origins(origin):
        return tyro.cli(
            schema, prog=program, description=usage, args=flags, use_underscores=True, config=tuple(markers)
        )


def to_dict(recipe: Recipe) -> dict[str, object]:
    """The recipe as nested dictionaries of plain values, for JSON.

    Example:
        >>> to_dict(Recipe())["tree"]["budget"]
        5
    """
    return asdict(recipe)


def recipe_to_toml(recipe: Recipe) -> str:
    """The recipe as a TOML text that `load_recipe` reads back to an equal recipe.

    Example:
        >>> print(recipe_to_toml(Recipe()).splitlines()[0])
        system = "igrpo"
    """
    tree = to_dict(recipe)
    lines = [f"{key} = {_toml_value(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for group, values in tree.items():
        if isinstance(values, dict):
            lines += ["", f"[{group}]", *(f"{key} = {_toml_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _read_toml(path: Path) -> dict[str, object]:
    if not path.is_file():
        near = difflib.get_close_matches(path.name, sorted(other.name for other in path.parent.glob("*.toml")), n=1)
        remedy = (
            f"did you mean {path.parent / near[0]}?" if near else "give a path to a .toml file, flags start with --"
        )
        raise FileNotFoundError(f"recipe must be a file, got {str(path)!r}: {remedy}")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"recipe must be TOML in UTF-8, got {str(path)!r}: {error}") from error


def _with_base(path: Path, above: tuple[Path, ...] = ()) -> list[tuple[Path, dict[str, object]]]:
    """A file's flat settings behind those of the file that its `base` names, which `above` it must not name again."""
    values = flatten(_read_toml(path))
    if "base" not in values:
        return [(path, values)]
    base = values.pop("base")
    if not isinstance(base, str) or path.resolve() in above:
        raise ValueError(
            f"base must name another recipe, from the folder of {path}, got {base!r}: take it out or mend it"
        )
    return [*_with_base(path.parent / base, (*above, path.resolve())), (path, values)]


def _flags(settings: Mapping[str, object]) -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, list | tuple):
            yield from (f"--{key}", *map(str, value))
        else:
            # One word, so that a value which starts with a dash is not taken for a flag.
            yield f"--{key}={value}"


def _given_keys(flags: Sequence[str]) -> dict[str, str]:
    """Keys set on the command line, with the word after them (`--a-b=3` and `--a_b 3` both give a_b: 3)."""
    given: dict[str, str] = {}
    for flag, following in zip(flags, [*flags, ""][1:], strict=True):
        if flag.startswith("--"):
            key, equals, value = flag[2:].partition("=")
            given[key.replace("-", "_")] = value if equals else following
    return given


@contextlib.contextmanager
def _named_origins(origin: Mapping[str, str]) -> Iterator[None]:
    """When tyro refuses in this block, add which file set the keys that its message names."""
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            yield
    except SystemExit:
        text = message.getvalue()
        # Not any mention: a word such as "steps" may also stand in the help that tyro quotes.
        named = [key for key in origin if re.search(rf"(?<![\w.]){re.escape(key)}(=|'|: | must)", text)]
        sys.stderr.write(text + "".join(f"{key} was set in {origin[key]}\n" for key in named))
        raise


def _toml_value(value: object) -> str:
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which JSON leaves bare.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else repr(value)
