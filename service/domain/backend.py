"""The interface to the software that runs the models: two protocols and their values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, Protocol

Priority = Literal["normal", "low"]
ProfileKind = Literal["table", "trace"]
MOST_CLASSES = 0xFFFF  # of a model: signed ids have two bytes for a class, and one value means none


@dataclass(frozen=True, slots=True)
class Target:
    """One version of one model."""

    model: str
    version: str

    def __str__(self) -> str:
        return f"{self.model} {self.version}"


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The options of a batch, the same for every backend."""

    top_k: int  # the largest of its requests
    probabilities: bool = False  # whole probability vectors instead
    headers: Sequence[tuple[str, str]] = ()  # the trace (`traceparent`, `tracestate`), for the server or worker
    profile: ProfileKind | None = None
    is_large: bool = False  # one image that takes far longer than others: no batch should wait behind it


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
    profile: Mapping[str, Any] | None = None  # the handler's, if the options ask for one


@dataclass(frozen=True, slots=True)
class VerifiedArchive:
    """An archive whose bytes were checked; a backend loads this and nothing else."""

    file: BinaryIO  # open for reading, at its start
    name: str  # of the file in TorchServe's store
    close: Callable[[], None]  # removes the copy once it is loaded; blocks on disk


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """The state of a loaded version's workers, by the backend."""

    num_workers_wanted: int
    worker_states: Mapping[str, int]  # state -> number of workers in it
    num_pending: int
    worker_memory_bytes: Sequence[int] = ()  # of each worker, if the backend knows
    file: str = ""  # that it was loaded from, if the backend knows

    @property
    def num_ready(self) -> int:
        """Return the number of workers that can take a batch."""
        return self.worker_states.get("ready", 0)


class Backend(Protocol):
    """Answers batches."""

    async def start(self) -> None:
        """Prepare to connect; the server need not run yet."""

    def num_slots(self, num_workers: int) -> int:
        """Return the number of batches that keep `num_workers` workers busy."""

    async def predict(
        self, target: Target, items: Sequence[bytes], options: BatchOptions, timeout_seconds: float
    ) -> BatchAnswer:
        """Answer every item (an encoded image or a .npy tensor) of one batch.

        The limit counts from the moment when the backend sends the batch. If the worker ends before it has begun, a
        second worker gets the batch with the whole limit again.

        Raises:
            BackendTimeout: there was no answer within `timeout_seconds`.
            BackendError: the batch as a whole got no answer.
        """

    async def close(self) -> None:
        """Close all connections."""


class ModelControl(Protocol):
    """Loads and unloads versions. Every method raises BackendError if the backend fails."""

    async def start(self) -> None:
        """Prepare to connect; the server need not run yet."""

    async def survey(self) -> Mapping[Target, VersionStatus]:
        """Return every registered version with its status, without waiting for predictions."""

    async def load(self, target: Target, archive: VerifiedArchive, num_workers: int) -> None:
        """Register the archive and wait until `num_workers` workers have loaded it; it is not read after that."""

    async def unload(self, target: Target) -> None:
        """Unregister a version."""

    async def scale(self, target: Target, num_workers: int) -> None:
        """Set the number of workers of a version and wait until they run."""

    async def contract(self, target: Target) -> Mapping[str, Any]:
        """Return the contract that the loaded archive carries, as a worker read it."""

    async def close(self) -> None:
        """Close all connections."""
