"""The page says what prometheus_client's own says, and nobody waits for it."""

import asyncio
import re
import threading
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, PlatformCollector
from prometheus_client.exposition import choose_encoder

from service.domain.backend import Target
from service.telemetry.metrics import Metrics
from service.telemetry.prometheus_text import expose
from service.telemetry.version_metrics import VersionMetrics
from tests.gateway import running_gateway

pytestmark = pytest.mark.anyio

TEXT = "text/plain;version=0.0.4"
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
PROMETHEUS_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.4"


def a_registry() -> CollectorRegistry:
    """Every kind of metric, with what has to be escaped."""
    registry = CollectorRegistry()
    PlatformCollector(registry=registry)
    odd = 'a"b\\c\nd'
    Counter("plain_total", f"Plain, {odd}.", registry=registry).inc(3e7)
    seen = Counter("seen", "Seen.", ("kind", "alpha"), registry=registry)
    seen.labels(odd, "é").inc(0.25)
    seen.labels("b", "").inc()
    Gauge("depth", "Depth.", ("z",), registry=registry).labels("1").set(float("inf"))
    Info("what", "What.", ("model",), registry=registry).labels("m").info({"version": "1"})
    Info("build", "Build.", registry=registry).info({"version": odd})
    histogram = Histogram("seconds", "Seconds.", ("model",), buckets=(0.1, 1), registry=registry)
    histogram.labels("m").observe(0.5)
    histogram.labels("n").observe(5)
    Histogram("bare", "Bare.", buckets=(-1, 0, 1e9), registry=registry).observe(0)
    return registry


@pytest.mark.parametrize("accept", [TEXT, OPENMETRICS, PROMETHEUS_3, "", "text/plain;version=1.0.0"])
async def test_the_page_is_prometheus_clients(accept: str) -> None:
    registry = a_registry()
    encode, content_type = choose_encoder(accept)
    assert await expose(registry, accept) == (encode(registry), content_type)


async def test_others_run_while_a_page_is_written() -> None:
    registry = CollectorRegistry()
    gauges = [Gauge(f"depth_{number}", "Depth.", ("version",), registry=registry) for number in range(10)]
    for gauge in gauges:
        gauge.labels("a").set(1)
    writing = asyncio.create_task(expose(registry, TEXT))
    await asyncio.sleep(0)
    gauges[9].clear()  # a version that goes meanwhile harms nothing
    Gauge("new", "New.", registry=registry)
    num_turns = 0
    while not writing.done():
        await asyncio.sleep(0)
        num_turns += 1
    page, _ = await writing
    assert page.count(b"\n") == 9 * 3 + 2
    assert num_turns >= 9


async def test_requests_and_the_fast_ones_of_them_are_of_one_moment() -> None:
    metrics = Metrics()
    version = VersionMetrics(metrics, Target("digits", "1.0"))
    writing = asyncio.create_task(expose(metrics.registry, TEXT))
    while not writing.done():
        version.requests["success"].inc()
        version.fast_requests.inc()
        await asyncio.sleep(0)
    page = (await writing)[0].decode()
    (num_requests,) = re.findall(r"^torchgate_inference_requests_total.*success.* (\S+)$", page, re.MULTILINE)
    (num_fast,) = re.findall(r"^torchgate_slo_fast_requests_total.* (\S+)$", page, re.MULTILINE)
    assert num_requests == num_fast


async def test_the_gateway_pauses_within_a_scrape(tmp_path: Path) -> None:
    versions = tuple(("digits", f"1.{number}", "fp32") for number in range(3))
    async with running_gateway(tmp_path, versions, model_store_policy="all") as rig:
        await rig.until_every_version_is_ready()
        scraping = asyncio.create_task(rig.client.get("/metrics"))
        answers = []
        while not scraping.done():
            answers.append((await rig.predict(b"class:1")).status_code)
        assert (await scraping).status_code == 200
        assert set(answers) == {200}
        assert len(answers) > 5  # in one go it would leave time for one or two


async def test_the_lag_of_the_event_loop_is_measured(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        async with asyncio.timeout(10):
            while await rig.metric("torchgate_event_loop_lag_seconds_count") < 2:
                await asyncio.sleep(0.02)
        slow = await rig.metric("torchgate_event_loop_lag_seconds_sum")
        _hold_up(0.25)
        async with asyncio.timeout(10):
            while await rig.metric("torchgate_event_loop_lag_seconds_sum") < slow + 0.1:
                await asyncio.sleep(0.02)


def _hold_up(seconds: float) -> None:
    """Keep the event loop from everything else, as a gateway that computes would."""
    threading.Event().wait(seconds)


async def test_fifty_versions_are_written_in_small_pieces() -> None:
    metrics = Metrics()
    for number in range(50):
        VersionMetrics(metrics, Target("digits", f"1.{number}")).seconds["success"].observe(0.01)
    writing = asyncio.create_task(expose(metrics.registry, OPENMETRICS))
    pieces = []
    last = time.thread_time()  # of this thread alone, however busy the machine
    while not writing.done():
        await asyncio.sleep(0)
        last, before = time.thread_time(), last
        pieces.append(1000 * (last - before))
    page, _ = await writing
    encode, _ = choose_encoder(OPENMETRICS)
    encode(metrics.registry)
    whole = 1000 * (time.thread_time() - last)
    num_lines = page.count(b"\n")
    print(f"{num_lines} lines: {sum(pieces):.0f} ms, {max(pieces):.1f} ms in a piece; prometheus_client {whole:.0f} ms")
    assert page.count(b"# EOF") == 1
    assert len(pieces) >= page.count(b"# TYPE") / 2
