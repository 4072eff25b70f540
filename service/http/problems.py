"""The one place where errors become answers: application/problem+json (RFC 9457)."""

import json
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from service.errors.gateway import GatewayError, InternalError
from service.errors.request import BodyInvalid, MethodNotAllowed, ParameterInvalid, RouteNotFound
from service.http.openapi import reference
from service.http.schemas.predict import Problem

logger = logging.getLogger(__name__)

ReadCheck = Callable[[Scope], bool]  # whether a request's caller may read the details of failures
HttpResponse = tuple[int, list[tuple[bytes, bytes]], bytes]  # status, headers, body

ERRORS_PATH = "/errors"  # the page that explains them
MEDIA_TYPE = "application/problem+json"
METHODS = ("GET", "PUT", "POST", "PATCH", "DELETE")
RETRY_AFTER = {"description": "Seconds after which it is worth to try again.", "schema": {"type": "integer"}}
# Of the answers, by status; the gateway shuts down, or misses a deadline, without advice.
HEADERS: dict[int, dict[str, Any]] = {
    401: {
        "WWW-Authenticate": {
            "description": "How to send credentials.",
            "required": True,
            "schema": {"type": "string", "const": "Bearer"},
        }
    },
    429: {"Retry-After": {**RETRY_AFTER, "required": True}},
    503: {"Retry-After": RETRY_AFTER},
    504: {"Retry-After": RETRY_AFTER},
}
TITLES = {status.value: status.phrase for status in HTTPStatus}  # asking the enumeration takes ten times as long


def problem(error: GatewayError, request_id: str, *, may_read: bool = False) -> HttpResponse:
    """Return status, headers and body that tell the caller of `error`, with its details if the caller may read them."""
    # An error may have a code of its own (ImageRejected); its status is always the class's.
    document = {
        "type": f"{ERRORS_PATH}#{error.code}",
        "title": TITLES[error.status],
        "status": error.status,
        "detail": error.told(may_read=may_read),
        "code": error.code,
        "hint": error.hint,
        "request_id": request_id,
    }
    body = json.dumps(document).encode()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    if error.retry_after_seconds is not None:
        headers.append((b"retry-after", str(error.retry_after_seconds).encode()))
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allowed.encode()))
    return error.status, headers, body


def problem_response(error: GatewayError, scope: Scope, may_read: ReadCheck | None = None) -> Response:
    """Return the same as a response of the framework, and note the error for the log.

    Without `may_read`, the caller gets no details.
    """
    context = scope["state"]["context"]
    context.refuse(error)
    is_reader = error.has_details and may_read is not None and may_read(scope)
    status, headers, body = problem(error, context.request_id, may_read=is_reader)
    response = Response(body, status)
    response.raw_headers = headers
    return response


def invalid(error: RequestValidationError) -> ParameterInvalid:
    """Return the framework's complaint about a request as an error of our own."""
    faults = (
        f"{'.'.join(str(step) for step in fault['loc'])}: {fault['msg']} (given: {fault.get('input')!r})"
        for fault in error.errors()
    )
    return ParameterInvalid("; ".join(faults))


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of the errors that a route may answer."""
    content = {MEDIA_TYPE: {"schema": reference(Problem)}}
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": content,
            **({"headers": HEADERS[status]} if status in HEADERS else {}),
        }
        for status in statuses
    }


def install(app: FastAPI, may_read: ReadCheck) -> None:
    """Have every error of `app` answered as a problem, the framework's own included."""

    async def gateway_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, GatewayError)
        return problem_response(error, request.scope, may_read)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.scope["path"]
        if error.status_code == HTTPStatus.NOT_FOUND:
            return problem_response(RouteNotFound(path), request.scope)
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = _allowed(app, request.scope)
            method = request.scope["state"]["context"].method
            return problem_response(MethodNotAllowed(method, path, allowed), request.scope)
        if error.status_code == HTTPStatus.BAD_REQUEST:  # the framework's word for a body that it cannot parse
            return problem_response(BodyInvalid("it is not JSON, or too deep"), request.scope)
        logger.error("the framework answers %d: %s", error.status_code, error.detail, exc_info=error)
        return problem_response(InternalError(), request.scope)

    async def validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        for fault in error.errors():
            if fault["type"] == "json_invalid":
                return problem_response(BodyInvalid(f"it is not JSON: {fault['ctx']['error']}"), request.scope)
        return problem_response(invalid(error), request.scope)

    app.add_exception_handler(GatewayError, gateway_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, validation_error)


def _allowed(app: FastAPI, scope: Scope) -> str:
    """Return the methods of a path. The framework names those of the first of its routes alone."""
    found = [
        method
        for method in METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.routes)
    ]
    return ", ".join(found).replace("GET", "GET, HEAD")
