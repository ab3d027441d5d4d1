"""report: summaries and comparisons -> tables for the terminal and JSON for everything else.

Source: ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from igrpo_eval.comparison import Comparison
from igrpo_eval.intervals import Estimate
from igrpo_eval.metrics import Summary, macro_average, summary_to_dict
from igrpo_eval.records import Record

_COLUMNS: Final = (
    "asked",
    "exact match",
    "F1",
    "turns",
    "search",
    "calls",
    "tokens",
    "answer",
    "found",
    "invalid",
    "cut",
)
_INTERVALS: Final = ("exact match", "F1")
MACRO: Final = "macro average"
WEIGHTED: Final = "all, by size"


def summary_table(summaries: Sequence[Summary], records: Sequence[Record] = ()) -> Table:
    """A table with a row a group; exact match and F1 in percent with their 95% intervals.

    Args:
        summaries: as `summarise` orders them; the first is of all records.
        records: of all summaries; where they come from several data sets, a row with their macro average is added.

    Example:
        >>> summary_table([]).columns[1].header
        'asked'
    """
    table = Table(
        caption="exact match and F1 with 95% intervals, answer, found, invalid and cut: in %. search: carried out; "
        "calls: as the paper's code counts them; found: an accepted answer stood in the documents; cut: by a limit",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("group", overflow="fold")
    for name in _COLUMNS:
        # On a narrow terminal an interval goes below its number, and counts stay whole.
        table.add_column(name, justify="right", no_wrap=name not in _INTERVALS, min_width=12 * (name in _INTERVALS))
    macro = macro_row(records)
    for summary in summaries:
        table.add_row(
            # Text, not markup: a data set's name may hold square brackets.
            Text(WEIGHTED if macro and summary.group == "all" else summary.group),
            f"{summary.num_questions:,}",
            percent(summary.exact_match),
            percent(summary.f1),
            f"{summary.turns:.2f}",
            f"{summary.searches:.2f}",
            f"{summary.tool_calls_official:.2f}",
            f"{summary.response_tokens:.0f}",
            f"{100 * summary.answered_share:.1f}",
            f"{100 * summary.retrieved_share:.1f}",
            f"{100 * summary.invalid_share:.1f}",
            f"{100 * summary.truncated_share:.1f}",
        )
        if macro and summary.group == "all":
            table.add_row(MACRO, "", percent(macro["exact_match"]), percent(macro["f1"]), *[""] * 8)
    return table


def pass_table(summaries: Sequence[Summary]) -> Table | None:
    """Pass@k in percent by group; None where every question has one sample."""
    ks = sorted({k for summary in summaries for k in summary.pass_at})
    if not ks:
        return None
    table = Table(caption="pass@k with 95% intervals, in %", box=None, padding=(0, 1, 0, 0))
    table.add_column("group", overflow="fold")
    for k in ks:
        table.add_column(f"pass@{k}", justify="right")
    for summary in summaries:
        cells = [percent(summary.pass_at[k]) if k in summary.pass_at else "" for k in ks]
        table.add_row(Text(summary.group), *cells)
    return table


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Differences in points with intervals and p-values, a row a group."""
    table = Table(
        caption="second less first, in points, with 95% intervals over questions; p: paired permutation test",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for name in ("group", "asked", "exact match", "p", "F1", "p"):
        table.add_column(name, justify="left" if name == "group" else "right", overflow="fold")
    for row in comparisons:
        table.add_row(
            Text(row.group),
            f"{row.num_questions:,}",
            percent(row.exact_match),
            f"{row.p_exact_match:.3g}",
            percent(row.f1),
            f"{row.p_f1:.3g}",
        )
    return table


def macro_row(records: Sequence[Record]) -> dict[str, Estimate] | None:
    """Macro averages of exact match and F1; None where there is only one data set."""
    if len({record.source for record in records}) < 2:
        return None
    return {name: macro_average(records, name)[1] for name in ("exact_match", "f1")}


def report_json(
    summaries: Sequence[Summary],
    settings: Mapping[str, object],
    measured: Mapping[str, float],
    records: Sequence[Record] = (),
) -> dict[str, Any]:
    """What `summary.json` holds.

    Args:
        summaries: of the evaluated questions.
        settings: that the records depend on.
        measured: seconds and tokens of this session's phases; empty when nothing was left to do.
        records: of all summaries; gives the macro average where they come from several data sets.
    """
    macro = macro_row(records)
    return {
        "settings": dict(settings),
        "groups": [summary_to_dict(summary) for summary in summaries],
        "macro_average": {name: value._asdict() for name, value in macro.items()} if macro else None,
        "measured": dict(measured),
    }


def comparison_json(comparisons: Sequence[Comparison], differing: Sequence[str]) -> dict[str, Any]:
    """JSON form of a comparison, with what else differs between the two."""
    rows = [row._asdict() | {"exact_match": row.exact_match._asdict(), "f1": row.f1._asdict()} for row in comparisons]
    return {"differing": list(differing), "groups": rows}


def percent(estimate: Estimate) -> str:
    """Mean and interval in percent."""
    return f"{100 * estimate.mean:.1f} [{100 * estimate.low:.1f},{100 * estimate.high:.1f}]"
