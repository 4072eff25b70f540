"""What every answer tells browsers: run nothing from it, frame it nowhere, guess no type, tell no one its address."""

from collections.abc import Iterable

from service.http.direct_request import RawHeaders

POLICY_HEADER = b"content-security-policy"
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (POLICY_HEADER, b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
# As they stand in a head, made once: the direct way and the server's own refusals put them into each answer.
LINES = b"".join(name + b": " + value + b"\r\n" for name, value in HEADERS)


def with_security_headers(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """Return the headers and the security headers; a page with a policy of its own keeps it."""
    given = list(headers)
    names = {name for name, _ in given}
    return [*given, *(header for header in HEADERS if header[0] not in names)]
