"""What is wrong with an operator's change; the branch of errors/gateway.py for the routes that change things."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.errors.gateway import GatewayError
from service.errors.request import RequestError


@dataclass(eq=False)
class CredentialsMissing(RequestError):
    """The call needs a key or token, and none was given."""

    needed: str
    status = 401
    code = "credentials_missing"
    sentence = "This call needs {needed}."


@dataclass(eq=False)
class CredentialsWrong(RequestError):
    """The key or token that was given is not the right one."""

    needed: str
    status = 403
    code = "credentials_wrong"
    sentence = "That is not the right one: this call needs {needed}."


@dataclass(eq=False)
class ChangesClosed(RequestError):
    """Nobody may change anything: no admin token is configured, and others than this machine could be asking."""

    reason: str
    status = 403
    code = "changes_closed"
    sentence = "Changes are refused: {reason}. Set TORCHGATE_ADMIN_TOKEN and send it as `Authorization: Bearer ...`."


@dataclass(eq=False)
class LabelNotFound(RequestError):
    """The model has no such label."""

    model: str
    label: str
    known: Sequence[str]
    status = 404
    code = "label_not_found"
    sentence = "Model {model!r} has no label {label!r}; it has: {known}."


@dataclass(eq=False)
class ArchiveNotFound(RequestError):
    """The model store's manifest has no such archive."""

    file: str
    known: Sequence[str]
    status = 404
    code = "archive_not_found"
    sentence = "The model store's manifest has no archive {file!r} for this model; it has: {known}."


@dataclass(eq=False)
class RolloutNotFound(RequestError):
    """The model has no such rollout, or has forgotten it."""

    model: str
    rollout: int
    status = 404
    code = "rollout_not_found"
    sentence = "Model {model!r} has no rollout {rollout}."


@dataclass(eq=False)
class RolloutActive(RequestError):
    """A rollout decides about the traffic at present."""

    model: str
    rollout: int
    status = 409
    code = "rollout_active"
    sentence = "The rollout {rollout} of {model} decides about the traffic; promote or abort it first."


@dataclass(eq=False)
class RolloutEnded(RequestError):
    """The rollout has ended, so that nothing can be done to it any more."""

    model: str
    rollout: int
    state: str
    status = 409
    code = "rollout_ended"
    sentence = "The rollout {rollout} of {model} is {state}."


@dataclass(eq=False)
class RolloutRefused(RequestError):
    """A rollout cannot begin from the traffic as it is."""

    reason: str
    status = 409
    code = "rollout_refused"
    sentence = "{reason}."


@dataclass(eq=False)
class VersionExists(RequestError):
    """The version is registered already."""

    model: str
    version: str
    status = 409
    code = "version_exists"
    sentence = "{model} {version} is registered already."


@dataclass(eq=False)
class VersionInUse(RequestError):
    """The version still has traffic, a label or a shadow's share."""

    model: str
    version: str
    users: str
    status = 409
    code = "version_in_use"
    sentence = "{model} {version} still has {users}; move that first."


@dataclass(eq=False)
class VersionNotReady(RequestError):
    """Only a version that is loaded and answers may get traffic or a label."""

    model: str
    version: str
    state: str
    status = 409
    code = "version_not_ready"
    sentence = "{model} {version} is {state}; only a version that is ready may get traffic or a label."


@dataclass(eq=False)
class ProfileActive(RequestError):
    """A profile of the version is being taken already."""

    target: str
    status = 409
    code = "profile_active"
    sentence = "A profile of {target} is being taken already; ask again when it is done."


@dataclass(eq=False)
class ProfileUnsupported(RequestError):
    """The version's archive has a handler that takes no profiles."""

    target: str
    status = 409
    code = "profile_unsupported"
    sentence = "The handler in the archive of {target} takes no profiles; archive its run again."


@dataclass(eq=False)
class NothingEarlier(RequestError):
    """There is no earlier policy to go back to."""

    model: str
    status = 409
    code = "nothing_earlier"
    sentence = "No other version of {model} that is ready has had all the traffic before."


@dataclass(eq=False)
class RevisionStale(RequestError):
    """The state was changed since it was read."""

    model: str
    given: int
    found: int
    status = 412
    code = "revision_stale"
    sentence = "The change is based on revision {given} of {model}, which has revision {found} by now; read it again."


@dataclass(eq=False)
class RevisionMissing(RequestError):
    """The change does not say which revision it is based on."""

    model: str
    found: int
    status = 428
    code = "revision_missing"
    sentence = 'Send `If-Match: "<revision>"`, the ETag of what the change is based on; {model} has revision {found}.'


@dataclass(eq=False)
class TrafficRefused(RequestError):
    """Weights or shares are not what they must be."""

    reason: str
    status = 422
    code = "traffic_invalid"
    sentence = "{reason}."


@dataclass(eq=False)
class ArchiveRefused(RequestError):
    """The archive is not the one that the manifest promises, cannot be loaded, or fails its self-check."""

    reason: str
    status = 422
    code = "archive_refused"
    sentence = "The archive is refused: {reason}."


@dataclass(eq=False)
class FeedbackRepeated(RequestError):
    """The image has been given its label already."""

    index: int
    status = 409
    code = "feedback_repeated"
    sentence = "The image at index {index} of that answer has its label already."


@dataclass(eq=False)
class FeedbackExpired(RequestError):
    """The answer is too old to take feedback."""

    limit_seconds: int
    status = 410
    code = "feedback_expired"
    sentence = "That answer is older than {limit_seconds} s; feedback is not taken any more."


@dataclass(eq=False)
class FeedbackForged(RequestError):
    """The id is not one of an answer, or the answer has no such image."""

    reason: str
    status = 422
    code = "feedback_forged"
    sentence = "That is no feedback on an answer: {reason}."


@dataclass(eq=False)
class LabelUnknown(RequestError):
    """The version that answered has no class of that name."""

    label: str
    target: str
    classes: Sequence[str]
    status = 422
    code = "label_unknown"
    sentence = "{target} has no class {label!r}; it has: {classes}."


@dataclass(eq=False)
class StateUnavailable(GatewayError):
    """The database that holds traffic, labels and events cannot be used; predictions go on as they are."""

    reason: str
    status = 503
    code = "state_unavailable"
    sentence = "The state's database is unavailable: {reason}."
    retry_after_seconds = 1
