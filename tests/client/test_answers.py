"""What the client's answers are: pictures in a notebook, and all that the API says."""

import base64
import dataclasses
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchgate_client import (
    Answer,
    AsyncClient,
    ClassProbability,
    Event,
    Feedback,
    Guard,
    Model,
    Prediction,
    Rollout,
    Shadow,
    Timing,
    Traffic,
    Version,
)
from torchgate_client.images import encoded

from deploy.reference.http_api import openapi
from tests.gateway import running_gateway

pytestmark = pytest.mark.anyio


async def test_an_answer_is_a_picture_in_a_notebook(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as rig, AsyncClient(rig.url) as client:
        answer = await client.predict([b"class:1", b"reject:image_truncated"])
    shown = answer._repr_html_()
    assert "digits 1.0" in shown
    assert "100.0%" in shown
    assert "image_truncated" in shown
    drawn = Answer("id", "<b>", "1.0", [Prediction("<i>", 0.5, [])], answer.timing, "r", [b"\x89PNG..."])
    assert 'src="data:image/png;base64,' in drawn._repr_html_()
    assert "<b>" not in drawn._repr_html_()


def test_an_array_is_a_picture_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.zeros((1, 6, 8), np.uint8)
    answer = Answer("id", "m", "1.0", [], Timing(0, 0, 1), "r")
    sent = [encoded(pixels), b"\x93NUMPY and no more", b"II*\x00"]
    shown = dataclasses.replace(answer, predictions=[Prediction("a", 1, [])] * 3, images=sent)._repr_html_()
    (picture,) = re.findall(r'src="data:image/png;base64,([^"]+)"', shown)
    with Image.open(io.BytesIO(base64.b64decode(picture))) as opened:
        assert np.array_equal(np.asarray(opened), pixels[0])
    assert shown.count("not in a format that browsers show") == 2
    monkeypatch.setitem(sys.modules, "PIL", None)  # without Pillow
    assert "<img" not in dataclasses.replace(answer, predictions=[Prediction("a", 1, [])], images=sent)._repr_html_()


def test_typed_answers_have_all_that_the_api_says() -> None:
    schemas = openapi()["components"]["schemas"]
    for kind, name in (
        (Model, "ModelInfo"),
        (Version, "VersionInfo"),
        (Traffic, "TrafficInfo"),
        (Shadow, "ShadowInfo"),
        (Event, "EventInfo"),
        (Rollout, "RolloutInfo"),
        (Guard, "GuardInfo"),
        (Feedback, "FeedbackInfo"),
        (Prediction, "Prediction"),
        (ClassProbability, "ClassProbability"),
    ):
        assert {each.name for each in dataclasses.fields(kind)} == schemas[name]["properties"].keys(), name
