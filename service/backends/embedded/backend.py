"""Batches and control for versions whose workers are the gateway's own processes."""

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from service.backends.embedded.allocator import find_allocator
from service.backends.embedded.archive import Unpacked, unpack
from service.backends.embedded.folder import PrivateFolder, sweep
from service.backends.embedded.process import Launcher
from service.backends.embedded.spare import Spares
from service.backends.embedded.worker import ExitCause
from service.backends.embedded.worker_pool import DRAIN_SECONDS, WorkerPool
from service.backends.packed_request import packed_fields, parse_answer
from service.config.settings import Settings
from service.domain.archive import StoreError
from service.domain.backend import BatchAnswer, BatchOptions, Target, VerifiedArchive, VersionStatus
from service.errors.gateway import BackendError, BackendFailed, BackendTimeout, BackendUnavailable

logger = logging.getLogger(__name__)


class EmbeddedBackend:
    """A Backend and a ModelControl in one; the owner of either may call `start` and `close`.

    `on_restart` is called for each worker that is replaced.
    """

    def __init__(self, settings: Settings, on_restart: Callable[[Target, ExitCause], None]) -> None:
        self._settings = settings
        self._on_restart = on_restart
        self._folder = PrivateFolder()
        launcher = Launcher(settings.worker_python or sys.executable, settings.threads_per_worker, os.environ)
        self._spares = Spares(launcher, self._folder)
        self._pools: dict[Target, WorkerPool] = {}
        self._loading: set[Target] = set()
        self._num_loads = 0
        self._watch: asyncio.Task[None] | None = None

    def num_slots(self, num_workers: int) -> int:
        """Return one running batch for each worker, and one in the socket for every second worker.

        A second one for each worker would delay urgent images, and keep no worker busier.
        """
        return num_workers + (num_workers + 1) // 2

    async def start(self) -> None:
        """Start the task that watches the workers; delete the folders of gateways that were killed."""
        await asyncio.to_thread(find_allocator)  # runs a program, once; the workers' environment needs what it found
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._watch_workers())
            for folder in await asyncio.to_thread(sweep):
                logger.info("removed %s, left by a gateway that was killed", folder)

    async def predict(
        self, target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        """Have a worker answer one batch; see Backend.predict. A worker that one batch keeps past the limit is killed.

        A timeout of a batch that waited behind another leaves its worker alone.
        """
        fields = packed_fields(items, options)
        answer = await self._pool(target).ask(fields, options.headers, timeout_seconds, is_large=options.is_large)
        if answer.code != 200:
            raise BackendFailed(f"{answer.code}: {answer.message}")
        if answer.status != 200:
            raise BackendFailed(f"{answer.status}: {answer.body[:300].decode(errors='replace')}")
        return parse_answer(answer.body)

    async def survey(self) -> Mapping[Target, VersionStatus]:
        """Return every loaded version and its status."""
        return {target: pool.status() for target, pool in self._pools.items()}

    async def load(self, target: Target, archive: VerifiedArchive, num_workers: int) -> None:
        """Unpack the archive into the private folder and wait until `num_workers` workers have loaded it.

        Workers that are added or replaced later load what was unpacked.
        """
        if target in self._pools or target in self._loading:
            raise BackendFailed(f"{target} is already registered")
        limit_seconds = self._settings.load_timeout_seconds
        self._num_loads += 1
        folder = self._folder.path() / str(self._num_loads)
        self._loading.add(target)
        try:
            async with asyncio.timeout(limit_seconds):
                unpacked = await self._unpack(archive.file, folder, target)
                pool = WorkerPool(target, unpacked, self._spares, self._settings, self._on_restart)
                self._pools[target] = pool
                await pool.resize(num_workers)
        except BaseException as error:  # a failure leaves nothing behind
            if failed := self._pools.pop(target, None):
                await failed.close(0)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            if isinstance(error, TimeoutError):
                raise BackendTimeout(round(limit_seconds * 1000)) from error
            raise
        finally:
            self._loading.discard(target)
        self._refill()

    async def unload(self, target: Target) -> None:
        """Answer the batches in flight, then end the version's workers and forget it."""
        pool = self._pool(target)
        del self._pools[target]
        await pool.close(DRAIN_SECONDS)
        await asyncio.to_thread(shutil.rmtree, pool.archive.folder, ignore_errors=True)

    async def scale(self, target: Target, num_workers: int) -> None:
        """Set the number of workers of a version and wait until they run."""
        try:
            async with asyncio.timeout(self._settings.load_timeout_seconds):
                await self._pool(target).resize(num_workers)
        except TimeoutError as error:
            raise BackendTimeout(round(self._settings.load_timeout_seconds * 1000)) from error
        self._refill()

    async def contract(self, target: Target) -> Mapping[str, Any]:
        """Return what a worker's describe answered when it had loaded: the contract and the worker's own runtime."""
        return self._pool(target).description()

    async def close(self) -> None:
        """End every process, delete every file."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        pools, self._pools = self._pools, {}
        await asyncio.gather(self._spares.close(), *(pool.close(0) for pool in pools.values()))
        await asyncio.to_thread(self._folder.remove)

    def _pool(self, target: Target) -> WorkerPool:
        pool = self._pools.get(target)
        if pool is None:
            raise BackendUnavailable(f"{target} is not loaded")
        return pool

    async def _unpack(self, file: BinaryIO, folder: Path, target: Target) -> Unpacked:
        """Unpack on a thread; a cancelled load stops the thread and waits for it."""
        stop = threading.Event()
        work = asyncio.get_running_loop().run_in_executor(None, unpack, file, folder, target, stop)
        try:
            return await asyncio.shield(work)
        except StoreError as error:
            raise BackendFailed(str(error)) from error
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({work})
            work.exception()
            raise

    async def _watch_workers(self) -> None:
        while True:
            await asyncio.sleep(self._settings.health_interval_seconds)
            try:
                self._refill()
                num_workers = sum(len(pool.workers) for pool in self._pools.values())
                for pool in self._pools.values():
                    pool.check_memory(num_workers)
            except Exception:  # this task must survive; the log has the cause
                logger.exception("watching the workers failed; trying again")

    def _refill(self) -> None:
        """Start a spare once nobody loads: importing torch takes a core for seconds."""
        if self._pools and all(pool.is_settled for pool in self._pools.values()):
            with contextlib.suppress(BackendError):  # tried again soon
                self._spares.refill()
