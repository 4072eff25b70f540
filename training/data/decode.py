"""One image, of any format, mode and size, to uint8 [C, H, W]: what the served handler does, pixel for pixel.

The handler has its own copy of these steps, because an archive carries one file and training never imports it; a test
of the whole project holds the two together.
"""

import io
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from training.errors import DataError


@dataclass(frozen=True)
class Preprocessing:
    """How images are brought into the model's form; travels in the contract."""

    fit: Literal["crop"] = "crop"
    resample: Literal["bilinear"] = "bilinear"
    background: tuple[int, int, int] = (0, 0, 0)


def open_image(path: Path) -> Image.Image:
    """Return the file's first frame, read and upright; raises DataError, naming the file, if that does not work."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return decode_image(content, str(path))


def decode_image(content: bytes, name: str) -> Image.Image:
    """Return the first frame, read and upright, of an encoded image; raises DataError with this name for it."""
    with warnings.catch_warnings():
        # Pillow warns at its limit and raises at twice that; here the limit is the limit.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            # From memory, as the handler does: by name, Pillow maps uncompressed files, and gets a turned TIFF wrong.
            with Image.open(io.BytesIO(content)) as image:
                image.seek(0)
                image.load()
                # While the file is open: some formats read their EXIF block from it.
                return ImageOps.exif_transpose(image)
        except UnidentifiedImageError as error:
            what = "it is of no format that Pillow knows" if content else "it is empty"
            raise DataError(f"{name} cannot be read as an image: {what}") from error
        except Exception as error:  # Pillow's decoders raise whatever their formats make them raise
            raise DataError(f"{name} cannot be read as an image: {error}") from error


@dataclass(frozen=True)
class ImageShape:
    """Channels, height and width of a run's images, and how any image gets them."""

    channels: int
    """1, grey, or 3, RGB."""
    height: int
    width: int
    preprocessing: Preprocessing = field(default_factory=Preprocessing)

    @property
    def array(self) -> tuple[int, int, int]:
        """Of the array of one image."""
        return self.channels, self.height, self.width

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """Return the image as uint8 [C, H, W]; raises DataError for a mode that has no defined range."""
        flat = _eight_bits(image, self.preprocessing.background)
        try:
            flat = flat.convert("L" if self.channels == 1 else "RGB")
        except ValueError as error:
            raise DataError(f"mode {flat.mode} cannot be converted: {error}") from error
        fitted = ImageOps.fit(flat, (self.width, self.height), method=Image.Resampling.BILINEAR)
        pixels = np.asarray(fitted)
        return pixels[np.newaxis] if self.channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _eight_bits(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Return the image in 8 bits a channel, over the background where it is transparent."""
    if image.mode == "F":
        raise DataError("floating point pixels (mode F) have no defined range; allowed are 8 and 16 bit integers")
    if image.mode == "I" or image.mode.startswith("I;16"):
        wide = np.clip(np.asarray(image).astype(np.float64), 0, 65535)
        image = Image.fromarray(np.rint(wide * 255 / 65535).astype(np.uint8))
    if image.has_transparency_data:
        behind = Image.new("RGBA", image.size, (*background, 255))
        straight = {"La": "LA", "RGBa": "RGBA"}.get(image.mode, image.mode)
        image = Image.alpha_composite(behind, image.convert(straight).convert("RGBA"))
    if image.mode == "LAB":  # Pillow has no way from it to L
        image = image.convert("RGB")
    return image
