"""Batches to TorchServe over REST."""

from collections.abc import Sequence

import httpx

from service.backend import BatchAnswer, BatchOptions, Target
from service.errors import BackendTimeout, BackendUnavailable
from service.torchserve.packing import OPTIONS_KEY, failure, item_keys, pack_options, parse_answer


class RestBackend:
    """Answers batches through TorchServe's REST inference API, one multipart part per item."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url

    def num_slots(self, num_workers: int) -> int:
        """Return one batch per worker and one that waits at the server, so that no worker idles in between."""
        return num_workers + 1

    async def start(self) -> None:
        """Make the client; it connects when the first batch needs it."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        # The environment's proxies are for the outside world, not for a server next door.
        self._client = httpx.AsyncClient(base_url=self._base_url, limits=limits, trust_env=False)

    async def predict(
        self, target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        """Send one batch as one multipart body; see Backend.predict."""
        parts = {key: (key, item) for key, item in zip(item_keys(len(items)), items, strict=True)}
        parts[OPTIONS_KEY] = (OPTIONS_KEY, pack_options(options))
        try:
            response = await self._client.post(
                f"/predictions/{target.model}/{target.version}", files=parts, timeout=timeout_seconds
            )
        except httpx.TimeoutException as error:
            raise BackendTimeout(round(timeout_seconds * 1000)) from error
        except httpx.TransportError as error:
            raise BackendUnavailable(str(error) or type(error).__name__) from error
        if response.status_code != 200:
            text = " ".join(response.text.split())[:300]
            raise failure(f"HTTP {response.status_code}: {text}")
        return parse_answer(response.content)

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.aclose()
