"""Ends with status 0 if the gateway in this container is ready, else 1: the health check of its image.

It asks by the gateway's own settings: its port, with TLS if it has a certificate, for a host that it answers for.
"""

import http.client
import os
import ssl
import sys

SECONDS = 4


def connection(port: int) -> http.client.HTTPConnection:
    """Return a connection to the gateway; whose certificate it shows does not matter on the way to oneself."""
    if not os.environ.get("TORCHGATE_TLS_CERT_FILE"):
        return http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=context)


def host() -> str:
    """Return a name that the gateway answers for."""
    allowed = [each.strip() for each in os.environ.get("TORCHGATE_ALLOWED_HOSTS", "").split(",")]
    return next((each for each in allowed if each and each != "*"), "127.0.0.1")


def main() -> None:
    """Ask once."""
    try:
        asked = connection(int(os.environ.get("TORCHGATE_PORT") or 8000))
        asked.request("GET", "/readyz", headers={"Host": host()})
        status = asked.getresponse().status
    except (OSError, http.client.HTTPException, ValueError) as error:
        sys.exit(f"the gateway does not answer: {error}")
    if status != http.client.OK:
        sys.exit(f"/readyz answers {status}")


if __name__ == "__main__":
    main()
