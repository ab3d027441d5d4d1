"""sets: records of several sets -> a summary of each, and averages over them.

The macro average counts every set the same; the size-weighted one every question of the whole sets. With samples of
the sets both differ from the mean over what was asked, which depends on how large the samples are.
Source: ours; the paper's first version reports the weighted, its later one the macro average [igrpo].
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
from jaxtyping import Float

from igrpo_eval.averages import MACRO, WEIGHTED, SetValues, macro_weights, size_weights, weighted_estimate
from igrpo_eval.intervals import RESAMPLES, Estimate
from igrpo_eval.metrics import Summary, pass_values, record_values, summarise_group
from igrpo_eval.records import Record

_MEANS: Final = (
    "turns",
    "searches",
    "tool_calls_official",
    "prompt_tokens",
    "response_tokens",
    "answered_share",
    "invalid_share",
    "truncated_share",
)


def summarise_sets(
    records: Sequence[Record], *, seed: int = 0, resamples: int = RESAMPLES, pass_k: Sequence[int] = ()
) -> list[Summary]:
    """Summaries by source, then, where more than one occurs, their macro average and their size-weighted average.

    Args:
        records: at least one.
        seed: of the intervals.
        resamples: of the intervals.
        pass_k: numbers of samples to report pass@k for.

    Raises:
        ValueError: there is no record, or fewer samples than a k.
    """
    names = list(dict.fromkeys(record.source for record in records))
    if len(names) <= 1:
        return [summarise_group(next(iter(names), "") or "all", records, seed, resamples, pass_k)]
    members = [[record for record in records if record.source == name] for name in names]
    summaries = [
        summarise_group(name or "no source", part, seed, resamples, pass_k)
        for name, part in zip(names, members, strict=True)
    ]
    by_size = size_weights(names, [summary.num_questions for summary in summaries])
    return [
        *summaries,
        _average(MACRO, summaries, members, macro_weights(len(names)), seed, resamples),
        _average(WEIGHTED, summaries, members, by_size, seed, resamples),
    ]


def _average(
    group: str,
    summaries: Sequence[Summary],
    members: Sequence[Sequence[Record]],
    weights: Float[np.ndarray, " S"],
    seed: int,
    resamples: int,
) -> Summary:
    """A weighted average of sets; a share that a set does not have is left out of it."""

    def mean(name: str) -> float:
        return float(np.dot(weights, [getattr(summary, name) for summary in summaries]))

    def estimate(values: Callable[[Sequence[Record]], SetValues]) -> Estimate:
        return weighted_estimate([values(part) for part in members], weights, seed=seed, resamples=resamples)

    seen = [
        (w, s.answer_seen_share) for w, s in zip(weights, summaries, strict=True) if s.answer_seen_share is not None
    ]
    return Summary(
        group=group,
        num_questions=sum(summary.num_questions for summary in summaries),
        num_records=sum(summary.num_records for summary in summaries),
        exact_match=estimate(partial(record_values, name="exact_match")),
        f1=estimate(partial(record_values, name="f1")),
        answer_seen_share=float(np.average([s for _, s in seen], weights=[w for w, _ in seen])) if seen else None,
        pass_at={k: estimate(partial(pass_values, k=k)) for k in summaries[0].pass_at},
        **{name: mean(name) for name in _MEANS},
    )
