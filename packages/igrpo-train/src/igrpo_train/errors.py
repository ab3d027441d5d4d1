"""errors: what a person must put right outside the recipe -> one exception a kind, shown without a traceback."""

import logging
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)


class MissingExtra(ImportError):
    """An optional dependency is not installed; the message ends with the command that installs it.

    Example:
        >>> raise MissingExtra("pyarrow", "to read .parquet files", "pip install 'igrpo-train[parquet]'")
        Traceback (most recent call last):
        igrpo_train.errors.MissingExtra: pyarrow is needed to read .parquet files: pip install 'igrpo-train[parquet]'
    """

    def __init__(self, package: str, purpose: str, command: str) -> None:
        super().__init__(f"{package} is needed {purpose}: {command}")


class DiskError(OSError):
    """A file of the run could not be written; the message says which, why and how to go on."""

    peer: int | None = None
    """Rank of the process that met it, where it was another one."""


class EngineError(TimeoutError):
    """The engine that samples did not answer in time; the message says after how long, and what to do."""


class NonFiniteError(ArithmeticError):
    """Too many optimiser steps in a row had a loss or gradient that is not finite; the message says how to go on."""


class RetrieverError(ConnectionError):
    """A retriever did not answer, or answered what is no list of passages; the message says which, and what to do."""


_FOR_PEOPLE: Final = (
    ValueError,
    FileNotFoundError,
    FileExistsError,
    MissingExtra,
    DiskError,
    EngineError,
    NonFiniteError,
    RetrieverError,
)


def run_command(command: Callable[[], object]) -> None:
    """Run what a command line asks for; errors that a person can put right are shown in a panel, others are bugs.

    Args:
        command: the work; of its errors, those listed above are for people.

    Raises:
        SystemExit: code 2 after such an error, 130 after an interrupt.

    Example:
        >>> run_command(lambda: None)
    """
    try:
        command()
    except _FOR_PEOPLE as error:
        logger.debug("traceback of the error below", exc_info=True)
        # An error of another process is shown there.
        if getattr(error, "peer", None) is None:
            _show(str(error))
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _show(message: str) -> None:
    # Late: rich is needed only when something goes wrong.
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    # Text, not markup: square brackets of a message are to be seen.
    Console(stderr=True).print(Panel(Text(message), title="Error", title_align="left", border_style="red"))
