"""fixtures: small training runs of the miniature agent, seconds each."""

from pathlib import Path

import pytest

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
