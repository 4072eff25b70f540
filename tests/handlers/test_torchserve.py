"""The handler and its configuration inside a real TorchServe, over REST and gRPC."""

import http.server
import os
import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests import images
from tests.handlers.archives import checked_contract, make_archive, toy_graph
from tests.handlers.calls import by_grpc, by_rest, grpc_predict, post
from tests.torchserve_process import ROOT, TorchServeProcess, wait_until

BOTH = pytest.mark.parametrize("predict", [by_rest, by_grpc])
Predict = Callable[[TorchServeProcess, list[bytes], dict[str, Any]], Any]


# Predictions


def test_the_same_batch_is_the_same_to_the_bit_over_rest_over_grpc_and_in_the_graph(
    torchserve: TorchServeProcess,
) -> None:
    # The handler gives the portable form contiguous batches. np.stack alone keeps the channels last in memory: on AVX2,
    # oneDNN has another kernel for that, whose answers differ by up to 9e-8.
    arrays = np.ascontiguousarray(np.stack([images.pattern(seed=seed).transpose(2, 0, 1) for seed in range(64)]))
    pictures = [images.rgb_png(seed=seed) for seed in range(64)]
    tensors = [images.npy(array) for array in arrays]
    with torch.inference_mode():
        expected = toy_graph()(torch.from_numpy(arrays))
    for items in (pictures, tensors):
        for predict in (by_rest, by_grpc):
            results = predict(torchserve, items, {"top_k": 5, "probabilities": True})["results"]
            answered = torch.tensor([result["probabilities"] for result in results])
            assert torch.equal(answered, expected)


@BOTH
def test_a_batch_has_a_result_or_an_error_for_each_item(torchserve: TorchServeProcess, predict: Predict) -> None:
    good = images.rgb_png()
    items = [
        good,
        b"",
        b"junk",
        images.truncated_png(),
        images.bomb_png(),
        images.float_tiff(),
        images.npy(np.zeros(3)),
    ]
    answer = predict(torchserve, [*items, good], {"top_k": 2})
    first, *errors, last = answer["results"]
    assert first == last == predict(torchserve, [good, good], {"top_k": 2})["results"][0]
    assert [error["error"]["code"] for error in errors] == [
        *("image_empty", "image_unrecognized", "image_truncated", "image_too_many_pixels"),
        *("image_unsupported", "tensor_invalid"),
    ]
    assert set(answer["timings_ms"]) == {"decode", "compute"}


@BOTH
def test_batches_beyond_torchserves_default_of_6_mb_pass(torchserve: TorchServeProcess, predict: Predict) -> None:
    items = [images.random_bytes(1_000_000, seed) for seed in range(40)]
    results = predict(torchserve, items, {})["results"]
    assert [result["error"]["code"] for result in results] == ["image_unrecognized"] * 40


def test_a_plain_image_gets_names_of_classes_whatever_its_content_type(torchserve: TorchServeProcess) -> None:
    content = images.rgb_png()
    answer = grpc_predict(torchserve, {"data": content})
    assert answer["label"] == answer["top_k"][0]["label"] == "class-0"
    assert len(answer["top_k"]) == 5
    for content_type in ("image/png", "application/octet-stream", "application/json", "text/plain"):
        response = post(torchserve, content, **{"Content-Type": content_type})
        assert (response.status_code, response.json()) == (200, answer)
    text = b"P2 2 2 255\n0 255 255 0\n"  # an image that is text, too
    assert post(torchserve, text, **{"Content-Type": "text/plain"}).status_code == 200
    put = httpx.put(f"{torchserve.rest_url}/predictions/toy/1.0", content=content)  # what curl -T sends
    assert (put.status_code, put.json()) == (200, answer)


@pytest.mark.parametrize(("content", "code"), [(b"junk", "image_unrecognized"), (b"", "image_empty")])
def test_a_plain_bad_image_is_a_400_with_code_and_message(
    torchserve: TorchServeProcess, content: bytes, code: str
) -> None:
    response = post(torchserve, content)
    assert (response.status_code, response.json()["code"]) == (400, code)
    assert response.json()["message"]
    # gRPC has no status for it: TorchServe drops the handler's.
    assert grpc_predict(torchserve, {"data": content})["code"] == code


def test_a_malformed_request_is_a_400(torchserve: TorchServeProcess) -> None:
    form = {"1": ("item", b"x"), "options": (None, b"{}")}
    response = httpx.post(f"{torchserve.rest_url}/predictions/toy/1.0", files=form)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "request_invalid")
    assert grpc_predict(torchserve, {})["error"]["code"] == "request_invalid"


# Management


def test_describe_answers_the_contract(torchserve: TorchServeProcess) -> None:
    url = f"{torchserve.management_url}/models/toy/1.0"
    (description,) = httpx.get(url, params={"customized": "true"}, timeout=30).json()
    contract = description["customizedMetadata"]
    runtime = contract.pop("runtime")
    assert contract == checked_contract()
    (worker,) = torchserve.workers()
    assert (runtime["pid"], runtime["num_threads"], runtime["device"]) == (worker.pid, 1, "cpu")
    assert (description["workers"][0]["status"], description["batchSize"]) == ("READY", 1)


def test_registering_twice_is_a_409_and_the_unknown_a_404(torchserve: TorchServeProcess) -> None:
    again = torchserve.register("toy-1.0.mar")
    assert (again.status_code, again.json()["type"]) == (409, "ConflictStatusException")
    assert torchserve.register("nothing-1.0.mar").status_code == 404


def test_a_failed_self_check_is_a_failed_registration_and_the_log_says_why(torchserve: TorchServeProcess) -> None:
    answer = torchserve.register("toy-6.6.mar")
    assert (answer.status_code, answer.json()["message"]) == (
        500,
        "Failed to start workers for model toy version: 6.6",
    )
    reason = "toy cannot be loaded: RuntimeError: Self-check case 0 is off by 0.5, tolerance 0.0001"
    wait_until(lambda: reason in torchserve.log)
    # TorchServe keeps the version, without workers; whoever registers must remove it before the next attempt.
    url = f"{torchserve.management_url}/models/toy/6.6"
    (description,) = httpx.get(url).json()
    assert (description["minWorkers"], description["workers"]) == (0, [])
    assert torchserve.register("toy-6.6.mar").status_code == 409
    assert httpx.delete(url, timeout=60).status_code == 200


def test_metrics_are_there_for_prometheus(torchserve: TorchServeProcess) -> None:
    by_grpc(torchserve, [images.rgb_png()], {})
    text = httpx.get(f"{torchserve.metrics_url}/metrics").text
    assert re.search(r'ts_inference_requests_total\{model_name="toy",model_version="1\.0".*\} [1-9]', text)


def test_healthy_requests_are_not_logged(torchserve: TorchServeProcess) -> None:
    before = torchserve.log
    for _ in range(3):
        assert post(torchserve, images.rgb_png()).status_code == 200
    assert torchserve.log == before


@pytest.fixture
def web_server(store: Path) -> Iterator[tuple[str, list[str]]]:
    """A web server that offers an archive, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write((store / "toy-1.1.mar").read_bytes())

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/outside-1.0.mar", asked
    server.shutdown()
    thread.join(10)
    server.server_close()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder outside the store with outside-1.0.mar and the same archive unpacked, as outside/."""
    contract = {**checked_contract(), "model": "outside"}
    packed = make_archive(tmp_path, tmp_path, contract)
    unpacked = tmp_path / "outside"
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(unpacked)
    return tmp_path


def test_archives_come_from_the_store_only(
    torchserve: TorchServeProcess, store: Path, outside: Path, web_server: tuple[str, list[str]]
) -> None:
    web_url, asked = web_server
    before = sorted(store.iterdir())
    urls = [
        web_url,
        web_url.replace("http", "HTTP"),
        f"file://{outside}/outside-1.0.mar",
        f"file:{outside}/outside-1.0.mar",
        f"FILE://{outside}/outside-1.0.mar",
        f"jar:file:{outside}/outside-1.0.mar",
        f"{outside}/outside-1.0.mar",
        f"{outside}/outside",
        f"{outside}/outside/",
        os.path.relpath(outside / "outside-1.0.mar", store),
        f"../{outside.name}/outside-1.0.mar",
        "outside-1.0.mar",
    ]
    for url in urls:
        response = torchserve.register(url)
        assert response.status_code >= 400, (url, response.text)
    assert httpx.get(f"{torchserve.management_url}/models").json()["models"] == [
        {"modelName": "toy", "modelUrl": "toy-1.0.mar"}
    ]
    assert asked == []
    assert sorted(store.iterdir()) == before


# Configuration


def settings() -> dict[str, str]:
    lines = (ROOT / "handlers" / "torchserve.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_every_setting_has_its_reason_above_it() -> None:
    blocks = (ROOT / "handlers" / "torchserve.properties").read_text().split("\n\n")
    for block in blocks:
        assert block.startswith("#"), block


def test_all_addresses_are_loopback_by_default() -> None:
    addresses = {key: value for key, value in settings().items() if key.endswith("_address")}
    assert len(addresses) == 5
    assert all("127.0.0.1" in value for value in addresses.values())
