"""What a client knows of its gateway, whichever way it sends."""

import os
import ssl
from collections.abc import Mapping
from typing import Any, TypedDict, TypeVar

import httpx

from torchgate_client import calls
from torchgate_client.calls import Call
from torchgate_client.errors import TorchgateError, Unreachable
from torchgate_client.patience import Patience

T = TypeVar("T")
DEFAULT_URL = "http://127.0.0.1:8000"
URL_VARIABLE = "TORCHGATE_URL"
SECONDS = 60.0
CONNECT_SECONDS = 10.0  # a machine that does not answer at all is not waited for as long as an answer
RETRIES = 3


class Options(TypedDict, total=False):
    """What a client can be given beside the gateway's URL."""

    key: str | None  # an API key, sent as X-API-Key
    token: str | None  # the admin token, for changes; `torchgate token` prints it
    timeout: float  # seconds that a call may take, its retries included
    retries: int  # how often a call is tried again, after 429, 503 or a lost connection
    verify: bool | str | ssl.SSLContext  # the CA file of the gateway's certificate, or a context
    headers: Mapping[str, str] | None  # further headers of each request


class Sender:
    """Settings of a client, and what becomes of an answer or a failure."""

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        token: str | None = None,
        timeout: float = SECONDS,
        retries: int = RETRIES,
        verify: bool | str | ssl.SSLContext = True,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """See `Options`; the URL is TORCHGATE_URL if None, else http://127.0.0.1:8000. Raises ValueError."""
        self.url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        try:
            httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ValueError(f"{self.url} is no URL of a gateway: {error}. Write it as {DEFAULT_URL}") from error
        self._timeout = timeout
        self._retries = retries
        given = dict(headers or {})
        if key is not None:
            given["X-API-Key"] = _secret(key, "API key")
        if token is not None:
            given["Authorization"] = f"Bearer {_secret(token, 'admin token')}"
        if isinstance(verify, str):
            verify = ssl.create_default_context(cafile=verify)
        self.options: dict[str, Any] = {
            "base_url": self.url,
            "headers": _encoded(given),
            "verify": verify,
            "trust_env": False,
        }

    def patience(self, call: Call[T]) -> Patience:
        """Return what decides about further tries of a call."""
        return Patience(call, self._retries, self._timeout)

    def arguments(self, call: Call[T], seconds: float) -> dict[str, Any]:
        """Return what httpx is given for one try."""
        timeout = httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
        return {"params": call.params, "headers": _encoded(call.headers), "timeout": timeout, **call.body}

    def read(self, call: Call[T], answer: httpx.Response) -> T:
        """Return what an answer says; raises the error that it is."""
        if answer.is_error:
            raise calls.problem_of(answer)
        try:
            return call.parse(answer)
        except (ValueError, KeyError, TypeError) as error:  # no JSON, or that of another program
            raise calls.stranger(answer) from error

    def explained(self, failure: Exception) -> Exception:
        """Return the failure as an error of this package."""
        if isinstance(failure, TorchgateError):
            return failure
        if isinstance(failure, httpx.TimeoutException):
            return Unreachable(f"no answer from {self.url} in time")
        said = (str(failure) or type(failure).__name__).rstrip(".")
        if isinstance(failure, httpx.RemoteProtocolError) and self.url.startswith("http:"):
            said += ". If the gateway has a certificate, its URL begins with https"
        return Unreachable(f"{self.url} cannot be reached: {said}")


def _secret(text: str, name: str) -> str:
    if not text.isprintable():
        raise ValueError(f"the {name} holds a line break or another character that none has")
    return text


def _encoded(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in headers.items()}
