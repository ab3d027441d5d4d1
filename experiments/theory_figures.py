"""theory_figures: small policy trees -> the figures of the pages under docs/theory.

    python -m experiments.theory_figures --out docs/theory/figures

CPU: about 5 seconds. Curves are exact laws, but for the measured distances of theorem 1, whose seed is fixed; equal
runs write equal files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from igrpo_theory import (
    capped_reward_gain,
    capped_teacher_law,
    elasticity,
    expected_reward,
    finite_elasticity,
    finite_law,
    grown_laws,
    misleading_policy_tree,
    random_policy_tree,
    rate_constants,
    teacher_law,
    total_variation,
)

GAMMA = 1.0
REPLICATES = 200
"""Trees a point, where trees are grown."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Where to draw."""

    out: Path = Path("docs/theory/figures")
    """Folder of the SVG files."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line, or points without a line."""

    label: str
    x: list[float]
    y: list[float]
    style: str = "o-"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    logarithmic: bool = False


def theorem1() -> list[Panel]:
    """Distance of uncapped growth from the teacher by budget: of one tree, and of the expected law."""
    policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
    mu, constants = teacher_law(policy, GAMMA), rate_constants(policy, GAMMA)
    budgets, small = [2, 5, 10, 30, 100, 300, 1000], [2, 3, 4, 5, 6, 8, 10]
    measured = [
        float(np.abs(grown_laws(policy, GAMMA, replicates=REPLICATES, budget=budget).laws - mu).sum(axis=1).mean() / 2)
        for budget in budgets
    ]
    exact = [total_variation(finite_law(policy, GAMMA, budget, budget), mu) for budget in small]
    line = np.geomspace(2, 1000, 20)
    curves = [
        Curve(label=f"one tree, mean of {REPLICATES}", x=[*map(float, budgets)], y=measured, style="o"),
        Curve(label="rate C_emp / sqrt(B)", x=line.tolist(), y=(constants.spread / np.sqrt(line)).tolist(), style="-"),
        Curve(label="expected law, exact", x=[*map(float, small)], y=exact, style="s"),
        Curve(label="rate C_bias / B", x=line.tolist(), y=(constants.bias / line).tolist(), style="--"),
    ]
    return [
        Panel(
            title="Theorem 1: 3 turns of 2, gamma 1, no cap",
            x_label="budget B",
            y_label="TV to the teacher",
            curves=curves,
            logarithmic=True,
        )
    ]


def cap() -> list[Panel]:
    """Distance of the capped limit from the teacher by cap, and the share of gamma that a cap leaves."""
    caps = [1, 2, 3, 4, 5]
    policy = random_policy_tree(np.random.default_rng(0), turns=3, branching=2)
    distances = [
        Curve(
            label=f"gamma {gamma:g}",
            x=[*map(float, caps)],
            y=[total_variation(capped_teacher_law(policy, gamma, c), teacher_law(policy, gamma)) for c in caps],
        )
        for gamma in (0.5, 1.0, 2.0)
    ]
    shares = [Curve(label="large budget, b = 1", x=[*map(float, caps)], y=[elasticity(1.0, c) for c in caps])]
    shares += [
        Curve(label=f"B = 5, {nodes} nodes", x=[*map(float, caps)], y=[finite_elasticity(nodes, 5, c) for c in caps])
        for nodes in (5, 4, 3)
    ]
    return [
        Panel(title="Limit under a cap: 3 turns of 2", x_label="cap c", y_label="TV(mu_cap, mu)", curves=distances),
        Panel(title="What is left of gamma", x_label="cap c", y_label="effective gamma / gamma", curves=shares),
    ]


def finite() -> list[Panel]:
    """Exact distance of the expected law from the teacher by budget, with a cap and without."""
    policy, budgets = random_policy_tree(np.random.default_rng(0), turns=3, branching=2), [2, 3, 4, 5, 6, 7, 8]
    mu = teacher_law(policy, GAMMA)
    curves = [
        Curve(
            label=f"cap {cap}" if cap else "no cap",
            x=[*map(float, budgets)],
            y=[total_variation(finite_law(policy, GAMMA, budget, cap or budget), mu) for budget in budgets],
        )
        for cap in (2, 3, None)
    ]
    limit = total_variation(capped_teacher_law(policy, GAMMA, 2), mu)
    curves.append(Curve(label="cap 2, infinite budget", x=[2.0, 8.0], y=[limit, limit], style="--"))
    return [Panel(title="Exact law: 3 turns of 2, gamma 1", x_label="budget B", y_label="TV(q_B, mu)", curves=curves)]


def reward() -> list[Panel]:
    """Expected reward by gamma, of the teacher and under a cap of 2."""
    trees = {
        "A misleading value": misleading_policy_tree(),
        "Random rewards: 3 turns of 2, seed 1310": random_policy_tree(
            np.random.default_rng(1310), turns=3, branching=2
        ),
    }
    gammas = np.linspace(0, 5, 26).tolist()
    panels = []
    for title, policy in trees.items():
        start = expected_reward(policy, 0.0)
        teacher = [expected_reward(policy, gamma) for gamma in gammas]
        capped = [start + capped_reward_gain(policy, gamma, 2) for gamma in gammas]
        curves = [
            Curve(label="teacher", x=gammas, y=teacher, style="-"),
            Curve(label="limit under cap 2", x=gammas, y=capped, style="--"),
        ]
        panels.append(Panel(title=title, x_label="gamma", y_label="expected reward", curves=curves))
    return panels


FIGURES: dict[str, Callable[[], list[Panel]]] = {"theorem1": theorem1, "cap": cap, "finite": finite, "reward": reward}
"""By the name of the page."""


def draw(panels: list[Panel], file: Path) -> None:
    """Panels side by side, as SVG without a date or a version."""
    # Equal runs give equal files: ids are hashed with this salt, and text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "igrpo-theory", "svg.fonttype": "none", "font.size": 9.0}):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(4.6 * len(panels), 3.4), layout="constrained", squeeze=False
        )
        for axis, panel in zip(axes[0], panels, strict=True):
            _draw_panel(axis, panel)
        figure.savefig(file, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _draw_panel(axis: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        axis.plot(curve.x, curve.y, curve.style, label=curve.label, markersize=4)
    if panel.logarithmic:
        axis.set_xscale("log")
        axis.set_yscale("log")
    else:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_title(panel.title)
    axis.set_xlabel(panel.x_label)
    axis.set_ylabel(panel.y_label)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")


def main() -> None:
    """Draw every figure."""
    arguments = tyro.cli(Arguments, description=__doc__)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, compute in FIGURES.items():
        draw(compute(), arguments.out / f"{name}.svg")
        print(f"wrote {arguments.out / f'{name}.svg'}")


if __name__ == "__main__":
    main()
