"""Routes that check who calls before they read a body; those that change something also log what they refuse."""

import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import Message

from service.admin.access import Access
from service.admin.versions import AdminContext, Operations
from service.domain.model_state import Entry
from service.errors.admin import RevisionMissing
from service.errors.request import ParameterInvalid
from service.http.body import BodyBudget, BodyLimits, BodyReader, RequestHeaders
from service.http.problems import invalid
from service.persistence.registry import Registry

LONGEST_REASON = 500
REVISION = re.compile(rb'(?:W/)?"(\d{1,18})"')


MAX_BODY_BYTES = 64 * 1024
MAX_BODIES_BYTES = 64 * MAX_BODY_BYTES
BODY_SECONDS = 10.0

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
OnInvalid = Callable[[Request, RequestValidationError], Awaitable[None]]
Check = Callable[[Request, APIRoute], Awaitable[None]]


async def _ignore(request: Request, error: RequestValidationError) -> None:
    pass


def guarded_route(check: Check, on_invalid: OnInvalid = _ignore) -> type[APIRoute]:
    """Return a kind of route that calls `check` before it reads a body, and `on_invalid` if the body is not valid.

    `check` raises to refuse a request. Bodies are bounded.
    """
    budget = BodyBudget(MAX_BODIES_BYTES)

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handler = super().get_route_handler()

            async def guarded(request: Request) -> Response:
                await check(request, self)
                reader = BodyReader(BodyLimits(MAX_BODY_BYTES, 1, BODY_SECONDS), budget)
                try:
                    body = await reader.read(request.receive, request_headers(request))
                    return await handler(Request(request.scope, _replay(body), request._send))  # noqa: SLF001
                except RequestValidationError as error:
                    await on_invalid(request, error)
                    raise
                finally:
                    reader.close()

            return guarded

    return GuardedRoute


def request_headers(request: Request) -> RequestHeaders:
    """Return the request's headers by their lower-case names."""
    headers: RequestHeaders = request.scope["state"]["context"].headers
    return headers


def _replay(body: bytes) -> Callable[[], Coroutine[Any, Any, Message]]:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def admin_route(access: Access, operations: Operations, registry: Registry) -> type[APIRoute]:
    """Return the kind of route for changes: it lets operators in, and `asked` returns who they are."""

    async def check(request: Request, route: APIRoute) -> None:
        path, headers = request.path_params, request_headers(request)
        is_conditional = (route.methods or set()) <= {"PUT", "DELETE"} and "version" not in path
        reason = request.query_params.get("reason", "")[:LONGEST_REASON]
        subject = str(path.get("version") or path.get("label") or path.get("rollout") or "")

        async def who() -> str:
            return access.require_admin(headers)

        async def on_what() -> int | None:
            return _revision(headers, is_conditional, path["model"], registry)

        entry = Entry("unknown", route.name, path["model"], subject, reason)
        actor = await operations.noted(entry, who)
        entry = request.scope["state"]["entry"] = replace(entry, actor=actor)
        request.scope["state"]["asked"] = AdminContext(actor, reason, await operations.noted(entry, on_what))

    async def on_invalid(request: Request, error: RequestValidationError) -> None:
        await registry.refuse(request.scope["state"]["entry"], invalid(error))

    return guarded_route(check, on_invalid)


def asked(request: Request) -> AdminContext:
    """Return the caller of a change and the reason given."""
    found: AdminContext = request.scope["state"]["asked"]
    return found


def _revision(headers: Mapping[bytes, bytes], is_needed: bool, model: str, registry: Registry) -> int | None:
    """Return the revision that a change is based on, None for any."""
    given = headers.get(b"if-match")
    found = registry.revision(model)
    if given is None:
        if is_needed:
            raise RevisionMissing(model, found)
        return None
    if given.strip() == b"*":
        return None
    matched = REVISION.fullmatch(given.strip())
    if matched is None:
        raise ParameterInvalid(f'header.if-match is {given.decode("latin-1")!r}, it must be an ETag such as "{found}"')
    return int(matched[1])
