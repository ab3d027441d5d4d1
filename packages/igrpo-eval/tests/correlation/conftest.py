"""fixtures: folders of scored chains and of trees, and paths as arrays; nothing of ours is imported at module level."""

import json

import numpy as np
import pytest


@pytest.fixture
def make_record():
    """One record with the fields that are read, among them some that are not."""

    def build(id_, sample, success, scores=(0.2, None), **fields):
        record = {
            "id": id_,
            "sample": sample,
            "source": "nq",
            "hops": 2,
            "golds": ["Ghent"],
            "exact_match": float(success),
            "turns": len(scores),
            "root_score": 0.1,
            "scores": list(scores),
            "answer_seen": [False] * len(scores),
        }
        return record | fields

    return build


@pytest.fixture
def write_chains(tmp_path):
    """Write a folder of an evaluation."""

    def write(records, name="chains", **settings):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        given = {"model.path": "models/a", "temperature": 1.0, "samples": 5, "step": None, "agent.max_turns": 4}
        (folder / "settings.json").write_text(json.dumps(given | settings))
        return folder

    return write


@pytest.fixture
def write_trees(tmp_path):
    """Write a folder of a training run."""
    from igrpo_train.config import Agent, Recipe
    from igrpo_train.recipes import to_dict

    def write(lines, name="run"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "trees.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        agent = Agent(observation_open="<information>", observation_close="</information>")
        (folder / "config.json").write_text(json.dumps(to_dict(Recipe(agent=agent))))
        return folder

    return write


@pytest.fixture
def make_paths():
    """Paths as arrays, of one policy in one data set where nothing else is said."""
    from igrpo_eval.trajectories import Policy, Trajectories

    def build(question, success, score, **columns):
        number = len(question)
        score = np.asarray(score, dtype=float)
        # A turn after the last scored one ends the path.
        score = np.concatenate([score, np.full((number, 1), np.nan)], axis=1)
        defaults = {
            "policy": np.zeros(number, dtype=np.int64),
            "step": np.full(number, -1),
            "question": np.asarray(question),
            "unit": np.asarray(question),
            "source": np.zeros(number, dtype=np.int64),
            "hops": np.zeros(number, dtype=np.int64),
            "success": np.asarray(success, dtype=bool),
            "complete": np.ones(number, dtype=bool),
            "length": (~np.isnan(score)).sum(axis=1) + 1,
            "score": score,
            "root": np.full(number, np.nan),
            "seen": np.zeros(score.shape, dtype=bool),
            "policies": (Policy("models/a", None, None, 1.0, False, 0),),
            "sources": ("nq",),
        }
        return Trajectories(**defaults | columns)

    return build
