"""Calls to a running gateway; a refusal, or a gateway that is not there, raises CallFailed."""

import getpass
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from service.cli.tls import CA_VARIABLE, client_context

# Loading a version takes as long as it takes; the gateway has a limit of its own.
TIMEOUT = httpx.Timeout(10, read=300)


class CallFailed(Exception):
    """The gateway refused, or did not answer; the message is for people."""


class Gateway:
    """The gateway at `url`."""

    def __init__(self, url: str, token: str | None, reason: str) -> None:
        headers = {b"X-Actor": f"{_user()}@{socket.gethostname()}".encode()}
        if token:
            if not token.isprintable():
                raise CallFailed("the admin token holds a line break or another character that no token has")
            headers[b"Authorization"] = f"Bearer {token}".encode()
        self.token = token
        self._reason = reason
        try:
            verify = client_context() if url.startswith("https:") else False
        except ValueError as error:
            raise CallFailed(str(error)) from error
        self._client = httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT, trust_env=False, verify=verify)

    def get(self, *path: str, **query: Any) -> Any:
        """Return the document at a path below /models, whose parts are names."""
        return self._call("GET", path, query).json()

    def change(self, method: str, *path: str, body: Mapping[str, Any] | None = None, based_on: str = "") -> Any:
        """Ask for a change and return what is there then; `based_on` is the ETag that it relies on."""
        query = {"reason": self._reason} if self._reason else {}
        headers = {"If-Match": based_on} if based_on else {}
        answer = self._call(method, path, query, json=body, headers=headers)
        return answer.json() if answer.content else {}

    def traffic(self, model: str) -> tuple[Any, str]:
        """Return how a model's requests are divided, and the ETag of just that state."""
        answer = self._call("GET", (model, "traffic"), {})
        return answer.json(), answer.headers["etag"]

    def predict(self, image: bytes, model: str | None = None) -> Any:
        """Return the answer for one image; the default model's if none is named."""
        url = "/predict" if model is None else f"/predict?model={quote(model, safe='')}"
        # As any caller's, without the token: where keys are asked for, it would count as a wrong one.
        headers = {"Content-Type": "application/octet-stream", "Authorization": ""}
        return self._send("POST", url, content=image, headers=headers).json()

    def give_feedback(self, answer_id: str, label: str) -> Any:
        """Report the true class of the first image of an answer."""
        return self._send("POST", "/feedback", json={"id": answer_id, "label": label}).json()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _call(self, method: str, path: tuple[str, ...], query: Mapping[str, Any], **request: Any) -> httpx.Response:
        given = {name: value for name, value in query.items() if value is not None}
        url = "/".join(["/models", *(quote(part, safe="") for part in path)])
        return self._send(method, url, params=given, **request)

    def _send(self, method: str, url: str, **request: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, url, **request)
        except httpx.TimeoutException as error:
            raise CallFailed(f"no answer from {self._client.base_url} in time") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            said = str(error).rstrip(".")
            raise CallFailed(f"{self._client.base_url} cannot be reached: {said}{self._next_step(error)}") from error
        if answer.is_error:
            raise CallFailed(_explained(answer))
        return answer

    def _next_step(self, error: Exception) -> str:
        if isinstance(error, httpx.RemoteProtocolError) and self._client.base_url.scheme == "http":
            return ". If the gateway has a certificate, its URL begins with https"
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return f". Name the CA of the gateway's certificate in {CA_VARIABLE}"
        return ""


def _explained(answer: httpx.Response) -> str:
    try:
        problem = answer.json()
        return " ".join(filter(None, (f"{problem['code']}: {problem['detail']}", problem.get("hint"))))
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code} from {answer.url}: this is no torchgate"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"
