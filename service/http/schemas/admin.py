"""What goes over HTTP when something is changed, as the OpenAPI document shows it."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, model_validator

from service.domain.profile import WholeNumber
from service.domain.rollout import DEFAULT_STEPS, RolloutSpec
from service.domain.traffic import STICKY_HEADER
from service.http.schemas.predict import Strict
from service.monitoring.signed_ids import LONGEST_ID

DEFAULTS = RolloutSpec("")


class Change(Strict, strict=True):
    """Takes each value by its type alone: "1" is no number, and 0 is not false."""


class TrafficChange(Change):
    """A new division of a model's requests."""

    weights: dict[str, float] = Field(description="Version -> percentage, in steps of 0.01; they must sum to 100.")
    sticky_header: str | None = Field(
        STICKY_HEADER,
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="Header with the routing key: requests with one key go to one version. null: every request anew.",
    )
    shadows: dict[str, float] = Field(
        default_factory=dict, description="Version -> percentage of the requests of which it gets a copy."
    )


class LabelChange(Change):
    """What a label is to mean."""

    version: str


class VersionRegister(Change):
    """An archive to load."""

    file: str = Field(description="Name of the archive in the model store, as its manifest has it.")
    num_workers: WholeNumber | None = Field(None, ge=1, description="Its workers; as the settings say if absent.")


class VersionScale(Change):
    """Another size of a version."""

    num_workers: WholeNumber = Field(ge=1, description="At most TORCHGATE_MAX_WORKERS_PER_VERSION.")


class ShadowInfo(BaseModel):
    """What came of the copies that one version got of another's requests, at this gateway."""

    primary: str
    shadow: str
    num_requests: int = Field(description="Copies that were answered and compared.")
    num_shed: int = Field(description="Copies that were not sent because of load.")
    num_failed: int = Field(description="Copies that got no answer.")
    num_items: int = Field(description="Images compared.")
    agreement: float | None = Field(description="Share of images of the same class.")
    largest_difference: float = Field(description="Of a probability that the caller was told.")
    latency_difference_ms: float | None = Field(description="A copy's latency above its request's, as a median.")


class ShadowList(BaseModel):
    """The comparisons of a model's versions."""

    shadows: list[ShadowInfo]


class EventInfo(BaseModel):
    """A change, or a change that was refused."""

    id: int
    time: str = Field(description="UTC, by the clock of the gateway that wrote it.")
    gateway: str = Field(description="Empty for callers without the scope read.")
    actor: str
    action: str
    model: str
    subject: str = Field(description="The version, label, file or rollout that it is about.")
    reason: str = Field(description="What the caller gave as ?reason=.")
    outcome: str = Field(description="done or refused.")
    detail: str = Field(description="What came of it, or why it was refused; for callers with the scope read.")
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class EventList(BaseModel):
    """Events, the newest first."""

    events: list[EventInfo]


class RolloutChange(Change):
    """A guarded rollout to begin."""

    version: str = Field(description="The new version; another one must have all the traffic.")
    steps: list[Annotated[float, Field(ge=0.01, le=100)]] = Field(
        list(DEFAULT_STEPS), min_length=1, max_length=100, description="Percentages that grow; the last is 100."
    )
    min_requests: WholeNumber = Field(
        DEFAULTS.min_requests, ge=1, description="Judged requests that the new version needs in each step."
    )
    min_seconds: float = Field(
        DEFAULTS.min_seconds, ge=0, le=604_800, allow_inf_nan=False, description="Time that each step lasts."
    )
    error_rate: float = Field(
        DEFAULTS.error_rate,
        ge=1e-6,  # far below it, the evidence that is needed would be no number
        le=0.5,
        description="Chance that a version which is no worse is rolled back, over all guards and the whole rollout.",
    )
    slow_ms: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="A request is slow above this; TORCHGATE_LATENCY_OBJECTIVE_MS if absent.",
    )
    slow_tolerance: float = Field(
        DEFAULTS.slow_tolerance,
        ge=1,
        le=100,
        description="The new version may be slow at most this many times as often as the stable one.",
    )
    shadow_percent: float = Field(
        DEFAULTS.shadow_percent,
        ge=0,
        le=100,
        description="Share of the stable version's requests that are copied to compare answers; 0 leaves that out.",
    )
    min_agreement: float = Field(
        DEFAULTS.min_agreement, gt=0, le=0.999, description="Share of images that both put into one class."
    )

    @model_validator(mode="after")
    def _steps_grow(self) -> Self:
        if self.steps[-1] != 100 or any(a >= b for a, b in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError(f"the steps are {self.steps}; they must grow, and the last must be 100")
        if any(abs(step * 100 - round(step * 100)) > 1e-6 for step in self.steps):
            raise ValueError(f"the steps are {self.steps}; they must be multiples of 0.01 percent")
        return self


class GuardInfo(BaseModel):
    """What a guard has seen of the new version, and beside it of the stable one."""

    name: str = Field(description="errors, p99 (slow requests), agreement (by copies) or accuracy (by feedback).")
    num_bad: int
    num_all: int
    stable_num_bad: int | None = Field(description="null where the guard compares with a fixed bound.")
    stable_num_all: int | None
    evidence: float = Field(description="That the new version is worse; 1 is none.")
    breaks_at: float = Field(description="The evidence at which the version is rolled back.")


class RolloutInfo(BaseModel):
    """A guarded rollout."""

    id: int
    version: str
    stable: str = Field(description="The version that had all the traffic before.")
    state: str = Field(description="running, paused, succeeded, rolled_back or aborted.")
    reason: str = Field(description="Why it ended; empty while it has not.")
    steps: list[float]
    percent: float = Field(description="Share of the traffic in the step that it has reached.")
    started: str
    ended: str | None = Field(description="When it ended; null while it has not.")
    min_requests: int
    min_seconds: float
    error_rate: float
    slow_ms: float
    step_requests: int = Field(description="Judged requests of the new version in this step so far.")
    step_seconds: float
    guards: list[GuardInfo] = Field(description="Empty in lists, and for rollouts that ended before the last one.")


class RolloutList(BaseModel):
    """A model's last rollouts, the newest first."""

    rollouts: list[RolloutInfo]


class FeedbackChange(Change):
    """What one image of an answer really is."""

    id: str = Field(max_length=LONGEST_ID, description="The answer's id.")
    index: WholeNumber = Field(0, ge=0, description="Which image of the request, from 0.")
    label: str = Field(max_length=200, description="Its right class.")


class FeedbackInfo(BaseModel):
    """What the feedback was counted as."""

    model: str
    version: str
    predicted: str
    label: str
    correct: bool
    judged: bool = Field(description="Whether the `accuracy` guard of a rollout counts it, too.")
