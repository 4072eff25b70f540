"""One model version: its record, its state, and the batcher that serves it.

    waiting ──> loading ──> ready <──> unavailable        every state ──> draining, the last one
       ^         │   ^        │             │
       │         v   │        └──────┬──────┘
       └──────> failed               └──> loading, waiting

| state       | meaning                                          | entered when                               |
|-------------|--------------------------------------------------|--------------------------------------------|
| waiting     | the model server does not have it                | it is recorded, or the server lost it      |
| loading     | its workers start, or its answers are checked    | an attempt begins, or another gateway's    |
| ready       | it takes requests                                | the self-check passed                      |
| unavailable | it was ready, but no worker or no server answers | the reconciler sees that                   |
| failed      | opening, loading or checking failed              | an attempt failed; the next comes later    |
| draining    | it finishes its requests, then is unloaded       | it is unregistered                         |

The reconciler causes every transition, by a method below.
"""

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from service.batching.batcher import Batcher
from service.domain.archive import Archive
from service.domain.backend import VersionStatus
from service.domain.contract import Contract
from service.domain.model_state import VersionRecord
from service.errors.gateway import BackendUnavailable, GatewayError, NotReady
from service.errors.reason import Reason
from service.monitoring.drift_monitor import DriftMonitor
from service.monitoring.signed_ids import target_bytes
from service.telemetry.metric_labels import Outcome
from service.telemetry.version_metrics import VersionMetrics

logger = logging.getLogger(__name__)

MOST_DOUBLINGS = 10  # of the first retry pause, one second; 2**n overflows a float at last
LONGEST_RETRY_SECONDS = 60.0
# Outcomes that are the version's failures. What is judged and shed met an open circuit: the version is out of order.
FAILURES: frozenset[Outcome] = frozenset({"server_error", "shed"})

VersionState = Literal["waiting", "loading", "ready", "unavailable", "failed", "draining"]


@dataclass
class RequestCounts:
    """Totals of a version's requests since it was loaded; take differences for a period.

    What a guard counts is settled before the request ends, by who chose the version and how much time it had. A caller
    who picks the requests that count could make a good version look bad.
    """

    slow_seconds: float = math.inf  # a request that takes longer counts as slow
    num_judged: int = 0  # dealt by the traffic policy, with time enough, however they ended
    num_errors: int = 0
    num_slow: int = 0
    num_labelled: int = 0  # images with feedback, whoever gave it
    num_wrong: int = 0
    num_judged_labels: int = 0  # those that guards look at
    num_judged_wrong: int = 0

    def judge(self, outcome: Outcome, seconds: float, had_seconds: float, fair_seconds: float) -> None:
        """Count a request that the traffic policy dealt, and that had `had_seconds` until its deadline.

        One with less time than a slow request may take is left out. Running out of time is an error only if the
        version had `fair_seconds`; otherwise it is slow.
        """
        if had_seconds < min(self.slow_seconds, fair_seconds):
            return
        is_expired = outcome == "expired"
        has_failed = outcome in FAILURES
        self.num_judged += 1
        self.num_errors += has_failed or (is_expired and had_seconds >= fair_seconds)
        self.num_slow += has_failed or is_expired or seconds > self.slow_seconds

    def label(self, *, is_correct: bool, is_judged: bool) -> None:
        """Count the feedback for one image."""
        self.num_labelled += 1
        self.num_wrong += not is_correct
        self.num_judged_labels += is_judged
        self.num_judged_wrong += is_judged and not is_correct


class ModelVersion:
    """A recorded version: whether it takes requests, and the batcher that sends them to the backend."""

    def __init__(
        self,
        record: VersionRecord,
        revision: int,
        default_workers: int,
        max_workers: int,
        batcher: Batcher,
        metrics: VersionMetrics,
    ) -> None:
        self.target = record.archive.target
        self.target_bytes = target_bytes(self.target)
        self.revision = revision  # of the model's state that it was made for
        self.record = record
        self.batcher = batcher
        self.metrics = metrics
        self.contract = Contract.unknown(self.target.model, self.target.version)
        self.quality: DriftMonitor | None = None  # from when the contract is known
        self.counts = RequestCounts()
        self.state: VersionState = "waiting"
        self.reason = "it has not been loaded yet"
        self.error: Exception | None = None  # why it is not ready, or has another number of workers
        self.was_tried = False  # has been ready or failed once
        self.load_started = 0.0  # time.monotonic()
        self._default_workers, self._max_workers = default_workers, max_workers
        self._num_failures = 0
        self._retry_at = 0.0  # time.monotonic(); of the next load
        self._scale_at = 0.0  # time.monotonic(); when the number of workers may be corrected again
        self._unready_since: float | None = None  # time.monotonic(); in the backend without a ready worker
        self._capacity: int | None = None  # the number of workers that the batcher uses
        self._num_arriving = 0
        self._all_arrived = asyncio.Event()

    @property
    def archive(self) -> Archive:
        """Return the recorded archive."""
        return self.record.archive

    @property
    def num_workers(self) -> int:
        """Return the recorded number of workers, else the setting; the record may be from when more were allowed."""
        return min(self.record.num_workers or self._default_workers, self._max_workers)

    @property
    def is_open(self) -> bool:
        """Return whether the archive was opened, so that its contract is known."""
        return bool(self.contract.classes)

    @property
    def is_answering(self) -> bool:
        """Return whether requests may be routed to the version."""
        return self.state == "ready" and not self.batcher.is_cut_off

    @property
    def is_retry_due(self) -> bool:
        """Return whether the pause after a failed load is over."""
        return time.monotonic() >= self._retry_at

    @property
    def may_scale(self) -> bool:
        """Return whether to correct the number of workers: at once after a change, else once a minute."""
        return time.monotonic() >= self._scale_at

    @property
    def seconds_unready(self) -> float:
        """Return how long the backend has had the version without a ready worker."""
        return 0.0 if self._unready_since is None else time.monotonic() - self._unready_since

    @property
    def shown_reason(self) -> Reason:
        """Return why the version is not ready, for those who see its name and state; empty if it is."""
        return Reason(f"{self.target} is {self.state}" if self.reason else "", self.reason)

    @property
    def named_reason(self) -> Reason:
        """Return the same with its name and state; only if it is not ready."""
        return Reason(f"{self.target} is {self.state}", f"{self.target} is {self.state}: {self.reason}")

    @property
    def is_settled(self) -> bool:
        """Return whether the version is ready with the recorded number of workers; raises the error if it failed."""
        if self.error is not None:
            raise self.error
        if self.state in {"unavailable", "failed", "draining"}:
            raise BackendUnavailable(self.reason)
        return self.state == "ready" and self._capacity == self.num_workers

    def require_ready(self) -> None:
        """Raise NotReady, with the reason, unless the version takes requests."""
        if self.state != "ready":
            raise NotReady(self.named_reason)

    def require_open(self) -> None:
        """Raise NotReady unless an admitted request may still be answered."""
        if self.state != "draining":
            self.require_ready()

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Make a drain wait for an admitted request whose body is still arriving."""
        self._num_arriving += 1
        try:
            yield
        finally:
            self._num_arriving -= 1
            if not self._num_arriving:
                self._all_arrived.set()

    def follow(self, record: VersionRecord) -> None:
        """Use another record of the same version."""
        if record.num_workers != self.record.num_workers:
            self._scale_at, self.error = 0.0, None if self.state == "ready" else self.error
        self.record = record

    def open(self, contract: Contract, quality: DriftMonitor) -> None:
        """Use the archive's contract."""
        self.contract, self.quality = contract, quality
        self.batcher.num_classes = len(contract.classes)
        self.batcher.observe_answers(quality.take)

    def observe(self, status: VersionStatus) -> None:
        """Export the backend's status of the version's workers."""
        self.metrics.show_workers(status.worker_states)
        self.metrics.workers_wanted.set(self.num_workers)
        self.metrics.pending.set(status.num_pending)
        self.metrics.show_memory(status.worker_memory_bytes)
        if status.num_ready:
            self._unready_since = None
        elif self._unready_since is None:
            self._unready_since = time.monotonic()

    def use_workers(self, num_workers: int, num_slots: int) -> None:
        """Make the batcher keep this many workers busy."""
        if num_workers != self._capacity:
            self.batcher.set_capacity(num_workers, num_slots)
            self._capacity = num_workers

    def start_scaling(self) -> None:
        """Record that the number of workers is corrected now."""
        self._scale_at = time.monotonic() + LONGEST_RETRY_SECONDS

    def fail_scaling(self, error: Exception) -> None:
        """Record that the backend did not change the number of workers."""
        logger.warning("%s cannot be scaled: %s", self.target, error)
        self.error = error

    def wait(self, reason: str, error: GatewayError | None = None) -> None:
        """Enter `waiting`; `error` says why the backend does not have the version."""
        self.error = error
        self._unready_since = None
        self._change_state("waiting", reason)

    def start_loading(self, reason: str) -> None:
        """Enter `loading`."""
        self.error, self.load_started = None, time.monotonic()
        self._change_state("loading", reason)

    def become_ready(self) -> None:
        """Enter `ready`."""
        self.metrics.load_seconds.set(time.monotonic() - self.load_started)
        self._num_failures, self.error = 0, None
        self._change_state("ready", "")

    def become_unavailable(self, reason: str, error: GatewayError | None = None) -> None:
        """Enter `unavailable`, until the backend has recovered by itself."""
        self.error = error
        self._change_state("unavailable", reason)

    def fail(self, error: Exception, reason: str) -> None:
        """Enter `failed`, and pause before the next attempt."""
        self.error = error
        self._retry_at = time.monotonic() + min(2.0**self._num_failures, LONGEST_RETRY_SECONDS)
        self._num_failures = min(self._num_failures + 1, MOST_DOUBLINGS)
        self._change_state("failed", reason)

    async def drain(self, seconds: float) -> None:
        """Enter `draining`; return when all requests are answered or `seconds` have passed."""
        self._change_state("draining", "it is being unregistered")
        deadline = time.monotonic() + seconds
        while self._num_arriving and (remaining := deadline - time.monotonic()) > 0:
            self._all_arrived.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_arrived.wait(), remaining)
        await self.batcher.drain(max(deadline - time.monotonic(), 0))

    def delay_unload(self, reason: str) -> None:
        """Show why a drained version is still loaded."""
        self.reason = f"it is being unregistered, but not unloaded yet: {reason}"
        logger.warning("%s: %s", self.target, self.reason)

    def _change_state(self, state: VersionState, reason: str) -> None:
        if self.state == "draining" or (state, reason) == (self.state, self.reason):
            return
        level = logging.WARNING if state in {"unavailable", "failed"} else logging.INFO
        logger.log(level, "%s is %s%s", self.target, state, f": {reason}" if reason else "")
        self.was_tried = self.was_tried or state in {"ready", "failed"}
        was_ready, self.state, self.reason = self.state == "ready", state, reason
        self.metrics.ready.set(state == "ready")
        if was_ready and state != "draining":
            self.batcher.fail_waiting(BackendUnavailable(reason))  # no worker will take the queued requests
