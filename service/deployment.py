"""One model version in service: its archive, its state and its batcher."""

import logging
from collections.abc import Sequence
from typing import Literal

from service.backend import Backend, BatchOptions, ItemError, ModelControl, ProbabilityVector, VersionStatus
from service.batcher import Batcher
from service.catalog import Archive
from service.contract import Contract
from service.errors import BackendUnavailable, NotReady
from service.metrics import VersionMetrics

logger = logging.getLogger(__name__)

State = Literal["waiting", "loading", "ready", "unavailable", "failed"]


class SelfCheckFailed(Exception):
    """A loaded version does not give the answers that its contract promises."""


class Deployment:
    """A version that is wanted: what is known of it, whether it may be asked, and the batcher that asks it."""

    def __init__(self, archive: Archive, contract: Contract, batcher: Batcher, metrics: VersionMetrics) -> None:
        self.archive = archive
        self.contract = contract
        self.batcher = batcher
        self.metrics = metrics
        self.target = archive.target
        self.state: State = "waiting"
        self.reason = "it has not been loaded yet"
        self.num_failures = 0
        self.retry_at = 0.0  # time.monotonic(); after a load that failed

    @property
    def is_open(self) -> bool:
        """Return whether the archive could be opened, so that its contract is known."""
        return bool(self.contract.classes)

    def become(self, state: State, reason: str = "") -> None:
        """Change the state; leaving `ready` answers what waits, since nobody will come for it."""
        if (state, reason) == (self.state, self.reason):
            return
        level = logging.WARNING if state in {"unavailable", "failed"} else logging.INFO
        logger.log(level, "%s is %s%s", self.target, state, f": {reason}" if reason else "")
        was_ready, self.state, self.reason = self.state == "ready", state, reason
        self.metrics.ready.set(state == "ready")
        if was_ready and state != "ready":
            self.batcher.fail_waiting(BackendUnavailable(reason))

    def require_ready(self) -> None:
        """Raise NotReady, with the reason, unless the version may be asked."""
        if self.state != "ready":
            raise NotReady(f"{self.target} is {self.state}: {self.reason}")

    def show(self, status: VersionStatus) -> None:
        """Export what the backend says of the version's workers."""
        self.metrics.show_workers(status.worker_states)
        self.metrics.pending.set(status.num_pending)

    async def bring_up(
        self,
        control: ModelControl,
        backend: Backend,
        status: VersionStatus | None,
        *,
        num_workers: int,
        timeout_seconds: float,
    ) -> None:
        """Have the archive loaded, with as many workers as are wanted, and see that it answers as promised.

        `status` is what the backend has of this version now, None for nothing.

        Raises:
            BackendError: the backend does not load or answer it.
            SelfCheckFailed: it answers something else than its contract says.
        """
        if status is not None and not (status.num_ready and await self._is_this_archive(control)):
            logger.warning("%s is registered without a ready worker or from another archive; replaced", self.target)
            await control.unload(self.target)
            status = None
        if status is None:
            await control.load(self.target, self.archive.file, num_workers)
            if not await self._is_this_archive(control):
                raise SelfCheckFailed("the model server loaded another archive than the manifest names")
        elif status.num_workers_wanted != num_workers:
            await control.scale(self.target, num_workers)
        await self._self_check(backend, timeout_seconds)
        self.batcher.set_capacity(num_workers, backend.num_slots(num_workers))

    async def _is_this_archive(self, control: ModelControl) -> bool:
        described = await control.contract(self.target)
        return all(described.get(key) == value for key, value in self.contract.document.items())

    async def _self_check(self, backend: Backend, timeout_seconds: float) -> None:
        options = BatchOptions(top_k=1, probabilities=True)
        for number, case in enumerate(self.contract.self_check):
            answer = await backend.predict(self.target, [case.image], options, timeout_seconds)
            match answer.results:
                case [ProbabilityVector(probabilities)]:
                    difference = _max_abs_difference(probabilities, case.probabilities)
                    if not difference <= self.contract.tolerance:  # a NaN fails too
                        allowed = self.contract.tolerance
                        raise SelfCheckFailed(
                            f"self-check case {number} is off by {difference:.3g}, allowed {allowed:.3g}"
                        )
                case [ItemError(code, message)]:
                    raise SelfCheckFailed(f"self-check case {number}: {code}: {message}")
                case _:
                    raise SelfCheckFailed(f"self-check case {number}: no probabilities in {answer.results}")


def _max_abs_difference(a: Sequence[float], b: Sequence[float]) -> float:
    if len(a) != len(b):
        return float("inf")
    return max(abs(x - y) for x, y in zip(a, b, strict=True))
