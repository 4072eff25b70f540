"""Images that clients send, odd and broken ones included: each function returns the bytes of one file."""

import functools
import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

# Two shades that survive every conversion and a corner mark that shows orientation.
DARK, BRIGHT = 40, 200


def encode(image: Image.Image, file_format: str, **options: Any) -> bytes:
    """One image as the bytes of a file."""
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def pattern(width: int = 32, height: int = 32, seed: int = 0) -> npt.NDArray[np.uint8]:
    """A smooth picture [H, W, 3] without symmetry, so that no wrong turn, crop or channel order goes unseen."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [(x * 5 + y * 2 + seed * 31) % 256, (y * 6 + seed * 17) % 256, (x * 3 + 255 - y * 4 + seed * 7) % 256]
    return np.stack(planes, axis=-1).astype(np.uint8)


def rgb_png(width: int = 32, height: int = 32, seed: int = 0) -> bytes:
    return encode(Image.fromarray(pattern(width, height, seed)), "PNG")


def grey_png(width: int = 32, height: int = 32, seed: int = 0) -> bytes:
    return encode(Image.fromarray(pattern(width, height, seed)).convert("L"), "PNG")


def rgb_file(file_format: str, **options: Any) -> bytes:
    """The pattern in any format that Pillow writes."""
    return encode(Image.fromarray(pattern()), file_format, **options)


def rgba_png(alpha: int = 0) -> bytes:
    """Bright everywhere; the left half has the given alpha."""
    pixels = np.full((32, 32, 4), BRIGHT, np.uint8)
    pixels[..., 3] = 255
    pixels[:, :16, 3] = alpha
    return encode(Image.fromarray(pixels), "PNG")


def grey_alpha_png() -> bytes:
    pixels = np.full((32, 32, 2), BRIGHT, np.uint8)
    pixels[:, :16, 1] = 0
    pixels[:, 16:, 1] = 255
    return encode(Image.fromarray(pixels, "LA"), "PNG")


def palette_png() -> bytes:
    """A palette whose entry 0, the left half, is transparent; entry 1 is bright."""
    image = Image.fromarray(np.repeat(np.array([[0] * 16 + [1] * 16], np.uint8), 32, axis=0), "P")
    image.putpalette([255, 0, 0, BRIGHT, BRIGHT, BRIGHT])
    return encode(image, "PNG", transparency=0)


def sixteen_bit_png() -> bytes:
    """A ramp over the whole range of 16 bits."""
    ramp = np.linspace(0, 65535, 32, dtype=np.uint16)
    return encode(Image.fromarray(np.repeat(ramp[np.newaxis], 32, axis=0)), "PNG")


def cmyk_jpeg() -> bytes:
    return encode(Image.fromarray(pattern()).convert("CMYK"), "JPEG", quality=95)


def exif_jpeg(orientation: int) -> bytes:
    """A file that shows `pattern()` once its EXIF orientation (1 to 8) is honoured."""
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = Image.fromarray(pattern(48, 32))
    if orientation in undo:
        image = image.transpose(undo[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(image, "JPEG", exif=exif, quality=100, subsampling=0)


def animated(file_format: str) -> bytes:
    """A bright first frame, then dark ones."""
    frames = [Image.new("RGB", (32, 32), (shade,) * 3) for shade in (BRIGHT, DARK, 0)]
    options: dict[str, Any] = {"lossless": True} if file_format == "WEBP" else {}
    return encode(frames[0], file_format, save_all=True, append_images=frames[1:], duration=40, **options)


def float_tiff() -> bytes:
    return encode(Image.fromarray(np.linspace(0, 1, 1024, dtype=np.float32).reshape(32, 32)), "TIFF")


def truncated(content: bytes, share: float = 0.6) -> bytes:
    """The first part of a file."""
    return content[: int(len(content) * share)]


def truncated_png() -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    return truncated(encode(Image.fromarray(noise), "PNG"))


def png_claiming(width: int, height: int, data: bytes | None = None) -> bytes:
    """A grey PNG of any claimed size, with one row of pixels unless `data` gives the compressed ones."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = zlib.compress(bytes(1 + min(width, 1 << 16))) if data is None else data
    chunks = [(b"IHDR", header), (b"IDAT", body), (b"IEND", b"")]
    packed = (
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part)) for kind, part in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@functools.cache
def bomb_png(width: int = 14_000, height: int = 14_000) -> bytes:
    """A whole PNG of 0.2 MB that unfolds to 196 million pixels."""
    packer = zlib.compressobj(9)
    row = bytes(width + 1)
    data = b"".join(packer.compress(row * 100) for _ in range(height // 100))
    return png_claiming(width, height, data + packer.flush())


def random_bytes(num_bytes: int = 4096, seed: int = 0) -> bytes:
    return b"\x00" + np.random.default_rng(seed).bytes(num_bytes - 1)


def npy(array: npt.NDArray[Any], version: tuple[int, int] | None = None) -> bytes:
    """An array as a .npy file; pickles objects, as a hostile client would."""
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version, allow_pickle=True)
    return stream.getvalue()


def npy_header(text: str, data: bytes = b"") -> bytes:
    """A .npy file with any header text."""
    header = text.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data
