"""trajectories: folders of evaluations and of training runs -> arrays of scored paths with their outcomes.

In: `records.jsonl` with `settings.json` (independent chains, of `igrpo-eval run --scores`), or `trees.jsonl` with
`config.json` (trees that training grew). Out: one `Trajectories`; every other module of `correlate` reads only that.

Letters: P paths, T turns of the longest.
Source: ours.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from igrpo_eval.evidence import shows_answer
from igrpo_theory.tree import NodeStatus
from igrpo_train.rewards import exact_match

LEAST_SAMPLES: Final = 5
"""Chains of a question; fewer hardly hold a success beside a failure."""
_RECORDS: Final = "records.jsonl"
_TREES: Final = "trees.jsonl"
_SHARED: Final = ("temperature", "agent.", "scoring.", "retrieval.", "normaliser")
"""Settings by which scores and outcomes mean the same; they must agree in all folders of chains."""
_EVALUATE: Final = "igrpo-eval run RECIPE.toml --out FOLDER --samples 8 --temperature 1 --scores"


class Policy(NamedTuple):
    """What drew a path."""

    model: str
    weights: str | None
    """Hash of its weights, None where it is not known."""
    step: int | None
    """Training step of the model; None when unknown, and for a training run, whose paths have steps of their own."""
    temperature: float
    guided: bool
    """Training trees, whose draws V itself may have guided; otherwise independent chains."""
    dropped: int
    """Questions that were left out, since they have fewer than `LEAST_SAMPLES` chains."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectories:
    """P paths; all fields but the last two are arrays of one row a path."""

    policy: Int[np.ndarray, " P"]
    """Index into `policies`."""
    step: Int[np.ndarray, " P"]
    """Training step, -1 when unknown."""
    question: Int[np.ndarray, " P"]
    """Number of the question, the same under every policy."""
    unit: Int[np.ndarray, " P"]
    """Number of what is compared: a question under one policy, or one tree."""
    source: Int[np.ndarray, " P"]
    """Index into `sources`."""
    hops: Int[np.ndarray, " P"]
    success: Bool[np.ndarray, " P"]
    """R: exact match of the answer given; false without one."""
    complete: Bool[np.ndarray, " P"]
    """False where expansion cut the path off: it has no R."""
    length: Int[np.ndarray, " P"]
    """Turns."""
    score: Float[np.ndarray, "P T"]
    """s after each turn; NaN where not scored, after the end, and at the last turn, which no draw depends on."""
    root: Float[np.ndarray, " P"]
    """s before the first turn, NaN where not scored."""
    seen: Bool[np.ndarray, "P T"]
    """Whether an accepted answer stood in the documents of this turn or an earlier one."""
    policies: tuple[Policy, ...]
    sources: tuple[str, ...]

    def take(self, rows: Bool[np.ndarray, " P"]) -> "Trajectories":
        """Some of the paths."""
        names = [entry.name for entry in fields(self)]
        return Trajectories(
            **{name: getattr(self, name)[rows] for name in names[:-2]}, policies=self.policies, sources=self.sources
        )


class _Path(NamedTuple):
    """One row, before it is laid out."""

    policy: int
    step: int
    question: tuple[str, str]
    """Data set and id."""
    unit: tuple[object, ...]
    hops: int
    success: bool
    complete: bool
    scores: Sequence[float | None]
    seen: Sequence[bool]
    root: float | None


def read_trajectories(folders: Sequence[Path]) -> Trajectories:
    """All paths of the folders.

    Args:
        folders: each of one evaluation (chains), or of one training run (guided trees).

    Raises:
        FileNotFoundError: a folder or the settings beside its lines are missing.
        ValueError: a line is damaged, scores are missing, the chains are greedy or too few, or folders do not fit.
    """
    twice = [folder for folder, number in Counter(folder.resolve() for folder in folders).items() if number > 1]
    if twice:
        raise ValueError(f"folder must be named once, got {str(twice[0])!r} again: leave one out")
    policies: list[Policy] = []
    paths: list[_Path] = []
    first: tuple[Path, Mapping[str, Any]] | None = None
    taken: dict[tuple[object, ...], Path] = {}
    for folder in folders:
        if _kind(folder) == _TREES:
            paths += _tree_paths(folder, policies)
            continue
        settings = _settings(folder)
        first = first or (folder, settings)
        _check_alike(*first, folder, settings)
        paths += _record_paths(folder, settings, policies, taken)
    return _lay_out(paths, policies)


def _kind(folder: Path) -> str:
    """Which of the two files a folder holds."""
    if not folder.is_dir():
        raise FileNotFoundError(f"folder must be one of an evaluation or a run, got {str(folder)!r}: check the path")
    there = [name for name in (_RECORDS, _TREES) if (folder / name).exists()]
    if not there:
        raise FileNotFoundError(
            f"folder must hold {_RECORDS} or {_TREES}, got {str(folder)!r}: evaluate with {_EVALUATE}, "
            "or train with run.trees_every = 1"
        )
    if len(there) > 1:
        raise ValueError(
            f"folder must hold chains or trees, got {str(folder)!r}, which holds {_RECORDS} and {_TREES}: they are "
            "never pooled, move one away"
        )
    return there[0]


def _settings(folder: Path) -> Mapping[str, Any]:
    """Settings of an evaluation whose chains can be compared inside a question."""
    path = folder / "settings.json"
    settings = _read_json(path)
    for name in ("model.path", "temperature", "samples"):
        if name not in settings:
            raise ValueError(f"{path} must name {name}, got {sorted(settings)}: restore it or evaluate again")
    if settings.get("scores") is False:
        raise ValueError(f"scores must be true, got false in {path}: evaluate again with {_EVALUATE}")
    if not settings["temperature"] > 0:
        raise ValueError(
            f"temperature must be above 0, got {settings['temperature']} in {path}: greedy chains are all alike; "
            f"evaluate again with {_EVALUATE}"
        )
    if settings["samples"] < LEAST_SAMPLES:
        raise ValueError(
            f"samples must be at least {LEAST_SAMPLES}, got {settings['samples']} in {path}: successes and failures of "
            f"one question are compared; evaluate again with {_EVALUATE}"
        )
    return settings


def _check_alike(first: Path, expected: Mapping[str, Any], folder: Path, settings: Mapping[str, Any]) -> None:
    names = [name for name in sorted({*expected, *settings}) if name.startswith(_SHARED) and name != "retrieval.batch"]
    for name in names:
        if expected.get(name) != settings.get(name):
            raise ValueError(
                f"{name} must be the same in all folders, got {expected.get(name)!r} in {first} and "
                f"{settings.get(name)!r} in {folder}: correlate them apart"
            )


def _record_paths(
    folder: Path, settings: Mapping[str, Any], policies: list[Policy], taken: dict[tuple[object, ...], Path]
) -> list[_Path]:
    """Chains of one evaluation; `taken` holds every sample that was read before, and is filled."""
    path, key = folder / _RECORDS, json.dumps(settings, sort_keys=True)
    rows: list[tuple[tuple[str, str], Mapping[str, Any]]] = []
    scored = False
    for place, row in _lines(path):
        _check_record(place, row)
        question, sample = (row["source"], row["id"]), row["sample"]
        if (key, question, sample) in taken:
            other = taken[key, question, sample]
            raise ValueError(
                f"{place}: sample {sample} of question {row['id']!r} must occur once, got it again (first in {other}): "
                "name each folder once, and change --seed for further samples"
            )
        taken[key, question, sample] = path
        scored |= row["root_score"] is not None or any(score is not None for score in row["scores"])
        rows.append((question, row))
    if not scored:
        raise ValueError(f"{path} must hold scores, got none in {len(rows)} records: evaluate again with {_EVALUATE}")
    few = _few(path, Counter(question for question, _ in rows))
    step = settings.get("step")
    policies.append(
        Policy(
            model=settings["model.path"],
            weights=settings.get("model.weights"),
            step=step,
            temperature=float(settings["temperature"]),
            guided=False,
            dropped=len(few),
        )
    )
    return [
        _Path(
            policy=len(policies) - 1,
            step=-1 if step is None else step,
            question=question,
            # Chains over other passages are no repetition of these.
            unit=(*question, settings.get("corpus.hash")),
            hops=row["hops"],
            success=row["exact_match"] == 1,
            complete=True,
            scores=row["scores"],
            seen=row["answer_seen"],
            root=row["root_score"],
        )
        for question, row in rows
        if question not in few
    ]


def _few(path: Path, count: Mapping[tuple[str, str], int]) -> set[tuple[str, str]]:
    """Questions with too few chains, of which an evaluation that was stopped may hold one."""
    few = {question for question, number in count.items() if number < LEAST_SAMPLES}
    if len(few) == len(count):
        raise ValueError(
            f"{path} must hold {LEAST_SAMPLES} chains of a question, got at most {max(count.values())}: finish the "
            "evaluation with --resume"
        )
    return few


_RECORD_FIELDS: Final = {
    "id": str,
    "sample": int,
    "source": str,
    "hops": int,
    "exact_match": int | float,
    "turns": int,
    "root_score": float | int | None,
    "scores": list,
    "answer_seen": list,
}


def _check_record(place: str, row: object) -> None:
    if not isinstance(row, Mapping):
        raise ValueError(f"{place}: a record must be an object, got {_short(row)}: the file was changed, restore it")
    if "scores" not in row:
        raise ValueError(f"{place}: a record must hold scores, got none: evaluate again with {_EVALUATE}")
    wrong = [name for name, kind in _RECORD_FIELDS.items() if name not in row or not isinstance(row[name], kind)]
    if wrong:
        raise ValueError(f"{place}: a record must hold {wrong[0]}, got {_short(row)}: the file was changed, restore it")
    lengths = (row["turns"], len(row["scores"]), len(row["answer_seen"]))
    if len(set(lengths)) > 1 or lengths[0] < 1:
        raise ValueError(
            f"{place}: scores and answer_seen must hold one entry a turn, got {lengths[1]} and {lengths[2]} for "
            f"{lengths[0]} turns: the file was changed, restore it"
        )
    if row["exact_match"] not in (0, 1):
        raise ValueError(f"{place}: exact_match must be 0 or 1, got {row['exact_match']}: the file was changed")
    _check_scores(place, [row["root_score"], *row["scores"]])


def _check_scores(place: str, scores: Sequence[Any]) -> None:
    for score in scores:
        if score is not None and not (isinstance(score, int | float) and 0 <= score <= 1):
            raise ValueError(f"{place}: a score must be null or between 0 and 1, got {score!r}: the file was changed")


def _tree_paths(folder: Path, policies: list[Policy]) -> list[_Path]:
    """Root-to-leaf paths of the trees that a run wrote down."""
    path, config = folder / _TREES, _read_json(folder / "config.json")
    policies.append(
        Policy(
            model=f"{config['model']['path']} in {folder}",
            weights=None,
            step=None,
            temperature=float(config["sampling"]["temperature"]),
            guided=True,
            dropped=0,
        )
    )
    tags = (config["agent"]["observation_open"], config["agent"]["observation_close"])
    paths: list[_Path] = []
    for place, row in _lines(path):
        try:
            paths += _leaf_paths(place, row, len(policies) - 1, tags)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"{place}: must be a tree of a run, got {_short(row)} ({error!r}): restore it") from error
    if not any(score is not None for one in paths for score in one.scores):
        raise ValueError(
            f"{path} must hold scores, got none in {len(paths)} paths: train with tree.cap above 1, or with "
            "scoring.always = true"
        )
    return paths


def _leaf_paths(place: str, row: Mapping[str, Any], policy: int, tags: tuple[str, str]) -> Iterator[_Path]:
    """Paths of one tree, a line of `RolloutTree.to_records` with its step."""
    nodes = row["nodes"]
    root, golds = nodes[0], nodes[0]["payload"]["answers"]
    question = (root["payload"]["source"], root["payload"]["id"])
    _check_scores(place, [node["score"] for node in nodes])
    turns = [node["payload"] for node in nodes[1:]]
    shown = [False, *(bool(t["documents"]) and shows_answer(t["observation"], golds, tags) for t in turns)]
    for index, leaf in enumerate(nodes):
        if leaf["status"] == NodeStatus.ACTIVE.name:
            continue
        way = [index]
        while nodes[way[0]]["parent"]:
            way.insert(0, nodes[way[0]]["parent"])
        last = leaf["payload"]
        yield _Path(
            policy=policy,
            step=row["step"],
            question=question,
            unit=(place,),
            hops=root["payload"]["hops"],
            success=exact_match(last["action_text"] if last["action"] == "answer" else None, golds) == 1,
            complete=leaf["status"] != NodeStatus.TRUNCATED.name,
            scores=[nodes[node]["score"] for node in way],
            seen=np.logical_or.accumulate([shown[node] for node in way]).tolist(),
            root=root["score"],
        )


def _lay_out(paths: Sequence[_Path], policies: Sequence[Policy]) -> Trajectories:
    sources = tuple(sorted({path.question[0] for path in paths}))
    # Sorted, so that the order of folders and lines changes no number.
    question = {name: number for number, name in enumerate(sorted({path.question for path in paths}))}
    merged: dict[Policy, int] = {}
    for one in policies:
        bare = one._replace(dropped=0)
        merged[bare] = merged.get(bare, 0) + one.dropped
    policy = [list(merged).index(one._replace(dropped=0)) for one in policies]
    units = [(policy[path.policy], path.unit) for path in paths]
    unit = {name: number for number, name in enumerate(dict.fromkeys(units))}
    turns = max(len(path.scores) for path in paths)
    score, seen = np.full((len(paths), turns), np.nan), np.zeros((len(paths), turns), dtype=bool)
    for row, path in enumerate(paths):
        # The last turn's own score weighs no draw: V leaves it out.
        score[row, : len(path.scores) - 1] = [math.nan if s is None else s for s in path.scores[:-1]]
        seen[row, : len(path.seen)] = path.seen
    return Trajectories(
        policy=np.array([policy[path.policy] for path in paths]),
        step=np.array([path.step for path in paths]),
        question=np.array([question[path.question] for path in paths]),
        unit=np.array([unit[name] for name in units]),
        source=np.array([sources.index(path.question[0]) for path in paths]),
        hops=np.array([path.hops for path in paths]),
        success=np.array([path.success for path in paths]),
        complete=np.array([path.complete for path in paths]),
        length=np.array([len(path.scores) for path in paths]),
        score=score,
        root=np.array([math.nan if path.root is None else path.root for path in paths]),
        seen=seen,
        policies=tuple(one._replace(dropped=dropped) for one, dropped in merged.items()),
        sources=sources,
    )


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Place and object of each line; a file without one is refused."""
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            place = f"{path}, line {number}"
            if not line.endswith(b"\n"):
                raise ValueError(
                    f"{place}: must be a whole line, got one that was cut off: finish the run with --resume, or remove "
                    "the line"
                )
            try:
                yield place, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{place}: must be JSON, got {error}: restore the file or remove the line") from error
    if number == 0:
        raise ValueError(f"{path} must hold at least one line, got an empty file: finish the run with --resume")


def _read_json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be there, got no such file: it says what the lines beside it depend on")
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON object, got {error}: restore it") from error


def _short(row: object) -> str:
    text = json.dumps(row)
    return text if len(text) <= 80 else f"{text[:77]}..."
