"""What must not be loaded is refused over each real backend, at the first load and after a restart underneath."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.gateway import AUTHORIZATION, GatewayProcess
from tests.odd_archive import HANDLER, make_odd_store, write_archive
from tests.relay import running_relay
from tests.signing import Key, delist, new_key, sign, trust
from tests.stack import gateway_of_workers, gateway_over
from tests.torchserve_process import TorchServeProcess, wait_until

HEADERS = {"Content-Type": "image/png"}
TAMPERED, DELISTED = "odd-1.0.mar", "odd-1.1.mar"
# It passes the self-check and describes itself as the released one does, then answers each image with the next class.
FORGED_HANDLER = HANDLER.replace("order = [chosen,", "chosen = (chosen + 1) % 4; order = [chosen,")


class AttackedStore:
    """A signed store with two versions, which an attacker may write; `heal` puts back what was released."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = make_odd_store(tmp_path / "store", v1_1="")
        self.key: Key = new_key()
        self.keys = trust(tmp_path / "keys", self.key)
        self._counter = 2
        self._released = tmp_path / "released"
        shutil.copytree(self.folder, self._released)
        self._forged = tmp_path / "forged.mar"
        write_archive(self._forged, handler=FORGED_HANDLER)

    def heal(self) -> None:
        shutil.copytree(self._released, self.folder, dirs_exist_ok=True)
        self._sign_next()

    def tamper_and_delist(self) -> None:
        """One version's file is another, and the newest manifest has not got the other version."""
        self.heal()
        self.swap()
        delist(self.folder, DELISTED)
        self._sign_next()

    def swap(self) -> None:
        """Put the forged archive in the place of the released one, as a whole."""
        new = self.folder / "new"
        shutil.copy(self._forged, new)
        new.rename(self.folder / TAMPERED)

    def replay(self) -> None:
        sign(self.folder, self.key, self._counter - 1)

    def expire(self) -> None:
        self._sign_next(days=-1)

    def unsign(self) -> None:
        (self.folder / "manifest.json.sig").unlink()

    def _sign_next(self, days: float = 30) -> None:
        self._counter += 1
        sign(self.folder, self.key, self._counter, days)


ATTACKS: list[tuple[Callable[[AttackedStore], None], str]] = [
    (AttackedStore.replay, "replayed"),
    (AttackedStore.expire, "expired"),
    (AttackedStore.unsign, "unsigned"),
]


@dataclass
class Site:
    """One backend, its gateway's settings, and how it is attacked in the middle of a load."""

    store: AttackedStore
    gateway: Callable[[], GatewayProcess]
    server: TorchServeProcess | None = None
    is_armed: bool = False

    def see(self, sent: bytes) -> None:
        """The gateway asks TorchServe to load: it has checked the archive, and TorchServe has not read it yet."""
        if self.is_armed and sent.startswith(b"POST /models?"):
            self.store.swap()


@contextmanager
def site_of(backend: str, tmp_path: Path) -> Iterator[Site]:
    store, copies = AttackedStore(tmp_path), tmp_path / "copies"
    env = {
        "TORCHGATE_TRUSTED_KEYS_DIR": str(store.keys),
        "TORCHGATE_DATABASE_URL": f"sqlite:///{tmp_path}/state.db",
        "TORCHGATE_WORKERS_PER_VERSION": "1",
        "TORCHGATE_MODEL_STORE_POLICY": "all",
    }
    if backend == "workers":
        yield Site(store, lambda: gateway_of_workers(store.folder, **env))
        return
    env |= {"TORCHGATE_VERIFIED_ARCHIVES_DIR": str(copies)}
    with TorchServeProcess(store.folder, env=env) as server:

        def gateway() -> GatewayProcess:
            process = gateway_over(server, TORCHGATE_BACKEND=backend, **env)
            process.env["TORCHGATE_TORCHSERVE_MANAGEMENT_PORT"] = str(relay.port)
            return process

        site = Site(store, gateway, server)
        with running_relay("127.0.0.1", server.ports["management"], site.see) as relay:
            yield site
    assert list(copies.iterdir()) == []  # each copy went with its load


def until_refused(gateway: GatewayProcess, **faults: str) -> None:
    """Return once each version (v1_0="tampered") has failed by its fault, for all to see and in the log."""
    expected = {name[1:].replace("_", "."): fault for name, fault in faults.items()}
    seen: list[dict[str, str]] = []

    def are_refused() -> bool:
        seen[:] = gateway.get("/models/odd").json().get("versions", [])
        reasons = {each["version"]: each["reason"] for each in seen if each["state"] == "failed"}
        return all(reasons.get(version, "").endswith(f"({fault})") for version, fault in expected.items())

    def are_logged() -> bool:
        lines = [record["message"] for record in gateway.records()]
        return all(
            any(line.startswith(f"odd {version} is failed") and f"({fault})" in line for line in lines)
            for version, fault in expected.items()
        )

    try:
        wait_until(are_refused, 60)
        wait_until(are_logged, 5)  # the log's own thread writes it a moment later
    except AssertionError as error:
        raise AssertionError(seen, gateway.log[-2000:]) from error
    assert {predicted(gateway, version) for version in expected} == {"503"}


def change(gateway: GatewayProcess, method: str, path: str, **body: str) -> httpx.Response:
    return httpx.request(
        method,
        f"{gateway.url}/models/odd{path}",
        headers=AUTHORIZATION,
        json=body or None,
        trust_env=False,
        timeout=60,
    )


def predicted(gateway: GatewayProcess, version: str = "1.0") -> str:
    """Return the first label that a version answers, or the status."""
    url = f"{gateway.url}/predict?version={version}"
    answer = httpx.post(url, content=b"class:1", headers=HEADERS, trust_env=False, timeout=30)
    return str(answer.json()["predictions"][0]["label"]) if answer.status_code == 200 else str(answer.status_code)


def kill_the_worker(gateway: GatewayProcess) -> None:
    """End all workers; a version's next one loads what it has."""
    assert gateway.process is not None
    children = psutil.Process(gateway.process.pid).children()
    workers = [each for each in children if any(part.endswith("launch.py") for part in each.cmdline())]
    for worker in workers:
        os.kill(worker.pid, signal.SIGKILL)
    psutil.wait_procs(workers, 10)


def load_while_it_is_swapped(gateway: GatewayProcess, site: Site) -> None:
    """The version is registered from a healed store and serves the checked bytes; the file is another by then."""
    site.store.heal()
    site.is_armed = True
    answer = change(gateway, "POST", "/versions", file=TAMPERED)
    site.is_armed = False
    assert answer.status_code == 201, answer.text
    if site.server is None:  # copied, checked and unpacked in one piece: only a worker that starts later reads again
        site.store.swap()
        kill_the_worker(gateway)
    forged = (site.store.folder.parent / "forged.mar").read_bytes()
    assert (site.store.folder / TAMPERED).read_bytes() == forged
    wait_until(lambda: predicted(gateway) == "one", 60)


@pytest.mark.parametrize("backend", ["workers", "grpc", "rest"])
def test_every_attack_at_the_first_load_and_after_a_restart(tmp_path: Path, backend: str) -> None:
    with site_of(backend, tmp_path) as site:
        store = site.store
        store.heal()
        for file in (TAMPERED, DELISTED):  # neither loads, so that each load to come is the first one
            (store.folder / file).write_bytes(b"tampered")
        with site.gateway() as gateway:
            until_refused(gateway, v1_0="tampered", v1_1="tampered")
            store.tamper_and_delist()
            until_refused(gateway, v1_0="tampered", v1_1="revoked")
            # 1.1 has the traffic; 1.0 is registered anew instead of waiting for its next attempt.
            assert change(gateway, "DELETE", "/versions/1.0").status_code < 300
            for attack, fault in ATTACKS:
                store.heal()
                attack(store)
                answer = change(gateway, "POST", "/versions", file=TAMPERED)
                assert answer.status_code == 422, answer.text
                assert answer.json()["code"] == "archive_refused"
                assert f"({fault})" in answer.json()["detail"]
            load_while_it_is_swapped(gateway, site)
            store.heal()
            gateway.until_every_version_is_ready()

        if site.server is None:
            store.tamper_and_delist()
        with site.gateway() as gateway:
            if site.server is not None:
                gateway.until_every_version_is_ready()
                assert not [each for each in gateway.records() if "replaced" in each["message"]]  # its own copies
                store.tamper_and_delist()
                site.server.kill()
                site.server.start()
            until_refused(gateway, v1_0="tampered", v1_1="revoked")
            for attack, fault in ATTACKS:
                store.heal()
                attack(store)
                until_refused(gateway, v1_0=fault, v1_1=fault)
            store.heal()
            assert change(gateway, "DELETE", "/versions/1.0").status_code < 300
            load_while_it_is_swapped(gateway, site)
