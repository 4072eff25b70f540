"""Admission, the order of batches, and batches that fail, through HTTP."""

import asyncio
from pathlib import Path

import httpx
import pytest

from service.errors.gateway import BackendUnavailable, WorkerDied
from tests.gateway import Rig, running_gateway

pytestmark = pytest.mark.anyio


async def queued(rig: Rig, body: bytes, num_waiting: int, **headers: str) -> "asyncio.Task[httpx.Response]":
    """Send a request and return once `num_waiting` images are queued."""
    task = asyncio.create_task(rig.predict(body, headers=headers))
    await rig.until_queued(num_waiting)
    return task


async def test_the_most_urgent_goes_first_and_low_priority_last(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_batch_size=1) as rig:
        tasks = [await rig.fill_the_slot()]
        tasks.append(await queued(rig, b"class:1", 1, **{"X-Priority": "low", "X-Deadline-Ms": "2000"}))
        tasks.append(await queued(rig, b"class:2", 2))
        tasks.append(await queued(rig, b"class:3", 3, **{"X-Deadline-Ms": "5000"}))
        rig.backend.release()
        assert [task.status_code for task in await asyncio.gather(*tasks)] == [200] * 4
    assert rig.backend.batches == [[b"class:0"], [b"class:3"], [b"class:2"], [b"class:1"]]


async def test_a_request_that_would_be_late_is_refused_at_once(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_batch_size=1) as rig:
        rig.backend.service_seconds = 2.0  # the model learns it, though it is not true
        assert (await rig.predict(b"class:0")).status_code == 200
        tasks = [await rig.fill_the_slot(), await queued(rig, b"class:1", 1)]
        answer = await rig.predict(b"class:2", headers={"X-Deadline-Ms": "1000"})
        assert (answer.status_code, answer.json()["code"]) == (429, "deadline_unreachable")
        assert 1 <= int(answer.headers["retry-after"]) <= 10
        assert await rig.metric("torchgate_rejected_total", reason="deadline") == 1
        assert await rig.metric("torchgate_inference_requests_total", version="1.0", outcome="shed") == 1
        tasks.append(await queued(rig, b"class:3", 2, **{"X-Deadline-Ms": "60000"}))
        rig.backend.release()
        assert [task.status_code for task in await asyncio.gather(*tasks)] == [200] * 3
        # Nothing is in flight any more: a request is admitted despite the forecast, and may prove it wrong.
        assert (await rig.predict(b"class:2", headers={"X-Deadline-Ms": "1000"})).status_code == 200


async def test_the_limit_follows_the_objective(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, latency_objective_ms=100) as rig:
        rig.backend.service_seconds = 0.025
        for _ in range(3):
            answer = await rig.predict(b"class:0")
        # An image waits for a slot, then for its own batch: two batches of 25 ms an image take 100 ms.
        assert await rig.metric("torchgate_batch_limit", version="1.0") == 2
        assert 'limit;desc="2"' in answer.headers["server-timing"]
        assert 'closed;desc="idle"' in answer.headers["server-timing"]
        learnt = await rig.metric("torchgate_batch_model_per_item_seconds", version="1.0")
        assert learnt == pytest.approx(0.025, rel=0.01)
        answer = await rig.client.post("/predict", files=[("file", b"class:1")] * 4)
        assert answer.headers["x-batch-size"] == "2"
        assert 'closed;desc="idle"' in answer.headers["server-timing"]
        assert await rig.metric("torchgate_batch_close_total", version="1.0", reason="full") == 1


async def test_a_long_queue_gets_larger_batches_than_the_objective_allows(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, latency_objective_ms=100) as rig:
        rig.backend.service_seconds = 0.025
        assert (await rig.predict(b"class:0")).status_code == 200
        answer = await rig.client.post("/predict", files=[("file", b"class:1")] * 40)
        assert answer.status_code == 200
        # 40 images take a second. Half of that is 20 images, where the objective allows 2.
        assert 18 <= len(rig.backend.batches[1]) <= 22


async def test_a_short_deadline_gets_a_short_batch(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, latency_objective_ms=100_000) as rig:
        rig.backend.service_seconds = 1.0
        assert (await rig.predict(b"class:0")).status_code == 200
        slot = await rig.fill_the_slot()
        urgent = await queued(rig, b"class:1", 1, **{"X-Deadline-Ms": "6000"})
        files = [("file", b"class:2")] * 20
        others = asyncio.create_task(rig.client.post("/predict", files=files, headers={"X-Deadline-Ms": "60000"}))
        await rig.until_queued(21)
        rig.backend.release()
        answers = await asyncio.gather(slot, urgent, others)
        assert [answer.status_code for answer in answers] == [200] * 3
        assert await rig.metric("torchgate_batch_close_total", version="1.0", reason="deadline") == 1
        assert rig.backend.batches[2][0] == b"class:1"
        assert 1 <= len(rig.backend.batches[2]) < 20


@pytest.mark.parametrize("place", [0, 3, 6])
@pytest.mark.parametrize("image", [b"poison", b"unknown:4"])
async def test_a_poisoned_image_fails_alone(tmp_path: Path, image: bytes, place: int) -> None:
    images = [b"class:1"] * 7
    images[place] = image
    async with running_gateway(tmp_path) as rig:
        answer = await rig.client.post("/predict", files=[("file", image) for image in images])
        alone = await rig.predict(image)
        assert (alone.status_code, alone.json()["code"]) == (503, "backend_failed")
        assert (await rig.predict(b"class:2")).status_code == 200
    assert answer.status_code == 200
    for index, prediction in enumerate(answer.json()["predictions"]):
        assert ("error" in prediction) == (index == place), prediction
    assert answer.json()["predictions"][place]["error"]["code"] == "backend_failed"


async def test_the_batch_of_a_worker_that_died_is_tried_again(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        for images in ([b"class:1"], [b"class:1"] * 5):
            rig.backend.fails_once_with = WorkerDied("killed")
            answer = await rig.client.post("/predict", files=[("file", image) for image in images])
            assert [each["label"] for each in answer.json()["predictions"]] == ["one"] * len(images)
        rig.backend.fails_with = WorkerDied("killed")
        answer = await rig.predict(b"class:1")
        assert (answer.status_code, answer.json()["code"]) == (503, "worker_died")
        assert rig.backend.batches[-2:] == [[b"class:1"]] * 2, "tried twice, and no more"


async def test_the_circuit_opens_when_the_backend_does_not_answer(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        rig.backend.fails_with = BackendUnavailable("gone")
        for _ in range(5):
            assert (await rig.predict(b"class:1")).json()["code"] == "backend_unavailable"
        num_batches = len(rig.backend.batches)
        assert await rig.metric("torchgate_backend_circuit_state", version="1.0") == 2
        refused = await rig.predict(b"class:1")
        assert (refused.status_code, refused.json()["code"]) == (503, "circuit_open")
        assert refused.headers["retry-after"] == "1"
        assert await rig.metric("torchgate_rejected_total", reason="circuit_open") == 1
        assert len(rig.backend.batches) == num_batches
        rig.backend.fails_with = None
        async with asyncio.timeout(10):
            while (await rig.predict(b"class:1")).status_code != 200:
                await asyncio.sleep(0.01)
        assert await rig.metric("torchgate_backend_circuit_state", version="1.0") == 0
