"""policy_files: JSON -> policy trees.

In: a file with one object whose `levels[d-1]` lists the states of depth d, field by field. Out: a checked `PolicyTree`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from igrpo_theory.worlds import LARGEST_NUMBER, PolicyTree

_FIELDS = ("parent", "prob", "value", "answer")
_KINDS: dict[str, tuple[type, ...]] = {"parent": (int,), "answer": (bool,)}
# What an entry of a field may be; a number elsewhere.
_LONGEST_QUOTE = 60


def read_policy_tree(path: Path) -> PolicyTree:
    """A policy from JSON.

    `levels[d-1]` lists the states of depth d: parent (index in the level above), prob, value, answer and, optionally,
    reward.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when the file is no JSON, a field is missing, or the states are no policy.

    Source: ours.

    Example:
        >>> import tempfile
        >>> level = {"parent": [0, 0], "prob": [0.5, 0.5], "value": [1.0, 0.0], "answer": [False, False]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "tree.json"
        ...     _ = file.write_text(json.dumps({"levels": [level]}))
        ...     read_policy_tree(file).probability.tolist()
        [1.0, 0.5, 0.5]
    """
    if not path.is_file():
        raise FileNotFoundError(f"the policy tree must be a file, got {path}: no such file")
    try:
        # Some editors start a file with a byte order mark, which utf-8-sig skips.
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON, got {error}: correct the file") from error
    levels = content.get("levels") if isinstance(content, dict) else None
    if not isinstance(levels, list) or not levels:
        raise ValueError(
            f"levels must list the states of at least one depth, got {_shown(levels)} ({path}): a path needs a turn"
        )
    _check_levels(levels, path)
    # Where the level above each level starts among the states.
    starts = np.cumsum([0, 1, *(len(level["parent"]) for level in levels)])[: len(levels)]
    rewards = [level.get("reward", [0.0] * len(level["parent"])) for level in levels]
    return PolicyTree(
        parent=np.concatenate([[-1], *(start + level["parent"] for start, level in zip(starts, levels, strict=True))]),
        probability=np.concatenate([[1.0], *(level["prob"] for level in levels)]).astype(np.float64),
        value=np.concatenate([[0.0], *(level["value"] for level in levels)]).astype(np.float64),
        answer=np.concatenate([[False], *(level["answer"] for level in levels)]),
        reward=np.concatenate([[0.0], *rewards]).astype(np.float64),
    )


def _check_levels(levels: list[Any], path: Path) -> None:
    """Every level has its fields, one entry a state, and parents in the level above."""
    above = 1
    for number, level in enumerate(levels):
        if not isinstance(level, dict):
            raise ValueError(
                f"levels[{number}] must be an object, got {_shown(level)} ({path}): it holds {', '.join(_FIELDS)}"
            )
        unknown = [field for field in level if field not in (*_FIELDS, "reward")]
        if unknown:
            raise ValueError(
                f"levels[{number}] must have {', '.join(_FIELDS)} and reward only, got {_shown(unknown[0])} ({path}): "
                "rename or remove it"
            )
        missing = [field for field in _FIELDS if field not in level]
        if missing:
            raise ValueError(f"levels[{number}] must have {', '.join(_FIELDS)}, got no {missing[0]} ({path}): add it")
        given = [field for field in (*_FIELDS, "reward") if field in level]
        for field in given:
            kinds = _KINDS.get(field, (int, float))
            if not isinstance(level[field], list) or not all(type(entry) in kinds for entry in level[field]):
                raise ValueError(
                    f"levels[{number}].{field} must be a list of {kinds[-1].__name__}, got {_shown(level[field])} "
                    f"({path}): correct it"
                )
            large = [entry for entry in level[field] if isinstance(entry, int) and abs(entry) > LARGEST_NUMBER]
            if large:
                raise ValueError(
                    f"levels[{number}].{field} must be of size 1e100 at most, got {_shown(large[0])} ({path}): a "
                    "larger number leaves the range of floats"
                )
        sizes = {field: len(level[field]) for field in given}
        if len(set(sizes.values())) > 1 or sizes["parent"] == 0:
            raise ValueError(f"levels[{number}] must have one entry a state in each field, got {sizes} ({path})")
        if not all(0 <= parent < above for parent in level["parent"]):
            raise ValueError(
                f"levels[{number}].parent must be an index below {above}, got {_shown(level['parent'])} ({path}): it "
                "counts the states of the level above"
            )
        above = sizes["parent"]


def _shown(entry: Any) -> str:
    """What an error quotes: the start is enough to find a long one."""
    text = str(entry)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."
