"""A rollout's guards judge what the traffic policy dealt; strangers cannot move them."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from service.errors.gateway import BackendFailed
from service.serving.model_version import RequestCounts
from service.telemetry.metric_labels import Outcome
from tests.gateway import Rig, running_gateway
from tests.service.admin.rollout_rig import NEW, ready, show, start

pytestmark = pytest.mark.anyio

STRANGER = {"Authorization": ""}
KEY = {"X-API-Key": "a-key-of-a-caller"}


async def guard(rig: Rig, name: str) -> dict[str, Any]:
    """Return a guard of the first rollout, once it has counted what came before."""
    found: dict[str, Any] = next(each for each in (await show(rig))["guards"] if each["name"] == name)
    return found


async def until_judged(rig: Rig, num_all: int) -> dict[str, Any]:
    """Return the rollout once the guard `errors` has seen so many requests of the new version."""
    async with asyncio.timeout(10):
        while (await guard(rig, "errors"))["num_all"] < num_all:
            await asyncio.sleep(0.01)
    return await show(rig)


async def send_dealt(rig: Rig, num_new: int) -> None:
    """Send requests that name no version until the new one has answered so many."""
    async with asyncio.timeout(10):
        while num_new:
            num_new -= (await rig.predict(b"class:1")).headers.get("x-model-version") == NEW.version


async def test_who_names_a_version_moves_no_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        await rig.client.put("/models/digits/labels/next", json={"version": "1.1"}, headers={"If-Match": "*"})
        await start(rig, min_requests=1000, shadow_percent=0, slow_ms=1)
        for named in ({"version": "1.1"}, {"label": "next"}):
            rig.backend.slow[NEW] = 0.03
            hurried = [await rig.predict(b"class:1", params=named, headers={"X-Deadline-Ms": "10"}) for _ in range(20)]
            assert 504 in {each.status_code for each in hurried}
            rig.backend.failing[NEW] = BackendFailed("the handler raised")
            assert (await rig.predict(b"class:1", params=named)).status_code == 503
            rig.backend.failing.clear()
        rig.backend.slow.clear()
        await send_dealt(rig, 3)  # the guards count again, and see these three alone
        rollout = await until_judged(rig, 3)
        assert (rollout["state"], rollout["step_requests"]) == ("running", 3)
        assert (await guard(rig, "errors"))["num_bad"] == 0


async def test_a_deadline_that_nobody_could_keep_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        await start(rig, min_requests=1000, shadow_percent=0, slow_ms=1000)
        rig.backend.slow[NEW] = 0.03
        statuses: list[int] = []
        while 504 not in statuses or len(statuses) < 50:
            statuses.append((await rig.predict(b"class:1", headers={"X-Deadline-Ms": "10"})).status_code)
        rig.backend.slow.clear()
        await send_dealt(rig, 2)
        assert (await until_judged(rig, 2))["step_requests"] == 2
        assert [(await guard(rig, name))["num_bad"] for name in ("errors", "p99")] == [0, 0]


@pytest.mark.parametrize(
    ("outcome", "seconds", "had_seconds", "judged", "errors", "slow"),
    [
        ("success", 0.05, 10.0, 1, 0, 0),
        ("success", 0.2, 10.0, 1, 0, 1),
        ("server_error", 0.01, 10.0, 1, 1, 1),
        ("shed", 0.0, 10.0, 1, 1, 1),  # its circuit is open
        ("expired", 9.9, 9.9, 1, 1, 1),
        ("expired", 0.3, 0.3, 1, 0, 1),  # longer than a slow request may take, not than the usual caller waits
        ("expired", 0.05, 0.05, 0, 0, 0),
        ("success", 0.05, 0.06, 0, 0, 0),  # as it would be if it had expired
        ("cancelled", 0.05, 10.0, 1, 0, 0),  # the client left; others may not be hidden so
        ("cancelled", 0.2, 10.0, 1, 0, 1),
    ],
)
def test_what_counts_is_settled_before_the_request_ends(
    outcome: Outcome, seconds: float, had_seconds: float, judged: int, errors: int, slow: int
) -> None:
    counts = RequestCounts(slow_seconds=0.1)
    counts.judge(outcome, seconds, had_seconds, fair_seconds=5)
    assert (counts.num_judged, counts.num_errors, counts.num_slow) == (judged, errors, slow)


def test_a_limit_beyond_the_usual_deadline_judges_the_usual_requests() -> None:
    counts = RequestCounts(slow_seconds=60)
    counts.judge("expired", 10, 10, fair_seconds=5)
    assert (counts.num_judged, counts.num_errors, counts.num_slow) == (1, 1, 1)


async def give(rig: Rig, answer: dict[str, Any], index: int = 0, headers: Mapping[str, str] = {}) -> bool:
    """Label an image, and return whether guards count it."""
    body = {"id": answer["id"], "index": index, "label": "three"}
    given = await rig.client.post("/feedback", json=body, headers=headers)
    assert given.status_code == 200, given.text
    judged: bool = given.json()["judged"]
    return judged


async def test_labels_of_strangers_move_no_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        assert await give(rig, (await rig.predict(b"class:1")).json()), (
            "without token and keys, this machine is trusted"
        )
        named = (await rig.predict(b"class:1", params={"version": "1.1"})).json()
        assert not await give(rig, named), "its caller chose the version"
        form = [("file", (f"{n}.png", b"class:1", "image/png")) for n in range(3)]
        several = (await rig.client.post("/predict", files=form)).json()
        assert [await give(rig, several, index) for index in range(3)] == [True, False, False]


async def test_without_keys_only_the_admin_token_moves_the_guard(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        first, second, third = [(await rig.predict(b"class:1")).json() for _ in range(3)]
        assert not await give(rig, first, headers=STRANGER)
        assert not await give(rig, second, headers={"Authorization": "Bearer something-else"})
        assert await give(rig, third)
        quality = (await rig.client.get("/models/digits/quality")).json()
        assert quality["versions"][0]["feedback"]["num_labelled"] == 3  # all of them are shown


async def test_a_key_moves_the_guard_where_keys_are_set(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, api_keys=SecretStr("a-key-of-a-caller")) as rig:
        answer = (await rig.predict(b"class:1", headers=KEY)).json()
        refused = await rig.client.post("/feedback", json={"id": answer["id"], "label": "three"}, headers=STRANGER)
        assert refused.status_code == 401
        assert await give(rig, answer, headers=KEY)


async def test_a_rollout_is_judged_by_trusted_labels_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(tmp_path, monkeypatch) as rig:
        await start(rig, min_requests=10_000, shadow_percent=0)
        for _ in range(100):
            await give(rig, (await rig.predict(b"class:1")).json(), headers=STRANGER)
        num_ours = 0
        async with asyncio.timeout(10):
            while num_ours < 2:
                answer = (await rig.predict(b"class:1")).json()
                if answer["version"] == NEW.version:
                    num_ours += await give(rig, answer)
            while (seen := await guard(rig, "accuracy"))["num_all"] < 2:
                await asyncio.sleep(0.01)
        assert (seen["num_all"], seen["num_bad"]) == (2, 2)
