"""metrics: records -> one summary for all of them, and one for each number of hops and each data set.

Source: ours; exact match and F1 are those of `igrpo_train.rewards`, already in the records.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from igrpo_eval.intervals import RESAMPLES, Estimate, bootstrap_interval
from igrpo_eval.records import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a group of records says; means are over records, shares in [0, 1]."""

    group: str
    """`all`, `hops=2` or `source=nq`."""
    num_questions: int
    num_records: int
    """Questions times samples."""
    exact_match: Estimate
    """With its 95% interval over questions, like `f1`."""
    f1: Estimate
    turns: float
    searches: float
    """Searches carried out."""
    response_tokens: float
    answered_share: float
    invalid_share: float
    """Invalid turns over all turns."""


def summarise(records: Sequence[Record], *, seed: int = 0, resamples: int = RESAMPLES) -> list[Summary]:
    """Summaries of all records, then by hops and by source where more than one occurs.

    Args:
        records: at least one.
        seed: of the intervals.
        resamples: of the intervals.

    Raises:
        ValueError: there is no record.
    """
    groups = {"all": list(records)}
    for name in ("hops", "source"):
        values = sorted({getattr(record, name) for record in records})
        if len(values) > 1:
            groups |= {f"{name}={value}": [r for r in records if getattr(r, name) == value] for value in values}
    return [_summary(group, members, seed, resamples) for group, members in groups.items()]


def summary_to_dict(summary: Summary) -> dict[str, Any]:
    """JSON form of a summary; an estimate becomes an object with mean, low and high."""
    values = asdict(summary)
    return {name: value._asdict() if isinstance(value, Estimate) else value for name, value in values.items()}


def _summary(group: str, records: Sequence[Record], seed: int, resamples: int) -> Summary:
    number = {id_: place for place, id_ in enumerate(dict.fromkeys(record.id for record in records))}
    question = np.array([number[record.id] for record in records], dtype=np.int64)

    def mean(name: str) -> float:
        return float(np.mean([getattr(record, name) for record in records]))

    def estimate(name: str) -> Estimate:
        values = np.array([getattr(record, name) for record in records], dtype=np.float64)
        return bootstrap_interval(values, question, seed=seed, resamples=resamples)

    return Summary(
        group=group,
        num_questions=len(number),
        num_records=len(records),
        exact_match=estimate("exact_match"),
        f1=estimate("f1"),
        turns=mean("turns"),
        searches=mean("searches"),
        response_tokens=mean("response_tokens"),
        answered_share=mean("answered"),
        invalid_share=sum(record.invalid_turns for record in records) / sum(record.turns for record in records),
    )
