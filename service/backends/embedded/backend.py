"""Batches and control for versions whose workers are the gateway's own processes."""

import asyncio
import contextlib
import logging
import math
import os
import shutil
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from service.backends.embedded.allocator import find_allocator
from service.backends.embedded.archive import Unpacked, unpack
from service.backends.embedded.folder import PrivateFolder, sweep
from service.backends.embedded.process import Launcher
from service.backends.embedded.spare import Spares
from service.backends.embedded.worker_pool import DRAIN_SECONDS, WorkerPool
from service.backends.torchserve.packing import OPTIONS_KEY, item_keys, pack_options, parse_answer
from service.config.settings import Settings
from service.domain.archive import StoreError
from service.domain.backend import BatchAnswer, BatchOptions, Target, VersionStatus
from service.errors.gateway import BackendError, BackendFailed, BackendTimeout, BackendUnavailable
from service.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)


class Workers:
    """Both sides of the seam, a Backend and a ModelControl: `start` and `close` may be called by each."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._folder = PrivateFolder()
        launcher = Launcher(settings.worker_python or sys.executable, settings.threads_per_worker, os.environ)
        self._spares = Spares(launcher, self._folder)
        self._versions: dict[Target, WorkerPool] = {}
        self._loading: set[Target] = set()
        self._num_loads = 0
        self._watch: asyncio.Task[None] | None = None

    def num_slots(self, num_workers: int) -> int:
        """Return a batch that runs for each worker, and one that waits in the socket for every other.

        A second one for each would hold images back from those that are in a hurry, and keep no worker busier.
        """
        return num_workers + math.ceil(num_workers / 2)

    async def start(self) -> None:
        """Begin to look after what will be loaded; clear away what a gateway that was killed left."""
        await asyncio.to_thread(find_allocator)  # runs a program, once; the workers' environment needs what it found
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._look())
            for folder in await asyncio.to_thread(sweep):
                logger.info("removed %s, which a gateway that was killed had left", folder)

    async def predict(
        self, target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        """Have a worker answer one batch; see Backend.predict.

        The limit counts from when a worker can begin with the batch; one that passes it is killed and replaced.
        """
        fields = [*zip(item_keys(len(items)), items, strict=True), (OPTIONS_KEY, pack_options(options))]
        answer = await self._version(target).ask(fields, timeout_seconds, options.expected_seconds)
        if answer.code != 200:
            raise BackendFailed(f"{answer.code}: {answer.message}")
        if answer.status != 200:
            raise BackendFailed(f"{answer.status}: {answer.body[:300].decode(errors='replace')}")
        return parse_answer(answer.body)

    async def survey(self) -> Mapping[Target, VersionStatus]:
        """Return every loaded version and how its workers are."""
        return {target: version.status() for target, version in self._versions.items()}

    async def load(self, target: Target, file: str, num_workers: int) -> None:
        """Unpack the archive `file` of the model store and wait until `num_workers` workers have loaded it."""
        if target in self._versions or target in self._loading:
            raise BackendFailed(f"{target} is already registered")
        self._loading.add(target)
        self._num_loads += 1
        try:
            async with asyncio.timeout(self._settings.load_timeout_seconds):
                folder = self._new_folder(str(self._num_loads))
                await self._load_from(self._settings.model_store / file, folder, target, num_workers)
        except TimeoutError as error:
            raise BackendTimeout(round(self._settings.load_timeout_seconds * 1000)) from error
        finally:
            self._loading.discard(target)
        self._refill()

    async def unload(self, target: Target) -> None:
        """Finish what a version has in progress, then end its workers and forget it."""
        version = self._version(target)
        del self._versions[target]
        await version.close(DRAIN_SECONDS)
        await asyncio.to_thread(shutil.rmtree, version.folder, ignore_errors=True)

    async def scale(self, target: Target, num_workers: int) -> None:
        """Set the number of workers of a version and wait until they run."""
        try:
            async with asyncio.timeout(self._settings.load_timeout_seconds):
                await self._version(target).resize(num_workers)
        except TimeoutError as error:
            raise BackendTimeout(round(self._settings.load_timeout_seconds * 1000)) from error
        self._refill()

    async def contract(self, target: Target) -> Mapping[str, Any]:
        """Return what a worker's describe answered when it had loaded: the contract and the worker's own runtime."""
        return self._version(target).description()

    async def close(self) -> None:
        """End every process, delete every file."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        versions, self._versions = self._versions, {}
        await asyncio.gather(self._spares.close(), *(version.close(0) for version in versions.values()))
        await asyncio.to_thread(self._folder.remove)

    def _version(self, target: Target) -> WorkerPool:
        version = self._versions.get(target)
        if version is None:
            raise BackendUnavailable(f"{target} is not loaded")
        return version

    def _new_folder(self, name: str) -> Path:
        try:
            return self._folder.path() / name
        except OSError as error:
            raise BackendFailed(f"there is no room for the workers' files: {error}") from error

    async def _load_from(self, path: Path, folder: Path, target: Target, num_workers: int) -> None:
        """Unpack and start; what fails leaves nothing behind."""
        version: WorkerPool | None = None
        try:
            archive = await self._unpack(path, folder, target)
            version = WorkerPool(target, archive, self._spares, self._metrics, self._settings)
            self._versions[target] = version
            await version.resize(num_workers)
        except BaseException:
            if version is not None:
                self._versions.pop(target, None)
                await version.close(0)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise

    async def _unpack(self, path: Path, folder: Path, target: Target) -> Unpacked:
        """Unpack on a thread, which is told to stop, and waited for, when nobody wants its work any more."""
        stop = threading.Event()
        work = asyncio.get_running_loop().run_in_executor(None, unpack, path, folder, target, stop)
        try:
            return await asyncio.shield(work)
        except StoreError as error:
            raise BackendFailed(str(error)) from error
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({work})
            work.exception()
            raise

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._settings.health_interval_seconds)
            try:
                self._refill()
                num_workers = sum(len(version.workers) for version in self._versions.values())
                for version in self._versions.values():
                    version.look_at_memory(num_workers)
            except Exception:  # the one task that must survive whatever it meets; the cause is in the log
                logger.exception("looking after the workers failed; it goes on")

    def _refill(self) -> None:
        """Start a spare once nobody loads: importing torch takes a core for seconds."""
        if self._versions and all(version.is_settled for version in self._versions.values()):
            with contextlib.suppress(BackendError):  # tried again soon
                self._spares.refill()
