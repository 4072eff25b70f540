"""Copies of requests go to versions that are watched; callers see nothing of it."""

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.domain.backend import Target
from service.errors.gateway import BackendFailed
from service.serving import shadow_traffic
from service.serving.model_version import ModelVersion
from service.serving.shadow_traffic import BUSY_SHARE, FEWEST_COSTS, MOST_CREDIT_SECONDS, MOST_WAITING, CopyBudget
from tests.gateway import Rig, running_gateway

pytestmark = pytest.mark.anyio

PRIMARY, SHADOW = Target("digits", "1.0"), Target("digits", "1.0-int8-dynamic")


@asynccontextmanager
async def shadowed(tmp_path: Path, percent: float = 100, **options: Any) -> AsyncIterator[Rig]:
    async with running_gateway(tmp_path, **options) as rig:
        await rig.until_every_version_is_ready()
        body = {"weights": {"1.0": 100}, "shadows": {SHADOW.version: percent}}
        answer = await rig.client.put("/models/digits/traffic", json=body, headers={"If-Match": "*"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["shadows"] == {SHADOW.version: percent}
        yield rig


async def report(rig: Rig) -> dict[str, Any]:
    (comparison,) = (await rig.client.get("/models/digits/shadows")).json()["shadows"]
    found: dict[str, Any] = comparison
    return found


async def until_compared(rig: Rig, num_requests: int, outcome: str = "compared") -> dict[str, Any]:
    await rig.until("torchgate_shadow_requests_total", num_requests, outcome=outcome, primary="1.0")
    return await report(rig)


async def test_copies_are_compared_with_the_answers(tmp_path: Path) -> None:
    async with shadowed(tmp_path) as rig:
        form = [("file", (f"{n}.png", b"class:%d" % n, "image/png")) for n in range(3)]
        bad = ("file", ("bad.png", b"reject:bad_image", "image/png"))
        answer = await rig.client.post("/predict", files=[*form, bad], params={"top_k": 1})
        assert answer.json()["version"] == "1.0"
        assert (await until_compared(rig, 1))["agreement"] == 1
        rig.backend.shifted.add(SHADOW)
        assert (await rig.predict(b"class:1")).json()["predictions"][0]["label"] == "one"
        found = await until_compared(rig, 2)
        assert (found["num_items"], found["agreement"], found["largest_difference"]) == (5, 0.8, 1.0)
        assert await rig.metric("torchgate_shadow_items_total", result="different") == 1
        assert await rig.metric("torchgate_inference_requests_total", version=SHADOW.version, outcome="success") == 0


async def test_a_shadow_that_fails_or_is_gone_is_nobodys_problem(tmp_path: Path) -> None:
    async with shadowed(tmp_path) as rig:
        rig.backend.failing[SHADOW] = BackendFailed("the handler raised")
        assert (await rig.predict(b"class:1")).status_code == 200
        assert (await until_compared(rig, 1, "failed"))["num_failed"] == 1
        rig.control.num_ready_of[SHADOW] = 0
        await rig.until_state(SHADOW.version, "unavailable")
        assert (await rig.predict(b"class:1")).status_code == 200
        assert (await report(rig))["num_requests"] == 0
        assert (await rig.client.get("/readyz")).status_code == 200


async def test_under_load_copies_take_a_small_share_of_the_time(tmp_path: Path) -> None:
    async with shadowed(tmp_path, workers_per_version=2) as rig:
        rig.backend.slow[SHADOW] = 0.05
        rig.backend.stuck.add(PRIMARY)
        stuck = asyncio.create_task(rig.predict(b"class:1"))  # so that the version is never idle
        await rig.backend.batches_arrived(1)
        rig.backend.stuck.clear()
        started = time.monotonic()
        async with asyncio.timeout(30):
            while (found := await report_if_any(rig)).get("num_shed", 0) < 200 or found["num_requests"] < 2:
                await rig.predict(b"class:1")
        # What was saved up, what was earned since, and two whose cost was not known yet.
        assert found["num_requests"] <= (MOST_CREDIT_SECONDS + BUSY_SHARE * (time.monotonic() - started)) / 0.05 + 2
        rig.backend.release()
        await stuck


def test_one_copy_that_was_held_up_does_not_keep_others_back() -> None:
    budget, now = CopyBudget(0.0), 0.0
    for seconds in (20 * MOST_CREDIT_SECONDS, 0.01, 0.01):
        assert budget.pay(now)
        budget.record(seconds)
        now += seconds


def test_a_copy_that_costs_more_than_is_saved_up_waits_until_it_is_earned() -> None:
    budget, cost = CopyBudget(0.0), 2 * MOST_CREDIT_SECONDS
    for _ in range(FEWEST_COSTS):
        assert budget.pay(0.0)
        budget.record(cost)
    earned_at = (cost - MOST_CREDIT_SECONDS) / BUSY_SHARE
    assert not budget.pay(0.99 * earned_at)
    assert budget.pay(1.01 * earned_at)


def test_copies_take_their_share_of_a_long_time_and_no_more() -> None:
    budget, cost, num_seconds, num_copies = CopyBudget(0.0), 0.05, 1000, 0
    for now in range(num_seconds):
        if budget.pay(now):
            budget.record(cost)
            num_copies += 1
    # Two whose cost is not known yet, what is saved up at the start, and what is earned.
    assert num_copies == pytest.approx(FEWEST_COSTS + (MOST_CREDIT_SECONDS + BUSY_SHARE * num_seconds) / cost, abs=1)


async def test_between_two_requests_of_one_caller_there_is_no_time_for_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shadowed(tmp_path) as rig:
        rig.backend.stuck.add(SHADOW)
        await rig.predict(b"class:1")
        await rig.backend.batches_arrived(2)  # its copy, as no other request has come
        monkeypatch.setattr(shadow_traffic, "IDLE_SECONDS", 3600)  # now no pause is long enough
        for _ in range(MOST_WAITING + 5):
            await rig.predict(b"class:1")
        rig.backend.release()
        assert (await until_compared(rig, 1))["num_shed"] == 5
        assert len(rig.backend.batches) == 2 + MOST_WAITING + 5  # no other copy


async def report_if_any(rig: Rig) -> dict[str, Any]:
    found: list[dict[str, Any]] = (await rig.client.get("/models/digits/shadows")).json()["shadows"]
    return found[0] if found else {}


async def test_copies_that_would_wait_long_are_shed(tmp_path: Path) -> None:
    async with shadowed(tmp_path) as rig:
        rig.backend.stuck.add(SHADOW)
        for _ in range(1 + MOST_WAITING + 5):  # one runs, the next wait
            assert (await rig.predict(b"class:1")).status_code == 200
        assert (await until_compared(rig, 5, "shed"))["num_shed"] == 5
        rig.backend.stuck.clear()
        rig.backend.release()
        assert (await until_compared(rig, 1 + MOST_WAITING))["agreement"] == 1


async def test_only_requests_that_name_no_version_are_copied_and_so_many_as_is_wanted(tmp_path: Path) -> None:
    async with shadowed(tmp_path, 25) as rig:
        for _ in range(20):
            await rig.predict(b"class:1", params={"version": "1.0"})
        assert (await rig.client.get("/models/digits/shadows")).json() == {"shadows": []}
        for _ in range(200):
            await rig.predict(b"class:1")
        found = await report(rig)
        assert 20 <= found["num_requests"] + found["num_shed"] <= 85  # 50, give or take five standard deviations


@pytest.mark.parametrize("percent", [0, -1, 101])
async def test_a_share_is_a_share(tmp_path: Path, percent: float) -> None:
    async with running_gateway(tmp_path) as rig:
        body = {"weights": {"1.0": 100}, "shadows": {"1.0": percent}}
        answer = await rig.client.put("/models/digits/traffic", json=body, headers={"If-Match": "*"})
        assert (answer.status_code, answer.json()["code"]) == (422, "traffic_invalid")


async def test_nothing_is_kept_of_a_version_that_is_gone(tmp_path: Path) -> None:
    older = weakref.WeakSet(model_versions())  # of other tests' gateways
    async with shadowed(tmp_path) as rig:
        gone = weakref.ref(await copied_to(rig, older))
        put = await rig.client.put("/models/digits/traffic", json={"weights": {"1.0": 100}}, headers={"If-Match": "*"})
        assert put.status_code == 200
        assert (await rig.client.delete(f"/models/digits/versions/{SHADOW.version}")).status_code == 204
        async with asyncio.timeout(10):
            while gone() is not None:
                gc.collect()
                await asyncio.sleep(0.01)
        assert (await rig.client.get("/models/digits/shadows")).json() == {"shadows": []}


def model_versions() -> list[ModelVersion]:
    return [each for each in gc.get_objects() if type(each) is ModelVersion]


async def copied_to(rig: Rig, older: "weakref.WeakSet[ModelVersion]") -> ModelVersion:
    """Send one request; return the version that got a copy of it."""
    await rig.predict(b"class:1")
    await until_compared(rig, 1)
    (found,) = (each for each in model_versions() if each not in older and each.target == SHADOW)
    return found
