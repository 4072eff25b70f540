"""The span of a request, with the attributes of the stable semantic conventions for HTTP servers.

https://opentelemetry.io/docs/specs/semconv/http/http-spans/#http-server-span
"""

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from service.telemetry.labels import METHODS
from service.telemetry.tracing import OpenSpan

LONGEST_TEXT = 512  # of what the caller wrote
MAX_CACHED_HOSTS = 1024


def end_request(
    span: OpenSpan,
    *,
    method: str,
    route: str,
    path: str,
    query: bytes,
    headers: Mapping[bytes, bytes],
    request_id: str,
    status: int | None,
    error_code: str | None,
    started: float,
    ended: float,
) -> None:
    """Record a request that was answered, or left: then there is no status."""
    is_known = method in METHODS
    attributes: dict[str, str | int | float] = {
        "http.request.method": method if is_known else "_OTHER",
        "url.scheme": "http",
        "url.path": path[:LONGEST_TEXT],
        "torchgate.request.id": request_id,
        **_server(headers.get(b"host", b"")[:LONGEST_TEXT]),
    }
    if not is_known:
        attributes["http.request.method_original"] = method[:LONGEST_TEXT]
    has_route = route != "unmatched"
    if has_route:
        attributes["http.route"] = route
    if query:
        attributes["url.query"] = query[:LONGEST_TEXT].decode("latin-1")
    if agent := headers.get(b"user-agent"):
        attributes["user_agent.original"] = agent[:LONGEST_TEXT].decode("latin-1")
    if status is not None:
        attributes["http.response.status_code"] = status
    if error_code is not None:
        attributes["torchgate.error.code"] = error_code
    attributes |= span.attributes or {}
    name = f"{method if is_known else 'HTTP'} {route}" if has_route else (method if is_known else "HTTP")
    # What the caller did wrong is no error of a server's span.
    error = (error_code or str(status)) if status is not None and status >= 500 else None
    span.end(name, "server", started, ended, attributes, error=error)


@lru_cache(MAX_CACHED_HOSTS)
def _server(host: bytes) -> Mapping[str, str | int]:
    try:
        parts = urlsplit("//" + host.decode("latin-1"))
        address, port = parts.hostname, parts.port
    except ValueError:
        return {}
    if not address:
        return {}
    return {"server.address": address, "server.port": port or 80}
