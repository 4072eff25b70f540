"""A batcher of a fake backend, and requests that can be awaited."""

import asyncio

from service.batching.batcher import Batcher
from service.batching.queue import BatchLimits
from service.batching.request import InferenceRequest
from service.domain.backend import Target
from service.domain.caller import GATEWAY, Caller
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import VersionMetrics
from tests.fake_backend import FakeBackend
from tests.service.limits import LIMITS

TARGET = Target("digits", "1.0")
FAR = float("inf")


def make(backend: FakeBackend, bounds: BatchLimits = LIMITS) -> Batcher:
    return Batcher(TARGET, backend, bounds, VersionMetrics(Metrics(), TARGET))


class Waiting(InferenceRequest):
    """A request that can be awaited."""

    def __init__(self, num_items: int, caller: Caller = GATEWAY) -> None:
        self.done = asyncio.Event()
        super().__init__(num_items, 1, FAR, self.done.set, caller=caller)


def ask(num_items: int) -> Waiting:
    return Waiting(num_items)
