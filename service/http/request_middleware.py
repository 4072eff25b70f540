"""The edge of the application: every request gets a context and an end here, through ASGI or around it."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors.gateway import Draining, GatewayError, InternalError
from service.http.direct_request import DirectHandler, DirectRequest
from service.http.problems import problem_response
from service.http.request_context import CLIENT_CLOSED, UNMATCHED, RequestContext, RequestRecorder
from service.http.security_headers import with_security_headers
from service.http.server.clients import Clients
from service.http.server.connection import LINGER_BYTES, LINGER_SECONDS
from service.http.server.connections import Connections
from service.telemetry.access_log import AccessLog
from service.telemetry.metrics import Metrics
from service.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)


class DirectRoute(Protocol):
    """Answers the requests of one method and path around ASGI."""

    def handle(self, request: DirectRequest, context: RequestContext) -> DirectHandler:
        """Return what answers `request` and ends its context."""


class RequestMiddleware:
    """ASGI middleware around the whole application, and the way around ASGI for its direct routes.

    The framework's routing and middleware, and a task for each request, cost more than all else that a small
    prediction needs. So the connection hands over the requests of direct routes itself; see
    service.http.server.protocol.
    """

    def __init__(
        self,
        app: ASGIApp,
        direct_routes: Mapping[tuple[str, str], DirectRoute],
        metrics: Metrics,
        log: AccessLog,
        tracing: Tracing,
        clients: Clients,
        connections: Connections,
    ) -> None:
        self._app = app
        self.connections = connections
        self.greet = clients.greet
        self.direct_routes = {(method.encode(), path): route for (method, path), route in direct_routes.items()}
        self._metrics = metrics
        self._recorder = RequestRecorder(metrics, log, tracing, clients, direct_routes)

    def handle(self, request: DirectRequest) -> DirectHandler:
        """Return what answers a request of a direct route."""
        route = self.direct_routes[request.method.encode(), request.path]
        context = self._recorder.begin(
            request.method, request.path, request.query_string, request.headers, request.client, request.path
        )
        return route.handle(request, context)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of any other route; anything but HTTP is passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = self._recorder.begin(
            scope["method"], scope["path"], scope["query_string"], scope["headers"], scope["state"]["client"]
        )
        scope["state"]["context"] = context
        if context.method == "HEAD":  # the answer of GET, whose body uvicorn leaves out (RFC 9110, section 9.3.2)
            scope = {**scope, "method": "GET"}
        messages = _Messages(context, receive, send)

        async def refuse(error: GatewayError) -> None:
            if context.status is None:
                await problem_response(error, scope)(scope, messages.receive, messages.send)

        try:
            context.client.checks.require_host(context.headers.get(b"host"))
            context.client.checks.require_path(context.path)
            await self._app(scope, messages.receive, messages.send)
        except GatewayError as error:
            await refuse(error)
        except ClientDisconnect:
            context.answer(CLIENT_CLOSED)
        except asyncio.CancelledError:
            # The server cancels what is left at the end of its drain; nothing else cancels this task.
            if context.status is None:
                self._metrics.rejected.labels("draining").inc()
            await refuse(Draining())
        except Exception:
            # The border: no exception passes it, the caller gets no internals and the log gets the cause.
            logger.exception("unexpected error", extra=context.ids())
            await refuse(InternalError())
        finally:
            context.end(route=getattr(scope.get("route"), "path", UNMATCHED))
            # These lead back to the connection that holds the scope; without them no request leaves anything behind
            # for the garbage collector, which would hold up all others.
            scope["state"].clear()
            scope["extensions"].clear()


class _Messages:
    """One request's ASGI messages: adds the request id, and reads the rest of a body that the application ignored."""

    def __init__(self, context: RequestContext, receive: Receive, send: Send) -> None:
        self._context = context
        self._receive = receive
        self._send = send
        headers = context.headers
        self._body_pending = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"

    async def receive(self) -> Message:
        """Receive as in ASGI."""
        message = await self._receive()
        if not message.get("more_body", False):
            self._body_pending = False
        return message

    async def send(self, message: Message) -> None:
        """Send as in ASGI."""
        if message["type"] == "http.response.start":
            self._context.answer(message["status"])
            headers = with_security_headers(message.get("headers", ()))
            headers.append((b"x-request-id", self._context.request_id.encode()))
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
