"""fixtures: small training runs of the miniature agent, seconds each."""

import sys
from pathlib import Path

import pytest

# For retrieval_servers.
sys.path.append(str(Path(__file__).parents[1] / "packages" / "igrpo-train" / "tests"))

RECIPE = Path(__file__).parent.parent / "recipes" / "miniature" / "igrpo.toml"


@pytest.fixture
def small_run(tmp_path):
    """Arguments of a run of four small steps that writes into a fresh folder; more flags override."""

    def arguments(*flags: str, folder: str = "run") -> list[str]:
        small = {
            "steps": 4,
            "questions_per_step": 3,
            "validation.every": 2,
            "validation.questions": 4,
            "run.checkpoint_every": 2,
            "run.threads": 1,
            "optimiser.update_rows": 30,
            "run.folder": tmp_path / folder,
        }
        return [str(RECIPE), *(f"--{key}={value}" for key, value in small.items()), *flags]

    return arguments
