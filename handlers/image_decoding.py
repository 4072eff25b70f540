"""What clients send becomes pixels of the model's size, or a reason why it cannot.

The file travels inside every archive, beside the handler: preprocessing belongs to a model's version.
"""

import io
import math
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

if TYPE_CHECKING or __package__:  # in the repository
    from handlers import image_limits as limits
else:  # in an archive, or read by training; never those of a repository that is on the path, too
    import image_limits as limits

# What an item becomes: pixels, uint8 [C, H, W], or why it cannot: {"code", "message"}.
Pixels = npt.NDArray[np.uint8]
Problem = dict[str, str]

# Large images change their mode in bands of so many pixels.
BAND_PIXELS = 1 << 20
NPY_SIGNATURE = b"\x93NUMPY"
PNG_CHUNK = struct.Struct(">I4s")
PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
PNG_COLOURS = {1: ("L", 0), 3: ("RGB", 2)}  # channels -> Pillow's mode and PNG's type of colour


def problem(code: str, message: str) -> Problem:
    """Describe why an item or a request is refused."""
    return {"code": code, "message": message}


class Postponed(NamedTuple):
    """An image that costs as much as so many pixels of a plain one, to be decoded after cheaper ones."""

    cost: float


def decode_items(items: Sequence[Any], contract: Mapping[str, Any], seconds: float) -> list[Pixels | Problem]:
    """Decode a batch within a time, in any order: large images wait for all others, the largest for all.

    What there is no time left for is refused, and that is the largest images. One is decoded in any case.
    """
    deadline = time.perf_counter() + seconds
    decoded: dict[int, Pixels | Problem] = {}
    postponed: list[tuple[float, int]] = []
    late = problem("decode_timeout", f"The images of its batch took {seconds:g} s; send it again, or a smaller one.")
    for index, item in enumerate(items):
        in_time = not decoded or time.perf_counter() < deadline
        entry = decode_or_postpone(item, contract, limits.SMALL_PIXELS) if in_time else late
        if isinstance(entry, Postponed):
            postponed.append((entry.cost, index))
        else:
            decoded[index] = entry
    for _, index in sorted(postponed):
        in_time = not decoded or time.perf_counter() < deadline
        decoded[index] = decode_item(items[index], contract) if in_time else late
    return [decoded[index] for index in range(len(items))]


def decode_item(content: Any, contract: Mapping[str, Any]) -> Pixels | Problem:
    """Turn what a client sent for one item into uint8 [C, H, W], or say what is wrong with it."""
    decoded = decode_or_postpone(content, contract, math.inf)
    assert not isinstance(decoded, Postponed)
    return decoded


def decode_or_postpone(content: Any, contract: Mapping[str, Any], at_once: float) -> Pixels | Problem | Postponed:
    """Do what decode_item does, but for an image that costs as much as more than `at_once` pixels."""
    if not isinstance(content, bytes | bytearray):
        return problem("image_unrecognized", f"An item must be bytes, not {type(content).__name__}.")
    if not content:
        return problem("image_empty", "The item has 0 bytes.")
    if content.startswith(NPY_SIGNATURE):
        return decode_tensor(content, contract["input"])
    is_served = "PNG" in contract.get("images", limits.DEFAULT_LIMITS)["formats"]
    pixels = decode_plain_png(content, contract["input"]) if is_served else None
    return decode_image(content, contract, at_once) if pixels is None else pixels


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


def decode_image(
    content: bytes | bytearray, contract: Mapping[str, Any], at_once: float = math.inf
) -> Pixels | Problem | Postponed:
    """Read the first picture of an image file and bring it to the model's size and channels.

    What costs as much as more than `at_once` pixels is Postponed.
    """
    allowed = contract.get("images", limits.DEFAULT_LIMITS)
    most, name = allowed["max_pixels"], "image"
    try:
        name = limits.format_of(content, allowed["formats"])
        limits.check_canvas(name, content, most)
        with limits.guarded(name, most), Image.open(limits.stream_of(content, most), formats=(name,)) as image:
            # Before any pixel is decoded.
            cost = limits.check_header(name, image, content, most)
            return Postponed(cost) if cost > at_once else preprocess(image, contract)
    except limits.Refused as refused:
        return problem(refused.code, f"The {refused}.")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # of Pillow's own limit, which is higher
        return problem("image_too_many_pixels", f"The {name} has too many pixels; allowed are {most} at most.")
    except MemoryError:
        megabytes = limits.bytes_of(most) // 1_000_000
        return problem("image_too_costly", f"The {limits.too_costly(name, f'{megabytes} MB')}.")
    except Exception as error:  # noqa: BLE001 - decoders raise nearly everything on broken files; this is the border
        # Pillow's own words name the object that it read from.
        unknown = isinstance(error, UnidentifiedImageError)
        reason = f"what follows its first bytes is no {name}" if unknown else brief(error)
        return problem("image_truncated", f"The {name} is cut off or corrupt: {reason}.")


def preprocess(image: Image.Image, contract: Mapping[str, Any]) -> Pixels:
    """Apply the contract's preprocessing to the first frame: uint8 [C, H, W]. The image that is passed is used up.

    Each step is left out where it would only copy: of a photo, a copy costs as much as half its decoding.
    """
    size, background = contract["input"], contract["preprocessing"]["background"]
    image.seek(0)
    ImageOps.exif_transpose(image, in_place=True)
    mode, sides = "L" if size["channels"] == 1 else "RGB", (size["width"], size["height"])
    plain = image if is_plain(image, mode) else in_bands(image, mode, background)
    fitted = plain if plain.size == sides else ImageOps.fit(plain, sides, method=Image.Resampling.BILINEAR)
    pixels = np.asarray(fitted)
    return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def is_plain(image: Image.Image, mode: str) -> bool:
    """Tell whether an image is of this mode already, with nothing to lay over a background."""
    return image.mode == mode and not image.has_transparency_data


def in_bands(image: Image.Image, mode: str, background: Sequence[int]) -> Image.Image:
    """Return an image in another mode, made band by band: the steps between never hold the whole of a large image."""
    num_rows = max(1, BAND_PIXELS // image.width)
    if num_rows >= image.height:
        return converted(image, mode, background)
    whole = Image.new(mode, image.size)
    for top in range(0, image.height, num_rows):
        band = image.crop((0, top, image.width, min(top + num_rows, image.height)))
        whole.paste(converted(band, mode, background), (0, top))
    return whole


def converted(image: Image.Image, mode: str, background: Sequence[int]) -> Image.Image:
    """Return an image in mode L or RGB: 16 bits scaled, alpha laid over the background, pixel by pixel."""
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        image = Image.fromarray(eight_of_sixteen_bits()[values.clip(0, 65535) if image.mode == "I" else values])
    if image.has_transparency_data:
        canvas = Image.new("RGBA", image.size, (*background, 255))
        # La (premultiplied) converts to LA only.
        canvas.alpha_composite((image.convert("LA") if image.mode == "La" else image).convert("RGBA"))
        image = canvas
    if image.mode == "LAB":  # has no direct way to L
        image = image.convert("RGB")
    return image if image.mode == mode else image.convert(mode)


@cache
def eight_of_sixteen_bits() -> Pixels:
    """Return what each value of 16 bits is in 8 bits, rounded: uint8 [65536]."""
    return ((np.arange(65536, dtype=np.uint32) * 255 + 32767) // 65535).astype(np.uint8)


def brief(error: Exception) -> str:
    """Name an exception in one short line."""
    return f"{type(error).__name__}: {error}"[:200].replace("\n", " ").rstrip(" .:")
