"""Two gateways on one database, for tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from service.domain.backend import Target
from tests.fake_backend import FakeControl
from tests.gateway import Rig, running_gateway
from tests.stores import make_store

VERSIONS = (("digits", "1.1", "fp32"), ("digits", "1.0", "fp32"))
NEW = Target("digits", "1.1")


def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shared.db'}"


@asynccontextmanager
async def two(tmp_path: Path, database: str, **options: Any) -> AsyncIterator[tuple[Rig, Rig, AsyncExitStack]]:
    """Run two gateways before one model server, with all the traffic at 1.0; the second's exit is the caller's."""
    store = tmp_path / "store"
    control = FakeControl(make_store(store, VERSIONS))
    options = {"model_store": store, "model_store_policy": "all", "database_url": database, **options}
    if options["model_store_policy"] == "specific":
        options["wait_until_ready"] = False
    async with running_gateway(tmp_path, (), control=control, **options) as first, AsyncExitStack() as stack:
        second = await stack.enter_async_context(running_gateway(tmp_path, (), control=control, **options))
        if options["model_store_policy"] == "specific":
            for rig in (first, second):
                await rig.until_reason("TORCHGATE_MODEL_STORE_POLICY")
            body = {"file": "digits-1.0.mar"}
            assert (await first.client.post("/models/digits/versions", json=body)).status_code == 201
            for rig in (first, second):
                await rig.until_state("1.0", "ready")
        for rig in (first, second):
            await rig.until_every_version_is_ready()
        await put(first, {"1.0": 100})
        await until_weights(second, {"1.0": 100})
        yield first, second, stack


async def put(rig: Rig, weights: dict[str, float], based_on: str = "*") -> httpx.Response:
    return await rig.client.put("/models/digits/traffic", json={"weights": weights}, headers={"If-Match": based_on})


async def traffic(rig: Rig) -> dict[str, Any]:
    found: dict[str, Any] = (await rig.client.get("/models/digits/traffic")).json()
    return found


async def until_weights(rig: Rig, weights: dict[str, float]) -> None:
    async with asyncio.timeout(10):
        while (await traffic(rig))["weights"] != weights:
            await asyncio.sleep(0.01)
