"""The handler in this process: decoding, batches, errors, loading."""

import ast
import inspect
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import torch
from PIL import Image, ImageOps
from torch import nn

from handlers import image_classifier
from handlers.image_classifier import ImageClassifier
from handlers.image_decoding import decode_item
from tests import images
from tests.handlers.archives import (
    HANDLER,
    MODULES,
    checked_contract,
    self_check_case,
    toy_contract,
    toy_graph,
    write_model_folder,
)
from tests.handlers.context import FakeContext, load
from training.archive import handler_files

BACKGROUND = [10, 20, 30]
COLOUR = toy_contract(preprocessing={"fit": "crop", "resample": "bilinear", "background": BACKGROUND})
GREY = toy_contract(channels=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("model"), checked_contract())


@pytest.fixture(scope="module")
def handler(folder: Path) -> ImageClassifier:
    return load(folder)


def decoded(content: bytes, contract: dict[str, Any] = COLOUR) -> npt.NDArray[np.int64]:
    """Pixels [C, H, W] as numbers that subtract without wrapping around."""
    pixels = decode_item(content, contract)
    assert not isinstance(pixels, dict), pixels
    size = contract["input"]
    assert pixels.dtype == np.uint8
    assert pixels.shape == (size["channels"], size["height"], size["width"])
    return pixels.astype(np.int64)


def refused(content: Any, contract: dict[str, Any] = COLOUR) -> tuple[str, str]:
    answer = decode_item(content, contract)
    assert isinstance(answer, dict), "it was accepted"
    assert set(answer) == {"code", "message"}
    return answer["code"], answer["message"]


def packed(*items: Any, **options: Any) -> dict[str, Any]:
    return {**{str(index): item for index, item in enumerate(items)}, "options": json.dumps(options).encode()}


def call(handler: ImageClassifier, row: dict[str, Any]) -> tuple[Any, int]:
    context = FakeContext(Path())
    (body,) = handler.handle([row], context)
    assert context.content_types == {0: "application/json"}
    return json.loads(body), context.statuses.get(0, (200, ""))[0]


# Decoding


LOSSLESS = [
    ("PNG", {}),
    ("BMP", {}),
    ("TIFF", {}),
    ("TIFF", {"compression": "tiff_lzw"}),
    ("PPM", {}),
    ("JPEG2000", {}),
]


@pytest.mark.parametrize(("file_format", "options"), [*LOSSLESS, ("WEBP", {"lossless": True})])
def test_lossless_images_of_the_models_size_are_kept_to_the_bit(file_format: str, options: dict[str, Any]) -> None:
    pixels = decoded(images.rgb_file(file_format, **options))
    assert np.array_equal(pixels, images.pattern().transpose(2, 0, 1))


@pytest.mark.parametrize("file_format", ["JPEG", "GIF", "WEBP", "AVIF"])
def test_lossy_images_are_close(file_format: str) -> None:
    options = {} if file_format == "GIF" else {"quality": 95}
    pixels = decoded(images.rgb_file(file_format, **options))
    assert np.abs(pixels - images.pattern().transpose(2, 0, 1)).mean() < 25


def test_colour_images_become_grey_for_a_grey_model() -> None:
    expected = np.asarray(Image.fromarray(images.pattern()).convert("L"))
    assert np.array_equal(decoded(images.rgb_png(), GREY)[0], expected)


def test_grey_images_become_colour_for_a_colour_model() -> None:
    pixels = decoded(images.grey_png())
    assert np.array_equal(pixels[0], pixels[1])
    assert np.array_equal(pixels[0], np.asarray(Image.fromarray(images.pattern()).convert("L")))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_honoured(orientation: int) -> None:
    upright = ImageOps.fit(Image.fromarray(images.pattern(48, 32)), (32, 32), method=Image.Resampling.BILINEAR)
    difference = np.abs(decoded(images.exif_jpeg(orientation)) - np.asarray(upright).transpose(2, 0, 1))
    assert difference.mean() < 2.5


def test_sixteen_bits_are_scaled_to_eight() -> None:
    ramp = np.linspace(0, 65535, 32, dtype=np.uint16)
    expected = np.rint(ramp.astype(np.float64) * 255 / 65535)
    for contract in (COLOUR, GREY):
        for row in decoded(images.sixteen_bit_png(), contract).reshape(-1, 32):
            assert np.array_equal(row, expected)


def test_32_bit_integers_are_clipped_to_16_bits_first() -> None:
    values = np.array([[-5, 0, 65535, 1_000_000]], np.int32).repeat(4, axis=0)
    content = images.encode(Image.fromarray(values), "TIFF")
    pixels = decoded(content, toy_contract(channels=1, size=4))
    assert pixels[0, 0].tolist() == [0, 0, 255, 255]


@pytest.mark.parametrize("content", [images.rgba_png(), images.grey_alpha_png(), images.palette_png()])
def test_transparency_shows_the_contracts_background(content: bytes) -> None:
    pixels = decoded(content)
    assert pixels[:, :, :16].reshape(3, -1).T.tolist() == [BACKGROUND] * 512
    assert (pixels[:, :, 16:] == images.BRIGHT).all()


def test_half_transparency_is_mixed_with_the_background() -> None:
    expected = [round(images.BRIGHT * 51 / 255 + shade * 204 / 255) for shade in BACKGROUND]
    assert np.abs(decoded(images.rgba_png(alpha=51))[:, 0, 0] - expected).max() <= 1


def test_rgb_with_a_transparent_colour_shows_the_background() -> None:
    content = images.encode(Image.new("RGB", (32, 32), (1, 2, 3)), "PNG", transparency=(1, 2, 3))
    assert decoded(content)[:, 0, 0].tolist() == BACKGROUND


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "LAB", "1", "P"])
def test_other_modes_are_converted(mode: str) -> None:
    image = Image.fromarray(images.pattern(), "RGB")
    if mode == "LAB":
        content = images.encode(Image.new("LAB", (32, 32), (200, 128, 128)), "TIFF")
    else:
        content = images.encode(image.convert(mode), "JPEG" if mode == "YCbCr" else "TIFF")
    for contract in (COLOUR, GREY):
        assert decoded(content, contract).std() > 0 or mode == "LAB"


def test_cmyk_jpeg_keeps_its_colours() -> None:
    assert np.abs(decoded(images.cmyk_jpeg()) - images.pattern().transpose(2, 0, 1)).mean() < 12


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_counts(file_format: str) -> None:
    assert (decoded(images.animated(file_format)) == images.BRIGHT).all()


def test_the_middle_is_cut_out_and_the_aspect_kept() -> None:
    wide = np.zeros((32, 96, 3), np.uint8)
    wide[:, 32:64] = images.pattern()
    assert np.array_equal(decoded(images.encode(Image.fromarray(wide), "PNG")), images.pattern().transpose(2, 0, 1))


def test_larger_images_are_smoothed_when_they_shrink() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    inside = decoded(images.encode(Image.fromarray(stripes), "PNG"))[:, 1:-1, 1:-1]
    assert (np.abs(inside - 127) < 40).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1)])
def test_extreme_sizes_are_resized(shape: tuple[int, int]) -> None:
    decoded(images.encode(Image.new("RGB", shape, (9, 9, 9)), "PNG"))


def test_tensors_are_taken_as_they_are() -> None:
    pixels = np.ascontiguousarray(images.pattern().transpose(2, 0, 1))
    for content in (images.npy(pixels), images.npy(pixels, (2, 0)), images.npy(np.asfortranarray(pixels))):
        assert np.array_equal(decoded(content), pixels)
        assert np.array_equal(decoded(bytearray(content)), pixels)  # type: ignore[arg-type]


# Refusals


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"", "image_empty", "0 bytes"),
        (images.random_bytes(), "image_unrecognized", "PNG, JPEG, GIF, WEBP"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image_unrecognized", "known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image_unrecognized", "known format"),
        ("text", "image_unrecognized", "must be bytes, not str"),
        (images.truncated_png(), "image_truncated", "PNG is cut off or corrupt"),
        (images.rgb_png()[:12], "image_truncated", "PNG is cut off or corrupt"),
        (images.bomb_png(), "image_too_many_pixels", "PNG has more pixels than the 89478485 allowed"),
        (images.png_claiming(10_000, 9_000), "image_too_many_pixels", "PNG has more pixels than the 89478485 allowed"),
        (images.float_tiff(), "image_unsupported", "floating-point"),
    ],
    ids=lambda value: None if isinstance(value, str) and value != "text" else "content",
)
def test_bad_images_are_refused_with_code_and_reason(content: Any, code: str, words: str) -> None:
    answered, message = refused(content)
    assert answered == code
    assert words in message


FORMATS = [*LOSSLESS, ("JPEG", {}), ("GIF", {}), ("WEBP", {}), ("AVIF", {})]


@pytest.mark.parametrize(("file_format", "options"), FORMATS)
def test_truncated_files_of_every_format_are_called_that(file_format: str, options: dict[str, Any]) -> None:
    whole = images.rgb_file(file_format, **options)
    for num_bytes in range(24, len(whole) * 3 // 4, max(1, len(whole) // 20)):
        assert refused(whole[:num_bytes])[0] == "image_truncated", num_bytes


@pytest.mark.parametrize(("file_format", "options"), FORMATS)
def test_corrupt_files_are_refused_or_decoded_but_never_raise(file_format: str, options: dict[str, Any]) -> None:
    whole = images.rgb_file(file_format, **options)
    random = np.random.default_rng(1)
    for _ in range(60):
        corrupt = bytearray(whole)
        for position in random.integers(0, len(whole), 5):
            corrupt[position] = random.integers(0, 256)
        answer = decode_item(corrupt, COLOUR)
        if isinstance(answer, dict):
            assert answer["code"] in {
                "image_truncated",
                "image_unrecognized",
                "image_too_many_pixels",
                "image_unsupported",
            }


def test_a_bomb_is_refused_before_its_pixels_are_decoded() -> None:
    bombs = [images.bomb_png(), images.bomb_png(10_000, 10_000)]  # past Pillow's error, past its warning
    process = psutil.Process()
    before = process.memory_info().rss
    for action in ("error", "ignore"):
        for bomb in bombs:
            with warnings.catch_warnings(action=action):
                assert refused(bomb)[0] == "image_too_many_pixels"
    assert process.memory_info().rss - before < 50e6


def header(shape: str, descr: str = "|u1", fortran: str = "False") -> str:
    return f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            images.npy(np.zeros((3, 32, 31), np.uint8)),
            "uint8 of shape [3, 32, 31]; allowed is uint8 of shape [3, 32, 32]",
        ),
        (images.npy(np.zeros((3, 32, 32), np.float32)), "float32 of shape [3, 32, 32]; allowed is uint8"),
        (images.npy(np.zeros((1, 3, 32, 32), np.uint8)), "shape [1, 3, 32, 32]; allowed"),
        (images.npy(np.zeros((3, 32, 32), np.uint8))[:-1], "3071 bytes follow the .npy header; allowed"),
        (images.npy(np.zeros((3, 32, 32), np.uint8)) + b"x", "3073 bytes follow the .npy header; allowed"),
        (images.npy_header(header("(3, 32, 32)")), "0 bytes follow"),
        (images.npy_header(header("(1000000000, 1000000000)")), "shape [1000000000, 1000000000]; allowed"),
        (images.npy_header(header("(-3, 32, -32)")), "allowed is uint8"),
        (images.npy_header(header("(3, 32, 32)", "|O")), "object of shape"),
        (images.npy_header("{'descr': '|u1'"), "header cannot be read"),
        (images.npy_header("(" * 9000), "header cannot be read"),
        (images.npy_header("'" * 3), "header cannot be read"),
        (b"\x93NUMPY", "header cannot be read"),
        (b"\x93NUMPY\x01\x00\xff\xff", "header cannot be read"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}", "header cannot be read"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "header cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "content",
)
def test_bad_tensors_are_refused_naming_what_was_sent_and_what_is_allowed(content: bytes, words: str) -> None:
    code, message = refused(content)
    assert code == "tensor_invalid"
    assert words in message
    assert "allowed is uint8 of shape [3, 32, 32]" in message
    assert len(message) < 600


class Mine:
    """An object whose unpickling would be seen."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("from handlers import image_classifier; image_classifier.unpickled = True",))


def test_nothing_is_unpickled() -> None:
    objects = np.empty((1,), object)
    objects[0] = Mine()
    assert refused(images.npy(objects))[0] == "tensor_invalid"
    assert not hasattr(image_classifier, "unpickled")


# Batches


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


# Loading


class Counting(ImageClassifier):
    """Remembers the sizes of the batches that it ran."""

    def run(self, batch: npt.NDArray[np.uint8]) -> torch.Tensor:
        self.__dict__.setdefault("sizes", []).append(len(batch))
        return super().run(batch)


def test_warm_up_runs_the_batch_sizes_to_come_several_times(folder: Path) -> None:
    handler = Counting()
    handler.initialize(FakeContext(folder))
    sizes = handler.__dict__["sizes"]
    assert set(sizes) == {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64}
    assert all(sizes.count(size) >= 3 for size in set(sizes))


def test_warm_up_ends_when_its_time_is_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_classifier, "WARM_UP_SECONDS", 0.0)
    handler = Counting()
    handler.initialize(FakeContext(folder))
    assert handler.__dict__["sizes"] == [1, 1]  # one of warm-up, one of the self-check


def load_with(tmp_path: Path, **changes: Any) -> ImageClassifier:
    return load(write_model_folder(tmp_path, {**checked_contract(), **changes}))


def test_a_model_that_fails_its_self_check_does_not_load(tmp_path: Path) -> None:
    check = checked_contract()["self_check"]
    check["cases"][0]["probabilities"][3] += 0.01
    with pytest.raises(RuntimeError, match=r"Self-check case 0 is off by 0\.01, tolerance 0\.0001"):
        load_with(tmp_path, self_check=check)
    load_with(tmp_path, self_check={**check, "tolerance": 0.011})


def test_the_self_check_goes_through_decoding(tmp_path: Path) -> None:
    check = checked_contract()["self_check"]
    broken = self_check_case(images.truncated_png(), check["cases"][0]["probabilities"])
    with pytest.raises(RuntimeError, match=r"Self-check case 1 cannot be answered: The PNG is cut off"):
        load_with(tmp_path, self_check={**check, "cases": [check["cases"][0], broken]})


def test_the_self_check_wants_as_many_classes(tmp_path: Path) -> None:
    check = {"tolerance": 1, "cases": [self_check_case(images.rgb_png(), [0.5, 0.5])]}
    with pytest.raises(RuntimeError, match="7 classes, expected 2"):
        load_with(tmp_path, self_check=check)


@pytest.mark.parametrize("missing", ["contract.json", "model.pt"])
def test_an_archive_without_all_its_files_is_a_load_error(tmp_path: Path, missing: str) -> None:
    write_model_folder(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(RuntimeError, match="toy cannot be loaded"):
        load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_broken_contract_is_a_load_error(tmp_path: Path, content: str) -> None:
    write_model_folder(tmp_path)
    (tmp_path / "contract.json").write_text(content)
    with pytest.raises(RuntimeError, match="toy cannot be loaded"):
        load(tmp_path)


def test_int8_models_stay_on_the_cpu_where_their_kernels_are(tmp_path: Path) -> None:
    handler = load(write_model_folder(tmp_path, toy_contract(precision="int8-dynamic")), gpu_id=0)
    assert handler.device == torch.device("cpu")


def test_a_gpu_is_used_when_one_is_given(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        assert load(write_model_folder(tmp_path), gpu_id=0).device == torch.device("cuda:0")
    else:
        with pytest.raises(RuntimeError, match="CUDA"):
            load(write_model_folder(tmp_path), gpu_id=0)


# What TorchServe and the archive ask of the file itself


def test_the_file_defines_exactly_one_class() -> None:
    classes = inspect.getmembers(
        image_classifier, lambda each: inspect.isclass(each) and each.__module__ == image_classifier.__name__
    )
    assert [name for name, _ in classes] == ["ImageClassifier"]
    assert not hasattr(image_classifier, "handle")  # TorchServe would take it for the entry point


def test_the_files_need_each_other_torch_numpy_and_pillow_only() -> None:
    for file in (HANDLER, *MODULES):
        imported = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                imported.add(str(node.module).split(".")[0])
        own = {"handlers", *(module.stem for module in MODULES)} if file == HANDLER else set()
        assert imported - set(sys.stdlib_module_names) <= {"torch", "numpy", "PIL"} | own


def test_training_packs_these_files() -> None:
    assert set(handler_files(HANDLER)) == {HANDLER, *MODULES}


def test_in_an_archive_its_own_modules_are_used_even_where_a_repository_is_on_the_path(folder: Path) -> None:
    for file in (HANDLER, *MODULES):
        shutil.copy(file, folder)
    program = (
        "import image_classifier, sys; print([name for name in sys.modules if name.startswith('handlers')],"
        " image_classifier.decode_item.__code__.co_filename)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(HANDLER.parents[1])])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == f"[] {folder / 'image_decoding.py'}"


def test_a_toy_graph_survives_saving() -> None:
    stream = io.BytesIO()
    torch.jit.save(toy_graph(), stream)
    assert struct.unpack("<I", stream.getvalue()[:4])[0] == 0x04034B50  # a zip file, as TorchScript's are
