"""theory_figures: small policy trees -> the figures of the pages under docs/theory.

    python -m experiments.theory_figures --out docs/theory/figures

CPU: about 20 seconds. Equal runs write equal files.
"""

from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import tyro
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from experiments.theory_panels import FIGURES, Panel


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Where to draw."""

    out: Path = Path("docs/theory/figures")
    """Folder of the SVG files."""


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
        if curve.error is None:
            axis.plot(curve.x, curve.y, curve.style, label=curve.label, markersize=4)
        else:
            axis.errorbar(curve.x, curve.y, curve.error, fmt=curve.style, label=curve.label, markersize=4)
    if panel.logarithmic:
        axis.set_xscale("log")
        axis.set_yscale("log")
    elif panel.ticks is not None:
        axis.set_xticks(range(len(panel.ticks)), panel.ticks)
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
