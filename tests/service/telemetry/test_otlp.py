"""Spans reach the collector. Without one they are counted, and requests go on."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.config.settings import Settings
from service.telemetry.metrics import Metrics
from service.telemetry.otlp import FLUSH_SECONDS, MOST_IN_EXPORT, MOST_QUEUED, OtlpTracing
from service.telemetry.tracing import NoTracing
from tests.collector import Collector
from tests.gateway import GatewayProcess, running_gateway

pytestmark = pytest.mark.anyio

NOBODY = "http://127.0.0.1:9"  # the discard port, where nothing listens


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


def num_spans(metrics: Metrics, result: str) -> float:
    return metrics.registry.get_sample_value("torchgate_trace_spans_total", {"result": result}) or 0


def record(tracing: OtlpTracing, num: int) -> None:
    for _ in range(num):
        span = tracing.begin(None, may_decide=False)
        assert span is not None
        span.end("request", "server", time.monotonic(), time.monotonic(), {})


async def test_requests_do_not_notice_that_the_collector_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    async with running_gateway(tmp_path, tracing="otlp", tracing_endpoint=NOBODY) as rig:
        assert (await rig.predict(b"class:1")).status_code == 200
        await rig.until("torchgate_trace_spans_total", 4, result="failed")
        assert (await rig.predict(b"class:1")).status_code == 200
        started = time.monotonic()
    assert time.monotonic() - started < FLUSH_SECONDS + 4


async def test_the_queue_has_a_bound(collector: Collector) -> None:
    collector.hold()
    metrics = Metrics()
    tracing = OtlpTracing(Settings(tracing_endpoint=collector.endpoint), metrics, "test")
    tracing.start()
    num_recorded = MOST_QUEUED + MOST_IN_EXPORT + 100  # one export has left the queue and waits for the collector
    record(tracing, num_recorded)
    num_dropped = num_spans(metrics, "dropped")
    assert 100 <= num_dropped <= MOST_IN_EXPORT + 100
    started = time.monotonic()
    await tracing.close()
    assert FLUSH_SECONDS <= time.monotonic() - started < FLUSH_SECONDS + 3
    assert num_spans(metrics, "exported") == 0
    assert num_spans(metrics, "failed") == num_recorded - num_dropped


async def test_spans_in_the_queue_are_exported_at_the_end(collector: Collector) -> None:
    metrics = Metrics()
    tracing = OtlpTracing(Settings(tracing_endpoint=collector.endpoint), metrics, "test")
    tracing.start()
    record(tracing, 2000)
    started = time.monotonic()
    await tracing.close()
    assert time.monotonic() - started < FLUSH_SECONDS
    assert len(collector.spans()) == num_spans(metrics, "exported") == 2000
    assert len({span.place for span in collector.spans()}) == 2000


async def test_many_spans_are_not_gathered_for_long(collector: Collector) -> None:
    tracing = OtlpTracing(Settings(tracing_endpoint=collector.endpoint), Metrics(), "test")
    tracing.start()
    try:
        for total in (3000, 6000):  # twice, so that the thread has waited in between
            record(tracing, 3000)
            assert len(await asyncio.to_thread(collector.spans, total)) == total
    finally:
        await tracing.close()


async def test_the_sdks_own_variables_are_obeyed(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "eyes")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", NOBODY)  # TORCHGATE_TRACING_ENDPOINT says where
    async with running_gateway(tmp_path, tracing="otlp", tracing_endpoint=collector.endpoint) as rig:
        await rig.client.get("/models")
    (span,) = collector.spans()
    assert span.resource["service.name"] == "eyes"
    assert span.resource["deployment.environment.name"] == "test"
    assert span.resource["service.version"]
    assert abs(span.end_ns - time.time_ns()) < 60e9


async def test_a_wrong_variable_of_the_sdk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "zip")
    tracing = OtlpTracing(Settings(), Metrics(), "test")
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_COMPRESSION"):
        tracing.start()


async def test_nothing_is_recorded_or_told_when_it_is_off(tmp_path: Path) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with running_gateway(tmp_path) as rig:
        assert (await rig.predict(b"class:1", headers={"traceparent": parent})).status_code == 200
        assert rig.backend.options[-1].headers == ()
    assert NoTracing().begin(None, may_decide=True) is None


def test_the_exporter_is_imported_only_where_it_is_wanted() -> None:
    look = (
        "import sys; from service.app import create_app; from service.config.settings import Settings; "
        "create_app(Settings(tracing=sys.argv[1])); print('opentelemetry.sdk' in sys.modules)"
    )
    for tracing, expected in (("off", "False"), ("otlp", "True")):
        command = [sys.executable, "-c", look, tracing]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.strip() == expected


def test_a_process_flushes_when_it_is_stopped(tmp_path: Path, collector: Collector) -> None:
    parent = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    env = {"TORCHGATE_TRACING": "otlp", "TORCHGATE_TRACING_ENDPOINT": collector.endpoint}
    with GatewayProcess(TORCHGATE_MODEL_STORE=str(tmp_path), **env) as gateway:
        answer = httpx.post(f"{gateway.url}/predict", content=b"image", headers=parent, trust_env=False)
        assert answer.status_code == 503
        gateway.stop()
        (line,) = [record for record in gateway.records() if record["message"] == "request"]
        assert not [record for record in gateway.records() if record["level"] == "ERROR"], gateway.log
    (span,) = collector.spans()
    assert (span.name, span.attributes["error.type"]) == ("POST /predict", "not_ready")
    assert (line["trace_id"], line["span_id"]) == span.place
    assert line["request_id"] == span.attributes["torchgate.request.id"]
