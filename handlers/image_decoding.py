"""What clients send becomes pixels of the model's size, or a reason why it cannot.

The file travels inside every archive, beside the handler: preprocessing belongs to a model's version.
"""

import io
import re
import struct
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

# What an item becomes: pixels, uint8 [C, H, W], or why it cannot: {"code", "message"}.
Pixels = npt.NDArray[np.uint8]
Problem = dict[str, str]

# The formats that Pillow is let near, by their first bytes. Others it reads run foreign programs (EPS), are guessed
# from weak marks (TGA), or are no pictures that people send.
SIGNATURES = {
    "PNG": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "JPEG": re.compile(rb"\xff\xd8\xff"),
    "GIF": re.compile(rb"GIF8[79]a"),
    "WEBP": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "BMP": re.compile(rb"BM....\x00\x00\x00\x00", re.DOTALL),
    "TIFF": re.compile(rb"II[*+]\x00|MM\x00[*+]"),
    "PPM": re.compile(rb"P[1-6]\s"),
    "JPEG2000": re.compile(rb"\x00\x00\x00\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51"),
    "AVIF": re.compile(rb"....ftypavi[fs]", re.DOTALL),
}
NPY_SIGNATURE = b"\x93NUMPY"
PNG_CHUNK = struct.Struct(">I4s")
PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
PNG_COLOURS = {1: ("L", 0), 3: ("RGB", 2)}  # channels -> Pillow's mode and PNG's type of colour


def problem(code: str, message: str) -> Problem:
    """Describe why an item or a request is refused."""
    return {"code": code, "message": message}


def decode_item(content: Any, contract: Mapping[str, Any]) -> Pixels | Problem:
    """Turn what a client sent for one item into uint8 [C, H, W], or say what is wrong with it."""
    if not isinstance(content, bytes | bytearray):
        return problem("image_unrecognized", f"An item must be bytes, not {type(content).__name__}.")
    if not content:
        return problem("image_empty", "The item has 0 bytes.")
    if content.startswith(NPY_SIGNATURE):
        return decode_tensor(content, contract["input"])
    pixels = decode_plain_png(content, contract["input"])
    return decode_image(content, contract) if pixels is None else pixels


def decode_plain_png(content: bytes | bytearray, size: Mapping[str, int]) -> Pixels | None:
    """Decode a PNG that holds 8-bit pixels of exactly the model's size and channels and nothing else; else None.

    The pixels are decode_image's, by the same decoder of Pillow's, asked directly: for images this small, opening the
    file and looking for what it might hold besides takes three times as long as decoding it.
    """
    channels, height, width = size["channels"], size["height"], size["width"]
    head = plain_png_head(channels, height, width)
    if head is None or not content.startswith(head) or not content.endswith(PNG_END):
        return None
    begin = len(head) + PNG_CHUNK.size
    num_bytes, kind = PNG_CHUNK.unpack_from(content, len(head))
    end = begin + num_bytes
    if kind != b"IDAT" or end + 4 + len(PNG_END) != len(content):  # 4 are the checksum, which Pillow passes over, too
        return None
    mode, area = PNG_COLOURS[channels][0], (0, 0, width, height)
    try:
        image = Image.core.new(mode, (width, height))  # type: ignore[attr-defined]
        decoder = Image._getdecoder(mode, "zip", (mode, 0))  # noqa: SLF001 - what Pillow's own files are decoded by
        decoder.setimage(image, area)
        if decoder.decode(content[begin:end]) != (-1, 0):
            return None  # broken: decode_image says how
        encoder = Image._getencoder(mode, "raw", (mode, 0, 1))  # noqa: SLF001
        encoder.setimage(image, area)
        _, _, pixels = encoder.encode(channels * height * width)
        return np.frombuffer(pixels, np.uint8).reshape(height, width, channels).transpose(2, 0, 1)
    except (AttributeError, TypeError, ValueError, OSError, MemoryError):  # another Pillow, or no room for the pixels
        return None


@cache
def plain_png_head(channels: int, height: int, width: int) -> bytes | None:
    """Return how a PNG of 8-bit pixels begins, up to its first chunk of pixels; None where there is none."""
    if channels not in PNG_COLOURS or width * height > (Image.MAX_IMAGE_PIXELS or 0):
        return None
    header = struct.pack(">4sIIBBBBB", b"IHDR", width, height, 8, PNG_COLOURS[channels][1], 0, 0, 0)
    checksum = struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header) - 4) + header + checksum


def decode_tensor(content: bytes | bytearray, size: Mapping[str, int]) -> Pixels | Problem:
    """Read a .npy file that holds uint8 [C, H, W] of exactly the model's size."""
    shape = (size["channels"], size["height"], size["width"])
    allowed = f"allowed is uint8 of shape {list(shape)}"
    stream = io.BytesIO(content)
    try:
        # Headers only: nothing is allocated for the shape that a header claims, and nothing is unpickled.
        version = np.lib.format.read_magic(stream)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        sent_shape, fortran_order, dtype = read_header[version](stream)
    except Exception as error:  # noqa: BLE001 - a hostile header can break the parser in many ways; this is the border
        return problem("tensor_invalid", f"The .npy header cannot be read ({brief(error)}); {allowed}.")
    if dtype != np.uint8 or sent_shape != shape:
        sent = f"{dtype} of shape {list(sent_shape)}"
        return problem("tensor_invalid", f"The .npy file holds {sent[:200]}; {allowed}.")
    data = content[stream.tell() :]
    expected = size["channels"] * size["height"] * size["width"]
    if len(data) != expected:
        return problem("tensor_invalid", f"{len(data)} bytes follow the .npy header; {allowed}: {expected} bytes.")
    return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran_order else "C")


def decode_image(content: bytes | bytearray, contract: Mapping[str, Any]) -> Pixels | Problem:
    """Read the first picture of an image file and bring it to the model's size and channels."""
    name = next((name for name, signature in SIGNATURES.items() if signature.match(content)), None)
    if name is None:
        known = ", ".join(SIGNATURES)
        return problem("image_unrecognized", f"The item is no image of a known format ({known}) and no .npy file.")
    try:
        with Image.open(io.BytesIO(content), formats=(name,)) as image:
            # Before any pixel is decoded; Pillow itself raises from twice as many only, and warns in between.
            if image.width * image.height > (Image.MAX_IMAGE_PIXELS or 0):
                return too_many_pixels(name)
            if image.mode == "F":
                return problem("image_unsupported", f"The {name} has floating-point pixels; send integers.")
            return preprocess(image, contract)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return too_many_pixels(name)
    except Exception as error:  # noqa: BLE001 - decoders raise nearly everything on broken files; this is the border
        # Pillow's own words name the object that it read from.
        unknown = isinstance(error, UnidentifiedImageError)
        reason = f"what follows its first bytes is no {name}" if unknown else brief(error)
        return problem("image_truncated", f"The {name} is cut off or corrupt: {reason}.")


def too_many_pixels(name: str) -> Problem:
    """Refuse a decompression bomb."""
    return problem("image_too_many_pixels", f"The {name} has more pixels than the {Image.MAX_IMAGE_PIXELS} allowed.")


def preprocess(image: Image.Image, contract: Mapping[str, Any]) -> Pixels:
    """Apply the contract's preprocessing to the first frame: uint8 [C, H, W]. The image that is passed is used up.

    Each step is left out where it would only copy: of a photo, a copy costs as much as half its decoding.
    """
    size, background = contract["input"], contract["preprocessing"]["background"]
    image.seek(0)
    ImageOps.exif_transpose(image, in_place=True)
    upright = image
    if upright.mode == "I" or upright.mode.startswith("I;16"):
        values = np.asarray(upright).astype(np.int64).clip(0, 65535)
        upright = Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    if upright.has_transparency_data:
        canvas = Image.new("RGBA", upright.size, (*background, 255))
        # La (premultiplied) converts to LA only.
        canvas.alpha_composite((upright.convert("LA") if upright.mode == "La" else upright).convert("RGBA"))
        upright = canvas
    if upright.mode == "LAB":  # has no direct way to L
        upright = upright.convert("RGB")
    mode, sides = "L" if size["channels"] == 1 else "RGB", (size["width"], size["height"])
    plain = upright if upright.mode == mode else upright.convert(mode)
    fitted = plain if plain.size == sides else ImageOps.fit(plain, sides, method=Image.Resampling.BILINEAR)
    pixels = np.asarray(fitted)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def brief(error: Exception) -> str:
    """Name an exception in one short line."""
    return f"{type(error).__name__}: {error}"[:200].replace("\n", " ").rstrip(" .:")
