"""interrupt: Ctrl-C -> a request to stop after the current step."""

import logging
import signal
import threading
from types import FrameType, TracebackType

logger = logging.getLogger(__name__)


class Interrupt:
    """While entered, the first interrupt or termination signal only sets `requested`; the second acts as usual.

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
        self.requested = True
        logger.warning("interrupted: %s", self._message)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}
