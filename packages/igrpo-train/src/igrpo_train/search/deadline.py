"""deadline: a call and its longest time -> its result, or an error when it takes longer.

An alarm of the operating system interrupts the call wherever Python runs or waits. A call that never comes back to
Python, in a kernel or a collective, cannot be interrupted; a timer that does not need Python then ends the process.
"""

import faulthandler
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from igrpo_train.errors import EngineError

GRACE_S: Final = 60.0
"""What a call has, beyond its time, to come back to Python."""


@contextmanager
def deadline(timeout_s: float, setting: str, *, grace_s: float = GRACE_S) -> Iterator[None]:
    """Interrupt a block that takes too long.

    Only the main thread of a process can be interrupted; in others the process ends after time and grace.

    Args:
        timeout_s: longest time, in seconds by the clock; 0 is none.
        setting: names the limit in the message.
        grace_s: when this has passed too, the stacks of all threads go to standard error and the process ends with
            code 1. Nothing can be saved then: what is lost is what came after the last checkpoint.

    Raises:
        EngineError: the time is over.

    Example:
        >>> import time
        >>> with deadline(0.01, "sampling.timeout_s"):
        ...     time.sleep(10)
        Traceback (most recent call last):
        igrpo_train.errors.EngineError: the engine must answer within sampling.timeout_s = 0.01 seconds, got no ...
    """
    if not timeout_s:
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise EngineError(
            f"the engine must answer within {setting} = {timeout_s:g} seconds, got no answer: find out what holds it "
            f"up, or raise {setting}, then go on with --resume"
        )

    faulthandler.dump_traceback_later(timeout_s + grace_s, exit=True, file=sys.__stderr__ or sys.stderr)
    interrupts = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGALRM, ring) if interrupts else None
    try:
        try:
            if interrupts:
                signal.setitimer(signal.ITIMER_REAL, timeout_s)
            yield
        finally:
            if interrupts:
                signal.setitimer(signal.ITIMER_REAL, 0)
    # Apart: an alarm that rings at the end of the block must not leave the other timer running.
    finally:
        if interrupts:
            signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()
