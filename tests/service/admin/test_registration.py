"""Versions are registered and unregistered, by hand and by the model store's policy; nothing is lost."""

import asyncio
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from service.domain.backend import Target
from tests.gateway import running_gateway
from tests.service.operator import NEW, OLD, change, events, shares
from tests.service.problems import problem_of
from tests.stores import make_store, replace_archive

pytestmark = pytest.mark.anyio


async def test_a_version_is_registered_scaled_and_unregistered(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW)) as rig:  # the newest release alone
        assert await rig.states() == {"1.1": "ready"}
        answer = await change(rig, "POST", "/versions", {"file": "digits-1.0.mar", "num_workers": 2}, if_match="")
        assert (answer.status_code, answer.json()["state"], answer.json()["weight"]) == (201, "ready", 0)
        assert rig.control.registered[Target("digits", "1.0")] == 2
        assert await shares(rig, 3) == {"1.1": 3}
        assert await shares(rig, 3, params={"version": "1.0"}) == {"1.0": 3}
        answer = await change(rig, "PATCH", "/versions/1.0", {"num_workers": 3}, if_match="")
        assert (answer.status_code, answer.json()["num_workers"]) == (200, 3)
        assert rig.control.registered[Target("digits", "1.0")] == 3
        again = await change(rig, "POST", "/versions", {"file": "digits-1.0.mar"}, if_match="")
        assert (again.status_code, again.json()["code"]) == (409, "version_exists")
        assert (await change(rig, "DELETE", "/versions/1.0", if_match="")).status_code == 204
        assert Target("digits", "1.0") not in rig.control.registered
        assert await rig.states() == {"1.1": "ready"}
        assert await rig.metric("torchgate_model_ready", version="1.0") == 0
        gone = await rig.predict(b"class:1", params={"version": "1.0"})
        assert (gone.status_code, gone.json()["code"]) == (404, "version_not_found")
        log = await events(rig)
    assert [(e["action"], e["outcome"]) for e in log] == [
        ("notice", "done"),
        ("register", "done"),
        ("scale", "done"),
        ("register", "refused"),
        ("unregister", "done"),
    ]


async def test_what_a_version_has_is_answered_before_it_goes(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await rig.until_every_version_is_ready()
        rig.backend.hold()
        running = asyncio.create_task(rig.predict(b"class:0", params={"version": "1.0"}))
        await rig.backend.batches_arrived(1)
        waiting = asyncio.create_task(rig.predict(b"class:2", params={"version": "1.0"}))
        await rig.until("torchgate_queue_depth", 1, version="1.0")
        going = asyncio.create_task(change(rig, "DELETE", "/versions/1.0", if_match=""))
        await rig.until_state("1.0", "draining")
        refused = await rig.predict(b"class:0", params={"version": "1.0"})
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        assert Target("digits", "1.0") in rig.control.registered
        rig.backend.release()
        assert {(await running).status_code, (await waiting).status_code} == {200}
        assert (await going).status_code == 204
        assert Target("digits", "1.0") not in rig.control.registered


async def test_a_drain_waits_for_a_body_that_is_on_its_way(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, (OLD, NEW), model_store_policy="all") as rig:
        await rig.until_every_version_is_ready()
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        head = "POST /predict?version=1.0 HTTP/1.1", "Host: localhost", "Content-Type: image/png", "Content-Length: 7"
        writer.write("\r\n".join([*head, "", ""]).encode())
        await rig.until("torchgate_http_requests_in_progress", 1, route="/predict")
        going = asyncio.create_task(change(rig, "DELETE", "/versions/1.0", if_match=""))
        await rig.until_state("1.0", "draining")
        writer.write(b"class:1")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        assert (await going).status_code == 204


async def test_new_archives_are_noticed_and_get_no_traffic(tmp_path: Path) -> None:
    store = tmp_path / "store"
    options: dict[str, Any] = {"model_store": store, "model_store_poll_seconds": 0.02}
    contracts = make_store(store, (OLD,))
    async with running_gateway(tmp_path, (), wait_until_ready=False, **options) as rig:
        rig.control.contracts.update(contracts)
        await rig.until_ready()
        rig.control.contracts.update(make_store(store, (OLD, NEW)))
        await rig.until_state("1.1", "ready")
        assert await shares(rig, 5) == {"1.0": 5}
        assert (await change(rig, "DELETE", "/versions/1.1", if_match="")).status_code == 204
        rig.control.contracts.update(make_store(store, (OLD, NEW, ("digits", "1.2", "fp32"))))
        await rig.until_state("1.2", "ready")  # the store was read again, and 1.1 stays away
        assert await rig.states() == {"1.0": "ready", "1.2": "ready"}


async def test_nothing_is_registered_by_itself_where_that_is_asked_for(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model_store_policy": "specific"}
    async with running_gateway(tmp_path, (OLD, NEW), wait_until_ready=False, **options) as rig:
        await rig.until_reason("TORCHGATE_MODEL_STORE_POLICY=specific")
        answer = await rig.client.post("/models/digits/versions", json={"file": "digits-1.0.mar"})
        assert answer.status_code == 201, answer.text
        assert await shares(rig, 2) == {"1.0": 2}


async def test_no_version_gets_more_workers_than_the_settings_allow(tmp_path: Path) -> None:
    named = "TORCHGATE_MAX_WORKERS_PER_VERSION allows 4"
    async with running_gateway(tmp_path, (OLD, NEW), max_workers_per_version=4) as rig:
        body = {"file": "digits-1.0.mar", "num_workers": 5}
        problem = problem_of(await change(rig, "POST", "/versions", body, if_match=""), 422, "too_many_workers")
        assert named in problem["detail"]
        for num_workers in (5, 10**30):
            answer = await change(rig, "PATCH", "/versions/1.1", {"num_workers": num_workers}, if_match="")
            assert named in problem_of(answer, 422, "too_many_workers")["detail"]
        answer = await change(rig, "PATCH", "/versions/1.1", {"num_workers": 4}, if_match="")
        assert (answer.status_code, answer.json()["num_workers"]) == (200, 4)
        refused = [(event["action"], event["outcome"]) for event in await events(rig)]
    assert refused[-4:] == [("register", "refused"), *[("scale", "refused")] * 2, ("scale", "done")]
    async with running_gateway(tmp_path, (OLD, NEW), max_workers_per_version=2) as rig:  # recorded when 4 were allowed
        assert rig.control.registered == {Target("digits", "1.1"): 2}
        (version,) = (await rig.client.get("/models/digits")).json()["versions"]
        assert version["num_workers"] == 2


async def test_an_archive_whose_own_settings_ask_for_more_workers_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "store"
    make_store(store, (OLD, NEW))
    async with running_gateway(tmp_path, (OLD, NEW), max_workers_per_version=4) as rig:
        path = store / "digits-1.0.mar"
        plain = path.read_bytes()
        for num_workers, status in ((5, 422), (4, 201)):
            content = io.BytesIO(plain)
            with zipfile.ZipFile(content, "a") as archive:
                archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": {"configFile": f"{num_workers}.yaml"}}))
                archive.writestr(f"{num_workers}.yaml", f"# for TorchServe\nminWorkers: {num_workers}\n")
            replace_archive(store, Target("digits", "1.0"), content.getvalue())
            answer = await change(rig, "POST", "/versions", {"file": path.name}, if_match="")
            assert answer.status_code == status, answer.text
            if status == 422:
                detail = problem_of(answer, 422, "archive_refused")["detail"]
                assert "5.yaml asks for 5 workers, TORCHGATE_MAX_WORKERS_PER_VERSION allows 4" in detail
