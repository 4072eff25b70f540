"""TorchServe's management API: loaded versions and the state of their workers."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from service.domain.backend import Target, VerifiedArchive, VersionStatus
from service.errors.gateway import AlreadyRegistered, BackendFailed, BackendTimeout, BackendUnavailable

# What the management API answers from memory; loading has a limit of its own.
SHORT_TIMEOUT_SECONDS = 5.0
# A busy TorchServe now and then interrupts itself while it ends a version's workers, answers 500 and keeps the version.
UNLOAD_ATTEMPTS = 3


class _NotRegistered(BackendUnavailable):
    """TorchServe answers, but has no such model or version."""


class TorchServeControl:
    """Loads and unloads versions through TorchServe's management API, at a URL or, if given, behind a unix socket."""

    def __init__(
        self,
        base_url: str,
        socket: Path | None = None,
        *,
        load_timeout_seconds: float,
        response_timeout_seconds: int,
    ) -> None:
        self._base_url = base_url
        self._socket = socket
        self._place = base_url if socket is None else str(socket)
        self._load_timeout_seconds = load_timeout_seconds
        self._response_timeout_seconds = response_timeout_seconds

    async def start(self) -> None:
        """Make the client; it connects when the first call needs it."""
        # The environment's proxies are for the outside world, not for a server next door.
        transport = None if self._socket is None else httpx.AsyncHTTPTransport(uds=str(self._socket))
        self._client = httpx.AsyncClient(base_url=self._base_url, transport=transport, trust_env=False)

    async def survey(self) -> Mapping[Target, VersionStatus]:
        """Return every registered version of every model with the state of its workers and its queue."""
        names: list[str] = []
        page = {"limit": 100}
        while True:
            listing = await self._call("GET", "/models", params=page)
            names += [model["modelName"] for model in listing["models"]]
            if "nextPageToken" not in listing:
                break
            page["next_page_token"] = int(listing["nextPageToken"])
        described = await asyncio.gather(*(self._describe(name) for name in names))
        return {
            Target(version["modelName"], version["modelVersion"]): _status(version)
            for versions in described
            for version in versions
        }

    async def _describe(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Return a model's versions; none if it was unregistered after it was listed."""
        versions: Sequence[Mapping[str, Any]] = ()
        with contextlib.suppress(_NotRegistered):
            versions = await self._call("GET", f"/models/{name}/all")
        return versions

    async def load(self, target: Target, archive: VerifiedArchive, num_workers: int) -> None:
        """Register an archive and wait until its workers have loaded it; AlreadyRegistered if another was first.

        TorchServe finds it by its name in its own store, and unpacks it before its workers start.
        """
        await self._call(
            "POST",
            "/models",
            params={
                "url": archive.name,
                "model_name": target.model,
                "batch_size": 1,  # one request carries a whole batch; TorchServe's own batcher stays out of it
                "initial_workers": num_workers,
                "synchronous": "true",
                "response_timeout": self._response_timeout_seconds,
                "startup_timeout": math.ceil(self._load_timeout_seconds),
            },
            timeout=self._load_timeout_seconds,
        )

    async def unload(self, target: Target) -> None:
        """Unregister a version."""
        others = [other for other in await self.survey() if other.model == target.model and other != target]
        if others:
            # TorchServe keeps its default version while there are others, a failed one too: make it one of those.
            await self._call("PUT", f"/models/{target.model}/{others[0].version}/set-default")
        for attempt in range(1, UNLOAD_ATTEMPTS + 1):
            try:
                await self._call("DELETE", f"/models/{target.model}/{target.version}")
            except BackendFailed:
                if target not in await self.survey():
                    return
                if attempt == UNLOAD_ATTEMPTS:
                    raise
            else:
                return

    async def scale(self, target: Target, num_workers: int) -> None:
        """Set the number of workers of a version and wait until they run."""
        await self._call(
            "PUT",
            f"/models/{target.model}/{target.version}",
            params={"min_worker": num_workers, "max_worker": num_workers, "synchronous": "true"},
            timeout=self._load_timeout_seconds,
        )

    async def contract(self, target: Target) -> Mapping[str, Any]:
        """Return what the handler's describe answers; it waits for a worker like any prediction."""
        path = f"/models/{target.model}/{target.version}"
        versions = await self._call("GET", path, self._load_timeout_seconds, params={"customized": "true"})
        contract = versions[0].get("customizedMetadata")
        if not isinstance(contract, dict):
            raise BackendFailed(f"{target} does not describe itself: {contract!r}")
        return contract

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.aclose()

    async def _call(self, method: str, path: str, timeout: float = SHORT_TIMEOUT_SECONDS, **request: Any) -> Any:
        try:
            response = await self._client.request(method, path, timeout=timeout, **request)
        except httpx.TimeoutException as error:
            raise BackendTimeout(round(timeout * 1000)) from error
        except httpx.TransportError as error:
            raise BackendUnavailable(f"TorchServe at {self._place}: {error or type(error).__name__}") from error
        if response.is_error:
            text = " ".join(response.text.split())[:300]
            if response.status_code == 404:
                raise _NotRegistered(text)
            if response.status_code == 409:
                raise AlreadyRegistered(text)
            raise BackendFailed(f"{method} {path}: HTTP {response.status_code}: {text}")
        try:
            return response.json()
        except ValueError as error:
            raise BackendFailed(f"{method} {path}: not JSON: {response.text[:200]!r}") from error


def _status(version: Mapping[str, Any]) -> VersionStatus:
    workers = version["workers"]
    return VersionStatus(
        num_workers_wanted=version["minWorkers"],
        worker_states=Counter(worker["status"].lower() for worker in workers),
        num_pending=version["jobQueueStatus"]["pendingRequests"],
        # 0 means that TorchServe has not measured the worker; with disable_system_metrics it never does.
        worker_memory_bytes=[
            worker["memoryUsage"]
            for worker in sorted(workers, key=lambda each: int(each["id"]))
            if worker["memoryUsage"]
        ],
        file=version.get("modelUrl", ""),
    )
