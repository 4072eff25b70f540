"""A new gateway takes the port over from the running one; nobody notices."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from service.process.meeting_place import MeetingPlace
from service.process.old_gateway import HandoverFailed, OldGateway
from tests.gateway import GatewayProcess, Rig, running_gateway
from tests.steady_clients import SteadyClients
from tests.stores import make_store
from tests.torchserve_process import free_ports

pytestmark = pytest.mark.anyio

VERSIONS = (("digits", "1.0", "fp32"),)
NUM_CLIENTS = 8  # the machine has to start gateways, too


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """What all gateways of a test share."""
    make_store(tmp_path / "store", VERSIONS)
    return {
        "TORCHGATE_MODEL_STORE": str(tmp_path / "store"),
        "TORCHGATE_PORT": str(free_ports(1)[0]),
        "TORCHGATE_HANDOVER_DIR": str(tmp_path / "handover"),
        "TORCHGATE_BACKEND": "workers",  # each gateway loads for itself; the fake stands behind it
        "TORCHGATE_HEALTH_INTERVAL_SECONDS": "0.2",
    }


@asynccontextmanager
async def old_one(env: dict[str, str], tmp_path: Path) -> AsyncIterator[Rig]:
    """Run the gateway that is to be replaced inside the test; `env` gets its port."""
    folder = Path(env["TORCHGATE_HANDOVER_DIR"])
    async with running_gateway(tmp_path, VERSIONS, handover_dir=folder) as rig:
        env["TORCHGATE_PORT"] = str(rig.port)
        yield rig


def place_of(env: dict[str, str]) -> MeetingPlace:
    return MeetingPlace(Path(env["TORCHGATE_HANDOVER_DIR"]), f"127.0.0.1-{env['TORCHGATE_PORT']}")


async def found(env: dict[str, str]) -> OldGateway:
    old = await asyncio.to_thread(OldGateway.find, place_of(env))
    assert old is not None
    return old


async def until_logged(process: GatewayProcess, text: str) -> None:
    async with asyncio.timeout(30):
        while text not in process.log:
            assert process.process is not None
            assert process.process.poll() is None, process.log
            await asyncio.sleep(0.02)


def start(process: GatewayProcess) -> GatewayProcess:
    """Start it without waiting until it listens: it does not yet."""
    process.launch()
    return process


def gateway(env: dict[str, str], *options: str, **others: str) -> GatewayProcess:
    process = GatewayProcess(**env | others)
    process.command = [sys.executable, "-m", "tests.fake_gateway", "serve", *options]
    return process


@asynccontextmanager
async def running(process: GatewayProcess) -> AsyncIterator[GatewayProcess]:
    """Run a gateway; it may have ended by itself before."""
    try:
        await asyncio.to_thread(process.start)
        await asyncio.to_thread(process.until_ready)
        yield process
    finally:
        await asyncio.to_thread(process.__exit__, None, None, None)


async def ended(process: GatewayProcess) -> int:
    assert process.process is not None
    return await asyncio.to_thread(process.process.wait, 30)


async def test_three_upgrades_under_clients_lose_nothing(env: dict[str, str]) -> None:
    env["TORCHGATE_ADMIN_PORT"] = str(free_ports(1)[0])
    clients = SteadyClients(int(env["TORCHGATE_PORT"]), NUM_CLIENTS)
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(running(gateway(env, "--take-over")))  # there is none to take over from
        async with clients.asking():
            for _ in range(3):
                await clients.until_answered(500)
                new = await stack.enter_async_context(running(gateway(env, "--take-over")))
                assert await ended(old) == 0, old.log
                assert "has taken over" in old.log
                assert "nothing is left in progress" in old.log
                old = new
            await clients.until_answered(500)
        async with httpx.AsyncClient(trust_env=False) as operator:
            assert (await operator.get(f"http://127.0.0.1:{env['TORCHGATE_ADMIN_PORT']}/metrics")).status_code == 200
        print(f"{clients.answers.total()} answers, {clients.num_repeated} repeated")
        assert not clients.failures, clients.failures[:5]
    assert await asyncio.to_thread(OldGateway.find, place_of(env)) is None
    assert not await asyncio.to_thread(place_of(env).folder.exists)


async def test_one_that_is_not_ready_in_time_ends_and_the_old_one_goes_on(env: dict[str, str], tmp_path: Path) -> None:
    make_store(tmp_path / "other", (("digits", "2.0", "fp32"),))  # the old one answers with a version that it lacks
    async with old_one(env, tmp_path) as rig:
        others = {"TORCHGATE_MODEL_STORE": str(tmp_path / "other"), "TORCHGATE_LOAD_TIMEOUT_SECONDS": "0.5"}
        new = start(gateway(env, "--take-over", **others))
        assert await ended(new) == 1
        assert "digits 1.0 not ready here, but in the running gateway" in new.log
        assert "Traceback" not in new.log
        assert (await rig.predict(b"class:2")).status_code == 200
        assert (await rig.client.get("/readyz")).status_code == 200
        await asyncio.to_thread(new.stop)


async def test_one_that_is_stopped_while_it_waits_leaves_the_old_one_alone(env: dict[str, str], tmp_path: Path) -> None:
    make_store(tmp_path / "other", (("digits", "2.0", "fp32"),))
    async with old_one(env, tmp_path) as rig:
        new = start(gateway(env, "--take-over", TORCHGATE_MODEL_STORE=str(tmp_path / "other")))
        await until_logged(new, "every version is ready")
        assert await asyncio.to_thread(new.stop) == -signal.SIGTERM
        assert "nothing is left in progress" in new.log
        assert (await rig.predict(b"class:2")).status_code == 200


async def test_if_the_old_one_dies_meanwhile_the_new_one_opens_the_port(env: dict[str, str], tmp_path: Path) -> None:
    make_store(tmp_path / "other", (("digits", "2.0", "fp32"),))
    async with running(gateway(env)) as old:
        new = start(gateway(env, "--take-over", TORCHGATE_MODEL_STORE=str(tmp_path / "other")))
        await until_logged(new, "every version is ready")
        assert old.process is not None
        old.process.kill()
        try:
            await until_logged(new, "torchgate listens on")
            assert "this one opens its port itself" in new.log
        finally:
            await asyncio.to_thread(new.stop)


async def test_one_that_dies_with_the_sockets_changes_nothing(env: dict[str, str], tmp_path: Path) -> None:
    async with old_one(env, tmp_path) as rig:
        first, second = await found(env), await found(env)
        (taken,) = await asyncio.to_thread(first.take)
        assert taken.name == "http"
        assert taken.address == ("127.0.0.1", rig.port)
        with pytest.raises(HandoverFailed, match="another new gateway"):
            await asyncio.to_thread(second.take)
        taken.socket.close()
        first.close()  # as when its process ends
        assert (await rig.predict(b"class:2")).status_code == 200
        (taken,) = await asyncio.to_thread(second.take)
        await asyncio.to_thread(second.relieve)
        # The old one listens no more, but the socket is open and takes connections.
        taken.socket.setblocking(True)
        _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        accepted, _ = await asyncio.to_thread(taken.socket.accept)
        accepted.close()
        writer.close()
        second.close()
        taken.socket.close()


async def test_after_the_handover_an_idle_connection_gets_one_more_answer(env: dict[str, str], tmp_path: Path) -> None:
    async with old_one(env, tmp_path) as rig:
        await rig.client.get("/healthz")  # its connection stays
        new = await found(env)
        (taken,) = await asyncio.to_thread(new.take)
        await asyncio.to_thread(new.relieve)
        answer = await rig.client.get("/readyz")
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")  # the address is served as before
        new.close()
        taken.socket.close()


async def test_without_the_option_a_taken_port_is_refused_with_a_hint(env: dict[str, str], tmp_path: Path) -> None:
    async with old_one(env, tmp_path):
        new = start(gateway(env))
        assert await ended(new) == 2
        assert f"cannot listen on 127.0.0.1:{env['TORCHGATE_PORT']} (TORCHGATE_HOST, TORCHGATE_PORT)" in new.log
        assert "serve --take-over" in new.log
        new = start(gateway(env, "--take-over", TORCHGATE_PORT="0"))
        assert await ended(new) == 2
        assert "TORCHGATE_PORT" in new.log


async def test_a_folder_that_others_may_enter_is_not_used(env: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "handover"
    folder.mkdir()
    folder.chmod(0o755)
    async with old_one(env, tmp_path) as rig:
        assert list(folder.iterdir()) == []
        assert (await rig.client.get("/readyz")).status_code == 200
        with pytest.raises(HandoverFailed, match="mode 0700"):
            await asyncio.to_thread(OldGateway.find, place_of(env))
    linked = tmp_path / "linked"
    folder.chmod(0o700)
    linked.symlink_to(folder)
    with pytest.raises(HandoverFailed, match="TORCHGATE_HANDOVER_DIR"):
        OldGateway.find(MeetingPlace(linked, "127.0.0.1-1"))
