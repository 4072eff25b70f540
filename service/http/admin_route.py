"""Routes that check who calls before they read a body; those that change something also log what they refuse."""

import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.types import Message, Scope

from service.admin.access import Access
from service.admin.versions import AdminContext, Operations
from service.domain.model_state import Entry
from service.domain.names import NAME, name_fault
from service.errors.admin import RevisionMissing
from service.errors.request import ParameterInvalid
from service.http.body import BodyBudget, BodyLimits, BodyReader, RequestHeaders
from service.http.problems import ReadCheck, invalid, problem_responses
from service.persistence.registry import Registry

LONGEST_REASON = 500
REVISION = re.compile(rb'(?:W/)?"(\d{1,18})"')
MAX_BODY_BYTES = 64 * 1024
MAX_BODIES_BYTES = 64 * MAX_BODY_BYTES
BODY_SECONDS = 10.0
# What a guarded route may answer before it looks at anything.
GUARDED = problem_responses(400, 401, 403, 408, 413, 422, 429, 503)
# For the document, and for its form that tries requests; access itself is the guards'.
TOKEN = HTTPBearer(
    scheme_name="token", auto_error=False, description="The admin token, as `torchgate token` prints it, or a key."
)
KEY = APIKeyHeader(name="X-API-Key", scheme_name="key", auto_error=False, description="The key of a client.")
CREDENTIALS = [Depends(TOKEN), Depends(KEY)]
Name = Annotated[str, Path(pattern=rf"^{NAME.pattern}$")]
RevisionHeader = Header(
    pattern=r'^(\*|(W/)?"[0-9]{1,18}")$', description="The ETag of what the change is based on; `*` is anything."
)

Guard = Callable[[Request, APIRoute], AbstractAsyncContextManager[None]]


def guarded_route(guard: Guard) -> type[APIRoute]:
    """Return a kind of route that reads its body and answers inside `guard`, which may refuse the request.

    Bodies are bounded.
    """
    budget = BodyBudget(MAX_BODIES_BYTES)

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handler = super().get_route_handler()

            async def guarded(request: Request) -> Response:
                reader = BodyReader(BodyLimits(MAX_BODY_BYTES, 1, BODY_SECONDS), budget)
                reader.caller = request.scope["state"]["context"].client.address
                async with guard(request, self):
                    with closing(reader):
                        body = await reader.read(request.receive, request_headers(request))

                        async def replay() -> Message:
                            return {"type": "http.request", "body": body, "more_body": False}

                        return await handler(Request(request.scope, replay))

            return guarded

    return GuardedRoute


def request_headers(request: Request) -> RequestHeaders:
    """Return the request's headers by their lower-case names."""
    headers: RequestHeaders = request.scope["state"]["context"].headers
    return headers


def admin_route(access: Access, operations: Operations, registry: Registry) -> type[APIRoute]:
    """Return the kind of route for changes: it lets operators in, and `asked` returns what they ask for."""

    @asynccontextmanager
    async def guard(request: Request, route: APIRoute) -> AsyncIterator[None]:
        path, headers = request.path_params, request_headers(request)
        for name in ("model", "version"):  # before they reach the log and the database
            if name in path and (fault := name_fault(path[name])):
                raise ParameterInvalid(f"path.{name}: {fault}")
        is_conditional = (route.methods or set()) <= {"PUT", "DELETE"} and "version" not in path
        reason = request.query_params.get("reason", "")[:LONGEST_REASON]
        subject = str(path.get("version") or path.get("label") or path.get("rollout") or "")
        entry = Entry("unknown", route.name, path["model"], subject, reason)
        context = request.scope["state"]["context"]
        # Before this, a stranger asks: no event, so that nobody can fill the state's database.
        actor = context.caller = access.require_admin(headers, context.client.address, context.client.certificate)
        context.is_reader = True
        entry = replace(entry, actor=actor)
        async with operations.noted(entry):
            revision = _revision(headers, is_conditional, path["model"], registry)
        request.scope["state"]["asked"] = AdminContext(entry, revision)
        try:
            yield
        except RequestValidationError as error:
            await registry.refuse(entry, invalid(error))
            raise

    return guarded_route(guard)


def closed_reads(access: Access) -> dict[str, Any]:
    """Return what the framework is told of routes that only show, where these ask for a key."""

    async def require_reader(request: Request) -> None:
        context = request.scope["state"]["context"]
        context.caller = access.require_reader(context.headers, context.client.address)
        context.is_reader = True

    return {
        "dependencies": [*CREDENTIALS, Depends(require_reader)],
        "responses": problem_responses(401, 403, 429),
    }


def read_check(access: Access) -> ReadCheck:
    """Return what tells whether a request's caller may read details: a reader, or who may make the change at hand."""

    def may_read(scope: Scope) -> bool:
        context = scope["state"]["context"]
        if context.is_reader is None:
            reader = access.find_reader(context.headers, context.client.address)
            context.is_reader, context.caller = reader is not None, reader or context.caller
        is_reader: bool = context.is_reader
        return is_reader

    return may_read


async def described_change(
    reason: Annotated[str, Query(description=f"Why. The event has its first {LONGEST_REASON} characters.")] = "",
    x_actor: Annotated[str, Header(description="Who asks, by these credentials. The event has it.")] = "",
) -> None:
    """Describe what every change takes: the guard has read it."""


async def described_revision(if_match: Annotated[str, RevisionHeader] = "*") -> None:
    """Describe a change that may depend on what it is based on: the guard has checked it."""


async def described_condition(if_match: Annotated[str, RevisionHeader]) -> None:
    """Describe a change that must say what it is based on: the guard has checked it."""


CHANGES = [*CREDENTIALS, Depends(described_change)]


def asked(request: Request) -> AdminContext:
    """Return the change that the caller asks for."""
    found: AdminContext = request.scope["state"]["asked"]
    return found


def _revision(headers: Mapping[bytes, bytes], is_needed: bool, model: str, registry: Registry) -> int | None:
    """Return the revision that a change is based on, None for any."""
    given = headers.get(b"if-match")
    found = registry.revision(model)
    if given is None and is_needed:
        raise RevisionMissing(model, found)
    if given is None or given.strip() == b"*":
        return None
    matched = REVISION.fullmatch(given.strip())
    if matched is None:
        raise ParameterInvalid(f'header.if-match is {given.decode("latin-1")!r}, it must be an ETag such as "{found}"')
    return int(matched[1])
