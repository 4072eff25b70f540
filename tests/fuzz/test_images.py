"""What a worker makes of damaged and forged images, and whether the gateway's look at their headers is fooled."""

import io
import json
import warnings

import hypothesis.strategies as st
import numpy as np
from hypothesis import example, given
from PIL import Image

from handlers.image_decoding import decode_item
from service.batching.large_images import UNKNOWN_PIXELS, pixels_of
from tests import images
from tests.fuzz.profile import fuzzed
from tests.handlers.archives import toy_contract

CONTRACT = toy_contract(
    images={
        "max_pixels": 1_000_000,
        "formats": ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF"],
    }
)
CODES = {
    *("image_empty", "image_unrecognized", "image_too_many_pixels", "image_too_costly", "image_truncated"),
    *("image_unsupported", "tensor_invalid"),
}
PLAIN = Image.fromarray(images.pattern(61, 47))


def tensor() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros((3, 12, 12), np.uint8))
    return stream.getvalue()


FILES = {
    "PNG": images.encode(PLAIN, "PNG"),
    "PNG with text": images.encode(PLAIN, "PNG", dpi=(72, 72), icc_profile=b"x" * 40),
    "palette": images.palette_png(),
    "16 bits": images.encode(Image.new("I;16", (61, 47)), "PNG"),
    "JPEG": images.encode(PLAIN, "JPEG"),
    "progressive JPEG with EXIF": images.encode(PLAIN, "JPEG", progressive=True, exif=b"Exif\0\0" + b"x" * 30),
    "CMYK": images.encode(PLAIN.convert("CMYK"), "JPEG"),
    "GIF": images.encode(PLAIN.convert("P"), "GIF"),
    "animated GIF": images.encode(PLAIN, "GIF", save_all=True, append_images=[PLAIN.rotate(90)], comment=b"x" * 9),
    "WebP": images.encode(PLAIN, "WEBP"),
    "lossless WebP": images.encode(PLAIN, "WEBP", lossless=True),
    "WebP with alpha": images.encode(PLAIN.convert("RGBA").rotate(5), "WEBP"),
    "BMP": images.encode(PLAIN, "BMP"),
    "TIFF": images.encode(PLAIN, "TIFF"),
    "compressed TIFF": images.encode(PLAIN, "TIFF", compression="tiff_lzw"),
    "BigTIFF": images.encode(PLAIN, "TIFF", big_tiff=True),
    "PPM": images.encode(PLAIN, "PPM"),
    "PBM": images.encode(PLAIN.convert("1"), "PPM"),
    "JPEG 2000": images.encode(PLAIN, "JPEG2000"),
    "codestream": images.encode(PLAIN, "JPEG2000", no_jp2=True),
    "AVIF": images.encode(PLAIN, "AVIF"),
    "tensor": tensor(),
}


SMALL_HEADER = images.encode(Image.new("RGB", (5, 5)), "PNG")[8:33]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a file with other bytes at some places, most in its head, or without its end."""
    content = bytearray(FILES[draw(st.sampled_from(sorted(FILES)))])
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, 30) | st.integers(0, 150) | st.integers(0, len(content)))
        written = draw(
            st.sampled_from([b"\0", b"\xff", b"\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0"])
            | st.binary(min_size=1, max_size=4)
        )
        if draw(st.booleans()):
            content[place : place + len(written)] = written
        elif draw(st.booleans()):
            content[place:place] = written
        else:
            del content[place : place + len(written)]
    return bytes(content[: draw(st.just(len(content)) | st.integers(0, len(content)))])


@fuzzed(400)
@given(content=damaged() | st.binary(max_size=60))
def test_an_image_is_decoded_or_refused_by_a_documented_code(content: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about what is wrong with a file
        found = decode_item(content, CONTRACT)
    if isinstance(found, dict):
        assert found["code"] in CODES
        assert len(found["message"]) < 1000
        json.dumps(found)
        return
    size = CONTRACT["input"]
    assert found.dtype == np.uint8
    assert found.shape == (size["channels"], size["height"], size["width"])


@fuzzed(400)
@example(content=FILES["GIF"][:6] + b"\x05\0\x05\0" + FILES["GIF"][10:])  # a screen that is smaller than its frame
@example(content=FILES["PNG"][:8] + SMALL_HEADER + FILES["PNG"][8:])
@example(content=b"\xff\xd8\xff\0\xff\xd0\xff" + FILES["JPEG"][2:])  # what decoders skip
@given(content=damaged())
def test_no_header_hides_pixels_that_a_worker_decodes(content: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(decode_item(content, CONTRACT), dict) or content.startswith(b"\x93NUMPY"):
            return
        with Image.open(io.BytesIO(content)) as image:
            assert image.width * image.height <= pixels_of(content) <= UNKNOWN_PIXELS
