"""processes: a launcher's environment -> which share of the questions is this process's own.

`torchrun` and `accelerate launch` number their processes; everything else is one process. A question's records depend
on the question alone, so it does not matter which process answers it.
Source: ours.

Example:
    >>> Processes(index=1, count=3).share("abcdefg")
    ['b', 'e']
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

_LONGEST_WAIT: Final = timedelta(days=7)
"""Processes finish when their questions are done, which may be hours apart."""

_Item = TypeVar("_Item")


def _alone() -> None:
    """One process waits for nobody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Processes:
    """This process among those of its launch."""

    index: int = 0
    """From 0."""
    count: int = 1
    wait: Callable[[], None] = _alone
    """Returns when every process has called it."""
    leave: Callable[[], None] = _alone
    """Ends the connection to the others; nothing may be asked of them later."""

    @property
    def is_main(self) -> bool:
        """Whether this process makes the folder, merges the parts and shows what there is to see."""
        return self.index == 0

    def share(self, items: Sequence[_Item]) -> list[_Item]:
        """Every `count`-th item from the `index`-th on."""
        return list(items[self.index :: self.count])


def join_processes(device: str) -> Processes:
    """Join the processes of this launch; with accelerators, each takes its own.

    Args:
        device: `model.device`; `cpu`, or a machine without accelerators, talks over the CPU.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return Processes()
    # Late: one process needs neither.
    import torch
    from accelerate import PartialState

    state = PartialState(cpu=device == "cpu" or not torch.accelerator.is_available(), timeout=_LONGEST_WAIT)
    return Processes(
        index=state.process_index,
        count=state.num_processes,
        wait=state.wait_for_everyone,
        leave=state.destroy_process_group,
    )
