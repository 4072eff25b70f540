# Written by `python -m deploy.reference.make` from the gateway's errors: change those.
"""One error for each code of a gateway's problems."""

from torchgate_client.errors import Overloaded, RequestRefused, Unavailable


class AddressFull(Unavailable, codes=("address_connections_full",)):
    """Your address has as many connections as allowed, and all are busy."""


class AdminListenerOnly(RequestRefused, codes=("admin_listener_only",)):
    """Only the admin listener answers this path."""


class ArchiveNotFound(RequestRefused, codes=("archive_not_found",)):
    """The model store's manifest lists no such archive for this model."""


class ArchiveRefused(RequestRefused, codes=("archive_refused",)):
    """The archive is not the one in the manifest, cannot be loaded, or failed its self-check."""


class BackendFailed(Unavailable, codes=("backend_failed",)):
    """The model server answered with something other than a result."""


class BackendTimeout(Unavailable, codes=("backend_timeout",)):
    """The model server took longer than TORCHGATE_BACKEND_TIMEOUT_MS."""


class BackendUnavailable(Unavailable, codes=("backend_unavailable",)):
    """The model server does not answer, or has no worker for this version."""


class BodyInvalid(RequestRefused, codes=("body_invalid",)):
    """The body does not match its content type, or it holds no image."""


class BodyTimeout(RequestRefused, codes=("body_timeout",)):
    """The body did not arrive in time."""


class BodyTooLarge(RequestRefused, codes=("body_too_large",)):
    """The declared Content-Length exceeds the limit."""


class BuffersFull(Overloaded, codes=("buffers_full",)):
    """Request bodies use all the memory that is set aside for them."""


class CircuitOpen(Unavailable, codes=("circuit_open",)):
    """The last batches of this version failed, so the gateway pauses before it sends the next."""


class ConnectionsFull(Unavailable, codes=("connections_full",)):
    """The gateway has as many connections as allowed, and all are busy."""


class CredentialsBackoff(Overloaded, codes=("credentials_backoff",)):
    """Too many wrong credentials came from this address."""


class CredentialsMissing(RequestRefused, codes=("credentials_missing",)):
    """The call needs a key, a token or a client certificate, and the request has none."""


class CredentialsWrong(RequestRefused, codes=("credentials_wrong",)):
    """The key or token is wrong."""


class DeadlineExceeded(Unavailable, codes=("deadline_exceeded",)):
    """The deadline passed before the last image was answered."""


class DeadlineUnreachable(Overloaded, codes=("deadline_unreachable",)):
    """The queued work would outlast the request's deadline."""


class Draining(Unavailable, codes=("draining",)):
    """The gateway is shutting down."""


class FeedbackExpired(RequestRefused, codes=("feedback_expired",)):
    """The answer is too old for feedback."""


class FeedbackForged(RequestRefused, codes=("feedback_forged",)):
    """The id does not belong to an answer, or the answer has no such image."""


class FeedbackRepeated(RequestRefused, codes=("feedback_repeated",)):
    """The image already has its label."""


class HostNotAllowed(RequestRefused, codes=("host_not_allowed",)):
    """The gateway does not answer for the `Host` of this request."""


class InternalError(Unavailable, codes=("internal_error",)):
    """The gateway made a mistake."""


class LabelNotFound(RequestRefused, codes=("label_not_found",)):
    """The model has no such label."""


class LabelUnknown(RequestRefused, codes=("label_unknown",)):
    """The version that answered has no class of that name."""


class ListenersFull(Unavailable, codes=("listeners_full",)):
    """The status events have as many listeners as allowed."""


class MediaTypeUnsupported(RequestRefused, codes=("media_type_unsupported",)):
    """The gateway does not read this content type or encoding."""


class MethodNotAllowed(RequestRefused, codes=("method_not_allowed",)):
    """The path exists, but not with this method."""


class ModelNotFound(RequestRefused, codes=("model_not_found",)):
    """The gateway serves no model of that name."""


class NotReady(Unavailable, codes=("not_ready",)):
    """The requested version is not ready."""


class NothingEarlier(RequestRefused, codes=("nothing_earlier",)):
    """No earlier policy is left to return to."""


class ParameterInvalid(RequestRefused, codes=("parameter_invalid",)):
    """A query parameter or header has a value that is not allowed."""


class ProfileActive(RequestRefused, codes=("profile_active",)):
    """Somebody is already taking a profile of this version."""


class ProfileUnsupported(RequestRefused, codes=("profile_unsupported",)):
    """The handler in the version's archive cannot take profiles."""


class QueueFull(Overloaded, codes=("queue_full",)):
    """The version's queue holds as many images as it may."""


class QuotaExceeded(Overloaded, codes=("quota_exceeded",)):
    """You used up your quota of images per second."""


class RevisionMissing(RequestRefused, codes=("revision_missing",)):
    """The change does not name the revision that it is based on."""


class RevisionStale(RequestRefused, codes=("revision_stale",)):
    """Somebody changed the state since you read it."""


class RolloutActive(RequestRefused, codes=("rollout_active",)):
    """A rollout controls the traffic at present."""


class RolloutEnded(RequestRefused, codes=("rollout_ended",)):
    """The rollout has ended and cannot be changed."""


class RolloutNotFound(RequestRefused, codes=("rollout_not_found",)):
    """The model has no such rollout, or no longer remembers it."""


class RolloutRefused(RequestRefused, codes=("rollout_refused",)):
    """A rollout cannot start from the present traffic."""


class RouteNotFound(RequestRefused, codes=("route_not_found",)):
    """The gateway has no such path."""


class ScopeMissing(RequestRefused, codes=("scope_missing",)):
    """The key is right, but it lacks the scope for this call."""


class ShareExceeded(Overloaded, codes=("share_exceeded",)):
    """The queue is full, and you already have your share of it."""


class StateUnavailable(Unavailable, codes=("state_unavailable",)):
    """The database with traffic, labels and events does not answer. Predictions go on."""


class StreamTooLarge(RequestRefused, codes=("stream_too_large",)):
    """A body without a declared length exceeded the limit."""


class TooManyImages(RequestRefused, codes=("too_many_images",)):
    """The request holds more images than are allowed."""


class TooManyWorkers(RequestRefused, codes=("too_many_workers",)):
    """The version would have more workers than the settings allow."""


class TrafficRefused(RequestRefused, codes=("traffic_invalid",)):
    """The weights or shares are invalid."""


class VersionExists(RequestRefused, codes=("version_exists",)):
    """The version is already registered."""


class VersionInUse(RequestRefused, codes=("version_in_use",)):
    """The version still has traffic, a label or a share of shadow requests."""


class VersionNotFound(RequestRefused, codes=("version_not_found",)):
    """The model has no such version."""


class VersionNotReady(RequestRefused, codes=("version_not_ready",)):
    """Only a ready version may get traffic or a label."""


class WorkerDied(Unavailable, codes=("worker_died",)):
    """The worker died while it had the batch. The gateway replaces it."""


class ImageRejected(
    RequestRefused,
    codes=(
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
    ),
):
    """The request's only image cannot be used; `code` says why."""
