# Written by `python -m deploy.reference.make` from the gateway's errors: change those.
"""One error for each code of a gateway's problems."""

from torchgate_client.errors import GatewayProblem, Overloaded, RequestRefused, Unavailable


class AddressFull(Unavailable):
    """Your address has as many connections as allowed, and all are busy."""

    codes = ("address_connections_full",)


class AdminListenerOnly(RequestRefused):
    """Only the admin listener answers this path."""

    codes = ("admin_listener_only",)


class ArchiveNotFound(RequestRefused):
    """The model store's manifest lists no such archive for this model."""

    codes = ("archive_not_found",)


class ArchiveRefused(RequestRefused):
    """The archive is not the one in the manifest, cannot be loaded, or failed its self-check."""

    codes = ("archive_refused",)


class BackendFailed(Unavailable):
    """The model server answered with something other than a result."""

    codes = ("backend_failed",)


class BackendTimeout(Unavailable):
    """The model server took longer than TORCHGATE_BACKEND_TIMEOUT_MS."""

    codes = ("backend_timeout",)


class BackendUnavailable(Unavailable):
    """The model server does not answer, or has no worker for this version."""

    codes = ("backend_unavailable",)


class BodyInvalid(RequestRefused):
    """The body does not match its content type, or it holds no image."""

    codes = ("body_invalid",)


class BodyTimeout(RequestRefused):
    """The body did not arrive in time."""

    codes = ("body_timeout",)


class BodyTooLarge(RequestRefused):
    """The declared Content-Length exceeds the limit."""

    codes = ("body_too_large",)


class BuffersFull(Overloaded):
    """Request bodies use all the memory that is set aside for them."""

    codes = ("buffers_full",)


class CircuitOpen(Unavailable):
    """The last batches of this version failed, so the gateway pauses before it sends the next."""

    codes = ("circuit_open",)


class ConnectionsFull(Unavailable):
    """The gateway has as many connections as allowed, and all are busy."""

    codes = ("connections_full",)


class CredentialsBackoff(Overloaded):
    """Too many wrong credentials came from this address."""

    codes = ("credentials_backoff",)


class CredentialsMissing(RequestRefused):
    """The call needs a key, a token or a client certificate, and the request has none."""

    codes = ("credentials_missing",)


class CredentialsWrong(RequestRefused):
    """The key or token is wrong."""

    codes = ("credentials_wrong",)


class DeadlineExceeded(Unavailable):
    """The deadline passed before the last image was answered."""

    codes = ("deadline_exceeded",)


class DeadlineUnreachable(Overloaded):
    """The queued work would outlast the request's deadline."""

    codes = ("deadline_unreachable",)


class Draining(Unavailable):
    """The gateway is shutting down."""

    codes = ("draining",)


class FeedbackExpired(RequestRefused):
    """The answer is too old for feedback."""

    codes = ("feedback_expired",)


class FeedbackForged(RequestRefused):
    """The id does not belong to an answer, or the answer has no such image."""

    codes = ("feedback_forged",)


class FeedbackRepeated(RequestRefused):
    """The image already has its label."""

    codes = ("feedback_repeated",)


class HostNotAllowed(RequestRefused):
    """The gateway does not answer for the `Host` of this request."""

    codes = ("host_not_allowed",)


class InternalError(Unavailable):
    """The gateway made a mistake."""

    codes = ("internal_error",)


class LabelNotFound(RequestRefused):
    """The model has no such label."""

    codes = ("label_not_found",)


class LabelUnknown(RequestRefused):
    """The version that answered has no class of that name."""

    codes = ("label_unknown",)


class ListenersFull(Unavailable):
    """The status events have as many listeners as allowed."""

    codes = ("listeners_full",)


class MediaTypeUnsupported(RequestRefused):
    """The gateway does not read this content type or encoding."""

    codes = ("media_type_unsupported",)


class MethodNotAllowed(RequestRefused):
    """The path exists, but not with this method."""

    codes = ("method_not_allowed",)


class ModelNotFound(RequestRefused):
    """The gateway serves no model of that name."""

    codes = ("model_not_found",)


class NotReady(Unavailable):
    """The requested version is not ready."""

    codes = ("not_ready",)


class NothingEarlier(RequestRefused):
    """No earlier policy is left to return to."""

    codes = ("nothing_earlier",)


class ParameterInvalid(RequestRefused):
    """A query parameter or header has a value that is not allowed."""

    codes = ("parameter_invalid",)


class ProfileActive(RequestRefused):
    """Somebody is already taking a profile of this version."""

    codes = ("profile_active",)


class ProfileUnsupported(RequestRefused):
    """The handler in the version's archive cannot take profiles."""

    codes = ("profile_unsupported",)


class QueueFull(Overloaded):
    """The version's queue holds as many images as it may."""

    codes = ("queue_full",)


class QuotaExceeded(Overloaded):
    """You used up your quota of images per second."""

    codes = ("quota_exceeded",)


class RevisionMissing(RequestRefused):
    """The change does not name the revision that it is based on."""

    codes = ("revision_missing",)


class RevisionStale(RequestRefused):
    """Somebody changed the state since you read it."""

    codes = ("revision_stale",)


class RolloutActive(RequestRefused):
    """A rollout controls the traffic at present."""

    codes = ("rollout_active",)


class RolloutEnded(RequestRefused):
    """The rollout has ended and cannot be changed."""

    codes = ("rollout_ended",)


class RolloutNotFound(RequestRefused):
    """The model has no such rollout, or no longer remembers it."""

    codes = ("rollout_not_found",)


class RolloutRefused(RequestRefused):
    """A rollout cannot start from the present traffic."""

    codes = ("rollout_refused",)


class RouteNotFound(RequestRefused):
    """The gateway has no such path."""

    codes = ("route_not_found",)


class ScopeMissing(RequestRefused):
    """The key is right, but it lacks the scope for this call."""

    codes = ("scope_missing",)


class ShareExceeded(Overloaded):
    """The queue is full, and you already have your share of it."""

    codes = ("share_exceeded",)


class StateUnavailable(Unavailable):
    """The database with traffic, labels and events does not answer. Predictions go on."""

    codes = ("state_unavailable",)


class StreamTooLarge(RequestRefused):
    """A body without a declared length exceeded the limit."""

    codes = ("stream_too_large",)


class TooManyImages(RequestRefused):
    """The request holds more images than are allowed."""

    codes = ("too_many_images",)


class TooManyWorkers(RequestRefused):
    """The version would have more workers than the settings allow."""

    codes = ("too_many_workers",)


class TrafficRefused(RequestRefused):
    """The weights or shares are invalid."""

    codes = ("traffic_invalid",)


class VersionExists(RequestRefused):
    """The version is already registered."""

    codes = ("version_exists",)


class VersionInUse(RequestRefused):
    """The version still has traffic, a label or a share of shadow requests."""

    codes = ("version_in_use",)


class VersionNotFound(RequestRefused):
    """The model has no such version."""

    codes = ("version_not_found",)


class VersionNotReady(RequestRefused):
    """Only a ready version may get traffic or a label."""

    codes = ("version_not_ready",)


class WorkerDied(Unavailable):
    """The worker died while it had the batch. The gateway replaces it."""

    codes = ("worker_died",)


class ImageRejected(RequestRefused):
    """The request's only image cannot be used; `code` says why."""

    codes = (
        "base64_invalid",
        "decode_timeout",
        "image_empty",
        "image_format_refused",
        "image_too_costly",
        "image_too_many_pixels",
        "image_truncated",
        "image_unrecognized",
        "image_unsupported",
        "output_not_finite",
        "request_invalid",
        "tensor_invalid",
    )


CODES: dict[str, type[GatewayProblem]] = {
    code: kind
    for base in (RequestRefused, Overloaded, Unavailable)
    for kind in base.__subclasses__()
    for code in kind.codes
}
