"""The live status page, and the events that keep it up to date."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.types import Receive, Scope, Send

from service.admin.access import Access
from service.admin.addresses import network_of
from service.admin.status.broadcaster import StatusBroadcaster
from service.admin.status.page import assemble
from service.admin.versions import loaded
from service.domain.backend import Target
from service.errors.admin import VersionNotReady
from service.errors.gateway import ListenersFull
from service.http.admin_route import closed_reads, request_headers
from service.http.problems import ReadCheck, problem_response
from service.http.server.lasting_answers import HANG_UP, WHEN_GONE, WHEN_STOPPING
from service.serving.reconciler import Reconciler

EVENT_STREAM = "text/event-stream"
# After this long without progress a listener's connection is closed.
LONGEST_WRITE_SECONDS = 10.0
# Each event is a JSON document; the status page alone depends on what it holds.
EVENTS = {"description": "Server-sent events `history`, once, and `look`, each second."}
PNG = b"\x89PNG\r\n\x1a\n"  # what such a file begins with
RETRY = b"retry: 1000\n\n"  # milliseconds until a browser reconnects


class EventStream(Response):
    """Sends status events until the listener leaves or the server stops; it does not delay the stop."""

    media_type = EVENT_STREAM

    def __init__(
        self,
        broadcaster: StatusBroadcaster,
        longest_write_seconds: float = LONGEST_WRITE_SECONDS,
        *,
        may_read: bool = False,
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._broadcaster = broadcaster
        self._may_read = may_read
        self._longest_write_seconds = longest_write_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one listener; a problem if there are too many."""
        extensions = scope["extensions"]
        when_gone, when_stopping, hang_up = (extensions[name] for name in (WHEN_GONE, WHEN_STOPPING, HANG_UP))
        loop = asyncio.get_running_loop()

        async def write(body: bytes, *, is_last: bool = False) -> None:
            alarm = loop.call_later(self._longest_write_seconds, hang_up)
            try:
                await send({"type": "http.response.body", "body": body, "more_body": not is_last})
            finally:
                alarm.cancel()

        context = scope["state"]["context"]
        caller = context.caller or network_of(context.client.address)
        try:
            with self._broadcaster.listening(caller, may_read=self._may_read) as listener:
                when_gone(listener.end)
                when_stopping(listener.end)
                try:
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    if context.method == "HEAD":
                        listener.end()
                    await write(RETRY + self._broadcaster.history)
                    while (event := await listener.next()) is not None:
                        await write(event)
                finally:
                    when_gone(None)
                    when_stopping(None)
        except ListenersFull as error:
            await problem_response(error, scope)(scope, receive, send)
            return
        await write(b"", is_last=True)


def status_routes(
    broadcaster: StatusBroadcaster, reads: Mapping[str, Any], may_read: ReadCheck, *, asks_for_key: bool
) -> APIRouter:
    """Return the routes of the status page. The page is open; its figures are as open as /metrics and /models."""
    routes = APIRouter(tags=["status"])
    document, policy = assemble(asks_for_key=asks_for_key)
    headers = {"content-security-policy": policy, "cache-control": "no-cache"}

    location = {"Location": {"required": True, "schema": {"type": "string"}}}

    @routes.get("/", status_code=307, response_class=RedirectResponse, responses={307: {"headers": location}})
    async def root() -> RedirectResponse:
        """Redirect to the status page."""
        return RedirectResponse("status")  # relative, so that it holds behind a prefix, too

    @routes.get("/status", response_class=HTMLResponse)
    async def status() -> HTMLResponse:
        """Show the status page: traffic, latency, batches, versions, and a place to try predictions."""
        return HTMLResponse(document, headers=headers)

    @routes.get(
        "/status/events",
        status_code=200,
        response_class=Response,  # of no type: the framework would call the stream a string
        dependencies=reads.get("dependencies"),
        responses={200: {"content": {EVENT_STREAM: {"schema": EVENTS}}}, **reads.get("responses", {})},
    )
    async def status_events(request: Request) -> EventStream:
        """Stream the status page's figures once a second, as server-sent events."""
        return EventStream(broadcaster, may_read=may_read(request.scope))

    return routes


def page_routes(access: Access, reconciler: Reconciler) -> APIRouter:
    """Return the routes that the page alone asks; they are not part of the API."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/status/sign-in", status_code=204)
    async def sign_in(request: Request) -> None:
        """Say whether the caller may make changes."""
        client = request.scope["state"]["context"].client
        access.require_admin(request_headers(request), client.address, client.certificate)

    @routes.get("/status/examples/{model}/{version}", dependencies=closed_reads(access)["dependencies"])
    async def example(model: str, version: str) -> Response:
        """Send an image of the version's self-check. It is one of the training's, so only readers get it."""
        model_version = loaded(reconciler, Target(model, version))
        if not model_version.contract.self_check:
            raise VersionNotReady(model, version, model_version.state)
        image = model_version.contract.self_check[0].image
        media_type = "image/png" if image.startswith(PNG) else "application/octet-stream"
        return Response(image, media_type=media_type, headers={"cache-control": "no-store"})

    return routes
