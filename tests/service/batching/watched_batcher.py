"""The batcher that a state machine plays with, and what holds of every batch that leaves it."""

import asyncio
from collections import Counter
from itertools import combinations
from typing import Any, cast

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from service.batching.batcher import Batcher
from service.batching.request import InferenceRequest
from service.domain.backend import Target
from service.domain.caller import Caller as Client
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import VersionMetrics
from tests.service.alarms import Alarms
from tests.service.batching.desk import LARGE, Caller, Desk
from tests.service.limits import limits

TARGET = Target("digits", "1.0")
LIMITS = limits(max_batch_bytes=24, max_queue_items=12, max_queue_bytes=80, latency_objective_ms=100)


class WatchedBatcher(RuleBasedStateMachine):
    """A batcher, its callers and its backend; each batch that leaves is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.alarms = Alarms()
        self.now = self.alarms.now = 1000.0
        self.desk = Desk(self.look_at)
        self.callers: list[Caller] = []
        self.num_sent = 0
        self.closed = False
        self.served: Counter[Client] = Counter()  # items of normal priority, in the present step
        # Of two clients that both wait all the time, what each was served of its share, meanwhile.
        self.side_by_side: dict[tuple[Client, Client], tuple[float, float]] = {}

    @initialize(
        num_workers=st.integers(1, 4),
        num_slots=st.integers(1, 5),
        shares=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=3),
    )
    def start(self, num_workers: int, num_slots: int, shares: list[int]) -> None:
        self.clients = [Client(f"client-{n}", share) for n, share in enumerate(shares)]
        backend: Any = self.desk
        metrics = VersionMetrics(Metrics(), TARGET)
        self.batcher = Batcher(TARGET, backend, LIMITS, metrics, lambda: self.now, cast(Any, self.alarms.call_later))
        self.run(lambda: self.batcher.set_capacity(num_workers, max(num_workers, num_slots)))
        self.num_workers, self.num_slots = num_workers, max(num_workers, num_slots)

    def run(self, step: Any) -> None:
        """Do one thing inside the event loop, then let the loop come to rest."""
        before = self.waiting_clients()
        self.served.clear()

        async def turn() -> None:
            step()
            for _ in range(8):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())
        self.compare_clients(before & self.waiting_clients())

    def waiting_clients(self) -> set[Client]:
        """Return whose items of normal priority wait, large ones left out."""
        return {request.caller for request in self.waiting(is_large=False) if request.priority == "normal"}

    def waiting(self, *, is_large: bool) -> list[InferenceRequest]:
        """Return the request of each item that waits, and whose caller does."""
        items = [item for item in self.batcher._queue if item.is_wanted(self.now)]
        return [item.request for item in items if item.is_large == is_large]

    def num_large(self) -> int:
        """Return how many large images are in flight."""
        return sum(batch.items[0].startswith(LARGE) for batch in self.desk.batches)

    def most_large(self) -> int:
        return max(self.num_workers // 2, 1)

    def compare_clients(self, waiting: set[Client]) -> None:
        """Those that waited all the time were served by their shares, but for a turn that has begun."""
        for pair in combinations(self.clients, 2):
            if not waiting.issuperset(pair):
                self.side_by_side.pop(pair, None)
                continue
            earlier = self.side_by_side.get(pair, (0.0, 0.0))
            first, second = (then + self.served[each] / each.share for then, each in zip(earlier, pair, strict=True))
            self.side_by_side[pair] = first, second
            assert abs(first - second) <= 2, f"{pair[0]} was served {first}, {pair[1]} {second} turns"

    def look_at(self, items: list[bytes]) -> None:
        """A batch holds only items whose callers wait. Unless it is a retry, they are their clients' most urgent."""
        senders = {payload: caller.request for caller in self.callers for payload in caller.payloads}
        for payload in items:
            assert not senders[payload].is_done, "sent for a caller that has left"
            assert senders[payload].deadline > self.now
        is_large = items[0].startswith(LARGE)
        assert len(items) == 1 or not any(item.startswith(LARGE) for item in items), "a large image goes alone"
        if is_large:
            assert self.num_large() < self.most_large() or items in self.desk.taken, "they have half of the workers"
        if not any(set(items) < set(batch) for batch in self.desk.taken):
            waiting = self.waiting(is_large=is_large)
            for request in (senders[payload] for payload in items):
                assert all(request.order >= each.order for each in waiting if each.caller is request.caller)
                assert is_large or request.priority == "normal" or all(each.priority == "low" for each in waiting)
                self.served[request.caller] += request.priority == "normal" and not is_large
