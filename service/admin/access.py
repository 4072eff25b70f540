"""Who may do what: an admin token for changes, keys for predictions."""

import hashlib
import hmac
import secrets
from collections.abc import Mapping

from pydantic import SecretStr

from service.admin.addresses import Addresses
from service.config.settings import Settings
from service.domain.caller import Caller
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
        # By digest: to look one up takes the same time, however much of a key was guessed.
        self._keys = {_digest(key.encode()): Caller(f"key-{n}") for n, key in enumerate(settings.keys, 1)}
        self._addresses = Addresses(Caller)
        self._certificates = settings.client_certificates
        self.asks_for_key = bool(self._keys)  # whether predictions need one

    def require_caller(self, headers: Headers, address: str) -> Caller:
        """Return who asks for a prediction: the owner of its key, or its address where none is asked for.

        Raises:
            CredentialsMissing, CredentialsWrong: a key is asked for.
        """
        if not self.asks_for_key:
            return self._addresses.known.young.get(address) or self._addresses.caller(address)
        given = headers.get(b"x-api-key") or _bearer(headers)
        if given is None:
            raise CredentialsMissing(KEY)
        caller = self._keys.get(_digest(given))
        if caller is None:
            raise CredentialsWrong(KEY)
        return caller

    def may_judge(self, headers: Headers, certificate: str | None) -> bool:
        """Return whether rollout guards may count the labels of a caller who passed `require_caller`.

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


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _bearer(headers: Headers) -> bytes | None:
    value = headers.get(b"authorization", b"")
    return value[len(BEARER) :].strip() if value[: len(BEARER)].lower() == BEARER else None


def _printable(name: bytes) -> str:
    return "".join(c for c in name.decode("utf-8", "replace") if c.isprintable())[:LONGEST_ACTOR]
