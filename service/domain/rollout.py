"""A guarded rollout: a new version gets more and more of the traffic, unless a guard says that it is worse.

Nothing here waits or writes; service/admin/rollout_controller.py brings the counts and carries out what is decided.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from service.domain.sequential_test import NONE, Evidence, Sample, bounded, compared

DEFAULT_STEPS = (1.0, 5.0, 25.0, 50.0, 100.0)

RolloutState = Literal["running", "paused", "succeeded", "rolled_back", "aborted"]
GuardName = Literal["errors", "p99", "agreement", "accuracy"]
GUARDS: tuple[GuardName, ...] = GuardName.__args__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class RolloutSpec:
    """What is to be rolled out, how fast, and what it must not do."""

    version: str
    steps: tuple[float, ...] = DEFAULT_STEPS  # percent; they grow, and the last is 100
    min_requests: int = 100  # of the new version, in each step
    min_seconds: float = 60.0  # of each step
    error_rate: float = 0.01  # chance that a version which is no worse is rolled back, over all guards
    slow_ms: float = 100.0  # a request is slow above this
    slow_tolerance: float = 1.5  # so many times as often as the stable version the new one may be slow
    shadow_percent: float = 10.0  # of requests that both answer, to compare them; 0 leaves that guard out
    min_agreement: float = 0.95  # share of images that both put into the same class


@dataclass(frozen=True)
class Rollout:
    """One rollout of a model, as far as it has come."""

    id: int
    spec: RolloutSpec
    stable: str  # the version that had all the traffic
    state: RolloutState = "running"
    step: int = 0
    started: float = 0.0  # seconds since 1970
    reason: str = ""  # why it ended

    @property
    def is_active(self) -> bool:
        """Return whether it may still change the traffic."""
        return self.state in {"running", "paused"}

    @property
    def weights(self) -> dict[str, float]:
        """Return the weights of its step."""
        percent = self.spec.steps[self.step]
        return {self.stable: 100 - percent, self.spec.version: percent}

    def document(self) -> dict[str, Any]:
        """Return the rollout as JSON can hold it."""
        flat = {each.name: getattr(self, each.name) for each in fields(self)}
        spec = {each.name: getattr(self.spec, each.name) for each in fields(self.spec)}
        return {**flat, "spec": {**spec, "steps": list(self.spec.steps)}}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the rollout that a document holds."""
        spec = RolloutSpec(**{**document["spec"], "steps": tuple(document["spec"]["steps"])})
        return cls(**{**document, "spec": spec})


@dataclass(frozen=True)
class Counts:
    """What one gateway, or all of them, have counted of a rollout since it began."""

    num_new: int = 0  # requests that the new version answered or failed
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

    def document(self) -> dict[str, Any]:
        """Return the counts as JSON can hold them."""
        samples = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "num_new"}
        return {"num_new": self.num_new, **{name: [s.num_bad, s.num_all] for name, s in samples.items()}}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the counts that a document holds."""
        samples = {name: Sample(*pair) for name, pair in document.items() if name != "num_new"}
        return cls(num_new=document["num_new"], **samples)


# What each guard looks at: of the new version, and beside it of the stable one, where it compares the two.
LOOKS_AT: Mapping[GuardName, tuple[str, str | None]] = {
    "errors": ("errors_new", "errors_old"),
    "p99": ("slow_new", "slow_old"),
    "agreement": ("disagreements", None),
    "accuracy": ("wrong_new", "wrong_old"),
}


def samples(name: GuardName, counts: Counts) -> tuple[Sample, Sample | None]:
    """Return what a guard has seen of the new version and of the stable one; None where it has a fixed bound."""
    ours, theirs = LOOKS_AT[name]
    return getattr(counts, ours), None if theirs is None else getattr(counts, theirs)


@dataclass(frozen=True)
class Progress:
    """What is known in a step, and of all guards since the beginning."""

    counted: Counts = Counts()
    weighed: Counts = Counts()  # of which the evidence is made
    evidence: Mapping[GuardName, Evidence] = field(default_factory=lambda: {name: Evidence() for name in GUARDS})
    step: int = 0
    step_requests: int = 0
    step_seconds: float = 0.0  # while it was running

    def after(self, rollout: Rollout, counts: Counts, seconds: float) -> "Progress":
        """Return the progress after `seconds` more, with `counts` counted altogether.

        Requests of one version are compared only once the other version has had some, too.
        """
        spec, more, weighed = rollout.spec, counts - self.weighed, self.weighed
        evidence = dict(self.evidence)
        for guard, (ours, theirs) in LOOKS_AT.items():
            new, old = samples(guard, more)
            if theirs is None and new.num_all:
                evidence[guard] = bounded(evidence[guard], new, 1 - spec.min_agreement)
                weighed = replace(weighed, **{ours: getattr(counts, ours)})
            elif theirs is not None and old is not None and new.num_all and old.num_all:
                tolerance = spec.slow_tolerance if guard == "p99" else 1.0
                evidence[guard] = compared(evidence[guard], new, old, tolerance)
                weighed = replace(weighed, **{ours: getattr(counts, ours), theirs: getattr(counts, theirs)})
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
        """Return the guard that says the new version is worse, None if all are content.

        The error rate is divided among the guards (Bonferroni), so that it bounds all of them together.
        """
        for name in GUARDS:
            if self.evidence[name].breaks(spec.error_rate / len(GUARDS)):
                return name
        return None

    def is_enough(self, spec: RolloutSpec) -> bool:
        """Return whether the step has lasted as long, and has had as many requests, as it must."""
        return self.step_requests >= spec.min_requests and self.step_seconds >= spec.min_seconds

    def document(self) -> dict[str, Any]:
        """Return the progress as JSON can hold it."""
        return {
            "counted": self.counted.document(),
            "weighed": self.weighed.document(),
            "evidence": {name: list(each.logs) for name, each in self.evidence.items()},
            "step": self.step,
            "step_requests": self.step_requests,
            "step_seconds": self.step_seconds,
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the progress that a document holds."""
        evidence = {name: Evidence(tuple(logs)) for name, logs in document["evidence"].items()}
        counts = {name: Counts.of(document[name]) for name in ("counted", "weighed")}
        return cls(**{**document, **counts, "evidence": evidence})


def explained(name: GuardName, spec: RolloutSpec, counts: Counts, e_value: float) -> str:
    """Return why a guard broke, with the figures that it saw."""
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
    """Return the rollout at its next step; with the last one, all of the traffic, it has succeeded."""
    step = rollout.step + 1
    if step < len(rollout.spec.steps) - 1:
        return replace(rollout, step=step)
    return replace(rollout, step=len(rollout.spec.steps) - 1, state="succeeded", reason="every step was passed")
