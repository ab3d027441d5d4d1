"""progress: finished steps and their figures -> one live line on a terminal, a plain line now and then elsewhere.

Example:
    >>> import io
    >>> from rich.console import Console
    >>> out = io.StringIO()
    >>> with Progress(3, console=Console(file=out, width=80)) as progress:
    ...     progress.update(3, {"reward": 0.5})
    >>> print(out.getvalue().splitlines()[-1].split(" | ")[1])
    reward 0.500
"""

import time
from collections.abc import Callable, Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress

PLAIN_EVERY_S = 30.0
"""Least time between two plain lines."""


class Progress:
    """Shows how far a run is. Use it as a context manager.

    Args:
        steps: steps of the whole run.
        done: steps that were done before, when a run is resumed.
        unit: what a step is called on the line.
        console: where to write; standard error by default.
        clock: seconds, for tests.
    """

    def __init__(
        self,
        steps: int,
        *,
        done: int = 0,
        unit: str = "step",
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps, self._first, self._done, self._unit = steps, done, done, unit
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._start = self._last_line = clock()
        self._figures: dict[str, float] = {}
        self._printed = ""
        self._live = RichProgress(
            BarColumn(bar_width=24), TextColumn("{task.description}", markup=False), console=self._console
        )
        self._task = self._live.add_task(self._line(), total=steps, completed=done)

    def __enter__(self) -> "Progress":
        """Start the live line, or print the first plain one."""
        self._start = self._clock()
        if self._console.is_terminal:
            self._live.start()
        else:
            self._print()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state on the screen, also when the run fails."""
        if self._console.is_terminal:
            self._live.stop()
        elif self._line() != self._printed:
            self._print()

    def update(self, step: int, figures: Mapping[str, float]) -> None:
        """Tell that `step` steps are done, with the figures to show beside the time that is left."""
        self._done, self._figures = step, dict(figures)
        if self._console.is_terminal:
            self._live.update(self._task, completed=step, description=self._line())
        elif self._clock() - self._last_line >= PLAIN_EVERY_S:
            self._print()

    def note(self, text: str) -> None:
        """Print a line of its own at once, above the live line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _print(self) -> None:
        self._last_line = self._clock()
        self._printed = self._line()
        self.note(self._printed)

    def _line(self) -> str:
        parts = [f"{self._unit} {self._done}/{self._steps}"]
        parts += [
            f"{name} {value:,.0f}" if abs(value) >= 100 else f"{name} {value:.3f}"
            for name, value in self._figures.items()
        ]
        passed, finished = self._clock() - self._start, self._done - self._first
        if finished:
            parts.append(f"{_duration(passed / finished * (self._steps - self._done))} left")
        return " | ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
