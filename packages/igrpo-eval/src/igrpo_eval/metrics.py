"""metrics: records -> one summary for all of them, and one for each number of hops and each data set.

Source: ours; exact match and F1 are those of `igrpo_train.rewards`, already in the records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int

from igrpo_eval.averages import SetValues
from igrpo_eval.evidence import can_be_seen
from igrpo_eval.intervals import RESAMPLES, Estimate, bootstrap_interval
from igrpo_eval.passk import pass_at_k
from igrpo_eval.records import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a group of records says; means are over records, shares in [0, 1]."""

    group: str
    """`all`, `hops=2`, `source=nq`, or an average over sets."""
    num_questions: int
    num_records: int
    """Questions times samples."""
    exact_match: Estimate
    """With its 95% interval over questions, like `f1`."""
    f1: Estimate
    turns: float
    searches: float
    """Searches carried out."""
    tool_calls_official: float
    """Tool calls as the official code counts them."""
    prompt_tokens: float
    response_tokens: float
    answer_seen_share: float | None
    """Records in whose documents an accepted answer stood; of questions for which that says something, None if none."""
    answered_share: float
    invalid_share: float
    """Invalid turns over all turns."""
    truncated_share: float
    """Turns whose response was cut, over all turns."""
    pass_at: Mapping[int, Estimate] = field(default_factory=dict)
    """pass@k by k, where it was asked for."""


def summarise(
    records: Sequence[Record], *, seed: int = 0, resamples: int = RESAMPLES, pass_k: Sequence[int] = ()
) -> list[Summary]:
    """Summaries of all records, then by hops and by source where more than one occurs.

    Args:
        records: at least one.
        seed: of the intervals.
        resamples: of the intervals.
        pass_k: numbers of samples to report pass@k for.

    Raises:
        ValueError: there is no record, or fewer samples than a k.
    """
    groups = {"all": list(records)}
    for name in ("hops", "source"):
        values = sorted({getattr(record, name) for record in records})
        if len(values) > 1:
            groups |= {f"{name}={value}": [r for r in records if getattr(r, name) == value] for value in values}
    return [summarise_group(group, members, seed, resamples, pass_k) for group, members in groups.items()]


def summary_to_dict(summary: Summary) -> dict[str, Any]:
    """JSON form of a summary; an estimate becomes an object with mean, low and high."""
    values = asdict(summary)
    pass_at = {str(k): estimate._asdict() for k, estimate in summary.pass_at.items()}
    return {name: value._asdict() if isinstance(value, Estimate) else value for name, value in values.items()} | {
        "pass_at": pass_at
    }


def number_questions(records: Sequence[Record]) -> Int[np.ndarray, " n"]:
    """A number for each record that is the same for the records of one question, in order of appearance."""
    number = {id_: place for place, id_ in enumerate(dict.fromkeys(record.id for record in records))}
    return np.array([number[record.id] for record in records], dtype=np.int64)


def record_values(records: Sequence[Record], name: str) -> SetValues:
    """A field of records, with their questions."""
    values = np.array([getattr(record, name) for record in records], dtype=np.float64)
    return SetValues(values, number_questions(records))


def pass_values(records: Sequence[Record], k: int) -> SetValues:
    """pass@k of the records' questions.

    Raises:
        ValueError: a question has fewer samples.
    """
    question = number_questions(records)
    right = np.bincount(question, [record.exact_match for record in records]).astype(np.int64)
    values = pass_at_k(np.bincount(question), right, k)
    return SetValues(values, np.arange(len(values)))


def summarise_group(
    group: str, records: Sequence[Record], seed: int = 0, resamples: int = RESAMPLES, pass_k: Sequence[int] = ()
) -> Summary:
    """The summary of some records, under a name; see `summarise`."""
    turns = sum(record.turns for record in records)

    def mean(name: str) -> float:
        return float(np.mean([getattr(record, name) for record in records]))

    def estimate(values: SetValues) -> Estimate:
        return bootstrap_interval(values.values, values.question, seed=seed, resamples=resamples)

    return Summary(
        group=group,
        num_questions=len({record.id for record in records}),
        num_records=len(records),
        exact_match=estimate(record_values(records, "exact_match")),
        f1=estimate(record_values(records, "f1")),
        turns=mean("turns"),
        searches=mean("searches"),
        tool_calls_official=mean("tool_calls_official"),
        prompt_tokens=mean("prompt_tokens"),
        response_tokens=mean("response_tokens"),
        answer_seen_share=_seen_share(records),
        answered_share=mean("answered"),
        invalid_share=sum(record.invalid_turns for record in records) / turns,
        truncated_share=sum(record.truncated_turns for record in records) / turns,
        pass_at={k: estimate(pass_values(records, k)) for k in pass_k},
    )


def _seen_share(records: Sequence[Record]) -> float | None:
    told = [record.answer_seen[-1] for record in records if can_be_seen(record.golds)]
    return float(np.mean(told)) if told else None
