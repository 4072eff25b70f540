"""`torchgate predict`: a line, or a document, for each file; one that fails does not take the others with it."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.gateway import Rig, running_gateway

pytestmark = pytest.mark.anyio

VERSIONS = (("digits", "1.0", "fp32"), ("digits", "1.1", "fp32"))


def write(folder: Path, **contents: bytes) -> None:
    for name, content in contents.items():
        (folder / f"{name}.png").write_bytes(content)


async def predict(
    rig: Rig, folder: Path, *arguments: str, given: bytes = b"", **env: Any
) -> subprocess.CompletedProcess[str]:
    def run() -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "service", "predict", *arguments, "--url", rig.url],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_paths()), **env},
            input=given,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return await asyncio.to_thread(run)


def _paths() -> Sequence[str]:
    return [str(Path(__file__).parents[3]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


async def test_each_file_has_its_line_and_a_bad_one_fails_alone(tmp_path: Path) -> None:
    write(tmp_path, one=b"class:1", bad=b"reject:image_truncated", three=b"class:3")
    async with running_gateway(tmp_path, VERSIONS[:1]) as rig:
        done = await predict(
            rig, tmp_path, "one.png", "bad.png", "nowhere.png", ".", "three.png", "-", given=b"class:2"
        )
    assert done.returncode == 1
    lines = [re.split(r" {2,}", line) for line in done.stdout.splitlines()]
    assert [line[:4] for line in lines] == [
        ["one.png", "one", "100.00%", "digits 1.0"],
        ["three.png", "three", "100.00%", "digits 1.0"],
        ["-", "two", "100.00%", "digits 1.0"],
    ]
    assert all(re.fullmatch(r"\d+\.\d ms", line[4]) for line in lines)
    bad, nowhere, folder = done.stderr.splitlines()
    assert bad.startswith("torchgate: bad.png: image_truncated: ")
    assert nowhere == "torchgate: nowhere.png: No such file or directory"
    assert folder == "torchgate: .: Is a directory"


async def test_programs_get_the_answers_of_the_api(tmp_path: Path) -> None:
    write(tmp_path, one=b"class:1", bad=b"reject:image_truncated")
    async with running_gateway(tmp_path, VERSIONS[:1]) as rig:
        done = await predict(rig, tmp_path, "one.png", "bad.png", "nowhere.png", "--json", "--top-k", "2")
        answer = (await rig.predict(b"class:1", params={"top_k": 2})).json()
    one, bad, nowhere = json.loads(done.stdout)
    assert done.returncode == 1
    assert {**one, "id": ""} == {"file": "one.png", **answer, "id": ""}
    assert (bad["file"], bad["error"]["code"]) == ("bad.png", "image_truncated")
    assert (nowhere["file"], nowhere["error"]["code"]) == ("nowhere.png", "file_unreadable")


async def test_version_label_model_and_number_of_classes_are_the_callers_choice(tmp_path: Path) -> None:
    write(tmp_path, one=b"class:1")
    async with running_gateway(tmp_path, VERSIONS, model_store_policy="all") as rig:
        await rig.until_every_version_is_ready()
        headers = {"If-Match": "*"}
        body = {"version": "1.1"}
        assert (await rig.client.put("/models/digits/labels/canary", json=body, headers=headers)).status_code == 200
        for arguments in (("--version", "1.1"), ("--label", "canary")):
            done = await predict(rig, tmp_path, "one.png", *arguments, "--top-k", "3", "--model", "digits")
            best, *others = done.stdout.splitlines()
            assert (done.returncode, "digits 1.1" in best, len(others)) == (0, True, 2)
            assert all(line.startswith(" " * len("one.png")) for line in others)
        done = await predict(rig, tmp_path, "one.png", "--model", "cats")
        assert (done.returncode, "model_not_found" in done.stderr) == (1, True)


async def test_a_gateway_that_is_gone_is_asked_once(tmp_path: Path) -> None:
    write(tmp_path, one=b"class:1")
    rig: Any = type("Place", (), {"url": "http://127.0.0.1:9"})
    done = await predict(rig, tmp_path, *["one.png"] * 20, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, len(found)) == (1, 20)
    assert {each["error"]["code"] for each in found} == {"gateway_unreachable"}


async def test_the_admin_token_does_not_go_with_a_prediction_and_the_key_does(tmp_path: Path) -> None:
    write(tmp_path, one=b"class:1")
    async with running_gateway(tmp_path, VERSIONS[:1], api_keys="key-of-this-test") as rig:
        token: dict[str, Any] = {"TORCHGATE_ADMIN_TOKEN": "correct-horse-of-the-tests"}
        done = await predict(rig, tmp_path, "one.png", **token)
        assert (done.returncode, "credentials_missing" in done.stderr) == (1, True), done.stderr
        done = await predict(rig, tmp_path, "one.png", **token, TORCHGATE_KEY="key-of-this-test")
        assert (done.returncode, done.stderr) == (0, "")
