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
    """One panel a policy; successes are drawn whole, failures dashed, a colour for each range of training steps.

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

    with plt.rc_context({"svg.hashsalt": "igrpo-eval", "svg.fonttype": "none", "font.size": 9.0}):
        figure, axes = plt.subplots(
            1, len(studies), figsize=(4.6 * len(studies), 3.4), layout="constrained", squeeze=False
        )
        for axis, study in zip(axes[0], studies, strict=True):
            for number, steps in enumerate(dict.fromkeys(gain.steps for gain in study.gains)):
                for success in (True, False):
                    curve = [gain for gain in study.gains if (gain.steps, gain.success) == (steps, success)]
                    style = {"color": f"C{number}", "linestyle": "-" if success else "--", "marker": "o"}
                    label = f"{steps}, {'successes' if success else 'failures'}"
                    axis.errorbar(*_points(curve), label=label, markersize=3, capsize=2, **style)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.set_title(policy_title(study.policy), fontsize="small", wrap=True)
            axis.set_xlabel("turn")
            axis.set_ylabel("cumulative information gain")
            axis.grid(alpha=0.3)
            axis.legend(fontsize="small")
        with writing(file):
            figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)


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
