"""The spans of a batch: its own, which links to its requests, and in each request's trace how long it waited for what.

A batch has one parent, the request that its first recorded image is of. The other requests have a `compute` span for
the same time in their own traces, which links to the batch.
"""

from collections.abc import Sequence

from service.batching.queue import InferenceRequest, Item
from service.domain.backend import BatchAnswer, Target
from service.telemetry.labels import CloseReason
from service.telemetry.tracing import Attributes, OpenSpan


class BatchTrace:
    """What is recorded of a batch that is with the backend."""

    def __init__(
        self, target: Target, waited: Sequence[tuple[OpenSpan, float]], num_items: int, sent_at: float
    ) -> None:
        self._model: Attributes = {"torchgate.model.name": target.model, "torchgate.model.version": target.version}
        self._waited = waited  # of each request that is recorded its span and when its images were queued
        self._num_items = num_items
        self._sent_at = sent_at
        self._computes = [request.child() for request, _ in waited]
        self.span = self._computes[0].child()

    def end(
        self, ended: float, limit: int, reason: CloseReason, answer: BatchAnswer | None, error: str | None = None
    ) -> None:
        """Record it: with its answer, or with the code of the error that came instead."""
        size: Attributes = {**self._model, "torchgate.batch.size": self._num_items}
        links = (self.span,)
        for (request, queued_at), compute in zip(self._waited, self._computes, strict=True):
            wait: Attributes = {"torchgate.queue.wait_ms": _ms(self._sent_at - queued_at)}
            request.child().end("queue", "internal", queued_at, self._sent_at, wait)
            compute.end("compute", "internal", self._sent_at, ended, size, links, error)
        longest = self._sent_at - min(queued_at for _, queued_at in self._waited)
        told: Attributes = {
            **size,
            "torchgate.batch.limit": limit,
            "torchgate.batch.close_reason": reason,
            "torchgate.queue.wait_ms": _ms(longest),
        }
        if answer is not None:
            spent = {"decode": answer.decode_seconds, "compute": answer.compute_seconds}
            told = {**told, **{f"torchgate.handler.{name}_ms": _ms(seconds) for name, seconds in spent.items()}}
        requests = [request for request, _ in self._waited]
        self.span.end("batch", "client", self._sent_at, ended, told, requests, error)


def send(target: Target, items: Sequence[Item], now: float) -> BatchTrace | None:
    """Note that these images go to the backend together; return what is recorded of that, None for nothing."""
    waited: dict[InferenceRequest, tuple[OpenSpan, float]] = {}
    for item in items:
        call = item.call
        call.sent_at = now
        if call.span is not None and call not in waited:
            waited[call] = call.span, item.queued_at
    return BatchTrace(target, list(waited.values()), len(items), now) if waited else None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
