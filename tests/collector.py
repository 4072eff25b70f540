"""An OpenTelemetry collector for tests: takes spans by OTLP over gRPC and keeps them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

ERROR = Status.StatusCode.STATUS_CODE_ERROR


@dataclass(frozen=True)
class Seen:
    """A span as it was exported."""

    name: str
    kind: str  # SERVER, CLIENT, INTERNAL
    trace_id: str
    span_id: str
    parent_id: str
    state: str
    flags: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    links: list[tuple[str, str]]
    is_error: bool
    start_ns: int
    end_ns: int

    @property
    def place(self) -> tuple[str, str]:
        return self.trace_id, self.span_id


class Collector(TraceServiceServicer):
    """Listens on a free port while it is entered; `hold()` makes exports wait."""

    def __init__(self) -> None:
        self._spans: list[Seen] = []
        self._changed = threading.Condition()
        self._open = threading.Event()
        self._open.set()
        self._server = grpc.server(ThreadPoolExecutor(2))
        self.endpoint = ""

    def hold(self) -> None:
        self._open.clear()

    def Export(  # noqa: N802 - gRPC's name
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        self._open.wait(60)
        seen = [
            _seen(span, _values(resource.resource.attributes))
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._changed:
            self._spans += seen
            self._changed.notify_all()
        return ExportTraceServiceResponse()

    def spans(self, num_spans: int = 0) -> list[Seen]:
        """Return all spans once there are so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._spans) >= num_spans, 20), [s.name for s in self._spans]
            return list(self._spans)

    def __enter__(self) -> Self:
        add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.set()
        self._server.stop(1).wait(10)


def _seen(span: WireSpan, resource: dict[str, Any]) -> Seen:
    return Seen(
        span.name,
        WireSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.trace_state,
        span.flags,
        _values(span.attributes),
        resource,
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        span.status.code == ERROR,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
    )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair) for pair in pairs}


def _value(pair: KeyValue) -> Any:
    value: AnyValue = pair.value
    return getattr(value, str(value.WhichOneof("value")))
