"""What goes over HTTP, as the OpenAPI document shows it."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from service.domain.backend import Priority


class Strict(BaseModel):
    """Refuses names that it does not have."""

    model_config = ConfigDict(extra="forbid")


class PredictQuery(Strict):
    """The query of POST /predict."""

    model: str | None = Field(None, description="Model that answers; the default model if absent.")
    version: str | None = Field(None, description="Version that answers; as the traffic is divided if absent.")
    label: str | None = Field(None, description="Label of the version that answers, instead of `version`.")
    top_k: int = Field(5, ge=1, le=1000, description="How many of the most probable classes are listed per image.")


class PredictHeaders(BaseModel):
    """The headers of POST /predict that the gateway reads."""

    x_deadline_ms: int | None = Field(None, ge=1, description="Time within which the answer is of use, milliseconds.")
    x_priority: Priority = Field("normal", description="A low request waits while any normal one does.")


class Instance(Strict):
    """One image of a JSON request."""

    b64: str = Field(description="An encoded image, or a .npy tensor uint8 [C, H, W], in base64.")


class PredictJson(Strict):
    """A JSON request."""

    instances: list[Instance]


class ClassProbability(BaseModel):
    """A class and its probability."""

    label: str
    probability: float


class Prediction(ClassProbability):
    """One image's most probable class, and the runners-up."""

    top_k: list[ClassProbability]


class ItemProblem(BaseModel):
    """Why one image has no prediction."""

    code: str
    message: str


class FailedPrediction(BaseModel):
    """Stands in the place of an image that has no prediction."""

    error: ItemProblem


class PredictAnswer(BaseModel):
    """The answer to POST /predict: one prediction per image, in order."""

    id: str = Field(description="The answer's own id, unique; not the request id.")
    model: str
    version: str
    predictions: list[Prediction | FailedPrediction]


class VersionInfo(BaseModel):
    """One version of a model."""

    version: str
    state: str = Field(description="waiting, loading, ready, unavailable, failed or draining.")
    reason: str = Field(description="Why it is not ready, in full for callers with the scope read; empty if it is.")
    default: bool = Field(description="Whether it has more of the traffic than any other version.")
    weight: float = Field(description="Percentage of the requests that name no version.")
    labels: list[str]
    num_workers: int
    sha256: str = Field(description="Of the archive.")
    contract: dict[str, Any] = Field(description="What the archive says of itself: classes, input, evaluation, ...")


class TrafficInfo(BaseModel):
    """How a model's requests are divided; the ETag is the revision."""

    model: str
    revision: int = Field(description="Grows with every change of the model; If-Match takes it.")
    weights: dict[str, float] = Field(description="Version -> percentage of the requests that name none.")
    sticky_header: str | None = Field(description="Header with the routing key; requests with one key stay together.")
    shadows: dict[str, float] = Field(description="Version -> percentage of the requests of which it gets a copy.")
    labels: dict[str, str] = Field(description="Label -> version.")


class ModelInfo(BaseModel):
    """One model: its traffic, and its versions, most traffic first."""

    model: str
    traffic: TrafficInfo
    versions: list[VersionInfo]


class ModelList(BaseModel):
    """Every model that is served."""

    models: list[ModelInfo]


class Health(BaseModel):
    """Whether the process, or the service, is well."""

    status: str
    reason: str = ""


class Problem(BaseModel):
    """An error (RFC 9457), with the stable `code` that programs should look at."""

    type: str  # leads to the code on the gateway's page of errors
    title: str
    status: int
    detail: str
    code: str
    hint: str  # the next step; empty where the detail says it
    request_id: str
