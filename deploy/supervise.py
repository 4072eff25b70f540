"""supervisord, out of whose environment no other process of its user can read: it hands the gateway's secrets on."""

import ctypes
import sys

from supervisor.supervisord import main

PR_SET_DUMPABLE = 4

if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    main()
