"""Requests that wait: too long, in a queue that is full, or for a client that has left."""

import asyncio
from pathlib import Path

import pytest

from tests.gateway import Rig, running_gateway
from tests.service.problems import problem_of

pytestmark = pytest.mark.anyio


async def test_a_deadline_that_passes(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        slot = await rig.fill_the_slot()
        late = await rig.predict(b"class:2", headers={"X-Deadline-Ms": "50"})
        problem = problem_of(late, 504, "deadline_exceeded")
        assert "50 ms" in problem["detail"]
        rig.backend.release()
        assert (await slot).status_code == 200
        assert (await rig.predict(b"class:3")).status_code == 200
        assert [b"class:2"] not in rig.backend.batches  # dead before dispatch: no compute was spent on it
        assert await rig.metric("torchgate_inference_requests_total", version="1.0", outcome="expired") == 1


async def test_a_full_queue_refuses_at_the_door(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_queue_items=2, max_images=2) as rig:
        slot = await rig.fill_the_slot()
        waiting = [asyncio.create_task(rig.predict(b"class:1")) for _ in range(2)]
        await rig.until_queued(2)
        answer = await rig.predict(b"class:2")
        problem_of(answer, 429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        assert await rig.metric("torchgate_rejected_total", reason="queue_full") == 1
        rig.backend.release()
        assert [each.status_code for each in await asyncio.gather(slot, *waiting)] == [200, 200, 200]


async def test_callers_that_left_keep_nobody_out(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_queue_items=2, max_images=2) as rig:
        slot = await rig.fill_the_slot()
        for _ in range(4):
            late = await rig.predict(b"class:1", headers={"X-Deadline-Ms": "20"})
            problem_of(late, 504, "deadline_exceeded")
        rig.backend.release()
        assert (await slot).status_code == 200


async def test_a_client_that_vanishes_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        slot = await rig.fill_the_slot()
        first = asyncio.create_task(rig.predict(b"class:1"))
        await rig.until_queued(1)
        middle = asyncio.create_task(rig.predict(b"class:2"))
        await rig.until_queued(2)
        last = asyncio.create_task(rig.predict(b"class:3"))
        await rig.until_queued(3)
        middle.cancel()
        await rig.until("torchgate_inference_requests_total", 1, outcome="cancelled", version="1.0")
        rig.backend.release()
        answers = await asyncio.gather(slot, first, last)
    assert [each.json()["predictions"][0]["label"] for each in answers] == ["zero", "one", "three"]
    assert rig.backend.batches == [[b"class:0"], [b"class:1", b"class:3"]]  # the dead one was dropped


async def test_a_client_that_vanishes_from_a_running_batch(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        slot = await rig.fill_the_slot()
        tasks = [asyncio.create_task(rig.predict(f"class:{index}".encode())) for index in (1, 2, 3)]
        await rig.until_queued(3)
        rig.backend.release()
        rig.backend.hold()
        await rig.backend.batches_arrived(2)
        tasks[1].cancel()
        await rig.until("torchgate_inference_requests_total", 1, outcome="cancelled", version="1.0")
        rig.backend.release()
        answers = await asyncio.gather(slot, tasks[0], tasks[2])
    assert [each.json()["predictions"][0]["label"] for each in answers] == ["zero", "one", "three"]


async def test_sigterm_lets_requests_end(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        slot = await rig.fill_the_slot()
        waiting = asyncio.create_task(rig.predict(b"class:1"))
        await rig.until_queued(1)
        rig.server.should_exit = True
        await asyncio.wait_for(_until_refused(rig), 10)
        rig.backend.release()
        assert [each.status_code for each in await asyncio.gather(slot, waiting)] == [200, 200]


async def _until_refused(rig: Rig) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        except OSError:
            return
        writer.close()
        await asyncio.sleep(0.01)
