"""How one of several processes ends once its work is done."""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

_early = threading.Event()


def leave_early() -> None:
    """Have this process, if it is inside `leave_after`, end before the interpreter takes itself down.

    Gloo's threads may still let go of tensors by then, which takes the interpreter's lock. Before 3.14 Python ends
    threads that ask for it so late, and in C++ that aborts a process whose work is done: PyTorch's issue 190489.
    """
    _early.set()


def leave_after(main: Callable[[], int]) -> NoReturn:
    """Call `main` and end the process with its status, or as an exception has it.

    To be called before anything is imported that has work of its own to do at the end: what is registered with atexit
    before this is not called in a process that leaves early.
    """
    status = 1  # of an exception

    def leave() -> None:
        if not _early.is_set():
            return
        try:
            sys.stderr.flush()
            sys.stdout.flush()  # into a pipe that may be closed
        finally:
            os._exit(status)

    # The first to be registered is the last to be called.
    atexit.register(leave)
    try:
        status = main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    sys.exit(status)
