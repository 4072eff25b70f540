"""The header's pixels: those that Pillow finds, and never fewer than a decoder would make."""

import io
import struct
import zlib

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from PIL import Image

from service.batching.large_images import UNKNOWN_PIXELS, pixels_of
from tests import images
from tests.fuzz.cost import bounded
from tests.fuzz.profile import fuzzed

SIZE = (61, 47)
PLAIN = Image.fromarray(images.pattern(*SIZE))
FILES = {
    "PNG": images.encode(PLAIN, "PNG"),
    "PNG with text": images.encode(PLAIN, "PNG", dpi=(72, 72), icc_profile=b"x" * 400),
    "JPEG": images.encode(PLAIN, "JPEG"),
    "progressive JPEG with EXIF": images.encode(PLAIN, "JPEG", progressive=True, exif=b"Exif\0\0" + b"x" * 3000),
    "GIF": images.encode(PLAIN.convert("P"), "GIF"),
    "animated GIF": images.encode(PLAIN, "GIF", save_all=True, append_images=[PLAIN.rotate(90)], comment=b"x" * 999),
    "WebP": images.encode(PLAIN, "WEBP"),
    "lossless WebP": images.encode(PLAIN, "WEBP", lossless=True),
    "WebP with alpha": images.encode(PLAIN.convert("RGBA").rotate(5), "WEBP"),
    "BMP": images.encode(PLAIN, "BMP"),
    "TIFF": images.encode(PLAIN, "TIFF"),
    "compressed TIFF": images.encode(PLAIN, "TIFF", compression="tiff_lzw"),
    "BigTIFF": images.encode(PLAIN, "TIFF", big_tiff=True),
    "JPEG 2000": images.encode(PLAIN, "JPEG2000"),
    "codestream": images.encode(PLAIN, "JPEG2000", no_jp2=True),
    "AVIF": images.encode(PLAIN, "AVIF"),
}


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG of these chunks."""
    parts = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def header(width: int, height: int) -> tuple[bytes, bytes]:
    return b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)


def avif(*sizes: tuple[int, int]) -> bytes:
    """The head of an AVIF whose items have these sizes."""
    sides = b"".join(b"\0\0\0\x14ispe" + struct.pack(">III", 0, *size) for size in sizes)
    return b"\0\0\0\x10ftypavif\0\0\0\0" + struct.pack(">I", 8 + len(sides)) + b"meta" + sides


def gif(screen: tuple[int, int], frame: tuple[int, int], before: bytes = b"") -> bytes:
    """The head of a GIF: its screen, and its first frame."""
    return b"GIF89a" + struct.pack("<HHBBB", *screen, 0, 0, 0) + before + b"," + struct.pack("<HHHHB", 0, 0, *frame, 0)


@pytest.mark.parametrize("name", FILES)
def test_the_pixels_are_those_that_pillow_finds(name: str) -> None:
    with Image.open(io.BytesIO(FILES[name])) as image:
        assert image.size == SIZE
    assert pixels_of(FILES[name]) == SIZE[0] * SIZE[1]


@pytest.mark.parametrize("kind", ["1", "L", "RGB"])
def test_what_is_not_compressed_has_no_more_pixels_than_its_bytes_hold(kind: str) -> None:
    num_pixels = pixels_of(images.encode(PLAIN.convert(kind), "PPM"))
    assert SIZE[0] * SIZE[1] <= num_pixels <= 9 * SIZE[0] * SIZE[1]


def test_a_tensor_counts_its_bytes() -> None:
    stream = io.BytesIO()
    np.save(stream, np.zeros((30, 30), np.uint8))
    assert pixels_of(stream.getvalue()) == len(stream.getvalue())
    assert pixels_of(b"") == 0


@pytest.mark.parametrize(
    "payload",
    [
        png(header(5, 5), header(3000, 2000), (b"IDAT", b"")),
        png((b"tEXt", header(5, 5)[1]), header(3000, 2000), (b"IDAT", b"")),
        gif((5, 5), (3000, 2000)),
        avif((5, 5), (3000, 2000), (7, 7)),
        gif((3000, 2000), (5, 5)),
        gif((5, 5), (3000, 2000), b"!\xfe\x0a" + b"," * 10 + b"\0"),
        b"\xff\xd8\x00\xff\x00\xff\xd0\xff\xff\xfe\x00\x07"
        + b"\xff\xc0xx\x00"
        + FILES["JPEG"][2:20]
        + b"\xff\xc1\x00\x0b\x08"
        + struct.pack(">HH", 2000, 3000),
    ],
)
def test_no_second_header_hides_the_pixels(payload: bytes) -> None:
    assert pixels_of(payload) == 6_000_000


@pytest.mark.parametrize(
    "payload",
    [
        b"\x89PNG\r\n\x1a\n",
        png(header(5, 5)),
        png(*[header(5, 5)] * 100, (b"IDAT", b"")),
        b"\xff\xd8" + b"x" * 100_000 + b"\xff\xc0" + b"\0" * 20,
        gif((5, 5), (5, 5), b"!\xfe" + b"\x01x" * 5000 + b"\0"),
        b"II*\x00\x08\x00\x00\x00\xff\xff" + b"\0" * 1000,
        b"\x00\x00\x00\x1cftypavif" + b"\0" * 100,
        FILES["JPEG 2000"].replace(b"\xff\x51", b"\xff\x52"),
        FILES["AVIF"].replace(b"ispe", b"isqe"),
        avif(*[(5, 5)] * 99, (3000, 2000)),
        b"II*\x00\x08\x00\x00\x00\x01\x00\x00\x01\x05" + b"\0" * 30,
    ],
)
def test_a_header_that_cannot_be_followed_counts_as_large(payload: bytes) -> None:
    assert pixels_of(payload) == UNKNOWN_PIXELS


@fuzzed(300)
@given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=8)), max_size=6),
    st.integers(0, 5000),
)
def test_any_header_is_read_or_counts_as_large(name: str, changes: list[tuple[int, bytes]], length: int) -> None:
    payload = bytearray(FILES[name])
    for place, written in changes:
        payload[place : place + len(written)] = written
    content = bytes(payload[:length])
    with bounded(len(content)):
        assert pixels_of(content) >= 0


@pytest.mark.parametrize(
    "start", [b"GIF89a\x05\0\x05\0\0\0\0!\xfe" + b"\x01", b"\xff\xd8\xff", b"\xff\xd8\0", b"II*\0", b"\0\0\0\x0cftyp"]
)
def test_a_header_without_an_end_costs_little(start: bytes) -> None:
    content = start + start[-1:] * 4_000_000
    with bounded(0):
        assert pixels_of(content) in {UNKNOWN_PIXELS, len(content)}
