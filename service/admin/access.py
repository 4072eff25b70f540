"""Who may do what: an admin token for changes, keys with scopes for the rest, and patience after wrong ones."""

import hmac
import logging
import secrets
import time
from collections.abc import Mapping

from pydantic import SecretStr

from service.admin.addresses import Addresses
from service.admin.backoff import Backoff
from service.admin.directory import ClientDirectory
from service.config.clients import Scope, digest
from service.config.settings import Settings
from service.domain.caller import Caller
from service.domain.token_bucket import TokenBucket
from service.errors.admin import AdminError, CredentialsBackoff, CredentialsMissing, CredentialsWrong, ScopeMissing
from service.telemetry.metric_labels import CredentialFault
from service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

TOKEN = (
    "the admin token, which `torchgate token` prints, or a key with the scope 'change', "  # noqa: S105 - a sentence
    "as `Authorization: Bearer ...`"
)
KEY = "an API key, as `X-API-Key`"
CERTIFICATE = "a client certificate of the CA in TORCHGATE_TLS_CLIENT_CA_FILE, from the client itself"
ADMIN = Caller("admin", scopes=frozenset({"change", "read"}))
BEARER = b"bearer "
LONGEST_ACTOR = 100
FAULTS: Mapping[type[AdminError], CredentialFault] = {
    CredentialsMissing: "missing",
    CredentialsWrong: "wrong",
    ScopeMissing: "scope",
    CredentialsBackoff: "backoff",
}
LINES_PER_SECOND, MOST_LINES = 0.2, 10.0  # of refused credentials: strangers must not fill the log

Headers = Mapping[bytes, bytes]


class Access:
    """Lets callers in by their credentials; what it refuses is counted, and told in a few log lines."""

    def __init__(self, settings: Settings, clients: ClientDirectory, metrics: Metrics) -> None:
        # Without a token nobody may change anything: nobody knows this one. `serve` always sets one.
        token = settings.admin_token or SecretStr(secrets.token_urlsafe())
        self._token = token.get_secret_value().encode()
        self._clients = clients
        self._certificates = settings.client_certificates
        self._addresses = Addresses(clients.anybody)
        self._backoff = Backoff()
        self._refused = metrics.callers.credentials_refused
        self._lines = TokenBucket(LINES_PER_SECOND, MOST_LINES)
        self._num_left_out = 0
        self.asks_for_key = clients.asks_for_key  # whether predictions need one

    def require_caller(self, headers: Headers, address: str) -> Caller:
        """Return the caller of a prediction: the owner of its key, or its address where no keys are set.

        Raises:
            CredentialsMissing, CredentialsWrong, ScopeMissing: a key is asked for.
            CredentialsBackoff: the address has sent too many wrong ones.
        """
        if not self.asks_for_key:
            return self._addresses.known.young.get(address) or self._addresses.caller(address)
        try:
            caller = self._require_key(headers, "predict", address)
        except AdminError as error:
            self._note(error, "a prediction", address)
            raise
        return caller

    def require_reader(self, headers: Headers, address: str) -> str:
        """Return the name of the reader; raises what `require_caller` does."""
        try:
            return self._require_key(headers, "read", address).name
        except AdminError as error:
            self._note(error, "a read", address)
            raise

    def find_reader(self, headers: Headers, address: str) -> str | None:
        """Return the name of a caller who may read the details of failures, also where reads need no key; else None.

        Only wrong credentials are logged and counted, so that this is no way to guess at the token. A key without the
        scope is no fault: callers send it with every prediction.
        """
        try:
            return self._require_key(headers, "read", address).name
        except (CredentialsMissing, ScopeMissing):
            return None
        except AdminError as error:
            self._note(error, "a read of details", address)
            return None

    def require_admin(self, headers: Headers, address: str, certificate: str | None = None) -> str:
        """Return the caller of a change: the subject of the connection's client certificate, or the token's holder.

        The key of a client with the scope `change` is as good as the token; the caller has its name.

        Raises:
            CredentialsMissing, CredentialsWrong, ScopeMissing: a token, key or certificate that the settings ask for.
            CredentialsBackoff: the address has sent too many wrong ones.
        """
        try:
            name = self._changer(headers, address, certificate)
        except AdminError as error:
            self._note(error, "a change", address)
            raise
        actor = _printable(headers.get(b"x-actor", b""))
        return f"{name} ({actor})" if actor else name

    def may_judge(self, headers: Headers, address: str, certificate: str | None) -> bool:
        """Return whether rollout guards may count the labels of a caller who passed `require_caller`.

        A key is enough. Where predictions need none, anybody may give labels, and only who may make changes is trusted.
        """
        if self.asks_for_key:
            return True
        if certificate is None and _bearer(headers) is None:
            return False
        try:
            self.require_admin(headers, address, certificate)
        except AdminError:
            return False
        return True

    def _changer(self, headers: Headers, address: str, certificate: str | None) -> str:
        if certificate is None or self._certificates == "off":
            if self._certificates == "require":
                raise CredentialsMissing(CERTIFICATE)
            return self._require_key(headers, "change", address).name
        if self._certificates == "require":
            self._require_key(headers, "change", address)
        return _printable(certificate.encode())

    def _require_key(self, headers: Headers, scope: Scope, address: str) -> Caller:
        """Return whose key or token a request has; the admin token is for changes and reads."""
        key, bearer = headers.get(b"x-api-key"), _bearer(headers)
        # One of two is judged, and no other: else a right key would let guesses at the token pass unnoticed.
        given = (key or bearer) if scope == "predict" else (bearer or key)
        needed = TOKEN if scope == "change" else KEY
        if given is None:
            raise CredentialsMissing(needed)
        known_as = digest(given)
        self._backoff.require_patience(address, known_as)
        is_admin = scope != "predict" and given is bearer and hmac.compare_digest(given, self._token)
        caller = ADMIN if is_admin else self._clients.find(known_as)
        if caller is None:
            raise CredentialsWrong(needed)
        if scope not in caller.scopes:
            raise ScopeMissing(caller.name, scope)
        self._backoff.trust(address, known_as)
        return caller

    def _note(self, error: AdminError, what: str, address: str) -> None:
        """Count credentials that were refused, and tell of some. They are no events: strangers would fill the state."""
        self._refused.labels(FAULTS[type(error)]).inc()
        if isinstance(error, CredentialsWrong):
            self._backoff.fail(address)
        if self._lines.take(1, time.monotonic()):
            self._num_left_out += 1
            return
        left_out = f" ({self._num_left_out} such lines were left out)" if self._num_left_out else ""
        self._num_left_out = 0
        logger.warning("%s from %s is refused: %s%s", what, address or "a Unix socket", error.code, left_out)


def _bearer(headers: Headers) -> bytes | None:
    value = headers.get(b"authorization", b"")
    return value[len(BEARER) :].strip() if value[: len(BEARER)].lower() == BEARER else None


def _printable(name: bytes) -> str:
    return "".join(c for c in name.decode("utf-8", "replace") if c.isprintable())[:LONGEST_ACTOR]
