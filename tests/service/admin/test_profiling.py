"""A version is profiled over HTTP: under its traffic, without any, one profile at a time, for those who may."""

import asyncio
import base64
import gzip
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.errors.gateway import BackendFailed
from tests.fake_backend import make_profile, make_trace
from tests.gateway import Rig, running_gateway
from tests.service.operator import change, events

pytestmark = pytest.mark.anyio

PATH = "/versions/1.0/profile"
ONE = (("digits", "1.0", "fp32"),)


async def profile(rig: Rig, **body: Any) -> httpx.Response:
    return await change(rig, "POST", PATH, body, if_match="")


async def test_the_next_batches_of_the_traffic_are_profiled_and_their_callers_see_nothing(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        plain = (await rig.predict(b"class:2")).json()["predictions"]
        asking = asyncio.create_task(profile(rig, num_batches=3, wait_seconds=60))
        answers = []
        async with asyncio.timeout(20):
            while not asking.done():
                answers.append(await rig.predict(b"class:2"))
                answers.append(await rig.predict(b"class:2", params={"version": "1.0-int8-dynamic"}))
        answer = await asking
        assert answer.status_code == 200, answer.text
        info = answer.json()
        assert (info["num_batches"], info["num_items"], info["num_self_check"]) == (3, 3, 0)
        assert [each["operator"] for each in info["operators"]] == ["aten::conv", "aten::relu"]
        assert [each["share"] for each in info["operators"]] == [0.75, 0.25]
        assert info["trace"] is None
        assert {answer.status_code for answer in answers} == {200}
        assert all(answer.json()["predictions"] == plain for answer in answers)
        asked = [options.profile for options in rig.backend.options]
        assert asked.count("table") == 3
        assert asked.count(None) == len(asked) - 3
        (event,) = [each for each in await events(rig) if each["action"] == "profile"]
        assert (event["subject"], event["outcome"], event["detail"]) == ("1.0", "done", "3 batches, 3 images")


async def test_without_traffic_the_self_checks_images_are_profiled_and_counted_nowhere(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, ONE) as rig:
        answer = await profile(rig, num_batches=4, wait_seconds=0)
        assert answer.status_code == 200, answer.text
        info = answer.json()
        assert (info["num_batches"], info["num_items"], info["num_self_check"]) == (4, 4, 4)
        assert rig.backend.batches == [[b"class:1"]] * 4
        assert await rig.metric("torchgate_inference_items_total", version="1.0") == 0
        assert await rig.metric("torchgate_inference_batches_total", version="1.0") == 0
        assert (await events(rig))[-1]["detail"] == "4 batches, 4 images, 4 of them the self-check's"


async def test_a_trace_is_in_the_answer_or_is_the_answer(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, ONE) as rig:
        rig.backend.profile = make_profile(trace=make_trace("stage::decode", "aten::conv"))
        info = (await profile(rig, num_batches=2, wait_seconds=0, trace=True)).json()
        assert info["num_traced"] == 2
        document = json.loads(gzip.decompress(base64.b64decode(info["trace"])))
        assert [event["name"] for event in document["traceEvents"]] == ["stage::decode", "aten::conv"] * 2
        headers = {"Accept": "application/gzip"}
        body = {"num_batches": 2, "wait_seconds": 0}
        answer = await rig.client.post(f"/models/digits{PATH}", json=body, headers=headers)
        assert answer.headers["content-type"] == "application/gzip"
        assert answer.headers["content-disposition"] == 'attachment; filename="digits-1.0-trace.json.gz"'
        assert json.loads(gzip.decompress(answer.content)) == document


async def test_one_profile_of_a_version_at_a_time(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig:
        rig.backend.hold()
        first = asyncio.create_task(profile(rig, num_batches=1, wait_seconds=0))
        await rig.backend.batches_arrived(1)
        second = await profile(rig, wait_seconds=0)
        assert (second.status_code, second.json()["code"]) == (409, "profile_active")
        rig.backend.release()
        other = await change(rig, "POST", "/versions/1.0-int8-dynamic/profile", {"wait_seconds": 0}, if_match="")
        assert other.status_code == 200
        assert (await first).status_code == 200
        assert (await profile(rig, wait_seconds=0)).status_code == 200


async def test_a_profile_ends_in_time(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, ONE, backend_timeout_ms=50) as rig:
        rig.backend.hold()
        nothing = await profile(rig, num_batches=1, wait_seconds=0)
        assert (nothing.status_code, nothing.json()["code"]) == (504, "backend_timeout")
        rig.backend.release()
        assert (await profile(rig, num_batches=1, wait_seconds=0)).status_code == 200


async def test_what_keeps_a_version_from_being_profiled_is_said(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, ONE) as rig:
        rig.backend.profile = None
        older = await profile(rig, wait_seconds=0)
        assert (older.status_code, older.json()["code"]) == (409, "profile_unsupported")
        rig.backend.profile = {"error": "busy"}
        busy = await profile(rig, wait_seconds=0)
        assert (busy.status_code, busy.json()["code"]) == (503, "backend_failed")
        rig.backend.profile = make_profile(stages=[{}])
        odd = await profile(rig, wait_seconds=0)
        assert (odd.status_code, odd.json()["code"]) == (503, "backend_failed")
        rig.backend.fails_once_with = BackendFailed("the handler raised")
        failed = await profile(rig, wait_seconds=0)
        assert (failed.status_code, failed.json()["code"]) == (503, "backend_failed")
        missing = await change(rig, "POST", "/versions/9.9/profile", {}, if_match="")
        assert (missing.status_code, missing.json()["code"]) == (404, "version_not_found")
        for body in ({"num_batches": 0}, {"num_batches": 101}, {"wait_seconds": 61}, {"seconds": 1}):
            wrong = await profile(rig, **body)
            assert (wrong.status_code, wrong.json()["code"]) == (422, "parameter_invalid")
        nobody = await rig.client.post("/models/nobody/versions/1.0/profile", json={})
        assert (nobody.status_code, nobody.json()["code"]) == (404, "model_not_found")
        refused = [each for each in await events(rig) if each["action"] == "profile"]
        assert {each["outcome"] for each in refused} == {"refused"}
        assert len(refused) == 9
        rig.control.num_ready_of = dict.fromkeys(rig.control.registered, 0)
        await rig.until_state("1.0", "unavailable")
        away = await profile(rig, wait_seconds=0)
        assert (away.status_code, away.json()["code"]) == (503, "not_ready")


async def test_only_who_may_change_things_may_slow_them_down(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, ONE, admin_token="correct-horse") as rig:
        del rig.client.headers["authorization"]
        stranger = await profile(rig, wait_seconds=0)
        assert (stranger.status_code, stranger.json()["code"]) == (401, "credentials_missing")
        wrong = await change(rig, "POST", PATH, {}, if_match="", authorization="Bearer wrong-horse")
        assert (wrong.status_code, wrong.json()["code"]) == (403, "credentials_wrong")
        assert rig.backend.batches == []
        body = {"num_batches": 1, "wait_seconds": 0}
        right = await change(rig, "POST", PATH, body, if_match="", authorization="Bearer correct-horse")
        assert right.status_code == 200
