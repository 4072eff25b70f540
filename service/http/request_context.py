"""What surrounds every request: its id, its measure, its log line, and the end of bodies that were not read."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors.gateway import Draining, InternalError
from service.http.heads import Fields, Headers, KnownHeads
from service.http.ids import new_id
from service.http.problems import problem, problem_response
from service.http.request_span import end_request
from service.http.server import WHEN_GONE, WholeRequest
from service.telemetry.access_log import AccessLog, Breakdown
from service.telemetry.labels import PREDICT_CODES
from service.telemetry.metrics import Metrics
from service.telemetry.trace_context import TRACEPARENT, read_context
from service.telemetry.tracing import OpenSpan, Tracing

logger = logging.getLogger(__name__)

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
QUIET_ROUTES = frozenset({"/healthz", "/readyz", "/metrics", "/", "/status", "/status/events"})
OTHER_ROUTES = "other"  # of requests in progress: a route is known only once the framework has found it
CLIENT_CLOSED = 499  # nginx's number for a client that left before its answer
# A client that is still sending when it is refused gets this much more patience, so that it reads the refusal
# instead of a connection reset (RFC 9112, section 9.6).
LINGER_SECONDS = 2.0
LINGER_BYTES = 256 * 1024 * 1024


class Shortcut(Protocol):
    """An application that answers without the framework's routing and middleware."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

    def answer_whole(self, exchange: "WholeExchange") -> None:
        """Begin to answer a request whose body is there, and have `exchange.run` take every step that follows."""


class RequestMiddleware:
    """ASGI middleware around the whole application, and the way past ASGI for requests that come in one piece.

    `shortcuts` are applications by method and path that answer by themselves: the framework's routing and middleware
    take longer than a small prediction's share of everything else, and so does a task for each request.
    """

    def __init__(
        self,
        app: ASGIApp,
        shortcuts: Mapping[tuple[str, str], Shortcut],
        metrics: Metrics,
        log: AccessLog,
        tracing: Tracing,
    ) -> None:
        self._app = app
        self._shortcuts = shortcuts
        self.whole_routes = frozenset((method.encode(), path.encode()) for method, path in shortcuts)
        self.known_heads = KnownHeads()
        self._metrics = metrics
        self._log = log
        self._tracing = tracing
        self._num_in_progress = dict.fromkeys([*(path for _, path in shortcuts), OTHER_ROUTES], 0)
        for route in self._num_in_progress:
            metrics.http_in_progress.labels(route).set_function(partial(self._num_in_progress.__getitem__, route))
        for method, path in shortcuts:
            for code in PREDICT_CODES:
                metrics.http_requests.labels(method, path, code)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; anything but HTTP is passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        if exchange.path not in QUIET_ROUTES:
            exchange.span = self._tracing.begin(exchange.context)
        app = self._shortcuts.get((exchange.method, scope["path"]), self._app)
        if app is not self._app:
            exchange.in_progress_as = scope["path"]
        self._num_in_progress[exchange.in_progress_as] += 1
        try:
            await app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            exchange.status = CLIENT_CLOSED
        except asyncio.CancelledError:
            # The server cuts off what is left at the end of its drain; this task has nothing else to be cancelled by.
            if exchange.status is None:
                self._metrics.rejected.labels("draining").inc()
                await problem_response(Draining(), scope)(scope, exchange.receive, exchange.send)
        except Exception:
            # The border: nothing may pass it, the caller gets no internals and the log gets the cause.
            logger.exception("unexpected error", extra=exchange.ids())
            if exchange.status is None:
                await problem_response(InternalError(), scope)(scope, exchange.receive, exchange.send)
        finally:
            is_shortcut = app is not self._app
            exchange.route = scope["path"] if is_shortcut else getattr(scope.get("route"), "path", "unmatched")
            self.ended(exchange)
            # These lead back to the connection that holds the scope; without them no request leaves anything behind
            # for the garbage collector, which would hold up all others.
            scope["state"].clear()
            scope["extensions"].clear()

    def answer_whole(self, request: WholeRequest) -> None:
        """Answer a request that is there with its body; see service.http.server."""
        exchange = WholeExchange(self, request)
        exchange.span = self._tracing.begin(exchange.context)
        self._num_in_progress[exchange.in_progress_as] += 1
        exchange.run(self._shortcuts[exchange.method, exchange.route].answer_whole, exchange)

    def ended(self, exchange: "AnyExchange") -> None:
        """Measure and log a request that was answered or left."""
        self._num_in_progress[exchange.in_progress_as] -= 1
        now = time.monotonic()
        seconds = now - exchange.started
        method, route, code = exchange.method, exchange.route, exchange.status or CLIENT_CLOSED
        self._metrics.http_request(method, route, code, seconds)
        if exchange.span is not None:
            exchange.end_span(now)
        level = "debug" if route in QUIET_ROUTES else "info"
        slow = self._log.if_slow(seconds, exchange.breakdown, exchange.started, now)
        if slow or self._log.is_enabled_for(level):
            fields = {
                **exchange.ids(),
                "method": method,
                "route": route,
                "code": code,
                "duration_ms": round(seconds * 1000, 3),
                **exchange.log,
            }
            if exchange.error_code is not None:
                fields["error_code"] = exchange.error_code
            self._log.write("warning" if slow else level, "slow request" if slow else "request", {**fields, **slow})


class AnyExchange:
    """One request and its answer, and what the log says of them."""

    route = "unmatched"
    in_progress_as = OTHER_ROUTES
    status: int | None = None
    error_code: str | None = None
    log: Mapping[str, Any] = MappingProxyType({})
    breakdown: Breakdown | None = None  # of a prediction
    span: OpenSpan | None = None  # if it is recorded

    def __init__(self, method: str, path: str, query_string: bytes, headers: Headers, fields: Fields) -> None:
        self.started = time.monotonic()
        self.method = method
        self.path = path
        self.query_string = query_string
        self.headers = fields
        given = fields.get(b"x-request-id")
        self.request_id = given.decode() if given is not None and REQUEST_ID.fullmatch(given) else new_id()
        self.context = read_context(headers) if TRACEPARENT in fields else None

    def ids(self) -> dict[str, Any]:
        """Return what a log line finds the request by."""
        if self.span is not None:
            return {"request_id": self.request_id, "trace_id": self.span.trace_id, "span_id": self.span.span_id}
        if self.context is not None:
            return {"request_id": self.request_id, "trace_id": self.context.trace_id}
        return {"request_id": self.request_id}

    def end_span(self, now: float) -> None:
        """Record the request."""
        assert self.span is not None
        end_request(
            self.span,
            method=self.method,
            route=self.route,
            path=self.path,
            query=self.query_string,
            headers=self.headers,
            request_id=self.request_id,
            status=None if self.status == CLIENT_CLOSED else self.status,
            error_code="client_closed" if self.status == CLIENT_CLOSED else self.error_code,
            started=self.started,
            ended=now,
        )


class WholeExchange(AnyExchange):
    """A request that came in one piece."""

    def __init__(self, edge: RequestMiddleware, request: WholeRequest) -> None:
        head = request.head
        super().__init__(head.method, head.path, head.query_string, head.headers, request.fields)
        self.route = self.in_progress_as = head.path
        self.body = request.body
        self.when_gone = request.when_gone
        self._edge = edge
        self._request = request

    def run(self, step: Callable[..., None], *arguments: Any) -> None:
        """Take a step towards the answer. This is the border: no exception passes it."""
        try:
            step(*arguments)
        except Exception:
            logger.exception("unexpected error", extra=self.ids())
            if self.status is None:
                self.error_code = InternalError.code
                self.answer(*problem(InternalError(), self.request_id))

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send the answer, with a Content-Length among its headers."""
        headers.append((b"x-request-id", self.request_id.encode()))
        self._request.answer(status, headers, body)
        self.status = status
        self._edge.ended(self)

    def left(self) -> None:
        """Take in that the client has left."""
        self.status = CLIENT_CLOSED
        self._request.drop()
        self._edge.ended(self)


class Exchange(AnyExchange):
    """A request and its answer as they pass in ASGI's messages; applications find it in the scope's state."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        super().__init__(scope["method"], scope["path"], scope["query_string"], headers, dict(headers))
        scope["state"]["exchange"] = self
        # Takes what is to be called if the client leaves; None ends that.
        self.when_gone: Callable[[Callable[[], None] | None], None] = scope["extensions"][WHEN_GONE]
        self._receive = receive
        self._send = send
        self._body_pending = b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"

    async def receive(self) -> Message:
        """Receive as in ASGI."""
        message = await self._receive()
        if not message.get("more_body", False):
            self._body_pending = False
        return message

    async def send(self, message: Message) -> None:
        """Send as in ASGI."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self.request_id.encode())]
            if self._body_pending:
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        elif self._body_pending and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole answer, with a Content-Length among its headers."""
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    async def _linger(self) -> None:
        """Read what the client still sends, for a while, and throw it away."""
        num_bytes = 0
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while self._body_pending and num_bytes < LINGER_BYTES:
                    message = await self.receive()
                    num_bytes += len(message.get("body", b""))
        except TimeoutError:
            return
