"""What must not be loaded is refused by name, at the first load and at every other, whatever the backend."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.domain.backend import Target
from tests.gateway import Rig, running_gateway
from tests.signing import Key, delist, new_key, sign, trust
from tests.stores import make_store

pytestmark = pytest.mark.anyio

DIGITS = Target("digits", "1.0")
FILE = "digits-1.0.mar"
VERSIONS = [("digits", "1.0", "fp32"), ("digits", "1.0", "int8-dynamic")]
BACKENDS = pytest.mark.parametrize("backend", ["workers", "grpc", "rest"])


@dataclass(frozen=True)
class Signed:
    """A store whose manifest has the counter 5, and the folder of trusted keys."""

    store: Path
    keys: Path
    key: Key

    @classmethod
    def make(cls, tmp_path: Path) -> "Signed":
        key = new_key()
        make_store(tmp_path / "store", VERSIONS)
        sign(tmp_path / "store", key, 5)
        return cls(tmp_path / "store", trust(tmp_path / "keys", key), key)

    def tamper(self) -> None:
        (self.store / FILE).write_bytes(b"tampered")

    def swap_the_entry(self) -> None:
        """Make the manifest name the tampered bytes."""
        text = (self.store / "manifest.json").read_text()
        self.tamper()
        (self.store / "manifest.json").write_text(text.replace(text[text.index('"sha256": "') :][11:75], "0" * 64))

    def replay(self) -> None:
        sign(self.store, self.key, 4)

    def same_counter(self) -> None:
        with (self.store / "manifest.json").open("a") as manifest:
            manifest.write("\n")
        sign(self.store, self.key, 5)

    def expire(self) -> None:
        sign(self.store, self.key, 6, days=-1)

    def unsign(self) -> None:
        (self.store / "manifest.json.sig").unlink()

    def remove_the_manifest(self) -> None:
        (self.store / "manifest.json").unlink()

    def sign_by_the_old_way(self) -> None:
        (self.store / "manifest.json.sig").write_text("ab" * 32)

    def revoke_the_archive(self) -> None:
        delist(self.store, FILE)
        sign(self.store, self.key, 6)

    def revoke_the_key(self) -> None:
        trust(self.keys, new_key())

    def sign_by_a_stranger(self) -> None:
        sign(self.store, new_key(), 6)


ATTACKS: list[tuple[Callable[[Signed], None], str]] = [
    (Signed.tamper, "tampered"),
    (Signed.swap_the_entry, "forged"),
    (Signed.replay, "replayed"),
    (Signed.same_counter, "replayed"),
    (Signed.expire, "expired"),
    (Signed.unsign, "unsigned"),
    (Signed.sign_by_the_old_way, "unsigned"),
    (Signed.remove_the_manifest, "unsigned"),
    (Signed.revoke_the_archive, "revoked"),
    (Signed.revoke_the_key, "unknown_key"),
    (Signed.sign_by_a_stranger, "unknown_key"),
]


def options(signed: Signed, backend: str) -> dict[str, Any]:
    return {
        "model_store": signed.store,
        "trusted_keys_dir": signed.keys,
        "backend": backend,
        "verified_archives_dir": signed.store.parent / "copies",
    }


def trust_control(rig: Rig, tmp_path: Path) -> None:
    """The fake model server describes what was released."""
    rig.control.contracts.update(make_store(tmp_path / "elsewhere", VERSIONS))


async def until_loaded_again(rig: Rig) -> None:
    """Have the model server forget everything; return once the version was loaded anew."""
    num_loads = rig.control.calls.count(("load", DIGITS))
    rig.control.registered.clear()
    async with asyncio.timeout(10):
        while rig.control.calls.count(("load", DIGITS)) == num_loads:
            await asyncio.sleep(0.01)
    await rig.until_every_version_is_ready()


async def until_refused(rig: Rig) -> list[tuple[str, str]]:
    """Return action and detail of the refusals of digits 1.0 once the state database has one.

    A version's state is shown first; the database writes the event on a thread of its own.
    """
    async with asyncio.timeout(10):
        while True:
            events = (await rig.client.get("/models/digits/events")).json()["events"]
            refused = [each for each in events if each["outcome"] == "refused" and each["subject"] == "1.0"]
            if refused:
                return [(each["action"], each["detail"]) for each in refused]
            await asyncio.sleep(0.01)


@BACKENDS
@pytest.mark.parametrize(("attack", "fault"), ATTACKS)
async def test_it_is_not_loaded_again(
    tmp_path: Path, backend: str, attack: Callable[[Signed], None], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    signed = Signed.make(tmp_path)
    async with running_gateway(tmp_path, (), wait_until_ready=False, **options(signed, backend)) as rig:
        trust_control(rig, tmp_path)
        await rig.until_every_version_is_ready()
        attack(signed)
        rig.control.calls.clear()
        rig.control.registered.clear()  # as a model server that was restarted
        await rig.until_state("1.0", "failed")
        shown = (await rig.client.get("/models/digits")).json()["versions"][0]
        assert shown["reason"].endswith(f"({fault})")
        assert ("load", DIGITS) not in rig.control.calls
        assert await rig.metric("torchgate_archive_refusals_total", reason=fault) >= 1
        assert await until_refused(rig) == [("load", shown["reason"])]
        assert any(f"digits 1.0 is failed: {shown['reason']}" in line for line in caplog.messages)


@pytest.mark.parametrize(("attack", "fault"), ATTACKS)
async def test_it_is_not_loaded_by_a_gateway_that_starts(
    tmp_path: Path, attack: Callable[[Signed], None], fault: str
) -> None:
    """The database knows the version and the counter from before."""
    signed = Signed.make(tmp_path)
    async with running_gateway(tmp_path, (), wait_until_ready=False, **options(signed, "rest")) as rig:
        trust_control(rig, tmp_path)
        await rig.until_every_version_is_ready()
    attack(signed)
    async with running_gateway(tmp_path, (), wait_until_ready=False, **options(signed, "rest")) as rig:
        trust_control(rig, tmp_path)
        await rig.until_reason(f"({fault})")
        assert ("load", DIGITS) not in rig.control.calls
        assert await rig.metric("torchgate_archive_refusals_total", reason=fault) >= 1


async def test_nothing_is_registered_from_an_unsigned_store(tmp_path: Path) -> None:
    signed = Signed.make(tmp_path)
    signed.unsign()
    async with running_gateway(tmp_path, (), wait_until_ready=False, **options(signed, "grpc")) as rig:
        trust_control(rig, tmp_path)
        problem = await rig.until_reason("(unsigned)")
        assert "python -m training sign" in problem["detail"]
        assert rig.control.calls == []
        sign(signed.store, signed.key, 6)
        await rig.until_ready()
        assert await rig.metric("torchgate_manifest_expiry_timestamp_seconds") > 0


async def test_keys_rotate_without_a_restart(tmp_path: Path) -> None:
    signed, new = Signed.make(tmp_path), new_key()
    async with running_gateway(tmp_path, (), wait_until_ready=False, **options(signed, "grpc")) as rig:
        trust_control(rig, tmp_path)
        await rig.until_every_version_is_ready()
        trust(signed.keys, signed.key, new)
        sign(signed.store, new, 6)
        await until_loaded_again(rig)
        trust(signed.keys, new)
        await until_loaded_again(rig)


async def test_a_stolen_key_that_is_removed_holds_up_nobody_by_its_counter(tmp_path: Path) -> None:
    signed, stolen = Signed.make(tmp_path), new_key()
    trust(signed.keys, signed.key, stolen)
    sign(signed.store, stolen, 2**53 - 1)
    async with running_gateway(tmp_path, (), wait_until_ready=False, **options(signed, "grpc")) as rig:
        trust_control(rig, tmp_path)
        await rig.until_every_version_is_ready()
    sign(signed.store, signed.key, 6)
    async with running_gateway(tmp_path, (), wait_until_ready=False, **options(signed, "grpc")) as rig:
        trust_control(rig, tmp_path)
        await rig.until_reason("(replayed)")
        trust(signed.keys, signed.key)
        await rig.until_every_version_is_ready()


@pytest.mark.parametrize("poll", [{}, {"model_store_poll_seconds": 0.01}])
@pytest.mark.parametrize(
    ("revoke", "fault", "versions"),
    [
        (Signed.revoke_the_archive, "revoked", {"1.0"}),
        (Signed.revoke_the_key, "unknown_key", {"1.0", "1.0-int8-dynamic"}),
    ],
)
async def test_a_loaded_version_that_is_revoked_goes_on_and_is_named_until_it_is_unregistered(
    tmp_path: Path, poll: dict[str, float], revoke: Callable[[Signed], None], fault: str, versions: set[str]
) -> None:
    """Also where nobody looks for new archives."""
    signed = Signed.make(tmp_path)
    looking = {**options(signed, "grpc"), "revocation_poll_seconds": 0.01, **poll}
    async with running_gateway(tmp_path, (), wait_until_ready=False, **looking) as rig:
        trust_control(rig, tmp_path)
        await rig.until_every_version_is_ready()
        assert await rig.metric("torchgate_untrusted_versions", reason=fault) == 0
        revoke(signed)
        await rig.until("torchgate_untrusted_versions", len(versions), reason=fault)
        assert (await rig.predict(b"class:1", params={"version": "1.0"})).status_code == 200
        assert await named(rig, fault, len(versions)) == sorted(versions)
        if fault == "revoked":
            await rig.client.put(
                "/models/digits/traffic", json={"weights": {"1.0-int8-dynamic": 100}}, headers={"If-Match": "*"}
            )
            assert (await rig.client.delete("/models/digits/versions/1.0", headers={"If-Match": "*"})).is_success
        else:
            trust(signed.keys, signed.key)
        await rig.until("torchgate_untrusted_versions", 0, reason=fault)


async def named(rig: Rig, fault: str, num_versions: int) -> list[str]:
    """Return the versions that the event log names with a fault, once it has as many."""
    async with asyncio.timeout(10):
        while True:
            events = (await rig.client.get("/models/digits/events")).json()["events"]
            found = [each["subject"] for each in events if each["detail"].endswith(f"({fault})")]
            if len(found) >= num_versions:
                return sorted(found)
            await asyncio.sleep(0.01)


async def test_looking_for_revocations_registers_nothing(tmp_path: Path) -> None:
    signed = Signed.make(tmp_path)
    manifest = signed.store / "manifest.json"
    make_store(signed.store, [*VERSIONS, ("digits", "1.1", "fp32")])
    newest = manifest.read_bytes()
    delist(signed.store, "digits-1.1.mar")
    sign(signed.store, signed.key, 6)
    looking = {**options(signed, "grpc"), "revocation_poll_seconds": 0.01}
    async with running_gateway(tmp_path, (), wait_until_ready=False, **looking) as rig:
        trust_control(rig, tmp_path)
        await rig.until_every_version_is_ready()
        manifest.write_bytes(newest)
        delist(signed.store, FILE)
        sign(signed.store, signed.key, 7)
        await rig.until("torchgate_untrusted_versions", 1, reason="revoked")  # the manifest with 1.1 was read
        shown = (await rig.client.get("/models/digits")).json()["versions"]
        assert {each["version"] for each in shown} == {"1.0", "1.0-int8-dynamic"}


@pytest.mark.parametrize(
    ("content", "words"), [(b"no key", "not a public key in PEM"), (b"", "not a public key in PEM")]
)
async def test_a_file_among_the_keys_that_is_none_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    signed = Signed.make(tmp_path)
    (signed.keys / "bad.pub").write_bytes(content)
    async with running_gateway(tmp_path, (), wait_until_ready=False, **options(signed, "grpc")) as rig:
        assert "bad.pub" in (await rig.until_reason(words))["detail"]
