"""Large images: which ones are, by their headers, and how long they should take.

An image is large if it has far more pixels than is usual here. It goes to a worker alone, and large ones have at most
half of the workers at a time. So the others neither wait in a batch for its decoding nor find every worker taken.

Only the image's own header is read, which takes microseconds; nothing is decoded. A reader takes an image of its format
and returns width and height. It looks where the decoders look, so that no file has one size here and a larger one
there. What it cannot follow counts as large. The formats are those of the handlers.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from service.batching.request import Batch, InferenceRequest, Item

LEAST_PIXELS = 1_000_000  # of a large image, whatever is usual
RATIO = 4  # times what is usual
# What is usual follows the median of the requests that were accepted, by steps of this factor (Robbins and Monro 1951).
STEP = 1.05
NEWEST_WEIGHT = 0.25  # of the last image, in the moving average of seconds per pixel
# Of an image of a known format whose header cannot be read: as many as a handler takes by default.
UNKNOWN_PIXELS = 25_000_000
MOST_STEPS = 64  # through the chunks, segments, blocks, entries or boxes of a header
MOST_SUB_BLOCKS = 512  # of a GIF
MOST_BYTES = 65_536  # of one step

Size = tuple[int, int]
# Markers of a JPEG that begin a frame: all of C0 to CF but those of tables (C4, CC) and a reserved one (C8).
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = {0x00, 0x01, *range(0xD0, 0xD8)}
_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_TIFF_BYTES = {1: 1, 3: 2, 4: 4, 16: 8}  # of a number, by the type of its entry


class LargeImages:
    """Tells the large images of one version from the others."""

    def __init__(self) -> None:
        self._usual_pixels = LEAST_PIXELS / RATIO
        self._seconds_per_pixel = 0.0  # until the first: a guess refuses nobody

    def items(self, request: InferenceRequest, payloads: Sequence[bytes | None], now: float) -> list[Item]:
        """Return the items of a request, those with None left out."""
        most_usual = RATIO * self._usual_pixels
        items = []
        for index, payload in enumerate(payloads):
            if payload is not None:
                pixels = pixels_of(payload)
                items.append(Item(payload, request, index, now, pixels, pixels > most_usual))
        return items

    def note(self, items: Sequence[Item]) -> None:
        """Take the first item of an accepted request for what is usual."""
        if items[0].pixels > self._usual_pixels:
            self._usual_pixels *= STEP
        else:
            self._usual_pixels = max(self._usual_pixels / STEP, LEAST_PIXELS / RATIO)

    def seconds(self, num_pixels: int) -> float:
        """Return the service time to expect of large images."""
        return num_pixels * self._seconds_per_pixel

    def learn(self, batch: Batch, seconds: float) -> None:
        """Add the service time of a large image."""
        newest = seconds / batch.items[0].pixels
        before = self._seconds_per_pixel or newest
        self._seconds_per_pixel = before + NEWEST_WEIGHT * (newest - before)


def pixels_of(payload: bytes) -> int:
    """Return the pixels of an image; of a tensor, or anything else, its bytes, since nothing makes more of them."""
    read = _READERS.get(payload[:2]) or (_boxes if payload[4:8] == b"ftyp" else None)
    if read is None:
        return len(payload)
    try:
        width, height = read(payload)
    except (IndexError, KeyError, ValueError):
        return UNKNOWN_PIXELS
    return width * height


def _png(payload: bytes) -> Size:
    """Read all IHDR chunks before the first IDAT: there should be one, and decoders believe the last."""
    size, place = (0, 0), 8
    for _ in range(MOST_STEPS):
        kind = payload[place + 4 : place + 8]
        if kind == b"IDAT":
            return size
        if kind == b"IHDR":
            size = _larger(size, (_number(payload, place + 8, 4), _number(payload, place + 12, 4)))
        place += 12 + _number(payload, place, 4)
    raise ValueError("no pixels")


def _jpeg(payload: bytes) -> Size:
    """Walk through the segments to the frame's header (ITU T.81, B.2.2), over what decoders skip."""
    place = 2
    for _ in range(MOST_STEPS):
        if payload[place] != 0xFF:
            place = payload.index(b"\xff", place, place + MOST_BYTES)
        marker = payload[place + 1]
        if marker in _FRAMES:
            height_high, height_low, width_high, width_low = payload[place + 5 : place + 9]
            return width_high << 8 | width_low, height_high << 8 | height_low
        if marker == 0xFF:
            place += 1
        elif marker in _WITHOUT_LENGTH:
            place += 2
        else:
            place += 2 + (payload[place + 2] << 8 | payload[place + 3])
    raise ValueError("no frame")


def _gif(payload: bytes) -> Size:
    """Read the screen and the first frame (GIF89a, sections 18 and 20), which may be larger."""
    screen = _number(payload, 6, 2, "little"), _number(payload, 8, 2, "little")
    flags = payload[10]
    place = 13 + (3 << 1 + (flags & 7) if flags & 0x80 else 0)
    for _ in range(MOST_STEPS):
        if payload[place] == ord(","):
            left, top, width, height = (_number(payload, place + 1 + 2 * i, 2, "little") for i in range(4))
            return max(screen[0], left + width), max(screen[1], top + height)
        if payload[place] != ord("!"):
            place += 1
            continue
        place = _after_sub_blocks(payload, place + 2)
    raise ValueError("no frame")


def _after_sub_blocks(payload: bytes, place: int) -> int:
    for _ in range(MOST_SUB_BLOCKS):
        if not payload[place]:
            return place + 1
        place += 1 + payload[place]
    raise ValueError("too many sub-blocks")


def _webp(payload: bytes) -> Size:
    """Read the first chunk (RFC 9649, sections 2.5 to 2.7)."""
    kind = payload[12:16]
    if kind == b"VP8 ":
        return _number(payload, 26, 2, "little") & 0x3FFF, _number(payload, 28, 2, "little") & 0x3FFF
    if kind == b"VP8L":
        bits = _number(payload, 21, 4, "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8X":
        return 1 + _number(payload, 24, 3, "little"), 1 + _number(payload, 27, 3, "little")
    raise ValueError("no image")


def _bmp(payload: bytes) -> Size:
    """Read the header of 12 bytes, or a later one, whose height is negative if rows go down."""
    if _number(payload, 14, 4, "little") == 12:
        return _number(payload, 18, 2, "little"), _number(payload, 20, 2, "little")
    height = _number(payload, 22, 4, "little")
    return _number(payload, 18, 4, "little"), min(height, (1 << 32) - height)


def _tiff(payload: bytes) -> Size:
    """Read the first directory (TIFF 6.0, section 2, and BigTIFF); where it names a side twice, the larger one."""
    order: Literal["little", "big"] = "little" if payload[0] == ord("I") else "big"
    is_big = _number(payload, 2, 2, order) == 43
    of_offset, of_count, of_entry = (8, 8, 20) if is_big else (4, 2, 12)
    directory = _number(payload, 8 if is_big else 4, of_offset, order)
    num_entries = _number(payload, directory, of_count, order)
    if num_entries > MOST_STEPS:
        raise ValueError("too many entries")
    sides = {_TIFF_WIDTH: 0, _TIFF_HEIGHT: 0}
    for index in range(num_entries):
        entry = directory + of_count + index * of_entry
        tag = _number(payload, entry, 2, order)
        if tag in sides:
            num_bytes = _TIFF_BYTES[_number(payload, entry + 2, 2, order)]
            sides[tag] = max(sides[tag], _number(payload, entry + 4 + of_offset, num_bytes, order))
    if not min(sides.values()):
        raise ValueError("no size")
    return sides[_TIFF_WIDTH], sides[_TIFF_HEIGHT]


def _netpbm(payload: bytes) -> Size:
    """Return what its bytes can hold at most: nothing is compressed, and bits are packed in one kind alone."""
    return len(payload), 8 if payload[:2] == b"P4" else 1


def _boxes(payload: bytes) -> Size:
    """Walk through the boxes of an AVIF (ISO 14496-12, 8.11) or a JPEG 2000 (ITU T.800, I.4) to what has the size."""
    place = 0
    for _ in range(MOST_STEPS):
        num_bytes, kind = _number(payload, place, 4), payload[place + 4 : place + 8]
        if kind == b"jp2c":
            return _codestream(payload[place + 8 : place + 100])
        if num_bytes < 8 or (kind == b"meta" and num_bytes > MOST_BYTES):
            break
        if kind == b"meta":
            return _largest_item(payload[place : place + num_bytes])
        place += num_bytes
    raise ValueError("no size")


def _codestream(payload: bytes) -> Size:
    """Read the SIZ segment, which a JPEG 2000 codestream begins with (ITU T.800, A.5.1)."""
    if payload[2:4] != b"\xff\x51":
        raise ValueError("no size")
    right, bottom, left, top = (_number(payload, 8 + 4 * i, 4) for i in range(4))
    return max(right - left, 0), max(bottom - top, 0)


def _largest_item(meta: bytes) -> Size:
    """Return the largest of the sizes (`ispe`) of the items in an AVIF (ISO 23008-12, 6.5.3)."""
    parts = meta.split(b"ispe", MOST_STEPS)[1:]
    if not 0 < len(parts) < MOST_STEPS:
        raise ValueError("no size, or too many")
    size = (0, 0)
    for part in parts:
        size = _larger(size, (_number(part, 4, 4), _number(part, 8, 4)))
    return size


def _larger(one: Size, other: Size) -> Size:
    return max(one, other, key=lambda size: size[0] * size[1])


def _number(payload: bytes, place: int, num_bytes: int, order: Literal["little", "big"] = "big") -> int:
    field = payload[place : place + num_bytes]
    if len(field) < num_bytes:
        raise IndexError("the header ends too early")
    return int.from_bytes(field, order)


# By the first two bytes, which tell the formats apart.
_READERS: dict[bytes, Callable[[bytes], Size]] = {
    b"\x89P": _png,
    b"\xff\xd8": _jpeg,
    b"GI": _gif,
    b"RI": _webp,
    b"BM": _bmp,
    b"II": _tiff,
    b"MM": _tiff,
    b"\x00\x00": _boxes,
    b"\xff\x4f": _codestream,
    **{b"P%d" % kind: _netpbm for kind in range(1, 7)},
}
