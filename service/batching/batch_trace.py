"""The spans of a batch: its own, and in each request's trace the spans `queue` and `compute`.

A batch has one parent, the request of its first traced item. The other requests have a `compute` span for the same
time in their own traces, which links to the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from service.batching.request import InferenceRequest, Item
from service.domain.backend import BatchAnswer, Target
from service.telemetry.labels import CloseReason
from service.telemetry.tracing import Attributes, OpenSpan


@dataclass(frozen=True, slots=True)
class RequestSpans:
    """The open spans of one traced request, and when its items in the batch were queued."""

    request: OpenSpan
    compute: OpenSpan
    queued_at: float


class BatchTrace:
    """The open spans of a batch in flight."""

    def __init__(
        self, target: Target, requests: Sequence[RequestSpans], span: OpenSpan, num_items: int, sent_at: float
    ) -> None:
        self.span = span
        self._model: Attributes = {"torchgate.model.name": target.model, "torchgate.model.version": target.version}
        self._requests = requests
        self._num_items = num_items
        self._sent_at = sent_at

    def end(
        self, ended: float, limit: int, reason: CloseReason, answer: BatchAnswer | None, error: str | None = None
    ) -> None:
        """Record the spans with the batch's answer, or with the code of its error."""
        size: Attributes = {**self._model, "torchgate.batch.size": self._num_items}
        links = (self.span,)
        for each in self._requests:
            wait: Attributes = {"torchgate.queue.wait_ms": _ms(self._sent_at - each.queued_at)}
            each.request.child().end("queue", "internal", each.queued_at, self._sent_at, wait)
            each.compute.end("compute", "internal", self._sent_at, ended, size, links, error)
        attributes: Attributes = {
            **size,
            "torchgate.batch.limit": limit,
            "torchgate.batch.close_reason": reason,
            "torchgate.queue.wait_ms": _ms(self._sent_at - min(each.queued_at for each in self._requests)),
        }
        if answer is not None:
            handler = {"decode": answer.decode_seconds, "compute": answer.compute_seconds}
            attributes = {
                **attributes,
                **{f"torchgate.handler.{name}_ms": _ms(seconds) for name, seconds in handler.items()},
            }
        requests = [each.request for each in self._requests]
        self.span.end("batch", "client", self._sent_at, ended, attributes, requests, error)


def begin_trace(target: Target, items: Sequence[Item], now: float) -> BatchTrace | None:
    """Open the spans of a batch that is sent now; None if none of its requests is traced."""
    requests: dict[InferenceRequest, RequestSpans] = {}
    for item in items:
        span = item.request.span
        if span is not None and item.request not in requests:
            requests[item.request] = RequestSpans(span, span.child(), item.queued_at)
    spans = list(requests.values())
    return BatchTrace(target, spans, spans[0].compute.child(), len(items), now) if spans else None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
