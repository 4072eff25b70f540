"""A kind of route that looks at who asks before it reads a body, and reads none beyond a bound."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import Message

from service.http.body import BodyBudget, BodyLimits, BodyReader

MAX_BODY_BYTES = 64 * 1024
MAX_BODIES_BYTES = 64 * MAX_BODY_BYTES
BODY_SECONDS = 10.0

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
OnInvalid = Callable[[Request, RequestValidationError], Awaitable[None]]
Check = Callable[[Request, APIRoute], Awaitable[None]]


async def _unnoted(request: Request, error: RequestValidationError) -> None:
    pass


def guarded_route(check: Check, on_invalid: OnInvalid = _unnoted) -> type[APIRoute]:
    """Return the kind of route whose requests `check` raises on, or lets in; `on_invalid` hears of what is no body."""
    budget = BodyBudget(MAX_BODIES_BYTES)

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handler = super().get_route_handler()

            async def guarded(request: Request) -> Response:
                await check(request, self)
                headers = request.scope["state"]["exchange"].headers
                reader = BodyReader(BodyLimits(MAX_BODY_BYTES, 1, BODY_SECONDS), budget)
                try:
                    body = await reader.read(request.receive, headers)
                    return await handler(Request(request.scope, _replay(body), request._send))  # noqa: SLF001
                except RequestValidationError as error:
                    await on_invalid(request, error)
                    raise
                finally:
                    reader.close()

            return guarded

    return GuardedRoute


def _replay(body: bytes) -> Callable[[], Coroutine[Any, Any, Message]]:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
