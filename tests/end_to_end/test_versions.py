"""Versions are moved under load, with real models and real workers: nobody notices, unless the new one is bad."""

import asyncio
import collections
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import images, odd_archive
from tests.end_to_end.test_images import bars
from tests.gateway import AUTHORIZATION, GatewayProcess
from tests.odd_archive import make_odd_store
from tests.stack import Trained, gateway_of_workers, gateway_over
from tests.torchserve_process import ROOT, TorchServeProcess

NUM_CLIENTS = 32
STEPS = (1, 10, 50, 90, 100)
STEP_SECONDS = 2.0
LEAST_ANSWERS = 100  # in each step
NUM_KILLS = 5
HEADERS = {"Content-Type": "image/png"}


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="v-") as folder:
        yield Path(folder)


@pytest.fixture(params=["workers", "grpc"])
def gateway(request: pytest.FixtureRequest, trained: Trained, scratch: Path) -> Iterator[GatewayProcess]:
    """A gateway over a store of its own, which holds the release 1.0."""
    store = shutil.copytree(trained.store, scratch / "store", ignore=shutil.ignore_patterns("*.db*"))
    with ExitStack() as stack:
        if request.param == "workers":
            process = gateway_of_workers(store, TORCHGATE_MAX_BATCH_SIZE="32", TORCHGATE_LATENCY_OBJECTIVE_MS="100")
        else:
            process = gateway_over(stack.enter_context(TorchServeProcess(store)))
        stack.enter_context(process)
        process.until_every_version_is_ready()
        yield process


@dataclass
class Seen:
    """What clients saw: of each phase the versions that answered what was sent and answered within it."""

    phase: str = "start"
    versions: dict[str, collections.Counter[str]] = field(
        default_factory=lambda: collections.defaultdict(collections.Counter)
    )
    failures: list[str] = field(default_factory=list)


async def client(http: httpx.AsyncClient, image: bytes, seen: Seen, stop: asyncio.Event) -> None:
    while not stop.is_set():
        phase = seen.phase
        try:
            answer = await http.post("/predict", content=image, headers=HEADERS)
        except httpx.TransportError as error:
            seen.failures.append(f"{phase}: {error!r}")
            return
        if answer.status_code != 200 or answer.json()["version"] != answer.headers["x-model-version"]:
            seen.failures.append(answer.text)
        elif phase == seen.phase:
            seen.versions[phase][answer.json()["version"]] += 1


async def change(http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    answer = await http.request(method, path, json=body, headers={"If-Match": "*", **AUTHORIZATION})
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def test_a_release_replaces_another_under_load_and_nobody_notices(
    gateway: GatewayProcess, trained: Trained, scratch: Path
) -> None:
    command = [sys.executable, "-m", "training", "archive", "--run", str(trained.run)]
    command += ["--model-store", str(scratch / "store"), "--version", "1.1", "--name", "synthetic"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    seen = Seen()

    async def run() -> None:
        stop, limits = asyncio.Event(), httpx.Limits(max_connections=NUM_CLIENTS + 4)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60, trust_env=False, limits=limits) as http:
            image = images.encode(bars(True), "PNG")
            clients = [asyncio.create_task(client(http, image, seen, stop)) for _ in range(NUM_CLIENTS)]
            try:
                await change(http, "POST", "/models/synthetic/versions", {"file": "synthetic-1.1.mar"})
                for percent in STEPS:
                    weights = {"1.0": 100 - percent, "1.1": percent}
                    await change(http, "PUT", "/models/synthetic/traffic", {"weights": weights})
                    seen.phase = f"{percent}"
                    await asyncio.sleep(STEP_SECONDS)  # the length of the load, not a wait for something
                    async with asyncio.timeout(30):  # and longer where others have the machine
                        while seen.versions[f"{percent}"].total() <= LEAST_ANSWERS:
                            await asyncio.sleep(0.05)
                    seen.phase = "between"
                await change(http, "DELETE", "/models/synthetic/versions/1.0")
                seen.phase = "alone"
                await asyncio.sleep(STEP_SECONDS)
                seen.phase = "end"
            finally:
                stop.set()
                await asyncio.gather(*clients)

    asyncio.run(run())
    assert seen.failures == [], gateway.log[-4000:]
    for percent in STEPS:
        counts = seen.versions[f"{percent}"]
        num, share = counts.total(), percent / 100
        print(f"{percent} %: {counts['1.1']} of {num}, {counts['1.1'] / num:.2%}")
        assert num > LEAST_ANSWERS
        assert abs(counts["1.1"] - num * share) <= 3 * math.sqrt(num * share * (1 - share)) + 1
    assert set(seen.versions["alone"]) == {"1.1"}


@pytest.mark.parametrize(
    ("what", "guard"),
    [(odd_archive.SLOW, "p99"), (odd_archive.FAILING, "errors"), (odd_archive.SHUFFLED, "agreement")],
    ids=["slow", "failing", "shuffled"],
)
def test_a_bad_release_is_rolled_back_and_the_others_users_see_nothing(scratch: Path, what: str, guard: str) -> None:
    store = make_odd_store(scratch / "store", v1_1=what)
    options = {"TORCHGATE_MODEL_STORE_POLICY": "all", "TORCHGATE_LATENCY_OBJECTIVE_MS": "100"}
    others: list[httpx.Response] = []

    async def send(http: httpx.AsyncClient, stop: asyncio.Event) -> None:
        while not stop.is_set():
            answer = await http.post("/predict", content=b"class:2", headers=HEADERS)
            if answer.headers.get("x-model-version") != "1.1" and "1.1" not in answer.text:
                others.append(answer)

    async def run() -> dict[str, Any]:
        stop = asyncio.Event()
        async with httpx.AsyncClient(base_url=process.url, timeout=60, trust_env=False) as http:
            await change(http, "PUT", "/models/odd/traffic", {"weights": {"1.0": 100}})
            spec = {"version": "1.1", "steps": [10, 50, 100], "min_requests": 1000, "min_seconds": 2}
            await change(http, "POST", "/models/odd/rollouts", spec)
            clients = [asyncio.create_task(send(http, stop)) for _ in range(8)]
            try:
                async with asyncio.timeout(60):
                    while (rollout := (await http.get("/models/odd/rollouts/1")).json())["state"] == "running":
                        await asyncio.sleep(0.1)
            finally:
                stop.set()
                await asyncio.gather(*clients)
            events = (await http.get("/models/odd/events", headers=AUTHORIZATION)).json()["events"]
            traffic = (await http.get("/models/odd/traffic")).json()
            return {"rollout": rollout, "event": events[0], "weights": traffic["weights"]}

    with gateway_of_workers(store, **options) as process:
        process.until_every_version_is_ready()
        ended = asyncio.run(run())
    print(ended["event"]["detail"])
    assert (ended["rollout"]["state"], ended["weights"]) == ("rolled_back", {"1.0": 100})
    assert f"guard {guard}:" in ended["event"]["detail"]
    answers = [answer for answer in others if answer.status_code == 200]
    assert len(answers) > 50
    assert {answer.json()["predictions"][0]["label"] for answer in answers} == {"two"}
    # A failure does not name its version: those of the new one are all that there are.
    assert [answer.status_code for answer in others if answer.status_code not in {200, 503}] == []
    if guard != "errors":
        assert len(answers) == len(others)


def test_a_gateway_that_is_killed_in_the_middle_of_changes_comes_back_as_last_acknowledged(scratch: Path) -> None:
    store = make_odd_store(scratch / "store", v1_1="")
    chance = random.Random(1)
    options = {"TORCHGATE_MODEL_STORE_POLICY": "all", "TORCHGATE_WORKERS_PER_VERSION": "1"}
    acknowledged: dict[str, Any] = {}
    for _ in range(NUM_KILLS):
        process = gateway_of_workers(store, **options)
        process.start()
        try:
            process.until_every_version_is_ready()
            with httpx.Client(base_url=process.url, timeout=10, trust_env=False) as http:
                _compare(http, acknowledged)
                _keep_changing(http, chance, acknowledged, time.monotonic() + chance.uniform(0, 0.4), process)
        finally:
            process.stop()
    assert acknowledged["revision"] > NUM_KILLS


def _keep_changing(
    http: httpx.Client, chance: random.Random, acknowledged: dict[str, Any], kill_at: float, process: GatewayProcess
) -> None:
    """Change this and that until the gateway dies, which happens at `kill_at`; remember what was acknowledged."""
    running = process.process
    assert running is not None
    killer = threading.Timer(kill_at - time.monotonic(), running.send_signal, [signal.SIGKILL])
    killer.start()
    try:
        while True:
            percent = chance.choice([0, 10, 50])
            for method, path, body in (
                ("PUT", "/models/odd/traffic", {"weights": {"1.0": 100 - percent, "1.1": percent}}),
                ("PUT", f"/models/odd/labels/{chance.choice(['a', 'b', 'c'])}", {"version": "1.0"}),
                ("POST", "/models/odd/rollback", None),
                ("POST", "/models/odd/rollouts", {"version": "1.1", "min_requests": 1, "min_seconds": 0}),
                ("POST", "/models/odd/rollback", None),
            ):
                answer = http.request(method, path, json=body, headers={"If-Match": "*", **AUTHORIZATION})
                if answer.is_success and "weights" in answer.json():
                    acknowledged.clear()
                    acknowledged.update(answer.json())
    except httpx.TransportError:
        assert time.monotonic() >= kill_at, f"the gateway ended by itself:\n{process.log[-2000:]}"
    finally:
        killer.join()


def _compare(http: httpx.Client, acknowledged: dict[str, Any]) -> None:
    """See that what is there is what was acknowledged last, or what the event log says came after it."""
    now = http.get("/models/odd/traffic").json()
    events = http.get("/models/odd/events", params={"limit": 1000}).json()["events"]
    done = [event for event in events if event["outcome"] == "done"]
    revisions = [event["after"]["revision"] for event in done]
    assert revisions == list(range(revisions[0], revisions[0] - len(revisions), -1)), "an event is missing or doubled"
    for later, earlier in pairwise(done):
        assert later["before"] == earlier["after"]
    last = done[0]["after"]
    assert {name: last[name] for name in ("revision", "weights", "labels")} == {
        name: now[name] for name in ("revision", "weights", "labels")
    }
    if acknowledged:
        (there,) = [e["after"] for e in done if e["after"]["revision"] == acknowledged["revision"]]
        assert {name: there[name] for name in ("weights", "labels")} == {
            name: acknowledged[name] for name in ("weights", "labels")
        }


def test_a_shadow_that_is_killed_harms_nobody(scratch: Path) -> None:
    store = make_odd_store(scratch / "store", v1_1="")
    options = {"TORCHGATE_MODEL_STORE_POLICY": "all", "TORCHGATE_LATENCY_OBJECTIVE_MS": "100"}
    with (
        gateway_of_workers(store, **options) as process,
        httpx.Client(base_url=process.url, timeout=20, trust_env=False) as http,
    ):
        process.until_every_version_is_ready()
        body = {"weights": {"1.0": 100}, "shadows": {"1.1": 100}}
        assert http.put("/models/odd/traffic", json=body, headers={"If-Match": "*", **AUTHORIZATION}).status_code == 200

        def pids() -> set[int]:
            codes = [
                http.post("/predict", params={"version": "1.1"}, content=b"pid:", headers=HEADERS) for _ in range(20)
            ]
            return {int(answer.json()["detail"]) for answer in codes if answer.json().get("code") == "pid"}

        def send(num_requests: int) -> None:
            for _ in range(num_requests):
                answer = http.post("/predict", content=b"class:1", headers=HEADERS)
                assert (answer.status_code, answer.json()["version"]) == (200, "1.0")

        send(50)
        for pid in pids():
            os.kill(pid, signal.SIGKILL)
            send(50)
        (found,) = http.get("/models/odd/shadows").json()["shadows"]
        assert found["agreement"] == 1
        assert found["num_requests"] >= 1
