"""Who may do what: an admin token for changes, keys for predictions."""

import hmac
import secrets
from collections.abc import Mapping

from pydantic import SecretStr

from service.config.settings import Settings
from service.errors.admin import AdminError, CredentialsMissing, CredentialsWrong

TOKEN = "the admin token, which `torchgate token` prints, as `Authorization: Bearer ...`"  # noqa: S105 - a sentence
KEY = "an API key, as `X-API-Key`"
CERTIFICATE = "a client certificate of the CA in TORCHGATE_TLS_CLIENT_CA_FILE, from the client itself"
BEARER = b"bearer "
LONGEST_ACTOR = 100

Headers = Mapping[bytes, bytes]


class Access:
    """Compares a request's credentials with those of the settings, in constant time."""

    def __init__(self, settings: Settings) -> None:
        # Without a token nobody may change anything: nobody knows this one. `serve` always sets one.
        token = settings.admin_token or SecretStr(secrets.token_urlsafe())
        self._token = token.get_secret_value().encode()
        self._keys = tuple(key.encode() for key in settings.keys)
        self._certificates = settings.client_certificates
        self.asks_for_key = bool(self._keys)  # whether predictions need one

    def require_key(self, headers: Headers) -> None:
        """Raise CredentialsMissing or CredentialsWrong unless a prediction may be asked for."""
        if not self.asks_for_key:
            return
        given = headers.get(b"x-api-key") or _bearer(headers)
        if given is None:
            raise CredentialsMissing(KEY)
        if not any([hmac.compare_digest(given, key) for key in self._keys]):  # noqa: C419 - all of them, every time
            raise CredentialsWrong(KEY)

    def may_judge(self, headers: Headers, certificate: str | None) -> bool:
        """Return whether rollout guards may count the labels of a caller who passed `require_key`.

        A key is enough. Where predictions need none, anybody may give labels, and only who may make changes is trusted.
        """
        if self.asks_for_key:
            return True
        try:
            self.require_admin(headers, certificate)
        except AdminError:
            return False
        return True

    def require_admin(self, headers: Headers, certificate: str | None = None) -> str:
        """Return who asks for a change: the subject of the connection's client certificate, or the token's holder.

        Raises:
            CredentialsMissing, CredentialsWrong: a token or certificate that the settings ask for.
        """
        name = _printable(headers.get(b"x-actor", b""))
        if certificate is None or self._certificates == "off":
            if self._certificates == "require":
                raise CredentialsMissing(CERTIFICATE)
            self._require_token(headers)
            return f"admin ({name})" if name else "admin"
        if self._certificates == "require":
            self._require_token(headers)
        subject = _printable(certificate.encode())
        return f"{subject} ({name})" if name else subject

    def _require_token(self, headers: Headers) -> None:
        given = _bearer(headers)
        if given is None:
            raise CredentialsMissing(TOKEN)
        if not hmac.compare_digest(given, self._token):
            raise CredentialsWrong(TOKEN)


def _bearer(headers: Headers) -> bytes | None:
    value = headers.get(b"authorization", b"")
    return value[len(BEARER) :].strip() if value[: len(BEARER)].lower() == BEARER else None


def _printable(name: bytes) -> str:
    return "".join(c for c in name.decode("utf-8", "replace") if c.isprintable())[:LONGEST_ACTOR]
