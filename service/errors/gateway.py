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
├── OverloadError                429  repeat it later
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


class OverloadError(GatewayError):
    """More is asked for than can be answered in time."""

    status = 429


@dataclass(eq=False)
class QueueFull(OverloadError):
    """As many images wait as may wait."""

    target: str
    num_waiting: int
    retry_after_seconds: int
    code = "queue_full"
    sentence = "{num_waiting} images already wait for {target}; try again later."


@dataclass(eq=False)
class ShareExceeded(OverloadError):
    """The queue is full, others wait, and the caller has its share of the places."""

    target: str
    retry_after_seconds: int
    code = "share_exceeded"
    sentence = "The queue for {target} is full, and your requests have their share of it; try again later."


@dataclass(eq=False)
class QuotaExceeded(OverloadError):
    """The caller has sent as many images as its quota allows."""

    retry_after_seconds: int
    code = "quota_exceeded"
    sentence = "You have sent as many images as your quota allows; try again in {retry_after_seconds} s."


@dataclass(eq=False)
class DeadlineUnreachable(OverloadError):
    """So much waits already that the deadline would pass before the answer."""

    left_ms: int
    expected_ms: int
    retry_after_seconds: int
    code = "deadline_unreachable"
    sentence = "The answer would take about {expected_ms} ms, the deadline leaves {left_ms} ms; try again later."


@dataclass(eq=False)
class BuffersFull(OverloadError):
    """As many bytes of requests are in memory as may be, of all callers or of this one."""

    limit_bytes: int
    code = "buffers_full"
    sentence = (
        "The bodies of your requests, or of all requests, take too much of the {limit_bytes} bytes for them; "
        "try again later, or send less at a time."
    )
    retry_after_seconds = 1


@dataclass(eq=False)
class InternalError(GatewayError):
    """Our own mistake; the log has it under the request's id."""

    status = 500
    code = "internal_error"
    sentence = "The gateway failed; its log has the cause under this request's id."


@dataclass(eq=False)
class NotReady(GatewayError):
    """The version asked for is not ready to answer."""

    reason: Reason
    status = 503
    code = "not_ready"
    sentence = "Not ready: {reason.whole}."
    public_sentence = "Not ready: {reason.public}"
    retry_after_seconds = 1


@dataclass(eq=False)
class CircuitOpen(GatewayError):
    """The last batches of the version got no answer, so that none is sent for a moment."""

    target: str
    retry_after_seconds: int
    status = 503
    code = "circuit_open"
    sentence = "The model server does not answer for {target} at present; try again later."


@dataclass(eq=False)
class Draining(GatewayError):
    """The gateway is shutting down."""

    status = 503
    code = "draining"
    sentence = "The gateway is shutting down; try again, at another gateway if there is one."
    retry_after_seconds = 1


@dataclass(eq=False)
class ListenersFull(GatewayError):
    """As many listen to the status events as may, of all callers or of this one."""

    most: int
    num_free: int
    num_own: int
    status = 503
    code = "listeners_full"
    sentence = (
        "Of the {most} places for listeners to the status events {num_free} are free and {num_own} yours. You may have "
        "as many as stay free for others; try again later."
    )
    retry_after_seconds = 10


@dataclass(eq=False)
class ConnectionsFull(GatewayError):
    """There are as many connections as there may be, and each has a request in progress."""

    most: int
    status = 503
    code = "connections_full"
    sentence = "There are {most} connections, the most that are taken, and none is idle; try again later."
    retry_after_seconds = 1


class AddressFull(ConnectionsFull):
    """The address has as many connections as it may have, and each has a request in progress."""

    code = "address_connections_full"
    sentence = "Your address has {most} connections, the most that it may have, and none is idle; try again later."


class BackendError(GatewayError):
    """A whole batch got no answer from the backend."""

    status = 503
    retry_after_seconds = 1
    is_outage: ClassVar[bool] = False  # the backend, or one of its workers, is not there
    may_be_one_image: ClassVar[bool] = False  # without one of its images the batch may be answered


@dataclass(eq=False)
class BackendUnavailable(BackendError):
    """The backend cannot be reached, or has no worker for this version."""

    reason: str
    code = "backend_unavailable"
    sentence = "The model server is unavailable: {reason}."
    public_sentence = "The model server is unavailable"
    is_outage = True


@dataclass(eq=False)
class WorkerDied(BackendUnavailable):
    """The worker that had the batch died; it is being replaced."""

    code = "worker_died"
    sentence = "The worker died while it worked on this: {reason}."
    public_sentence = "The worker died while it worked on this"
    may_be_one_image = True


@dataclass(eq=False)
class BackendFailed(BackendError):
    """The backend answered with something other than a result."""

    reason: str
    code = "backend_failed"
    sentence = "The model server failed: {reason}."
    public_sentence = "The model server failed"
    may_be_one_image = True


class AlreadyRegistered(BackendFailed):
    """The backend has the version, since somebody else has loaded it, or begun to."""


@dataclass(eq=False)
class BackendTimeout(BackendError):
    """The backend took longer than is allowed."""

    limit_ms: int
    status = 504
    code = "backend_timeout"
    sentence = "The model server did not answer within {limit_ms} ms."
    is_outage = True


@dataclass(eq=False)
class DeadlineExceeded(GatewayError):
    """The request's deadline passed before its last image was answered."""

    deadline_ms: int
    status = 504
    code = "deadline_exceeded"
    sentence = "No answer within the deadline of {deadline_ms} ms."
