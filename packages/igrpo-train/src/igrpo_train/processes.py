"""processes: a launch by torchrun or accelerate -> which share of the work is this process's, and how they agree.

In: the environment that a launcher sets. Out: shares, gathered objects, decisions that all processes make alike.
Source: ours; process groups by accelerate. Loads no torch where there is one process.

Example:
    >>> Processes().span(5), Processes().gather(["a"]), Processes().any(True)
    (slice(0, 5, None), ['a'], True)
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

_Item = TypeVar("_Item")

LONGEST_WAIT: Final = timedelta(hours=12)
"""How long a process waits for the slowest one: trees and validations differ in length."""


class Processes:
    """The processes that share one run; each calls every method in the same order.

    Args:
        cpu: whether they run on CPUs.
    """

    def __init__(self, *, cpu: bool = False) -> None:
        self.number = int(os.environ.get("RANK", "0"))
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self._state: Any = None
        if self.count > 1:
            # Late: it brings torch.
            from accelerate import PartialState

            self._state = PartialState(cpu=cpu, timeout=LONGEST_WAIT)

    @property
    def main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.number == 0

    def span(self, num_items: int) -> slice:
        """This process's items of so many, consecutive and as even as can be; possibly none.

        Example:
            >>> two = Processes()
            >>> two.number, two.count = 1, 2
            >>> two.span(5), two.span(1)
            (slice(2, 5, None), slice(0, 1, None))
        """
        return slice(self.number * num_items // self.count, (self.number + 1) * num_items // self.count)

    def gather(self, items: Sequence[_Item]) -> list[_Item]:
        """The items of all processes, by process; they travel pickled."""
        if self._state is None:
            return list(items)
        from accelerate.utils import gather_object

        return list(gather_object(list(items)))

    def any(self, flag: bool) -> bool:
        """Whether any process says so: a decision that all of them make alike."""
        return any(self.gather([flag]))

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Let the main process run the block before the others."""
        if self._state is None:
            yield
            return
        with self._state.main_process_first():
            yield

    def meet(self) -> None:
        """Wait for all processes."""
        if self._state is not None:
            self._state.wait_for_everyone()

    def leave(self) -> None:
        """Take the process group down."""
        if self._state is not None:
            self._state.destroy_process_group()


def check_count(expected: int) -> None:
    """Refuse another number of processes than `run.processes` asks for, before anything is loaded.

    Raises:
        ValueError: says how to start them.

    Example:
        >>> check_count(0), check_count(1)
        (None, None)
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if expected not in (0, count):
        raise ValueError(
            f"run.processes must be the number that was launched, got {expected} and {count}: use torchrun "
            f"--nproc-per-node {expected} -m igrpo_train ... on CPUs, where accelerate launch starts one process "
            f"only, or accelerate launch --num_processes {expected} on GPUs; run.processes = 0 takes any number"
        )
