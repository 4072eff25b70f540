"""The wanted state of a model: its versions, traffic, labels and rollouts; and the events that changed it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from service.domain.archive import Archive
from service.domain.rollout import Rollout
from service.domain.traffic import Policy, Role

# How many earlier versions and rollouts are kept.
MOST_EARLIER = 20
MOST_ROLLOUTS = 20

EventResult = Literal["done", "refused"]


@dataclass(frozen=True)
class VersionRecord:
    """A version that an operator or the model store's policy registered."""

    archive: Archive
    num_workers: int | None = None  # None is the setting
    is_wanted: bool = True  # False after it was unregistered, so that the store's policy does not register it again


@dataclass(frozen=True)
class ModelState:
    """The wanted state of one model; never changed, only replaced by the next revision."""

    model: str
    revision: int = 0
    versions: Mapping[str, VersionRecord] = field(default_factory=dict)
    policy: Policy | None = None  # None until the model has its first version
    labels: Mapping[str, str] = field(default_factory=dict)  # label -> version
    earlier: tuple[str, ...] = ()  # versions that had all the traffic, the latest last
    rollouts: tuple[Rollout, ...] = ()  # the latest last

    @property
    def rollout(self) -> Rollout | None:
        """Return the rollout that may still change the traffic."""
        return self.rollouts[-1] if self.rollouts and self.rollouts[-1].is_active else None

    @property
    def wanted(self) -> dict[str, VersionRecord]:
        """Return the versions that are to be loaded."""
        return {version: record for version, record in self.versions.items() if record.is_wanted}

    def role(self, version: str) -> Role:
        """Return whether a version is on trial: the new one of a rollout, or one with less traffic than another."""
        if self.rollout is not None:
            return "canary" if version == self.rollout.spec.version else "primary"
        weights = {} if self.policy is None else self.policy.weights
        return "canary" if 0 < weights.get(version, 0) < max(weights.values()) else "primary"

    def directed(self, policy: Policy) -> "ModelState":
        """Return the state with another policy; it remembers a version that had all the traffic, for a rollback."""
        earlier = self.earlier
        sole = None if self.policy is None else self.policy.sole
        if sole is not None and sole != policy.sole:
            earlier = (*(version for version in earlier if version != sole), sole)[-MOST_EARLIER:]
        return replace(self, policy=policy, earlier=earlier)

    def returned(self, version: str) -> "ModelState":
        """Return the state with all traffic back at an earlier version; the versions after it are forgotten."""
        assert self.policy is not None
        earlier = self.earlier[: self.earlier.index(version)] if version in self.earlier else self.earlier
        return replace(self, policy=self.policy.reweighed({version: 100}), earlier=earlier)

    def rolled(self, rollout: Rollout) -> "ModelState":
        """Return the state with a rollout added or replaced, and its traffic; a rollout that ends is given the time."""
        if not rollout.is_active and not rollout.ended:
            rollout = replace(rollout, ended=time.time())
        others = (each for each in self.rollouts if each.id != rollout.id)
        assert self.policy is not None
        if rollout.state in {"rolled_back", "aborted"}:
            state = self.returned(rollout.stable)
        else:
            weights = {rollout.spec.version: 100.0} if rollout.state == "succeeded" else rollout.weights
            state = self.directed(self.policy.reweighed(weights))
        return replace(state, rollouts=(*others, rollout)[-MOST_ROLLOUTS:])

    def users_of(self, version: str) -> list[str]:
        """Return the reasons why a version must not be unregistered."""
        users = [f"the label {label}" for label, labelled in self.labels.items() if labelled == version]
        if self.policy is not None:
            if weight := self.policy.weights.get(version):
                users.append(f"{weight:g} % of the traffic")
            if version in self.policy.shadows:
                users.append("a shadow")
        if self.rollout is not None and version in {self.rollout.stable, self.rollout.spec.version}:
            users.append(f"the rollout {self.rollout.id}")
        return users

    def shown(self) -> dict[str, Any]:
        """Return what the event log shows of a state: the operator's decisions, without slots and checksums."""
        return {
            "revision": self.revision,
            "versions": {version: record.num_workers for version, record in self.wanted.items()},
            "weights": {} if self.policy is None else self.policy.weights,
            "sticky_header": None if self.policy is None else self.policy.sticky_header,
            "shadows": {} if self.policy is None else dict(self.policy.shadows),
            "labels": dict(self.labels),
            "rollout": self.rollouts[-1].shown() if self.rollouts else None,
        }


@dataclass(frozen=True)
class Entry:
    """A change: its caller, what it does, and why."""

    actor: str
    action: str
    model: str
    subject: str = ""  # the version, label or rollout that it is about
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.action} of {self.model} {self.subject}".strip()


@dataclass(frozen=True)
class Event:
    """One line of the event log."""

    id: int
    time: float  # seconds since 1970, UTC, by the clock of the gateway that wrote it
    gateway: str
    entry: Entry
    outcome: EventResult
    detail: str  # the error of a refusal, or the result
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
