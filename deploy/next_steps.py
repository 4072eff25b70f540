"""Prints what to do next once the gateway of `make serve` is ready: a first call, the status page, the API.

It stays silent for a gateway whose port nobody knows, and for one with TLS: its certificate knows what it is called.
"""

import http.client
import json
import os
import time
from contextlib import closing, suppress
from typing import Any

from service.config.places.file import chosen_file
from service.config.places.sources import read_sources
from service.process.privacy import hide_from_other_processes

MOST_SECONDS = 600  # that the first version may take to load
SAMPLES = {"digits": "samples/digit-7.png"}
TEXT = """
The gateway is ready. In a second terminal:

    curl {header}--data-binary @{sample} {url}/predict

The same from Python (.venv/bin/python):

    from torchgate_client import Client
    print(Client("{url}"{key}).predict("{sample}").label)

Status page: {url}
API:         {url}/docs
Ctrl-C stops everything.
"""


def ask(port: int, path: str) -> Any:
    """Return the document at the path; None if there is none yet."""
    with (
        suppress(OSError, http.client.HTTPException),
        closing(http.client.HTTPConnection("127.0.0.1", port, 10)) as here,
    ):
        here.request("GET", path)
        answer = here.getresponse()
        if answer.status == http.client.OK:
            return json.load(answer)
    return None


def main() -> None:
    """Wait until the gateway is ready, then print."""
    hide_from_other_processes()
    settings = read_sources({}, chosen_file(None, os.environ)).settings()
    if not settings.port or settings.tls_cert_file is not None:
        return
    end = time.monotonic() + MOST_SECONDS
    while ask(settings.port, "/readyz") is None:
        if time.monotonic() > end:
            return
        time.sleep(0.5)
    models = [each["model"] for each in (ask(settings.port, "/models") or {"models": []})["models"]]
    sample = next((SAMPLES[each] for each in models if each in SAMPLES), "path/to/image.png")
    has_keys = settings.api_keys is not None or settings.clients_file is not None
    header, key = ("-H 'X-API-Key: YOUR-KEY' ", ', key="YOUR-KEY"') if has_keys else ("", "")
    print(TEXT.format(sample=sample, url=f"http://localhost:{settings.port}", header=header, key=key), flush=True)


if __name__ == "__main__":
    main()
