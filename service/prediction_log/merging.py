"""A thread that makes few files of many: what is written twice a second would fill the folder with small ones."""

import logging
import threading
from collections.abc import Iterable, Sequence

from service.prediction_log.columns import merged
from service.prediction_log.folder import LEAST_FILES, LogFile, LogFolder, merged_name

logger = logging.getLogger(__name__)

# Of one level: 32 files of half a second are one of 16 s, 32 of these one of nine minutes.
FAN_IN = 32
MOST_MERGED_BYTES = 4 * 1024 * 1024  # of rows without images 200,000, which take 77 MiB of memory meanwhile


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
    """Merges one writer's files whenever it has written a number of them."""

    def __init__(self, folder: LogFolder, writer: str, max_bytes: int) -> None:
        self._folder = folder
        self._writer = writer
        self._most_bytes = min(MOST_MERGED_BYTES, max_bytes // LEAST_FILES)
        self._wanted = threading.Event()
        self._is_closing = False
        self._num_written = 0
        self._thread = threading.Thread(target=self._run, name="prediction-log-merger", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def written(self) -> None:
        """Take in that there is another file."""
        self._num_written += 1
        if not self._num_written % FAN_IN:
            self._wanted.set()

    def close(self, seconds: float) -> None:
        """Stop after the merge that is going on, if that ends within so many seconds."""
        self._is_closing = True
        self._wanted.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._is_closing:
            self._wanted.wait()
            self._wanted.clear()
            try:
                while not self._is_closing and self._merge():
                    pass
            except OSError as error:  # what it was made of is still there, and is tried again with the next files
                logger.warning("files of the prediction log stay unmerged for now: %s", error)

    def _merge(self) -> bool:
        """Merge some files; return whether there were any."""
        group = due([file for file in self._folder.files() if file.writer == self._writer], self._most_bytes)
        if not group:
            return False
        try:
            content = merged(self._folder.path / file.name for file in group)
        except FileNotFoundError:
            return True  # it was the oldest, and there was no room for it any more
        self._folder.place(merged_name(group), content.data)
        self._folder.tidy()
        return True
