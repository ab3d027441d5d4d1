"""processes: one launch -> its share of a list, what all have, and what all do together.

Every method but `share` is called by all processes in the same order. An error that one of them meets in `together`,
`each` or `main` is raised by all, so that nobody waits for a process that is gone.

Example:
    >>> alone = Processes()
    >>> alone.share(3), alone.gather("rows"), alone.any(False)
    (slice(0, 3, None), ['rows'], False)
"""

import logging
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

Result = TypeVar("Result")


class Processes:
    """The processes that train one policy.

    Args:
        rank: number of this one, from 0.
        size: how many there are.
        exchange: one value of this process -> those of all, by rank.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, exchange: Callable[[Any], list[Any]] = lambda value: [value]
    ) -> None:
        self.rank, self.size, self._exchange = rank, size, exchange

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run folder and talks to the terminal."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This process's part of `count` things: consecutive ones, shares differ by at most one and may be empty.

        Example:
            >>> [Processes(rank, 2).share(3) for rank in range(2)]
            [slice(0, 2, None), slice(2, 3, None)]
        """
        small, larger = divmod(count, self.size)
        start = self.rank * small + min(self.rank, larger)
        return slice(start, start + small + (self.rank < larger))

    def gather(self, value: Result) -> list[Result]:
        """The value of each process."""
        return self._exchange(value)

    def any(self, flag: bool) -> bool:
        """Whether the flag of some process is up; all get the same answer."""
        return any(self.gather(flag))

    def together(self, work: Callable[[], Result]) -> Result:
        """Let each process work, wait for all, and return what the own work gave.

        Raises:
            Exception: what the work of the first failing process raised; on the others its `peer` attribute is that
                process's rank.
        """
        result: Result | None = None
        error: Exception | None = None
        try:
            result = work()
        except Exception as raised:  # it is raised below, here and on every other process
            if self.size == 1:
                raise
            error = raised
        for rank, failure in enumerate(self.gather(_portable(error))):
            if failure is not None and rank == self.rank:
                raise error or failure
            if failure is not None:
                failure.peer = rank
                raise failure
        return cast(Result, result)

    def each(self, work: Callable[[], Result]) -> list[Result]:
        """As `together`, but the results of all are given to all."""
        return self.gather(self.together(work))

    def wait(self) -> None:
        """Return when every process has called it."""
        self.gather(None)

    def finish(self) -> None:
        """Wait for all, then end this process at once, as one that went well; a single process goes on."""
        self.wait()
        if self.size > 1:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            # Everything is written. Taking the group down instead hung 3 runs of 12: gloo waits for who is gone.
            os._exit(0)

    def main(self, work: Callable[[], object]) -> None:
        """Let the main process work while the others wait for its end; its errors are raised by all."""
        self.together(lambda: work() if self.is_main else None)


def _portable(error: Exception | None) -> Any:
    """The error, or one that can be sent to other processes."""
    if error is None:
        return None
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever an exception of somebody else's raises: it cannot be sent
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
