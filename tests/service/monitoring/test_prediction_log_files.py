"""The prediction log on disk: complete files, within their bound, nothing lost or written twice."""

import errno
import hashlib
import os
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from service.monitoring.prediction_log.folder import LogFolder, file_name
from service.monitoring.prediction_log.log import MOST_FILE_ROWS, ParquetLog
from service.telemetry.metrics import Metrics
from tests.service.monitoring.test_prediction_log import outcome, put, rows

MAX_BYTES = 2**20


def until_written(metrics: Metrics, num_rows: int) -> None:
    deadline = time.monotonic() + 60
    while outcome(metrics, "written") < num_rows:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_oldest_files_go_beyond_the_bound(tmp_path: Path) -> None:
    metrics, folder = Metrics(), tmp_path / "log"
    log = ParquetLog(folder, MAX_BYTES, 1, "image", metrics)
    log.start()
    image = os.urandom(MAX_BYTES // 16)  # as much as a file holds, so each one becomes a file at once
    sizes = []
    for number in range(40):
        put(log, number, images=(image,))
        until_written(metrics, number + 1)
        sizes.append(sum(path.stat().st_size for path in folder.iterdir()))
    log.close()
    assert outcome(metrics, "failed") == outcome(metrics, "dropped") == 0
    assert MAX_BYTES / 2 < max(sizes) <= MAX_BYTES
    kept = [int(row["id"], 16) for row in rows(folder, "predictions")]
    assert 10 < len(kept) < 16
    assert kept == list(range(40))[-len(kept) :]  # the end, without a gap, each row once


def test_a_file_is_written_as_soon_as_it_is_full(tmp_path: Path) -> None:
    metrics = Metrics()
    log = ParquetLog(tmp_path, 2**30, 1, "none", metrics)
    log.start()
    for number in range(MOST_FILE_ROWS):
        put(log, number)
    until_written(metrics, MOST_FILE_ROWS)  # long before the minute is over
    put(log, MOST_FILE_ROWS)
    log.close()
    assert [int(row["id"], 16) for row in rows(tmp_path, "predictions")] == list(range(MOST_FILE_ROWS + 1))
    assert len(list(tmp_path.glob("*.parquet"))) <= 4


def test_a_file_has_its_name_once_the_disk_has_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, seen = os.fsync, list[str]()

    def observe(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        assert not list(tmp_path.glob("*.parquet"))
        with pq.ParquetFile(path) as file:
            assert file.metadata.num_rows == 1
        seen.append(path.name)
        sync(descriptor)

    monkeypatch.setattr("os.fsync", observe)
    log = ParquetLog(tmp_path, MAX_BYTES, 1, "none", Metrics())
    log.start()
    put(log, 1)
    log.close()
    assert len(rows(tmp_path, "predictions")) == len(seen) == 1
    assert [f".{path.name}.partial" for path in tmp_path.iterdir()] == seen


def test_a_disk_that_fails_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk is ill")

    monkeypatch.setattr("os.fsync", fail)
    metrics = Metrics()
    log = ParquetLog(tmp_path, MAX_BYTES, 1, "none", metrics)
    log.start()
    put(log, 1)
    log.close()
    assert outcome(metrics, "failed") == 1
    assert not list(tmp_path.iterdir())


def test_partial_files_of_killed_gateways_count_and_go_in_their_turn(tmp_path: Path) -> None:
    folder = LogFolder(tmp_path, 100)
    names = [file_name("predictions", at, writer, 1) for at, writer in ((10, "a" * 8), (20, "b" * 8), (30, "a" * 8))]
    (tmp_path / f".{names[0]}.partial").write_bytes(bytes(40))
    (tmp_path / "notes.txt").write_bytes(bytes(1000))  # somebody else's
    folder.place(names[1], memoryview(bytes(60)))
    assert {path.name for path in tmp_path.iterdir()} == {f".{names[0]}.partial", names[1], "notes.txt"}
    folder.place(names[2], memoryview(bytes(40)))
    assert {path.name for path in tmp_path.iterdir()} == {names[1], names[2], "notes.txt"}
    with pytest.raises(OSError, match="more than the whole log"):
        folder.place(names[0], memoryview(bytes(101)))


def test_files_sort_by_time() -> None:
    times = [1e9, 1e9 + 0.001, 1e9 + 1, 1.7e9]
    names = [file_name("feedback", at, hashlib.sha256(b"%d" % n).hexdigest()[:8], 1) for n, at in enumerate(times)]
    assert names == sorted(names)
