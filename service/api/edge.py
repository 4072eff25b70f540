"""What surrounds every request: its id, its measure, its log line, and the end of bodies that were not read."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.ids import new_id
from service.api.problems import problem_response
from service.api.protocol import SHORTCUTS, Shortcuts
from service.errors import Draining, InternalError
from service.logs import AccessLog
from service.metrics import METHODS, Metrics

logger = logging.getLogger(__name__)

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
QUIET_ROUTES = frozenset({"/healthz", "/readyz", "/metrics"})
CLIENT_CLOSED = 499  # nginx's number for a client that left before its answer
# A client that is still sending when it is refused gets this much more patience, so that it reads the refusal
# instead of a connection reset (RFC 9112, section 9.6).
LINGER_SECONDS = 2.0
LINGER_BYTES = 256 * 1024 * 1024


class Edge:
    """ASGI middleware around the whole application.

    `shortcuts` are applications by method and path that answer without the framework's routing and middleware, which
    take longer than a small prediction's share of everything else.
    """

    def __init__(
        self, app: ASGIApp, shortcuts: Mapping[tuple[str, str], ASGIApp], metrics: Metrics, log: AccessLog
    ) -> None:
        self._app = app
        self._shortcuts = shortcuts
        self._metrics = metrics
        self._log = log
        self._num_in_progress = 0
        metrics.http_in_progress.set_function(lambda: self._num_in_progress)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; anything but HTTP is passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        started = time.monotonic()
        self._num_in_progress += 1
        try:
            app = self._shortcuts.get((scope["method"], scope["path"]), self._app)
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
            logger.exception("unexpected error", extra={"request_id": exchange.request_id})
            if exchange.status is None:
                await problem_response(InternalError(), scope)(scope, exchange.receive, exchange.send)
        finally:
            self._num_in_progress -= 1
            self._record(scope, exchange, time.monotonic() - started)
            # These lead back to the connection that holds the scope; without them no request leaves anything behind
            # for the garbage collector, which would hold up all others.
            scope["state"].clear()
            scope["extensions"].clear()

    def _record(self, scope: Scope, exchange: "Exchange", seconds: float) -> None:
        method, path = scope["method"], scope["path"]
        route = path if (method, path) in self._shortcuts else getattr(scope.get("route"), "path", "unmatched")
        code = exchange.status or CLIENT_CLOSED
        self._metrics.http_request(method if method in METHODS else "other", route, str(code), seconds)
        level = "debug" if route in QUIET_ROUTES else "info"
        if self._log.is_enabled_for(level):
            state = scope["state"]
            fields = {
                "request_id": exchange.request_id,
                "method": method,
                "route": route,
                "code": code,
                "duration_ms": round(seconds * 1000, 3),
                **state.get("log", {}),
            }
            if "error_code" in state:
                fields["error_code"] = state["error_code"]
            self._log.write(level, fields)


class Exchange:
    """One request and its answer, as they pass; applications find it in the scope's state."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if REQUEST_ID.fullmatch(given) else new_id()
        state = scope.setdefault("state", {})
        state["request_id"] = self.request_id
        state["headers"] = headers  # of several with one name the last; for those who look up more than one
        self.status: int | None = None
        state["exchange"] = self
        self._receive = receive
        self._send = send
        self._shortcuts: Shortcuts = scope["extensions"][SHORTCUTS]
        self._body_pending = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"

    def when_gone(self, call: Callable[[], None] | None) -> None:
        """Have `call` called if the client leaves before its answer; None ends that."""
        self._shortcuts.when_gone(call)

    def take_body(self) -> bytes | None:
        """Return the whole body if it has come already, else None."""
        body = self._shortcuts.take_body()
        if body is not None:
            self._body_pending = False
        return body

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
        if self._body_pending:
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
            await self.send({"type": "http.response.body", "body": body})
            return
        self.status = status
        headers.append((b"x-request-id", self.request_id.encode()))
        await self._shortcuts.answer(status, headers, body)

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
