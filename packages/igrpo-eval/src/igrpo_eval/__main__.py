"""command: `igrpo-eval COMMAND ...` -> what that command does.

Source: ours.
"""

import difflib
import sys
from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console

from igrpo_train.errors import run_command


def main(args: Sequence[str] | None = None) -> None:
    """Answer a command line; errors that a person can put right end with code 2."""
    words = sys.argv[1:] if args is None else list(args)
    run_command(lambda: _dispatch(words))


def _dispatch(words: Sequence[str]) -> None:
    if words and words[0] in ("-h", "--help"):
        usage = "\n".join(f"  {line}" for line, _ in _COMMANDS.values())
        Console().print(f"usage:\n{usage}\nigrpo-eval COMMAND --help lists the flags.", markup=False, highlight=False)
        return
    if not words or words[0] not in _COMMANDS:
        given = repr(words[0]) if words else "nothing"
        near = difflib.get_close_matches(words[0], _COMMANDS, n=1) if words else []
        remedy = f"did you mean {near[0]}?" if near else "igrpo-eval --help says what each does"
        raise ValueError(f"command must be one of {', '.join(_COMMANDS)}, got {given}: {remedy}")
    _COMMANDS[words[0]][1](words[1:])


def _run(args: Sequence[str]) -> None:
    from igrpo_eval.run import run
    from igrpo_eval.settings import load_evaluation

    run(load_evaluation(args))


def _report(args: Sequence[str]) -> None:
    from igrpo_eval.reporting import load_report, show_report

    show_report(load_report(args))


def _correlate(args: Sequence[str]) -> None:
    from igrpo_eval.correlate import correlate, load_correlation

    correlate(load_correlation(args))


_COMMANDS: Final[dict[str, tuple[str, Callable[[Sequence[str]], None]]]] = {
    "run": ("igrpo-eval run RECIPE.toml [MORE.toml ...] --out FOLDER [--key value ...]", _run),
    "report": ("igrpo-eval report FOLDER [FOLDER ...] [--force] [--json] [--pass_k K ...]", _report),
    "correlate": ("igrpo-eval correlate FOLDER [FOLDER ...] [--key value ...]", _correlate),
}
"""One line of usage each, and what answers the words after the command's name; imports are late."""


if __name__ == "__main__":
    main()
