"""How one of several processes ends once its work is done."""

import atexit
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def leave_after(main: Callable[[], int]) -> NoReturn:
    """Call `main` and end the process with its status, or as an exception has it, but before the interpreter's own end.

    Gloo's threads may still let go of tensors by then, which takes the interpreter's lock. Before 3.14 Python ends
    threads that ask for it so late, and in C++ that aborts a process whose work is done: PyTorch's issue 190489.
    """
    status = 1  # of an exception

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    # The first to be registered is the last to be called: threads, tools and libraries end their work before.
    atexit.register(leave)
    try:
        status = main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    sys.exit(status)
