"""The calls of the HTTP API: what is sent, and what becomes of the answer. Nothing here sends anything."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx

from torchgate_client.answers import (
    Answer,
    Event,
    Feedback,
    Model,
    Rollout,
    Shadow,
    Timing,
    Traffic,
    Version,
    build,
    prediction,
)
from torchgate_client.errors import BadAnswer, GatewayProblem, Overloaded, RequestRefused, Unavailable
from torchgate_client.images import Image, encoded, many

T = TypeVar("T")
ANYWAY = "*"  # If-Match of a change whatever the present state is


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how to read its answer."""

    method: str
    path: str
    parse: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)  # arguments of httpx: content, files or json
    may_repeat: bool = False  # whether it does no harm twice
    seconds: float | None = None  # after which the answer is of no use


def predict(
    images: Image | Sequence[Image],
    model: str | None,
    version: str | None,
    label: str | None,
    top_k: int | None,
    deadline_ms: int | None,
    priority: str | None,
    routing_key: str | None,
) -> Call[Answer]:
    """Classify one image, or several."""
    several = many(images)
    sent = [encoded(image) for image in (several if several is not None else [images])]
    if not sent:
        raise ValueError("there is no image")
    headers = {"X-Deadline-Ms": deadline_ms, "X-Priority": priority, "X-Routing-Key": routing_key}
    kept = {name: str(value) for name, value in headers.items() if value is not None}
    body: dict[str, Any] = {"files": [("file", (str(number), each)) for number, each in enumerate(sent)]}
    if several is None:
        body = {"content": sent[0]}
        kept["Content-Type"] = "application/octet-stream"
    params = {"model": model, "version": version, "label": label, "top_k": top_k}
    seconds = None if deadline_ms is None else deadline_ms / 1000
    return Call("POST", "/predict", lambda got: _answer(got, sent), _given(params), kept, body, True, seconds)


def feedback(answer: Answer | str, label: str, index: int) -> Call[Feedback]:
    """Say what an image of an answer really was."""
    answer_id = answer if isinstance(answer, str) else answer.id
    document = {"id": answer_id, "index": index, "label": label}
    return Call("POST", "/feedback", lambda got: build(Feedback, got.json()), body={"json": document})


def ready() -> Call[str]:
    """Ask whether the default model answers; the reason, empty if nothing is missing."""
    return Call("GET", "/readyz", lambda got: str(got.json()["reason"]), may_repeat=True)


def models() -> Call[list[Model]]:
    """List every model."""
    return _read(("models",), lambda got: [build(Model, each) for each in got["models"]])


def model(name: str) -> Call[Model]:
    """Show one model."""
    return _read(("models", name), lambda got: build(Model, got))


def register(name: str, file: str, num_workers: int | None, reason: str) -> Call[Version]:
    """Load an archive of the model store."""
    document = _given({"file": file, "num_workers": num_workers})
    return _change("POST", ("models", name, "versions"), document, reason, "", lambda got: build(Version, got))


def scale(name: str, version: str, num_workers: int, reason: str) -> Call[Version]:
    """Give a version another number of workers."""
    document = {"num_workers": num_workers}
    path = ("models", name, "versions", version)
    return _change("PATCH", path, document, reason, "", lambda got: build(Version, got))


def unregister(name: str, version: str, reason: str) -> Call[None]:
    """Drain and unload a version."""
    return _change("DELETE", ("models", name, "versions", version), None, reason, "", _nothing)


def traffic(name: str) -> Call[Traffic]:
    """Show how a model's requests are divided."""
    return _read(("models", name, "traffic"), lambda got: build(Traffic, got))


def set_traffic(
    name: str,
    weights: Mapping[str, float],
    shadows: Mapping[str, float] | None,
    sticky_header: str | None,
    based_on: Traffic | None,
    reason: str,
) -> Call[Traffic]:
    """Divide a model's requests."""
    document: dict[str, Any] = {"weights": dict(weights), "shadows": dict(shadows or {})}
    if sticky_header is not None:
        document["sticky_header"] = sticky_header or None
    return _change("PUT", ("models", name, "traffic"), document, reason, _match(based_on), _traffic)


def rollback(name: str, reason: str) -> Call[Traffic]:
    """Return all traffic to the version that last had 100 %."""
    return _change("POST", ("models", name, "rollback"), None, reason, "", _traffic)


def set_label(name: str, label: str, version: str, based_on: Traffic | None, reason: str) -> Call[Traffic]:
    """Point a label at a version."""
    path = ("models", name, "labels", label)
    return _change("PUT", path, {"version": version}, reason, _match(based_on), _traffic)


def delete_label(name: str, label: str, based_on: Traffic | None, reason: str) -> Call[Traffic]:
    """Remove a label."""
    return _change("DELETE", ("models", name, "labels", label), None, reason, _match(based_on), _traffic)


def shadows(name: str) -> Call[list[Shadow]]:
    """Compare the shadows' answers."""
    return _read(("models", name, "shadows"), lambda got: [build(Shadow, each) for each in got["shadows"]])


def quality(name: str) -> Call[dict[str, Any]]:
    """Show the quality of each version's recent answers, as JSON."""
    return _read(("models", name, "quality"), dict)


def events(name: str, limit: int | None, before: int | None) -> Call[list[Event]]:
    """List changes and refusals, the newest first."""
    params = _given({"limit": limit, "before": before})
    return _read(("models", name, "events"), lambda got: [build(Event, each) for each in got["events"]], params)


def rollouts(name: str) -> Call[list[Rollout]]:
    """List the last rollouts, the newest first."""
    return _read(("models", name, "rollouts"), lambda got: [build(Rollout, each) for each in got["rollouts"]])


def rollout(name: str, number: int) -> Call[Rollout]:
    """Show a rollout."""
    return _read(("models", name, "rollouts", str(number)), lambda got: build(Rollout, got))


def start_rollout(name: str, version: str, options: Mapping[str, Any], reason: str) -> Call[Rollout]:
    """Start a guarded rollout."""
    document = {"version": version, **_given(options)}
    return _change("POST", ("models", name, "rollouts"), document, reason, "", lambda got: build(Rollout, got))


def move_rollout(name: str, number: int, move: str, reason: str) -> Call[Rollout]:
    """Pause, resume, promote or abort a rollout."""
    path = ("models", name, "rollouts", str(number), move)
    return _change("POST", path, None, reason, "", lambda got: build(Rollout, got))


def profile(
    name: str, version: str, num_batches: int | None, wait_seconds: float | None, trace: bool, reason: str
) -> Call[dict[str, Any]]:
    """Profile a version's next batches, as JSON."""
    document = {**_given({"num_batches": num_batches, "wait_seconds": wait_seconds}), "trace": trace}
    return _change("POST", ("models", name, "versions", version, "profile"), document, reason, "", dict)


def problem_of(answer: httpx.Response) -> GatewayProblem | BadAnswer:
    """Return the error that an answer is."""
    try:
        document = answer.json()
        code, detail = str(document["code"]), str(document["detail"])
    except (ValueError, KeyError, TypeError):
        return stranger(answer)
    kind = GatewayProblem.by_code.get(code) or _kind(answer.status_code)
    after = answer.headers.get("retry-after", "")
    return kind(
        answer.status_code,
        code,
        detail,
        hint=str(document.get("hint") or ""),
        request_id=str(document.get("request_id") or ""),
        retry_after_seconds=int(after) if after.isdecimal() else None,
    )


def stranger(answer: httpx.Response) -> BadAnswer:
    """Return the error that another program's answer is."""
    return BadAnswer(f"HTTP {answer.status_code} from {answer.url}: this is no torchgate")


def _kind(status: int) -> type[GatewayProblem]:
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return Overloaded
    return Unavailable if status >= httpx.codes.INTERNAL_SERVER_ERROR else RequestRefused


def _answer(got: httpx.Response, images: Sequence[bytes]) -> Answer:
    document = got.json()
    try:
        predictions = [prediction(each) for each in document["predictions"]]
        metrics = dict(_metrics(got.headers.get("server-timing", "")))
        timing = Timing(float(got.headers["x-queue-ms"]), metrics.get("compute", 0.0), int(got.headers["x-batch-size"]))
        return Answer(
            str(document["id"]),
            str(document["model"]),
            str(document["version"]),
            predictions,
            timing,
            got.headers["x-request-id"],
            images,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadAnswer(f"no answer to a prediction as this client knows it: {error!r}") from error


def _metrics(header: str) -> list[tuple[str, float]]:
    """Return the durations of a Server-Timing header, in milliseconds."""
    found = []
    for each in header.split(","):
        name, *parameters = each.strip().split(";")
        found += [(name, float(part[4:])) for part in parameters if part.startswith("dur=")]
    return found


def _traffic(document: Any) -> Traffic:
    return build(Traffic, document)


def _nothing(_: Any) -> None:
    return None


def _read(path: Sequence[str], parse: Callable[[Any], T], params: Mapping[str, Any] | None = None) -> Call[T]:
    return Call("GET", _path(path), lambda got: parse(got.json()), params or {}, may_repeat=True)


def _change(
    method: str, path: Sequence[str], document: Any, reason: str, based_on: str, parse: Callable[[Any], T]
) -> Call[T]:
    params = {"reason": reason} if reason else {}
    headers = {"If-Match": based_on} if based_on else {}
    body = {} if document is None else {"json": document}

    def read(got: httpx.Response) -> T:
        return parse(got.json() if got.content else None)

    return Call(method, _path(path), read, params, headers, body)


def _match(based_on: Traffic | None) -> str:
    return ANYWAY if based_on is None else f'"{based_on.revision}"'


def _path(parts: Sequence[str]) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
