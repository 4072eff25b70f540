"""Every load goes through the same check of the bytes, first and again, whatever the backend."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from service.domain.backend import Target, VerifiedArchive, VersionStatus
from service.errors.gateway import BackendFailed
from tests.fake_backend import FakeBackend, FakeControl
from tests.gateway import running_gateway
from tests.stores import make_contract, make_store, replace_archive

pytestmark = pytest.mark.anyio

DIGITS = Target("digits", "1.0")
VERSIONS = (("digits", "1.0", "fp32"),)
KINDS = pytest.mark.parametrize("kind", ["workers", "grpc", "rest"])


@KINDS
async def test_an_archive_that_was_changed_is_not_loaded_again(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store" / "digits-1.0.mar"
    async with running_gateway(tmp_path, VERSIONS, backend=kind, verified_archives_dir=tmp_path / "copies") as rig:
        released = path.read_bytes()
        path.write_bytes(released + b"tampered")
        rig.control.registered.clear()  # as a model server that was restarted
        problem = await rig.until_reason("the manifest says")
        assert f"{path}: its sha256 is" in problem["detail"]
        assert rig.control.calls == [("load", DIGITS)]
        path.write_bytes(released)
        await rig.until_ready()
        assert rig.control.calls == [("load", DIGITS)] * 2


@KINDS
async def test_an_archive_that_is_changed_between_two_attempts_is_not_loaded(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store" / "digits-1.0.mar"
    loads: list[bytes] = []

    def prepare(_: FakeBackend, control: FakeControl) -> None:
        async def load(target: Target, archive: VerifiedArchive, num_workers: int) -> None:
            loads.append(archive.file.read())
            path.write_bytes(b"swapped")
            raise BackendFailed("HTTP 500: Failed to start workers")

        control.load = load  # type: ignore[method-assign]

    options: dict[str, Any] = {"backend": kind, "verified_archives_dir": tmp_path / "copies"}
    async with running_gateway(tmp_path, VERSIONS, prepare=prepare, wait_until_ready=False, **options) as rig:
        await rig.until_reason("the manifest says")
        assert len(loads) == 1
        assert list((tmp_path / "copies").iterdir()) == []


async def test_a_version_of_a_file_that_is_no_verified_copy_is_replaced(tmp_path: Path) -> None:
    """A TorchServe that runs already may have been given any archive with the same contract."""

    def loaded_by_a_stranger(_: FakeBackend, control: FakeControl) -> None:
        control.registered = {DIGITS: 1}
        status = control._status
        control._status = lambda *a: _with_file(status(*a), control)  # type: ignore[method-assign]

    def _with_file(status: VersionStatus, control: FakeControl) -> VersionStatus:
        loads = [call for call in control.calls if call[0] == "load"]
        return VersionStatus(status.num_workers_wanted, status.worker_states, 0, (), "" if loads else "digits-1.0.mar")

    options: dict[str, Any] = {"backend": "grpc", "verified_archives_dir": tmp_path / "copies"}
    async with running_gateway(tmp_path, VERSIONS, prepare=loaded_by_a_stranger, **options) as rig:
        assert rig.control.calls == [("unload", DIGITS), ("load", DIGITS)]


async def test_a_class_whose_name_is_not_utf_8_spoils_no_scrape_and_no_list(tmp_path: Path) -> None:
    contract = {**make_contract("digits", "1.0", "fp32"), "classes": ["zero", "one", "two", "thr\udcff"]}
    store, target = tmp_path / "store", DIGITS
    make_store(store, VERSIONS)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("contract.json", json.dumps(contract))
    replace_archive(store, target, content.getvalue())
    async with running_gateway(tmp_path, (), model_store=store, control=FakeControl({target: contract})) as rig:
        (prediction,) = (await rig.predict(b"class:3")).json()["predictions"]
        assert prediction["label"] == "thr\\udcff"
        for path in ("/metrics", "/models", "/models/digits", "/models/digits/quality"):
            answer = await rig.client.get(path)
            assert answer.status_code == 200, path
            assert "thr\\" in answer.text, path
