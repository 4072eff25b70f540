"""The prediction log: a bounded buffer that requests fill, and a thread that empties it into Parquet files.

The buffer becomes a file of its own half a second after its first record came, so that a gateway that is killed loses
less than the last second; every file is whole under its name. Requests wait for nothing of this: what does not fit into
the buffer is dropped, and what cannot be written is lost, both counted.
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
from service.monitoring.prediction_log.columns import Content, labels, predictions, warm_up
from service.monitoring.prediction_log.folder import LEAST_FILES, Kind, LogFolder, file_name
from service.monitoring.prediction_log.merging import Merger
from service.monitoring.prediction_log.records import Answered, Images, Labelled
from service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

Inputs = Literal["none", "hash", "image"]
GATHER_SECONDS = 0.5
# What the buffer holds: several times what a gateway answers in that time.
MOST_ROWS = 65_536
MOST_INPUT_BYTES = 64 * 1024 * 1024
# What one file holds, so that a record waits for few others while they are written.
MOST_FILE_ROWS = 8192
MOST_FILE_BYTES = 4 * 1024 * 1024
CLOSE_SECONDS = 5


class ParquetLog:
    """Writes a share of what was answered, and all feedback, into a folder of bounded size."""

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
        self._merger = Merger(self._folder, self._writer, max_bytes)
        self._numbers = count(1)
        outcomes = metrics.prediction_log_records
        self._written, self._dropped, self._failed = (
            outcomes.labels(outcome) for outcome in ("written", "dropped", "failed")
        )
        self._answers: deque[Answered] = deque()
        self._labels: deque[Labelled] = deque()
        # Each is written by one thread alone: what came in by the event loop, what went out by the log's own.
        self._num_rows_in = self._num_rows_out = self._num_bytes_in = self._num_bytes_out = 0
        self._some = threading.Event()
        self._now = threading.Event()
        self._is_closing = False
        self._num_lost: int | None = None  # since writing began to fail; None while it does not
        self._thread = threading.Thread(target=self._run, name="prediction-log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()
        self._merger.start()

    def answered(
        self,
        answer_id: str,
        target: Target,
        classes: Sequence[str],
        results: Sequence[object],
        seconds: float,
        images: Images,
    ) -> None:
        """Take one request that was answered in so many seconds; `images` are its inputs if they are wanted."""
        if self._sample < 1 and self._random.random() >= self._sample:
            return
        num_rows = len(results)
        num_bytes = _num_bytes(images) if images else 0
        waiting_bytes = self._num_bytes_in - self._num_bytes_out + num_bytes
        if self._num_rows_in - self._num_rows_out + num_rows > MOST_ROWS or waiting_bytes > MOST_INPUT_BYTES:
            self._dropped.inc(num_rows)
            return
        if waiting_bytes * 2 > MOST_INPUT_BYTES:
            self._now.set()
        self._num_rows_in += num_rows
        self._num_bytes_in += num_bytes
        self._answers.append(Answered(self._clock(), answer_id, target, classes, results, seconds, images))
        if not self._some.is_set():
            self._some.set()

    def labelled(self, answer_id: str, item: int, target: Target, predicted: str, label: str) -> None:
        """Take what one image of an answer really is."""
        if self._num_rows_in - self._num_rows_out >= MOST_ROWS:
            self._dropped.inc()
            return
        self._num_rows_in += 1
        self._labels.append(Labelled(self._clock(), answer_id, item, target, predicted, label))
        self._some.set()

    def close(self) -> None:
        """Write what was taken, and stop, after some seconds anyway. Blocks."""
        self._is_closing = True
        self._some.set()
        self._now.set()
        self._thread.join(CLOSE_SECONDS)
        self._merger.close(CLOSE_SECONDS)
        if self._thread.is_alive():
            logger.error("the prediction log could not be written to its end")

    # In the log's own thread

    def _run(self) -> None:
        try:
            warm_up()
            while not self._is_closing:
                self._some.wait()
                self._now.wait(GATHER_SECONDS)
                # Before the look: who comes after it sets them again.
                self._some.clear()
                self._now.clear()
                self._empty()
            self._empty()
        except BaseException:
            logger.exception("the prediction log has stopped; requests go on")
            raise

    def _empty(self) -> None:
        """Write what waits; what comes meanwhile is gathered for the next time."""
        num_left = len(self._answers)
        while num_left:
            num_left -= self._write_answers(num_left)
        if self._labels:
            waiting = [self._labels.popleft() for _ in range(len(self._labels))]
            self._place("feedback", waiting[0].at, labels(waiting))
            self._num_rows_out += len(waiting)

    def _write_answers(self, at_most: int) -> int:
        """Write a file's worth of answers; return how many it took."""
        taken: list[Answered] = []
        num_rows = num_bytes = 0
        while len(taken) < at_most and num_rows < MOST_FILE_ROWS and num_bytes < self._most_file_bytes:
            answer = self._answers.popleft()
            taken.append(answer)
            num_rows += len(answer.results)
            num_bytes += _num_bytes(answer.images)
        self._place("predictions", taken[0].at, predictions(taken, with_images=self._with_images))
        self._num_rows_out += num_rows
        self._num_bytes_out += num_bytes
        return len(taken)

    def _place(self, kind: Kind, at: float, content: Content) -> None:
        if not content.num_rows:
            return
        name = file_name(kind, at, self._writer, next(self._numbers))
        try:
            self._folder.place(name, content.data)
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
        self._merger.written(name)


def _num_bytes(images: Images) -> int:
    return sum([len(image) for image in images if isinstance(image, bytes)])
