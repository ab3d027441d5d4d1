import json
from pathlib import Path
from typing import Any

import pytest

from igrpo_theory import enumerate_paths, read_policy_tree

FIRST = {"parent": [0, 0], "prob": [0.4, 0.6], "value": [0.3, 0.2], "answer": [True, False], "reward": [1.0, 0.0]}
SECOND = {"parent": [1, 1], "prob": [0.5, 0.5], "value": [7, 8], "answer": [False, False]}


def written(folder: Path, content: Any) -> Path:
    file = folder / "tree.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_a_tree_is_read_back_from_its_file(tmp_path: Path) -> None:
    policy = read_policy_tree(written(tmp_path, {"levels": [FIRST, SECOND]}))
    assert policy.parent.tolist() == [-1, 0, 0, 2, 2]
    assert policy.turns == 2
    assert enumerate_paths(policy).probability.tolist() == [0.4, 0.3, 0.3]
    assert policy.reward.tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "tree.json must be JSON, got .*: correct the file"),
        ([], r"levels must list the states of at least one depth, got None \(.*tree.json\): a path needs a turn"),
        ({"levels": []}, r"levels must list the states of at least one depth, got \[\]"),
        ({"levels": [{"parent": [0]}]}, r"levels\[0\] must have parent, prob, value, answer, got no prob .*: add it"),
        ({"levels": [{**FIRST, "value": [1.0]}]}, r"levels\[0\] must have one entry a state in each field, got"),
        (
            {"levels": [FIRST, {**SECOND, "parent": [1, 2]}]},
            r"levels\[1\].parent must be an index below 2, got \[1, 2\]",
        ),
        ({"levels": [3]}, r"levels\[0\] must be an object, got 3 .*: it holds parent, prob, value, answer"),
        ({"levels": [{**FIRST, "parent": 0}]}, r"levels\[0\].parent must be a list of int, got 0 .*: correct it"),
        ({"levels": [{**FIRST, "parent": [0.5, 0]}]}, r"levels\[0\].parent must be a list of int, got \[0.5, 0\]"),
        ({"levels": [{**FIRST, "prob": ["a", "b"]}]}, r"levels\[0\].prob must be a list of float, got \['a', 'b'\]"),
        ({"levels": [{**FIRST, "answer": [0, 1]}]}, r"levels\[0\].answer must be a list of bool, got \[0, 1\]"),
        (
            {"levels": [{**FIRST, "prob": [0.4, 0.5]}]},
            "probability must sum to 1 below each state, got 0.9 below state 0",
        ),
        (
            {"levels": [FIRST, {**SECOND, "value": [float("nan"), 0.0]}]},
            "value must be finite and of size 1e100 at most, got nan for state 3: .* scale values down and gamma up",
        ),
        (
            {"levels": [{**FIRST, "value": [1e101, 0]}]},
            "value must be finite and of size 1e100 at most, got 1e.101 for",
        ),
        (
            {"levels": [{**FIRST, "prob": [10**400, 0]}]},
            r"levels\[0\].prob must be of size 1e100 at most, got 10{59}\.\.\. ",
        ),
        ("[" * 100_000, "tree.json must be JSON, got maximum recursion depth exceeded .*: correct the file"),
        ({"levels": ["x" * 10_000]}, r"levels\[0\] must be an object, got x{60}\.\.\. "),
    ],
)
def test_files_that_hold_no_policy_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_policy_tree(written(tmp_path, content))


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    file = written(tmp_path, "\ufeff" + json.dumps({"levels": [FIRST]}))
    assert read_policy_tree(file).turns == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="the policy tree must be a file, got .*nowhere.json: no such file"):
        read_policy_tree(tmp_path / "nowhere.json")
