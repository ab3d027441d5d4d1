"""test_progress: a live line on a terminal, few plain lines elsewhere, the last state always."""

import io

import pytest
from rich.console import Console

from igrpo_train.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def plain() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=200), out


def test_plain_lines_come_at_the_start_every_half_minute_and_at_the_end() -> None:
    console, out = plain()
    clock = Clock()
    with Progress(10, console=console, clock=clock) as progress:
        for step in range(1, 11):
            clock.now += 12
            progress.update(step, {"reward": step / 10, "tokens/s": 1234.5})
    assert out.getvalue().splitlines() == [
        "step 0/10",
        "step 3/10 | reward 0.300 | tokens/s 1,234 | 1:24 left",
        "step 6/10 | reward 0.600 | tokens/s 1,234 | 0:48 left",
        "step 9/10 | reward 0.900 | tokens/s 1,234 | 0:12 left",
        "step 10/10 | reward 1.000 | tokens/s 1,234 | 0:00 left",
    ]


def test_time_left_counts_only_the_steps_of_this_session() -> None:
    console, out = plain()
    clock = Clock()
    with Progress(100, done=90, console=console, clock=clock) as progress:
        clock.now += 3600
        progress.update(91, {})
    assert out.getvalue().splitlines() == ["step 90/100", "step 91/100 | 9:00:00 left"]


def test_the_last_state_is_shown_when_a_run_fails_and_only_once() -> None:
    console, out = plain()
    with pytest.raises(KeyError), Progress(5, console=console, clock=Clock()) as progress:
        progress.update(2, {"reward": 0.25})
        raise KeyError
    assert out.getvalue().splitlines() == ["step 0/5", "step 2/5 | reward 0.250 | 0:00 left"]


def test_notes_are_printed_at_once_and_as_they_are() -> None:
    console, out = plain()
    with Progress(5, console=console, clock=Clock()) as progress:
        progress.note("validation [bold]0.4[/bold]")
        assert out.getvalue().splitlines()[-1] == "validation [bold]0.4[/bold]"


def test_a_terminal_gets_one_live_line() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with Progress(3, console=console) as progress:
        progress.update(3, {"reward": 0.5})
    assert "step 3/3 | reward 0.500" in out.getvalue()
    assert "step 0/3\n" not in out.getvalue()
