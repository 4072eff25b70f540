"""What other processes of the gateway's user may see of it: handlers are code of others, and run as that user."""

import ctypes
import logging
import os

logger = logging.getLogger(__name__)

PR_SET_DUMPABLE = 4


def hide_from_other_processes() -> None:
    """Keep this process' environment and memory, which hold its secrets, from all but root. There is no core dump then.

    Where the system cannot, the log says so, and all else works.
    """
    try:
        failed = ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0
        reason = os.strerror(ctypes.get_errno())
    except (AttributeError, OSError) as error:  # no Linux
        failed, reason = True, str(error)
    if failed:
        logger.warning(
            "Handlers can read the gateway's secrets (%s); run TorchServe as another user, or in a container.", reason
        )
