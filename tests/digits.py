"""Real digits, and a model that was trained on them for as long as a test can wait."""

import io

import pytest
from PIL import Image, ImageOps

from tests.stack import Trained, trained_once
from training.artifacts import Run
from training.data.dataset import load_split


@pytest.fixture(scope="session")
def trained_digits(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Three epochs instead of 24: 97 to 98 of 100 held-out digits are right."""
    folder = tmp_path_factory.mktemp("digits")
    return trained_once(folder, "--epochs", "3", preset="digits", timeout_seconds=500)


@pytest.fixture(scope="session")
def held_out(trained_digits: Trained) -> tuple[list[Image.Image], list[int]]:
    """The test split, which neither training nor the reference has seen: images and labels."""
    pixels, labels = load_split(Run(trained_digits.run), "test")
    return [Image.fromarray(each[0]) for each in pixels.numpy()], labels.tolist()


def inverted(image: Image.Image) -> Image.Image:
    """Return black on white where it was white on black."""
    return ImageOps.invert(image)


def png(image: Image.Image) -> bytes:
    """Return an image as a client sends it."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
