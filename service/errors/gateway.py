"""The error tree. Status, code and sentences are class attributes, data are fields; http/problems.py makes the text.

GatewayError
├── RequestError                 the caller's: repeat it changed; in request.py, those of changes in admin.py
│   ├── BodyInvalid              400
│   ├── ImageRejected            400  the only image of the request cannot be used; the code is the image's own
│   ├── RouteNotFound            404
│   ├── AdminListenerOnly        404
│   ├── ModelNotFound            404
│   ├── VersionNotFound          404
│   ├── MethodNotAllowed         405
│   ├── BodyTimeout              408
│   ├── BodyTooLarge             413  declared
│   ├── StreamTooLarge           413  found out while reading
│   ├── TooManyImages            413
│   ├── MediaTypeUnsupported     415
│   ├── HostNotAllowed           421
│   └── ParameterInvalid         422
├── OverloadError                429  repeat it later; in overload.py
│   ├── QueueFull
│   ├── ShareExceeded
│   ├── QuotaExceeded
│   ├── DeadlineUnreachable
│   └── BuffersFull
├── InternalError                500
├── NotReady                     503  repeat it later
├── CircuitOpen                  503  repeat it later
├── Draining                     503  repeat it later, elsewhere
├── ListenersFull                503  repeat it later
├── ConnectionsFull              503  repeat it later; said before any request
│   └── AddressFull
├── StateUnavailable             503  repeat it later; in admin.py
├── BackendError                      a batch as a whole got no answer; raised by backends alone
│   ├── BackendUnavailable       503
│   │   └── WorkerDied           503
│   ├── BackendFailed            503
│   │   └── AlreadyRegistered
│   └── BackendTimeout           504
└── DeadlineExceeded             504
"""

from dataclasses import dataclass
from typing import ClassVar, Self

from service.errors.reason import Reason


def _listed(value: object) -> object:
    """Return names as people write them."""
    return (", ".join(map(str, value)) or "none") if isinstance(value, list | tuple) else value


class GatewayError(Exception):
    """Anything that the gateway answers other than a prediction."""

    status: ClassVar[int]
    code: str
    sentence: ClassVar[str]
    # For callers who may not read details, where `sentence` has some: without them, and without a full stop.
    public_sentence: ClassVar[str | None] = None
    hint: ClassVar[str] = ""  # what the caller or the operator can do next
    retry_after_seconds: int | None = None

    def __str__(self) -> str:
        """Return the sentence with the error's own data in it."""
        return self._filled(self.sentence)

    def without_traceback(self) -> Self:
        """Forget where it was raised, and why.

        Frames hold requests and their bodies. Who keeps the error would keep those, too, and in a circle: until the
        garbage collector comes, which may be many bodies later.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self

    @property
    def has_details(self) -> bool:
        """Return whether the sentence has something that not everybody may read."""
        return self.public_sentence is not None

    @property
    def texts(self) -> Reason:
        """Return the sentence for readers and the one for others, as parts of a sentence."""
        whole = str(self).rstrip(".")
        return Reason(whole if self.public_sentence is None else self._filled(self.public_sentence), whole)

    def _filled(self, sentence: str) -> str:
        return sentence.format(**{name: _listed(value) for name, value in vars(self).items()})

    def told(self, *, may_read: bool) -> str:
        """Return the sentence for a caller who may read details, or may not."""
        return f"{self.texts.told(may_read=False)}." if self.has_details and not may_read else str(self)


@dataclass(eq=False)
class InternalError(GatewayError):
    """The gateway made a mistake."""

    status = 500
    code = "internal_error"
    sentence = "The gateway failed; its log has the cause under this request's id."
    hint = "Look for this request's id in the gateway's log, and report the cause."


@dataclass(eq=False)
class NotReady(GatewayError):
    """The requested version is not ready."""

    reason: Reason
    status = 503
    code = "not_ready"
    sentence = "Not ready: {reason.whole}."
    public_sentence = "Not ready: {reason.public}"
    hint = "Try again later; /readyz and `torchgate models list` say why it is not ready."
    retry_after_seconds = 1


@dataclass(eq=False)
class CircuitOpen(GatewayError):
    """The last batches of this version failed, so the gateway pauses before it sends the next."""

    target: str
    retry_after_seconds: int
    status = 503
    code = "circuit_open"
    sentence = "The model server does not answer for {target} at present; try again later."
    hint = "Try again after Retry-After; the log says why the batches failed."


@dataclass(eq=False)
class Draining(GatewayError):
    """The gateway is shutting down."""

    status = 503
    code = "draining"
    sentence = "The gateway is shutting down; try again, at another gateway if there is one."
    hint = "Try again, at another gateway if there is one."
    retry_after_seconds = 1


@dataclass(eq=False)
class ListenersFull(GatewayError):
    """The status events have as many listeners as allowed."""

    most: int
    num_free: int
    num_own: int
    status = 503
    code = "listeners_full"
    sentence = (
        "Of the {most} places for listeners to the status events {num_free} are free and {num_own} yours. You may have "
        "as many as stay free for others; try again later."
    )
    hint = "Close a status page, or try again after Retry-After."
    retry_after_seconds = 10


@dataclass(eq=False)
class ConnectionsFull(GatewayError):
    """The gateway has as many connections as allowed, and all are busy."""

    most: int
    status = 503
    code = "connections_full"
    sentence = "There are {most} connections, the most that are taken, and none is idle; try again later."
    hint = "Reuse connections and try again after Retry-After. The limit is TORCHGATE_MAX_CONNECTIONS."
    retry_after_seconds = 1


class AddressFull(ConnectionsFull):
    """Your address has as many connections as allowed, and all are busy."""

    code = "address_connections_full"
    sentence = "Your address has {most} connections, the most that it may have, and none is idle; try again later."
    hint = "Reuse connections and try again after Retry-After. The limit is TORCHGATE_MAX_CONNECTIONS_PER_ADDRESS."


class BackendError(GatewayError):
    """A whole batch got no answer from the backend."""

    status = 503
    retry_after_seconds = 1
    is_outage: ClassVar[bool] = False  # the backend, or one of its workers, is not there
    may_be_one_image: ClassVar[bool] = False  # without one of its images the batch may be answered


@dataclass(eq=False)
class BackendUnavailable(BackendError):
    """The model server does not answer, or has no worker for this version."""

    reason: str
    code = "backend_unavailable"
    sentence = "The model server is unavailable: {reason}."
    public_sentence = "The model server is unavailable"
    hint = "Try again later; check that the model server runs."
    is_outage = True


@dataclass(eq=False)
class WorkerDied(BackendUnavailable):
    """The worker died while it had the batch. The gateway replaces it."""

    code = "worker_died"
    sentence = "The worker died while it worked on this: {reason}."
    public_sentence = "The worker died while it worked on this"
    hint = "Try again; if it happens often, look for the worker's last lines in the log."
    may_be_one_image = True


@dataclass(eq=False)
class BackendFailed(BackendError):
    """The model server answered with something other than a result."""

    reason: str
    code = "backend_failed"
    sentence = "The model server failed: {reason}."
    public_sentence = "The model server failed"
    hint = "Look for this request's id in the gateway's log, which has the cause."
    may_be_one_image = True


class AlreadyRegistered(BackendFailed):
    """The backend has the version, since somebody else has loaded it, or begun to."""


@dataclass(eq=False)
class BackendTimeout(BackendError):
    """The model server took longer than TORCHGATE_BACKEND_TIMEOUT_MS."""

    limit_ms: int
    status = 504
    code = "backend_timeout"
    sentence = "The model server did not answer within {limit_ms} ms."
    hint = "Try again with fewer images, or raise TORCHGATE_BACKEND_TIMEOUT_MS."
    is_outage = True


@dataclass(eq=False)
class DeadlineExceeded(GatewayError):
    """The deadline passed before the last image was answered."""

    deadline_ms: int
    status = 504
    code = "deadline_exceeded"
    sentence = "No answer within the deadline of {deadline_ms} ms."
    hint = "Send a longer X-Deadline-Ms or fewer images at once, or add workers."
