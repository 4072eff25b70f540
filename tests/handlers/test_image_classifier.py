"""The handler in this process: batches, plain images, what it says of itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from handlers import image_classifier
from handlers.image_classifier import ImageClassifier
from tests import images
from tests.handlers.archives import (
    checked_contract,
    toy_contract,
    write_model_folder,
)
from tests.handlers.context import FakeContext, load


def packed(*items: Any, **options: Any) -> dict[str, Any]:
    return {**{str(index): item for index, item in enumerate(items)}, "options": json.dumps(options).encode()}


def call(handler: ImageClassifier, row: dict[str, Any]) -> tuple[Any, int]:
    context = FakeContext(Path())
    (body,) = handler.handle([row], context)
    assert context.content_types == {0: "application/json"}
    return json.loads(body), context.statuses.get(0, (200, ""))[0]


def test_a_batch_is_answered_in_numeric_order_and_as_the_graph_answers(handler: ImageClassifier) -> None:
    arrays = [images.pattern(seed=seed) for seed in range(12)]
    with torch.inference_mode():
        expected = handler.model(torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous())
    row = packed(*(images.rgb_png(seed=seed) for seed in range(12)), top_k=2, probabilities=True)
    answer, status = call(handler, dict(reversed(row.items())))
    assert status == 200
    answered = [result["probabilities"] for result in answer["results"]]
    assert answered == expected.tolist()  # bit for bit: float32 survives as JSON
    assert len({tuple(values) for values in answered}) == 12


def test_top_k_gives_class_and_probability_in_order(handler: ImageClassifier) -> None:
    content = images.rgb_png()
    whole, _ = call(handler, packed(content, probabilities=True))
    probabilities = whole["results"][0]["probabilities"]
    by_probability = sorted(range(7), key=lambda index: -probabilities[index])
    for top_k in (1, 3, 7, 100):
        answer, _ = call(handler, packed(content, top_k=top_k))
        assert answer["results"][0]["top_k"] == [[index, probabilities[index]] for index in by_probability[:top_k]]


def test_a_bad_item_fails_alone(handler: ImageClassifier) -> None:
    good = [images.rgb_png(seed=seed) for seed in range(3)]
    alone, _ = call(handler, packed(*good, top_k=7))
    mixed, status = call(handler, packed(b"", good[0], images.bomb_png(), good[1], b"junk", good[2], top_k=7))
    assert status == 200
    assert mixed["results"][1::2] == alone["results"]
    codes = [result["error"]["code"] for result in mixed["results"][::2]]
    assert codes == ["image_empty", "image_too_many_pixels", "image_unrecognized"]


def test_decoding_has_an_end(handler: ImageClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_classifier, "DECODE_SECONDS", 0.0)
    answer = handler.predict([images.rgb_png()] * 3, 1, probabilities=False)
    first, *others = answer["results"]
    assert "top_k" in first
    assert [each["error"]["code"] for each in others] == ["decode_timeout"] * 2


def test_a_batch_of_bad_items_only_is_answered(handler: ImageClassifier) -> None:
    answer, status = call(handler, packed(b"", b"junk"))
    assert (status, [set(result) for result in answer["results"]]) == (200, [{"error"}, {"error"}])


def test_an_image_and_its_pixels_as_a_tensor_give_the_same(handler: ImageClassifier) -> None:
    tensor = images.npy(np.ascontiguousarray(images.pattern().transpose(2, 0, 1)))
    answer, _ = call(handler, packed(images.rgb_png(), tensor, probabilities=True))
    first, second = (np.array(result["probabilities"]) for result in answer["results"])
    assert np.abs(first - second).max() < 1e-6


def test_timings_are_measured_and_the_json_is_compact(handler: ImageClassifier) -> None:
    (body,) = handler.handle([packed(images.rgb_png())], FakeContext(Path()))
    assert isinstance(body, bytes)
    assert b" " not in body
    timings_ms = json.loads(body)["timings_ms"]
    assert set(timings_ms) == {"decode", "compute"}
    assert all(0 < value < 10_000 for value in timings_ms.values())


def test_a_plain_image_gets_names_of_classes(handler: ImageClassifier) -> None:
    batch, _ = call(handler, packed(images.rgb_png(), top_k=5))
    top_k = [{"label": f"class-{index}", "probability": value} for index, value in batch["results"][0]["top_k"]]
    for key in ("body", "data"):
        answer, status = call(handler, {key: bytearray(images.rgb_png())})
        assert status == 200
        assert answer == {"label": top_k[0]["label"], "probability": top_k[0]["probability"], "top_k": top_k}


def test_a_plain_bad_image_is_a_400(handler: ImageClassifier) -> None:
    answer, status = call(handler, {"body": images.truncated_png()})
    assert (status, answer["code"]) == (400, "image_truncated")
    assert answer["message"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({}, "sent: nothing"),
        ({"options": b"{}"}, "sent: options"),
        ({"1": b"x", "options": b"{}"}, "sent: 1, options"),
        ({"0": b"x", "2": b"x", "options": b"{}"}, "without a gap"),
        ({"0": b"x", "file": b"x", "options": b"{}"}, "without a gap"),
        ({"00": b"x"}, "without a gap"),
        ({"0": b"x", "options": b"{"}, "options is not JSON"),
        ({"0": b"x", "options": b"\xff\xfe"}, "options is not JSON"),
        ({"0": b"x", "options": b"[" * 100_000}, "options is not JSON"),
        ({"0": b"x", "options": b"[]"}, "options must be a JSON object, not list"),
        ({"0": b"x", "options": 3}, "options is not JSON"),
        (packed(b"x", top_k=0), "top_k must be an integer from 1, not 0"),
        (packed(b"x", top_k=True), "top_k must be an integer from 1, not true"),
        (packed(b"x", top_k="5"), "top_k must be an integer from 1"),
        (packed(b"x", top_k=None), "top_k must be an integer from 1, not null"),
        (packed(b"x", probabilities=1), "probabilities must be true or false, not 1"),
        ({str(index): b"" for index in range(1025)}, "1025 items in one request; allowed are 1024"),
    ],
)
def test_a_malformed_request_is_a_400_that_says_why(handler: ImageClassifier, row: dict[str, Any], words: str) -> None:
    answer, status = call(handler, row)
    assert (status, answer["error"]["code"]) == (400, "request_invalid")
    assert words in answer["error"]["message"]


@pytest.mark.parametrize("options", [None, b"{}", bytearray(b"{}"), "{}", {}, {"of": "tomorrow"}])
def test_options_have_defaults_and_may_hold_what_is_not_known_yet(handler: ImageClassifier, options: Any) -> None:
    row = {"0": images.rgb_png()} | ({} if options is None else {"options": options})
    answer, status = call(handler, row)
    assert status == 200
    assert len(answer["results"][0]["top_k"]) == 5


def test_every_row_of_a_call_gets_its_own_answer(handler: ImageClassifier) -> None:
    context = FakeContext(Path(), headers=[{}, {"describe": "True"}, {}, {"describe": "False"}])
    rows = [packed(images.rgb_png()), {}, {"body": b"junk"}, {"body": images.rgb_png()}]
    batch, contract, bad, plain = handler.handle(rows, context)
    assert len(json.loads(batch)["results"]) == 1
    assert contract["model"] == "toy"
    assert json.loads(bad)["code"] == "image_unrecognized"
    assert json.loads(plain)["label"].startswith("class-")
    assert context.statuses == {2: (400, "Bad Request")}


def test_describe_answers_the_contract_and_what_it_runs_on(handler: ImageClassifier) -> None:
    (answer,) = handler.handle([{}], FakeContext(Path(), headers=[{"describe": "True"}]))
    runtime = answer.pop("runtime")
    assert answer == checked_contract()
    assert set(runtime) == {"torch_version", "num_threads", "device", "pid", "graph_forms"}
    assert runtime["graph_forms"] == [{"form": "portable", "max_batch_size": None}]
    assert (runtime["torch_version"], runtime["device"]) == (torch.__version__, "cpu")
    assert runtime["num_threads"] == torch.get_num_threads()


class Constant(nn.Module):
    """Equal probabilities for dark images, no number for bright ones."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        bright = pixels.float().flatten(1).mean(dim=1, keepdim=True) > 100
        return torch.where(bright, float("nan"), 0.25).expand(-1, 4)


def test_ties_come_in_the_order_of_classes_and_what_is_no_number_is_an_items_error(tmp_path: Path) -> None:
    graph = torch.jit.script(Constant())
    handler = load(write_model_folder(tmp_path, toy_contract(num_classes=4), graph))
    dark, bright = (images.encode(Image.new("RGB", (32, 32), (shade,) * 3), "PNG") for shade in (0, 200))
    answer, status = call(handler, packed(dark, bright, dark, top_k=3))
    assert status == 200
    assert answer["results"][0] == answer["results"][2] == {"top_k": [[0, 0.25], [1, 0.25], [2, 0.25]]}
    assert answer["results"][1]["error"]["code"] == "output_not_finite"
    answer, _ = call(handler, packed(bright, dark, probabilities=True))
    assert answer["results"][0]["error"]["code"] == "output_not_finite"
    assert answer["results"][1] == {"probabilities": [0.25] * 4}
