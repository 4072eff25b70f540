"""Images with what decoders may take differently: waves, orientations, texts."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo


def photo(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Return waves of all frequencies: what decoding or scaling does otherwise is seen in them."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x * x / (40 + 9 * band) + y / (3 + band)) * 127 + 128 for band in range(3)]
    return Image.fromarray(np.stack(waves, axis=-1).astype(np.uint8)).convert(mode)


def write(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


# The tag's type is SHORT by its standard; Pillow goes by the one that is written.
LONG_EXIF = b"Exif\0\0MM\0*" + struct.pack(">IHHHIII", 8, 1, 0x0112, 4, 1, 6, 0)


def xmp(orientation: int) -> bytes:
    return b'<rdf:Description tiff:Orientation="%d"/>' % orientation


def text(key: str, value: str) -> PngInfo:
    texts = PngInfo()
    texts.add_itxt(key, value)
    return texts
