"""The images that are sent: plain digits of the model's size, colour JPEGs of another, photographs' likenesses."""

import base64
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from benchmarks.environment.folders import SAMPLES
from benchmarks.load.endpoint import MARKER

BIG = (224, 224)
NUM_BIG = 4
JPEG_SIZE = (128, 96)
NUM_JPEGS = 200  # as many different images; beyond them, each request's own number makes it another file
# A JPEG begins with a marker of two bytes; a comment may follow at once: its own marker, its length, its text.
JPEG_START, COMMENT = b"\xff\xd8", b"\xff\xfe"


def write_plain_digits(folder: Path, size: tuple[int, int]) -> None:
    """Write each sample as a grey PNG of the model's own size: the least work that an image can be."""
    for path in sorted(SAMPLES.glob("digit-*.png")):
        with Image.open(path) as image:
            ImageOps.fit(image.convert("L"), size).save(folder / path.name)


def write_jpegs(folder: Path) -> None:
    """Write samples as colour JPEGs, tinted, moved and noisy, each with a comment for the request's number."""
    samples = [Image.open(path).convert("L") for path in sorted(SAMPLES.glob("digit-*.png"))]
    width, height = JPEG_SIZE
    for number in range(NUM_JPEGS):
        source = np.random.default_rng(number)
        side = int(source.integers(height - 10, height + 1))
        shape = np.zeros((height, width))
        left, top = (width - side) // 2 + int(source.integers(-3, 4)), int(source.integers(0, height - side + 1))
        digit = samples[number % len(samples)].resize((side, side), Image.Resampling.BICUBIC)
        shape[top : top + side, left : left + side] = np.asarray(digit) / 255
        dark, light = source.uniform(0, 30, 3), source.uniform(225, 255, 3)
        pixels = dark + shape[:, :, np.newaxis] * (light - dark) + source.normal(0, 4, (height, width, 3))
        path = folder / f"{number:03d}.jpg"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=88)
        path.write_bytes(with_comment(path.read_bytes()))


def with_comment(jpeg: bytes) -> bytes:
    """Return a JPEG with the marker as its comment, which a generator replaces and a decoder passes over."""
    comment = COMMENT + (2 + len(MARKER)).to_bytes(2, "big") + MARKER.encode()
    return JPEG_START + comment + jpeg.removeprefix(JPEG_START)


def write_photos(folder: Path) -> None:
    """Write JPEGs of the big model's size."""
    for number in range(NUM_BIG):
        photo(1000 + number, BIG).save(folder / f"{number}.jpg", quality=90)


def photo(seed: int, size: tuple[int, int]) -> Image.Image:
    """Return something with a photograph's spectrum: coarse noise, smoothly enlarged, with a little fine noise."""
    source = np.random.default_rng(seed)
    coarse = Image.fromarray(source.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    fine = source.integers(-12, 13, (size[1], size[0], 3))
    return Image.fromarray((np.asarray(coarse).astype(int) + fine).clip(0, 255).astype(np.uint8))


def as_json(image: bytes) -> str:
    """Return the body of a server that takes JSON; the marker of the image's comment stands in it as it is.

    Before the comment's text lie 6 bytes, which are 8 characters: its 24 bytes are 32 characters, of which the marker
    takes 24 and zeros the rest. Whatever they decode to is the comment's text.
    """
    text = base64.b64encode(image).decode()
    if image[6:].startswith(MARKER.encode()):
        text = text[:8] + MARKER + "0" * 8 + text[40:]
    return json.dumps({"image": text})
