"""The answer to POST /predict: written as JSON without a detour over dictionaries."""

import json
from collections.abc import Sequence
from functools import lru_cache

from service.batching.request import InferenceRequest
from service.domain.backend import ItemError, ItemResult, Ranking
from service.errors.gateway import GatewayError
from service.monitoring.signed_ids import NO_CLASS, PredictionIds
from service.serving.model_version import ModelVersion

MAX_CACHED_NAMES = 1024


def issue_id(model_version: ModelVersion, call: InferenceRequest, prediction_ids: PredictionIds) -> str:
    """Return the id of the answer to a call whose images are all answered."""
    best = [result.top_k[0][0] if isinstance(result, Ranking) else NO_CLASS for result in call.results]
    return prediction_ids.issue(model_version.target_bytes, best)


def answer_body(model_version: ModelVersion, call: InferenceRequest, answer_id: str) -> bytes:
    """Return the JSON document of a call whose images are all answered."""
    labels = model_version.contract.quoted_classes
    predictions = ",".join([_prediction(result, call.top_k, labels) for result in call.results])
    named = _named(model_version.target.model, model_version.target.version)
    return f'{{"id":"{answer_id}",{named},"predictions":[{predictions}]}}'.encode()


def answer_headers(model_version: ModelVersion, call: InferenceRequest, num_bytes: int) -> list[tuple[bytes, bytes]]:
    """Return the headers that say which version answered, and how its images were batched."""
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


def _prediction(result: ItemResult | GatewayError | None, top_k: int, labels: Sequence[str]) -> str:
    if isinstance(result, Ranking):
        # The batch was asked for the largest top_k in it; this caller may have wanted fewer.
        # A float's repr is the shortest text that reads back as the same float, as in json.dumps.
        top = [
            f'{{"label":{labels[index]},"probability":{probability!r}}}' for index, probability in result.top_k[:top_k]
        ]
        return f'{top[0][:-1]},"top_k":[{",".join(top)}]}}'
    match result:
        case ItemError(code, message):
            return json.dumps({"error": {"code": code, "message": message}})
        case GatewayError():
            return json.dumps({"error": {"code": result.code, "message": str(result)}})
        case _:
            raise AssertionError(f"a call was answered with {result!r} in it")


@lru_cache(MAX_CACHED_NAMES)
def _named(model: str, version: str) -> str:
    return f'"model":{json.dumps(model)},"version":{json.dumps(version)}'
