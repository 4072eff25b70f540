"""The error tree. Status, code and sentence are class attributes, data are fields; api/problems.py makes the text.

GatewayError
├── RequestError                 the caller's: repeat it changed
│   ├── BodyInvalid              400
│   ├── ImageRejected            400  the only image of the request cannot be used; the code is the image's own
│   ├── RouteNotFound            404
│   ├── ModelNotFound            404
│   ├── VersionNotFound          404
│   ├── MethodNotAllowed         405
│   ├── BodyTimeout              408
│   ├── BodyTooLarge             413  declared
│   ├── StreamTooLarge           413  found out while reading
│   ├── TooManyImages            413
│   ├── MediaTypeUnsupported     415
│   └── ParameterInvalid         422
├── QueueFull                    429  repeat it later
├── InternalError                500
├── NotReady                     503  repeat it later
├── Draining                     503  repeat it later, elsewhere
├── BackendError                      a batch as a whole got no answer; raised by backends alone
│   ├── BackendUnavailable       503
│   │   └── WorkerDied           503  which may be the batch's own doing
│   ├── BackendFailed            503
│   └── BackendTimeout           504
└── DeadlineExceeded             504
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar


class GatewayError(Exception):
    """Anything that the gateway answers other than a prediction."""

    status: ClassVar[int]
    code: str
    sentence: ClassVar[str]
    retry_after_seconds: ClassVar[int | None] = None

    def __str__(self) -> str:
        """Return the sentence with the error's own data in it."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return self.sentence.format(**data)


class RequestError(GatewayError):
    """The caller's mistake."""


@dataclass(eq=False)
class BodyInvalid(RequestError):
    """The body is not what its content type promises, or holds no image."""

    reason: str
    status = 400
    code = "body_invalid"
    sentence = "The request body cannot be read: {reason}."


@dataclass(eq=False)
class ImageRejected(RequestError):
    """The request's only image cannot be used; `code` is the one that the handler gave."""

    code: str
    message: str
    status = 400
    sentence = "{message}"


@dataclass(eq=False)
class RouteNotFound(RequestError):
    """There is nothing at this path."""

    path: str
    status = 404
    code = "route_not_found"
    sentence = "There is nothing at {path!r}; GET /docs lists the routes."


@dataclass(eq=False)
class ModelNotFound(RequestError):
    """No model of that name is served."""

    model: str
    known: Sequence[str]
    status = 404
    code = "model_not_found"
    sentence = "Unknown model {model!r}; served: {known}."


@dataclass(eq=False)
class VersionNotFound(RequestError):
    """The model has no such version."""

    model: str
    version: str
    known: Sequence[str]
    status = 404
    code = "version_not_found"
    sentence = "Model {model!r} has no version {version!r}; served: {known}."


@dataclass(eq=False)
class MethodNotAllowed(RequestError):
    """The path exists, with another method."""

    method: str
    path: str
    allowed: str
    status = 405
    code = "method_not_allowed"
    sentence = "{path!r} does not take {method}; it takes {allowed}."


@dataclass(eq=False)
class BodyTimeout(RequestError):
    """The body did not arrive in time."""

    limit_seconds: float
    status = 408
    code = "body_timeout"
    sentence = "The request body did not arrive within {limit_seconds:g} s."


@dataclass(eq=False)
class BodyTooLarge(RequestError):
    """The declared Content-Length is over the limit."""

    num_bytes: int
    limit_bytes: int
    status = 413
    code = "body_too_large"
    sentence = "The request body has {num_bytes} bytes; at most {limit_bytes} are allowed."


@dataclass(eq=False)
class StreamTooLarge(RequestError):
    """A body of undeclared length passed the limit."""

    limit_bytes: int
    status = 413
    code = "stream_too_large"
    sentence = "The streamed request body passed the limit of {limit_bytes} bytes."


@dataclass(eq=False)
class TooManyImages(RequestError):
    """One request holds more images than are allowed."""

    limit: int
    status = 413
    code = "too_many_images"
    sentence = "The request holds more than {limit} images; split it."


@dataclass(eq=False)
class MediaTypeUnsupported(RequestError):
    """The content type or encoding is not one that is read."""

    media_type: str
    allowed: str
    status = 415
    code = "media_type_unsupported"
    sentence = "{media_type} is not supported; allowed: {allowed}."


@dataclass(eq=False)
class ParameterInvalid(RequestError):
    """A query parameter or header has a value that is not allowed."""

    reason: str
    status = 422
    code = "parameter_invalid"
    sentence = "{reason}."


@dataclass(eq=False)
class QueueFull(GatewayError):
    """As many images wait as may wait."""

    model: str
    version: str
    num_waiting: int
    status = 429
    code = "queue_full"
    sentence = "{num_waiting} images already wait for {model} {version}; try again later."
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

    reason: str
    status = 503
    code = "not_ready"
    sentence = "Not ready: {reason}."
    retry_after_seconds = 1


@dataclass(eq=False)
class Draining(GatewayError):
    """The gateway is shutting down."""

    status = 503
    code = "draining"
    sentence = "The gateway is shutting down."


class BackendError(GatewayError):
    """A whole batch got no answer from the backend."""

    status = 503
    retry_after_seconds = 1


@dataclass(eq=False)
class BackendUnavailable(BackendError):
    """The backend cannot be reached, or has no worker for this version."""

    reason: str
    code = "backend_unavailable"
    sentence = "The model server is unavailable: {reason}."


@dataclass(eq=False)
class WorkerDied(BackendUnavailable):
    """The worker died while it worked on the batch."""

    code = "worker_died"
    sentence = "The worker died while it worked on this: {reason}."


@dataclass(eq=False)
class BackendFailed(BackendError):
    """The backend answered with something other than a result."""

    reason: str
    code = "backend_failed"
    sentence = "The model server failed: {reason}."


@dataclass(eq=False)
class BackendTimeout(BackendError):
    """The backend took longer than is allowed."""

    limit_ms: int
    status = 504
    code = "backend_timeout"
    sentence = "The model server did not answer within {limit_ms} ms."


@dataclass(eq=False)
class DeadlineExceeded(GatewayError):
    """The request's deadline passed before its last image was answered."""

    deadline_ms: int
    status = 504
    code = "deadline_exceeded"
    sentence = "No answer within the deadline of {deadline_ms} ms."
