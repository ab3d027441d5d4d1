"""processes: a launch by torchrun or accelerate -> the processes that share one evaluation.

`torchrun` and `accelerate launch` number their processes; everything else is one process. A question's records depend
on the question alone, so it does not matter which process answers it.
Source: ours.

Example:
    >>> share(Processes(rank=1, size=3), "abcdefg")
    ['b', 'e']
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, TypeVar

from igrpo_train.processes import Processes

_LONGEST_WAIT: Final = timedelta(days=7)
"""Processes finish when their questions are done, which may be hours apart."""

_Item = TypeVar("_Item")


def share(group: Processes, items: Sequence[_Item]) -> list[_Item]:
    """Every `size`-th item from the `rank`-th on: neighbours in a file are alike, so that shares take as long."""
    return list(items[group.rank :: group.size])


def join_processes(device: str) -> Processes:
    """Join the processes of this launch; with accelerators, each takes its own.

    Args:
        device: `model.device`; `cpu`, or a machine without accelerators, talks over the CPU.

    Raises:
        ValueError: the processes that were launched do not find each other.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched <= 1:
        return Processes()
    # Late: one process needs none of them.
    import torch
    from accelerate import PartialState
    from accelerate.utils import gather_object

    from igrpo_train.launch import check_processes

    state = PartialState(cpu=device == "cpu" or not torch.accelerator.is_available(), timeout=_LONGEST_WAIT)
    check_processes(0, state.num_processes, launched)
    return Processes(state.process_index, state.num_processes, exchange=lambda value: gather_object([value]))
