"""A thread for what may take long: it sees that files outlive the machine, and makes few of many small ones."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from service.monitoring.prediction_log.columns import merged
from service.monitoring.prediction_log.folder import LEAST_FILES, LogFile, LogFolder, merged_name

logger = logging.getLogger(__name__)

# Of one level: 32 files of half a second are one of 16 s, 32 of these one of nine minutes.
FAN_IN = 32
MOST_MERGED_BYTES = 4 * 1024 * 1024  # of rows without images 200,000, which take 77 MiB of memory meanwhile
# Names that wait for the disk; of more, the oldest are left to the kernel, which writes them half a minute later.
MOST_UNSYNCED = 4096


def due(files: Iterable[LogFile], most_bytes: int) -> Sequence[LogFile]:
    """Return files of one writer that are to become one, as long as that has at most so many bytes; maybe none.

    They follow each other and have been merged as often, so that a row is copied once for each level.
    """
    group: list[LogFile] = []
    for file in sorted(files, key=lambda each: (each.kind, each.first)):
        if file.num_bytes * 2 > most_bytes:
            group = []  # large enough
            continue
        if group and (file.kind, _level(file)) != (group[0].kind, _level(group[0])):
            group = []
        if sum(each.num_bytes for each in group) + file.num_bytes > most_bytes:
            return group
        group.append(file)
        if len(group) == FAN_IN:
            return group
    return ()


def _level(file: LogFile) -> int:
    level, num_parts = 0, file.num_parts
    while num_parts >= FAN_IN:
        level, num_parts = level + 1, num_parts // FAN_IN
    return level


class Merger:
    """Syncs one writer's files, and merges them whenever it has written a number of them."""

    def __init__(self, folder: LogFolder, writer: str, max_bytes: int) -> None:
        self._folder = folder
        self._writer = writer
        self._most_bytes = min(MOST_MERGED_BYTES, max_bytes // LEAST_FILES)
        self._wanted = threading.Event()
        self._is_closing = False
        self._unsynced: deque[str] = deque(maxlen=MOST_UNSYNCED)
        self._num_unmerged = 0
        self._thread = threading.Thread(target=self._run, name="prediction-log-merger", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def written(self, name: str) -> None:
        """Take in that there is another file."""
        self._unsynced.append(name)
        self._wanted.set()

    def close(self, seconds: float) -> None:
        """Stop after what is going on, if that ends within so many seconds."""
        self._is_closing = True
        self._wanted.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            logger.error("the prediction log's last files may not outlive the machine: its disk takes too long")

    def _run(self) -> None:
        try:
            self._heed(self._recover)
            while not self._is_closing:
                self._wanted.wait()
                self._wanted.clear()
                self._heed(self._sync)
                if self._num_unmerged >= FAN_IN:
                    self._num_unmerged = 0
                    self._heed(self._merge_all)
            self._heed(self._sync)
        except BaseException:
            logger.exception("files of the prediction log are neither synced nor merged any more")
            raise

    def _heed(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (FileNotFoundError, NotADirectoryError):
            pass  # no folder, no files
        except OSError as error:
            logger.warning("files of the prediction log stay unmerged, or may not outlive the machine: %s", error)

    def _recover(self) -> None:
        """Clear up after gateways and machines that died."""
        if num_torn := self._folder.delete_torn():
            logger.warning("%d files of the prediction log had no end, as after a power failure: deleted", num_torn)
        self._folder.tidy()

    def _sync(self) -> None:
        names = [self._unsynced.popleft() for _ in range(len(self._unsynced))]
        self._num_unmerged += len(names)
        if names:
            self._folder.sync(names)

    def _merge_all(self) -> None:
        self._folder.tidy()  # of two that have the same rows, the wrong one would be merged
        while not self._is_closing and self._merge():
            pass

    def _merge(self) -> bool:
        """Merge some files; return whether there were any."""
        group = due([file for file in self._folder.files() if file.writer == self._writer], self._most_bytes)
        if not group:
            return False
        try:
            content = merged(self._folder.path / file.name for file in group)
        except FileNotFoundError:
            return True  # it was the oldest, and there was no room for it any more
        name = merged_name(group)
        self._folder.place(name, content.data)
        try:
            self._folder.sync([name])
        except OSError:
            self._folder.withdraw(name)
            raise
        self._folder.tidy()
        return True
