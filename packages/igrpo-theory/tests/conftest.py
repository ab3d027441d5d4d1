"""Settings of this package's tests. Nothing here imports igrpo_theory, so that the type-checking hook comes first."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.append(str(Path(__file__).parent))  # for theory_oracles, in every import mode


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("dev", max_examples=25, deadline=None)
    settings.register_profile("ci", max_examples=200, deadline=None, derandomize=True, print_blob=True)
    settings.register_profile("nightly", max_examples=5000, deadline=None)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))
    if "error" not in config.getini("filterwarnings"):
        config.addinivalue_line("filterwarnings", "error")
    if importlib.util.find_spec("beartype") and "igrpo_theory" not in sys.modules:
        from jaxtyping import install_import_hook

        install_import_hook("igrpo_theory", "beartype.beartype")


@pytest.fixture(scope="session")
def reference_trees() -> Path:
    """The folder of reference policy trees, which lies beside the repository where it exists at all."""
    folder = Path(__file__).resolve().parents[3].parent / "shared" / "theory_trees"
    if not folder.is_dir():
        pytest.skip(f"the reference trees are not beside this checkout ({folder})")
    return folder
