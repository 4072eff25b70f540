"""The Python client, as the operator's verbs use it: it names the user, and says what to do about a certificate."""

import getpass
import os
import socket

from torchgate_client import Client, Unreachable

from service.cli.tls import CA_VARIABLE, client_context

KEY_VARIABLE = "TORCHGATE_KEY"
SECONDS = 300.0  # loading a version takes as long as it takes; the gateway has a limit of its own


class CallFailed(Exception):
    """A verb cannot do what it was asked for; the message is for people."""


class Gateway(Client):
    """The gateway at `url`; `caller` predicts there as anybody does."""

    def __init__(self, url: str, token: str | None, reason: str) -> None:
        self.token = token
        self.reason = reason
        try:
            verify = client_context() if url.startswith("https:") else False
            actor = {"X-Actor": f"{_user()}@{socket.gethostname()}"}
            # Once: the person who gave the command decides whether to repeat it.
            super().__init__(url, token=token or None, timeout=SECONDS, retries=0, verify=verify, headers=actor)
            # Without the token: where keys are asked for, it would count as a wrong one.
            self.caller = Client(url, key=os.environ.get(KEY_VARIABLE) or None, verify=verify)
        except ValueError as error:
            raise CallFailed(str(error)) from error

    def close(self) -> None:
        """Close the connections."""
        self.caller.close()
        super().close()

    def explained(self, failure: Exception) -> Exception:
        """Return the failure as an error of the client, with the next step."""
        found = super().explained(failure)
        if isinstance(found, Unreachable) and "CERTIFICATE_VERIFY_FAILED" in str(found):
            return Unreachable(f"{found}. Name the CA of the gateway's certificate in {CA_VARIABLE}")
        return found


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"
