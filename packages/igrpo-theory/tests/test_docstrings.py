"""What every docstring holds; the root's `--doctest-modules` runs the examples."""

import importlib
import inspect
import pkgutil

import pytest

import igrpo_theory

MODULES = [module.name for module in pkgutil.iter_modules(igrpo_theory.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_every_public_function_has_a_source_and_an_example(name: str) -> None:
    module = importlib.import_module(f"igrpo_theory.{name}")
    functions = [
        function
        for label, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not label.startswith("_")
    ]
    for function in functions:
        text = inspect.getdoc(function) or ""
        missing = {"Source:", ">>>"} - set(text.split())
        assert not missing, f"{name}.{function.__name__}"


def test_the_curated_names_exist() -> None:
    assert igrpo_theory.__all__ == sorted(igrpo_theory.__all__)
    assert all(hasattr(igrpo_theory, name) for name in igrpo_theory.__all__)
