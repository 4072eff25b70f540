"""What is wrong with a request itself; the branch of errors/gateway.py that callers can do something about."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.errors.gateway import GatewayError


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
class AdminListenerOnly(RequestError):
    """The path is answered at the admin listener alone."""

    path: str
    status = 404
    code = "admin_listener_only"
    sentence = "{path!r} is not answered here; ask the admin listener (TORCHGATE_ADMIN_HOST, TORCHGATE_ADMIN_PORT)."


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
class HostNotAllowed(RequestError):
    """The request's `Host` is none that the gateway answers for."""

    host: str
    status = 421
    code = "host_not_allowed"
    sentence = "The gateway does not answer for {host!r}; TORCHGATE_ALLOWED_HOSTS must name it."


@dataclass(eq=False)
class ParameterInvalid(RequestError):
    """A query parameter or header has a value that is not allowed."""

    reason: str
    status = 422
    code = "parameter_invalid"
    sentence = "{reason}."
