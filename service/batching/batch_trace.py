"""The spans of a batch: its own, and in each request's trace the spans `queue` and `compute`.

A batch has one parent, the request of its first traced item. The other requests have a `compute` span for the same
time in their own traces, which links to the batch.
"""

from collections.abc import Sequence

from service.domain.backend import BatchAnswer, Target
from service.telemetry.metric_labels import CloseReason
from service.telemetry.tracing import Attributes, OpenSpan

Wait = tuple[OpenSpan, float]  # a traced request's span, and when its first item in the batch was queued


class BatchTrace:
    """The open spans of a batch in flight."""

    def __init__(self, target: Target, waits: Sequence[Wait], num_items: int, sent_at: float) -> None:
        self._model: Attributes = {"torchgate.model.name": target.model, "torchgate.model.version": target.version}
        self._waits = waits
        self._num_items = num_items
        self._sent_at = sent_at
        self._computes = [request.child() for request, _ in waits]
        self.span = self._computes[0].child()

    def end(
        self, ended: float, limit: int, reason: CloseReason, answer: BatchAnswer | None, error: str | None = None
    ) -> None:
        """Record the spans with the batch's answer, or with the code of its error."""
        size: Attributes = {**self._model, "torchgate.batch.size": self._num_items}
        for (request, queued_at), compute in zip(self._waits, self._computes, strict=True):
            wait: Attributes = {"torchgate.queue.wait_ms": _ms(self._sent_at - queued_at)}
            request.child().end("queue", "internal", queued_at, self._sent_at, wait)
            compute.end("compute", "internal", self._sent_at, ended, size, (self.span,), error)
        longest = self._sent_at - min(queued_at for _, queued_at in self._waits)
        attributes = {
            **size,
            "torchgate.batch.limit": limit,
            "torchgate.batch.close_reason": reason,
            "torchgate.queue.wait_ms": _ms(longest),
        }
        if answer is not None:
            attributes["torchgate.handler.decode_ms"] = _ms(answer.decode_seconds)
            attributes["torchgate.handler.compute_ms"] = _ms(answer.compute_seconds)
        requests = [request for request, _ in self._waits]
        self.span.end("batch", "client", self._sent_at, ended, attributes, requests, error)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
