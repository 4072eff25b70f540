"""The Python client over a real gateway, in both its forms: the whole API, its errors, and its patience."""

import asyncio
import base64
import gzip
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchgate_client import (
    AsyncClient,
    BadAnswer,
    Client,
    FailedPrediction,
    RequestRefused,
    Unavailable,
    Unreachable,
    codes,
)
from torchgate_client.images import encoded

from deploy.reference.http_api import openapi
from tests.fake_backend import make_profile, make_trace
from tests.gateway import TOKEN, Rig, running_gateway
from tests.other_server import other_server

pytestmark = pytest.mark.anyio

VERSIONS = (("digits", "1.0", "fp32"), ("digits", "1.1", "fp32"))
# Of no use to programs, or read as they are: pages, streams and figures.
LEFT_OUT = {("get", path) for path in ("/", "/errors", "/status", "/status/events", "/healthz", "/metrics")}


class InThread:
    """The client without asyncio, with its calls made in threads, as the other one's are in tasks."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(method, *args, **kwargs)

        return call


@asynccontextmanager
async def client_of(rig: Rig, kind: str, **options: Any) -> AsyncIterator[Any]:
    given = {"token": TOKEN, **options}
    if kind == "async":
        async with AsyncClient(rig.url, **given) as client:
            yield client
    else:
        with Client(rig.url, **given) as client:
            yield InThread(client)


KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


@KINDS
async def test_the_whole_api(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: set[tuple[str, str]] = set()
    async with (
        running_gateway(tmp_path, VERSIONS, model_store_policy="all") as rig,
        client_of(rig, kind) as client,
    ):
        sender = client.client if kind == "sync" else client
        arguments = sender.arguments

        def noted(call: Any, seconds: float) -> Any:
            called.add((call.method, call.path))
            return arguments(call, seconds)

        monkeypatch.setattr(sender, "arguments", noted)
        await client.wait_until_ready()
        await rig.until_every_version_is_ready()
        assert (await client.set_traffic("digits", {"1.0": 100})).weights == {"1.0": 100}
        answer = await client.predict(b"class:1", top_k=2)
        assert (answer.label, answer.version, len(answer.only.top_k)) == ("one", "1.0", 2)
        assert answer.probability == pytest.approx(1)
        assert answer.timing.batch_size == 1
        assert answer.timing.queue_ms >= 0 < answer.timing.compute_ms
        given = await client.feedback(answer, "two")
        assert (given.predicted, given.label, given.correct) == ("one", "two", False)

        before = await client.traffic("digits")
        shared = await client.set_traffic("digits", {"1.0": 90, "1.1": 10}, based_on=before, reason="try it")
        assert shared.weights == {"1.0": 90, "1.1": 10}
        with pytest.raises(codes.RevisionStale):
            await client.set_traffic("digits", {"1.0": 50, "1.1": 50}, based_on=before)
        assert (await client.rollback("digits")).weights == {"1.0": 100}
        assert (await client.set_label("digits", "canary", "1.1")).labels == {"canary": "1.1"}
        assert (await client.predict(b"class:2", label="canary")).version == "1.1"
        assert (await client.delete_label("digits", "canary")).labels == {}

        rollout = await client.start_rollout("digits", "1.1", steps=[20, 100], min_seconds=3600)
        assert (rollout.state, rollout.percent) == ("running", 20)
        assert (await client.pause_rollout("digits", rollout.id)).state == "paused"
        assert (await client.resume_rollout("digits", rollout.id)).state == "running"
        assert {guard.name for guard in (await client.rollout("digits", rollout.id)).guards} >= {"errors", "p99"}
        assert (await client.abort_rollout("digits", rollout.id)).state == "aborted"
        second = await client.start_rollout("digits", "1.1")
        assert (await client.promote_rollout("digits", second.id, reason="good")).state == "succeeded"
        assert [each.id for each in await client.rollouts("digits")] == [second.id, rollout.id]

        assert (await client.scale("digits", "1.0", 2)).num_workers == 2
        await client.unregister("digits", "1.0")
        back = await client.register("digits", "digits-1.0.mar", num_workers=1)
        assert (back.version, back.classes) == ("1.0", ["zero", "one", "two", "three"])
        (model,) = await client.models()
        assert model == await client.model("digits")
        assert {each.version for each in model.versions} == {"1.0", "1.1"}
        assert await client.shadows("digits") == []
        assert {each["version"] for each in (await client.quality("digits"))["versions"]} == {"1.0", "1.1"}
        rig.backend.profile = make_profile(trace=make_trace("aten::conv"))
        profile = await client.profile("digits", "1.1", num_batches=1, wait_seconds=0, trace=True, reason="slow?")
        assert (profile["num_batches"], gzip.decompress(base64.b64decode(profile["trace"]))[:1]) == (1, b"{")
        assert (await client.events("digits", limit=1))[0].reason == "slow?"
        events = await client.events("digits", limit=100)
        assert "good" in {each.reason for each in events}
    document = openapi()
    for method, operations in ((m, p) for p, each in document["paths"].items() for m in each):
        if (method, operations) not in LEFT_OUT:
            pattern = re.sub(r"{\w+}", r"[^/]+", operations)
            assert any(m.lower() == method and re.fullmatch(pattern, p) for m, p in called), f"{method} {operations}"


@KINDS
async def test_many_images_and_one_that_is_unusable(tmp_path: Path, kind: str) -> None:
    async with running_gateway(tmp_path) as rig, client_of(rig, kind) as client:
        answer = await client.predict([b"class:0", b"reject:image_truncated", b"class:3"])
        first, bad, last = answer.predictions
        assert (first.label, last.label) == ("zero", "three")
        assert isinstance(bad, FailedPrediction)
        assert bad.code == "image_truncated"
        with pytest.raises(ValueError, match="3 predictions"):
            answer.only  # noqa: B018
        with pytest.raises(codes.ImageRejected) as caught:
            await client.predict(b"reject:image_truncated")
        assert caught.value.code == "image_truncated"
        with pytest.raises(ValueError, match="no image"):
            await client.predict([])


@KINDS
async def test_a_refusal_is_its_own_error_and_says_what_to_do(tmp_path: Path, kind: str) -> None:
    async with running_gateway(tmp_path) as rig, client_of(rig, kind, token=None, key=None) as client:
        with pytest.raises(codes.ModelNotFound) as caught:
            await client.predict(b"class:1", model="cats")
        error = caught.value
        assert isinstance(error, RequestRefused)
        assert (error.status, error.code) == (404, "model_not_found")
        assert error.detail == "Unknown model 'cats'; served: digits."
        assert error.hint.startswith("Use one of the served models")
        assert str(error) == f"model_not_found: {error.detail} {error.hint}"
        assert error.request_id
        with pytest.raises(codes.CredentialsMissing, match="torchgate token"):
            await client.set_label("digits", "canary", "1.0")


@KINDS
async def test_it_tries_again_when_the_gateway_says_so_and_no_longer_than_the_deadline(
    tmp_path: Path, kind: str
) -> None:
    async with running_gateway(tmp_path, quota_images_per_second=1, quota_burst_images=1) as rig:
        async with client_of(rig, kind) as client:
            await client.predict(b"class:1")
            started = time.monotonic()
            assert (await client.predict(b"class:2")).label == "two"  # after Retry-After
            assert time.monotonic() - started > 0.5
            with pytest.raises(codes.QuotaExceeded) as caught:
                await client.predict(b"class:3", deadline_ms=300)
            assert caught.value.retry_after_seconds == 1
        async with client_of(rig, kind, retries=0) as client:
            asked = (client.predict(b"class:1") for _ in range(3))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert any(isinstance(each, codes.QuotaExceeded) for each in answers)


@KINDS
async def test_a_gateway_that_is_not_there_or_none(kind: str) -> None:
    async with other_server("418 Teapot", b"hi") as rig, client_of(rig, kind) as client:
        with pytest.raises(BadAnswer, match="418"):
            await client.models()
    async with client_of(rig, kind, retries=1) as client:
        with pytest.raises(Unreachable, match=rig.url):
            await client.models()
        with pytest.raises(Unreachable):
            await client.wait_until_ready(0)


@KINDS
async def test_it_waits_until_a_version_is_ready(tmp_path: Path, kind: str) -> None:
    async with running_gateway(tmp_path, (), wait_until_ready=False) as rig, client_of(rig, kind, retries=0) as client:
        with pytest.raises(Unavailable):
            await client.ready()
        with pytest.raises(codes.NotReady):
            await client.predict(b"class:1")


def test_images_of_any_kind(tmp_path: Path) -> None:
    picture = Image.new("RGB", (8, 6), (200, 10, 10))
    picture.save(tmp_path / "x.png")
    png = (tmp_path / "x.png").read_bytes()
    assert encoded(tmp_path / "x.png") == encoded(str(tmp_path / "x.png")) == encoded(memoryview(png)) == png
    assert encoded(picture).startswith(b"\x89PNG")
    pixels = np.asarray(picture)
    assert encoded(pixels) == encoded(picture)
    assert encoded(pixels[:, :, :1]) == encoded(pixels[:, :, 0])
    tensor = encoded(np.moveaxis(pixels, 2, 0))
    assert tensor.startswith(b"\x93NUMPY")
    for wrong, words in (
        (pixels.astype(np.float32), "float32"),
        (np.zeros((2, 3, 4, 3), np.uint8), r"\(2, 3, 4, 3\)"),
        (np.zeros(3, np.uint8), r"\(3,\)"),
    ):
        with pytest.raises(ValueError, match=words):
            encoded(wrong)
    with pytest.raises(TypeError, match="dict is no image"):
        encoded({})
    with pytest.raises(OSError, match="nowhere"):
        encoded("nowhere.png")


@KINDS
async def test_a_document_that_is_none_of_a_gateway(kind: str) -> None:
    async with other_server("200 OK", b"{}") as rig, client_of(rig, kind, retries=0) as client:
        for call in (client.models(), client.traffic("digits"), client.ready(), client.predict(b"class:1")):
            with pytest.raises(BadAnswer):
                await call


@KINDS
async def test_credentials_of_any_alphabet_and_urls_that_are_none(tmp_path: Path, kind: str) -> None:
    async with running_gateway(tmp_path) as rig, client_of(rig, kind, token="wr\u00f6ng-horse") as client:
        with pytest.raises(codes.CredentialsWrong):
            await client.rollback("digits")
    for options in ({"token": "two\nlines"}, {"key": "two\nlines"}):
        with pytest.raises(ValueError, match="line break"):
            Client("http://127.0.0.1:9", **options)  # type: ignore[arg-type] # mypy takes any key for `timeout`
    with pytest.raises(ValueError, match=r"no URL of a gateway.*http://127\.0\.0\.1:8000"):
        Client("http://127.0.0.1:port")
