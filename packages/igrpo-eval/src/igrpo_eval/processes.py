"""processes: a launch by torchrun or accelerate -> this process's share of the questions.

In: the environment that a launcher sets. Out: which process this is, its questions, and meeting points.
Every process writes a part file of its own; the main one merges. What is drawn for a question depends on its id, so
records do not depend on how many processes share the work, but for the last bits of probabilities.
Source: ours; process groups by accelerate.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

_Item = TypeVar("_Item")
_LONGEST_WAIT: Final = timedelta(days=7)
"""How long a process waits for the slowest one at the end."""


class Processes:
    """The processes that share one evaluation.

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

            self._state = PartialState(cpu=cpu, timeout=_LONGEST_WAIT)

    @property
    def main(self) -> bool:
        """Whether this process opens folders, merges and reports."""
        return self.number == 0

    def share(self, items: Sequence[_Item]) -> list[_Item]:
        """Every `count`-th item: long and short questions spread evenly.

        Example:
            >>> Processes().share("abc")
            ['a', 'b', 'c']
        """
        return list(items[self.number :: self.count])

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
