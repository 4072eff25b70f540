"""Shadow traffic: copies of answered requests go to other versions, whose answers are compared and then dropped.

A copy uses processor time that callers could need. So copies go out one at a time, while the version that answers is
idle. Under load they may take a small share of the time. A full queue drops its oldest copy.
"""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low

from service.batching.request import InferenceRequest
from service.domain.backend import ItemError, Ranking, Target
from service.errors.gateway import GatewayError
from service.persistence.registry import Registry
from service.serving.model_version import ModelVersion
from service.serving.reconciler import Reconciler
from service.telemetry.metrics import Metrics
from service.telemetry.version_metrics import ShadowMetrics

MOST_WAITING = 32  # copies in a shadow's queue; another one replaces the oldest
# A version is idle after this time without a request, so not between two requests of one caller.
IDLE_SECONDS = 0.005
# Share of the time that copies may take under load; a rollout's agreement guard needs some then, too.
BUSY_SHARE = 0.005
MOST_CREDIT_SECONDS = 0.1  # of copies' time that is saved up, or one copy's cost where that is more
# The expected cost is the median of the last ones, so that a single slow copy does not block the next. With fewer than
# two the cost is unknown, and the copy is free.
NUM_COSTS, FEWEST_COSTS = 5, 2
NUM_LATENCIES = 1000


@dataclass
class Comparison:
    """Compares one version's answers with a shadow's, since this gateway first sent it a copy."""

    primary: str
    shadow: str
    num_requests: int = 0  # compared
    num_shed: int = 0
    num_failed: int = 0  # copies without an answer
    num_items: int = 0
    num_same: int = 0  # items that both put into the same class
    largest_difference: float = 0.0  # of a probability that the caller was given
    latency_differences: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_LATENCIES))  # seconds

    @property
    def agreement(self) -> float | None:
        """Return the share of items that both put into the same class; None without items."""
        return self.num_same / self.num_items if self.num_items else None

    @property
    def latency_difference(self) -> float | None:
        """Return the median of the seconds that a copy took longer than its request."""
        return median(self.latency_differences) if self.latency_differences else None


@dataclass(frozen=True, slots=True)
class MirroredRequest:
    """A request that was answered."""

    primary: ModelVersion
    call: InferenceRequest
    images: Sequence[bytes | ItemError]
    seconds: float  # that the answer took


class Shadows:
    """Sends the copies and keeps the comparisons."""

    def __init__(self, reconciler: Reconciler, registry: Registry, metrics: Metrics, deadline_ms: int) -> None:
        self._reconciler = reconciler
        self._registry = registry
        self._metrics = metrics
        self._deadline_ms = deadline_ms
        self._random = random.Random()  # noqa: S311 - a choice of samples is no secret
        self._streams: dict[tuple[Target, Target], _ShadowStream] = {}

    def chosen(self, primary: ModelVersion) -> Sequence[ModelVersion]:
        """Choose the versions that get a copy of a request to `primary`."""
        target = primary.target
        state = self._registry.models[target.model]
        if state.policy is None or not (state.policy.shadows or state.rollouts):
            return ()
        shares = dict(state.policy.shadows)
        if state.rollout is not None and target.version == state.rollout.stable:
            new = state.rollout.spec.version
            shares[new] = max(shares.get(new, 0), state.rollout.spec.shadow_percent)
        drawn = [each for each, percent in shares.items() if self._random.random() * 100 < percent]
        found = [self._reconciler.find(Target(target.model, each)) for each in drawn if each != target.version]
        return [shadow for shadow in found if shadow is not None and shadow.state == "ready"]

    def copy(self, copied: MirroredRequest, shadows: Sequence[ModelVersion]) -> None:
        """Queue a copy of an answered request for each of `shadows`."""
        for shadow in shadows:
            self._stream(copied.primary, shadow).add(copied)

    def between(self, model: str, primary: str, shadow: str) -> Comparison | None:
        """Return the comparison of two versions, None if there was no copy."""
        stream = self._streams.get((Target(model, primary), Target(model, shadow)))
        return None if stream is None else stream.comparison

    def report(self, model: str) -> Sequence[Comparison]:
        """Return the comparisons of a model's versions."""
        return [stream.comparison for (primary, _), stream in self._streams.items() if primary.model == model]

    def forget_unloaded(self) -> None:
        """Drop the comparisons and queued copies of versions that are no longer served."""
        self._streams = {key: stream for key, stream in self._streams.items() if self._is_served(stream)}

    def _stream(self, primary: ModelVersion, shadow: ModelVersion) -> "_ShadowStream":
        key = primary.target, shadow.target
        stream = self._streams.get(key)
        if stream is None or not self._is_served(stream):
            comparison = Comparison(primary.target.version, shadow.target.version)
            metrics = ShadowMetrics(self._metrics, shadow.target, primary.target.version)
            stream = _ShadowStream(primary, shadow, comparison, metrics, self._deadline_ms)
            self._streams[key] = stream
        return stream

    def _is_served(self, stream: "_ShadowStream") -> bool:
        return all(self._reconciler.find(each.target) is each for each in (stream.primary, stream.shadow))


class CopyBudget:
    """Limits the time that copies take while the primary is busy."""

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


@dataclass(eq=False)
class _ShadowStream:
    """The copies of one version's requests for one shadow, sent one at a time."""

    primary: ModelVersion
    shadow: ModelVersion
    comparison: Comparison
    metrics: ShadowMetrics
    deadline_ms: int
    _waiting: deque[MirroredRequest] = field(default_factory=deque)
    _is_running: bool = False
    _timer: asyncio.TimerHandle | None = None
    _num_calls: int = 0  # of the primary, when the timer was set
    _budget: CopyBudget = field(default_factory=lambda: CopyBudget(time.monotonic()))

    def add(self, copied: MirroredRequest) -> None:
        """Queue a copy; a full queue drops its oldest."""
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self.comparison.num_shed += 1
            self.metrics.requests["shed"].inc()
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
        started = time.monotonic()
        loop = asyncio.get_running_loop()

        def ended() -> None:
            # Later, so that no error of the comparison reaches the batcher.
            loop.call_soon(self._compare, copied, call, started)

        num_classes = len(self.shadow.contract.classes)
        call = InferenceRequest(len(copied.images), num_classes, started + self.deadline_ms / 1000, ended, "low")
        self._is_running = True
        payloads = call.sift(copied.images)
        if call.is_done:
            return
        try:
            self.shadow.require_ready()
            self.shadow.batcher.submit(call, payloads)
        except GatewayError as error:
            call.end(error)
        else:
            call.expire(self.deadline_ms)

    def _compare(self, copied: MirroredRequest, call: InferenceRequest, started: float) -> None:
        self._is_running = False
        seconds = time.monotonic() - started
        self._budget.record(seconds)
        if call.error is not None or any(isinstance(result, GatewayError) for result in call.results):
            self.comparison.num_failed += 1
            self.metrics.requests["failed"].inc()
        else:
            self._note(copied, call, seconds - copied.seconds)
        if self._waiting and self._is_idle():  # no request has come since before the copy went out
            self._send(self._waiting.popleft())
        else:
            self._wait()

    def _note(self, copied: MirroredRequest, call: InferenceRequest, later_seconds: float) -> None:
        comparison, metrics = self.comparison, self.metrics
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


def _by_name(result: object, model_version: ModelVersion, top_k: int | None = None) -> Mapping[str, float] | None:
    """Return an image's probabilities by class, best first; None where it has an error instead."""
    if not isinstance(result, Ranking):
        return None
    return {model_version.contract.classes[index]: probability for index, probability in result.top_k[:top_k]}


def _difference(ours: Mapping[str, float] | None, theirs: Mapping[str, float] | None) -> tuple[bool, float]:
    """Return whether the class is the same, and the largest difference of a probability that the caller was given."""
    if ours is None or theirs is None:
        return ours is theirs, 0.0 if ours is theirs else 1.0
    difference = max((abs(p - theirs.get(name, 0.0)) for name, p in ours.items()), default=math.inf)
    return next(iter(ours), None) == next(iter(theirs), None), difference
