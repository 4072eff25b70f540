"""The short way for plain PNGs: the answers of the long one, whatever the file holds."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from handlers.image_decoding import PNG_END, decode_image, decode_item, decode_plain_png, plain_png_head
from tests.handlers.archives import toy_contract

CONTRACTS = {channels: toy_contract(channels=channels) for channels in (1, 3)}


def some_pixels(contract: dict[str, Any], seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return [H, W] or [H, W, 3] with smooth and noisy parts, for which encoders take different filters."""
    size = contract["input"]
    shape = (size["height"], size["width"], size["channels"])
    ramp = np.add.outer(np.arange(shape[0]), np.arange(shape[1]))[:, :, np.newaxis] * np.arange(1, shape[2] + 1)
    noise = np.random.default_rng(seed).integers(0, 256, shape)
    return np.where(ramp % 7 < 4, ramp, noise).astype(np.uint8).squeeze()


def encoded(pixels: npt.NDArray[Any], **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", **options)
    return stream.getvalue()


def filtered(pixels: npt.NDArray[np.uint8], kind: int) -> bytes:
    """Write a PNG whose rows all say filter `kind`; what the filter makes of the pixels is not their affair."""
    height, width = pixels.shape[:2]
    rows = b"".join(bytes([kind]) + row.tobytes() for row in pixels)
    return framed(plain_png_head(1 if pixels.ndim == 2 else 3, height, width) or b"", zlib.compress(rows))


def framed(head: bytes, data: bytes) -> bytes:
    chunk = b"IDAT" + data
    return head + struct.pack(">I", len(data)) + chunk + struct.pack(">I", zlib.crc32(chunk)) + PNG_END


def same_answer(content: bytes, contract: dict[str, Any]) -> None:
    answer, expected = decode_item(content, contract), decode_image(content, contract)
    if isinstance(expected, dict):
        assert answer == expected
    else:
        assert isinstance(answer, np.ndarray)
        assert answer.dtype == np.uint8
        assert np.array_equal(answer, expected)


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize("channels", CONTRACTS)
def test_files_that_encoders_write_take_it(channels: int, level: int) -> None:
    contract = CONTRACTS[channels]
    pixels = some_pixels(contract)
    decoded = decode_plain_png(encoded(pixels, compress_level=level), contract["input"])
    assert decoded is not None
    expected = pixels[np.newaxis] if channels == 1 else pixels.transpose(2, 0, 1)
    assert np.array_equal(decoded, expected)
    same_answer(encoded(pixels, compress_level=level), contract)


def test_formats_that_the_contract_leaves_out_are_refused_here_too() -> None:
    contract = {**CONTRACTS[1], "images": {"max_pixels": 1_000_000, "formats": ["JPEG"]}}
    answer = decode_item(encoded(some_pixels(contract)), contract)
    assert isinstance(answer, dict)
    assert answer["code"] == "image_format_refused"


@pytest.mark.parametrize("kind", range(6))
@pytest.mark.parametrize("channels", CONTRACTS)
def test_every_filter_is_undone_and_others_are_refused(channels: int, kind: int) -> None:
    contract = CONTRACTS[channels]
    content = filtered(some_pixels(contract), kind)
    assert (decode_plain_png(content, contract["input"]) is not None) == (kind < 5)
    same_answer(content, contract)


def test_what_holds_more_than_pixels_or_others_takes_the_long_way() -> None:
    grey, size = CONTRACTS[1], CONTRACTS[1]["input"]
    pixels = some_pixels(grey)
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "a picture")
    turned = Image.Exif()
    turned[0x0112] = 3
    others = {
        "text": encoded(pixels, pnginfo=text),
        "turned": encoded(pixels, exif=turned),
        "transparent": encoded(pixels, transparency=0),
        "sixteen bits": encoded(pixels.astype(np.uint16) * 257),
        "one bit": encoded(pixels > 127),
        "colour": encoded(some_pixels(CONTRACTS[3])),
        "larger": encoded(np.tile(pixels, (2, 2))),
        "padded": encoded(pixels) + b"\0",
    }
    for what, content in others.items():
        assert decode_plain_png(content, size) is None, what
        same_answer(content, grey)
    turned_pixels = decode_item(others["turned"], grey)
    assert np.array_equal(turned_pixels, pixels[np.newaxis, ::-1, ::-1])  # type: ignore[arg-type] # no problem


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_files_get_the_answer_of_the_long_way(data: st.DataObject) -> None:
    contract = CONTRACTS[data.draw(st.sampled_from([1, 3]))]
    content = bytearray(encoded(some_pixels(contract, data.draw(st.integers(0, 3)))))
    places = st.integers(0, len(content) - 1)
    for place in data.draw(st.lists(places, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.none() | st.integers(1, len(content) - 1))
    same_answer(bytes(content[:cut]) + data.draw(st.sampled_from([b"", PNG_END])), contract)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_streams_that_end_early_or_late_get_the_answer_of_the_long_way(data: st.DataObject) -> None:
    contract = CONTRACTS[data.draw(st.sampled_from([1, 3]))]
    size = contract["input"]
    rows = np.hstack([np.zeros((size["height"], 1), np.uint8), some_pixels(contract).reshape(size["height"], -1)])
    stream = zlib.compress(rows.tobytes()[: data.draw(st.integers(0, rows.size))] + data.draw(st.binary(max_size=64)))
    stream = stream[: data.draw(st.integers(len(stream) // 2, len(stream)))] + data.draw(st.binary(max_size=8))
    head = plain_png_head(size["channels"], size["height"], size["width"])
    assert head is not None
    same_answer(framed(head, stream), contract)
