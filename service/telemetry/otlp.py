"""Sends spans to an OpenTelemetry collector through the SDK's batch processor and exporter.

The event loop only queues spans; the SDK's thread converts, encodes and sends them. The collector never delays a
request: the queue is bounded, and spans that do not fit are dropped and counted.
"""

import asyncio
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import cast

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from service.config.settings import Settings
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import OpenSpan, Sampler, Span

MOST_QUEUED = 8192
MOST_IN_EXPORT = 512
GATHER_SECONDS = 1.0
FLUSH_SECONDS = 3.0
KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
CLOCK_STEP_NS = 1_000_000


class OtlpTracing:
    """Records requests as the settings say and exports their spans until it is closed."""

    def __init__(self, settings: Settings, metrics: Metrics, gateway_name: str) -> None:
        self._endpoint = settings.tracing_endpoint
        self._gateway_name = gateway_name
        self._metrics = metrics
        self._dropped = metrics.trace_spans.labels("dropped")
        self.begin = Sampler(settings.tracing_sample_ratio, self._queue).begin
        self._num_queued = 0

    def start(self) -> None:
        """Begin to export.

        Raises:
            ValueError: one of OpenTelemetry's own variables is wrong.
        """
        try:
            exporter = OTLPSpanExporter(self._endpoint, insecure=self._endpoint.startswith("http:"))
        except Exception as error:  # of several types; only the variables can be wrong
            raise ValueError(f"one of OTEL_EXPORTER_OTLP_*: {error}") from error
        self._exporter = _CountingExporter(exporter, _Converter(self._gateway_name), self._metrics)
        self._processor = BatchSpanProcessor(self._exporter, MOST_QUEUED, GATHER_SECONDS * 1000, MOST_IN_EXPORT)

    async def close(self) -> None:
        """Export the queued spans for at most FLUSH_SECONDS, then disconnect."""
        flush = asyncio.create_task(asyncio.to_thread(self._processor.shutdown))
        await asyncio.wait({flush}, timeout=FLUSH_SECONDS)
        if not flush.done():  # the SDK would wait for 30 s
            await asyncio.to_thread(self._exporter.shutdown)
        await flush

    def _queue(self, span: Span) -> None:
        # The SDK's queue would drop its oldest span without a count.
        if self._num_queued - self._exporter.num_taken >= MOST_QUEUED:
            self._dropped.inc()
            return
        self._num_queued += 1
        self._processor.on_end(cast("ReadableSpan", _Queued(span)))


class _Queued:
    """A span in the SDK's queue, which only asks whether it is sampled. The exporter's thread converts it."""

    __slots__ = ("span",)
    context = SpanContext(1, 1, is_remote=False, trace_flags=SAMPLED)

    def __init__(self, span: Span) -> None:
        self.span = span


class _CountingExporter(SpanExporter):
    """Converts spans, exports them, and counts how that ended. Runs on the SDK's thread."""

    def __init__(self, exporter: OTLPSpanExporter, converter: "_Converter", metrics: Metrics) -> None:
        self._exporter = exporter
        self._converter = converter
        self._exported, self._failed = (metrics.trace_spans.labels(result) for result in ("exported", "failed"))
        self._is_shut_down = False
        self.num_taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans from the SDK's queue."""
        self.num_taken += len(spans)
        result = SpanExportResult.FAILURE
        try:
            queued = cast("Sequence[_Queued]", spans)
            result = self._exporter.export(self._converter.convert([each.span for each in queued]))
        finally:
            (self._exported if result is SpanExportResult.SUCCESS else self._failed).inc(len(spans))
        return result

    def shutdown(self) -> None:
        """End the export in progress; later ones fail at once."""
        if not self._is_shut_down:
            self._is_shut_down = True
            self._exporter.shutdown()


class _Converter:
    """Converts spans to the SDK's, with wall-clock times."""

    def __init__(self, gateway_name: str) -> None:
        gateway = {"service.name": "torchgate", "service.version": version("torchgate")}
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override these.
        given = OTELResourceDetector().detect()
        self._resource = Resource.create({**gateway, "service.instance.id": gateway_name}).merge(given)
        self._scope = InstrumentationScope("torchgate", version("torchgate"))
        self._offset_ns = 0

    def convert(self, spans: Sequence[Span]) -> Sequence[ReadableSpan]:
        """Return the spans as the SDK's exporter takes them."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        # All spans of a trace share one offset unless the clock was set. Otherwise children would begin before parents.
        if abs(offset_ns - self._offset_ns) > CLOCK_STEP_NS:
            self._offset_ns = offset_ns
        return [self._convert(span) for span in spans]

    def _convert(self, span: Span) -> ReadableSpan:
        context, parent = span.context, None
        if context.parent_id is not None:
            parent = SpanContext(int(context.trace_id, 16), int(context.parent_id, 16), context.has_remote_parent)
        attributes = span.attributes if span.error is None else {**span.attributes, "error.type": span.error}
        return ReadableSpan(
            span.name,
            _context(context),
            parent,
            self._resource,
            attributes,
            links=[Link(_context(link)) for link in span.links],
            kind=KINDS[span.kind],
            status=Status(StatusCode.UNSET if span.error is None else StatusCode.ERROR),
            start_time=self._at(span.started),
            end_time=self._at(span.ended),
            instrumentation_scope=self._scope,
        )

    def _at(self, seconds: float) -> int:
        return self._offset_ns + round(seconds * 1e9)


def _context(span: OpenSpan) -> SpanContext:
    state = TraceState.from_header([span.state]) if span.state else None
    return SpanContext(int(span.trace_id, 16), int(span.span_id, 16), False, SAMPLED, state)
