"""Upgrades under load: a new gateway takes over from the running one, again and again, and no request fails."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests import images
from tests.end_to_end.test_images import bars
from tests.gateway import GatewayProcess
from tests.odd_archive import make_odd_store
from tests.service.process.test_take_over import ended, running
from tests.stack import Trained, gateway_of_workers, gateway_over
from tests.steady_clients import CLASSES, SteadyClients
from tests.torchserve_process import TorchServeProcess, free_ports

pytestmark = [pytest.mark.anyio, pytest.mark.soak, pytest.mark.timeout(530)]

NUM_CLIENTS = 32
NUM_UPGRADES = 20


async def upgrade(
    make: Callable[[], GatewayProcess], port: int, known: Sequence[tuple[bytes, str]], number: int
) -> None:
    """Upgrade so many times under clients; no request may fail."""
    clients = SteadyClients(port, NUM_CLIENTS, known)
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(running(make()))
        async with clients.asking():
            for _ in range(number):
                await clients.until_answered(200)
                new = await stack.enter_async_context(running(make()))
                assert await ended(old) == 0, old.log
                assert "nothing is left in progress" in old.log
                assert "Traceback" not in old.log
                old = new
            await clients.until_answered(200)
    seconds = time.monotonic() - started
    print(
        f"{number} upgrades in {seconds:.0f} s: {clients.answers.total()} right answers, "
        f"{clients.num_repeated} repeated on a new connection, {len(clients.failures)} failed"
    )
    assert not clients.failures, clients.failures[:5]


@pytest.mark.parametrize("backend", ["workers", "grpc"])
async def test_upgrades_under_load_fail_no_request(request: pytest.FixtureRequest, backend: str) -> None:
    with tempfile.TemporaryDirectory(prefix="r-") as scratch:
        env = {"TORCHGATE_PORT": str(free_ports(1)[0]), "TORCHGATE_HANDOVER_DIR": f"{scratch}/handover"}
        if backend == "workers":
            store = make_odd_store(Path(scratch) / "store")

            def make() -> GatewayProcess:
                return taking_over(gateway_of_workers(store, **env))

            await upgrade(make, int(env["TORCHGATE_PORT"]), CLASSES, NUM_UPGRADES)
            return
        trained: Trained = await asyncio.to_thread(request.getfixturevalue, "trained")
        with TorchServeProcess(trained.store) as torchserve:
            known = [(images.encode(bars(each), "PNG"), "horizontal" if each else "vertical") for each in (True, False)]
            await upgrade(
                lambda: taking_over(gateway_over(torchserve, TORCHGATE_BACKEND="grpc", **env)),
                int(env["TORCHGATE_PORT"]),
                known,
                1,
            )


def taking_over(process: GatewayProcess) -> GatewayProcess:
    process.command.append("--take-over")
    return process
