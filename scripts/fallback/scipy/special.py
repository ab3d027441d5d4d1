"""Names that can be imported and not called."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: Any, **_keywords: Any) -> Any:
        raise ModuleNotFoundError(f"scipy must be installed for {name}: pip install scipy")

    return missing
