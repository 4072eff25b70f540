"""The same 64 images by seven ways: eager, the .pt file, TorchServe by REST and gRPC, the gateway by one, all, many."""

import asyncio
import io
import json
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from service.backends.torchserve.grpc import PREDICTIONS
from service.backends.torchserve.inference_pb2 import PredictionResponse, PredictionsRequest
from tests.gateway import GatewayProcess
from tests.stack import Trained
from tests.torchserve_process import TorchServeProcess
from training.artifacts import Run
from training.data.dataset import load_split
from training.export.graph_file import load_compiled
from training.int8.quantize import load_variant

NUM_IMAGES = 64
MODEL = "synthetic"
TOLERANCE = {"1.0": 1e-4, "1.0-int8-dynamic": 2e-2, "1.0-int8-static": 1e-6}
Probabilities = npt.NDArray[np.float32]  # [N, num_classes]


@dataclass(frozen=True)
class Batch:
    """64 held-out images: as tensors uint8 [N, C, H, W] and as PNG files."""

    tensors: torch.Tensor
    files: list[bytes]


@pytest.fixture(scope="module")
def batch(trained: Trained) -> Batch:
    return held_out_batch(Run(trained.run))


def held_out_batch(run: Run) -> Batch:
    """Return 64 images that were not trained on."""
    held_out = torch.cat([load_split(run, "test")[0], load_split(run, "validation")[0]])[:NUM_IMAGES]
    assert len(held_out) == NUM_IMAGES
    return Batch(held_out, [png(image) for image in held_out])


def png(image: torch.Tensor) -> bytes:
    """Return uint8 [C, H, W] as a PNG file."""
    pixels = image.numpy()
    stream = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module")
def classes(gateway: GatewayProcess) -> list[str]:
    return classes_of(gateway)


def classes_of(gateway: GatewayProcess) -> list[str]:
    """Return the names of the model's classes, in the order of its probabilities."""
    document = httpx.get(f"{gateway.url}/models/{MODEL}", trust_env=False).json()
    names: list[str] = document["versions"][0]["contract"]["classes"]
    return names


def packed(files: list[bytes]) -> dict[str, bytes]:
    options = json.dumps({"top_k": 1, "probabilities": True}).encode()
    return {**{str(index): file for index, file in enumerate(files)}, "options": options}


def unpack(body: bytes) -> Probabilities:
    return np.array([result["probabilities"] for result in json.loads(body)["results"]], np.float32)


def directly_by_rest(torchserve: TorchServeProcess, version: str, files: list[bytes]) -> Probabilities:
    parts = {key: (key, value) for key, value in packed(files).items()}
    url = f"{torchserve.rest_url}/predictions/{MODEL}/{version}"
    return unpack(httpx.post(url, files=parts, timeout=60, trust_env=False).raise_for_status().content)


def directly_by_grpc(torchserve: TorchServeProcess, version: str, files: list[bytes]) -> Probabilities:
    request = PredictionsRequest(model_name=MODEL, model_version=version, input=packed(files))
    with grpc.insecure_channel(torchserve.grpc_target) as channel:
        predict = channel.unary_unary(
            PREDICTIONS,
            request_serializer=PredictionsRequest.SerializeToString,
            response_deserializer=PredictionResponse.FromString,
        )
        return unpack(predict(request, timeout=60).prediction)


def from_answer(document: dict[str, Any], version: str, classes: list[str]) -> Probabilities:
    """Return the whole vectors of an answer that lists every class."""
    assert document["version"] == version
    rows = []
    for prediction in document["predictions"]:
        by_label = {each["label"]: each["probability"] for each in prediction["top_k"]}
        assert prediction["label"] == max(by_label, key=by_label.__getitem__)
        rows.append([by_label[label] for label in classes])
    return np.array(rows, np.float32)


def by_the_gateway_at_once(gateway: GatewayProcess, version: str, files: list[bytes]) -> tuple[dict[str, Any], int]:
    answer = httpx.post(
        f"{gateway.url}/predict",
        params={"version": version, "top_k": 1000},
        files=[("file", file) for file in files],
        timeout=60,
        trust_env=False,
    ).raise_for_status()
    return answer.json(), int(answer.headers["x-batch-size"])


async def by_many_clients(gateway: GatewayProcess, version: str, files: list[bytes]) -> list[dict[str, Any]]:
    """Send every image on a connection of its own, all at once."""
    limits = httpx.Limits(max_connections=len(files))
    async with httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as client:
        answers = await asyncio.gather(
            *(
                client.post(
                    f"{gateway.url}/predict",
                    params={"version": version, "top_k": 1000},
                    content=file,
                    headers={"Content-Type": "image/png"},
                )
                for file in files
            )
        )
    return [answer.raise_for_status().json() for answer in answers]


@pytest.mark.parametrize("version", list(TOLERANCE))
def test_every_way_gives_the_same_answers(
    trained: Trained,
    loaded_torchserve: TorchServeProcess,
    gateway: GatewayProcess,
    batch: Batch,
    classes: list[str],
    version: str,
) -> None:
    check_every_way(Run(trained.run), loaded_torchserve, gateway, batch, classes, version, TOLERANCE[version])


def check_every_way(
    run: Run,
    torchserve: TorchServeProcess,
    gateway: GatewayProcess,
    batch: Batch,
    classes: list[str],
    version: str,
    tolerance: float,
) -> None:
    """Assert that one version's answers agree by all seven ways."""
    variant: Any = version.removeprefix("1.0").lstrip("-") or "fp32"
    with torch.inference_mode():
        eager = load_variant(run, variant).eval()(batch.tensors).numpy()
        file = load_compiled(run.graph(variant))(batch.tensors).numpy()
    by_rest = directly_by_rest(torchserve, version, batch.files)
    by_grpc = directly_by_grpc(torchserve, version, batch.files)
    for _ in range(10):  # a worker's share follows how many images were there at once of late
        document, batch_size = by_the_gateway_at_once(gateway, version, batch.files)
        if NUM_IMAGES % batch_size == 0:
            break
    at_once = from_answer(document, version, classes)
    one_by_one = np.concatenate(
        [from_answer(by_the_gateway_at_once(gateway, version, [one])[0], version, classes) for one in batch.files]
    )
    many = asyncio.run(by_many_clients(gateway, version, batch.files))
    by_many = np.concatenate([from_answer(each, version, classes) for each in many])

    # The same graph and the same batch: equal to the bit.
    np.testing.assert_array_equal(by_grpc, by_rest)
    assert NUM_IMAGES % batch_size == 0  # so each batch had as many
    parts = [batch.files[start : start + batch_size] for start in range(0, NUM_IMAGES, batch_size)]
    by_parts = np.concatenate([directly_by_rest(torchserve, version, part) for part in parts])
    np.testing.assert_array_equal(at_once, by_parts)
    # Another graph or another batch: the same class, and probabilities within the tolerance.
    ways = {"eager": eager, "file": file, "at once": at_once, "one by one": one_by_one, "many": by_many}
    for name, probabilities in ways.items():
        difference = float(np.abs(probabilities - by_rest).max())
        print(f"{version}: {name} differs from one batch in TorchServe by at most {difference:.2e}")
        assert difference <= tolerance, name
        if variant in ("fp32", "aoti"):
            np.testing.assert_array_equal(probabilities.argmax(1), by_rest.argmax(1), err_msg=name)


def test_a_plain_image_straight_to_torchserve(
    loaded_torchserve: TorchServeProcess, gateway: GatewayProcess, batch: Batch
) -> None:
    url = f"{loaded_torchserve.rest_url}/predictions/{MODEL}/1.0"
    plain = httpx.put(url, content=batch.files[0], timeout=60, trust_env=False).raise_for_status().json()
    document, _ = by_the_gateway_at_once(gateway, "1.0", batch.files[:1])
    assert plain == document["predictions"][0]


def test_a_tensor_is_an_image_too(gateway: GatewayProcess, batch: Batch) -> None:
    stream = io.BytesIO()
    np.save(stream, batch.tensors[0].numpy())
    answer = httpx.post(f"{gateway.url}/predict", content=stream.getvalue(), timeout=60, trust_env=False)
    document, _ = by_the_gateway_at_once(gateway, "1.0", batch.files[:1])
    assert answer.json()["predictions"] == document["predictions"]
