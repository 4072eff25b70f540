"""One request as metrics, the access log and its span see it.

The span's attributes are those of the stable semantic conventions for HTTP servers:
https://opentelemetry.io/docs/specs/semconv/http/http-spans/#http-server-span
"""

import random
import re
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from service.errors.gateway import GatewayError
from service.http.direct_request import RawHeaders
from service.http.server.clients import Client, Clients
from service.telemetry.access_log import AccessLog, Breakdown
from service.telemetry.metric_labels import METHODS, PREDICT_CODES
from service.telemetry.metrics import Metrics
from service.telemetry.trace_context import TRACEPARENT, TraceContext, read_context
from service.telemetry.tracing import OpenSpan, Tracing

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
QUIET_ROUTES = frozenset({"/healthz", "/readyz", "/metrics", "/", "/status", "/status/events"})
OTHER_ROUTES = "other"  # of requests in progress: a route is known only once the framework has found it
UNMATCHED = "unmatched"
CLIENT_CLOSED = 499  # nginx's number for a client that left before its answer
LONGEST_TEXT = 512  # of the caller's text in a span
MAX_CACHED_HOSTS = 1024
# Seeded by the system once; asking it for every id is a system call each.
_numbers = random.Random()  # noqa: S311 - ids are no secrets


def new_id() -> str:
    """Return a new unique id of 32 hexadecimal digits."""
    return f"{_numbers.getrandbits(128):032x}"


class RequestRecorder:
    """Counts the requests in progress; measures and logs each when it ends."""

    def __init__(
        self,
        metrics: Metrics,
        log: AccessLog,
        tracing: Tracing,
        clients: Clients,
        direct_routes: Iterable[tuple[str, str]],
    ) -> None:
        self._metrics = metrics
        self._clients = clients
        self._log = log
        self._tracing = tracing
        self._num_in_progress = dict.fromkeys([*(path for _, path in direct_routes), OTHER_ROUTES], 0)
        for route in self._num_in_progress:
            metrics.http_in_progress.labels(route).set_function(partial(self._num_in_progress.__getitem__, route))
        for method, path in direct_routes:
            for code in PREDICT_CODES:
                metrics.http_requests.labels(method, path, code)

    def begin(
        self,
        method: str,
        path: str,
        query_string: bytes,
        raw_headers: RawHeaders,
        client: Client,
        route: str = UNMATCHED,
    ) -> "RequestContext":
        """Return the context of a request that has just come; only a direct one has a route already."""
        headers = dict(raw_headers)
        trace = read_context(raw_headers) if TRACEPARENT in headers else None
        span = None if path in QUIET_ROUTES else self._tracing.begin(trace, may_decide=client.is_proxy)
        if client.is_proxy:
            client = self._clients.forwarded(client, raw_headers)
        context = RequestContext(self, method, path, query_string, headers, client, route, trace, span)
        self._num_in_progress[context.in_progress_as] += 1
        return context

    def record(self, context: "RequestContext") -> None:
        """Measure and log a request that was answered, or whose client left."""
        self._num_in_progress[context.in_progress_as] -= 1
        now = time.monotonic()
        method, route, code = context.method, context.route, context.status or CLIENT_CLOSED
        self._metrics.http_request(method, route, code, now - context.started)
        if context.span is not None:
            _end_span(context.span, context, now)
        level = "debug" if route in QUIET_ROUTES else "info"
        self._log.request(level, lambda: context.fields(now), context.breakdown, context.started, now)


class RequestContext:
    """One request: its ids, and what is recorded of it when it ends."""

    status: int | None = None
    error_code: str | None = None
    error: str | None = None  # its text, where it has details
    log: Mapping[str, Any] = MappingProxyType({})
    breakdown: Breakdown | None = None  # of a prediction
    caller: str | None = None  # the name of whose credentials were right
    is_reader: bool | None = None  # whether the caller may read the details of failures; None until it matters

    def __init__(
        self,
        recorder: RequestRecorder,
        method: str,
        path: str,
        query_string: bytes,
        headers: Mapping[bytes, bytes],
        client: Client,
        route: str,
        trace: TraceContext | None,
        span: OpenSpan | None,
    ) -> None:
        self._recorder = recorder
        self.started = time.monotonic()
        self.method = method
        self.path = path
        self.query_string = query_string
        self.headers = headers  # of several with one name the last
        self.client = client  # the client itself, also behind trusted proxies
        self.route = route
        self.in_progress_as = OTHER_ROUTES if route == UNMATCHED else route
        self.trace = trace
        self.span = span  # None if it is not recorded
        given = headers.get(b"x-request-id")
        self.request_id = given.decode() if given is not None and REQUEST_ID.fullmatch(given) else new_id()

    def ids(self) -> dict[str, Any]:
        """Return the ids that its log lines carry."""
        if self.span is not None:
            return {"request_id": self.request_id, "trace_id": self.span.trace_id, "span_id": self.span.span_id}
        if self.trace is not None:
            return {"request_id": self.request_id, "trace_id": self.trace.trace_id}
        return {"request_id": self.request_id}

    def fields(self, ended: float) -> Mapping[str, Any]:
        """Return what its line in the access log says."""
        fields = {
            **self.ids(),
            "client": self.client.address,
            "method": self.method,
            "route": self.route,
            "code": self.status or CLIENT_CLOSED,
            "duration_ms": round((ended - self.started) * 1000, 3),
            **self.log,
        }
        if self.caller is not None:
            fields["caller"] = self.caller
        if self.error_code is not None:
            fields["error_code"] = self.error_code
        if self.error is not None:  # the caller may have got no details
            fields["error"] = self.error
        return fields

    def describe(self, log: Mapping[str, Any], breakdown: Breakdown) -> None:
        """Add a prediction's fields to the log line, and its times to the line of a slow request."""
        self.log, self.breakdown = log, breakdown

    def refuse(self, error: GatewayError) -> None:
        """Note the error that it is answered with."""
        # Not the error itself: its traceback leads back here, and would leave work for the garbage collector.
        self.error_code, self.error = error.code, str(error) if error.has_details else None

    def answer(self, status: int) -> None:
        """Note the status of the answer."""
        self.status = status

    def end(self, status: int | None = None, route: str | None = None) -> None:
        """Record the request: `status` unless `answer` has noted one, and the route once it is known."""
        self.status = self.status or status
        self.route = route or self.route
        self._recorder.record(self)


def _end_span(span: OpenSpan, context: RequestContext, ended: float) -> None:
    method, route, headers, status = context.method, context.route, context.headers, context.status
    error_code = context.error_code
    if status == CLIENT_CLOSED:
        status, error_code = None, "client_closed"
    is_known = method in METHODS
    attributes: dict[str, str | int | float] = {
        "http.request.method": method if is_known else "_OTHER",
        "url.scheme": context.client.scheme,
        "client.address": context.client.address,
        "url.path": context.path[:LONGEST_TEXT],
        "torchgate.request.id": context.request_id,
        **_server(headers.get(b"host", b"")[:LONGEST_TEXT], 443 if context.client.scheme == "https" else 80),
    }
    if not is_known:
        attributes["http.request.method_original"] = method[:LONGEST_TEXT]
    has_route = route != UNMATCHED
    if has_route:
        attributes["http.route"] = route
    if context.query_string:
        attributes["url.query"] = context.query_string[:LONGEST_TEXT].decode("latin-1")
    if agent := headers.get(b"user-agent"):
        attributes["user_agent.original"] = agent[:LONGEST_TEXT].decode("latin-1")
    if status is not None:
        attributes["http.response.status_code"] = status
    if error_code is not None:
        attributes["torchgate.error.code"] = error_code
    attributes |= span.attributes or {}
    name = f"{method if is_known else 'HTTP'} {route}" if has_route else (method if is_known else "HTTP")
    # A client's mistake is no error of a server's span.
    error = (error_code or str(status)) if status is not None and status >= 500 else None
    span.end(name, "server", context.started, ended, attributes, error=error)


@lru_cache(MAX_CACHED_HOSTS)
def _server(host: bytes, default_port: int) -> Mapping[str, str | int]:
    try:
        parts = urlsplit("//" + host.decode("latin-1"))
        address, port = parts.hostname, parts.port
    except ValueError:
        return {}
    if not address:
        return {}
    return {"server.address": address, "server.port": port or default_port}
