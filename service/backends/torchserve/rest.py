"""Batches to TorchServe over REST."""

import asyncio
import secrets
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote

from service.backends.packed_request import packed_fields, parse_answer
from service.backends.torchserve.failures import failure
from service.backends.torchserve.http_client import ConnectionEndedError, HttpClient
from service.domain.backend import BatchAnswer, BatchOptions, Target
from service.errors.gateway import BackendTimeout, BackendUnavailable


class RestBackend:
    """Answers batches through TorchServe's REST inference API, one multipart part per item."""

    def __init__(self, host: str, port: int) -> None:
        self._client = HttpClient(host, port)

    def num_slots(self, num_workers: int) -> int:
        """Return one batch per worker and one that waits at the server, so that no worker idles in between."""
        return num_workers + 1

    async def start(self) -> None:
        """Nothing to do: it connects when the first batch needs it."""

    async def predict(
        self, target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        """Send one batch as one multipart body; see Backend.predict."""
        boundary = secrets.token_hex(16)  # that no item can know
        pieces: list[bytes] = []
        for name, content in packed_fields(items, options):
            pieces += (_part_head(boundary, name), content, b"\r\n")
        pieces.append(f"--{boundary}--\r\n".encode())
        try:
            async with asyncio.timeout(timeout_seconds):
                status, body = await self._client.post(
                    _path(target), f"multipart/form-data; boundary={boundary}", pieces, options.headers
                )
        except TimeoutError as error:
            raise BackendTimeout(round(timeout_seconds * 1000)) from error
        except (OSError, ConnectionEndedError) as error:
            raise BackendUnavailable(str(error) or type(error).__name__) from error
        if status != 200:
            text = " ".join(body.decode(errors="replace").split())[:300]
            raise failure(f"HTTP {status}: {text}")
        return parse_answer(body)

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.close()


def _part_head(boundary: str, name: str) -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name}"; filename="{name}"'
    return f"--{boundary}\r\n{disposition}\r\nContent-Type: application/octet-stream\r\n\r\n".encode()


@lru_cache(1024)
def _path(target: Target) -> str:
    return f"/predictions/{quote(target.model, safe='')}/{quote(target.version, safe='')}"
