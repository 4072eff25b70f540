"""Who asks for a change, and what it is based on: looked at before a body is read, and logged if it is refused."""

import re
from collections.abc import Mapping
from dataclasses import replace

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from service.admin.access import Access
from service.admin.versions import AdminContext, Operations
from service.domain.model_state import Entry
from service.errors.admin import RevisionMissing
from service.errors.request import ParameterInvalid
from service.http.guarded_route import guarded_route
from service.http.problems import invalid
from service.persistence.registry import Registry

LONGEST_REASON = 500
REVISION = re.compile(rb'(?:W/)?"(\d{1,18})"')


def admin_route(access: Access, operations: Operations, registry: Registry) -> type[APIRoute]:
    """Return the kind of route that lets in who may change something; `asked` then says who that is."""

    async def check(request: Request, route: APIRoute) -> None:
        path, headers = request.path_params, request.scope["state"]["exchange"].headers
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
    """Return who asks for a change and why."""
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
