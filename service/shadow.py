"""Copies of requests for versions that are only watched: sent after the answer, compared with it, shed first.

A copy costs the caller nothing: it begins when the answer has left, and where anything waits for the version that
answers, or too much for the one that is watched, it is dropped.
"""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from service.backend import ItemError, Ranking, Target
from service.deadlines import Deadlines
from service.deployment import Deployment
from service.errors import GatewayError
from service.fleet import Fleet
from service.metrics import Metrics
from service.queue import Call
from service.registry import Registry
from service.version_metrics import ShadowMetrics

# So many images may wait for a watched version; a copy that finds more is dropped.
MOST_WAITING = 32
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


class Shadows:
    """Sends the copies and keeps what came of them."""

    def __init__(self, fleet: Fleet, registry: Registry, metrics: Metrics, deadline_ms: int) -> None:
        self._fleet = fleet
        self._registry = registry
        self._metrics = metrics
        self._deadline_ms = deadline_ms
        self._deadlines = Deadlines()
        self._random = random.Random()  # noqa: S311 - a choice of samples is no secret
        self._comparisons: dict[tuple[Target, Target], tuple[Comparison, ShadowMetrics]] = {}

    def chosen(self, primary: Deployment) -> Sequence[Deployment]:
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
                shadow = self._fleet.find(Target(target.model, version))
                if shadow is not None and shadow.state == "ready":
                    found.append(shadow)
        return found

    def copy(
        self,
        primary: Deployment,
        answered: Call,
        images: Sequence[bytes | ItemError],
        seconds: float,
        shadows: Sequence[Deployment],
    ) -> None:
        """Send a copy of a request that was answered within `seconds` to each of `shadows`."""
        for shadow in shadows:
            comparison, metrics = self._between(primary, shadow)
            num_waiting = shadow.batcher.num_waiting
            if primary.batcher.num_waiting or num_waiting + len(images) > MOST_WAITING or shadow.state != "ready":
                comparison.num_shed += 1
                metrics.requests["shed"].inc()
                continue
            self._send(primary, answered, images, seconds, shadow)

    def between(self, model: str, primary: str, shadow: str) -> Comparison | None:
        """Return what came of the copies that one version got of another's requests."""
        found = self._comparisons.get((Target(model, primary), Target(model, shadow)))
        return None if found is None else found[0]

    def report(self, model: str) -> Sequence[Comparison]:
        """Return the comparisons of a model's versions."""
        return [comparison for (primary, _), (comparison, _) in self._comparisons.items() if primary.model == model]

    def _send(
        self,
        primary: Deployment,
        answered: Call,
        images: Sequence[bytes | ItemError],
        seconds: float,
        shadow: Deployment,
    ) -> None:
        payloads = [image if isinstance(image, bytes) else None for image in images]
        started = time.monotonic()
        loop = asyncio.get_running_loop()

        def ended() -> None:
            # Not at once: what might go wrong in there must not reach the batcher.
            loop.call_soon(self._compare, primary, answered, seconds, shadow, call, started)

        num_classes = len(shadow.contract.classes)
        call = Call(len(images), num_classes, started + self._deadline_ms / 1000, ended, "low")
        for index, image in enumerate(images):
            if isinstance(image, ItemError):
                call.answer(index, image)
        if call.is_done:
            return
        try:
            shadow.batcher.submit(call, payloads)
        except GatewayError as error:
            call.end(error)
        else:
            self._deadlines.watch(call, self._deadline_ms)

    def _compare(
        self, primary: Deployment, answered: Call, seconds: float, shadow: Deployment, call: Call, started: float
    ) -> None:
        comparison, metrics = self._between(primary, shadow)
        if call.error is not None or any(isinstance(result, GatewayError) for result in call.results):
            comparison.num_failed += 1
            metrics.requests["failed"].inc()
            return
        later = time.monotonic() - started - seconds
        comparison.num_requests += 1
        comparison.latency_differences.append(later)
        metrics.requests["compared"].inc()
        metrics.latency.observe(later)
        for ours, theirs in zip(answered.results, call.results, strict=True):
            if isinstance(ours, GatewayError):
                continue
            is_same, difference = _difference(_by_name(ours, primary, answered.top_k), _by_name(theirs, shadow))
            comparison.num_items += 1
            comparison.num_same += is_same
            comparison.largest_difference = max(comparison.largest_difference, difference)
            metrics.items["same" if is_same else "different"].inc()
            metrics.difference.observe(difference)

    def _between(self, primary: Deployment, shadow: Deployment) -> tuple[Comparison, ShadowMetrics]:
        key = primary.target, shadow.target
        found = self._comparisons.get(key)
        if found is None:
            comparison = Comparison(primary.target.version, shadow.target.version)
            found = self._comparisons[key] = (
                comparison,
                ShadowMetrics(self._metrics, shadow.target, primary.target.version),
            )
        return found


def _by_name(result: object, deployment: Deployment, top_k: int | None = None) -> Mapping[str, float] | None:
    """Return an image's probabilities by class, best first; None where it has an error instead."""
    if not isinstance(result, Ranking):
        return None
    return {deployment.contract.classes[index]: probability for index, probability in result.top_k[:top_k]}


def _difference(ours: Mapping[str, float] | None, theirs: Mapping[str, float] | None) -> tuple[bool, float]:
    """Return whether the class is the same, and the largest difference of a probability that the caller was told."""
    if ours is None or theirs is None:
        return ours is theirs, 0.0 if ours is theirs else 1.0
    difference = max((abs(p - theirs.get(name, 0.0)) for name, p in ours.items()), default=math.inf)
    return next(iter(ours), None) == next(iter(theirs), None), difference
