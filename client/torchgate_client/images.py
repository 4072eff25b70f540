"""Images as callers have them, turned into bytes as the gateway reads them."""

import io
import os
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast


class PillowImage(Protocol):
    """A PIL.Image.Image."""

    mode: str

    def save(self, fp: Any, format: str) -> None:  # noqa: A002 - Pillow's name
        """Write it."""


# A path, an encoded image, an image of Pillow, or an array: uint8 [H, W], [H, W, C], or the contract's own [C, H, W].
Image: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | PillowImage | Any
CHANNELS = (1, 3, 4)
NUMPY = b"\x93NUMPY"


def encoded(image: Image) -> bytes:
    """Return an image as bytes.

    Raises:
        OSError: its file cannot be read.
        TypeError: it is nothing that can be sent.
        ValueError: it is an array of another shape or type.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | os.PathLike):
        return Path(image).read_bytes()
    if hasattr(image, "save") and hasattr(image, "mode"):
        return _as_png(image)
    if hasattr(image, "__array_interface__") or hasattr(image, "__array__"):
        return _array(image)
    raise TypeError(f"{type(image).__name__} is no image: give a path, bytes, an image of Pillow or an array")


def displayable(image: bytes) -> bytes:
    """Return an encoded image as a browser can show it: an array of the contract's as PNG, all others as they are."""
    if not image.startswith(NUMPY):
        return image
    try:
        import numpy as np  # noqa: PLC0415 - only an array needs it

        return encoded(np.moveaxis(np.load(io.BytesIO(image), allow_pickle=False), 0, 2))
    except (ImportError, ValueError):  # no Pillow, or bytes that are no such array
        return image


def _as_png(image: PillowImage) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _array(given: Any) -> bytes:
    import numpy as np  # noqa: PLC0415 - only who has an array needs it

    array = np.asarray(given)
    if array.dtype != np.uint8:
        raise ValueError(f"the array is {array.dtype}; give uint8, 0 to 255")
    if array.ndim == 3 and array.shape[0] in CHANNELS and array.shape[2] not in CHANNELS:
        stream = io.BytesIO()
        np.save(stream, np.ascontiguousarray(array), allow_pickle=False)
        return stream.getvalue()
    if array.ndim != 2 and (array.ndim != 3 or array.shape[2] not in CHANNELS):
        raise ValueError(f"the array has the shape {array.shape}; give [H, W], [H, W, C] or [C, H, W]")
    from PIL import Image as Pillow  # noqa: PLC0415 - the same

    pixels = array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
    return _as_png(cast("PillowImage", Pillow.fromarray(pixels)))


def many(images: Any) -> list[Image] | None:
    """Return the images of a list, a tuple or another iterable of them; None for a single one."""
    if isinstance(images, list | tuple) or (hasattr(images, "__next__") and not hasattr(images, "read")):
        return list(images)
    return None
