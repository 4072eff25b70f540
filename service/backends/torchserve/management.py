"""TorchServe's management API: loaded versions and the state of their workers."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, Field, NonNegativeInt, TypeAdapter, ValidationError
from pydantic_core import from_json

from service.domain.backend import Target, VerifiedArchive, VersionStatus
from service.errors.gateway import AlreadyRegistered, BackendFailed, BackendTimeout, BackendUnavailable

# What the management API answers from memory; loading has a limit of its own.
SHORT_TIMEOUT_SECONDS = 5.0
# A busy TorchServe now and then interrupts itself while it ends a version's workers, answers 500 and keeps the version.
UNLOAD_ATTEMPTS = 3
# No TorchServe has so much to say: what answers is something else, or broken.
MOST_BYTES = 16 * 1024 * 1024  # of one answer
MOST_PAGES = 100
# Compressed answers would be larger than they look.
HEADERS = {"Accept-Encoding": "identity"}


class _NotRegistered(BackendUnavailable):
    """TorchServe answers, but has no such model or version."""


class _Listed(BaseModel):
    name: str = Field(alias="modelName")


class _Listing(BaseModel):
    models: list[_Listed]
    next_page_token: int | None = Field(None, alias="nextPageToken")


class _Worker(BaseModel):
    id: int
    status: str
    memory_bytes: int = Field(alias="memoryUsage")


class _Queue(BaseModel):
    num_pending: NonNegativeInt = Field(alias="pendingRequests")


class _Version(BaseModel):
    model: str = Field(alias="modelName")
    version: str = Field(alias="modelVersion")
    num_workers_wanted: NonNegativeInt = Field(alias="minWorkers")
    workers: list[_Worker]
    queue: _Queue = Field(alias="jobQueueStatus")
    file: str = Field("", alias="modelUrl")


class _Described(BaseModel):
    contract: Any = Field(None, alias="customizedMetadata")


_Form = TypeVar("_Form")
_LISTING = TypeAdapter(_Listing)
_VERSIONS = TypeAdapter(list[_Version])
_DESCRIBED = TypeAdapter(list[_Described])


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
        # No cookie is kept: one with odd characters could not be sent back, and every later call would fail.
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        self._client = httpx.AsyncClient(
            base_url=self._base_url, transport=transport, trust_env=False, cookies=no_cookies
        )

    async def survey(self) -> Mapping[Target, VersionStatus]:
        """Return every registered version of every model with the state of its workers and its queue."""
        names: list[str] = []
        page = {"limit": 100}
        for _ in range(MOST_PAGES):
            listing = _read(_LISTING, await self._call("GET", "/models", params=page))
            names += [model.name for model in listing.models]
            if listing.next_page_token is None:
                break
            page["next_page_token"] = listing.next_page_token
        else:
            raise BackendFailed(f"TorchServe lists models on more than {MOST_PAGES} pages")
        described = await asyncio.gather(*(self._describe(name) for name in names))
        return {
            Target(version.model, version.version): _status(version) for versions in described for version in versions
        }

    async def _describe(self, name: str) -> Sequence[_Version]:
        """Return a model's versions; none if it was unregistered after it was listed."""
        versions: list[_Version] = []
        with contextlib.suppress(_NotRegistered):
            versions = _read(_VERSIONS, await self._call("GET", f"/models/{quote(name, safe='')}/all"))
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
            await self._call("PUT", f"{_path(others[0])}/set-default")
        for attempt in range(1, UNLOAD_ATTEMPTS + 1):
            try:
                await self._call("DELETE", _path(target))
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
            _path(target),
            params={"min_worker": num_workers, "max_worker": num_workers, "synchronous": "true"},
            timeout=self._load_timeout_seconds,
        )

    async def contract(self, target: Target) -> Mapping[str, Any]:
        """Return what the handler's describe answers; it waits for a worker like any prediction."""
        answer = await self._call("GET", _path(target), self._load_timeout_seconds, params={"customized": "true"})
        described = _read(_DESCRIBED, answer)
        contract = described[0].contract if described else None
        if not isinstance(contract, dict):
            raise BackendFailed(f"{target} does not describe itself: {contract!r:.200}")
        return contract

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.aclose()

    async def _call(self, method: str, path: str, timeout: float = SHORT_TIMEOUT_SECONDS, **request: Any) -> Any:
        content = bytearray()
        try:
            async with self._client.stream(method, path, timeout=timeout, headers=HEADERS, **request) as response:
                async for piece in response.aiter_raw():
                    content += piece
                    if len(content) > MOST_BYTES:
                        raise BackendFailed(f"{method} {path[:100]}: more than {MOST_BYTES} bytes")
        except httpx.TimeoutException as error:
            raise BackendTimeout(round(timeout * 1000)) from error
        except httpx.TransportError as error:
            raise BackendUnavailable(f"TorchServe at {self._place}: {error or type(error).__name__}") from error
        except httpx.InvalidURL as error:  # of a name that TorchServe listed
            raise BackendFailed(f"{method} {path[:100]}: {error}") from error
        if response.is_error:
            text = " ".join(content.decode(errors="replace").split())[:300]
            if response.status_code == 404:
                raise _NotRegistered(text)
            if response.status_code == 409:
                raise AlreadyRegistered(text)
            raise BackendFailed(f"{method} {path[:100]}: HTTP {response.status_code}: {text}")
        try:
            return from_json(bytes(content))
        except ValueError as error:  # of a document that is nested too deeply, too
            raise BackendFailed(f"{method} {path[:100]}: not JSON: {bytes(content[:200])!r}") from error


def _path(target: Target) -> str:
    return f"/models/{quote(target.model, safe='')}/{quote(target.version, safe='')}"


def _read(form: TypeAdapter[_Form], document: Any) -> _Form:
    """Return a document of TorchServe's in this form; raises BackendFailed."""
    try:
        return form.validate_python(document)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in fault["loc"])
        raise BackendFailed(f"TorchServe's answer is not of the agreed form: {place}: {fault['msg']}") from error


def _status(version: _Version) -> VersionStatus:
    return VersionStatus(
        num_workers_wanted=version.num_workers_wanted,
        worker_states=Counter(worker.status.lower() for worker in version.workers),
        num_pending=version.queue.num_pending,
        # 0 means that TorchServe has not measured the worker; with disable_system_metrics it never does.
        worker_memory_bytes=[
            worker.memory_bytes
            for worker in sorted(version.workers, key=lambda each: each.id)
            if worker.memory_bytes > 0
        ],
        file=version.file,
    )
