"""The prediction log on disk: few files, whole at every moment, within their bound, nothing lost or twice."""

import contextlib
import errno
import hashlib
import os
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from service.domain.backend import Ranking
from service.monitoring.prediction_log import folder as folders
from service.monitoring.prediction_log import merging
from service.monitoring.prediction_log.folder import LogFile, LogFolder, file_name, superseded
from service.monitoring.prediction_log.log import ParquetLog
from service.telemetry.metrics import Metrics
from tests.service.monitoring.test_prediction_log import CLASSES, TARGET, outcome, put, rows

MAX_BYTES = 2**20


def test_the_bound_is_kept_while_files_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.monitoring.prediction_log.log.GATHER_SECONDS", 0.001)
    metrics, folder = Metrics(), tmp_path / "log"
    folder.mkdir()
    log = ParquetLog(folder, MAX_BYTES, 1, "none", metrics)
    log.start()
    most, names = 0, set[str]()
    ids: list[str] = []
    deadline = time.monotonic() + 120
    while outcome(metrics, "written") < 60_000:
        assert time.monotonic() < deadline
        if len(ids) - outcome(metrics, "written") < 2000:
            for _ in range(100):
                ids.append(hashlib.sha256(b"%d" % len(ids)).hexdigest())  # as hard to compress as real ones
                log.answered(ids[-1], TARGET, CLASSES, [Ranking([(1, 0.5)])], 0.01, ())
        here = list(folder.iterdir())
        names |= {path.name for path in here}
        most = max(most, sum(_size(path) for path in here))
        if found := max((path for path in here if path.suffix == ".parquet"), default=None):
            with contextlib.suppress(FileNotFoundError), pq.ParquetFile(found) as file:  # whole at every moment
                assert file.metadata.num_rows
    log.close()
    assert outcome(metrics, "failed") == outcome(metrics, "dropped") == 0
    assert MAX_BYTES / 2 < most <= MAX_BYTES
    merges = [name for name in names if (match := folders.NAME.fullmatch(name)) and match[4] != match[5]]
    assert merges, "nothing was merged"
    kept = [row["id"] for row in rows(folder, "predictions")]
    # What is left is the end, without a gap and each row once; what was first is gone.
    assert 0 < len(kept) < len(ids)
    assert kept == ids[-len(kept) :]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_many_small_files_become_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "FAN_IN", 4)
    monkeypatch.setattr("service.monitoring.prediction_log.log.GATHER_SECONDS", 0)
    metrics, folder = Metrics(), tmp_path / "log"
    log = ParquetLog(folder, 2**30, 1, "none", metrics)
    log.start()
    write_one_by_one(log, metrics, 0, 100)
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*.parquet"))) > 12:  # three levels of at most three, and those of one merge
        assert time.monotonic() < deadline
        time.sleep(0.01)
    log.close()
    assert [int(row["id"], 16) for row in rows(folder, "predictions")] == list(range(100))


def write_one_by_one(log: ParquetLog, metrics: Metrics, begin: int, end: int) -> None:
    """Have a file written for each of some answers."""
    deadline = time.monotonic() + 60
    for number in range(begin, end):
        put(log, number)
        while outcome(metrics, "written") <= number:
            assert time.monotonic() < deadline
            time.sleep(0.0005)


def test_what_was_merged_goes_once_the_disk_has_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, are_whole, failed = os.fsync, list[bool](), list[str]()

    def fails_once(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        here = LogFolder(tmp_path, 1).files()
        for each in here:
            if each.name == name and each.num_parts > 1:
                parts = [file for file in here if each.first <= file.first <= file.last <= each.last and file != each]
                are_whole.append(sum(file.num_parts for file in parts) == each.num_parts)
                if len(are_whole) == 1:
                    failed.append(name)
                    raise OSError(errno.EIO, "the disk is ill")
        sync(descriptor)

    monkeypatch.setattr("os.fsync", fails_once)
    monkeypatch.setattr(merging, "FAN_IN", 4)
    monkeypatch.setattr("service.monitoring.prediction_log.log.GATHER_SECONDS", 0)
    metrics = Metrics()
    log = ParquetLog(tmp_path, 2**30, 1, "none", metrics)
    log.start()
    deadline = time.monotonic() + 60
    try:
        # No more than are merged once: the next merge would have the same name.
        write_one_by_one(log, metrics, 0, 4)
        while not are_whole:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        while (tmp_path / failed[0]).exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        write_one_by_one(log, metrics, 4, 40)
        while len(list(tmp_path.glob("*.parquet"))) > 10:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        log.close()
    assert len(are_whole) > 8
    assert all(are_whole)
    assert [int(row["id"], 16) for row in rows(tmp_path, "predictions")] == list(range(40))


def test_what_a_dead_writer_left_is_tidied_up(tmp_path: Path) -> None:
    folder = LogFolder(tmp_path, 2**20)
    for name in (_name(1, 1), _name(2, 2), _name(1, 3), _name(4, 4), _name(4, 4, "bbbbbbbb")):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / ".predictions-x.parquet.partial").write_bytes(b"x")
    (tmp_path / "notes.txt").write_bytes(b"x")
    folder.tidy()
    folder.place(_name(5, 5), memoryview(b"x"))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {_name(1, 3), _name(4, 4), _name(5, 5), _name(4, 4, "bbbbbbbb"), "notes.txt", ".lock"}


def test_what_a_dead_machine_left_is_found_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, content in enumerate((b"", b"PAR1 and no end", b"PAR1 and an end PAR1"), 1):
        (tmp_path / _name(number, number)).write_bytes(content)
    log = ParquetLog(tmp_path, MAX_BYTES, 1, "none", Metrics())
    log.start()
    log.close()
    assert [path.name for path in tmp_path.glob("*.parquet")] == [_name(3, 3)]
    assert [each.getMessage()[:2] for each in caplog.records] == ["2 "]


def test_a_disk_that_takes_its_time_keeps_no_row_from_its_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, may_sync, synced = os.fsync, threading.Event(), set[str]()

    def slowly(descriptor: int) -> None:
        may_sync.wait(60)
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    monkeypatch.setattr("os.fsync", slowly)
    monkeypatch.setattr("service.monitoring.prediction_log.log.GATHER_SECONDS", 0)
    metrics = Metrics()
    log = ParquetLog(tmp_path, MAX_BYTES, 1, "none", metrics)
    log.start()
    try:
        for number in range(3):
            write_one_by_one(log, metrics, number, number + 1)
            assert [int(row["id"], 16) for row in rows(tmp_path, "predictions")] == list(range(number + 1))
        assert not synced
    finally:
        may_sync.set()
        log.close()
    assert synced == {tmp_path.name, *(path.name for path in tmp_path.glob("*.parquet"))}


def _name(first: int, last: int, writer: str = "aaaaaaaa") -> str:
    return f"predictions-20260101T000000000Z-{writer}-{first:08d}-{last:08d}.parquet"


def test_merging_never_spans_what_it_leaves_out() -> None:
    sizes = [1, 1, 70, 1, 1, 1, 30, 30, 45, 1]
    name = file_name("predictions", 0, "aaaaaaaa", 1)
    files = [LogFile(name, size, "predictions", "", "aaaaaaaa", n, n) for n, size in enumerate(sizes)]
    for end in range(len(files)):
        group = merging.due(files[:end], 100)
        assert not list(superseded(files[:end]))
        if group:
            span = files[group[0].first : group[-1].last + 1]
            assert list(group) == span
            assert len(group) >= 2
            assert sum(file.num_bytes for file in group) <= 100
    assert [file.first for file in merging.due(files, 100)] == [3, 4, 5, 6, 7]
