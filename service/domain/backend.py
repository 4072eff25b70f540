"""The seam to what runs the models: two protocols and the values that cross them."""

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
    """What a batch asks for: the largest `top_k` in it, whether whole probability vectors are wanted, and a profile.

    `expected_seconds` is how long it should keep a worker; 0 where nobody knows.
    """

    top_k: int
    probabilities: bool = False
    headers: Sequence[tuple[str, str]] = ()  # of its trace, where the way has headers
    profile: ProfileKind | None = None
    expected_seconds: float = 0.0


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
    """One result per item, in order, and what the handler says it spent."""

    results: Sequence[ItemResult]
    decode_seconds: float
    compute_seconds: float
    profile: Mapping[str, Any] | None = None  # as the handler wrote it, if it was asked for


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """What the backend says of a loaded version."""

    num_workers_wanted: int
    worker_states: Mapping[str, int]  # state -> number of workers in it
    num_pending: int
    worker_memory_bytes: Sequence[int] = ()  # of each worker, where the backend tells

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

        Raises:
            BackendError: the batch as a whole got no answer.
        """

    async def close(self) -> None:
        """Let go of connections."""


class ModelControl(Protocol):
    """Loads and unloads versions. Every method raises BackendError when the backend does not do as asked."""

    async def start(self) -> None:
        """Get ready to connect; nothing need be there yet."""

    async def survey(self) -> Mapping[Target, VersionStatus]:
        """Return every registered version and how its workers are; never waits behind predictions."""

    async def load(self, target: Target, file: str, num_workers: int) -> None:
        """Register the archive `file` of the model store and wait until `num_workers` workers have loaded it."""

    async def unload(self, target: Target) -> None:
        """Unregister a version."""

    async def scale(self, target: Target, num_workers: int) -> None:
        """Set the number of workers of a version and wait until they run."""

    async def contract(self, target: Target) -> Mapping[str, Any]:
        """Return the contract that the loaded archive carries, as a worker read it."""

    async def close(self) -> None:
        """Let go of connections."""
