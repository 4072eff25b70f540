"""Guarded rollouts through the front door: good versions get everything, bad ones nothing, and the log says why."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.admin import rollout_controller
from service.errors.gateway import BackendFailed, BackendUnavailable
from tests.gateway import Rig, running_gateway
from tests.service.admin.rollout_rig import NEW, QUICK, ready, show, start

pytestmark = pytest.mark.anyio


async def move(rig: Rig, what: str) -> httpx.Response:
    return await rig.client.post(f"/models/digits/rollouts/1/{what}")


async def send_until(rig: Rig, *states: str) -> tuple[dict[str, Any], list[httpx.Response]]:
    """Send requests until the rollout has one of these states; return it and the answers."""
    answers = []
    async with asyncio.timeout(30):
        while (rollout := await show(rig))["state"] not in states:
            answers += await asyncio.gather(*(rig.predict(b"class:1") for _ in range(8)))
    return rollout, answers


async def weights(rig: Rig) -> dict[str, float]:
    found: dict[str, float] = (await rig.client.get("/models/digits/traffic")).json()["weights"]
    return found


async def test_a_good_version_gets_everything_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        started = await start(rig)
        assert (started["state"], started["percent"], started["stable"]) == ("running", 20, "1.0")
        assert await weights(rig) == {"1.0": 80, "1.1": 20}
        rollout, answers = await send_until(rig, "succeeded", "rolled_back")
        assert (rollout["state"], rollout["percent"]) == ("succeeded", 100)
        assert await weights(rig) == {"1.1": 100}
        assert {answer.status_code for answer in answers} == {200}
        events = (await rig.client.get("/models/digits/events")).json()["events"]
        steps = [e["after"]["rollout"]["step"] for e in reversed(events) if e["action"] in {"rollout", "step"}]
        assert steps == ["20 %", "50 %", "100 %"]
        assert all("no guard broke" in e["detail"] for e in events if e["action"] == "step")
        back = await rig.client.post("/models/digits/rollback")
        assert back.json()["weights"] == {"1.0": 100}


async def ends_badly(rig: Rig, guard: str) -> list[httpx.Response]:
    """Send until the rollout is rolled back by `guard`; return the answers."""
    rollout, answers = await send_until(rig, "succeeded", "rolled_back")
    assert (rollout["state"], await weights(rig)) == ("rolled_back", {"1.0": 100}), rollout
    assert f"guard {guard}:" in rollout["reason"]
    (seen,) = [each for each in rollout["guards"] if each["name"] == guard]  # they stay after the end
    assert seen["evidence"] >= seen["breaks_at"] > 1
    event = (await rig.client.get("/models/digits/events")).json()["events"][0]
    assert (event["action"], event["actor"], event["detail"]) == ("roll_back", "rollout", rollout["reason"])
    assert {a.json()["predictions"][0]["label"] for a in answers if a.headers.get("x-model-version") == "1.0"} == {
        "one"
    }
    return answers


async def test_a_version_that_fails_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        rig.backend.failing[NEW] = BackendFailed("the handler raised")
        await start(rig)
        answers = await ends_badly(rig, "errors")
        statuses = Counter(answer.status_code for answer in answers)
        # Those of the new version alone, which has a fifth; how many that is depends on when the guard looks.
        assert statuses[503] < statuses[200]
        assert set(statuses) <= {200, 503}


async def test_a_version_that_is_slow_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        rig.backend.slow[NEW] = 0.15
        await start(rig, slow_ms=100)
        answers = await ends_badly(rig, "p99")
        assert {answer.status_code for answer in answers} == {200}


async def test_a_version_with_shuffled_classes_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        rig.backend.shifted.add(NEW)
        await start(rig)
        await ends_badly(rig, "agreement")


async def test_feedback_can_roll_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        rig.backend.shifted.add(NEW)
        await start(rig, shadow_percent=0, min_requests=10_000)
        async with asyncio.timeout(30):
            while (rollout := await show(rig))["state"] == "running":
                for answer in await asyncio.gather(*(rig.predict(b"class:1") for _ in range(8))):
                    given = await rig.client.post("/feedback", json={"id": answer.json()["id"], "label": "one"})
                    assert given.status_code == 200, given.text
        assert "guard accuracy:" in rollout["reason"]


async def test_the_evidence_stays_until_the_next_rollout_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        await start(rig)
        await rig.predict(b"class:1")
        async with asyncio.timeout(10):
            while not (await show(rig))["guards"][0]["num_all"]:
                await rig.predict(b"class:1")
        assert (await move(rig, "abort")).json()["state"] == "aborted"
        rig.backend.failing[NEW] = BackendFailed("the handler raised")
        await start(rig)
        assert (await show(rig))["guards"][0]["num_all"] > 0
        async with asyncio.timeout(30):
            while (await show(rig, 2))["state"] == "running" or (await show(rig))["guards"]:
                await asyncio.gather(*(rig.predict(b"class:1") for _ in range(8)))
        assert (await show(rig, 2))["guards"]


async def test_it_is_held_hurried_and_ended_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        await start(rig)
        assert (await move(rig, "pause")).json()["state"] == "paused"
        for _ in range(5):
            await asyncio.gather(*(rig.predict(b"class:1") for _ in range(20)))
        assert (await show(rig))["percent"] == 20
        refused = await rig.client.put(
            "/models/digits/traffic", json={"weights": {"1.0": 100}}, headers={"If-Match": "*"}
        )
        assert (refused.status_code, refused.json()["code"]) == (409, "rollout_active")
        second = await rig.client.post("/models/digits/rollouts", json=QUICK)
        assert (second.status_code, second.json()["code"]) == (409, "rollout_active")
        in_use = await rig.client.delete("/models/digits/versions/1.1")
        assert (in_use.status_code, in_use.json()["code"]) == (409, "version_in_use")
        assert (await move(rig, "resume")).json()["state"] == "running"
        assert (await move(rig, "promote")).json()["state"] == "succeeded"
        assert await weights(rig) == {"1.1": 100}
        ended = await move(rig, "abort")
        assert (ended.status_code, ended.json()["code"]) == (409, "rollout_ended")
        nothing = await rig.client.post("/models/digits/rollouts/7/pause")
        assert (nothing.status_code, nothing.json()["code"]) == (404, "rollout_not_found")
        listed = (await rig.client.get("/models/digits/rollouts")).json()["rollouts"]
        assert [(each["id"], each["state"], each["reason"]) for each in listed] == [
            (1, "succeeded", "promoted by hand")
        ]


async def test_a_rollback_ends_a_rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        await start(rig)
        assert (await rig.client.post("/models/digits/rollback")).json()["weights"] == {"1.0": 100}
        assert (await show(rig))["state"] == "aborted"


async def test_a_restart_goes_on_with_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        await start(rig, min_requests=100_000)
        async with asyncio.timeout(30):
            while (await show(rig))["step_requests"] < 5:
                await rig.predict(b"class:1")
        before = await show(rig)
    again: dict[str, Any] = {"model_store": tmp_path / "store", "model_store_policy": "all"}
    async with running_gateway(tmp_path, (), control=rig.control, **again) as rig:
        after = await show(rig)
        assert after["step_requests"] >= before["step_requests"]
        assert {**after, "step_requests": 0, "step_seconds": 0, "guards": []} == {
            **before,
            "step_requests": 0,
            "step_seconds": 0,
            "guards": [],
        }
        async with asyncio.timeout(30):
            while (await show(rig))["step_requests"] <= before["step_requests"]:
                await rig.predict(b"class:1")


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"steps": [5, 1, 100]}, 422, "parameter_invalid"),
        ({"steps": [5, 50]}, 422, "parameter_invalid"),
        ({"steps": []}, 422, "parameter_invalid"),
        ({"error_rate": 0}, 422, "parameter_invalid"),
        ({"version": "7.0"}, 404, "version_not_found"),
        ({"version": "1.0"}, 409, "rollout_refused"),
    ],
)
async def test_what_makes_no_sense_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], status: int, code: str
) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        answer = await rig.client.post("/models/digits/rollouts", json={**QUICK, **change})
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert await weights(rig) == {"1.0": 100}


async def test_a_version_whose_worker_keeps_dying_is_rolled_back_and_cut_off_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        rig.backend.failing[NEW] = BackendUnavailable("no worker")  # which opens its circuit
        await start(rig, shadow_percent=0)
        rollout, answers = await send_until(rig, "succeeded", "rolled_back")
        assert rollout["state"] == "rolled_back"
        assert "guard errors" in rollout["reason"]
        # While its circuit is open, the stable version stands in.
        assert Counter(answer.status_code for answer in answers)[503] <= 20


async def test_a_version_that_is_gone_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_controller, "GONE_SECONDS", 0.2)
    async with ready(tmp_path, monkeypatch) as rig:
        await start(rig, min_requests=100_000)
        rig.control.num_ready_of[NEW] = 0
        async with asyncio.timeout(20):
            while (rollout := await show(rig))["state"] == "running":
                await asyncio.sleep(0.02)
        assert rollout["state"] == "rolled_back"
        assert "1.1 is unavailable" in rollout["reason"]
        again = await rig.client.post("/models/digits/rollback")
        assert (again.status_code, again.json()["code"]) == (409, "nothing_earlier")
