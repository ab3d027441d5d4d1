"""comparison: two evaluations of the same questions -> their difference, and whether chance explains it.

In: records and settings of both. Out: by data set and for all, the difference with a bootstrap interval over questions
and the p-value of a paired permutation test.
Evaluations that differ in more than the model are refused: a difference would not be the model's.
Source: Fisher (1935), "The design of experiments", for the test; Dror et al. (2018), "The hitchhiker's guide to testing
statistical significance in NLP", for its use here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from jaxtyping import Float

from igrpo_eval.intervals import RESAMPLES, Estimate, bootstrap_interval
from igrpo_eval.records import Record
from igrpo_train.settings import changes

MAY_DIFFER: Final = ("model.", "step", "seed", "samples", "scores", "scoring.")
"""Settings, or what they start with, that do not change what is measured."""
FLIPS: Final = 100_000
_EXACT: Final = 14
"""Most questions that differ for which all their sign changes are enumerated."""


class Comparison(NamedTuple):
    """The second evaluation less the first, on a group of questions."""

    group: str
    """`all` or `source=nq`."""
    num_questions: int
    exact_match: Estimate
    p_exact_match: float
    f1: Estimate
    p_f1: float


def check_comparable(
    first: Mapping[str, Any],
    second: Mapping[str, Any],
    first_records: Sequence[Record],
    second_records: Sequence[Record],
) -> list[str]:
    """What differs between two evaluations beside their models, a line each; empty where they can be compared.

    Example:
        >>> check_comparable({"agent.top_k": 3, "seed": 0}, {"agent.top_k": 5, "seed": 1}, [], [])
        ['agent.top_k: 3 against 5']
    """
    differing = [
        f"{name}: {one} against {other}"
        for name, (one, other) in changes(first, second).items()
        if not name.startswith(MAY_DIFFER)
    ]
    asked, again = ({r.id: (r.question, r.golds) for r in records} for records in (first_records, second_records))
    only = len(asked.keys() ^ again.keys())
    if only:
        differing.append(f"questions: {only} were asked in one of them only")
    changed = sum(asked[id_] != again[id_] for id_ in asked.keys() & again.keys())
    if changed:
        differing.append(f"questions: {changed} have another text or other answers")
    return differing


def compare(
    first: Sequence[Record],
    second: Sequence[Record],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> list[Comparison]:
    """Differences on the questions that both were asked, for all and by source where more than one occurs.

    Args:
        first: records of the evaluation that is subtracted.
        second: records of the other one.
        seed: of intervals and sign changes.
        resamples: of intervals.

    Raises:
        ValueError: they share no question.
    """
    means = [_question_means(records) for records in (first, second)]
    shared = [id_ for id_ in means[0] if id_ in means[1]]
    if not shared:
        raise ValueError("evaluations must share a question to be compared, got none: name two of the same benchmark")
    source = {record.id: record.source for record in first}
    groups = {"all": shared}
    names = sorted({source[id_] for id_ in shared})
    if len(names) > 1:
        groups |= {f"source={name}": [id_ for id_ in shared if source[id_] == name] for name in names}
    found = []
    for group, ids in groups.items():
        values = np.array([np.subtract(means[1][id_], means[0][id_]) for id_ in ids])
        estimates = [
            bootstrap_interval(column, np.arange(len(ids)), seed=seed, resamples=resamples) for column in values.T
        ]
        p = [permutation_p(column, seed=seed) for column in values.T]
        found.append(Comparison(group, len(ids), estimates[0], p[0], estimates[1], p[1]))
    return found


def permutation_p(differences: Float[np.ndarray, " Q"], *, seed: int = 0, flips: int = FLIPS) -> float:
    """Two-sided p-value of a mean difference of zero, by changing signs of questions' differences.

    Exact where at most 14 questions differ; else from so many random sign changes, the observed one counted among
    them, so that the p-value is never 0 and the test keeps its level.

    Args:
        differences: one a question.
        seed: of the random sign changes.
        flips: how many.

    Example:
        >>> permutation_p(np.array([1.0, 1.0, 1.0, 0.0]))
        0.25
    """
    moved = differences[differences != 0]
    if len(moved) == 0:
        return 1.0
    observed = abs(moved.sum()) - 1e-9 * np.abs(moved).sum()
    if len(moved) <= _EXACT:
        signs = 1 - 2 * ((np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved))) & 1)
        return float((np.abs(signs @ moved) >= observed).mean())
    rng = np.random.default_rng(seed)
    # Questions with differences of one size are interchangeable: their sum of signs is binomial.
    sizes, counts = np.unique(np.abs(moved), return_counts=True)
    sums = (2 * rng.binomial(counts, 0.5, size=(flips, len(sizes))) - counts) @ sizes
    return float((1 + (np.abs(sums) >= observed).sum()) / (1 + flips))


def _question_means(records: Sequence[Record]) -> dict[str, tuple[float, float]]:
    """Mean exact match and F1 of a question's samples."""
    grouped: dict[str, list[Record]] = {}
    for record in records:
        grouped.setdefault(record.id, []).append(record)
    return {
        id_: (float(np.mean([r.exact_match for r in own])), float(np.mean([r.f1 for r in own])))
        for id_, own in grouped.items()
    }
