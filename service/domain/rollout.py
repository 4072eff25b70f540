"""A guarded rollout: a new version takes over the traffic in steps, unless a guard finds it worse.

This module only computes; service/admin/rollout_controller.py brings the counts and carries out the decisions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from service.domain.sequential_test import NONE, Evidence, Sample, bounded, compared

DEFAULT_STEPS = (1.0, 5.0, 25.0, 50.0, 100.0)

RolloutState = Literal["running", "paused", "succeeded", "rolled_back", "aborted"]
GuardName = Literal["errors", "p99", "agreement", "accuracy"]
GUARDS: tuple[GuardName, ...] = GuardName.__args__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class RolloutSpec:
    """The new version of a rollout, its steps, and the limits of its guards."""

    version: str
    steps: tuple[float, ...] = DEFAULT_STEPS  # percent; they grow, and the last is 100
    min_requests: int = 100  # dealt to the new version, in each step
    min_seconds: float = 60.0  # of each step
    error_rate: float = 0.01  # chance that all guards together roll back a version that is no worse
    slow_ms: float = 100.0  # a request is slow above this
    slow_tolerance: float = 1.5  # the new version may be slow this many times as often as the stable one
    shadow_percent: float = 10.0  # of requests that both versions answer; 0 switches the agreement guard off
    min_agreement: float = 0.95  # share of images that both versions put into the same class


@dataclass(frozen=True)
class Rollout:
    """One rollout of a model."""

    id: int
    spec: RolloutSpec
    stable: str  # the version that had all the traffic
    state: RolloutState = "running"
    step: int = 0
    started: float = 0.0  # seconds since 1970
    reason: str = ""  # why it ended
    ended: float = 0.0  # seconds since 1970; 0 while it may still change the traffic

    @property
    def is_active(self) -> bool:
        """Return whether it may still change the traffic."""
        return self.state in {"running", "paused"}

    @property
    def weights(self) -> dict[str, float]:
        """Return the weights of its step."""
        percent = self.spec.steps[self.step]
        return {self.stable: 100 - percent, self.spec.version: percent}

    def shown(self) -> dict[str, Any]:
        """Return what the event log shows of the rollout."""
        step = f"{self.spec.steps[self.step]:g} %"
        return {"id": self.id, "version": self.spec.version, "state": self.state, "step": step}


@dataclass(frozen=True)
class Counts:
    """What one gateway, or all of them, counted since the rollout began."""

    num_new: int = 0  # requests that the policy dealt to the new version, with time enough
    errors_new: Sample = NONE
    errors_old: Sample = NONE
    slow_new: Sample = NONE
    slow_old: Sample = NONE
    disagreements: Sample = NONE
    wrong_new: Sample = NONE
    wrong_old: Sample = NONE

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, each.name) - getattr(other, each.name) for each in fields(self)))


# The counts that a guard reads: of the new version and, where it compares the two, of the stable one.
LOOKS_AT: Mapping[GuardName, tuple[str, ...]] = {
    "errors": ("errors_new", "errors_old"),
    "p99": ("slow_new", "slow_old"),
    "agreement": ("disagreements",),
    "accuracy": ("wrong_new", "wrong_old"),
}


def samples(name: GuardName, counts: Counts) -> tuple[Sample, Sample | None]:
    """Return a guard's counts of the new version and of the stable one; None where it has a fixed bound."""
    new, *old = (getattr(counts, each) for each in LOOKS_AT[name])
    return new, old[0] if old else None


@dataclass(frozen=True)
class Progress:
    """How long the step has lasted, and the evidence of all guards since the rollout began."""

    counted: Counts = Counts()
    weighed: Counts = Counts()  # those that are in the evidence
    evidence: Mapping[GuardName, Evidence] = field(default_factory=lambda: {name: Evidence() for name in GUARDS})
    step: int = 0
    step_requests: int = 0
    step_seconds: float = 0.0  # while it was running

    def after(self, rollout: Rollout, counts: Counts, seconds: float) -> "Progress":
        """Return the progress after `seconds` more; `counts` are those since the rollout began.

        Requests of one version are compared only once the other version has had some, too.
        """
        spec, more, weighed = rollout.spec, counts - self.weighed, self.weighed
        evidence = dict(self.evidence)
        for guard, names in LOOKS_AT.items():
            new, old = samples(guard, more)
            if not new.num_all or (old is not None and not old.num_all):
                continue
            if old is None:
                evidence[guard] = bounded(evidence[guard], new, 1 - spec.min_agreement)
            else:
                evidence[guard] = compared(evidence[guard], new, old, spec.slow_tolerance if guard == "p99" else 1.0)
            weighed = replace(weighed, **{name: getattr(counts, name) for name in names})
        is_same_step = self.step == rollout.step
        return Progress(
            counts,
            weighed,
            evidence,
            rollout.step,
            (self.step_requests if is_same_step else 0) + counts.num_new - self.counted.num_new,
            (self.step_seconds if is_same_step else 0.0) + (seconds if rollout.state == "running" else 0.0),
        )

    def broken(self, spec: RolloutSpec) -> GuardName | None:
        """Return the guard that finds the new version worse, None if none does.

        The error rate is divided among the guards (Bonferroni), so that it bounds all of them together.
        """
        return next((name for name in GUARDS if self.evidence[name].e_value >= len(GUARDS) / spec.error_rate), None)

    def is_enough(self, spec: RolloutSpec) -> bool:
        """Return whether the step has lasted long enough and had enough requests."""
        return self.step_requests >= spec.min_requests and self.step_seconds >= spec.min_seconds


def explained(name: GuardName, spec: RolloutSpec, counts: Counts, e_value: float) -> str:
    """Return why a guard broke, with its figures."""
    new, old = samples(name, counts)
    against = f"at most {1 - spec.min_agreement:.2%}"
    if old is not None:
        against = f"{old.num_bad} of {old.num_all} of the stable version ({old.rate:.2%})"
    what, bound = _WHAT[name].format(spec=spec), len(GUARDS) / spec.error_rate
    return (
        f"guard {name}: {new.num_bad} of {new.num_all} {what} ({new.rate:.2%}), against {against}; "
        f"evidence {e_value:.3g}, allowed {bound:.3g}"
    )


_WHAT: Mapping[GuardName, str] = {
    "errors": "requests failed",
    "p99": "requests took longer than {spec.slow_ms:g} ms",
    "agreement": "images were put into another class than by the stable version",
    "accuracy": "answers were wrong by feedback",
}


def stepped(rollout: Rollout) -> Rollout:
    """Return the rollout at its next step; at the last one, with all the traffic, it has succeeded."""
    step = rollout.step + 1
    if step < len(rollout.spec.steps) - 1:
        return replace(rollout, step=step)
    return replace(rollout, step=len(rollout.spec.steps) - 1, state="succeeded", reason="every step was passed")
