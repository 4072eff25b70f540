"""The bounds of the batchers under test."""

from dataclasses import replace
from typing import Any

from service.batching.queue import BatchLimits

LIMITS = BatchLimits(
    max_batch_size=4,
    max_batch_bytes=100,
    max_queue_items=8,
    max_queue_bytes=100,
    backend_timeout_ms=1000,
    latency_objective_ms=1000,
)


def limits(**changes: Any) -> BatchLimits:
    """Return LIMITS with changes."""
    return replace(LIMITS, **changes)
