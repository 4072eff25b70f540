"""The one fake of the seam: a backend whose images say what their answer is, and a control over it.

An image `class:3` is of class 3 with certainty, `unknown:9` of one that no model here has; `reject:CODE` is an item
error; `poison` fails its whole batch.
`hold()` makes batches wait.
"""

import asyncio
import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from service.domain.backend import (
    BatchAnswer,
    BatchOptions,
    ItemError,
    ItemResult,
    ProbabilityVector,
    Ranking,
    Target,
    VerifiedArchive,
    VersionStatus,
)
from service.errors.gateway import AlreadyRegistered, BackendError, BackendFailed, BackendUnavailable

NUM_CLASSES = 4


def make_profile(**changes: Any) -> dict[str, Any]:
    """Return what a handler says of one batch."""
    times = {"aten::conv": (2, 6.0, 8.0), "aten::relu": (1, 2.0, 2.0)}
    names = ("num_calls", "self_cpu_ms", "cpu_ms")
    return {
        "device": "cpu",
        "stages": [{"stage": "decode", "ms": 1.0}, {"stage": "graph", "ms": 9.0}],
        "operators": [
            {"operator": operator, **dict(zip(names, each, strict=True)), "self_device_ms": 0.0}
            for operator, each in times.items()
        ],
        **changes,
    }


def make_trace(*names: str) -> str:
    """Return the trace in a handler's profile."""
    events = ",\n".join(
        json.dumps({"name": name, "ph": "X", "ts": 1.5, "dur": 2, "pid": 1, "tid": 1}) for name in names
    )
    return base64.b64encode(zlib.compress(events.encode())).decode()


class FakeBackend:
    """Answers at once unless held; remembers every batch."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.options: list[BatchOptions] = []
        self.fails_with: Exception | None = None
        self.fails_once_with: Exception | None = None
        self.shifted: set[Target] = set()  # versions that take every class for the next one
        self.slow: dict[Target, float] = {}  # versions whose every batch takes so many seconds
        self.failing: dict[Target, Exception] = {}  # versions whose every batch fails
        self.stuck: set[Target] = set()  # versions whose batches wait for the next release
        self._next_release = asyncio.Event()
        self.wrong_probabilities = False  # of self-checks
        self.profile: Any = make_profile()  # what a handler adds where it is asked to; None for an older one
        self.service_seconds = 0.003  # that every batch is said to have taken
        self.num_in_flight = 0
        self.arrived = asyncio.Condition()
        self._open = asyncio.Event()
        self._open.set()

    def num_slots(self, num_workers: int) -> int:
        return num_workers

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()
        self._next_release.set()
        self._next_release = asyncio.Event()

    async def batches_arrived(self, num_batches: int) -> None:
        """Return once so many batches have come."""
        async with asyncio.timeout(10), self.arrived:
            await self.arrived.wait_for(lambda: len(self.batches) >= num_batches)

    async def predict(
        self, target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        if not options.probabilities:  # a self-check is none of the traffic that a test looks at
            self.batches.append(list(items))
            self.options.append(options)
            async with self.arrived:
                self.arrived.notify_all()
        self.num_in_flight += 1
        try:
            await self._open.wait()
            if target in self.stuck:
                await self._next_release.wait()
        finally:
            self.num_in_flight -= 1
        if self.fails_with is not None:
            raise self.fails_with
        if self.fails_once_with is not None:
            error, self.fails_once_with = self.fails_once_with, None
            raise error
        if target in self.slow and not options.probabilities:
            await asyncio.sleep(self.slow[target])
        if target in self.failing and not options.probabilities:
            raise self.failing[target]
        if b"poison" in items:
            raise BackendFailed("the handler raised")
        seconds = self.service_seconds
        if options.probabilities and self.wrong_probabilities:
            return BatchAnswer([ProbabilityVector([0.25] * NUM_CLASSES)] * len(items), 0.0, 0.0)
        shift = int(target in self.shifted and not options.probabilities)
        results = [_result(item, options, shift) for item in items]
        return BatchAnswer(results, seconds / 3, 2 * seconds / 3, self.profile if options.profile else None)


def _result(item: bytes, options: BatchOptions, shift: int) -> ItemResult:
    kind, _, value = item.partition(b":")
    if kind == b"unknown":
        return Ranking([(int(value), 1.0)])
    if kind == b"reject":
        return ItemError(value.decode(), f"rejected as {value.decode()}")
    index = (int(value) + shift) % NUM_CLASSES
    if options.probabilities:
        return ProbabilityVector([float(i == index) for i in range(NUM_CLASSES)])
    others = [i for i in range(NUM_CLASSES) if i != index]
    return Ranking([(i, float(i == index)) for i in [index, *others]][: options.top_k])


class FakeControl:
    """A model server with TorchServe's timing: a version and its number of workers are listed before its workers run.

    Loads and scales take a few turns of the event loop, and as long as `hold` says; their calls last as long as the
    work. `down_with` makes every call fail.
    """

    def __init__(self, contracts: Mapping[Target, Mapping[str, Any]]) -> None:
        self.contracts: dict[Target, Mapping[str, Any]] = dict(contracts)
        self.registered: dict[Target, int] = {}  # minWorkers
        self.num_ready: int | None = None  # of every version; None is all of them
        self.num_ready_of: dict[Target, int] = {}
        self.down_with: BackendError | None = None
        self.load_fails_with: BackendError | None = None
        self.calls: list[tuple[str, Target]] = []
        self.num_contracts = 0
        self.num_surveys = 0
        self._held: dict[Target, asyncio.Event] = {}
        self._num_running: dict[Target, int] = {}  # while they are started

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def hold(self, target: Target) -> asyncio.Event:
        """Have the next loads and scales of a version last until the event is set."""
        return self._held.setdefault(target, asyncio.Event())

    async def survey(self) -> Mapping[Target, VersionStatus]:
        self._check()
        await asyncio.sleep(0)
        self.num_surveys += 1
        return {target: self._status(target, num_workers) for target, num_workers in self.registered.items()}

    async def load(self, target: Target, archive: VerifiedArchive, num_workers: int) -> None:
        self._check()
        if target in self.registered:
            raise AlreadyRegistered(f"Model version {target.version} is already registered")
        self.calls.append(("load", target))
        await self._start_workers(target, num_workers)
        if self.load_fails_with is not None:
            self.registered.pop(target, None)
            raise self.load_fails_with

    async def unload(self, target: Target) -> None:
        self._check()
        self.calls.append(("unload", target))
        await asyncio.sleep(0)
        if self.registered.pop(target, None) is None:
            raise BackendUnavailable(f"Model not found: {target}")

    async def scale(self, target: Target, num_workers: int) -> None:
        self._check()
        if target not in self.registered:
            raise BackendUnavailable(f"Model not found: {target}")
        self.calls.append(("scale", target))
        await self._start_workers(target, num_workers)

    async def contract(self, target: Target) -> Mapping[str, Any]:
        self._check()
        if target not in self.registered:
            raise BackendUnavailable(f"Model not found: {target}")
        self.num_contracts += 1
        return {**self.contracts[target], "runtime": {"pid": 1}}

    async def _start_workers(self, target: Target, num_workers: int) -> None:
        self._num_running[target] = min(self.registered.get(target, 0), num_workers)
        self.registered[target] = num_workers
        try:
            await asyncio.sleep(0.001)
            if (held := self._held.get(target)) is not None:
                await held.wait()
                self._held.pop(target, None)
        finally:
            self._num_running.pop(target, None)

    def _status(self, target: Target, num_workers: int) -> VersionStatus:
        num_ready = num_workers if self.num_ready is None else self.num_ready
        num_ready = self.num_ready_of.get(target, self._num_running.get(target, num_ready))
        return VersionStatus(num_workers, {"ready": num_ready}, 0)

    def _check(self) -> None:
        if self.down_with is not None:
            raise self.down_with
