"""A gateway with two versions, whose rollouts move quickly."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.admin import rollout_controller
from service.domain.backend import Target
from tests.gateway import Rig, running_gateway

VERSIONS = (("digits", "1.1", "fp32"), ("digits", "1.0", "fp32"))
NEW = Target("digits", "1.1")
QUICK = {"version": "1.1", "steps": [20, 50, 100], "min_requests": 10, "min_seconds": 0, "shadow_percent": 100}


@asynccontextmanager
async def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> AsyncIterator[Rig]:
    """Run a gateway with all the traffic at 1.0, whose rollouts are looked at often."""
    monkeypatch.setattr(rollout_controller, "TICK_SECONDS", 0.02)
    async with running_gateway(tmp_path, VERSIONS, model_store_policy="all", **options) as rig:
        await rig.until_every_version_is_ready()
        put = await rig.client.put("/models/digits/traffic", json={"weights": {"1.0": 100}}, headers={"If-Match": "*"})
        assert put.status_code == 200
        yield rig


async def start(rig: Rig, **changes: Any) -> dict[str, Any]:
    answer = await rig.client.post("/models/digits/rollouts", json={**QUICK, **changes})
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def show(rig: Rig, number: int = 1) -> dict[str, Any]:
    document: dict[str, Any] = (await rig.client.get(f"/models/digits/rollouts/{number}")).json()
    return document
