"""comparison: two finished evaluations -> what they differ in, and how far apart they are on the same questions.

Runs may differ in the policy and in what was drawn; whatever else differs (prompt, passages, turns, temperature,
questions, ...) makes their difference that of two things at once, and they are not compared unasked.
Source: ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from igrpo_eval.averages import MACRO, WEIGHTED, macro_weights, size_weights
from igrpo_eval.finished import Finished
from igrpo_eval.intervals import RESAMPLES
from igrpo_eval.paired import PairedDifference, paired_difference
from igrpo_eval.records import Record
from igrpo_train.settings import changes

FREE: Final = (
    "model.path",
    "model.weights",
    "step",
    "seed",
    "scores",
    "scoring.",
    "data.",
    "retrieval.batch",
)
"""Settings, or what they start with, that compared runs may differ in; what is in the files of `data.` is checked."""
METRICS: Final = ("exact_match", "f1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One line of a comparison."""

    group: str
    """A set, or an average over the sets."""
    metric: str
    """`exact_match` or `f1`."""
    result: PairedDifference


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The second run against the first."""

    first: str
    second: str
    differing: Mapping[str, tuple[str, str]]
    """What makes it unfair, by name: first, second; empty where nothing does."""
    lines: tuple[Compared, ...]


def compare(
    first: Finished, second: Finished, *, force: bool = False, seed: int = 0, resamples: int = RESAMPLES
) -> Comparison:
    """Paired differences of two runs, by set and over the sets.

    Args:
        first: what is compared with.
        second: what is compared.
        force: compare the questions that both have although the runs differ in more than the policy.
        seed: of intervals and drawn sign patterns.
        resamples: of the intervals.

    Raises:
        ValueError: the runs differ in anything that matters, unless forced; or no question is common.
    """
    differing = differences(first, second)
    if differing and not force:
        listed = "; ".join(f"{name} is {made} there, {now} here" for name, (made, now) in differing.items())
        raise ValueError(
            f"{second.name} must differ from {first.name} in the policy only, got other settings: {listed}. Evaluate "
            "both alike, or add --force to see the difference all the same"
        )
    old, new = _by_question(first.records), _by_question(second.records)
    common = [id_ for id_ in old if id_ in new]
    if not common:
        raise ValueError(f"{second.name} must have a question in common with {first.name}, got none: compare others")
    sets = sorted({old[id_][0].source for id_ in common})
    members = [[id_ for id_ in common if old[id_][0].source == name] for name in sets]
    sizes = size_weights(sets, [len(ids) for ids in members])
    lines = []
    for metric in METRICS:
        parts = [_mean(new, ids, metric) - _mean(old, ids, metric) for ids in members]
        groups = [(name or "all", [part], np.ones(1)) for name, part in zip(sets, parts, strict=True)]
        if len(sets) > 1:
            groups += [(MACRO, parts, macro_weights(len(sets))), (WEIGHTED, parts, sizes)]
        for group, held, weights in groups:
            result = paired_difference(held, weights, seed=seed, resamples=resamples)
            lines.append(Compared(group=group, metric=metric, result=result))
    return Comparison(first=first.name, second=second.name, differing=differing, lines=tuple(lines))


def differences(first: Finished, second: Finished) -> dict[str, tuple[str, str]]:
    """What two runs differ in beside policy and draws, by name: in the first, in the second."""
    made, now = ({k: v for k, v in run.settings.items() if not k.startswith(FREE)} for run in (first, second))
    found = changes(made, now)
    asked, other = ({r.id: (r.question, r.golds, r.source) for r in run.records} for run in (first, second))
    if asked != other:
        same = sum(asked.get(id_) == question for id_, question in other.items())
        found["questions"] = (f"{len(asked):,} ({same:,} of them in both, word for word)", f"{len(other):,}")
    return found


def comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    """JSON form of a comparison."""
    lines = [
        {
            "group": line.group,
            "metric": line.metric,
            **asdict(line.result),
            "difference": line.result.difference._asdict(),
        }
        for line in comparison.lines
    ]
    differing = {name: {"first": made, "second": now} for name, (made, now) in comparison.differing.items()}
    return {"first": comparison.first, "second": comparison.second, "differing": differing, "lines": lines}


def _by_question(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.id, []).append(record)
    return found


def _mean(records: Mapping[str, Sequence[Record]], ids: Sequence[str], metric: str) -> Float[np.ndarray, " Q"]:
    """Mean of each question's samples."""
    return np.array([np.mean([getattr(record, metric) for record in records[id_]]) for id_ in ids], dtype=np.float64)
