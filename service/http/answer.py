"""The answer to POST /predict: its id, its JSON document and its headers."""

import json
from collections.abc import Sequence
from typing import Any

import orjson

from service.batching.queue import InferenceRequest
from service.domain.backend import ItemError, ItemResult, Ranking
from service.errors.gateway import GatewayError
from service.monitoring.signed_ids import NO_CLASS, PredictionIds
from service.serving.model_version import ModelVersion


def issue_id(model_version: ModelVersion, call: InferenceRequest, prediction_ids: PredictionIds) -> str:
    """Return the id of the answer to a call whose images are all answered."""
    best = [result.top_k[0][0] if isinstance(result, Ranking) else NO_CLASS for result in call.results]
    return prediction_ids.issue(model_version.target_bytes, best)


def answer_body(model_version: ModelVersion, call: InferenceRequest, answer_id: str) -> bytes:
    """Return the JSON document of a call whose images are all answered."""
    classes, target = model_version.contract.classes, model_version.target
    predictions = [_prediction(result, call.top_k, classes) for result in call.results]
    document = {"id": answer_id, "model": target.model, "version": target.version, "predictions": predictions}
    try:
        return orjson.dumps(document)  # a float becomes the shortest text that reads back as the same float
    except orjson.JSONEncodeError:  # a class named after a folder whose name is not UTF-8
        return json.dumps(document).encode()


def answer_headers(model_version: ModelVersion, call: InferenceRequest, num_bytes: int) -> list[tuple[bytes, bytes]]:
    """Return the headers: the version that answered, and how the images were batched."""
    queue_ms = f"{call.queue_seconds * 1000:.3f}"
    compute_ms = f"{call.compute_seconds * 1000:.3f}"
    timing = (
        f'queue;dur={queue_ms}, compute;dur={compute_ms}, batches;desc="{call.num_batches}", '
        f'limit;desc="{call.batch_limit}", closed;desc="{call.close_reason}"'
    )
    return [
        (b"content-type", b"application/json"),
        (b"content-length", str(num_bytes).encode()),
        (b"x-model-version", model_version.target.version.encode()),
        (b"x-batch-size", str(call.largest_batch).encode()),
        (b"x-queue-ms", queue_ms.encode()),
        (b"server-timing", timing.encode()),
    ]


def _prediction(result: ItemResult | GatewayError | None, top_k: int, classes: Sequence[str]) -> dict[str, Any]:
    match result:
        case Ranking():
            # The batch was asked for the largest top_k in it; this caller may have wanted fewer.
            top = [{"label": classes[index], "probability": probability} for index, probability in result.top_k[:top_k]]
            return {**top[0], "top_k": top}
        case ItemError(code, message):
            return {"error": {"code": code, "message": message}}
        case GatewayError():
            return {"error": {"code": result.code, "message": str(result)}}
        case _:
            raise AssertionError(f"a call was answered with {result!r} in it")
