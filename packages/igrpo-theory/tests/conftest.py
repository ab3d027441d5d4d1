"""What this package's tests share. The conftest at the root of the repository sets up Hypothesis and type checks."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # for the oracles, in every import mode

from false_alarms import LEVEL, MOST_CHECKS, ROWS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The level of a check is honest only while there are no more checks than it was set for."""
    checks = ROWS + sum("alpha" in getattr(item, "fixturenames", ()) for item in items)
    if checks > MOST_CHECKS:
        raise pytest.UsageError(
            f"MOST_CHECKS must cover all statistical checks, got {checks}: raise it (false_alarms.py)"
        )


@pytest.fixture(scope="session")
def alpha() -> float:
    """The chance that a statistical test may fail at although everything is right."""
    return LEVEL


@pytest.fixture(scope="session")
def reference_trees() -> Path:
    """The folder of reference policy trees, with the laws that are recorded for them."""
    return Path(__file__).parent / "data"
