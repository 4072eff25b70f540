"""One image, of any format, mode and size, to uint8 [C, H, W], by the code that the archives serve with.

Training reads every format that Pillow knows, the handler a few: from then on, pixels are made by the same lines.
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
from training.handler_code import handler_module


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
        """Return the image, which is used up, as uint8 [C, H, W]; raises DataError for a mode without defined range."""
        if image.mode == "F":
            raise DataError("floating point pixels (mode F) have no defined range; allowed are 8 and 16 bit integers")
        size = {"channels": self.channels, "height": self.height, "width": self.width}
        contract = {"input": size, "preprocessing": {"background": self.preprocessing.background}}
        try:
            pixels = handler_module("image_decoding").preprocess(image, contract)
        except ValueError as error:
            raise DataError(f"mode {image.mode} cannot be converted: {error}") from error
        return np.ascontiguousarray(pixels)
