"""Weights, labels, roles and what became of rollouts are in the metrics, after every change and every restart."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service.admin import rollout_controller
from tests.gateway import Rig, running_gateway

pytestmark = pytest.mark.anyio

VERSIONS = (("digits", "1.1", "fp32"), ("digits", "1.0", "fp32"))
WEIGHT, LABEL = "torchgate_model_traffic_weight_ratio", "torchgate_model_label_info"
ROLLOUTS, REQUESTS = "torchgate_rollout_events_total", "torchgate_inference_requests_total"
ROLLOUT = {"version": "1.1", "steps": [20, 50, 100], "min_seconds": 0, "shadow_percent": 0}


async def put(rig: Rig, path: str, body: dict[str, Any]) -> None:
    answer = await rig.client.put(f"/models/digits/{path}", json=body, headers={"If-Match": "*"})
    assert answer.status_code in {200, 201}, answer.text


async def all_to(rig: Rig, version: str) -> None:
    await rig.until_every_version_is_ready()
    await put(rig, "traffic", {"weights": {version: 100}})


async def series(rig: Rig, name: str) -> list[str]:
    """Return the samples of a metric, as they are on the page."""
    return sorted(line for line in (await rig.client.get("/metrics")).text.splitlines() if line.startswith(f"{name}{{"))


async def test_weights_and_labels_follow_every_change_and_outlive_a_restart(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, VERSIONS, model_store_policy="all") as rig:
        await all_to(rig, "1.0")
        assert await series(rig, WEIGHT) == [f'{WEIGHT}{{model="digits",version="1.0"}} 1.0']
        await put(rig, "traffic", {"weights": {"1.0": 90, "1.1": 10}})
        await put(rig, "labels/stable", {"version": "1.0"})
        await put(rig, "labels/canary", {"version": "1.0"})
        await put(rig, "labels/canary", {"version": "1.1"})
        decided = await series(rig, WEIGHT) + await series(rig, LABEL)
        assert decided == [
            f'{WEIGHT}{{model="digits",version="1.0"}} 0.9',
            f'{WEIGHT}{{model="digits",version="1.1"}} 0.1',
            f'{LABEL}{{label="canary",model="digits",version="1.1"}} 1.0',
            f'{LABEL}{{label="stable",model="digits",version="1.0"}} 1.0',
        ]
    async with running_gateway(tmp_path, VERSIONS, model_store_policy="all") as rig:
        assert await series(rig, WEIGHT) + await series(rig, LABEL) == decided
        assert (await rig.client.delete("/models/digits/labels/stable", headers={"If-Match": "*"})).status_code == 200
        assert len(await series(rig, LABEL)) == 1


async def test_a_version_on_trial_is_a_canary_until_it_has_the_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_controller, "TICK_SECONDS", 0.02)
    async with running_gateway(tmp_path, VERSIONS, model_store_policy="all") as rig:
        await all_to(rig, "1.0")
        await asked(rig, "1.1", "primary")  # named, but on nobody's behalf
        await put(rig, "traffic", {"weights": {"1.0": 60, "1.1": 40}})
        await asked(rig, "1.1", "canary")
        await asked(rig, "1.0", "primary")
        await put(rig, "traffic", {"weights": {"1.0": 100}})
        assert (await rig.client.post("/models/digits/rollouts", json=ROLLOUT)).status_code == 201
        await asked(rig, "1.1", "canary")
        assert (await rig.client.post("/models/digits/rollouts/1/promote")).status_code == 200
        await asked(rig, "1.1", "primary")


async def asked(rig: Rig, version: str, role: str) -> None:
    """Ask a version until one answer is counted in this role; the reconciler takes a look to learn it."""
    before = await rig.metric(REQUESTS, version=version, role=role, outcome="success")
    async with asyncio.timeout(10):
        while await rig.metric(REQUESTS, version=version, role=role, outcome="success") == before:
            assert (await rig.predict(b"class:0", params={"version": version})).status_code == 200


async def test_what_becomes_of_a_rollout_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_controller, "TICK_SECONDS", 0.02)
    async with running_gateway(tmp_path, VERSIONS, model_store_policy="all") as rig:
        await all_to(rig, "1.0")
        assert len(await series(rig, ROLLOUTS)) == 7  # zeros, so that the first of each is an increase
        for number, (moves, expected) in enumerate(
            (
                (["pause", "resume", "abort"], {"started": 1, "paused": 1, "resumed": 1, "aborted": 1}),
                (["promote"], {"started": 2, "succeeded": 1}),
            ),
            1,
        ):
            assert (await rig.client.post("/models/digits/rollouts", json=ROLLOUT)).status_code == 201
            for move in moves:
                assert (await rig.client.post(f"/models/digits/rollouts/{number}/{move}")).status_code == 200
            for event, value in expected.items():
                assert await rig.metric(ROLLOUTS, event=event) == value, event
        await put(rig, "traffic", {"weights": {"1.0": 100}})
        quick = {**ROLLOUT, "min_requests": 5}
        assert (await rig.client.post("/models/digits/rollouts", json=quick)).status_code == 201
        async with asyncio.timeout(20):
            while await rig.metric(ROLLOUTS, event="succeeded") < 2:
                await rig.predict(b"class:0")
        assert await rig.metric(ROLLOUTS, event="stepped") == 1  # from 20 to 50; the last step is the success
