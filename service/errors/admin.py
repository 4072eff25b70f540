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
    """The call needs a key, a token or a client certificate, and the request has none."""

    needed: str
    sentence = "This call needs {needed}."
    hint = (
        "Send a key as `X-API-Key`; for changes, the token that `torchgate token` prints, as `Authorization: Bearer`."
    )


class CredentialsWrong(AdminError, status=403, code="credentials_wrong"):
    """The key or token is wrong."""

    needed: str
    sentence = "Wrong credentials: this call needs {needed}."
    hint = "Check the key; for changes, use the token that `torchgate token` prints."


class ScopeMissing(AdminError, status=403, code="scope_missing"):
    """The key is right, but it lacks the scope for this call."""

    caller: str
    scope: str
    sentence = "The key of {caller} lacks the scope {scope!r}, which this call needs."
    hint = "Use another key, or add the scope to the client in TORCHGATE_CLIENTS_FILE."


class CredentialsBackoff(AdminError, status=429, code="credentials_backoff"):
    """Too many wrong credentials came from this address."""

    retry_after_seconds: int
    sentence = "Too many wrong credentials came from your address; try again in {retry_after_seconds} s."
    hint = "Wait as long as Retry-After says, then send the right ones."


class LabelNotFound(AdminError, status=404, code="label_not_found"):
    """The model has no such label."""

    model: str
    label: str
    known: Sequence[str]
    sentence = "Model {model!r} has no label {label!r}; it has: {known}."
    hint = "Use one of the model's labels; `torchgate labels set` makes one."


class ArchiveNotFound(AdminError, status=404, code="archive_not_found"):
    """The model store's manifest lists no such archive for this model."""

    file: str
    known: Sequence[str]
    sentence = "The model store's manifest has no archive {file!r} for this model; it has: {known}."
    hint = "Archive the model first, or name one of the listed files."


class RolloutNotFound(AdminError, status=404, code="rollout_not_found"):
    """The model has no such rollout, or no longer remembers it."""

    model: str
    rollout: int
    sentence = "Model {model!r} has no rollout {rollout}."
    hint = "List the rollouts: `torchgate rollouts list MODEL`."


class RolloutActive(AdminError, status=409, code="rollout_active"):
    """A rollout controls the traffic at present."""

    model: str
    rollout: int
    sentence = "The rollout {rollout} of {model} decides about the traffic; promote or abort it first."
    hint = "Promote or abort the rollout first."


class RolloutEnded(AdminError, status=409, code="rollout_ended"):
    """The rollout has ended and cannot be changed."""

    model: str
    rollout: int
    state: str
    sentence = "Rollout {rollout} of {model} has ended: {state}."
    hint = "Start a new one: `torchgate rollouts start MODEL VERSION`."


class RolloutRefused(AdminError, status=409, code="rollout_refused"):
    """A rollout cannot start from the present traffic."""

    reason: str
    sentence = "{reason}."
    hint = "Set the traffic as the message says, then start the rollout."


class VersionExists(AdminError, status=409, code="version_exists"):
    """The version is already registered."""

    model: str
    version: str
    sentence = "{model} {version} is registered already."
    hint = "Unregister it first, or register another release."


class VersionInUse(AdminError, status=409, code="version_in_use"):
    """The version still has traffic, a label or a share of shadow requests."""

    model: str
    version: str
    users: str
    sentence = "{model} {version} still has {users}; move that first."
    hint = "Move its traffic and labels to another version first."


class VersionNotReady(AdminError, status=409, code="version_not_ready"):
    """Only a ready version may get traffic or a label."""

    model: str
    version: str
    state: str
    sentence = "{model} {version} is {state}; only a version that is ready may get traffic or a label."
    hint = "Wait until `torchgate models show MODEL` says ready, or read there why it is not."


class ProfileActive(AdminError, status=409, code="profile_active"):
    """Somebody is already taking a profile of this version."""

    target: str
    sentence = "A profile of {target} is being taken already; ask again when it is done."
    hint = "Try again when that profile is done."


class ProfileUnsupported(AdminError, status=409, code="profile_unsupported"):
    """The handler in the version's archive cannot take profiles."""

    target: str
    sentence = "The handler in the archive of {target} takes no profiles; archive its run again."
    hint = "Archive the run again, which adds the present handler."


class NothingEarlier(AdminError, status=409, code="nothing_earlier"):
    """No earlier policy is left to return to."""

    model: str
    sentence = "No other ready version of {model} has ever had all of the traffic."
    hint = "Set the traffic yourself: `torchgate traffic set MODEL VERSION=100`."


class RevisionStale(AdminError, status=412, code="revision_stale"):
    """Somebody changed the state since you read it."""

    model: str
    given: int
    found: int
    sentence = "The change is based on revision {given} of {model}, which has revision {found} by now; read it again."
    hint = "Read the state again, then send the change with its new ETag."


class RevisionMissing(AdminError, status=428, code="revision_missing"):
    """The change does not name the revision that it is based on."""

    model: str
    found: int
    sentence = 'Send `If-Match: "<revision>"`, the ETag of what the change is based on; {model} has revision {found}.'
    hint = "Send If-Match with the ETag of what you read, or `If-Match: *` to change it anyway."


class TrafficRefused(AdminError, status=422, code="traffic_invalid"):
    """The weights or shares are invalid."""

    reason: str
    sentence = "{reason}."
    hint = "`torchgate traffic show MODEL` shows the present weights."


class TooManyWorkers(AdminError, status=422, code="too_many_workers"):
    """The version would have more workers than the settings allow."""

    num_workers: int
    max_workers: int
    sentence = (
        "A version cannot have {num_workers} workers: TORCHGATE_MAX_WORKERS_PER_VERSION allows {max_workers}. Ask for "
        "fewer, or raise it."
    )
    hint = "Ask for fewer workers, or raise TORCHGATE_MAX_WORKERS_PER_VERSION."


class ArchiveRefused(AdminError, status=422, code="archive_refused"):
    """The archive is not the one in the manifest, cannot be loaded, or failed its self-check."""

    reason: str
    sentence = "The archive is refused: {reason}."
    hint = "Fix what the message names, archive the model again, then register it."


class FeedbackRepeated(AdminError, status=409, code="feedback_repeated"):
    """The image already has its label."""

    index: int
    sentence = "The image at index {index} of that answer has its label already."
    hint = "Nothing to do: the first label counts."


class FeedbackExpired(AdminError, status=410, code="feedback_expired"):
    """The answer is too old for feedback."""

    limit_seconds: int
    sentence = "That answer is older than {limit_seconds} s; feedback is not taken any more."
    hint = "Send feedback earlier, or raise TORCHGATE_FEEDBACK_SECONDS."


class FeedbackForged(AdminError, status=422, code="feedback_forged"):
    """The id does not belong to an answer, or the answer has no such image."""

    reason: str
    sentence = "This is not feedback on an answer: {reason}."
    hint = "Send the id of an answer unchanged, and an index within its images."


class LabelUnknown(AdminError, status=422, code="label_unknown"):
    """The version that answered has no class of that name."""

    label: str
    target: str
    classes: Sequence[str]
    sentence = "{target} has no class {label!r}; it has: {classes}."
    hint = "Use one of the model's classes, spelt as in its contract."


@dataclass(eq=False)
class StateUnavailable(GatewayError):
    """The database with traffic, labels and events does not answer. Predictions go on."""

    reason: str
    status = 503
    code = "state_unavailable"
    sentence = "The state's database is unavailable: {reason}."
    public_sentence = "The state's database is unavailable"
    hint = "Check the database that TORCHGATE_DATABASE_URL names; the gateway reconnects by itself."
    retry_after_seconds = 1
