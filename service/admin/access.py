"""Who may do what: an admin token for changes, keys for predictions."""

import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from service.config.settings import Settings
from service.errors.admin import ChangesClosed, CredentialsMissing, CredentialsWrong

TOKEN = "the admin token, as `Authorization: Bearer ...`"  # noqa: S105 - what an error says is needed
KEY = "an API key, as `X-API-Key`"
BEARER = b"bearer "
LONGEST_ACTOR = 100

Headers = Mapping[bytes, bytes]


class Access:
    """Compares a request's credentials with those of the settings, in constant time."""

    def __init__(self, settings: Settings) -> None:
        token = settings.admin_token
        self._token = None if token is None else token.get_secret_value().encode()
        keys = "" if settings.api_keys is None else settings.api_keys.get_secret_value()
        self._keys = tuple(key.strip().encode() for key in keys.split(",") if key.strip())
        self.asks_for_key = bool(self._keys)  # whether predictions need one
        self._host = settings.host

    def require_key(self, headers: Headers) -> None:
        """Raise CredentialsMissing or CredentialsWrong unless a prediction may be asked for."""
        if not self.asks_for_key:
            return
        given = headers.get(b"x-api-key") or _bearer(headers)
        if given is None:
            raise CredentialsMissing(KEY)
        if not any([hmac.compare_digest(given, key) for key in self._keys]):  # noqa: C419 - all of them, every time
            raise CredentialsWrong(KEY)

    def require_admin(self, headers: Headers) -> str:
        """Return who asks for a change.

        Raises:
            CredentialsMissing, CredentialsWrong: a token is set, and the request does not have it.
            ChangesClosed: no token is set, and the caller may be on another machine, or a web page.
        """
        name = _printable(headers.get(b"x-actor", b""))
        if self._token is None:
            self._require_local(headers)
            return f"local ({name})" if name else "local"
        given = _bearer(headers)
        if given is None:
            raise CredentialsMissing(TOKEN)
        if not hmac.compare_digest(given, self._token):
            raise CredentialsWrong(TOKEN)
        return f"admin ({name})" if name else "admin"

    def _require_local(self, headers: Headers) -> None:
        if not _is_loopback(self._host):
            raise ChangesClosed(f"no admin token is set, and the gateway listens on {self._host}")
        # A web page in a browser on this machine can send requests, also by a host name of its own that leads here.
        host = headers.get(b"host", b"").decode("latin-1")
        if not _is_loopback(urlsplit(f"//{host}").hostname or ""):
            raise ChangesClosed(f"no admin token is set, and the request is for {host[:LONGEST_ACTOR]!r}")
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin.decode("latin-1")).netloc != host:
            raise ChangesClosed("no admin token is set, and a web page from elsewhere asks")


def _bearer(headers: Headers) -> bytes | None:
    value = headers.get(b"authorization", b"")
    return value[len(BEARER) :].strip() if value[: len(BEARER)].lower() == BEARER else None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _printable(name: bytes) -> str:
    return "".join(c for c in name.decode("utf-8", "replace") if c.isprintable())[:LONGEST_ACTOR]
