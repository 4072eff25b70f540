"""What the gateway makes of a model store: nothing in it yet, the wrong thing, a broken one among whole ones."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from service.domain.backend import Target
from tests.fake_backend import FakeBackend, FakeControl
from tests.gateway import running_gateway
from tests.stores import make_store, replace_archive

pytestmark = pytest.mark.anyio

DIGITS = Target("digits", "1.0")
INT8 = Target("digits", "1.0-int8-dynamic")


async def test_it_waits_for_the_first_archive(tmp_path: Path) -> None:
    store = tmp_path / "later"
    async with running_gateway(tmp_path, (), model_store=store, wait_until_ready=False) as rig:
        await rig.until_reason("no archive")
        rig.control.contracts.update(make_store(store, [("digits", "1.0", "fp32")]))
        await rig.until_ready()
        assert (await rig.predict(b"class:1")).status_code == 200


@pytest.mark.parametrize(
    ("manifest", "named"),
    [
        ("{", "Invalid JSON"),
        ('{"schema_version": 2, "archives": []}', "schema_version"),
        (
            '{"schema_version": 1, "archives": [{"file": "../x.mar", "model": "m", "version": "1", "release": "1",'
            ' "variant": "fp32", "sha256": "' + "0" * 64 + '"}]}',
            "file",
        ),
    ],
)
async def test_a_broken_manifest_is_named(tmp_path: Path, manifest: str, named: str) -> None:
    store = tmp_path / "broken"
    store.mkdir()
    (store / "manifest.json").write_text(manifest)
    async with running_gateway(tmp_path, (), model_store=store, wait_until_ready=False) as rig:
        assert named in (await rig.until_reason("manifest.json"))["detail"]


async def test_an_archive_that_is_not_the_one_in_the_manifest_is_not_loaded(tmp_path: Path) -> None:
    store = tmp_path / "store"
    contracts = make_store(store, [("digits", "1.0", "fp32")])
    with (store / "digits-1.0.mar").open("ab") as archive:
        archive.write(b"tampered")
    async with running_gateway(tmp_path, (), model_store=store, wait_until_ready=False) as rig:
        rig.control.contracts.update(contracts)
        await rig.until_reason("sha256")
        assert rig.control.calls == []


async def test_another_archive_under_the_same_version_is_replaced(tmp_path: Path) -> None:
    def other_archive(_: FakeBackend, control: FakeControl) -> None:
        ours = control.contracts[DIGITS]
        control.registered = {DIGITS: 1}
        control.contracts[DIGITS] = {**ours, "weights_sha256": "1" * 64}
        unload = control.unload

        async def unload_then_ours(target: Target) -> None:
            await unload(target)
            control.contracts[DIGITS] = ours

        control.unload = unload_then_ours  # type: ignore[method-assign]

    async with running_gateway(tmp_path, prepare=other_archive) as rig:
        assert rig.control.calls[:2] == [("unload", DIGITS), ("load", DIGITS)]


async def test_a_version_that_fails_its_self_check_is_not_offered(tmp_path: Path) -> None:
    store = tmp_path / "store"
    contracts = make_store(store, [("digits", "1.0", "fp32"), ("digits", "1.0", "int8-dynamic")])
    _expect(store, contracts, DIGITS, [0.0, 0.9, 0.1, 0.0])
    async with running_gateway(tmp_path, (), model_store=store, wait_until_ready=False) as rig:
        rig.control.contracts.update(contracts)
        problem = await rig.until_reason("self-check")
        assert "off by 0.1" in problem["detail"]
        await rig.until_state("1.0-int8-dynamic", "ready")
        assert (await rig.predict(b"class:1", params={"version": INT8.version})).status_code == 200
        assert (await rig.predict(b"class:1")).status_code == 503


def _expect(store: Path, contracts: dict[Target, dict[str, Any]], target: Target, probabilities: list[float]) -> None:
    """Write an archive whose contract promises other probabilities."""
    contracts[target]["self_check"]["cases"][0]["probabilities"] = probabilities
    replace_archive(store, target, _zipped(json.dumps(contracts[target])))


def _zipped(contract: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("contract.json", contract)
    return stream.getvalue()


async def test_a_broken_archive_fails_alone_and_is_opened_once_it_is_whole(tmp_path: Path) -> None:
    store = tmp_path / "store"
    contracts = make_store(store, [("digits", "1.0", "fp32"), ("digits", "1.0", "int8-dynamic")])
    path = store / "digits-1.0-int8-dynamic.mar"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    async with running_gateway(tmp_path, (), model_store=store, wait_until_ready=False) as rig:
        rig.control.contracts.update(contracts)
        await rig.until_ready()
        assert (await rig.predict(b"class:1")).status_code == 200
        await rig.until_state("1.0-int8-dynamic", "failed")
        assert await rig.states() == {"1.0": "ready", "1.0-int8-dynamic": "failed"}
        broken = await rig.predict(b"class:1", params={"version": "1.0-int8-dynamic"})
        assert (broken.status_code, broken.json()["code"]) == (503, "not_ready")
        assert "sha256" in (await rig.client.get("/readyz")).json()["reason"]
        path.write_bytes(whole)
        await rig.until_state("1.0-int8-dynamic", "ready")
        assert (await rig.predict(b"class:1", params={"version": "1.0-int8-dynamic"})).status_code == 200


async def test_an_archive_that_breaks_its_reader_fails_alone(tmp_path: Path) -> None:
    store = tmp_path / "store"
    contracts = make_store(store, [("digits", "1.0", "fp32"), ("digits", "1.0", "int8-dynamic")])
    hostile = bytearray(_zipped("{}" * 100))
    start = hostile.index(b"contract.json") + len("contract.json")
    hostile[start : start + 2] = b"\xff\xff"  # no deflate stream: zlib has an error of its own for that
    replace_archive(store, Target("digits", "1.0-int8-dynamic"), bytes(hostile))
    async with running_gateway(tmp_path, (), model_store=store, wait_until_ready=False) as rig:
        rig.control.contracts.update(contracts)
        await rig.until_ready()
        await rig.until_state("1.0-int8-dynamic", "failed")
        assert await rig.states() == {"1.0": "ready", "1.0-int8-dynamic": "failed"}
        broken = await rig.predict(b"class:1", params={"version": "1.0-int8-dynamic"})
        assert (broken.status_code, broken.json()["code"]) == (503, "not_ready")
        assert "contract.json" in (await rig.client.get("/readyz")).json()["reason"]
