"""command: `igrpo-eval run` -> records, a summary and a table; `igrpo-eval report` -> tables of one or two of them.

Source: ours.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console

from igrpo_train.errors import run_command

HELP: Final = """\
igrpo-eval run RECIPE.toml [MORE.toml ...] --out FOLDER [--key value ...]   answer questions and grade the answers
igrpo-eval report FOLDER [FOLDER] [--force] [--json FILE]                   tables; of two folders, their difference
igrpo-eval run --help lists the keys.
"""


def main(args: Sequence[str] | None = None) -> None:
    """Answer a command line; errors that a person can put right end with code 2."""
    words = sys.argv[1:] if args is None else list(args)
    run_command(lambda: _dispatch(words))


def _dispatch(words: Sequence[str]) -> None:
    commands: dict[str, Callable[[Sequence[str]], None]] = {"run": _run, "report": _report}
    if words and words[0] in ("-h", "--help"):
        Console().print(HELP, markup=False, highlight=False, end="")
        return
    if not words or words[0] not in commands:
        given = repr(words[0]) if words else "nothing"
        raise ValueError(f"command must be {' or '.join(commands)}, got {given}: igrpo-eval --help shows their use")
    commands[words[0]](words[1:])


def _run(words: Sequence[str]) -> None:
    from igrpo_eval.run import run
    from igrpo_eval.settings import load_evaluation

    run(load_evaluation(words))


def _report(words: Sequence[str]) -> None:
    import tyro

    from igrpo_eval.reporting import Report, report

    report(tyro.cli(Report, prog="igrpo-eval report", args=list(words), use_underscores=True))


if __name__ == "__main__":
    main()
