"""Callers share a version: each gets its turn and its part of the queue, whatever the others send."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway import Rig, running_gateway
from tests.service.problems import problem_of

pytestmark = pytest.mark.anyio

KEYS = {"greedy": "the-greedy-ones-key", "light": "the-light-ones-key"}
WITH_KEYS: dict[str, Any] = {"api_keys": ",".join(KEYS.values())}


async def queued(rig: Rig, who: str, body: bytes, num_waiting: int, **headers: str) -> "asyncio.Task[httpx.Response]":
    """Send a request and return once `num_waiting` images are queued."""
    task = asyncio.create_task(rig.predict(body, headers={"X-API-Key": KEYS[who], **headers}))
    await rig.until_queued(num_waiting)
    return task


async def slot_filled(rig: Rig) -> "asyncio.Task[httpx.Response]":
    rig.backend.hold()
    task = asyncio.create_task(rig.predict(b"class:0", headers={"X-API-Key": KEYS["light"]}))
    await rig.backend.batches_arrived(1)
    return task


async def test_whoever_waits_has_a_turn_however_urgent_the_others_say_they_are(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_batch_size=1, **WITH_KEYS) as rig:
        tasks = [await slot_filled(rig)]
        urgent, patient = {"X-Deadline-Ms": "5000"}, {"X-Deadline-Ms": "60000"}
        tasks += [await queued(rig, "greedy", b"class:1", number + 1, **urgent) for number in range(3)]
        tasks += [await queued(rig, "light", b"class:2", number + 4, **patient) for number in range(2)]
        rig.backend.release()
        assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}
    assert [batch[0][-1:] for batch in rig.backend.batches] == [b"0", b"2", b"1", b"2", b"1", b"1"]


async def test_a_full_queue_makes_room_for_who_has_less_of_it(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_queue_items=4, max_images=4, **WITH_KEYS) as rig:
        slot = await slot_filled(rig)
        greedy = [await queued(rig, "greedy", b"class:1", number + 1) for number in range(4)]
        full = await rig.predict(b"class:1", headers={"X-API-Key": KEYS["greedy"]})
        problem_of(full, 429, "queue_full")
        light = asyncio.create_task(rig.predict(b"class:2", headers={"X-API-Key": KEYS["light"]}))
        pushed_out = await greedy.pop()  # the last to come
        problem = problem_of(pushed_out, 429, "share_exceeded")
        assert "share" in problem["detail"]
        assert int(pushed_out.headers["retry-after"]) >= 1
        refused = await rig.predict(b"class:1", headers={"X-API-Key": KEYS["greedy"]})
        problem_of(refused, 429, "share_exceeded")
        assert await rig.metric("torchgate_rejected_total", reason="share") == 2
        rig.backend.release()
        assert {answer.status_code for answer in await asyncio.gather(slot, light, *greedy)} == {200}


async def test_without_keys_addresses_are_callers(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_batch_size=1) as rig:
        slot = await rig.fill_the_slot()
        tasks = [slot]
        for number in range(3):
            tasks.append(asyncio.create_task(rig.predict(b"class:1")))
            await rig.until_queued(number + 1)
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(local_address="127.0.0.2")) as elsewhere:
            image: dict[str, Any] = {"content": b"class:2", "headers": {"Content-Type": "image/png"}}
            tasks.append(asyncio.create_task(elsewhere.post(f"{rig.url}/predict", **image)))
            await rig.until_queued(4)
            rig.backend.release()
            assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}
    assert [batch[0][-1:] for batch in rig.backend.batches] == [b"0", b"2", b"1", b"1", b"1"]
