"""Right labels come back with the answer's id, which nobody can make up."""

import asyncio
import base64
import contextlib
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.config.settings import Settings
from service.domain.backend import Target
from service.monitoring.signed_ids import (
    LONGEST_ID,
    NO_CLASS,
    OVERLAP_SECONDS,
    PredictionIdInvalid,
    PredictionIds,
    target_bytes,
)
from service.persistence.database import Database
from service.persistence.signing_keys import SigningKeys, signing_keys
from service.persistence.upkeep import commands
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


async def test_ids_of_any_size_and_of_odd_characters_are_refused(tmp_path: Path) -> None:
    odd = [r"\ud800", r"\u0000", r"\uff10\uff11", r"\u202e0", "0" * LONGEST_ID, "a" * (LONGEST_ID + 1), "ab " * 9000]
    async with running_gateway(tmp_path) as rig:
        real = (await rig.predict(b"class:1")).json()["id"]
        for place, text in enumerate([*odd, real + r"\u0000", real + r"\ud800"]):
            for body in (f'{{"id": "{text}", "label": "one"}}', f'{{"id": "{real}", "label": "{text[:200]}"}}'):
                answer = await rig.client.post("/feedback", content=body, headers={"Content-Type": "application/json"})
                assert answer.status_code == 422, (place, answer.text)
                assert answer.json()["code"] in {"parameter_invalid", "feedback_forged", "label_unknown"}
        answer = await give(rig, id="ab" * 40_000, label="one")
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


async def test_the_largest_answers_take_feedback(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_images": 2000, "max_queue_items": 2000, "max_batch_size": 1024}
    async with running_gateway(tmp_path, **options) as rig:
        body = {"instances": [{"b64": base64.b64encode(b"class:2").decode()}] * 2000}
        answer_id = (await rig.client.post("/predict", json=body)).json()["id"]
        answer = await give(rig, id=answer_id, index=1999, label="two")
        assert (answer.status_code, answer.json()["correct"]) == (200, True)


def state_of(tmp_path: Path) -> Settings:
    return Settings(model_store=tmp_path / "store")


def keys_of(tmp_path: Path) -> SigningKeys:
    database = Database(state_of(tmp_path).state_url)
    database.open()
    try:
        return signing_keys(database)
    finally:
        database.close()


async def test_a_class_that_is_gone_is_refused(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        prediction_ids = PredictionIds()
        prediction_ids.use(keys_of(tmp_path))
        # As after an archive with fewer classes has taken the version's name.
        answer_id = prediction_ids.issue(target_bytes(Target("digits", "1.0")), [4], is_dealt=True)
        answer = await give(rig, id=answer_id, label="one")
        assert (answer.status_code, answer.json()["code"]) == (422, "feedback_forged")
        assert "has no class 4 any more" in answer.json()["detail"]


async def test_the_key_is_replaced_while_the_gateway_runs(tmp_path: Path) -> None:
    async def replaced() -> str:
        """Return an answer's id by the next key."""
        assert await asyncio.to_thread(commands.run, state_of(tmp_path), "rotate-key", None, is_forced=False) == 0
        newest = PredictionIds()
        newest.use(SigningKeys(keys_of(tmp_path).present))
        async with asyncio.timeout(10):
            while True:
                answer_id: str = (await rig.predict(b"class:1")).json()["id"]
                with contextlib.suppress(PredictionIdInvalid):
                    newest.read(answer_id)
                    return answer_id

    async with running_gateway(tmp_path, database_poll_seconds=0.02) as rig:
        first, late = [(await rig.predict(b"class:1")).json()["id"] for _ in range(2)]
        second = await replaced()
        assert (await give(rig, id=first, label="one")).status_code == 200
        assert (await give(rig, id=second, label="one")).status_code == 200
        third = await replaced()
        assert (await give(rig, id=late, label="one")).json()["code"] == "feedback_forged"
        assert (await give(rig, id=second, label="one")).json()["code"] == "feedback_repeated"
    async with running_gateway(tmp_path) as rig:
        assert (await give(rig, id=third, label="one")).status_code == 200


def test_a_replaced_key_signs_no_later_answers() -> None:
    now, before, after = 2_000_000_000, PredictionIds(lambda: now), PredictionIds(lambda: now + OVERLAP_SECONDS + 1)
    both, name = PredictionIds(), target_bytes(Target("digits", "1.0"))
    for former in (before, after):
        former.use(SigningKeys(b"old" * 8))
    both.use(SigningKeys(b"new" * 8, b"old" * 8, now))
    assert both.read(before.issue(name, [1], is_dealt=True)).classes == [1]
    with pytest.raises(PredictionIdInvalid):
        both.read(after.issue(name, [1], is_dealt=True))


async def test_there_is_no_key_to_replace_without_a_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store").mkdir()
    assert commands.run(state_of(tmp_path), "rotate-key", None, is_forced=False) == 1
    assert "there is no file" in capsys.readouterr().err
    assert not list((tmp_path / "store").iterdir())


def test_an_id_says_what_was_answered() -> None:
    prediction_ids = PredictionIds()
    prediction_ids.use(SigningKeys(b"k" * 32))
    target = Target("digits", "1.0-int8-static")
    name = target_bytes(target)
    prediction_id = prediction_ids.read(prediction_ids.issue(name, [*range(300), NO_CLASS], is_dealt=True))
    assert (prediction_id.target, prediction_id.classes) == (target, [*range(300), None])
    assert prediction_id.is_dealt
    assert not prediction_ids.read(prediction_ids.issue(name, [1], is_dealt=False)).is_dealt
    assert abs(prediction_id.issued_at - time.time()) < 5
    others = PredictionIds()
    others.use(SigningKeys(b"o" * 32))
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
