"""POST /predict through the front door: every form of a request, and what is refused."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest

from service.errors.gateway import BackendFailed, BackendTimeout, BackendUnavailable
from service.http import body, prediction
from tests.gateway import running_gateway
from tests.service.problems import problem_of

pytestmark = pytest.mark.anyio


def b64(image: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(image).decode()}


async def test_one_image(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        answer = await rig.predict(b"class:2", params={"top_k": 2})
    assert answer.status_code == 200
    document = answer.json()
    assert document.pop("id")
    assert document == {
        "model": "digits",
        "version": "1.0",
        "predictions": [
            {
                "label": "two",
                "probability": 1.0,
                "top_k": [{"label": "two", "probability": 1.0}, {"label": "zero", "probability": 0.0}],
            }
        ],
    }
    assert answer.headers["x-model-version"] == "1.0"
    assert answer.headers["x-batch-size"] == "1"
    assert float(answer.headers["x-queue-ms"]) >= 0
    assert answer.headers["server-timing"].startswith("queue;dur=")
    assert 'batches;desc="1"' in answer.headers["server-timing"]


async def test_the_three_forms_of_a_body(tmp_path: Path) -> None:
    images = [b"class:0", b"class:3", b"class:1"]
    async with running_gateway(tmp_path) as rig:
        form = await rig.client.post("/predict", files=[("file", image) for image in images])
        document = await rig.client.post("/predict", json={"instances": [b64(image) for image in images]})
        bare = await rig.client.post("/predict", content=images[1])  # no content type: octets
        raw = await rig.predict(images[1], headers={"Content-Type": "application/octet-stream"})
    for answer in (form, document):
        assert [p["label"] for p in answer.json()["predictions"]] == ["zero", "three", "one"]
        assert answer.headers["x-batch-size"] == "3"
    for answer in (bare, raw):
        assert [p["label"] for p in answer.json()["predictions"]] == ["three"]


async def test_a_version_is_chosen(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        answer = await rig.predict(b"class:1", params={"model": "digits", "version": "1.0-int8-dynamic"})
        assert answer.json()["version"] == answer.headers["x-model-version"] == "1.0-int8-dynamic"
        problem_of(await rig.predict(b"class:1", params={"model": "cats"}), 404, "model_not_found")
        problem = problem_of(await rig.predict(b"class:1", params={"version": "9"}), 404, "version_not_found")
    assert problem["detail"] == "Model 'digits' has no version '9'; served: 1.0, 1.0-int8-dynamic."


async def test_a_bad_image_fails_alone(tmp_path: Path) -> None:
    images = [b"class:0", b"reject:image_truncated", b"class:1"]
    async with running_gateway(tmp_path) as rig:
        answer = await rig.client.post("/predict", files=[("file", image) for image in images])
        broken = await rig.client.post("/predict", json={"instances": [{"b64": "%%%"}, b64(b"class:2")]})
        only_broken = await rig.client.post("/predict", json={"instances": [{"b64": "%%%"}]})
        alone = await rig.predict(b"reject:image_truncated")
    first, second, third = answer.json()["predictions"]
    assert (first["label"], third["label"]) == ("zero", "one")
    assert second == {"error": {"code": "image_truncated", "message": "rejected as image_truncated"}}
    first, second = broken.json()["predictions"]
    assert first["error"]["code"] == "base64_invalid"
    assert second["label"] == "two"
    problem_of(only_broken, 400, "base64_invalid")
    problem_of(alone, 400, "image_truncated")


@pytest.mark.parametrize(
    ("params", "headers", "named"),
    [
        ({"top_k": "0"}, {}, "top_k"),
        ({"top_k": "many"}, {}, "top_k"),
        ({"topk": "3"}, {}, "topk"),
        ({}, {"X-Deadline-Ms": "0"}, "x-deadline-ms"),
        ({}, {"X-Deadline-Ms": "soon"}, "x-deadline-ms"),
        ({}, {"X-Deadline-Ms": "60001"}, "60000"),
    ],
)
async def test_bad_parameters(tmp_path: Path, params: dict[str, str], headers: dict[str, str], named: str) -> None:
    async with running_gateway(tmp_path) as rig:
        answer = await rig.predict(b"class:1", params=params, headers=headers)
        problem = problem_of(answer, 422, "parameter_invalid")
        assert not rig.backend.batches
    assert named in problem["detail"].lower()


@pytest.mark.parametrize(
    ("content", "content_type", "status", "code", "named"),
    [
        (b"x", "text/plain", 415, "media_type_unsupported", "multipart/form-data"),
        (b"x", "application/x-www-form-urlencoded", 415, "media_type_unsupported", "image/*"),
        (b"not json", "application/json", 400, "body_invalid", "Invalid JSON"),
        (b"{}", "application/json", 400, "body_invalid", "instances"),
        (b'{"instances": []}', "application/json", 400, "body_invalid", "no image"),
        (b'{"instances": [{"base64": "eA=="}]}', "application/json", 400, "body_invalid", "instances.0.b64"),
        (b"x", "multipart/form-data", 400, "body_invalid", "boundary"),
        (b"x", "multipart/form-data; boundary=b", 400, "body_invalid", "multipart"),
        (b"--b\r\n", "multipart/form-data; boundary=b", 400, "body_invalid", "end"),
        (
            b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\nclass:1\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
            400,
            "body_invalid",
            "'image'",
        ),
        (b"--b--\r\n", "multipart/form-data; boundary=b", 400, "body_invalid", "no image"),
    ],
)
async def test_bad_bodies(
    tmp_path: Path, content: bytes, content_type: str, status: int, code: str, named: str
) -> None:
    async with running_gateway(tmp_path) as rig:
        answer = await rig.predict(content, headers={"Content-Type": content_type})
        problem = problem_of(answer, status, code)
        assert not rig.backend.batches
    assert named in problem["detail"]


async def test_a_compressed_body_is_refused(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        answer = await rig.predict(b"class:1", headers={"Content-Encoding": "gzip"})
        problem_of(answer, 415, "media_type_unsupported")


async def test_too_many_images(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_images=2) as rig:
        files = [("file", b"class:1")] * 3
        problem_of(await rig.client.post("/predict", files=files), 413, "too_many_images")
        instances = {"instances": [b64(b"class:1")] * 3}
        problem_of(await rig.client.post("/predict", json=instances), 413, "too_many_images")
        assert (await rig.client.post("/predict", files=files[:2])).status_code == 200
        assert await rig.metric("torchgate_rejected_total", reason="too_large") == 2


async def test_a_large_request_is_split_into_batches(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, max_batch_size=4) as rig:
        files = [("file", f"class:{index % 4}".encode()) for index in range(10)]
        answer = await rig.client.post("/predict", files=files)
        sizes = sorted(len(batch) for batch in rig.backend.batches)
    labels = [prediction["label"] for prediction in answer.json()["predictions"]]
    assert labels == [["zero", "one", "two", "three"][index % 4] for index in range(10)]
    assert sizes == [2, 4, 4]
    assert 'batches;desc="3"' in answer.headers["server-timing"]
    assert answer.headers["x-batch-size"] == "4"


async def test_each_caller_gets_its_own_top_k(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        slot = await rig.fill_the_slot()
        few = asyncio.create_task(rig.predict(b"class:1", params={"top_k": 1}))
        many = asyncio.create_task(rig.predict(b"class:2", params={"top_k": 99}))
        await rig.until_queued(2)
        rig.backend.release()
        assert len((await few).json()["predictions"][0]["top_k"]) == 1
        assert len((await many).json()["predictions"][0]["top_k"]) == 4
        assert rig.backend.options[-1].top_k == 4
        assert (await slot).status_code == 200


async def test_request_ids(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        given = await rig.predict(b"class:1", headers={"X-Request-Id": "abc-123"})
        bad = await rig.predict(b"class:1", headers={"X-Request-Id": "has a blank"})
        longest = await rig.predict(b"class:1", headers={"X-Request-Id": "x" * 129})
        none = await rig.client.get("/nowhere")
    assert given.headers["x-request-id"] == "abc-123"
    assert given.json()["id"] != "abc-123"
    assert len(bad.headers["x-request-id"]) == len(longest.headers["x-request-id"]) == 32
    problem_of(none, 404, "route_not_found")


async def test_a_method_that_is_not_allowed(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        answer = await rig.client.get("/predict")
    problem_of(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BackendUnavailable("gone"), 503, "backend_unavailable"),
        (BackendFailed("odd"), 503, "backend_failed"),
        (BackendTimeout(30), 504, "backend_timeout"),
        (RuntimeError("a secret"), 500, "internal_error"),
    ],
)
async def test_a_batch_without_an_answer(tmp_path: Path, error: Exception, status: int, code: str) -> None:
    async with running_gateway(tmp_path) as rig:
        rig.backend.fails_with = error
        answer = await rig.predict(b"class:1")
        problem_of(answer, status, code)
        assert "secret" not in answer.text
        rig.backend.fails_with = None
        assert (await rig.predict(b"class:1")).status_code == 200
        errors = await rig.metric("torchgate_inference_requests_total", version="1.0", outcome="server_error")
        assert errors == 1


@pytest.mark.parametrize(("module", "step"), [(body, "split_body"), (prediction, "answer_body")])
async def test_a_mistake_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a secret")

    # Room for one body: what a failed request took of it has to come back.
    async with running_gateway(tmp_path, max_body_bytes=10, max_batch_bytes=10, max_buffered_bytes=20) as rig:
        with monkeypatch.context() as patched:
            patched.setattr(module, step, broken)
            for content in (b"class:1", chunks(b"class:1")):
                answer = await rig.client.post("/predict", content=content)
                problem_of(answer, 500, "internal_error")
                assert "secret" not in answer.text
        assert (await rig.predict(b"class:1")).status_code == 200
        assert await rig.metric("torchgate_http_requests_total", route="/predict", code="500") == 2


async def chunks(content: bytes) -> AsyncIterator[bytes]:
    """Send a body in two pieces."""
    yield content[:3]
    yield content[3:]


async def test_metrics_count_what_happened(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        await rig.client.post("/predict", files=[("file", b"class:1")] * 3)
        await rig.predict(b"reject:image_empty")
        version = {"model": "digits", "version": "1.0"}
        assert await rig.metric("torchgate_inference_requests_total", **version, outcome="success") == 1
        assert await rig.metric("torchgate_inference_requests_total", **version, outcome="client_error") == 1
        assert await rig.metric("torchgate_inference_items_total", **version) == 4
        assert await rig.metric("torchgate_inference_batches_total", **version) == 2
        assert await rig.metric("torchgate_batch_size_sum", **version) == 4
        assert await rig.metric("torchgate_batch_close_total", **version, reason="idle") == 2
        assert await rig.metric("torchgate_inference_queue_seconds_count", **version) == 1
        assert await rig.metric("torchgate_inference_compute_seconds_count", **version) == 2
        assert await rig.metric("torchgate_inference_duration_seconds_count", **version, outcome="success") == 1
        http = {"method": "POST", "route": "/predict"}
        assert await rig.metric("torchgate_http_requests_total", **http, code="200") == 1
        assert await rig.metric("torchgate_http_requests_total", **http, code="400") == 1
        assert await rig.metric("torchgate_http_requests_total", route="/readyz", code="200") >= 1
        await rig.until("torchgate_backend_workers", 1, **version, state="ready")
        assert await rig.metric("torchgate_backend_up") == 1
        assert await rig.metric("torchgate_model_ready", **version) == 1


async def test_openapi_shows_the_contract(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        document = (await rig.client.get("/openapi.json")).json()
        assert (await rig.client.get("/docs")).status_code == 200
    predict = document["paths"]["/predict"]["post"]
    assert set(predict["requestBody"]["content"]) >= {"image/*", "multipart/form-data", "application/json"}
    answer = predict["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["$ref"].endswith("/PredictAnswer")
    assert {"200", "400", "413", "429", "503", "504"} <= set(predict["responses"])
    assert "application/problem+json" in predict["responses"]["422"]["content"]
    assert {each["name"] for each in predict["parameters"]} == {
        *("model", "version", "label", "top_k"),
        *("x-deadline-ms", "x-priority", "x-routing-key"),
    }
    assert json.dumps(document)
