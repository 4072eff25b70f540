"""Odd images through the whole stack: the good ones are accepted and right, the bad ones fail alone and by name."""

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests import images
from tests.gateway import GatewayProcess

WHITE = 255


def bars(horizontal: bool, side: int = 48) -> Image.Image:
    """A picture that the synthetic classes name: one broad bright bar, lying or standing."""
    pixels = np.zeros((side, side), np.uint8)
    pixels[side * 3 // 8 : side * 5 // 8, side // 8 : side * 7 // 8] = WHITE
    return Image.fromarray(pixels if horizontal else pixels.T)


def sixteen_bit(image: Image.Image) -> bytes:
    return images.encode(Image.fromarray(np.asarray(image).astype(np.uint16) * 257), "PNG")


def transparent_palette(image: Image.Image) -> bytes:
    """Bright where it is opaque; the transparent rest would be bright, too, if alpha were ignored."""
    indices = (np.asarray(image) > 127).astype(np.uint8)
    palette = Image.frombytes("P", image.size, indices.tobytes())
    palette.putpalette([WHITE] * 6)
    return images.encode(palette, "PNG", transparency=0)


def turned_by_exif(image: Image.Image) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn clockwise
    return images.encode(image.transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif, quality=95)


def animated(kind: str) -> Callable[[Image.Image], bytes]:
    def encode(image: Image.Image) -> bytes:
        rest = [image.transpose(Image.Transpose.ROTATE_90)] * 2
        return images.encode(image, kind, save_all=True, append_images=rest, duration=50)

    return encode


ACCEPTED: dict[str, Callable[[Image.Image], bytes]] = {
    "PNG": lambda image: images.encode(image, "PNG"),
    "RGB PNG": lambda image: images.encode(image.convert("RGB"), "PNG"),
    "CMYK JPEG": lambda image: images.encode(image.convert("RGB").convert("CMYK"), "JPEG", quality=95),
    "16-bit PNG": sixteen_bit,
    "palette PNG with transparency": transparent_palette,
    "JPEG turned by EXIF": turned_by_exif,
    "animated GIF": animated("GIF"),
    "animated WebP": animated("WEBP"),
}

REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "not an image": (images.random_bytes, "image_unrecognized"),
    "truncated PNG": (images.truncated_png, "image_truncated"),
    "0 bytes": (lambda: b"", "image_empty"),
    "decompression bomb": (images.bomb_png, "image_too_many_pixels"),
    "float TIFF": (images.float_tiff, "image_unsupported"),
    "tensor of another shape": (lambda: images.npy(np.zeros((7, 7), np.uint8)), "tensor_invalid"),
}


def predict(gateway: GatewayProcess, *files: bytes) -> list[dict[str, Any]]:
    answer = httpx.post(f"{gateway.url}/predict", files=[("file", file) for file in files], timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    predictions: list[dict[str, Any]] = answer.json()["predictions"]
    return predictions


@pytest.mark.parametrize("horizontal", [True, False])
@pytest.mark.parametrize("kind", ACCEPTED)
def test_accepted_and_right(gateway: GatewayProcess, kind: str, horizontal: bool) -> None:
    (prediction,) = predict(gateway, ACCEPTED[kind](bars(horizontal)))
    assert prediction["label"] == ("horizontal" if horizontal else "vertical"), prediction


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_alone_and_by_name(gateway: GatewayProcess, kind: str) -> None:
    make, code = REFUSED[kind]
    good = images.encode(bars(True), "PNG")
    (expected,) = predict(gateway, good)
    first, bad, last = predict(gateway, good, make(), good)
    assert bad["error"]["code"] == code, bad
    assert bad["error"]["message"]
    for neighbour in (first, last):
        assert neighbour["label"] == expected["label"]
        assert neighbour["probability"] == pytest.approx(expected["probability"], abs=1e-4)
    alone = httpx.post(f"{gateway.url}/predict", content=make(), timeout=60, trust_env=False)
    assert (alone.status_code, alone.json()["code"]) == (400, code)
    assert alone.json()["detail"] == bad["error"]["message"]
