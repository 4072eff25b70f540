"""Profiles: the request, the handler's answer, and the report that the API returns."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MOST_BATCHES = 100
MOST_WAIT_SECONDS = 60


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# JSON knows one kind of numbers: 10.0 is as good as 10 where a strict model wants an integer.
WholeNumber = Annotated[int, BeforeValidator(_whole)]
Time = Annotated[float, Field(allow_inf_nan=False)]


class ProfileChange(BaseModel):
    """A profile to take."""

    model_config = ConfigDict(extra="forbid", strict=True)

    num_batches: WholeNumber = Field(10, ge=1, le=MOST_BATCHES, description="How many of the version's next batches.")
    wait_seconds: float = Field(
        5,
        ge=0,
        le=MOST_WAIT_SECONDS,
        allow_inf_nan=False,
        description="How long to wait for traffic; what is missing then comes from the self-check's images.",
    )
    trace: bool = Field(False, description="Whether to add the Chrome trace.")


class HandlerStage(BaseModel):
    """A part of a handler's work on one batch."""

    stage: str = Field(max_length=100)
    ms: Time


class HandlerOperator(BaseModel):
    """All calls of an operator during one batch."""

    operator: str = Field(max_length=1000)
    num_calls: int
    self_cpu_ms: Time
    cpu_ms: Time
    self_device_ms: Time


class HandlerProfile(BaseModel):
    """What a handler saw of one batch."""

    device: str = Field(max_length=100)
    stages: list[HandlerStage] = Field(max_length=100)
    operators: list[HandlerOperator] = Field(max_length=1000)
    trace: str | None = None


class StageShare(BaseModel):
    """A part of the handler's work."""

    stage: str
    ms: float = Field(description="Of a batch, on average, under the profiler.")
    share: float = Field(description="Of all stages.")


class OperatorShare(BaseModel):
    """An operator; times are of a batch, on average, under the profiler."""

    operator: str
    num_calls: float
    self_cpu_ms: float = Field(description="In the operator itself.")
    share: float = Field(description="Of the operators' own time on the CPU.")
    cpu_ms: float = Field(description="With the operators that it calls.")
    self_device_ms: float = Field(description="Of the GPU's kernels that it started; 0 without a GPU.")
    device_share: float = Field(description="Of all kernels' time.")


class ProfileInfo(BaseModel):
    """What torch's profiler saw in the handler."""

    model: str
    version: str
    devices: list[str]
    num_batches: int = Field(description="Fewer than asked for if time ran out.")
    num_self_check: int = Field(description="How many of them were the self-check's images, for want of traffic.")
    num_items: int = Field(description="Images in them.")
    stages: list[StageShare] = Field(description="In their order.")
    operators: list[OperatorShare] = Field(description="The largest share first.")
    num_traced: int = Field(description="Batches in the trace; the bounds of its size may leave some out.")
    trace: str | None = Field(description="The Chrome trace: base64 of gzip of JSON; null unless asked for.")
