"""Takes profiles of a version under its own traffic."""

import asyncio
import contextlib
import time

from service.admin.profile_report import report
from service.admin.versions import AdminContext, Operations, loaded
from service.batching.profile_request import ProfileRequest
from service.domain.backend import Backend, BatchOptions, Target
from service.domain.profile import ProfileChange, ProfileInfo
from service.errors.gateway import BackendError, BackendTimeout
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.serving.reconciler import Reconciler


class Profiling:
    """Has a version's handler profile its next batches; one profile of a version at a time."""

    def __init__(
        self,
        reconciler: Reconciler,
        backend: Backend,
        operations: Operations,
        registry: Registry,
        backend_timeout_ms: int,
    ) -> None:
        self._reconciler = reconciler
        self._backend = backend
        self._operations = operations
        self._registry = registry
        self._backend_timeout_ms = backend_timeout_ms

    async def take(self, asked: AdminContext, model: str, version: str, change: ProfileChange) -> ProfileInfo:
        """Profile the version's next batches and return the report; the event log records it.

        It ends after the wait for traffic and one backend timeout, even if fewer batches came.

        Raises:
            ModelNotFound, VersionNotFound, NotReady: the version cannot be asked.
            ProfileActive: another profile is being taken.
            ProfileUnsupported: its handler takes no profiles.
            BackendError: a batch failed, or none was answered in time.
        """
        async with self._operations.noted(asked.entry):
            info = await self._take(Target(model, version), change)
        own = f", {info.num_self_check} of them the self-check's" if info.num_self_check else ""
        await self._registry.note(asked.entry, "done", f"{info.num_batches} batches, {info.num_items} images{own}")
        return info

    async def _take(self, target: Target, change: ProfileChange) -> ProfileInfo:
        self._registry.state(target.model)
        model_version = loaded(self._reconciler, target)
        model_version.require_ready()
        order = ProfileRequest(self._backend, change.num_batches, "trace" if change.trace else "table")
        with model_version.batcher.profiled(order):
            num_self_check = await self._fill(order, model_version, change.wait_seconds)
        if order.error is not None:
            raise order.error
        if not order.batches:
            raise BackendTimeout(self._backend_timeout_ms)
        return await asyncio.to_thread(report, target, list(order.batches), num_self_check)

    async def _fill(self, order: ProfileRequest, model_version: ModelVersion, wait_seconds: float) -> int:
        """Wait until the order is done or time is up; return how many of its batches are the self-check's."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(order.done.wait(), wait_seconds)
        deadline = time.monotonic() + self._backend_timeout_ms / 1000
        images = [case.image for case in model_version.contract.self_check]
        num_self_check = 0
        while order.is_wanting and (left := deadline - time.monotonic()) > 0:
            # Past the queue: these batches are no traffic, and no traffic metric may count them.
            # A backend may count the timeout from when a worker is free, so there is a deadline as well.
            with contextlib.suppress(BackendError, TimeoutError):  # the order keeps the error
                async with asyncio.timeout(left):
                    await order.predict(model_version.target, images, BatchOptions(top_k=1), left)
                num_self_check += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(order.done.wait(), max(deadline - time.monotonic(), 0))
        return num_self_check
