"""correlation_report: studies -> tables for the terminal, JSON for machines, and the curves of cumulative gain as CSV.

Source: ours.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from igrpo_eval.association import Estimate
from igrpo_eval.study import Bin, Row, Study
from igrpo_eval.trajectories import LEAST_SAMPLES, Policy

GAIN_COLUMNS = ("kind", "model", "steps", "outcome", "turn", "paths", "gain", "low", "high")


def policy_title(policy: Policy) -> str:
    """What drew the paths, in a few words.

    Example:
        >>> policy_title(Policy("models/a", None, 40, 1.0, False, 0))
        'chains of models/a, step 40, temperature 1'
    """
    kind = "training trees" if policy.guided else "chains"
    step = "" if policy.step is None else f", step {policy.step}"
    return f"{kind} of {policy.model}{step}, temperature {policy.temperature:g}"


def study_tables(study: Study) -> Iterator[Table | Text]:
    """One policy's paths: counts, then the tables, by length first.

    Args:
        study: of one policy.
    """
    policy = study.policy
    lines = [
        policy_title(policy),
        f"{study.num_paths:,} complete paths, {study.num_unscored:,} of them without a scored node (V = 0); left out: "
        f"{study.num_truncated:,} truncated paths, {policy.dropped:,} questions with fewer than {LEAST_SAMPLES} chains",
    ]
    if policy.guided:
        lines.append(
            "V itself may have guided these draws: they say nothing of the policy's own paths, and get no verdict"
        )
    elif policy.temperature != 1:
        lines.append("another temperature is another policy: the slope in gamma is that of this one")
    yield Text("\n" + "\n".join(lines))
    yield _rows_table("V against R by path length", study.by_length)
    yield _rows_table("V and s against R", study.values)
    if study.by_view:
        yield _rows_table("before and after an accepted answer came into view", study.by_view)
    if study.by_group:
        yield _rows_table("V against R by group", study.by_group)
    yield Text(f"between questions: Pearson of mean V and share of successes {_interval(study.between)}")
    if study.calibration:
        yield _calibration_table(study.calibration)


def verdict_table(studies: Sequence[Study]) -> Table:
    """The verdict of each benchmark under each policy."""
    table = _table("does V tell R inside a question?", "policy", "benchmark")
    for name in ("mixed", "AUC of V", "equal length", "before the find"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for study in studies:
        for verdict in study.verdicts:
            table.add_row(
                Text(policy_title(study.policy)),
                Text(verdict.source),
                f"{verdict.num_mixed:,}",
                _interval(verdict.auc),
                _interval(verdict.equal_length),
                _interval(verdict.before),
                Text(f"{verdict.judgement}: {verdict.reason}"),
            )
    return table


def studies_json(studies: Sequence[Study], settings: Mapping[str, object]) -> dict[str, Any]:
    """What `correlate.json` holds; what is not defined is null.

    Args:
        studies: one a policy.
        settings: that the numbers depend on.
    """
    return {"settings": dict(settings), "studies": [_plain(study) for study in studies]}


def gains_csv(studies: Sequence[Study]) -> str:
    """Cumulative information gain by turn, successes and failures, over training: the data of the paper's figure 3."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(GAIN_COLUMNS)
    for study in studies:
        for gain in study.gains:
            writer.writerow(
                (
                    "guided" if study.policy.guided else "chain",
                    study.policy.model,
                    gain.steps,
                    "success" if gain.success else "failure",
                    gain.turn,
                    gain.num_paths,
                    *("" if number is None else number for number in gain.gain),
                )
            )
    return text.getvalue()


def _rows_table(title: str, rows: Sequence[Row]) -> Table:
    table = _table(title, "paths")
    for name in ("number", "questions", "mixed", "success %", "covariance", "AUC", "Pearson"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            Text(row.label),
            f"{row.num_paths:,}",
            f"{row.num_questions:,}",
            f"{row.num_mixed:,}",
            f"{100 * row.success:.1f}",
            *(_interval(number, digits=3) for number in (row.covariance, row.auc, row.pearson)),
        )
    return table


def _calibration_table(bins: Sequence[Bin]) -> Table:
    """Bins without a node are left out."""
    table = _table("calibration of s", "s", "nodes")
    for name in ("number", "mean s", "success %"):
        table.add_column(name, justify="right")
    for one in bins:
        if one.num_nodes:
            table.add_row(
                f"{one.low:.1f} to {one.high:.1f}",
                one.view,
                f"{one.num_nodes:,}",
                f"{one.mean_score:.3f}",
                _interval(one.success, digits=1, scale=100),
            )
    return table


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _interval(estimate: Estimate, digits: int = 2, scale: float = 1.0) -> str:
    value, low, high = (None if number is None else f"{scale * number:.{digits}f}" for number in estimate)
    return f"{value} [{low},{high}]" if low is not None else value or "-"


def _plain(value: Any) -> Any:
    """Dataclasses and named tuples as objects, sequences as lists."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
