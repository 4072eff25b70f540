"""What is wrong with an operator's change; the branch of errors/gateway.py for the routes that change things."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import dataclass_transform

from service.errors.gateway import GatewayError
from service.errors.request import RequestError


@dataclass_transform(eq_default=False)
class AdminError(RequestError):
    """A call that service/admin refuses. Each kind below is a dataclass with a status and a code."""

    def __init_subclass__(cls, status: int, code: str) -> None:
        cls.status, cls.code = status, code
        dataclass(eq=False)(cls)


class CredentialsMissing(AdminError, status=401, code="credentials_missing"):
    """The call needs a key, a token or a client certificate, and none was given."""

    needed: str
    sentence = "This call needs {needed}."


class CredentialsWrong(AdminError, status=403, code="credentials_wrong"):
    """The key or token that was given is not the right one."""

    needed: str
    sentence = "Wrong credentials: this call needs {needed}."


class ScopeMissing(AdminError, status=403, code="scope_missing"):
    """The key is right, but its owner may not do this."""

    caller: str
    scope: str
    sentence = "The key of {caller} lacks the scope {scope!r}, which this call needs."


class CredentialsBackoff(AdminError, status=429, code="credentials_backoff"):
    """Wrong credentials came from the address too often; only those that were right from there before still work."""

    retry_after_seconds: int
    sentence = "Too many wrong credentials came from your address; try again in {retry_after_seconds} s."


class LabelNotFound(AdminError, status=404, code="label_not_found"):
    """The model has no such label."""

    model: str
    label: str
    known: Sequence[str]
    sentence = "Model {model!r} has no label {label!r}; it has: {known}."


class ArchiveNotFound(AdminError, status=404, code="archive_not_found"):
    """The model store's manifest has no such archive."""

    file: str
    known: Sequence[str]
    sentence = "The model store's manifest has no archive {file!r} for this model; it has: {known}."


class RolloutNotFound(AdminError, status=404, code="rollout_not_found"):
    """The model has no such rollout, or has forgotten it."""

    model: str
    rollout: int
    sentence = "Model {model!r} has no rollout {rollout}."


class RolloutActive(AdminError, status=409, code="rollout_active"):
    """A rollout decides about the traffic at present."""

    model: str
    rollout: int
    sentence = "The rollout {rollout} of {model} decides about the traffic; promote or abort it first."


class RolloutEnded(AdminError, status=409, code="rollout_ended"):
    """The rollout has ended, so that nothing can be done to it any more."""

    model: str
    rollout: int
    state: str
    sentence = "The rollout {rollout} of {model} is {state}."


class RolloutRefused(AdminError, status=409, code="rollout_refused"):
    """A rollout cannot begin from the traffic as it is."""

    reason: str
    sentence = "{reason}."


class VersionExists(AdminError, status=409, code="version_exists"):
    """The version is registered already."""

    model: str
    version: str
    sentence = "{model} {version} is registered already."


class VersionInUse(AdminError, status=409, code="version_in_use"):
    """The version still has traffic, a label or a shadow's share."""

    model: str
    version: str
    users: str
    sentence = "{model} {version} still has {users}; move that first."


class VersionNotReady(AdminError, status=409, code="version_not_ready"):
    """Only a version that is loaded and answers may get traffic or a label."""

    model: str
    version: str
    state: str
    sentence = "{model} {version} is {state}; only a version that is ready may get traffic or a label."


class ProfileActive(AdminError, status=409, code="profile_active"):
    """A profile of the version is being taken already."""

    target: str
    sentence = "A profile of {target} is being taken already; ask again when it is done."


class ProfileUnsupported(AdminError, status=409, code="profile_unsupported"):
    """The version's archive has a handler that takes no profiles."""

    target: str
    sentence = "The handler in the archive of {target} takes no profiles; archive its run again."


class NothingEarlier(AdminError, status=409, code="nothing_earlier"):
    """There is no earlier policy to go back to."""

    model: str
    sentence = "No other version of {model} that is ready has had all the traffic before."


class RevisionStale(AdminError, status=412, code="revision_stale"):
    """The state was changed since it was read."""

    model: str
    given: int
    found: int
    sentence = "The change is based on revision {given} of {model}, which has revision {found} by now; read it again."


class RevisionMissing(AdminError, status=428, code="revision_missing"):
    """The change does not say which revision it is based on."""

    model: str
    found: int
    sentence = 'Send `If-Match: "<revision>"`, the ETag of what the change is based on; {model} has revision {found}.'


class TrafficRefused(AdminError, status=422, code="traffic_invalid"):
    """Weights or shares are not what they must be."""

    reason: str
    sentence = "{reason}."


class TooManyWorkers(AdminError, status=422, code="too_many_workers"):
    """The version would have more workers than the settings allow."""

    num_workers: int
    max_workers: int
    sentence = (
        "A version cannot have {num_workers} workers: TORCHGATE_MAX_WORKERS_PER_VERSION allows {max_workers}. Ask for "
        "fewer, or raise it."
    )


class ArchiveRefused(AdminError, status=422, code="archive_refused"):
    """The archive is not the one that the manifest promises, cannot be loaded, or fails its self-check."""

    reason: str
    sentence = "The archive is refused: {reason}."


class FeedbackRepeated(AdminError, status=409, code="feedback_repeated"):
    """The image has been given its label already."""

    index: int
    sentence = "The image at index {index} of that answer has its label already."


class FeedbackExpired(AdminError, status=410, code="feedback_expired"):
    """The answer is too old to take feedback."""

    limit_seconds: int
    sentence = "That answer is older than {limit_seconds} s; feedback is not taken any more."


class FeedbackForged(AdminError, status=422, code="feedback_forged"):
    """The id is not one of an answer, or the answer has no such image."""

    reason: str
    sentence = "That is no feedback on an answer: {reason}."


class LabelUnknown(AdminError, status=422, code="label_unknown"):
    """The version that answered has no class of that name."""

    label: str
    target: str
    classes: Sequence[str]
    sentence = "{target} has no class {label!r}; it has: {classes}."


@dataclass(eq=False)
class StateUnavailable(GatewayError):
    """The database that holds traffic, labels and events cannot be used; predictions go on as they are."""

    reason: str
    status = 503
    code = "state_unavailable"
    sentence = "The state's database is unavailable: {reason}."
    public_sentence = "The state's database is unavailable"
    retry_after_seconds = 1
