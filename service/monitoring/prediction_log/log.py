"""The prediction log: requests fill a bounded buffer; a thread writes it as Parquet files.

A file is written every minute, sooner if the buffer holds a file's worth, and at shutdown. A gateway that is killed
loses its buffer. Requests never wait: what does not fit into the buffer is dropped, what cannot be written is lost, and
both are counted.
"""

import logging
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Literal

from service.domain.backend import Target
from service.monitoring.prediction_log.folder import LEAST_FILES, Kind, LogFolder, file_name
from service.monitoring.prediction_log.parquet import Content, labels, predictions, warm_up
from service.monitoring.prediction_log.records import Answered, Images, Labelled
from service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

Inputs = Literal["none", "hash", "image"]
ROTATE_SECONDS = 60
# The buffer holds four files' worth, so that requests are still taken while a slow disk writes one.
MOST_ROWS = 65_536
MOST_INPUT_BYTES = 64 * 1024 * 1024
MOST_FILE_ROWS = MOST_ROWS // 4
MOST_FILE_BYTES = MOST_INPUT_BYTES // 4
CLOSE_SECONDS = 5


class ParquetLog:
    """Writes a share of the answered requests, and all feedback, into a folder of bounded size."""

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        sample: float,
        inputs: Inputs,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.keeps_inputs = inputs != "none"
        self._sample = sample
        self._most_file_bytes = min(MOST_FILE_BYTES, max_bytes // LEAST_FILES)
        self._with_images = inputs == "image"
        self._clock = clock
        self._random = random.Random()  # noqa: S311 - a choice of samples is no secret
        self._writer = secrets.token_hex(4)
        self._folder = LogFolder(folder, max_bytes)
        self._numbers = count(1)
        outcomes = metrics.prediction_log_records
        self._written, self._dropped, self._failed = map(outcomes.labels, ("written", "dropped", "failed"))
        self._records: deque[Answered | Labelled] = deque()
        # The event loop alone writes the `_in` counters, the log's thread the `_out` counters: no lock is needed.
        self._num_rows_in = self._num_rows_out = self._num_bytes_in = self._num_bytes_out = 0
        self._is_due = threading.Event()
        self._is_closing = False
        self._num_lost: int | None = None  # since writing began to fail; None while it works
        self._thread = threading.Thread(target=self._run, name="prediction-log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def answered(
        self,
        answer_id: str,
        target: Target,
        classes: Sequence[str],
        results: Sequence[object],
        seconds: float,
        images: Images,
    ) -> None:
        """Record one request, which took `seconds`; `images` are its inputs if the log keeps them."""
        if self._sample < 1 and self._random.random() >= self._sample:
            return
        record = Answered(self._clock(), answer_id, target, classes, results, seconds, images)
        self._keep(record, len(results), _num_bytes(images))

    def labelled(self, answer_id: str, item: int, target: Target, predicted: str, label: str) -> None:
        """Record the true label of one image of an answer."""
        self._keep(Labelled(self._clock(), answer_id, item, target, predicted, label), 1, 0)

    def close(self) -> None:
        """Write the buffer and stop, after a few seconds at the latest. Blocks."""
        self._is_closing = True
        self._is_due.set()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            logger.error("the prediction log's last rows are lost: its disk takes more than %d s", CLOSE_SECONDS)

    def _keep(self, record: Answered | Labelled, num_rows: int, num_bytes: int) -> None:
        """Put a record into the buffer; drop and count it if there is no room. A file's worth wakes the thread."""
        rows_in_all = self._num_rows_in - self._num_rows_out + num_rows
        bytes_in_all = self._num_bytes_in - self._num_bytes_out + num_bytes
        if rows_in_all > MOST_ROWS or bytes_in_all > MOST_INPUT_BYTES:
            self._dropped.inc(num_rows)
            return
        self._num_rows_in += num_rows
        self._num_bytes_in += num_bytes
        self._records.append(record)
        if rows_in_all >= MOST_FILE_ROWS or bytes_in_all >= self._most_file_bytes:
            self._is_due.set()

    # In the log's own thread

    def _run(self) -> None:
        try:
            warm_up()
            while not self._is_closing:
                self._is_due.wait(ROTATE_SECONDS)
                self._is_due.clear()  # before the buffer is read: a record that comes later sets it again
                self._write_buffer()
            self._write_buffer()
        except BaseException:
            logger.exception("the prediction log has stopped; requests go on")
            raise

    def _write_buffer(self) -> None:
        """Write what the buffer holds now; what comes meanwhile is for the next time."""
        num_left = len(self._records)
        while num_left:
            answers: list[Answered] = []
            labelled: list[Labelled] = []
            num_rows = num_bytes = 0
            while num_left and num_rows < MOST_FILE_ROWS and num_bytes < self._most_file_bytes:
                record = self._records.popleft()
                num_left -= 1
                if isinstance(record, Labelled):
                    labelled.append(record)
                    num_rows += 1
                else:
                    answers.append(record)
                    num_rows += len(record.results)
                    num_bytes += _num_bytes(record.images)
            if answers:
                self._place("predictions", answers[0].at, predictions(answers, with_images=self._with_images))
            if labelled:
                self._place("feedback", labelled[0].at, labels(labelled))
            self._num_rows_out += num_rows
            self._num_bytes_out += num_bytes

    def _place(self, kind: Kind, at: float, content: Content) -> None:
        if not content.num_rows:
            return
        try:
            self._folder.place(file_name(kind, at, self._writer, next(self._numbers)), content.data)
        except OSError as error:
            self._failed.inc(content.num_rows)
            if self._num_lost is None:
                self._num_lost = 0
                logger.error("the prediction log cannot be written, and loses rows until it can: %s", error)  # noqa: TRY400 - the reason says it all
            self._num_lost += content.num_rows
            return
        self._written.inc(content.num_rows)
        if self._num_lost is not None:
            logger.warning("the prediction log is written again; %d rows were lost", self._num_lost)
            self._num_lost = None


def _num_bytes(images: Images) -> int:
    return sum([len(image) for image in images if isinstance(image, bytes)])
