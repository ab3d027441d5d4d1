"""metrics: records -> one summary for all of them, and one for each number of hops and each data set.

Source: ours; exact match and F1 are those of `igrpo_train.rewards`, already in the records.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from igrpo_eval.intervals import RESAMPLES, Estimate, bootstrap_interval, bootstrap_means
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
    tool_calls_official: float
    """Turns but the last, which the paper's own code counts as tool calls."""
    response_tokens: float
    prompt_tokens: float
    answered_share: float
    retrieved_share: float
    """Records in whose documents an accepted answer stood."""
    invalid_share: float
    """Invalid turns over all turns."""
    truncated_share: float
    """Turns that a limit cut off over all turns."""
    pass_at: Mapping[int, Estimate]
    """Chance that one of k samples is right, by k: powers of 2 up to the samples of a question, and these."""


def pass_at_k(num_right: Int[np.ndarray, " Q"], samples: int, k: int) -> Float[np.ndarray, " Q"]:
    """Unbiased estimate, a question, of the chance that at least one of k samples is right.

    `1 - C(n - c, k) / C(n, k)` with c right ones of n. Source: Chen et al. (2021), arXiv 2107.03374, equation 1.

    Raises:
        ValueError: k is not between 1 and the number of samples.

    Example:
        >>> pass_at_k(np.array([0, 1, 4]), samples=4, k=2).tolist()
        [0.0, 0.5, 1.0]
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k must be between 1 and the {samples} samples of a question, got {k}: evaluate more samples")
    by_count = [1 - math.comb(samples - right, k) / math.comb(samples, k) for right in range(samples + 1)]
    return np.array(by_count)[num_right]


def summarise(records: Sequence[Record], *, seed: int = 0, resamples: int = RESAMPLES) -> list[Summary]:
    """Summaries of all records, then by hops and by source where more than one occurs.

    Args:
        records: at least one.
        seed: of the intervals.
        resamples: of the intervals.

    Raises:
        ValueError: there is no record.
    """
    if not records:
        raise ValueError("records must hold at least one, got none: evaluate a question first")
    groups = {"all": list(records)}
    for name in ("hops", "source"):
        values = sorted({getattr(record, name) for record in records})
        if len(values) > 1:
            groups |= {f"{name}={value}": [r for r in records if getattr(r, name) == value] for value in values}
    return [_summary(group, members, seed, resamples) for group, members in groups.items()]


def summary_to_dict(summary: Summary) -> dict[str, Any]:
    """JSON form of a summary; an estimate becomes an object with mean, low and high."""
    values = asdict(summary)
    plain = {name: value._asdict() if isinstance(value, Estimate) else value for name, value in values.items()}
    return plain | {"pass_at": {str(k): estimate._asdict() for k, estimate in summary.pass_at.items()}}


def macro_average(
    records: Sequence[Record], name: str, *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[int, Estimate]:
    """Mean of the data sets' means, each counting once, with its interval; and how many sets there are.

    Args:
        records: at least one.
        name: a field of numbers, `exact_match` or `f1`.
        seed: of the interval.
        resamples: of the interval; questions are resampled within their set.
    """
    means, draws = [], []
    for place, source in enumerate(dict.fromkeys(record.source for record in records)):
        own = [record for record in records if record.source == source]
        number = {id_: k for k, id_ in enumerate(dict.fromkeys(record.id for record in own))}
        values = np.array([getattr(record, name) for record in own], dtype=np.float64)
        question = np.array([number[record.id] for record in own], dtype=np.int64)
        means.append(float(values.mean()))
        draws.append(bootstrap_means(values, question, np.random.default_rng([seed, place]), resamples))
    low, high = np.quantile(np.mean(draws, axis=0), [0.025, 0.975])
    return len(means), Estimate(float(np.mean(means)), float(low), float(high))


def _summary(group: str, records: Sequence[Record], seed: int, resamples: int) -> Summary:
    number = {id_: place for place, id_ in enumerate(dict.fromkeys(record.id for record in records))}
    question = np.array([number[record.id] for record in records], dtype=np.int64)
    samples, leftover = divmod(len(records), len(number))
    num_right = np.bincount(question, weights=[record.exact_match for record in records]).astype(np.int64)
    # Files put together by hand may hold other numbers of samples a question.
    even = leftover == 0 and (np.bincount(question) == samples).all()
    ks = sorted({2**power for power in range(1, samples.bit_length())} | {samples}) if even and samples > 1 else []

    def mean(name: str) -> float:
        return float(np.mean([getattr(record, name) for record in records]))

    def estimate(name: str) -> Estimate:
        values = np.array([getattr(record, name) for record in records], dtype=np.float64)
        return bootstrap_interval(values, question, seed=seed, resamples=resamples)

    num_turns = sum(record.turns for record in records)
    return Summary(
        group=group,
        num_questions=len(number),
        num_records=len(records),
        exact_match=estimate("exact_match"),
        f1=estimate("f1"),
        turns=mean("turns"),
        searches=mean("searches"),
        tool_calls_official=mean("tool_calls_official"),
        response_tokens=mean("response_tokens"),
        prompt_tokens=mean("prompt_tokens"),
        answered_share=mean("answered"),
        retrieved_share=float(np.mean([any(record.answer_seen) for record in records])),
        invalid_share=sum(record.invalid_turns for record in records) / num_turns,
        truncated_share=sum(record.truncated_turns for record in records) / num_turns,
        pass_at={
            k: bootstrap_interval(
                pass_at_k(num_right, samples, k), np.arange(len(number)), seed=seed, resamples=resamples
            )
            for k in ks
        },
    )
