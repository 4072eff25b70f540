"""Answers of the gateway, typed. Fields that a newer gateway adds are left out."""

import base64
import dataclasses
import html
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torchgate_client.errors import BadAnswer
from torchgate_client.images import displayable

T = TypeVar("T")
MOST_SHOWN = 16  # images of one answer, in a notebook
SHOWN = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp", b"BM": "bmp"}  # by browsers


@dataclass(frozen=True)
class ClassProbability:
    """A class and its probability."""

    label: str
    probability: float


@dataclass(frozen=True)
class Prediction(ClassProbability):
    """One image's most probable class, and the runners-up."""

    top_k: list[ClassProbability]


@dataclass(frozen=True)
class FailedPrediction:
    """Stands in the place of an image that has no prediction."""

    code: str
    message: str


@dataclass(frozen=True)
class Timing:
    """Where a prediction's time went."""

    queue_ms: float  # the longest wait of one of its images
    compute_ms: float  # the longest round trip to the model
    batch_size: int  # the largest batch that one of its images was in


@dataclass(frozen=True)
class Answer:
    """The answer to a prediction: one entry for each image, in order."""

    id: str  # for feedback
    model: str
    version: str
    predictions: list[Prediction | FailedPrediction]
    timing: Timing
    request_id: str
    images: Sequence[bytes] = field(default=(), repr=False, compare=False)  # what was sent

    @property
    def only(self) -> Prediction:
        """Return the prediction of the only image; raises ValueError if there are several."""
        if len(self.predictions) != 1:
            raise ValueError(f"the answer has {len(self.predictions)} predictions; take one of `predictions`")
        (prediction,) = self.predictions
        assert isinstance(prediction, Prediction), "the gateway refuses a request whose only image is unusable"  # noqa: S101
        return prediction

    @property
    def label(self) -> str:
        """Return the class of the only image."""
        return self.only.label

    @property
    def probability(self) -> float:
        """Return the probability of that class."""
        return self.only.probability

    def _repr_html_(self) -> str:
        """Return what a notebook shows: each image beside the bars of its classes."""
        rows = []
        for number, prediction in enumerate(self.predictions[:MOST_SHOWN]):
            image = self.images[number] if number < len(self.images) else b""
            rows.append(f"<tr><td>{_picture(image)}</td><td>{_bars(prediction)}</td></tr>")
        left = len(self.predictions) - MOST_SHOWN
        more = f"<p>{left} more</p>" if left > 0 else ""
        title = f"{html.escape(self.model)} {html.escape(self.version)}"
        return f"<table><caption>{title}</caption>{''.join(rows)}</table>{more}"


@dataclass(frozen=True)
class Traffic:
    """How a model's requests are divided."""

    model: str
    revision: int
    weights: dict[str, float]  # version -> percentage
    sticky_header: str | None
    shadows: dict[str, float]
    labels: dict[str, str]  # label -> version


@dataclass(frozen=True)
class Version:
    """One version of a model."""

    version: str
    state: str
    reason: str
    default: bool
    weight: float
    labels: list[str]
    num_workers: int
    sha256: str
    contract: dict[str, Any]

    @property
    def classes(self) -> list[str]:
        """Return its classes, in the order of its outputs."""
        return list(self.contract["classes"])


@dataclass(frozen=True)
class Model:
    """A model: its traffic, and its versions."""

    model: str
    traffic: Traffic
    versions: list[Version]


@dataclass(frozen=True)
class Feedback:
    """What feedback was counted as."""

    model: str
    version: str
    predicted: str
    label: str
    correct: bool
    judged: bool


@dataclass(frozen=True)
class Shadow:
    """How a shadow's answers compare with the callers'."""

    primary: str
    shadow: str
    num_requests: int
    num_shed: int
    num_failed: int
    num_items: int
    agreement: float | None
    largest_difference: float
    latency_difference_ms: float | None


@dataclass(frozen=True)
class Event:
    """A change, or a change that was refused."""

    id: int
    time: str
    gateway: str
    actor: str
    action: str
    model: str
    subject: str
    reason: str
    outcome: str
    detail: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True)
class Guard:
    """What a rollout's guard has seen."""

    name: str
    num_bad: int
    num_all: int
    stable_num_bad: int | None
    stable_num_all: int | None
    evidence: float
    breaks_at: float


@dataclass(frozen=True)
class Rollout:
    """A guarded rollout."""

    id: int
    version: str
    stable: str
    state: str  # running, paused, succeeded, rolled_back or aborted
    reason: str
    steps: list[float]
    percent: float
    started: str
    ended: str | None
    min_requests: int
    min_seconds: float
    error_rate: float
    slow_ms: float
    step_requests: int
    step_seconds: float
    guards: list[Guard]


def build(kind: type[T], document: Any) -> T:
    """Return an answer made of JSON; raises BadAnswer if it has another form."""
    try:
        found: T = _build(kind, document)
    except (KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"no {kind.__name__} as this client knows it: {error!r}") from error
    return found


def prediction(document: Mapping[str, Any]) -> Prediction | FailedPrediction:
    """Return what the gateway says of one image."""
    if (error := document.get("error")) is not None:
        return build(FailedPrediction, error)
    return build(Prediction, document)


def _build(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{each.name: _build(hints[each.name], value[each.name]) for each in dataclasses.fields(kind)})  # type: ignore[operator]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _build(next(each for each in arguments if each is not type(None)), value)
    if origin is list:
        return [_build(arguments[0], each) for each in value]
    if origin is dict:
        return {str(name): _build(arguments[1], each) for name, each in value.items()}
    return value if kind is Any else kind(value)


def _picture(image: bytes) -> str:
    image = displayable(image)
    kind = next((name for start, name in SHOWN.items() if image.startswith(start)), None)
    if kind is None:
        return "not in a format that browsers show" if image else ""
    source = f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
    return f'<img alt="the image that was sent" style="height:96px" src="{source}">'


def _bars(found: Prediction | FailedPrediction) -> str:
    if isinstance(found, FailedPrediction):
        return f"{html.escape(found.code)}: {html.escape(found.message)}"
    bars = [
        f'<div style="display:flex;gap:8px"><span style="width:8em;text-align:right">{html.escape(each.label)}</span>'
        f'<span style="background:#0b76b8;width:{each.probability * 12:.2f}em"></span>'
        f"<span>{each.probability:.1%}</span></div>"
        for each in found.top_k
    ]
    return "".join(bars)
