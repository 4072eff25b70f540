"""Callers of a batcher, and a backend whose batches lie on a desk until the test answers them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from service.batching.request import InferenceRequest
from service.domain.backend import BatchAnswer, BatchOptions, ItemError, Ranking, Target
from service.errors.gateway import GatewayError

POISON = b"!"
LARGE = b"GI"  # a GIF whose size cannot be read: it counts as large


@dataclass(eq=False)
class Caller:
    """A request, its payloads, and the error that refused it."""

    request: InferenceRequest
    payloads: list[bytes]
    refused_with: GatewayError | None = None


@dataclass(eq=False)
class PendingBatch:
    """A batch that the backend has not answered."""

    items: list[bytes]
    answer: "asyncio.Future[BatchAnswer]"


@dataclass
class Desk:
    """A backend whose batches lie on a desk until the test answers them."""

    look: Callable[[list[bytes]], None]  # is shown every batch as it comes
    batches: list[PendingBatch] = field(default_factory=list)
    taken: list[list[bytes]] = field(default_factory=list)

    async def predict(
        self, target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        batch = PendingBatch(list(items), asyncio.get_running_loop().create_future())
        self.look(batch.items)
        self.batches.append(batch)
        self.taken.append(batch.items)
        try:
            return await batch.answer
        finally:
            self.batches.remove(batch)


def result_of(payload: bytes) -> Ranking | ItemError:
    """The one right answer to a payload."""
    return Ranking([(int(payload.removeprefix(LARGE).strip(POISON + b"x")), 1.0)])
