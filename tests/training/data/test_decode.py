"""Odd images, each with the pixels that it must give."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from training.data.decode import ImageShape, Preprocessing, open_image
from training.errors import DataError


def pixels(image: Image.Image, channels: int = 1, height: int = 4, width: int = 6) -> NDArray[np.uint8]:
    decoded = ImageShape(channels, height, width).pixels(image)
    assert decoded.shape == (channels, height, width)
    assert decoded.dtype == np.uint8
    return decoded


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "mode",
    [
        "1",
        "L",
        "P",
        "RGB",
        "RGBA",
        "RGBa",
        "CMYK",
        "LAB",
        "YCbCr",
        "HSV",
        "I",
        "I;16",
        "I;16B",
        "LA",
        "La",
        "PA",
        "RGBX",
    ],
)
def test_every_integer_mode_is_taken(mode: str, channels: int) -> None:
    pixels(Image.new(mode, (31, 17)), channels=channels)


def test_floats_are_refused() -> None:
    with pytest.raises(DataError, match="mode F"):
        pixels(Image.new("F", (6, 4)))


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])
def test_sixteen_bits_are_scaled_not_cut(mode: str) -> None:
    values = np.array([[0, 128, 129, 257, 32768, 65535]], dtype=np.int32)
    image = Image.fromarray(values)
    if mode == "I;16":
        image = Image.fromarray(values.astype("<u2"))
    elif mode == "I;16B":
        image = Image.frombytes("I;16B", (6, 1), values.astype(">u2").tobytes())
    assert image.mode == mode
    assert pixels(image, height=1).tolist() == [[[0, 0, 1, 1, 128, 255]]]


def test_wide_integers_are_clipped_to_sixteen_bits() -> None:
    image = Image.fromarray(np.array([[-5, 70_000]], dtype=np.int32))
    assert pixels(image, height=1, width=2).tolist() == [[[0, 255]]]


def test_alpha_lies_over_the_background() -> None:
    image = Image.new("RGBA", (6, 4), (255, 255, 255, 0))
    image.paste((255, 255, 255, 255), (0, 0, 3, 4))
    assert pixels(image)[0, 0].tolist() == [255, 255, 255, 0, 0, 0]
    over_white = Preprocessing(background=(255, 255, 255))
    assert (ImageShape(3, 4, 6, over_white).pixels(image) == 255).all()


def test_palette_transparency_is_seen(tmp_path: Path) -> None:
    image = Image.new("P", (6, 4), 0)
    image.putpalette([255, 255, 255, 0, 0, 0])
    path = tmp_path / "palette.png"
    image.save(path, transparency=0)
    assert not pixels(open_image(path)).any()


@pytest.mark.parametrize("suffix", ["png", "tiff", "webp"])
def test_exif_orientation_is_honoured(tmp_path: Path, suffix: str) -> None:
    image = Image.new("L", (4, 6))
    image.paste(255, (0, 0, 4, 1))  # a bright first row
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned: shown after a quarter turn clockwise
    path = tmp_path / f"turned.{suffix}"
    image.save(path, exif=exif, lossless=True)
    decoded = pixels(open_image(path))
    assert (decoded[0, :, -1] == 255).all()
    assert not decoded[0, :, 0].any()


def test_first_frame_is_taken(tmp_path: Path) -> None:
    frames = [Image.new("L", (6, 4), value) for value in (200, 10, 20)]
    path = tmp_path / "animated.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert (pixels(open_image(path)) == 200).all()


def test_aspect_is_kept_and_the_centre_is_cropped() -> None:
    image = Image.new("L", (18, 4))
    image.paste(255, (6, 0, 12, 4))
    assert (pixels(image) == 255).all()


def test_pixels_of_the_right_size_are_untouched() -> None:
    values = np.random.default_rng(0).integers(0, 256, size=(4, 6, 3), dtype=np.uint8)
    assert (pixels(Image.fromarray(values), channels=3) == values.transpose(2, 0, 1)).all()


def test_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", (200, 100)).save(path)
    # Between once and twice the limit, where Pillow by itself only warns.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 15_000)
    with pytest.raises(DataError, match=r"bomb\.png.*exceeds limit"):
        open_image(path)
