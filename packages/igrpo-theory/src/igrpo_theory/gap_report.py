"""gap_report: a measured gap -> a table, a record, a figure.

In: a `Gap` and the settings it was measured at. Out: text for people, JSON for machines, and a picture of the laws of
paths side by side. matplotlib is loaded only when a picture is asked for.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from igrpo_theory.gap import Estimate, Gap
from igrpo_theory.limits import mean_field
from igrpo_theory.teacher import teacher_law
from igrpo_theory.worlds import PolicyTree, enumerate_paths

_MOST_PATHS = 40
"""Bars that fit in a figure; the likeliest paths under the teacher are drawn."""

_NAMES = {
    "tv_teacher": "total variation to the teacher law",
    "kl_teacher": "KL to the teacher law, nats",
    "tv_limit": "total variation to the limit at these settings",
    "kl_limit": "KL to the limit at these settings, nats",
    "effective_gamma": "effective gamma",
    "truncated_share": "truncated share of leaves",
}

Draw = Callable[[PolicyTree, Gap, Mapping[str, Any], str, Path], None]


def gap_title(name: str, settings: Mapping[str, Any]) -> str:
    """What was measured, in one line.

    Source: ours.

    Example:
        >>> gap_title("tree", {"budget": 5, "cap": 2, "gamma": 1.0, "mode": "full", "scheme": "capped"})
        'tree: budget 5, cap 2, gamma 1, full, capped'
    """
    cap = f"cap {settings['cap']}" if settings["cap"] < settings["budget"] else "no cap"
    how = f"{settings['mode']}, {settings['scheme']}"
    return f"{name}: budget {settings['budget']}, {cap}, gamma {settings['gamma']:g}, {how}"


def gap_table(measured: Gap, title: str) -> str:
    """Every distance with its standard error, as aligned text.

    Source: ours.

    Example:
        >>> from igrpo_theory.gap import gap
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> gap_table(gap(policy), "a tree").splitlines()[0]
        'a tree (exact sums)'
    """
    rows = [(label, getattr(measured, field)) for field, label in _NAMES.items()]
    rows += [
        (f"nodes with children at depth {1 + stage}", parents)
        for stage, parents in enumerate(measured.distinct_parents)
    ]
    width = max(len(label) for label, _ in rows)
    lines = [f"{label.ljust(width)}  {estimate.value:9.4f}  +- {estimate.error:.4f}" for label, estimate in rows]
    how = f"{measured.num_trees} trees" if measured.num_trees else "exact sums"
    return "\n".join([f"{title} ({how})", *lines])


def gap_record(measured: Gap) -> dict[str, Any]:
    """The gap as JSON-able numbers; what is not finite becomes None.

    Source: ours.

    Example:
        >>> from igrpo_theory.gap import gap
        >>> from igrpo_theory.worlds import random_policy_tree
        >>> policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
        >>> sorted(gap_record(gap(policy))["tv_teacher"])
        ['error', 'value']
    """
    record: dict[str, Any] = {field: _record(getattr(measured, field)) for field in _NAMES}
    record["distinct_parents"] = [_record(parents) for parents in measured.distinct_parents]
    record["law"] = measured.law.tolist()
    record["num_trees"] = measured.num_trees
    return record


def _record(estimate: Estimate) -> dict[str, float | None]:
    return {name: number if math.isfinite(number) else None for name, number in estimate._asdict().items()}


def load_plotting(figure: Path) -> Draw:
    """The function that draws a figure; before anything is measured, so that what is missing is told at once.

    Raises:
        ImportError: when matplotlib is not installed.
        ValueError: when the name of the file ends in no format that it can write.

    Source: ours.

    Example:
        >>> from contextlib import suppress
        >>> with suppress(ImportError):  # where matplotlib is not installed
        ...     draw = load_plotting(Path("gap.png"))
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("a figure needs matplotlib: pip install 'igrpo-theory[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    if figure.suffix[1:].lower() not in formats:
        raise ValueError(f"--figure must end in one of {', '.join(sorted(formats))}, got {figure}: choose one of them")
    return _draw


def _draw(policy: PolicyTree, measured: Gap, settings: Mapping[str, Any], title: str, file: Path) -> None:
    """Four laws of the likeliest paths, side by side."""
    from matplotlib.figure import Figure

    mu = teacher_law(policy, settings["gamma"])
    cap = settings["cap"] if settings["cap"] < settings["budget"] else None
    limit = mean_field(policy, settings["gamma"], cap, mode=settings["mode"], scheme=settings["scheme"]).complete_law
    shown = np.argsort(-mu)[:_MOST_PATHS]
    laws = {"policy": enumerate_paths(policy).probability, "teacher": mu, "limit": limit, "grown": measured.law}
    figure = Figure(figsize=(max(6.0, 0.3 * len(shown)), 4.0), layout="constrained")
    axes = figure.add_subplot()
    for place, (label, law) in enumerate(laws.items()):
        axes.bar(np.arange(len(shown)) + 0.2 * (place - 1.5), law[shown], width=0.2, label=label)
    axes.set_xlabel("complete paths, likeliest under the teacher first")
    axes.set_ylabel("probability")
    axes.set_title(
        f"{title}\nTV to teacher {measured.tv_teacher.value:.3f}, to the limit {measured.tv_limit.value:.3f}"
    )
    axes.legend()
    figure.savefig(file, dpi=150)
