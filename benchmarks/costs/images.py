"""What the largest image of each kind costs a worker that takes it: memory and processor time, in a process of its own.

`python -m benchmarks cost images` prints the table by which handlers/image_limits.py sets its shares.
"""

import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.environment.folders import PYTHON, ROOT

SIDE = 5000  # 25 megapixels: what a contract allows that says nothing else
MOST_BYTES = 1_000_000  # of a file: larger ones are made anew, worse
START_OF_SCAN, FREE_SCANS = b"\xff\xda", 20
QUALITIES = (60, 30, 10, 1)
CONTRACT = {"input": {"channels": 3, "height": 224, "width": 224}, "preprocessing": {"background": [0, 0, 0]}}
PROGRAM = """
import json, sys, time
from handlers import image_decoding
def megabytes(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1000
content = open(sys.argv[1], "rb").read()
open("/proc/self/clear_refs", "w").write("5")
before, started = megabytes("VmRSS"), time.process_time()
answer = image_decoding.decode_item(content, json.loads(sys.argv[2]))
seconds = time.process_time() - started
code = answer["code"] if isinstance(answer, dict) else ""
print(json.dumps({"code": code, "megabytes": megabytes("VmHWM") - before, "seconds": seconds}))
"""


def measure_images() -> None:
    """Print a row for each kind of image, at the size that it may have, and whether one row more is refused."""
    print("| image | megapixels | kB | MB at most | CPU seconds | one row more |\n|---|---|---|---|---|---|")
    for name, (share, make) in KINDS.items():
        height = int(SIDE * share)
        content = make(SIDE, height)
        cost, larger = _decoded(content), _decoded(make(SIDE, height + 1))
        figures = f"{SIDE * height / 1e6:.2f} | {len(content) / 1e3:.0f} | {cost['megabytes']:.0f}"
        print(f"| {name} | {figures} | {cost['seconds']:.2f} | `{larger['code']}` |", flush=True)
        if cost["code"]:
            sys.exit(f"{name} is refused: {cost['code']}")


def _decoded(content: bytes) -> dict[str, Any]:
    """Return what one image costs a new process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image"
        path.write_bytes(content)
        command = [str(PYTHON), "-c", PROGRAM, str(path), json.dumps(CONTRACT)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _flat(mode: str, file_format: str, **options: Any) -> Callable[[int, int], bytes]:
    """Return what makes an image of one colour: the smallest file."""

    def make(width: int, height: int) -> bytes:
        return _encode(Image.new(mode, (width, height)), file_format, **options)

    return make


def _smooth(mode: str, file_format: str, **options: Any) -> Callable[[int, int], bytes]:
    """Return what makes an image of soft shapes, of the best quality that a megabyte holds."""

    def make(width: int, height: int) -> bytes:
        bands = len(Image.new(mode, (1, 1)).getbands())
        seeds = np.random.default_rng(0).integers(0, 256, (40, 40, bands), dtype=np.uint8)
        image = Image.fromarray(seeds.squeeze(), mode).resize((width, height), Image.Resampling.BILINEAR)
        for quality in QUALITIES:
            content = _encode(image, file_format, quality=quality, **options)
            if len(content) <= MOST_BYTES:
                break
        return content

    return make


def _rates(mode: str) -> Callable[[int, int], bytes]:
    """Return what makes a lossy JPEG 2000 of soft shapes."""
    return _smooth(mode, "JPEG2000", quality_mode="rates", quality_layers=[100], irreversible=True)


def _rescanned(width: int, height: int) -> bytes:
    """Make a progressive JPEG whose last scan comes again, up to as many as a plain image may have."""
    content = _smooth("RGB", "JPEG", progressive=True, subsampling=0)(width, height)
    scan = content[content.rindex(START_OF_SCAN) : -2]
    return content[:-2] + scan * (FREE_SCANS - content.count(START_OF_SCAN)) + content[-2:]


def _turned(
    make: Callable[..., Callable[[int, int], bytes]], *kind: str, **options: Any
) -> Callable[[int, int], bytes]:
    """Return what makes an image that its EXIF turns by a quarter."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return make(*kind, exif=exif, **options)


def _encode(image: Image.Image, file_format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


# The part of max_pixels that a kind may have, and how one is made.
KINDS: dict[str, tuple[float, Callable[[int, int], bytes]]] = {
    "PNG, RGB": (1, _flat("RGB", "PNG")),
    "PNG, 16 bits grey": (1, _flat("I;16", "PNG")),
    "PNG, palette": (1, _flat("P", "PNG")),
    "PNG, RGBA": (1 / 2, _flat("RGBA", "PNG")),
    "PNG, RGBA, turned": (1 / 2, _turned(_flat, "RGBA", "PNG")),
    "PNG, grey and alpha": (1 / 2, _flat("LA", "PNG")),
    "JPEG": (1, _smooth("RGB", "JPEG")),
    "JPEG, progressive": (1, _smooth("RGB", "JPEG", progressive=True, subsampling=0)),
    "JPEG, progressive, turned": (1, _turned(_smooth, "RGB", "JPEG", progressive=True, subsampling=0)),
    "JPEG, 20 scans": (1, _rescanned),
    "JPEG, progressive CMYK": (1 / 2, _smooth("CMYK", "JPEG", progressive=True, subsampling=0)),
    "GIF": (1, _flat("P", "GIF")),
    "TIFF, LZW": (1, _flat("RGB", "TIFF", compression="tiff_lzw")),
    "TIFF, 32 bits": (1, _flat("I", "TIFF", compression="tiff_deflate")),
    "TIFF, fax": (1, _flat("1", "TIFF", compression="group4")),
    "TIFF, LAB": (1 / 2, _flat("LAB", "TIFF", compression="tiff_deflate")),
    "WebP": (1 / 2, _smooth("RGB", "WEBP", method=0)),
    "WebP, lossless RGBA": (1 / 2, _flat("RGBA", "WEBP", lossless=True, method=0)),
    "AVIF": (1 / 2, _smooth("RGB", "AVIF", speed=10)),
    "AVIF, RGBA 4:4:4": (1 / 2, _smooth("RGBA", "AVIF", speed=10, subsampling="4:4:4")),
    "JPEG 2000": (1 / 4, _rates("RGB")),
    "JPEG 2000, RGBA": (1 / 4, _rates("RGBA")),
}
