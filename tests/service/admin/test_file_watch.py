"""Files that are read again when they change."""

import asyncio
from pathlib import Path

import pytest

from service.admin.file_watch import FileWatch

pytestmark = pytest.mark.anyio


async def test_a_change_counts_once_it_has_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([1, 1, 2, 3, 4, 4, 4, 5, 5])
    monkeypatch.setattr("service.admin.file_watch.LOOK_SECONDS", 0)
    monkeypatch.setattr("service.admin.file_watch._state", lambda _: (next(looks), 0, 0))
    watch = FileWatch(Path("file"))
    async with asyncio.timeout(10):
        await watch.until_changed()
        assert next(looks) == 4, "it was still being written when it was 2 and 3"
        await watch.until_changed()
    assert list(looks) == []


async def test_who_asks_need_not_wait(tmp_path: Path) -> None:
    watch = FileWatch(tmp_path / "none")
    watch.asked.set()
    async with asyncio.timeout(10):
        await watch.until_changed()
    assert not watch.asked.is_set()
