"""Real worker processes that do not come up, or not in time: what is said, and what is left."""

import asyncio
import sys
import time
from pathlib import Path

import psutil
import pytest

from service.errors.gateway import BackendError, BackendFailed, BackendUnavailable
from tests.odd_archive import FILE, HANDLER, TARGET, write_archive
from tests.service.backends.embedded.odd_workers import SECONDS, ask, make_workers, worker_processes
from tests.stores import as_verified

pytestmark = pytest.mark.anyio

HANGS = "time.sleep(600)"


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


@pytest.mark.parametrize(
    ("at_load", "handler", "words"),
    [
        ("raise RuntimeError('the weights are sour')", HANDLER, "the weights are sour"),
        ("os._exit(7)", HANDLER, "exit status 7"),
        ("print('I see a tunnel'); os.kill(os.getpid(), 11)", HANDLER, "killed by SIGSEGV"),
        ("", "this is no Python", "SyntaxError"),
        ("", "import nothing_that_exists", "nothing_that_exists"),
        (HANGS, HANDLER, "did not answer within 8000 ms"),
    ],
)
async def test_a_load_that_fails_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_load: str, handler: str, words: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    write_archive(tmp_path / FILE, at_load, handler)
    workers = make_workers(tmp_path, load_timeout_seconds=8 if at_load == HANGS else SECONDS)
    await workers.start()
    try:
        with pytest.raises(BackendError, match=words):
            await workers.load(TARGET, as_verified(tmp_path / FILE), 1)
        assert await workers.survey() == {}
        assert worker_processes(tmp_path) == []
        with pytest.raises(BackendUnavailable):
            await ask(workers, "class:1")
    finally:
        await workers.close()


async def test_a_load_that_passes_both_limits_in_one_turn_of_the_loop_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    write_archive(tmp_path / FILE, HANGS)
    workers = make_workers(tmp_path, load_timeout_seconds=3)
    await workers.start()
    loop = asyncio.get_running_loop()
    pids: list[int] = []

    def hold_the_loop() -> None:
        pids.extend(each.pid for each in worker_processes(tmp_path))
        time.sleep(1)

    loop.call_later(2.5, hold_the_loop)  # the worker's own limit began milliseconds after that of the load
    with pytest.raises(BackendError):
        await workers.load(TARGET, as_verified(tmp_path / FILE), 1)
    assert [psutil.pid_exists(pid) for pid in pids] == [False]
    await workers.close()


async def test_a_worker_too_large_for_its_bound_does_not_load(tmp_path: Path) -> None:
    write_archive(tmp_path / FILE)
    workers = make_workers(tmp_path, worker_max_bytes=1_000_000)
    await workers.start()
    with pytest.raises(BackendFailed, match="TORCHGATE_WORKER_MAX_BYTES"):
        await workers.load(TARGET, as_verified(tmp_path / FILE), 1)
    await workers.close()


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    write_archive(tmp_path / FILE)
    workers = make_workers(tmp_path)
    await workers.start()
    loading = asyncio.create_task(workers.load(TARGET, as_verified(tmp_path / FILE), 2))
    async with asyncio.timeout(SECONDS):
        while len(worker_processes(tmp_path)) < 2:
            await asyncio.sleep(0.001)
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    assert worker_processes(tmp_path) == []
    await workers.close()
    assert names_in(tmp_path) == [FILE]


async def test_a_python_without_torchserve_says_so(tmp_path: Path) -> None:
    write_archive(tmp_path / FILE)
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o700)
    workers = make_workers(tmp_path, worker_python=str(bare))
    await workers.start()
    with pytest.raises(BackendFailed, match="No module named 'ts'"):
        await workers.load(TARGET, as_verified(tmp_path / FILE), 1)
    await workers.close()
