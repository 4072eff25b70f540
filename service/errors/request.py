"""What is wrong with a request itself; the branch of errors/gateway.py that callers can do something about."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.errors.gateway import GatewayError


class RequestError(GatewayError):
    """The caller's mistake."""


@dataclass(eq=False)
class BodyInvalid(RequestError):
    """The body does not match its content type, or it holds no image."""

    reason: str
    status = 400
    code = "body_invalid"
    sentence = "The request body cannot be read: {reason}."
    hint = "Send one image as the body, a form with parts called `file`, or JSON with `instances`."


@dataclass(eq=False)
class ImageRejected(RequestError):
    """The request's only image cannot be used; `code` is the one that the handler gave."""

    code: str
    message: str
    status = 400
    sentence = "{message}"


@dataclass(eq=False)
class RouteNotFound(RequestError):
    """The gateway has no such path."""

    path: str
    status = 404
    code = "route_not_found"
    sentence = "There is nothing at {path!r}; GET /docs lists the routes."
    hint = "Look the path up in the API's description, at /docs."


@dataclass(eq=False)
class AdminListenerOnly(RequestError):
    """Only the admin listener answers this path."""

    path: str
    status = 404
    code = "admin_listener_only"
    sentence = "{path!r} is not answered here; ask the admin listener (TORCHGATE_ADMIN_HOST, TORCHGATE_ADMIN_PORT)."
    hint = "Send the request to the admin listener's port (TORCHGATE_ADMIN_PORT)."


@dataclass(eq=False)
class ModelNotFound(RequestError):
    """The gateway serves no model of that name."""

    model: str
    known: Sequence[str]
    status = 404
    code = "model_not_found"
    sentence = "Unknown model {model!r}; served: {known}."
    hint = "Use one of the served models; `torchgate models list` shows them."


@dataclass(eq=False)
class VersionNotFound(RequestError):
    """The model has no such version."""

    model: str
    version: str
    known: Sequence[str]
    status = 404
    code = "version_not_found"
    sentence = "Model {model!r} has no version {version!r}; served: {known}."
    hint = "Use one of the model's versions; `torchgate models show MODEL` lists them."


@dataclass(eq=False)
class MethodNotAllowed(RequestError):
    """The path exists, but not with this method."""

    method: str
    path: str
    allowed: str
    status = 405
    code = "method_not_allowed"
    sentence = "{path!r} does not take {method}; it takes {allowed}."
    hint = "Use one of the methods in the header Allow."


@dataclass(eq=False)
class BodyTimeout(RequestError):
    """The body did not arrive in time."""

    limit_seconds: float
    status = 408
    code = "body_timeout"
    sentence = "The request body did not arrive within {limit_seconds:g} s."
    hint = "Send it faster or in smaller requests, or raise TORCHGATE_BODY_TIMEOUT_SECONDS."


@dataclass(eq=False)
class BodyTooLarge(RequestError):
    """The declared Content-Length exceeds the limit."""

    num_bytes: int
    limit_bytes: int
    status = 413
    code = "body_too_large"
    sentence = "The request body has {num_bytes} bytes; at most {limit_bytes} are allowed."
    hint = "Split the request, shrink the images, or raise TORCHGATE_MAX_BODY_BYTES."


@dataclass(eq=False)
class StreamTooLarge(RequestError):
    """A body without a declared length exceeded the limit."""

    limit_bytes: int
    status = 413
    code = "stream_too_large"
    sentence = "The streamed request body passed the limit of {limit_bytes} bytes."
    hint = "Split the request, shrink the images, or raise TORCHGATE_MAX_BODY_BYTES."


@dataclass(eq=False)
class TooManyImages(RequestError):
    """The request holds more images than are allowed."""

    limit: int
    status = 413
    code = "too_many_images"
    sentence = "The request holds more than {limit} images; split it."
    hint = "Split the request, or raise TORCHGATE_MAX_IMAGES."


@dataclass(eq=False)
class MediaTypeUnsupported(RequestError):
    """The gateway does not read this content type or encoding."""

    media_type: str
    allowed: str
    status = 415
    code = "media_type_unsupported"
    sentence = "{media_type} is not supported; allowed: {allowed}."
    hint = "Send one of the allowed types, without Content-Encoding."


@dataclass(eq=False)
class HostNotAllowed(RequestError):
    """The gateway does not answer for the `Host` of this request."""

    host: str
    status = 421
    code = "host_not_allowed"
    sentence = "The gateway does not answer for {host!r}; TORCHGATE_ALLOWED_HOSTS must name it."
    hint = "Add the name to TORCHGATE_ALLOWED_HOSTS, or use a name that is in it."


@dataclass(eq=False)
class ParameterInvalid(RequestError):
    """A query parameter or header has a value that is not allowed."""

    reason: str
    status = 422
    code = "parameter_invalid"
    sentence = "{reason}."
    hint = "Correct the parameter that the message names."
