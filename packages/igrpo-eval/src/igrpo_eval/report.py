"""report: summaries -> a table for the terminal and a JSON file for everything else.

Source: ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from igrpo_eval.intervals import Estimate
from igrpo_eval.metrics import Summary, summary_to_dict

_COLUMNS = ("asked", "exact match", "F1", "turns", "search", "tokens", "answer", "invalid")
_ESTIMATES = ("exact match", "F1")


def summary_table(summaries: Sequence[Summary]) -> Table:
    """A table with a row a group; exact match and F1 in percent with their 95% intervals.

    Example:
        >>> summary_table([]).columns[1].header
        'asked'
    """
    table = Table(
        caption="exact match and F1 with 95% intervals, answered and invalid: in %",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("group", overflow="fold")
    for name in _COLUMNS:
        # On a narrow terminal an interval goes below its number, and counts stay whole.
        table.add_column(name, justify="right", no_wrap=name not in _ESTIMATES, min_width=12 * (name in _ESTIMATES))
    for summary in summaries:
        table.add_row(
            # Text, not markup: a data set's name may hold square brackets.
            Text(summary.group),
            f"{summary.num_questions:,}",
            _percent(summary.exact_match),
            _percent(summary.f1),
            f"{summary.turns:.2f}",
            f"{summary.searches:.2f}",
            f"{summary.response_tokens:.0f}",
            f"{100 * summary.answered_share:.1f}",
            f"{100 * summary.invalid_share:.1f}",
        )
    return table


def report_json(
    summaries: Sequence[Summary], settings: Mapping[str, object], measured: Mapping[str, float]
) -> dict[str, Any]:
    """What `summary.json` holds.

    Args:
        summaries: of the evaluated questions.
        settings: that the records depend on.
        measured: seconds and tokens of this session's phases; empty when nothing was left to do.
    """
    return {
        "settings": dict(settings),
        "groups": [summary_to_dict(summary) for summary in summaries],
        "measured": dict(measured),
    }


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.1f} [{100 * estimate.low:.1f},{100 * estimate.high:.1f}]"
