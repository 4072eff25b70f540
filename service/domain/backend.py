"""The border to the software that runs the models: two protocols and the values that cross it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Priority = Literal["normal", "low"]
ProfileKind = Literal["table", "trace"]


@dataclass(frozen=True, slots=True)
class Target:
    """One version of one model."""

    model: str
    version: str

    def __str__(self) -> str:
        return f"{self.model} {self.version}"


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What a batch asks for, alike of every backend.

    `headers` carry its trace (`traceparent`, `tracestate`) to the server or worker that runs the batch.
    """

    top_k: int  # the largest of its requests
    probabilities: bool = False  # whole probability vectors instead
    headers: Sequence[tuple[str, str]] = ()
    profile: ProfileKind | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    """One image's most probable classes as (class index, probability), best first."""

    top_k: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class ProbabilityVector:
    """One image's probabilities, float32 values in the order of the contract's classes."""

    probabilities: Sequence[float]


@dataclass(frozen=True, slots=True)
class ItemError:
    """Why one image has no result; its neighbours are not affected."""

    code: str
    message: str


ItemResult = Ranking | ProbabilityVector | ItemError


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """One result per item, in order, and the handler's own timings."""

    results: Sequence[ItemResult]
    decode_seconds: float
    compute_seconds: float
    profile: Mapping[str, Any] | None = None  # as the handler wrote it, if it was asked for


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """The state of a loaded version's workers, by the backend."""

    num_workers_wanted: int
    worker_states: Mapping[str, int]  # state -> number of workers in it
    num_pending: int
    worker_memory_bytes: Sequence[int] = ()  # of each worker, if the backend knows

    @property
    def num_ready(self) -> int:
        """Return how many workers can take a batch."""
        return self.worker_states.get("ready", 0)


class Backend(Protocol):
    """Answers batches."""

    async def start(self) -> None:
        """Get ready to connect; nothing need be there yet."""

    def num_slots(self, num_workers: int) -> int:
        """Return how many batches keep `num_workers` workers busy."""

    async def predict(
        self, target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        """Answer every item (an encoded image or a .npy tensor) of one batch.

        The limit counts from when the backend sends the batch to a server or a worker, which it does at once. A batch
        that is sent to a second worker, because the first ended before it began, has its whole limit again.

        Raises:
            BackendTimeout: there was no answer within `timeout_seconds`.
            BackendError: the batch as a whole got no answer.
        """

    async def close(self) -> None:
        """Close all connections."""


class ModelControl(Protocol):
    """Loads and unloads versions. Every method raises BackendError when the backend does not do as asked."""

    async def start(self) -> None:
        """Get ready to connect; nothing need be there yet."""

    async def survey(self) -> Mapping[Target, VersionStatus]:
        """Return every registered version with its status; never waits behind predictions."""

    async def load(self, target: Target, file: str, num_workers: int) -> None:
        """Register the archive `file` of the model store and wait until `num_workers` workers have loaded it."""

    async def unload(self, target: Target) -> None:
        """Unregister a version."""

    async def scale(self, target: Target, num_workers: int) -> None:
        """Set the number of workers of a version and wait until they run."""

    async def contract(self, target: Target) -> Mapping[str, Any]:
        """Return the contract that the loaded archive carries, as a worker read it."""

    async def close(self) -> None:
        """Close all connections."""
