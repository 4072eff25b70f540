"""Files of the settings that are read again when they change: certificates, keys, clients."""

import asyncio
import contextlib
from pathlib import Path

LOOK_SECONDS = 1.0


class FileWatch:
    """Looks at files once a second. Make it before they are read: then it sees each change after that."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = self._look()
        self.asked = asyncio.Event()  # set it to have them read now

    async def until_changed(self) -> None:
        """Return when the files have changed since the last return, or when asked."""
        last = self._seen
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.asked.wait(), LOOK_SECONDS)
            found = await asyncio.to_thread(self._look)
            # Files are seldom written at one instant, so a change must have settled for one look.
            if self.asked.is_set() or found == last != self._seen:
                self.asked.clear()
                self._seen = found
                return
            last = found

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(map(_state, self._paths))


def _state(path: Path) -> tuple[int, int, int]:
    """Return inode, time of the last change and size; zeros if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return found.st_ino, found.st_mtime_ns, found.st_size
