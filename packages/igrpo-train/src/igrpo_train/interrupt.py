"""interrupt: Ctrl-C -> a request to stop after the current step.

torchrun hands an interrupt on as a termination: the first signal of each kind only asks, so that both may come.
"""

import logging
import signal
import threading
from types import FrameType, TracebackType

logger = logging.getLogger(__name__)


class Interrupt:
    """While entered, the first interrupt and the first termination only set `requested`; a second one acts as usual.

    Args:
        message: logged at the first signal; says what happens now.
    """

    def __init__(self, message: str) -> None:
        self.requested = False
        self._message = message
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "Interrupt":
        # Only the main thread may set handlers; elsewhere a signal stops the run at once.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:
            logger.warning("interrupted: %s", self._message)
        self.requested = True
        signal.signal(number, self._previous.pop(number))  # type: ignore[arg-type]

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}
