"""The C++ program gives Python's answers, from the same files, without Python."""

import json
import os
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tests.end_to_end.test_same_answers import png
from tests.handlers.archives import toy_contract, write_model_folder
from tests.prometheus import tool
from tests.stack import Trained
from tests.system.pictures import LONG_EXIF, encoded, exif, photo, text, write, xmp
from tests.torchserve_process import ROOT
from training.artifacts import Run
from training.data.dataset import load_split
from training.data.decode import ImageShape, open_image

pytestmark = pytest.mark.system

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Program:
    """classify, built."""

    path: Path

    def run(self, folder: Path, *images: Path, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = [*under, *map(str, (self.path, folder / "model.pt", folder / "contract.json", *images))]
        # No environment: nothing that could lead to a Python.
        return subprocess.run(command, env={}, capture_output=True, text=True, timeout=100, check=False)

    def answers(self, folder: Path, *images: Path) -> list[dict[str, Any]]:
        done = self.run(folder, *images)
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    build = tmp_path_factory.mktemp("build")
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    for command in (
        [tool("cmake"), "-S", str(ROOT / "deploy" / "cpp"), "-B", str(build), prefix],
        [tool("cmake"), "--build", str(build)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=230, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return Program(build / "classify")


class Pixels(nn.Module):
    """Answers the pixels themselves: what one sample of them has otherwise is seen."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.flatten(1).float()


class Pair(nn.Module):
    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return pixels, pixels


class Foreign(nn.Module):
    """Calls an operator that a library has which the program is not linked with."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = torch.ops.elsewhere.own(pixels)
        return answer


def scripted(model: nn.Module) -> torch.jit.ScriptModule:
    graph: torch.jit.ScriptModule = torch.jit.script(model)
    return graph


@pytest.fixture(scope="module", params=[1, 3])
def mirror(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers what it is given, in grey or RGB."""
    channels: int = request.param
    contract = toy_contract(channels, num_classes=channels * 32 * 32)
    return write_model_folder(tmp_path_factory.mktemp("mirror"), contract, scripted(Pixels()))


def assert_pixels_are_those_of_python(program: Program, mirror: Path, files: list[Path]) -> None:
    contract = json.loads((mirror / "contract.json").read_text())
    for file, answer in zip(files, program.answers(mirror, *files), strict=True):
        pixels = ImageShape(**contract["input"]).pixels(open_image(file))
        np.testing.assert_array_equal(answer["probabilities"], pixels.flatten(), err_msg=file.name)


def test_64_images_are_answered_like_by_python(program: Program, trained: Trained, tmp_path: Path) -> None:
    run = Run(trained.run)
    images = torch.cat([load_split(run, "test")[0], load_split(run, "validation")[0]])[:64]
    files = [tmp_path / f"{index}.png" for index in range(64)]
    for file, image in zip(files, images, strict=True):
        file.write_bytes(png(image))
    for variant in ("", "-int8-dynamic", "-int8-static"):
        with zipfile.ZipFile(trained.store / f"synthetic-1.0{variant}.mar") as archive:
            archive.extractall(tmp_path)
        answers = program.answers(tmp_path, *files)
        graph = torch.jit.load(str(tmp_path / "model.pt")).eval()  # type: ignore[no-untyped-call]
        with torch.inference_mode():
            by_python = torch.cat([graph(image[None]) for image in images])
        difference = float((torch.tensor([each["probabilities"] for each in answers]) - by_python).abs().max())
        print(f"1.0{variant}: C++ differs from Python by at most {difference:.2e} on 64 images")
        assert difference <= TOLERANCE
        classes = answers[0]["classes"]
        assert [each["label"] for each in answers] == [classes[int(row.argmax())] for row in by_python]
        assert [each["image"] for each in answers] == [str(file) for file in files]


PHOTOS: list[tuple[int, int, str, str, dict[str, Any]]] = [
    (32, 32, "RGB", "png", {}),
    (640, 427, "RGB", "jpg", {"quality": 90}),
    (427, 640, "RGB", "jpg", {"quality": 75, "subsampling": 0}),
    (333, 500, "RGB", "jpg", {"progressive": True}),
    (201, 77, "L", "jpg", {}),
    (9, 14, "RGB", "png", {}),
    (33, 31, "L", "png", {}),
    (100, 32, "P", "png", {}),
    (64, 90, "1", "png", {}),
    (1500, 1000, "RGB", "png", {}),
    # Tall ones, in which Pillow scales down before it scales across.
    (36, 64, "RGB", "jpg", {}),
    (301, 583, "RGB", "png", {}),
    (20, 900, "L", "png", {}),
    (31, 34, "RGB", "png", {}),
    (40, 30, "RGB", "jpg", {"xmp": xmp(1)}),
    (40, 30, "RGB", "jpg", {"xmp": xmp(6), "exif": exif(1)}),  # of two, EXIF is believed
]


def test_photos_are_scaled_and_cropped_as_in_training(program: Program, mirror: Path, tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{number}.{kind}", photo(width, height, mode), **options)
        for number, (width, height, mode, kind, options) in enumerate(PHOTOS)
    ]
    assert_pixels_are_those_of_python(program, mirror, files)


def test_damaged_jpegs_are_read_as_in_training(program: Program, mirror: Path, tmp_path: Path) -> None:
    content = encoded(photo(320, 240), "JPEG")
    restart, extraneous = tmp_path / "restart.jpg", tmp_path / "extraneous.jpg"
    restart.write_bytes(content[:5000] + b"\xff\xd0" + content[5000:])
    extraneous.write_bytes(content[:-2] + bytes(5) + content[-2:])
    assert_pixels_are_those_of_python(program, mirror, [restart, extraneous])


def test_it_needs_no_python(program: Program) -> None:
    linked = subprocess.run(["ldd", program.path], capture_output=True, text=True, timeout=20, check=True).stdout
    assert "libtorch_cpu" in linked
    assert "libpython" not in linked
    assert "libtorch_python" not in linked


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: b"GIF89a....", "is of no known format; allowed are PNG and JPEG"),
        (lambda: encoded(photo(40, 40), "PNG")[:-300], "is no PNG that can be read: it is cut off"),
        (lambda: encoded(photo(40, 40), "JPEG")[:-300], "is no JPEG that can be read"),
        (lambda: encoded(photo(40, 40, "RGBA"), "PNG"), "is partly transparent"),
        (lambda: encoded(photo(40, 40, "CMYK"), "JPEG"), "has 4 channels (CMYK)"),
        (lambda: encoded(Image.fromarray(np.zeros((9, 9), np.uint16)), "PNG"), "has 16 bits a sample"),
        (lambda: encoded(photo(40, 30), "JPEG", exif=exif(6)), "is turned by its EXIF orientation, 6; save it upright"),
        (lambda: encoded(photo(40, 30), "JPEG", exif=LONG_EXIF), "is turned by its EXIF orientation, 6"),
        (lambda: encoded(photo(40, 30), "PNG", exif=exif(8)), "is turned by its EXIF orientation, 8"),
        (lambda: encoded(photo(40, 30), "JPEG", xmp=xmp(6)), "is turned by its XMP orientation, 6; save it upright"),
        (
            lambda: encoded(
                photo(40, 30),
                "PNG",
                pnginfo=text("XML:com.adobe.xmp", "<tiff:Orientation>3</tiff:Orientation>"),
            ),
            "is turned by its XMP orientation, 3",
        ),
        (
            lambda: encoded(photo(40, 30), "PNG", pnginfo=text("Raw profile type exif", "\nexif\n0\n")),
            "has its EXIF in a text chunk",
        ),
    ],
)
def test_what_it_would_decode_otherwise_is_refused_alone(
    program: Program, mirror: Path, tmp_path: Path, make: Callable[[], bytes], message: str
) -> None:
    bad, good = tmp_path / "bad", write(tmp_path / "good.png", photo(32, 32))
    bad.write_bytes(make())
    done = program.run(mirror, bad, good)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {bad} {message}")
    assert len(done.stderr.splitlines()) == 1
    assert json.loads(done.stdout)["image"] == str(good)


def test_it_keeps_to_the_contracts_limits_of_images(program: Program, tmp_path: Path) -> None:
    contract = toy_contract(images={"max_pixels": 1024, "formats": ["PNG"]})
    folder = write_model_folder(tmp_path / "limited", contract)
    jpeg, good = write(tmp_path / "photo.jpg", photo(32, 32)), write(tmp_path / "good.png", photo(32, 32))
    large = write(tmp_path / "large.png", photo(33, 32))
    done = program.run(folder, jpeg, good, large)
    assert (done.returncode, json.loads(done.stdout)["image"]) == (2, str(good))
    assert done.stderr.splitlines() == [
        f"error: {jpeg} is a JPEG, which the contract does not allow",
        f"error: {large} has 1056 pixels; allowed are 1024",
    ]
    scan = (content := encoded(photo(32, 32), "JPEG", progressive=True))[content.rindex(b"\xff\xda") : -2]
    jpeg.write_bytes(content[:-2] + scan * 999 + content[-2:])
    folder = write_model_folder(tmp_path / "scans", toy_contract(images={"max_pixels": 10240, "formats": ["JPEG"]}))
    assert "has 1024 pixels; allowed are 20" in program.run(folder, jpeg).stderr


def test_what_it_has_no_memory_for_fails_alone(program: Program, mirror: Path, tmp_path: Path) -> None:
    bad, good = tmp_path / "bad.png", write(tmp_path / "good.png", photo(32, 32))
    small = good.read_bytes()
    header = struct.pack(">4sII", b"IHDR", 5000, 5000) + small[24:29]
    bad.write_bytes(small[:12] + header + struct.pack(">I", zlib.crc32(header)) + small[33:])
    # Of 72 MiB of pixels; each thread would take some of the limit for its stack.
    limited = ("env", "OMP_NUM_THREADS=1", "prlimit", f"--data={100 << 20}")
    done = program.run(mirror, bad, good, under=limited)
    assert (done.returncode, done.stderr) == (2, f"error: {bad} cannot be answered: std::bad_alloc\n")
    assert json.loads(done.stdout)["image"] == str(good)


def test_a_file_whose_name_is_not_utf_8_is_answered(program: Program, mirror: Path, tmp_path: Path) -> None:
    (answer,) = program.answers(mirror, write(tmp_path / os.fsdecode(b"\xff.png"), photo(32, 32)))
    assert answer["image"] == str(tmp_path / "\ufffd.png")


def test_models_and_contracts_that_it_cannot_use_are_one_line(program: Program, tmp_path: Path) -> None:
    torch.library.define("elsewhere::own", "(Tensor pixels) -> Tensor")
    good = write(tmp_path / "good.png", photo(32, 32))
    for name, contract, graph, message in (
        ("aoti", toy_contract(compile="aoti"), None, "is of an AOTInductor package"),
        ("fit", toy_contract(preprocessing={"fit": "pad", "resample": "bilinear"}), None, "asks for fit pad"),
        ("classes", toy_contract(classes=["a", "b"]), None, "answers 7 classes, its contract names 2"),
        ("channels", toy_contract(1), None, f"{good} cannot be answered: RuntimeError: Given groups=1"),
        ("pair", toy_contract(), scripted(Pair()), f"{good} cannot be answered: Expected Tensor but got Tuple\n"),
        ("foreign", toy_contract(), scripted(Foreign()), "can be read: Unknown builtin op: elsewhere::own.\n"),
    ):
        done = program.run(write_model_folder(tmp_path / name, contract, graph), good)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
        assert message in done.stderr
        assert done.stderr.startswith("error: ")
    (tmp_path / "foreign" / "model.pt").write_bytes(b"no graph")
    broken = program.run(tmp_path / "foreign", good)
    assert "is no TorchScript file that can be read" in broken.stderr
    assert (broken.returncode, len(broken.stderr.splitlines())) == (2, 1)
    assert program.run(tmp_path / "nowhere", good).stderr.endswith("contract.json cannot be opened\n")
    usage = subprocess.run([program.path], capture_output=True, text=True, timeout=20, check=False)
    assert (usage.returncode, usage.stderr) == (2, "usage: classify MODEL.pt contract.json IMAGE...\n")
