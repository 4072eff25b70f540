"""Spans of real requests, as a collector gets them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.domain.backend import Target
from service.errors.gateway import BackendFailed
from tests.collector import Collector, Seen
from tests.gateway import Rig, running_gateway

pytestmark = pytest.mark.anyio

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STATE = "rojo=1,congo=2"


def parent(trace_id: str = TRACE, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-{CALLER}-{flags}"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture
async def rig(tmp_path: Path, collector: Collector) -> AsyncIterator[Rig]:
    options: dict[str, Any] = {"tracing": "otlp", "tracing_endpoint": collector.endpoint}
    async with running_gateway(tmp_path, trusted_proxies="127.0.0.1", **options) as rig:
        yield rig


async def arrived(collector: Collector, num_spans: int) -> dict[str, list[Seen]]:
    """Return the spans by name, once there are so many."""
    found: dict[str, list[Seen]] = {}
    for span in await asyncio.to_thread(collector.spans, num_spans):
        found.setdefault(span.name, []).append(span)
    return found


async def in_pieces(rig: Rig, headers: dict[str, str]) -> httpx.Response:
    async def body() -> AsyncIterator[bytes]:
        yield b"class:"
        yield b"1"

    return await rig.client.post("/predict?top_k=1", content=body(), headers={"Content-Type": "image/png", **headers})


async def whole(rig: Rig, headers: dict[str, str]) -> httpx.Response:
    return await rig.predict(b"class:1", params={"top_k": 1}, headers=headers)


@pytest.mark.parametrize("ask", [whole, in_pieces])
async def test_one_trace_from_the_client_to_the_batch(rig: Rig, collector: Collector, ask: Any) -> None:
    answer = await ask(rig, {**parent(), "tracestate": STATE, "x-request-id": "mine", "user-agent": "tests"})
    assert answer.status_code == 200
    spans = await arrived(collector, 4)
    (server,), (queue,), (compute,), (batch,) = (spans[name] for name in ("POST /predict", "queue", "compute", "batch"))
    assert [(span.trace_id, span.state) for span in (server, queue, compute, batch)] == [(TRACE, STATE)] * 4
    assert (server.kind, server.parent_id) == ("SERVER", CALLER)
    assert (queue.kind, queue.parent_id) == ("INTERNAL", server.span_id)
    assert (compute.kind, compute.parent_id) == ("INTERNAL", server.span_id)
    assert (batch.kind, batch.parent_id) == ("CLIENT", compute.span_id)
    assert [span.flags for span in (server, queue, compute, batch)] == [0x300, 0x100, 0x100, 0x100]  # remote parent
    assert batch.links == [server.place]
    assert compute.links == [batch.place]
    assert server.start_ns <= queue.start_ns <= queue.end_ns == compute.start_ns < compute.end_ns <= server.end_ns
    assert (batch.start_ns, batch.end_ns) == (compute.start_ns, compute.end_ns)
    version = {"torchgate.model.name": "digits", "torchgate.model.version": "1.0"}
    wait_ms = float(answer.headers["x-queue-ms"])
    assert server.attributes == {
        "http.request.method": "POST",
        "http.route": "/predict",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "client.address": "127.0.0.1",
        "url.path": "/predict",
        "url.query": "top_k=1",
        "server.address": "127.0.0.1",
        "server.port": rig.port,
        "user_agent.original": "tests",
        "torchgate.request.id": "mine",
        "torchgate.num_images": 1,
        "torchgate.batch.size": 1,
        "torchgate.queue.wait_ms": wait_ms,
        **version,
    }
    assert batch.attributes == {
        **version,
        "torchgate.batch.size": 1,
        "torchgate.batch.limit": 32,
        "torchgate.batch.close_reason": "idle",
        "torchgate.queue.wait_ms": wait_ms,
        "torchgate.handler.decode_ms": 1.0,
        "torchgate.handler.compute_ms": 2.0,
    }
    assert server.resource["service.name"] == "torchgate"
    assert not any(span.is_error for span in (server, queue, compute, batch))
    # What the model server is told.
    told = dict(rig.backend.options[-1].headers)
    assert told == {"traceparent": f"00-{TRACE}-{batch.span_id}-01", "tracestate": STATE}
    await rig.until("torchgate_trace_spans_total", 4, result="exported")  # the collector has them first


async def test_a_batch_links_to_all_of_its_requests(rig: Rig, collector: Collector) -> None:
    first = await rig.fill_the_slot()
    others = {str(number) * 32: number for number in (1, 2, 3)}
    asked = [
        asyncio.create_task(rig.predict(b"class:1", headers=parent(trace_id, "00" if number == 2 else "01")))
        for trace_id, number in others.items()
    ]
    await rig.until_queued(3)
    rig.backend.release()
    assert {(await each).status_code for each in (first, *asked)} == {200}
    spans = await arrived(collector, 4 + 2 * 3 + 1)
    (batch,) = [span for span in spans["batch"] if span.attributes["torchgate.batch.size"] == 3]
    servers = {span.trace_id: span for span in spans["POST /predict"]}
    recorded = {"1" * 32, "3" * 32}  # the caller of the second one did not want it
    assert set(servers) - recorded == {span.trace_id for span in spans["batch"] if span is not batch}
    assert len(servers) == 3
    assert set(batch.links) == {servers[trace_id].place for trace_id in recorded}
    computes = [span for span in spans["compute"] if span.trace_id in recorded]
    assert [span.links for span in computes] == [[batch.place]] * 2
    assert {span.parent_id for span in computes} == {servers[trace_id].span_id for trace_id in recorded}
    assert batch.parent_id in {span.span_id for span in computes}
    assert len({span.span_id for each in spans.values() for span in each}) == 4 + 2 * 3 + 1


async def test_the_images_of_one_request_in_several_batches(tmp_path: Path, collector: Collector) -> None:
    options: dict[str, Any] = {"tracing": "otlp", "tracing_endpoint": collector.endpoint, "max_batch_size": 2}
    async with running_gateway(tmp_path, **options) as rig:
        files = [("file", (f"{number}.png", b"class:1", "image/png")) for number in range(5)]
        assert (await rig.client.post("/predict", files=files)).status_code == 200
        spans = await arrived(collector, 1 + 3 * 3)
    (server,) = spans["POST /predict"]
    assert sorted(span.attributes["torchgate.batch.size"] for span in spans["batch"]) == [1, 2, 2]
    assert [span.links for span in spans["batch"]] == [[server.place]] * 3


async def test_what_is_no_context_begins_a_trace(rig: Rig, collector: Collector) -> None:
    await rig.predict(b"class:1", headers={"traceparent": parent()["traceparent"].upper(), "tracestate": STATE})
    (server,) = (await arrived(collector, 4))["POST /predict"]
    assert (server.parent_id, server.state) == ("", "")
    assert server.trace_id != TRACE
    assert len(server.trace_id) == 32


@pytest.mark.parametrize(
    ("ratio", "headers", "num_recorded", "proxies"),
    [
        *((ratio, {}, num, "127.0.0.1") for ratio, num in ((0, 0), (1, 20), (0.5, None))),
        (0, parent(), 20, "127.0.0.1"),
        (1, parent(flags="00"), 0, "127.0.0.1"),
        (0, parent(), 0, "127.0.0.2"),
        (1, parent(flags="00"), 20, "127.0.0.2"),
    ],
)
async def test_who_decides_what_is_recorded(
    tmp_path: Path, collector: Collector, ratio: float, headers: dict[str, str], num_recorded: int | None, proxies: str
) -> None:
    options: dict[str, Any] = {"tracing": "otlp", "tracing_endpoint": collector.endpoint, "tracing_sample_ratio": ratio}
    async with running_gateway(tmp_path, trusted_proxies=proxies, **options) as rig:
        for _ in range(20):
            await rig.predict(b"class:1", headers=headers)
        told = [bool(batch.headers) for batch in rig.backend.options]
    # The gateway has stopped: what was to be exported, was.
    servers = [span for span in collector.spans() if span.kind == "SERVER" and span.name == "POST /predict"]
    assert len(servers) == sum(told)
    assert len(servers) == num_recorded if num_recorded is not None else 0 < len(servers) < 20
    if headers:
        assert {(span.trace_id, span.parent_id) for span in servers} <= {(TRACE, CALLER)}, "a stranger's trace goes on"


async def test_refusals_and_failures(rig: Rig, collector: Collector) -> None:
    assert (await rig.client.get("/nowhere")).status_code == 404
    assert (await rig.client.get("/models/none")).status_code == 404
    assert (await rig.client.request("PROPFIND", "/predict")).status_code == 405
    assert (await rig.predict(b"class:1", params={"top_k": 0})).status_code == 422
    rig.backend.failing[Target("digits", "1.0")] = BackendFailed("no")
    assert (await rig.predict(b"class:1")).status_code == 503
    spans = await arrived(collector, 4 + 4)

    def told(span: Seen) -> tuple[Any, ...]:
        keys = ("http.route", "http.response.status_code", "torchgate.error.code", "error.type")
        return (span.is_error, *(span.attributes.get(key) for key in keys))

    (unmatched,), (model,), (propfind,) = spans["GET"], spans["GET /models/{model}"], spans["HTTP /predict"]
    assert told(unmatched) == (False, None, 404, "route_not_found", None)
    assert told(model) == (False, "/models/{model}", 404, "model_not_found", None)
    assert told(propfind) == (False, "/predict", 405, "method_not_allowed", None)
    assert propfind.attributes["http.request.method"] == "_OTHER"
    assert propfind.attributes["http.request.method_original"] == "PROPFIND"
    wrong, failed = sorted(spans["POST /predict"], key=lambda span: span.start_ns)
    assert told(wrong) == (False, "/predict", 422, "parameter_invalid", None)
    assert told(failed) == (True, "/predict", 503, "backend_failed", "backend_failed")
    (batch,), (compute,) = spans["batch"], spans["compute"]
    assert (batch.is_error, batch.attributes["error.type"]) == (True, "backend_failed")
    assert compute.is_error
    assert (batch.trace_id, batch.links) == (failed.trace_id, [failed.place])


async def test_probes_are_not_recorded(rig: Rig, collector: Collector) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/models"):
        await rig.client.get(path, headers=parent())
    spans = await arrived(collector, 1)
    assert list(spans) == ["GET /models"]


async def test_who_waits_in_vain(rig: Rig, collector: Collector) -> None:
    first = await rig.fill_the_slot()
    late = await rig.predict(b"class:1", headers={**parent("1" * 32), "X-Deadline-Ms": "50"})
    gone = asyncio.create_task(rig.predict(b"class:1", headers=parent("2" * 32)))
    await rig.until_queued(2)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await rig.until("torchgate_inference_requests_total", 1, version="1.0", outcome="cancelled")
    rig.backend.release()
    assert ((await first).status_code, late.status_code) == (200, 504)
    spans = await arrived(collector, 4 + 2 + 2)
    servers = {span.trace_id: span for span in spans["POST /predict"]}
    assert servers["1" * 32].attributes["error.type"] == "deadline_exceeded"
    left = servers["2" * 32]
    assert left.attributes["torchgate.error.code"] == "client_closed"
    assert "http.response.status_code" not in left.attributes
    waited = {span.trace_id: span for span in spans["queue"] if span.is_error}
    assert set(waited) == {"1" * 32, "2" * 32}
    assert waited["1" * 32].end_ns - waited["1" * 32].start_ns >= 45_000_000
