"""gain_figure: curves of cumulative information gain -> an SVG, the form of the paper's figure 3.

matplotlib is loaded only when a picture is asked for.
Source: [igrpo], figure 3, for what is drawn.
"""

from collections.abc import Sequence
from pathlib import Path

from igrpo_eval.correlation_report import policy_title
from igrpo_eval.study import Gain, Study
from igrpo_train.errors import MissingExtra
from igrpo_train.folders import writing


def check_figures() -> None:
    """Find out before any work whether pictures can be drawn.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra("matplotlib", "to draw a figure", "pip install 'igrpo-eval[figures]'") from error
    # No screen is needed, nor a window.
    matplotlib.use("Agg")


def draw_gains(studies: Sequence[Study], file: Path) -> None:
    """A panel for all chains, by checkpoint, and one a training run, by its steps; failures are dashed.

    Args:
        studies: at least one.
        file: SVG to write; equal studies give equal files.

    Raises:
        MissingExtra: matplotlib is not installed.
        DiskError: the file cannot be written.
    """
    check_figures()
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    panels = _panels(studies)
    size = (4.6 * len(panels), 3.4)
    with plt.rc_context({"svg.hashsalt": "igrpo-eval", "svg.fonttype": "none", "font.size": 9.0}):
        figure, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
        for axis, (title, curves) in zip(axes[0], panels.items(), strict=True):
            for number, (label, gains) in enumerate(curves.items()):
                for success, line, outcome in ((True, "-", "successes"), (False, "--", "failures")):
                    points = _points([gain for gain in gains if gain.success == success])
                    axis.errorbar(
                        *points,
                        label=f"{label}, {outcome}",
                        color=f"C{number}",
                        linestyle=line,
                        marker="o",
                        markersize=3,
                        capsize=2,
                    )
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.set_title(title, fontsize="small", wrap=True)
            axis.set_xlabel("turn")
            axis.set_ylabel("cumulative information gain")
            axis.grid(alpha=0.3)
            axis.legend(fontsize="x-small")
        with writing(file):
            figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _panels(studies: Sequence[Study]) -> dict[str, dict[str, list[Gain]]]:
    """Curves by panel and label."""
    chains = [study for study in studies if not study.policy.guided]
    steps = {study.policy.step for study in chains}
    panels: dict[str, dict[str, list[Gain]]] = {}
    for study in studies:
        policy = study.policy
        if policy.guided:
            labels = dict.fromkeys(gain.steps for gain in study.gains)
            panels[policy_title(policy)] = {
                label: [gain for gain in study.gains if gain.steps == label] for label in labels
            }
        else:
            # Checkpoints of one run differ in their step; anything else is told by its whole name.
            distinct = len(steps) == len(chains) and policy.step is not None
            label = f"step {policy.step}" if distinct else policy_title(policy)
            panels.setdefault("chains", {})[label] = list(study.gains)
    return panels


def _points(curve: Sequence[Gain]) -> tuple[list[int], list[float], list[list[float]]]:
    """Turns, means, and the lengths of the whiskers below and above."""
    whole = [
        (gain.turn, gain.gain.value, gain.gain.low, gain.gain.high)
        for gain in curve
        if gain.gain.value is not None and gain.gain.low is not None and gain.gain.high is not None
    ]
    # A percentile interval need not hold the mean itself.
    below = [max(0.0, value - low) for _, value, low, _ in whole]
    above = [max(0.0, high - value) for _, value, _, high in whole]
    return [turn for turn, *_ in whole], [value for _, value, *_ in whole], [below, above]
