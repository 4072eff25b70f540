"""What the handler takes as an image, what becomes of it, and what it refuses."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest
from PIL import Image, ImageOps

from handlers import image_classifier
from handlers.image_decoding import decode_item
from tests import images
from tests.handlers.archives import (
    toy_contract,
)

BACKGROUND = [10, 20, 30]
COLOUR = toy_contract(preprocessing={"fit": "crop", "resample": "bilinear", "background": BACKGROUND})
GREY = toy_contract(channels=1)


def decoded(content: bytes, contract: dict[str, Any] = COLOUR) -> npt.NDArray[np.int64]:
    """Pixels [C, H, W] as numbers that subtract without wrapping around."""
    pixels = decode_item(content, contract)
    assert not isinstance(pixels, dict), pixels
    size = contract["input"]
    assert pixels.dtype == np.uint8
    assert pixels.shape == (size["channels"], size["height"], size["width"])
    return pixels.astype(np.int64)


def refused(content: Any, contract: dict[str, Any] = COLOUR) -> tuple[str, str]:
    answer = decode_item(content, contract)
    assert isinstance(answer, dict), "it was accepted"
    assert set(answer) == {"code", "message"}
    return answer["code"], answer["message"]


LOSSLESS = [
    ("PNG", {}),
    ("BMP", {}),
    ("TIFF", {}),
    ("TIFF", {"compression": "tiff_lzw"}),
    ("PPM", {}),
    ("JPEG2000", {}),
]


@pytest.mark.parametrize(("file_format", "options"), [*LOSSLESS, ("WEBP", {"lossless": True})])
def test_lossless_images_of_the_models_size_are_kept_to_the_bit(file_format: str, options: dict[str, Any]) -> None:
    pixels = decoded(images.rgb_file(file_format, **options))
    assert np.array_equal(pixels, images.pattern().transpose(2, 0, 1))


@pytest.mark.parametrize("file_format", ["JPEG", "GIF", "WEBP", "AVIF"])
def test_lossy_images_are_close(file_format: str) -> None:
    options = {} if file_format == "GIF" else {"quality": 95}
    pixels = decoded(images.rgb_file(file_format, **options))
    assert np.abs(pixels - images.pattern().transpose(2, 0, 1)).mean() < 25


def test_colour_images_become_grey_for_a_grey_model() -> None:
    expected = np.asarray(Image.fromarray(images.pattern()).convert("L"))
    assert np.array_equal(decoded(images.rgb_png(), GREY)[0], expected)


def test_grey_images_become_colour_for_a_colour_model() -> None:
    pixels = decoded(images.grey_png())
    assert np.array_equal(pixels[0], pixels[1])
    assert np.array_equal(pixels[0], np.asarray(Image.fromarray(images.pattern()).convert("L")))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_honoured(orientation: int) -> None:
    upright = ImageOps.fit(Image.fromarray(images.pattern(48, 32)), (32, 32), method=Image.Resampling.BILINEAR)
    difference = np.abs(decoded(images.exif_jpeg(orientation)) - np.asarray(upright).transpose(2, 0, 1))
    assert difference.mean() < 2.5


def test_sixteen_bits_are_scaled_to_eight() -> None:
    ramp = np.linspace(0, 65535, 32, dtype=np.uint16)
    expected = np.rint(ramp.astype(np.float64) * 255 / 65535)
    for contract in (COLOUR, GREY):
        for row in decoded(images.sixteen_bit_png(), contract).reshape(-1, 32):
            assert np.array_equal(row, expected)


def test_32_bit_integers_are_clipped_to_16_bits_first() -> None:
    values = np.array([[-5, 0, 65535, 1_000_000]], np.int32).repeat(4, axis=0)
    content = images.encode(Image.fromarray(values), "TIFF")
    pixels = decoded(content, toy_contract(channels=1, size=4))
    assert pixels[0, 0].tolist() == [0, 0, 255, 255]


@pytest.mark.parametrize("content", [images.rgba_png(), images.grey_alpha_png(), images.palette_png()])
def test_transparency_shows_the_contracts_background(content: bytes) -> None:
    pixels = decoded(content)
    assert pixels[:, :, :16].reshape(3, -1).T.tolist() == [BACKGROUND] * 512
    assert (pixels[:, :, 16:] == images.BRIGHT).all()


def test_half_transparency_is_mixed_with_the_background() -> None:
    expected = [round(images.BRIGHT * 51 / 255 + shade * 204 / 255) for shade in BACKGROUND]
    assert np.abs(decoded(images.rgba_png(alpha=51))[:, 0, 0] - expected).max() <= 1


def test_rgb_with_a_transparent_colour_shows_the_background() -> None:
    content = images.encode(Image.new("RGB", (32, 32), (1, 2, 3)), "PNG", transparency=(1, 2, 3))
    assert decoded(content)[:, 0, 0].tolist() == BACKGROUND


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "LAB", "1", "P"])
def test_other_modes_are_converted(mode: str) -> None:
    image = Image.fromarray(images.pattern(), "RGB")
    if mode == "LAB":
        content = images.encode(Image.new("LAB", (32, 32), (200, 128, 128)), "TIFF")
    else:
        content = images.encode(image.convert(mode), "JPEG" if mode == "YCbCr" else "TIFF")
    for contract in (COLOUR, GREY):
        assert decoded(content, contract).std() > 0 or mode == "LAB"


def test_cmyk_jpeg_keeps_its_colours() -> None:
    assert np.abs(decoded(images.cmyk_jpeg()) - images.pattern().transpose(2, 0, 1)).mean() < 12


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_counts(file_format: str) -> None:
    assert (decoded(images.animated(file_format)) == images.BRIGHT).all()


def test_the_middle_is_cut_out_and_the_aspect_kept() -> None:
    wide = np.zeros((32, 96, 3), np.uint8)
    wide[:, 32:64] = images.pattern()
    assert np.array_equal(decoded(images.encode(Image.fromarray(wide), "PNG")), images.pattern().transpose(2, 0, 1))


def test_larger_images_are_smoothed_when_they_shrink() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    inside = decoded(images.encode(Image.fromarray(stripes), "PNG"))[:, 1:-1, 1:-1]
    assert (np.abs(inside - 127) < 40).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1)])
def test_extreme_sizes_are_resized(shape: tuple[int, int]) -> None:
    decoded(images.encode(Image.new("RGB", shape, (9, 9, 9)), "PNG"))


def test_tensors_are_taken_as_they_are() -> None:
    pixels = np.ascontiguousarray(images.pattern().transpose(2, 0, 1))
    for content in (images.npy(pixels), images.npy(pixels, (2, 0)), images.npy(np.asfortranarray(pixels))):
        assert np.array_equal(decoded(content), pixels)
        assert np.array_equal(decoded(bytearray(content)), pixels)  # type: ignore[arg-type]


# Refusals


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"", "image_empty", "0 bytes"),
        (images.random_bytes(), "image_unrecognized", "PNG, JPEG, GIF, WEBP"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image_unrecognized", "known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image_unrecognized", "known format"),
        ("text", "image_unrecognized", "must be bytes, not str"),
        (images.truncated_png(), "image_truncated", "PNG is cut off or corrupt"),
        (images.rgb_png()[:12], "image_truncated", "PNG is cut off or corrupt"),
        (images.bomb_png(), "image_too_many_pixels", "allowed are 25000000"),
        (images.png_claiming(5_001, 5_000), "image_too_many_pixels", "5001 x 5000 pixels; allowed of its kind are"),
        (images.float_tiff(), "image_unsupported", "floating-point"),
    ],
    ids=lambda value: None if isinstance(value, str) and value != "text" else "content",
)
def test_bad_images_are_refused_with_code_and_reason(content: Any, code: str, words: str) -> None:
    answered, message = refused(content)
    assert answered == code
    assert words in message


FORMATS = [*LOSSLESS, ("JPEG", {}), ("GIF", {}), ("WEBP", {}), ("AVIF", {})]


@pytest.mark.parametrize(("file_format", "options"), FORMATS)
def test_truncated_files_of_every_format_are_called_that(file_format: str, options: dict[str, Any]) -> None:
    whole = images.rgb_file(file_format, **options)
    for num_bytes in range(24, len(whole) * 3 // 4, max(1, len(whole) // 20)):
        assert refused(whole[:num_bytes])[0] == "image_truncated", num_bytes


@pytest.mark.parametrize(("file_format", "options"), FORMATS)
def test_corrupt_files_are_refused_or_decoded_but_never_raise(file_format: str, options: dict[str, Any]) -> None:
    whole = images.rgb_file(file_format, **options)
    random = np.random.default_rng(1)
    for _ in range(60):
        corrupt = bytearray(whole)
        for position in random.integers(0, len(whole), 5):
            corrupt[position] = random.integers(0, 256)
        answer = decode_item(corrupt, COLOUR)
        if isinstance(answer, dict):
            assert answer["code"] in {
                "image_truncated",
                "image_unrecognized",
                "image_too_many_pixels",
                "image_unsupported",
            }


def test_a_bomb_is_refused_before_its_pixels_are_decoded() -> None:
    # Past Pillow's error, past its warning, past our own limit.
    bombs = [images.bomb_png(), images.bomb_png(10_000, 10_000), images.bomb_png(5_100, 5_000)]
    process = psutil.Process()
    before = process.memory_info().rss
    for action in ("error", "ignore"):
        for bomb in bombs:
            with warnings.catch_warnings(action=action):
                assert refused(bomb)[0] == "image_too_many_pixels"
    assert process.memory_info().rss - before < 50e6


def header(shape: str, descr: str = "|u1", fortran: str = "False") -> str:
    return f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            images.npy(np.zeros((3, 32, 31), np.uint8)),
            "uint8 of shape [3, 32, 31]; allowed is uint8 of shape [3, 32, 32]",
        ),
        (images.npy(np.zeros((3, 32, 32), np.float32)), "float32 of shape [3, 32, 32]; allowed is uint8"),
        (images.npy(np.zeros((1, 3, 32, 32), np.uint8)), "shape [1, 3, 32, 32]; allowed"),
        (images.npy(np.zeros((3, 32, 32), np.uint8))[:-1], "3071 bytes follow the .npy header; allowed"),
        (images.npy(np.zeros((3, 32, 32), np.uint8)) + b"x", "3073 bytes follow the .npy header; allowed"),
        (images.npy_header(header("(3, 32, 32)")), "0 bytes follow"),
        (images.npy_header(header("(1000000000, 1000000000)")), "shape [1000000000, 1000000000]; allowed"),
        (images.npy_header(header("(-3, 32, -32)")), "allowed is uint8"),
        (images.npy_header(header("(3, 32, 32)", "|O")), "object of shape"),
        (images.npy_header("{'descr': '|u1'"), "header cannot be read"),
        (images.npy_header("(" * 9000), "header cannot be read"),
        (images.npy_header("'" * 3), "header cannot be read"),
        (b"\x93NUMPY", "header cannot be read"),
        (b"\x93NUMPY\x01\x00\xff\xff", "header cannot be read"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}", "header cannot be read"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "header cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "content",
)
def test_bad_tensors_are_refused_naming_what_was_sent_and_what_is_allowed(content: bytes, words: str) -> None:
    code, message = refused(content)
    assert code == "tensor_invalid"
    assert words in message
    assert "allowed is uint8 of shape [3, 32, 32]" in message
    assert len(message) < 600


class Mine:
    """An object whose unpickling would be seen."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("from handlers import image_classifier; image_classifier.unpickled = True",))


def test_nothing_is_unpickled() -> None:
    objects = np.empty((1,), object)
    objects[0] = Mine()
    assert refused(images.npy(objects))[0] == "tensor_invalid"
    assert not hasattr(image_classifier, "unpickled")
