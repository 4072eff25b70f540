"""An image of at most a megabyte costs at most 400 MB and a second or so, or is refused by name; and it fails alone."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from handlers import image_decoding, image_limits
from handlers.image_decoding import decode_item, decode_items, in_bands
from tests import images
from tests.handlers.archives import toy_contract
from tests.torchserve_process import ROOT

CONTRACT = toy_contract()
SIDE = 5000  # 25 megapixels


def with_limits(max_pixels: int = 25_000_000, formats: tuple[str, ...] = ("PNG",)) -> dict[str, Any]:
    return toy_contract(images={"max_pixels": max_pixels, "formats": list(formats)})


def refused(content: bytes, contract: dict[str, Any] = CONTRACT) -> tuple[str, str]:
    answer = decode_item(content, contract)
    assert isinstance(answer, dict), "it was decoded"
    return answer["code"], answer["message"]


@contextmanager
def at_most(megabytes: float) -> Iterator[None]:
    """See that this process never holds so much more memory meanwhile."""

    def memory(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key))

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    yield
    grown = (memory("VmHWM") - before) / 1000
    assert grown < megabytes, grown


def flat(mode: str, width: int = SIDE, height: int = SIDE, file_format: str = "PNG", **options: Any) -> bytes:
    return images.encode(Image.new(mode, (width, height)), file_format, **options)


# Of the largest size that is taken, as a client would who wants it to cost much.
DEAR = {
    "16 bits, grey": lambda: flat("I;16"),
    "transparency": lambda: flat("RGBA", SIDE, SIDE // 2),
    "progressive": lambda: flat("RGB", file_format="JPEG", progressive=True, subsampling=0),
    "WebP": lambda: flat("RGB", SIDE, SIDE // 2, "WEBP", method=0),
    "AVIF": lambda: flat("RGBA", SIDE, SIDE // 2, "AVIF", speed=10),
    "JPEG 2000": lambda: flat("RGBA", SIDE // 2, SIDE // 2, "JPEG2000"),
    "32 bits": lambda: flat("I", file_format="TIFF", compression="tiff_deflate"),
}


@pytest.mark.parametrize("name", DEAR)
def test_the_dearest_images_that_are_taken_stay_below_400_mb(name: str) -> None:
    content = DEAR[name]()
    assert len(content) < 1e6
    with at_most(400):
        assert not isinstance(decode_item(content, CONTRACT), dict)


LARGER = {
    "WebP": lambda: flat("RGB", SIDE, SIDE // 2 + 1, "WEBP", lossless=True, method=0),
    "AVIF": lambda: flat("RGB", SIDE, SIDE // 2 + 1, "AVIF", speed=10),
    "JPEG 2000": lambda: flat("L", SIDE // 2, SIDE // 2 + 1, "JPEG2000"),
    "transparency": lambda: flat("LA", SIDE, SIDE // 2 + 1),
    "CMYK": lambda: flat("CMYK", SIDE, SIDE // 2 + 1, "JPEG"),
}


@pytest.mark.parametrize("name", LARGER)
def test_of_dearer_kinds_fewer_pixels_are_allowed_and_none_is_decoded(name: str) -> None:
    content = LARGER[name]()
    with at_most(60):
        code, message = refused(content)
    assert code == "image_too_many_pixels"
    assert f"allowed of its kind are {SIDE * SIDE // (4 if name == 'JPEG 2000' else 2)} in all" in message


def test_a_jpeg_of_thousands_of_scans_is_refused() -> None:
    whole = flat("RGB", 400, 300, "JPEG", progressive=True)
    assert not isinstance(decode_item(whole, CONTRACT), dict)
    scan = whole[whole.rindex(b"\xff\xda") : -2]
    code, message = refused(whole[:-2] + scan * 10_000 + whole[-2:])
    assert (code, "400 x 300 pixels; allowed of its kind are 4" in message) == ("image_too_many_pixels", True)
    tiff = images.encode(Image.new("RGB", (64, 64)), "TIFF", compression="jpeg")
    assert not isinstance(decode_item(tiff, CONTRACT), dict)
    assert refused(tiff + scan * 1_000_000)[0] == "image_too_many_pixels"


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_webp_tells_its_size_before_it_is_opened(mode: str, lossless: bool) -> None:
    content = images.encode(Image.new(mode, (300, 7), 200), "WEBP", lossless=lossless)
    assert image_limits.webp_size(content) == (300, 7)
    assert image_limits.webp_size(content[:14]) == (0, 0)


def test_a_contract_allows_formats_and_pixels() -> None:
    png, jpeg = images.rgb_png(), images.rgb_file("JPEG")
    assert not isinstance(decode_item(png, with_limits(1024)), dict)
    assert refused(images.rgb_png(33), with_limits(1024))[0] == "image_too_many_pixels"
    expected = ("image_format_refused", "The item is a JPEG; allowed are PNG, TIFF.")
    assert refused(jpeg, with_limits(formats=("PNG", "TIFF"))) == expected


def test_what_takes_more_memory_than_its_header_tells_is_refused() -> None:
    # In a process of its own: this one has memory left of earlier tests, which counts as taken.
    program = """
import sys, json
from handlers import image_decoding, image_limits
image_limits.LEAST_BYTES, image_limits.BYTES_PER_PIXEL = 1_000_000, 0
print(json.dumps(image_decoding.decode_item(sys.stdin.buffer.read(), json.loads(sys.argv[1]))))
"""
    content = flat("P", 3000, 3000, "GIF")
    command = [sys.executable, "-c", program, json.dumps(CONTRACT)]
    done = subprocess.run(command, input=content, capture_output=True, cwd=ROOT, timeout=60, check=True)
    expected = {"code": "image_too_costly", "message": "The GIF takes more than 1 MB to decode; send a smaller one."}
    assert json.loads(done.stdout) == expected
    assert not isinstance(decode_item(content, CONTRACT), dict)


def test_the_memory_of_the_process_is_limited_meanwhile_only() -> None:
    with image_limits.memory_limit(64 << 20):
        bytearray(16 << 20)
        with pytest.raises(MemoryError):
            bytearray(256 << 20)
    bytearray(256 << 20)


def test_a_file_that_takes_too_long_to_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    content = images.encode(Image.fromarray(noise), "PNG")
    monkeypatch.setattr(image_limits, "seconds_of", lambda max_pixels: -1.0)
    code, message = refused(content)
    assert (code, "takes more than -1 s to decode" in message) == ("image_too_costly", True)


def test_large_images_wait_for_small_ones_and_fail_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now, sizes = [0.0], list[tuple[int, int]]()
    preprocess = image_decoding.preprocess

    def slow(image: Image.Image, contract: dict[str, Any]) -> Any:
        sizes.append(image.size)
        now[0] += image.width * image.height / 1e6  # a second for each megapixel
        return preprocess(image, contract)

    monkeypatch.setattr(image_decoding, "preprocess", slow)
    monkeypatch.setattr("handlers.image_decoding.time.perf_counter", lambda: now[0])
    small, large, larger, largest = (flat("RGB", side, 1000) for side in (500, 2000, 3000, 4000))
    entries = decode_items([largest, small, larger, b"", small, large, small], CONTRACT, seconds=6.0)
    codes = [entry["code"] if isinstance(entry, dict) else "" for entry in entries]
    assert codes == ["decode_timeout", "", "", "image_empty", "", "", ""]
    assert sizes == [(500, 1000)] * 3 + [(2000, 1000), (3000, 1000)]


MODES = ["1", "L", "P", "PA", "LA", "La", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV", "LAB", "I", "I;16", "I;16B"]


@pytest.mark.parametrize("target", ["L", "RGB"])
@pytest.mark.parametrize("mode", MODES)
def test_bands_give_the_pixels_of_the_whole(mode: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    width, height = 37, 23
    depth = {"I": 4, "I;16": 2, "I;16B": 2}.get(mode, len(Image.new(mode, (1, 1)).getbands()))
    num_bytes = (width + 7) // 8 * height if mode == "1" else width * height * depth
    data = np.random.default_rng(0).bytes(num_bytes)
    image = Image.frombytes(mode, (width, height), data)
    if mode in ("P", "PA"):
        image.putpalette(np.random.default_rng(1).bytes(768))
    if mode in ("P", "RGB"):
        image.info["transparency"] = 7 if mode == "P" else image.getpixel((5, 5))
    whole = in_bands(image, target, (10, 20, 30))
    monkeypatch.setattr(image_decoding, "BAND_PIXELS", 5 * width)
    assert np.array_equal(np.asarray(in_bands(image, target, (10, 20, 30))), np.asarray(whole))


def test_sixteen_bits_are_scaled_as_integers_of_64_bits_would_be() -> None:
    values = np.arange(65536)
    assert np.array_equal(image_decoding.eight_of_sixteen_bits(), (values * 255 + 32767) // 65535)


def test_an_old_pillow_limit_is_no_higher_than_ours() -> None:
    assert image_limits.MOST_PIXELS == Image.MAX_IMAGE_PIXELS
    assert Image.open(io.BytesIO(images.rgb_png())).size == (32, 32)
