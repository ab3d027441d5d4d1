"""report: summaries -> a table for the terminal and a JSON file for everything else.

Source: ours.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from igrpo_eval.comparison import Comparison
from igrpo_eval.intervals import Estimate
from igrpo_eval.metrics import Summary, summary_to_dict

_BEHAVIOUR = ("turns", "search", "official", "prompt", "response", "answered", "seen", "invalid", "cut")


def summary_table(summaries: Sequence[Summary]) -> Table:
    """A table with a row a group; exact match, F1 and pass@k in percent with their 95% intervals.

    Example:
        >>> summary_table([]).columns[1].header
        'asked'
    """
    ks = sorted({k for summary in summaries for k in summary.pass_at})
    table = _table("in %, with 95% intervals over questions")
    table.add_column("asked", justify="right", no_wrap=True)
    for name in ("exact match", "F1", *(f"pass@{k}" for k in ks)):
        # On a narrow terminal an interval goes below its number, and counts stay whole.
        table.add_column(name, justify="right", min_width=12)
    for summary in summaries:
        estimates = [summary.exact_match, summary.f1]
        passed = [percent(summary.pass_at[k]) if k in summary.pass_at else "" for k in ks]
        # Text, not markup: a data set's name may hold square brackets.
        table.add_row(Text(summary.group), f"{summary.num_questions:,}", *map(percent, estimates), *passed)
    return table


def behaviour_table(summaries: Sequence[Summary]) -> Table:
    """A table with a row a group: how answers came about, a record; shares in percent.

    Example:
        >>> behaviour_table([]).columns[3].header
        'official'
    """
    table = _table(
        "a question: turns, searches carried out, tool calls as the official code counts them, prompt and response "
        "tokens; in %: answered, an answer seen in the documents, turns invalid, turns cut"
    )
    for name in _BEHAVIOUR:
        table.add_column(name, justify="right", no_wrap=True)
    for summary in summaries:
        seen = summary.answer_seen_share
        table.add_row(
            Text(summary.group),
            f"{summary.turns:.2f}",
            f"{summary.searches:.2f}",
            f"{summary.tool_calls_official:.2f}",
            f"{summary.prompt_tokens:.0f}",
            f"{summary.response_tokens:.0f}",
            f"{100 * summary.answered_share:.1f}",
            "-" if seen is None else f"{100 * seen:.1f}",
            f"{100 * summary.invalid_share:.1f}",
            f"{100 * summary.truncated_share:.1f}",
        )
    return table


def comparison_table(comparison: Comparison) -> Table:
    """A table with a row a set and metric: the second run minus the first, in points, with its p-value."""
    table = _table(
        f"{comparison.second} minus {comparison.first}, in points, with 95% intervals; p: two-sided sign-flip test "
        "over questions, exact where few of them differ, otherwise from drawn sign patterns"
    )
    for name in ("metric", "difference", "p", "method", "questions", "differ"):
        table.add_column(name, justify="right", no_wrap=name != "difference")
    for line in comparison.lines:
        result = line.result
        table.add_row(
            Text(line.group),
            {"exact_match": "exact match", "f1": "F1"}[line.metric],
            percent(result.difference),
            f"{result.p_value:.2g}",
            result.method,
            f"{result.num_questions:,}",
            f"{result.num_differing:,}",
        )
    return table


def _table(caption: str) -> Table:
    table = Table(caption=caption, caption_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("group", overflow="fold")
    return table


def show_table(*parts: RenderableType) -> None:
    """Print to standard output, as wide as the terminal or, elsewhere, wide enough to keep columns whole."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    for part in parts:
        console.print(part, highlight=False)


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


def percent(estimate: Estimate) -> str:
    """A share in percent with its interval.

    Example:
        >>> percent(Estimate(0.5, 0.25, 0.75))
        '50.0 [25.0,75.0]'
    """
    return f"{100 * estimate.mean:.1f} [{100 * estimate.low:.1f},{100 * estimate.high:.1f}]"
