"""The operator's verbs against a gateway, as processes of their own."""

import argparse
import asyncio
import gzip
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.cli.commands import add_verbs
from service.cli.gateway import Gateway
from tests.fake_backend import make_profile, make_trace
from tests.gateway import Rig, running_gateway
from tests.other_server import other_server

pytestmark = pytest.mark.anyio

VERSIONS = (("digits", "1.0", "fp32"), ("digits", "1.1", "fp32"))
TOKEN = "correct-horse"


async def torchgate(rig: Rig, *arguments: str, status: int = 0, **env: str) -> str:
    """Run one command and return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "service", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TORCHGATE_URL": rig.url, "TORCHGATE_ADMIN_TOKEN": TOKEN, **env},
    )
    async with asyncio.timeout(60):
        printed, _ = await process.communicate()
    assert process.returncode == status, printed.decode()
    return printed.decode()


async def documents(rig: Rig, *arguments: str) -> Any:
    return json.loads(await torchgate(rig, *arguments, "--json"))


async def test_a_version_from_registration_to_all_of_the_traffic_and_back(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, VERSIONS[::-1], model_store_policy="specific", **_WITHOUT_WAITING) as rig:
        await torchgate(rig, "models", "register", "digits", "digits-1.0.mar")
        printed = await torchgate(rig, "models", "register", "digits", "digits-1.1.mar", "--workers", "2")
        assert "1.1" in printed
        assert "ready" in printed
        await torchgate(rig, "labels", "set", "digits", "canary", "1.1")
        printed = await torchgate(rig, "traffic", "set", "digits", "1.0=90", "1.1=10%", "--reason", "first steps")
        assert [line.split()[:3] for line in printed.splitlines()[2:]] == [["1.0", "90", "%"], ["1.1", "10", "%"]]
        await torchgate(rig, "models", "scale", "digits", "1.1", "1")
        shown = await torchgate(rig, "models", "list")
        assert [line.split()[:4] for line in shown.splitlines()[1:]] == [
            ["digits", "1.0", "ready", "90"],
            ["digits", "1.1", "ready", "10"],
        ]
        assert "canary" in shown
        assert "canary" in await torchgate(rig, "labels", "list", "digits")
        await torchgate(rig, "traffic", "rollback", "digits")
        assert (await documents(rig, "traffic", "show", "digits"))["weights"] == {"1.0": 100}
        await torchgate(rig, "labels", "delete", "digits", "canary")
        await torchgate(rig, "models", "unregister", "digits", "1.1")
        assert [v["version"] for v in (await documents(rig, "models", "show", "digits"))[0]["versions"]] == ["1.0"]
        log = await torchgate(rig, "events", "digits")
        assert "first steps; weights: 1.0=100 -> 1.0=90 1.1=10" in log
        actions = [event["action"] for event in await documents(rig, "events", "digits", "--limit", "3")]
        assert actions == ["unregister", "unlabel", "rollback"]


_WITHOUT_WAITING: dict[str, Any] = {"wait_until_ready": False, "admin_token": TOKEN}


async def test_what_goes_wrong_is_one_line_and_a_status(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, VERSIONS[:1], admin_token=TOKEN) as rig:
        refused = await torchgate(rig, "traffic", "set", "digits", "1.0=99", status=1)
        told = "torchgate: traffic_invalid: weights sum to 99, they must sum to 100."
        assert refused == f"{told} `torchgate traffic show MODEL` shows the present weights.\n"
        stranger = await torchgate(rig, "traffic", "rollback", "digits", status=1, TORCHGATE_ADMIN_TOKEN="wrong-horse")
        assert "credentials_wrong" in stranger
        nobody = await torchgate(rig, "models", "list", "--url", "http://127.0.0.1:9", status=1)
        assert "http://127.0.0.1:9" in nobody
        assert nobody.count("\n") == 1
        for weight in ("1.0:99", "1.0", "1.0=nan"):
            assert "VERSION=PERCENT" in await torchgate(rig, "traffic", "set", "digits", weight, status=2)
        assert "named twice" in await torchgate(rig, "traffic", "set", "digits", "1.0=1", "1.0=100", status=1)
        assert "parameter_invalid" in await torchgate(rig, "rollout", "start", "digits", "1.0", "--steps", "", status=1)
        odd = await torchgate(rig, "traffic", "rollback", "digits", status=1, TORCHGATE_ADMIN_TOKEN="wr\u00f6ng-horse")
        assert "credentials_wrong" in odd


async def test_options_stand_before_or_after_the_verb(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, VERSIONS[:1], admin_token=TOKEN) as rig:
        after = await torchgate(rig, "models", "list", "--json")
        for arguments in (("--json", "models", "list"), ("models", "--json", "list")):
            assert json.loads(await torchgate(rig, *arguments)) == json.loads(after)
        where = ("--url", rig.url, "--reason", "by hand", "labels", "set", "digits", "canary", "1.0")
        await torchgate(rig, *where, TORCHGATE_URL="http://127.0.0.1:9")
        assert "by hand" in await torchgate(rig, "events", "digits")
        assert "not for settings" in await torchgate(rig, "--reason", "why", "settings", status=2)
        assert "port" in json.loads(await torchgate(rig, "--json", "settings"))


async def test_it_tells_its_version(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, wait_until_ready=False) as rig:
        assert await torchgate(rig, "--version") == f"torchgate {version('torchgate')}\n"


async def test_without_a_rollout_it_says_how_to_begin_one(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, VERSIONS[:1], admin_token=TOKEN) as rig:
        for group, verb in (("rollouts", "show"), ("rollout", "abort")):  # the latter is its former name
            told = await torchgate(rig, group, verb, "digits", status=1)
            assert told == (
                "torchgate: digits has had no rollout yet; start one: torchgate rollouts start digits VERSION\n"
            )


async def test_a_profile_is_a_table_and_a_file(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, VERSIONS[:1], admin_token=TOKEN) as rig:
        rig.backend.profile = make_profile(trace=make_trace("aten::conv"))
        ask = ("profile", "digits", "1.0", "--batches", "2", "--wait", "0")
        path = tmp_path / "trace.json.gz"
        printed = (await torchgate(rig, *ask, "--trace", str(path), "--reason", "slow?")).splitlines()
        assert printed[0].startswith("digits 1.0 on cpu: 2 batches with 2 images, 2 of them the self-check's")
        assert printed[2].split() == ["decode", "1.000", "ms", "10.0%"]
        assert printed[5].split() == ["aten::conv", "2", "6.000", "ms", "75.0%"]
        assert len(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]) == 2
        assert "slow?" in await torchgate(rig, "events", "digits", "--limit", "1")
        assert (await documents(rig, "models", *ask))["num_batches"] == 2  # where it was before
        nowhere = await torchgate(rig, *ask, "--trace", str(tmp_path / "no" / "folder"), status=1)
        assert "cannot be written" in nowhere


async def test_the_split_is_based_on_the_state_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the command's calls somebody else changes the sticky header."""
    revisions = iter(range(1, 9))
    sent: dict[str, Any] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            sent.update({"if_match": request.headers["If-Match"], **json.loads(request.content)})
        revision = next(revisions)
        traffic = {"model": "digits", "revision": revision, "weights": {}, "sticky_header": f"x-{revision}"}
        return httpx.Response(200, json={**traffic, "shadows": {}, "labels": {}})

    gateway = Gateway("http://gateway", None, "")
    monkeypatch.setattr(
        gateway, "_client", httpx.Client(base_url="http://gateway", transport=httpx.MockTransport(answer))
    )
    parser = argparse.ArgumentParser()
    add_verbs(parser.add_subparsers())
    options = parser.parse_args(["traffic", "set", "digits", "1.0=100"])
    options.call(gateway, options)
    assert (sent["sticky_header"], sent["if_match"]) == ("x-1", '"1"')


async def test_programs_get_the_documents_of_the_api(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, VERSIONS, admin_token=TOKEN, model_store_policy="all") as rig:
        await rig.until_every_version_is_ready()
        await torchgate(rig, "traffic", "set", "digits", "1.0=100", "--shadow", "1.1=50", "--no-sticky")
        await torchgate(rig, "rollouts", "start", "digits", "1.1", "--steps", "5,100", "--min-seconds", "3600")
        await rig.predict(b"class:1")
        model = (await rig.client.get("/models/digits")).json()
        for arguments, path, name in (
            (("models", "list"), "", "models"),
            (("traffic", "show", "digits"), "/digits/traffic", None),
            (("traffic", "shadows", "digits"), "/digits/shadows", "shadows"),
            (("labels", "list", "digits"), "/digits/traffic", None),
            (("rollouts", "list", "digits"), "/digits/rollouts", "rollouts"),
            (("events", "digits"), "/digits/events?limit=20", "events"),
        ):
            document = (await rig.client.get(f"/models{path}", headers={"Authorization": f"Bearer {TOKEN}"})).json()
            found = await documents(rig, *arguments)
            assert found == (document if name is None else document[name]), arguments
        assert await documents(rig, "models", "show", "digits") == [model]
        shown = await documents(rig, "rollouts", "show", "digits")
        assert shown.keys() == (await rig.client.get("/models/digits/rollouts/1")).json().keys()
        assert (await documents(rig, "drift", "digits")).keys() == {"model", "versions"}
        scaled = await documents(rig, "models", "scale", "digits", "1.0", "2")
        assert scaled == {**model["versions"][0], "model": "digits", "num_workers": 2}
        assert await documents(rig, "token") == TOKEN


async def test_what_is_no_gateway_is_one_line() -> None:
    async with other_server("200 OK", b"hi") as rig:
        for arguments in (("models", "list"), ("traffic", "show", "digits"), ("drift", "digits")):
            told = await torchgate(rig, *arguments, status=1)
            assert (told.count("\n"), "this is no torchgate" in told) == (1, True), told
        told = await torchgate(rig, "models", "list", "--url", "http://127.0.0.1:port", status=1)
        assert (told.count("\n"), "is no URL of a gateway" in told) == (1, True), told
        told = await torchgate(rig, "models", "list", status=1, TORCHGATE_ADMIN_TOKEN="two\nlines")
        assert "the admin token holds a line break" in told
