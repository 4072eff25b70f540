"""Spans to an OpenTelemetry collector: gathered on the event loop, turned into OTLP and sent on a thread.

What the collector does, or does not do, delays no request: the queue is bounded, and what it does not hold is dropped
and counted. OpenTelemetry's exporter sends them; its tracer's spans would cost more than the rest of a request.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any, cast

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as WireResource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from service.config.settings import Settings
from service.telemetry.metrics import Metrics
from service.telemetry.trace_context import SAMPLED
from service.telemetry.tracing import OpenSpan, Sampler, Span

logger = logging.getLogger(__name__)

MOST_WAITING = 8192
MOST_IN_EXPORT = 512
GATHER_SECONDS = 1.0
# After a failure, which has taken the exporter's own patience (OTEL_EXPORTER_OTLP_TIMEOUT, 10 s) unless it was clear.
PAUSE_SECONDS = 5.0
FLUSH_SECONDS = 3.0
KINDS = {
    "server": WireSpan.SPAN_KIND_SERVER,
    "client": WireSpan.SPAN_KIND_CLIENT,
    "internal": WireSpan.SPAN_KIND_INTERNAL,
}
# Beside the W3C's flags, whether the parent is in another process (OTLP's SpanFlags).
PARENT_IS_KNOWN = 0x100
PARENT_IS_REMOTE = 0x200
CLOCK_STEP_NS = 1_000_000
MAX_CACHED_PAIRS = 4096


class OtlpTracing:
    """Records requests as the settings say and exports their spans until it is closed."""

    def __init__(self, settings: Settings, metrics: Metrics, gateway_name: str) -> None:
        self._endpoint = settings.tracing_endpoint
        self._gateway_name = gateway_name
        self._exported, self._dropped, self._failed = (
            metrics.trace_spans.labels(result) for result in ("exported", "dropped", "failed")
        )
        self.begin = Sampler(settings.tracing_sample_ratio, self._take).begin
        self._waiting: deque[Span] = deque()
        self._has_some = threading.Event()
        self._is_urgent = threading.Event()  # many wait, or it is to end
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def start(self) -> None:
        """Begin to export.

        Raises:
            ValueError: one of OpenTelemetry's own variables is wrong.
        """
        try:
            self._exporter = _Exporter(self._endpoint, _Encoder(self._gateway_name))
        except Exception as error:  # of its own kinds, some; the variables are the only thing that it could mind
            raise ValueError(f"one of OTEL_EXPORTER_OTLP_*: {error}") from error
        self._thread.start()

    async def close(self) -> None:
        """Export what waits, but not for longer than FLUSH_SECONDS; then let go of the collector."""
        self._is_closing.set()
        self._is_urgent.set()
        self._has_some.set()
        await asyncio.to_thread(self._thread.join, FLUSH_SECONDS)
        await asyncio.to_thread(self._exporter.shutdown)  # ends an export that goes on
        await asyncio.to_thread(self._thread.join, 1)
        if self._waiting:
            logger.warning("%d spans were not exported before the end", len(self._waiting))
            self._dropped.inc(len(self._waiting))

    def _take(self, span: Span) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._dropped.inc()
            return
        self._waiting.append(span)
        if len(self._waiting) == 1:
            self._has_some.set()
        elif len(self._waiting) == MOST_IN_EXPORT:
            self._is_urgent.set()

    # On the thread

    def _run(self) -> None:
        while True:
            self._has_some.wait()
            self._is_urgent.wait(GATHER_SECONDS)
            self._has_some.clear()
            self._is_urgent.clear()
            while self._waiting:
                is_last_try = self._is_closing.is_set()
                if self._export([self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_IN_EXPORT))]):
                    continue
                if is_last_try:
                    return
                self._is_closing.wait(PAUSE_SECONDS)
            if self._is_closing.is_set():
                return

    def _export(self, spans: Sequence[Span]) -> bool:
        try:
            result = self._exporter.export(cast("Sequence[ReadableSpan]", spans))
        except Exception:  # the one thread that must survive whatever it meets; the cause is in the log
            logger.exception("spans could not be exported")
            result = SpanExportResult.FAILURE
        is_done = result is SpanExportResult.SUCCESS
        (self._exported if is_done else self._failed).inc(len(spans))
        return is_done


class _Exporter(OTLPSpanExporter):
    """OpenTelemetry's exporter with an encoder of our own: it takes a third as long."""

    def __init__(self, endpoint: str, encoder: "_Encoder") -> None:
        super().__init__(endpoint, insecure=endpoint.startswith("http:"))
        self._encoder = encoder

    def _translate_data(self, data: Sequence[Any]) -> ExportTraceServiceRequest:
        return self._encoder.encode(data)


class _Encoder:
    """Writes spans as OTLP (https://opentelemetry.io/docs/specs/otlp/), with times of day."""

    def __init__(self, gateway_name: str) -> None:
        gateway = {"service.name": "torchgate", "service.version": version("torchgate")}
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go before.
        given = OTELResourceDetector().detect()
        resource = Resource.create({**gateway, "service.instance.id": gateway_name}).merge(given)
        self._resource = WireResource(
            attributes=[_pair(name, str(value)) for name, value in resource.attributes.items()]
        )
        self._scope = InstrumentationScope(name="torchgate", version=version("torchgate"))
        self._offset_ns = 0

    def encode(self, spans: Sequence[Span]) -> ExportTraceServiceRequest:
        """Return the message that says them all."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        # One offset for all spans of a trace, unless the clock was set: else children would begin before their parents.
        if abs(offset_ns - self._offset_ns) > CLOCK_STEP_NS:
            self._offset_ns = offset_ns
        scoped = ScopeSpans(scope=self._scope, spans=[self._wire(span) for span in spans])
        return ExportTraceServiceRequest(resource_spans=[ResourceSpans(resource=self._resource, scope_spans=[scoped])])

    def _wire(self, span: Span) -> WireSpan:
        context = span.context
        wire = WireSpan(
            trace_id=bytes.fromhex(context.trace_id),
            span_id=bytes.fromhex(context.span_id),
            trace_state=context.state,
            name=span.name,
            kind=KINDS[span.kind],
            flags=SAMPLED | PARENT_IS_KNOWN | (PARENT_IS_REMOTE if context.has_remote_parent else 0),
            start_time_unix_nano=self._at(span.started),
            end_time_unix_nano=self._at(span.ended),
            attributes=[_pair(name, value) for name, value in span.attributes.items()],
        )
        if context.parent_id is not None:
            wire.parent_span_id = bytes.fromhex(context.parent_id)
        for link in span.links:
            wire.links.append(_link(link))
        if span.error is not None:
            wire.status.code = Status.STATUS_CODE_ERROR
            wire.attributes.append(_cached_pair("error.type", span.error))
        return wire

    def _at(self, seconds: float) -> int:
        return self._offset_ns + round(seconds * 1e9)


def _link(span: OpenSpan) -> WireSpan.Link:
    return WireSpan.Link(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        trace_state=span.state,
        flags=SAMPLED | PARENT_IS_KNOWN,
    )


def _pair(name: str, value: str | int | float) -> KeyValue:
    if isinstance(value, float):
        return KeyValue(key=name, value=AnyValue(double_value=value))
    return _cached_pair(name, value)


@lru_cache(MAX_CACHED_PAIRS)  # most are the same for every request
def _cached_pair(name: str, value: str | int) -> KeyValue:
    said = AnyValue(string_value=value) if isinstance(value, str) else AnyValue(int_value=value)
    return KeyValue(key=name, value=said)
