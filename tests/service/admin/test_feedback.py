"""Right labels come back with the answer's id, which nobody can make up."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.domain.backend import Target
from service.monitoring.signed_ids import NO_CLASS, PredictionIdInvalid, PredictionIds, target_bytes
from tests.gateway import Rig, running_gateway

pytestmark = pytest.mark.anyio


async def give(rig: Rig, **body: Any) -> httpx.Response:
    return await rig.client.post("/feedback", json=body)


async def test_labels_are_counted_once_for_each_image(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        form = [("file", (f"{n}.png", b"class:%d" % n, "image/png")) for n in range(2)]
        bad = ("file", ("bad.png", b"reject:bad_image", "image/png"))
        answer = (await rig.client.post("/predict", files=[*form, bad])).json()
        right = await give(rig, id=answer["id"], label="zero")
        wrong = await give(rig, id=answer["id"], index=1, label="three")
        assert (right.status_code, right.json()["correct"], right.json()["version"]) == (200, True, "1.0")
        assert (wrong.json()["predicted"], wrong.json()["correct"]) == ("one", False)
        again = await give(rig, id=answer["id"], index=1, label="one")
        assert (again.status_code, again.json()["code"]) == (409, "feedback_repeated")
        for index in (2, 3):
            nothing = await give(rig, id=answer["id"], index=index, label="one")
            assert (nothing.status_code, nothing.json()["code"]) == (422, "feedback_forged")
        unknown = await give(rig, id=answer["id"], label="eleven")
        assert (unknown.status_code, unknown.json()["code"]) == (422, "label_unknown")
        assert await rig.metric("torchgate_feedback_total", result="correct", version="1.0") == 1
        assert await rig.metric("torchgate_feedback_total", result="wrong", version="1.0") == 1
        assert len({(await rig.predict(b"class:1")).json()["id"] for _ in range(100)}) == 100


async def test_ids_outlive_the_gateway_and_expire(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        first = (await rig.predict(b"class:1")).json()["id"]
    async with running_gateway(tmp_path) as rig:
        assert (await give(rig, id=first, label="one")).status_code == 200
    async with running_gateway(tmp_path, feedback_seconds=0.001) as rig:
        late = (await rig.predict(b"class:1")).json()["id"]
        async with asyncio.timeout(10):
            while (answer := await give(rig, id=late, label="one")).status_code == 200:
                late = (await rig.predict(b"class:1")).json()["id"]
                await asyncio.sleep(0.1)
        assert (answer.status_code, answer.json()["code"]) == (410, "feedback_expired")


async def test_an_id_that_was_changed_is_refused(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        real = (await rig.predict(b"class:1")).json()["id"]
        raw = bytearray.fromhex(real)
        for place in range(len(raw)):
            forged = bytearray(raw)
            forged[place] ^= 1
            answer = await give(rig, id=forged.hex(), label="one")
            assert (answer.status_code, answer.json()["code"]) == (422, "feedback_forged"), place
        lenient = (real.upper(), " " + real, f"{real}\n", f"{real[:8]} {real[8:]}")
        for text in ("", "x", "0" * 32, "é", real + "00", "a" * 4096, *lenient):
            assert (await give(rig, id=text, label="one")).status_code == 422
        assert (await give(rig, id="A" * 5000, label="one")).json()["code"] == "parameter_invalid"


def test_an_id_says_what_was_answered() -> None:
    prediction_ids = PredictionIds()
    prediction_ids.use(b"k" * 32)
    target = Target("digits", "1.0-int8-static")
    name = target_bytes(target)
    prediction_id = prediction_ids.read(prediction_ids.issue(name, [*range(300), NO_CLASS], is_dealt=True))
    assert (prediction_id.target, prediction_id.classes) == (target, [*range(300), None])
    assert prediction_id.is_dealt
    assert not prediction_ids.read(prediction_ids.issue(name, [1], is_dealt=False)).is_dealt
    assert abs(prediction_id.issued_at - time.time()) < 5
    others = PredictionIds()
    others.use(b"o" * 32)
    with pytest.raises(PredictionIdInvalid):
        others.read(prediction_ids.issue(name, [1], is_dealt=True))


@pytest.mark.parametrize(
    "body",
    [
        b'{"id": "x", "index": 0, "label": "caf\xe9"}',
        b'{"id": "x", "index": ' + b"1" * 5000 + b', "label": "one"}',
        b"[" * 50_000,
        b'{"id": "x"',
    ],
    ids=["latin-1", "digits", "nested", "cut"],
)
async def test_what_is_no_json_is_the_callers_mistake(tmp_path: Path, body: bytes) -> None:
    async with running_gateway(tmp_path) as rig:
        answer = await rig.client.post("/feedback", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (400, "body_invalid")


async def test_true_is_no_index(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        answer_id = (await rig.predict(b"class:1")).json()["id"]
        answer = await rig.client.post("/feedback", json={"id": answer_id, "index": True, "label": "one"})
        assert (answer.status_code, answer.json()["code"]) == (422, "parameter_invalid")
