"""Calls to a TorchServe that serves the toy model."""

import json
from typing import Any

import grpc
import httpx

from service.backends.torchserve.inference_pb2 import PredictionResponse, PredictionsRequest
from tests.torchserve_process import TorchServeProcess

PREDICTIONS = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"


def by_rest(server: TorchServeProcess, items: list[bytes], options: dict[str, Any]) -> Any:
    parts = [(str(index), ("item", item, "application/octet-stream")) for index, item in enumerate(items)]
    form = [*parts, ("options", ("options", json.dumps(options).encode(), "application/json"))]
    response = httpx.post(f"{server.rest_url}/predictions/toy/1.0", files=form, timeout=60)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def grpc_predict(server: TorchServeProcess, inputs: dict[str, bytes], version: str = "1.0", timeout: float = 60) -> Any:
    with grpc.insecure_channel(server.grpc_target) as channel:
        predict = channel.unary_unary(
            PREDICTIONS,
            request_serializer=PredictionsRequest.SerializeToString,
            response_deserializer=PredictionResponse.FromString,
        )
        request = PredictionsRequest(model_name="toy", model_version=version, input=inputs)
        return json.loads(predict(request, timeout=timeout).prediction)


def by_grpc(server: TorchServeProcess, items: list[bytes], options: dict[str, Any]) -> Any:
    inputs = {str(index): item for index, item in enumerate(items)}
    return grpc_predict(server, {**inputs, "options": json.dumps(options).encode()})


def post(server: TorchServeProcess, content: bytes, **headers: str) -> httpx.Response:
    return httpx.post(f"{server.rest_url}/predictions/toy/1.0", content=content, headers=headers, timeout=60)
