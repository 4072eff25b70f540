"""Ctrl-C, SIGTERM and the end of the terminal, kept until the loop is at a place from which it can go on later."""

import os
import signal
import threading
from types import FrameType, TracebackType

from training.errors import HungUp, Interrupted, Terminated

SIGNALS: dict[signal.Signals, type[Interrupted]] = {
    signal.SIGINT: Interrupted,
    signal.SIGTERM: Terminated,
    signal.SIGHUP: HungUp,
}

LAUNCHED = "TORCHGATE_TRAINING_LAUNCHED"
"""Set for processes that a command has started, which tells their errors and ends with them: its process id."""


class Interruption:
    """Inside, the first signal is remembered; the second does what it always did, for those who cannot wait.

    Outside the main thread, where Python does not allow handlers, signals stay what they are. That the command which
    started this process is gone counts as a signal, too: it was killed, and nobody else would stop what it has begun.
    """

    def __init__(self) -> None:
        self._signalled: type[Interrupted] | None = None
        self._launcher = os.environ.get(LAUNCHED)
        self.before: dict[signal.Signals, object] = {}

    @property
    def error(self) -> type[Interrupted] | None:
        """Why to stop, if there is a reason."""
        if self._signalled is None and self._launcher not in (None, str(os.getppid())):
            return Terminated
        return self._signalled

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self.before = {each: signal.signal(each, self._remember) for each in heeded()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def _remember(self, number: int, _: FrameType | None) -> None:
        self._signalled = SIGNALS[signal.Signals(number)]
        self._restore()

    def _restore(self) -> None:
        for each, handler in self.before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]
        self.before = {}


def heeded() -> list[signal.Signals]:
    """Return the signals that stop training: under nohup, the end of the terminal does not."""
    return [each for each in SIGNALS if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
