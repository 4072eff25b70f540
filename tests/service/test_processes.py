"""Several processes on one port are one gateway to those who scrape it, stop it or kill one of them."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families

from service.exposition import expose
from service.families import Family, Key, counted, merged, packed, registry_of, unpacked, without_the_gone
from tests.gateway import GatewayProcess
from tests.service.test_main import torchgate

# A connection for each request, so that every process gets some.
CLIENT = httpx.Client(trust_env=False, timeout=10, headers={"Connection": "close"})


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(TORCHGATE_PROCESSES="2", TORCHGATE_MODEL_STORE=str(tmp_path)) as process:
        wait_for(lambda: len(members(process)) == 2 and started(process) == 2)
        yield process


def members(gateway: GatewayProcess) -> list[psutil.Process]:
    assert gateway.process is not None
    found = []
    for child in psutil.Process(gateway.process.pid).children():
        with contextlib.suppress(psutil.Error):  # it may be about to go
            if "service.member" in " ".join(child.cmdline()):
                found.append(child)
    return found


def is_replaced(gateway: GatewayProcess, pid: int) -> bool:
    pids = {member.pid for member in members(gateway)}
    return len(pids) == 2 and pid not in pids and started(gateway) == 2


def started(gateway: GatewayProcess) -> int:
    """Return how many processes have told what they have, by the sum of a gauge that is 1 in each."""
    return round(metric(gateway, "torchgate_processes"))


def wait_for(holds: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not come to hold"
        time.sleep(0.02)


def scrape(gateway: GatewayProcess) -> str:
    try:
        return CLIENT.get(f"{gateway.url}/metrics").text
    except httpx.TransportError:
        return ""  # the process that was asked has been killed


def metric(gateway: GatewayProcess, name: str, **labels: str) -> float:
    text = scrape(gateway)
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def answered(gateway: GatewayProcess) -> float:
    return metric(gateway, "torchgate_http_requests_total", route="/healthz")


def send(gateway: GatewayProcess, num: int) -> set[int]:
    """Send requests; return the processes that were there to answer them."""
    for _ in range(num):
        assert CLIENT.get(f"{gateway.url}/healthz").status_code == 200
    return {member.pid for member in members(gateway)}


def test_requests_are_counted_whoever_answers_and_whoever_is_asked(gateway: GatewayProcess) -> None:
    send(gateway, 60)
    assert {answered(gateway) for _ in range(20)} == {60.0}
    text = scrape(gateway)
    assert text.count("# TYPE torchgate_http_requests_total counter") == 1
    assert metric(gateway, "torchgate_http_request_duration_seconds_count", route="/healthz") == 60


def test_a_process_that_is_restarted_takes_no_count_with_it(gateway: GatewayProcess) -> None:
    before = send(gateway, 40)
    leaving = members(gateway)[0].pid
    os.kill(leaving, signal.SIGTERM)
    wait_for(lambda: is_replaced(gateway, leaving))
    assert answered(gateway) == 40
    assert send(gateway, 40) != before
    assert answered(gateway) == 80


def test_a_process_that_is_killed_is_replaced_and_counts_never_fall(gateway: GatewayProcess) -> None:
    send(gateway, 40)
    seen = answered(gateway)
    assert seen == 40
    killed = members(gateway)[0].pid
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: is_replaced(gateway, killed))
    assert answered(gateway) == 40
    send(gateway, 20)
    assert answered(gateway) == 60


def test_nothing_is_left_when_it_is_stopped_and_when_it_is_killed(gateway: GatewayProcess, tmp_path: Path) -> None:
    left = members(gateway)
    assert gateway.stop() == 0
    wait_for(lambda: not any(member.is_running() for member in left))
    with GatewayProcess(TORCHGATE_PROCESSES="2", TORCHGATE_MODEL_STORE=str(tmp_path)) as other:
        assert other.process is not None
        wait_for(lambda: started(other) == 2)
        left = members(other)
        other.process.kill()
        wait_for(lambda: not any(member.is_running() for member in left))


def test_a_gateway_whose_processes_cannot_start_says_so_and_ends(tmp_path: Path) -> None:
    program = "import os, sys\nif 'service.member' in sys.orig_argv: os._exit(7)\n"
    (tmp_path / "sitecustomize.py").write_text(program)
    env = {"PYTHONPATH": str(tmp_path), "TORCHGATE_PORT": "0", "TORCHGATE_MODEL_STORE": str(tmp_path)}
    done = torchgate("serve", TORCHGATE_PROCESSES="2", **env)
    assert done.returncode == 7
    assert "cannot start (status 7)" in done.stderr


def test_what_fails_late_in_a_start_is_a_start_that_failed(tmp_path: Path) -> None:
    env = {"TORCHGATE_PORT": "0", "TORCHGATE_MODEL_STORE": str(tmp_path), "TORCHGATE_TRACING": "otlp"}
    done = torchgate("serve", TORCHGATE_PROCESSES="2", OTEL_EXPORTER_OTLP_COMPRESSION="nonsense", **env)
    assert done.returncode == 3
    assert "cannot start (status 3)" in done.stderr
    assert "listens on" not in done.stderr


def test_workers_belong_to_one_process() -> None:
    done = torchgate("check", TORCHGATE_PROCESSES="2", TORCHGATE_BACKEND="workers")
    assert done.returncode == 2
    assert "TORCHGATE_PROCESSES=2 needs TORCHGATE_BACKEND=grpc or rest" in done.stderr


def family(name: str, kind: str, **samples: float) -> Family:
    sample = f"{name}_total" if kind == "counter" else name
    return Family(name, "What.", kind, {(sample, (("version", label),)): value for label, value in samples.items()})


def test_counts_are_added_and_gauges_are_not() -> None:
    registry = CollectorRegistry()
    seen = Counter("seen", "What.", ["version"], registry=registry)
    seen.labels("a").inc(1)
    seen.labels("b").inc(2)
    Gauge("limit", "What.", ["version"], registry=registry).labels("a").set(8)
    one = unpacked(json.loads(asyncio.run(packed(registry))))
    other = {each.name: each for each in (family("seen", "counter", b=3), family("limit", "gauge", a=6, b=2))}
    both = merged([one, other])
    assert both["seen"].samples == family("seen", "counter", a=1, b=5).samples
    assert both["limit"].samples == family("limit", "gauge", a=8, b=2).samples
    assert set(counted(both)) == {"seen"}
    page, _ = asyncio.run(expose(registry_of(both), ""))
    assert b'limit{version="a"} 8.0' in page


def test_what_is_wrong_in_one_process_is_not_hidden_by_the_others() -> None:
    def told(score: float, threshold: float, is_up: float) -> dict[str, Family]:
        values = {
            "torchgate_drift_score": score,
            "torchgate_drift_threshold": threshold,
            "torchgate_backend_up": is_up,
        }
        return {name: family(name, "gauge", a=value) for name, value in values.items()}

    fine, bad = told(0.05, 0.3, 1), told(0.2, 0.1, 0)
    for both in (merged([fine, bad]), merged([bad, fine])):
        assert [list(each.samples.values()) for each in both.values()] == [[0.2], [0.1], [0]]


def test_ended_processes_do_not_bring_back_versions_that_are_gone() -> None:
    def seen(*versions: str) -> dict[str, Family]:
        named = [(("model", "m"), ("version", version)) for version in versions]
        counts: dict[Key, float] = {("seen_total", labels): 1.0 for labels in (*named, (("model", "m"),))}
        ready: dict[Key, float] = {("torchgate_model_ready", labels): 1.0 for labels in named}
        return {
            "seen": Family("seen", "", "counter", counts),
            "torchgate_model_ready": Family("torchgate_model_ready", "", "gauge", ready),
        }

    kept = without_the_gone(counted(seen("1.0", "1.1")), [seen("1.1")])
    assert [dict(labels) for _, labels in kept["seen"].samples] == [{"model": "m", "version": "1.1"}, {"model": "m"}]
