"""What surrounds every request: its id, its measure, its log line, and the end of bodies that were not read."""

import asyncio
import logging
import re
import secrets
import time

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems import problem_response
from service.errors import InternalError
from service.metrics import METHODS, Metrics

logger = logging.getLogger("service.access")

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
QUIET_ROUTES = frozenset({"/healthz", "/readyz", "/metrics"})
CLIENT_CLOSED = 499  # nginx's number for a client that left before its answer
# A client that is still sending when it is refused gets this much more patience, so that it reads the refusal
# instead of a connection reset (RFC 9112, section 9.6).
LINGER_SECONDS = 2.0
LINGER_BYTES = 256 * 1024 * 1024


class Edge:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; anything but HTTP is passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        started = time.monotonic()
        self._metrics.http_in_progress.inc()
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            exchange.status = CLIENT_CLOSED
        except Exception:
            # The border: nothing may pass it, the caller gets no internals and the log gets the cause.
            logger.exception("unexpected error", extra={"request_id": exchange.request_id})
            if exchange.status is None:
                await problem_response(InternalError(), scope)(scope, exchange.receive, exchange.send)
        finally:
            self._metrics.http_in_progress.dec()
            self._record(scope, exchange, time.monotonic() - started)

    def _record(self, scope: Scope, exchange: "_Exchange", seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in METHODS else "other"
        code = str(exchange.status or CLIENT_CLOSED)
        self._metrics.http_requests.labels(method, route, code).inc()
        self._metrics.http_seconds.labels(method, route, code).observe(seconds)
        level = logging.DEBUG if route in QUIET_ROUTES else logging.INFO
        if logger.isEnabledFor(level):
            fields = {
                "request_id": exchange.request_id,
                "method": method,
                "route": route,
                "code": int(code),
                "duration_ms": round(seconds * 1000, 3),
                **scope["state"].get("log", {}),
            }
            if "error_code" in scope["state"]:
                fields["error_code"] = scope["state"]["error_code"]
            logger.log(level, "request", extra=fields)


class _Exchange:
    """One request and its answer, as they pass."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        scope.setdefault("state", {})["request_id"] = self.request_id
        self.status: int | None = None
        self._receive = receive
        self._send = send
        self._body_pending = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"

    async def receive(self) -> Message:
        message = await self._receive()
        if not message.get("more_body", False):
            self._body_pending = False
        return message

    async def send(self, message: Message) -> None:
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
