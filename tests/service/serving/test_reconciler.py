"""Versions come up by themselves, whatever order things start, stop and come back in."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from service.domain.backend import Target, VerifiedArchive
from service.errors.gateway import AlreadyRegistered, BackendFailed, BackendTimeout, BackendUnavailable
from tests.fake_backend import FakeBackend, FakeControl
from tests.gateway import running_gateway

pytestmark = pytest.mark.anyio

DIGITS = Target("digits", "1.0")
INT8 = Target("digits", "1.0-int8-dynamic")


async def test_models_are_shown_with_their_contracts(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        await rig.until_every_version_is_ready()
        listed = (await rig.client.get("/models")).json()["models"]
        shown = (await rig.client.get("/models/digits")).json()
        missing = await rig.client.get("/models/cats")
    assert listed == [shown]
    first, second = shown["versions"]
    assert (first["version"], first["default"], second["default"]) == ("1.0", True, False)
    assert first["contract"]["classes"] == ["zero", "one", "two", "three"]
    assert first["contract"]["evaluation"] == {"accuracy": 0.99}
    assert len(first["sha256"]) == 64
    assert "self_check" not in first["contract"]
    assert (missing.status_code, missing.json()["code"]) == (404, "model_not_found")


async def test_the_default_version_is_loaded_first_and_is_the_newest_fp32(tmp_path: Path) -> None:
    versions = (("digits", "1.9", "fp32"), ("digits", "1.10", "int8-dynamic"), ("digits", "1.10", "fp32"))
    async with running_gateway(tmp_path, versions) as rig:
        assert (await rig.predict(b"class:1")).json()["version"] == "1.10"
        async with asyncio.timeout(10):
            while len(rig.control.calls) < 2:
                await asyncio.sleep(0.01)
        loads = [("load", Target("digits", "1.10")), ("load", Target("digits", "1.10-int8-dynamic"))]
        assert rig.control.calls == loads


async def test_workers_are_shown_while_other_versions_are_still_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()
    load = FakeControl.load

    async def slow(self: FakeControl, target: Target, archive: VerifiedArchive, num_workers: int) -> None:
        if target == INT8:
            await go_on.wait()
        await load(self, target, archive, num_workers)

    monkeypatch.setattr(FakeControl, "load", slow)
    async with running_gateway(tmp_path, wait_until_ready=False) as rig:
        await rig.until_ready()
        async with asyncio.timeout(10):
            while await rig.metric("torchgate_backend_workers", version="1.0", state="ready") < 1:
                await asyncio.sleep(0.01)
        assert INT8 not in rig.control.registered
        go_on.set()
        await rig.until_every_version_is_ready()


async def test_several_models_need_a_name_or_a_default(tmp_path: Path) -> None:
    versions = (("cats", "1.0", "fp32"), ("digits", "1.0", "fp32"))
    async with running_gateway(tmp_path / "a", versions) as rig:
        answer = await rig.predict(b"class:1")
        assert (answer.status_code, answer.json()["code"]) == (422, "parameter_invalid")
        assert "cats, digits" in answer.json()["detail"]
        assert (await rig.predict(b"class:1", params={"model": "cats"})).json()["model"] == "cats"
    async with running_gateway(tmp_path / "b", versions, default_model="digits") as rig:
        # /readyz was 200 as soon as the default model was, whatever the other one does
        assert (await rig.predict(b"class:1")).json()["model"] == "digits"
    async with running_gateway(tmp_path / "c", versions, default_model="dogs", wait_until_ready=False) as rig:
        assert "cats, digits" in (await rig.until_reason("TORCHGATE_DEFAULT_MODEL=dogs"))["detail"]


async def test_it_waits_for_the_backend_and_says_so(tmp_path: Path) -> None:
    def down(_: FakeBackend, control: FakeControl) -> None:
        control.down_with = BackendUnavailable("TorchServe at http://somewhere: refused")

    async with running_gateway(tmp_path, prepare=down, wait_until_ready=False) as rig:
        problem = await rig.until_reason("http://somewhere")
        assert problem["code"] == "not_ready"
        assert (await rig.client.get("/healthz")).status_code == 200
        refused = await rig.predict(b"class:1")
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        rig.control.down_with = None
        await rig.until_ready()
        assert (await rig.predict(b"class:1")).status_code == 200


async def test_the_backend_restarts_without_its_models(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        rig.control.down_with = BackendUnavailable("connection refused")
        await rig.until_ready(503)
        assert await rig.metric("torchgate_backend_up") == 0
        assert await rig.metric("torchgate_model_ready", version="1.0") == 0
        rig.control.registered.clear()
        rig.control.down_with = None
        await rig.until_ready()
        assert rig.control.calls.count(("load", DIGITS)) == 2
        assert (await rig.predict(b"class:1")).status_code == 200


async def test_a_slow_answer_is_not_an_outage_but_silence_is(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (("digits", "1.0", "fp32"),)) as rig:
        surveys = _late_surveys(rig.control, 2)
        async with asyncio.timeout(10):
            while surveys.count("answered") < 3:
                await asyncio.sleep(0.01)
        assert surveys[:3] == ["late", "late", "answered"]
        assert rig.control.num_contracts == 1  # it never left `ready`: nothing was checked again
        rig.control.down_with = BackendTimeout(5000)
        await rig.until_ready(503)
        rig.control.down_with = None
        await rig.until_ready()
        assert rig.control.calls.count(("load", DIGITS)) == 1


def _late_surveys(control: FakeControl, num_late: int) -> list[str]:
    """Have the next surveys time out; return the list that tells how each one went."""
    survey, surveys = control.survey, list[str]()

    async def late_at_first() -> Any:
        if len(surveys) < num_late:
            surveys.append("late")
            raise BackendTimeout(5000)
        answer = await survey()
        surveys.append("answered")
        return answer

    control.survey = late_at_first  # type: ignore[method-assign]
    return surveys


async def test_what_waits_is_answered_when_the_workers_die(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        running = await rig.fill_the_slot()
        waiting = asyncio.create_task(rig.predict(b"class:1"))
        await rig.until_queued(1)
        rig.control.num_ready = 0
        answer = await waiting
        assert (answer.status_code, answer.json()["code"]) == (503, "backend_unavailable")
        await rig.until_reason("workers")
        rig.backend.release()
        assert (await running).status_code == 200
        rig.control.num_ready = None
        await rig.until_ready()
        assert rig.control.calls.count(("load", DIGITS)) == 1  # the server brought its workers back by itself


async def test_workers_are_scaled_to_what_is_wanted(tmp_path: Path) -> None:
    def registered(_: FakeBackend, control: FakeControl) -> None:
        control.registered = {DIGITS: 3, INT8: 1}

    async with running_gateway(tmp_path, prepare=registered) as rig:
        assert rig.control.calls == [("scale", DIGITS)]
        assert rig.control.registered[DIGITS] == 1


async def test_a_load_that_fails_is_tried_again(tmp_path: Path) -> None:
    def first_load_fails(_: FakeBackend, control: FakeControl) -> None:
        load = control.load

        async def fail_once(target: Target, archive: VerifiedArchive, num_workers: int) -> None:
            control.load = load  # type: ignore[method-assign]
            raise BackendFailed("HTTP 500: Failed to start workers")

        control.load = fail_once  # type: ignore[method-assign]

    async with running_gateway(tmp_path, prepare=first_load_fails, wait_until_ready=False) as rig:
        await rig.until_reason("Failed to start workers")
        await rig.until_ready()
        assert (await rig.predict(b"class:1")).status_code == 200


async def test_the_number_of_workers_is_put_right(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, workers_per_version=2) as rig:
        rig.control.registered[DIGITS] = 1  # somebody else scaled it
        async with asyncio.timeout(10):
            while rig.control.registered[DIGITS] != 2:
                await asyncio.sleep(0.01)
        assert ("scale", DIGITS) in rig.control.calls
        # That it is left alone for a while now is about its size, not about workers that die and come back.
        rig.control.num_ready = 0
        await rig.until_state("1.0", "unavailable")
        rig.control.num_ready = None
        await rig.until_state("1.0", "ready")


async def test_what_another_gateway_loads_is_waited_for_and_not_replaced(tmp_path: Path) -> None:
    def loading(_: FakeBackend, control: FakeControl) -> None:
        control.registered = {DIGITS: 1}
        control.num_ready_of[DIGITS] = 0

    async with running_gateway(tmp_path, prepare=loading, wait_until_ready=False) as rig:
        await rig.until_reason("is loading")
        rig.control.num_ready_of.clear()
        await rig.until_ready()
        assert [call for call in rig.control.calls if call[1] == DIGITS] == []


async def test_who_comes_second_with_a_load_waits_for_the_first(tmp_path: Path) -> None:
    def first(_: FakeBackend, control: FakeControl) -> None:
        async def load(target: Target, archive: VerifiedArchive, num_workers: int) -> None:
            control.registered[target] = num_workers
            raise AlreadyRegistered("Model version 1.0 is already registered")

        control.load = load  # type: ignore[method-assign]

    async with running_gateway(tmp_path, prepare=first) as rig:
        assert set((await rig.states()).values()) == {"ready"}
        assert rig.control.calls == []


async def test_what_nobody_brings_up_within_the_load_timeout_is_replaced(tmp_path: Path) -> None:
    def dead(_: FakeBackend, control: FakeControl) -> None:
        control.registered = {DIGITS: 1}
        control.num_ready_of[DIGITS] = 0
        unload = control.unload

        async def alive_again(target: Target) -> None:
            await unload(target)
            control.num_ready_of.clear()

        control.unload = alive_again  # type: ignore[method-assign]

    async with running_gateway(tmp_path, prepare=dead, load_timeout_seconds=0.3) as rig:
        assert rig.control.calls[:2] == [("unload", DIGITS), ("load", DIGITS)]


async def test_a_slow_load_does_not_keep_others_from_being_watched(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (("digits", "1.0", "fp32"), ("digits", "1.1", "fp32"))) as rig:
        finished = rig.control.hold(DIGITS)
        body = {"file": "digits-1.0.mar"}
        registering = asyncio.create_task(rig.client.post("/models/digits/versions", json=body))
        async with asyncio.timeout(10):
            while DIGITS not in rig.control.registered:
                await asyncio.sleep(0.005)
        rig.control.num_ready_of[Target("digits", "1.1")] = 0
        await rig.until_state("1.1", "unavailable")
        rig.control.num_ready_of.clear()
        await rig.until_state("1.1", "ready")
        assert not registering.done()
        finished.set()
        assert (await registering).status_code == 201


async def test_a_slow_first_load_does_not_keep_others_from_being_watched(tmp_path: Path) -> None:
    finished: list[asyncio.Event] = []

    def slow(_: FakeBackend, control: FakeControl) -> None:
        finished.append(control.hold(INT8))

    async with running_gateway(tmp_path, prepare=slow, wait_until_ready=False) as rig:
        await rig.until_state("1.0-int8-dynamic", "loading")
        rig.control.num_ready_of[DIGITS] = 0
        await rig.until_state("1.0", "unavailable")
        finished[0].set()
        await rig.until_state("1.0-int8-dynamic", "ready")
