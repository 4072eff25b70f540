"""What an image may cost: formats, pixels, bytes and seconds, decided by its header wherever that tells.

One number of the contract, `max_pixels`, scales all of it. A format or mode that costs more for each pixel than a PNG
in colour may have fewer of them; `python -m benchmarks cost images` measures the shares.
"""

import contextlib
import io
import os
import re
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from PIL import Image, TiffImagePlugin

# The formats that Pillow is let near, by their first bytes. Others it reads run foreign programs (EPS), are guessed
# from weak marks (TGA), or are no pictures that people send.
SIGNATURES = {
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "JPEG": rb"\xff\xd8\xff",
    "GIF": rb"GIF8[79]a",
    "WEBP": rb"RIFF....WEBP",
    "BMP": rb"BM....\x00\x00\x00\x00",
    "TIFF": rb"II[*+]\x00|MM\x00[*+]",
    "PPM": rb"P[1-6]\s",
    "JPEG2000": rb"\x00\x00\x00\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    "AVIF": rb"....ftypavi[fs]",
}
_ALTERNATIVES = b"|".join(b"(?P<%s>%s)" % (name.encode(), each) for name, each in SIGNATURES.items())
_BEGINNING = re.compile(_ALTERNATIVES, re.DOTALL)
# Of a contract without limits of its own.
DEFAULT_LIMITS: Mapping[str, Any] = {"max_pixels": 25_000_000, "formats": list(SIGNATURES)}
# Pillow's own limit, which no contract can lift.
MOST_PIXELS = 1024 * 1024 * 1024 // 4 // 3
# What a whole image may take beside the process that decodes it, for each pixel of max_pixels: 400 MB, 1 s by default.
BYTES_PER_PIXEL, SECONDS_PER_PIXEL = 16, 40e-9
LEAST_BYTES, LEAST_SECONDS = 64 << 20, 1.0
# Which part of max_pixels a format may have.
SHARES = {"WEBP": 1 / 2, "AVIF": 1 / 2, "JPEG2000": 1 / 4}
DEAR_SHARE = 1 / 2  # of transparency, of colours that must be computed, of 16 bits for each of several samples
CHEAP_MODES = {"1", "L", "P", "RGB", "YCbCr", "I", "I;16", "I;16B", "I;16L", "I;16N", "F"}
# A progressive JPEG has ten scans. Each goes through the whole image, and need not be longer than its header.
FREE_SCANS, START_OF_SCAN, LEAST_BYTES_OF_SCAN = 20, b"\xff\xda", 10
# Formats whose decoders allocate what the header says and nothing else.
STEADY_FORMATS = {"PNG", "JPEG", "BMP", "PPM"}
# Up to so many pixels, or bytes of a file, nothing can go far wrong: what only guards is left out.
SMALL_PIXELS, SMALL_BYTES = 1 << 20, 64 << 10
STRIPS, TILES = 273, 324  # TIFF's tags of where its parts begin


class Refused(Exception):
    """An image is not decoded, or not to its end; its text says why, after "The"."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class TimedBytes(io.BytesIO):
    """A file in memory that refuses to be read on after the time of its image: decoders read it bit by bit."""

    def __init__(self, content: bytes | bytearray, seconds: float) -> None:
        super().__init__(content)
        self._seconds = seconds
        self._until = time.thread_time() + seconds  # of the processor: a busy machine is not the image's fault

    def read(self, size: int | None = -1, /) -> bytes:
        """Read on; raises Refused."""
        if time.thread_time() > self._until:
            raise too_costly("image", f"{self._seconds:g} s")
        return super().read(size)


def too_costly(name: str, allowed: str) -> Refused:
    """Return what refuses an image that takes more than that to decode."""
    return Refused("image_too_costly", f"{name} takes more than {allowed} to decode; send a smaller one")


def format_of(content: bytes | bytearray, formats: Sequence[str]) -> str:
    """Return the name of an image's format, by its first bytes; raises Refused if it is none, or none of `formats`."""
    found = _BEGINNING.match(content)
    name = None if found is None else found.lastgroup
    if name is None:
        reason = f"item is no image of a known format ({', '.join(SIGNATURES)}) and no .npy file"
        raise Refused("image_unrecognized", reason)
    if name not in formats:
        raise Refused("image_format_refused", f"item is a {name}; allowed are {', '.join(formats)}")
    return name


def check_pixels(name: str, size: tuple[int, int], allowed: float) -> None:
    """Raise Refused for a decompression bomb, or what would cost as much."""
    if size[0] * size[1] > allowed:
        reason = f"has {size[0]} x {size[1]} pixels; allowed of its kind are {int(allowed)} in all"
        raise Refused("image_too_many_pixels", f"{name} {reason}")


def check_canvas(name: str, content: bytes | bytearray, max_pixels: int) -> None:
    """Raise Refused for a WebP whose canvas is too large, which Pillow allocates before it tells the size."""
    if name == "WEBP":
        check_pixels(name, webp_size(content), max_pixels * SHARES[name])


def check_header(name: str, image: Image.Image, content: bytes | bytearray, max_pixels: int) -> float:
    """Return what an opened image will cost, in pixels of a plain one; raises Refused if that is too much."""
    share, size = share_of(name, image, content), image.size
    check_pixels(name, size, max_pixels * share)
    if image.mode == "F":
        raise Refused("image_unsupported", f"{name} has floating-point pixels; send integers")
    return size[0] * size[1] / share


def guarded(name: str, max_pixels: int) -> contextlib.AbstractContextManager[None]:
    """Return what keeps a format's decoder within its memory, where the header alone does not."""
    if name in STEADY_FORMATS:
        return contextlib.nullcontext()
    if name == "AVIF":
        one_thread_each()
    return memory_limit(bytes_of(max_pixels))


def stream_of(content: bytes | bytearray, max_pixels: int) -> io.BytesIO:
    """Return an image's bytes as a file, which ends what takes too long."""
    return io.BytesIO(content) if len(content) < SMALL_BYTES else TimedBytes(content, seconds_of(max_pixels))


def seconds_of(max_pixels: int) -> float:
    """Return the time of a processor that an image may take to be decoded."""
    return max(LEAST_SECONDS, SECONDS_PER_PIXEL * max_pixels)


def bytes_of(max_pixels: int) -> int:
    """Return the memory that an image may take to be decoded."""
    return max(LEAST_BYTES, BYTES_PER_PIXEL * max_pixels)


def share_of(name: str, image: Image.Image, content: bytes | bytearray) -> float:
    """Return which part of max_pixels an image of this kind may have, by its header; content is its file."""
    share = SHARES.get(name, 1.0)
    if image.mode not in CHEAP_MODES or image.has_transparency_data or has_deep_colour(name, image, content):
        share = min(share, DEAR_SHARE)
    if image.width * image.height * len(content) // LEAST_BYTES_OF_SCAN < SMALL_PIXELS * FREE_SCANS:
        return share  # to count its scans would take longer than they may
    return share * FREE_SCANS / max(FREE_SCANS, num_scans(name, image, content))


def has_deep_colour(name: str, image: Image.Image, content: bytes | bytearray) -> bool:
    """Tell whether a PNG has 16 bits for each of several samples."""
    return name == "PNG" and content[24:25] == b"\x10" and image.mode != "I;16"


def num_scans(name: str, image: Image.Image, content: bytes | bytearray) -> float:
    """Return how often a decoder goes through a JPEG, at most; of a TIFF, its parts on average."""
    if name == "JPEG":
        return content.count(START_OF_SCAN)
    if isinstance(image, TiffImagePlugin.TiffImageFile) and "jpeg" in str(image.info.get("compression")):
        parts = image.tag_v2.get(STRIPS) or image.tag_v2.get(TILES) or (0,)
        return content.count(START_OF_SCAN) / len(parts)
    return 0


def webp_size(content: bytes | bytearray) -> tuple[int, int]:
    """Return width and height that a WebP claims: Pillow allocates a canvas before it tells. (0, 0) of no WebP.

    Source: RFC 9649, sections 2.5 to 2.7.
    """
    match bytes(content[12:16]):
        case b"VP8X":
            return 1 + int.from_bytes(content[24:27], "little"), 1 + int.from_bytes(content[27:30], "little")
        case b"VP8L":
            bits = int.from_bytes(content[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            sides = int.from_bytes(content[26:28], "little"), int.from_bytes(content[28:30], "little")
            return sides[0] & 0x3FFF, sides[1] & 0x3FFF
    return 0, 0


def num_data_pages() -> int:
    """Return the pages of memory that the limit counts as taken; raises OSError where the system does not say."""
    descriptor = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        return int(os.read(descriptor, 200).split()[5])
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def memory_limit(num_bytes: int) -> Iterator[None]:
    """Let this process take so much more memory meanwhile, and no more: what asks for it fails, the process lives.

    Where the system has no such limit, there is none.
    """
    try:
        num_pages = num_data_pages()
    except OSError:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    least = [each for each in before if each != resource.RLIM_INFINITY]
    wanted = num_pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (min([wanted, *least]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def one_thread_each() -> None:
    """Have AVIF decoded by the thread that asks: workers have one core each, and threads' stacks count as memory."""
    from PIL import AvifImagePlugin  # noqa: PLC0415 - needed by few, and its library is large

    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
