"""Copies of requests for versions that are only watched: sent after the answer, compared with it, shed first.

A copy must not cost the callers anything, and it needs a processor that they could use. So one goes out, and then the
next, while the version that answers is idle; under load only as many as take a small share of the time, and what waits
too long for that is dropped.
"""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low

from service.batching.request import Deadlines, InferenceRequest
from service.domain.backend import ItemError, Ranking, Target
from service.errors.gateway import GatewayError
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.serving.reconciler import Reconciler
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import ShadowMetrics

# So many copies may wait for a shadow; one more takes the place of the oldest.
MOST_WAITING = 32
# Idle means that no request has come for so long: who sends one after the other is not idle in between.
IDLE_SECONDS = 0.005
# Of the time, that copies take under load; a guard that compares must see something then, too.
BUSY_SHARE = 0.005
MOST_CREDIT_SECONDS = 0.1  # that are saved up, or one copy's cost where that is more
# A copy costs the median of the last ones, so that one which the machine held up does not keep all others back; with
# fewer than two, nobody knows.
NUM_COSTS, FEWEST_COSTS = 5, 2
NUM_LATENCIES = 1000


@dataclass
class Comparison:
    """What the copies of one version's requests gave at another, since this gateway began to send them."""

    primary: str
    shadow: str
    num_requests: int = 0  # compared
    num_shed: int = 0
    num_failed: int = 0  # the copy was not answered
    num_items: int = 0
    num_same: int = 0  # items of the same class
    largest_difference: float = 0.0  # of a probability among the classes that the caller was told
    latency_differences: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_LATENCIES))  # seconds

    @property
    def agreement(self) -> float | None:
        """Return the share of items of the same class; None while there is none."""
        return self.num_same / self.num_items if self.num_items else None

    @property
    def latency_difference(self) -> float | None:
        """Return by how many seconds a copy took longer than its request, as a median of the last ones."""
        return median(self.latency_differences) if self.latency_differences else None


@dataclass(frozen=True, slots=True)
class MirroredRequest:
    """A request that was answered."""

    primary: ModelVersion
    call: InferenceRequest
    images: Sequence[bytes | ItemError]
    seconds: float  # that it took


class Shadows:
    """Sends the copies and keeps what came of them."""

    def __init__(self, reconciler: Reconciler, registry: Registry, metrics: Metrics, deadline_ms: int) -> None:
        self._reconciler = reconciler
        self._registry = registry
        self._metrics = metrics
        self._deadline_ms = deadline_ms
        self._deadlines = Deadlines()
        self._random = random.Random()  # noqa: S311 - a choice of samples is no secret
        self._streams: dict[tuple[Target, Target], _ShadowStream] = {}

    def chosen(self, primary: ModelVersion) -> Sequence[ModelVersion]:
        """Return the versions that get a copy of a request that `primary` is to answer."""
        target = primary.target
        state = self._registry.models[target.model]
        if state.policy is None or not (state.policy.shadows or state.rollout):
            return ()
        shares = dict(state.policy.shadows)
        if state.rollout is not None and target.version == state.rollout.stable:
            new = state.rollout.spec.version
            shares[new] = max(shares.get(new, 0), state.rollout.spec.shadow_percent)
        found = []
        for version, percent in shares.items():
            if version != target.version and self._random.random() * 100 < percent:
                shadow = self._reconciler.find(Target(target.model, version))
                if shadow is not None and shadow.state == "ready":
                    found.append(shadow)
        return found

    def copy(self, copied: MirroredRequest, shadows: Sequence[ModelVersion]) -> None:
        """Have a copy of an answered request sent to each of `shadows`, when that harms nobody."""
        for shadow in shadows:
            self._stream(copied.primary, shadow).add(copied)

    def between(self, model: str, primary: str, shadow: str) -> Comparison | None:
        """Return what came of the copies that one version got of another's requests."""
        stream = self._streams.get((Target(model, primary), Target(model, shadow)))
        return None if stream is None else stream.comparison

    def report(self, model: str) -> Sequence[Comparison]:
        """Return the comparisons of a model's versions."""
        return [stream.comparison for (primary, _), stream in self._streams.items() if primary.model == model]

    def forget_unloaded(self) -> None:
        """Drop the comparisons and waiting copies of versions that are not served any more."""
        self._streams = {key: stream for key, stream in self._streams.items() if self._is_served(stream)}

    def _stream(self, primary: ModelVersion, shadow: ModelVersion) -> "_ShadowStream":
        key = primary.target, shadow.target
        stream = self._streams.get(key)
        if stream is None or not self._is_served(stream):
            comparison = Comparison(primary.target.version, shadow.target.version)
            metrics = ShadowMetrics(self._metrics, shadow.target, primary.target.version)
            stream = _ShadowStream(primary, shadow, comparison, metrics, self._deadlines, self._deadline_ms)
            self._streams[key] = stream
        return stream

    def _is_served(self, stream: "_ShadowStream") -> bool:
        return all(self._reconciler.find(each.target) is each for each in (stream.primary, stream.shadow))


class CopyBudget:
    """Limits the time that copies take while the version that answers is busy."""

    def __init__(self, now: float) -> None:
        self._costs: deque[float] = deque(maxlen=NUM_COSTS)  # seconds
        self._credit_seconds = MOST_CREDIT_SECONDS
        self._credit_at = now

    def record(self, seconds: float) -> None:
        """Record what a copy cost."""
        self._costs.append(seconds)

    def pay(self, now: float) -> bool:
        """Pay for one copy at its expected cost; return whether there was enough credit."""
        cost = median_low(self._costs) if len(self._costs) >= FEWEST_COSTS else 0.0
        credit = self._credit_seconds + (now - self._credit_at) * BUSY_SHARE
        self._credit_at, self._credit_seconds = now, min(credit, max(MOST_CREDIT_SECONDS, cost))
        if self._credit_seconds < cost:
            return False
        self._credit_seconds -= cost
        return True


class _ShadowStream:
    """The copies of one version's requests for another: one under way at a time."""

    def __init__(
        self,
        primary: ModelVersion,
        shadow: ModelVersion,
        comparison: Comparison,
        metrics: ShadowMetrics,
        deadlines: Deadlines,
        deadline_ms: int,
    ) -> None:
        self.primary = primary
        self.shadow = shadow
        self.comparison = comparison
        self._metrics = metrics
        self._deadlines = deadlines
        self._deadline_ms = deadline_ms
        self._waiting: deque[MirroredRequest] = deque()
        self._is_running = False
        self._timer: asyncio.TimerHandle | None = None
        self._num_calls = 0  # of the version that answers, when the timer was set
        self._budget = CopyBudget(time.monotonic())

    def add(self, copied: MirroredRequest) -> None:
        """Take a copy."""
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self._shed()
        self._waiting.append(copied)
        self._wait()

    def _wait(self) -> None:
        if self._timer is None and self._waiting and not self._is_running:
            self._num_calls = self.primary.batcher.num_calls
            self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._is_idle() or self._budget.pay(time.monotonic()):
            self._send(self._waiting.popleft())
        else:
            self._wait()

    def _is_idle(self) -> bool:
        batcher = self.primary.batcher
        return batcher.is_idle and batcher.num_calls == self._num_calls

    def _send(self, copied: MirroredRequest) -> None:
        images = copied.images
        started = time.monotonic()
        loop = asyncio.get_running_loop()

        def ended() -> None:
            # Not at once: what might go wrong in there must not reach the batcher.
            loop.call_soon(self._compare, copied, call, started)

        num_classes = len(self.shadow.contract.classes)
        call = InferenceRequest(len(images), num_classes, started + self._deadline_ms / 1000, ended, "low")
        self._is_running = True
        payloads = call.sift(images)
        if call.is_done:
            return
        try:
            self.shadow.require_ready()
            self.shadow.batcher.submit(call, payloads)
        except GatewayError as error:
            call.end(error)
        else:
            self._deadlines.watch(call, self._deadline_ms)

    def _compare(self, copied: MirroredRequest, call: InferenceRequest, started: float) -> None:
        self._is_running = False
        seconds = time.monotonic() - started
        self._budget.record(seconds)
        if call.error is not None or any(isinstance(result, GatewayError) for result in call.results):
            self.comparison.num_failed += 1
            self._metrics.requests["failed"].inc()
        else:
            self._note(copied, call, seconds - copied.seconds)
        if self._waiting and self._is_idle():  # still: no request has come since before the copy went out
            self._send(self._waiting.popleft())
        else:
            self._wait()

    def _note(self, copied: MirroredRequest, call: InferenceRequest, later_seconds: float) -> None:
        comparison, metrics = self.comparison, self._metrics
        comparison.num_requests += 1
        comparison.latency_differences.append(later_seconds)
        metrics.requests["compared"].inc()
        metrics.latency.observe(later_seconds)
        for ours, theirs in zip(copied.call.results, call.results, strict=True):
            if isinstance(ours, GatewayError):
                continue
            ranked = _by_name(ours, self.primary, copied.call.top_k), _by_name(theirs, self.shadow)
            is_same, difference = _difference(*ranked)
            comparison.num_items += 1
            comparison.num_same += is_same
            comparison.largest_difference = max(comparison.largest_difference, difference)
            metrics.items["same" if is_same else "different"].inc()
            metrics.difference.observe(difference)

    def _shed(self) -> None:
        self.comparison.num_shed += 1
        self._metrics.requests["shed"].inc()


def _by_name(result: object, model_version: ModelVersion, top_k: int | None = None) -> Mapping[str, float] | None:
    """Return an image's probabilities by class, best first; None where it has an error instead."""
    if not isinstance(result, Ranking):
        return None
    return {model_version.contract.classes[index]: probability for index, probability in result.top_k[:top_k]}


def _difference(ours: Mapping[str, float] | None, theirs: Mapping[str, float] | None) -> tuple[bool, float]:
    """Return whether the class is the same, and the largest difference of a probability that the caller was told."""
    if ours is None or theirs is None:
        return ours is theirs, 0.0 if ours is theirs else 1.0
    difference = max((abs(p - theirs.get(name, 0.0)) for name, p in ours.items()), default=math.inf)
    return next(iter(ours), None) == next(iter(theirs), None), difference
