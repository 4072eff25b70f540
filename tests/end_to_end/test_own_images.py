"""A person's own folder, mixed and partly broken as such folders are, to served predictions with one command."""

import io
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.stack import gateway_of_workers, train

COLOURS = {"grass": (20, 160, 40), "sea": (20, 60, 190), "sunset": (220, 90, 20)}
FORMATS = (("jpg", "RGB"), ("png", "RGBA"), ("bmp", "RGB"), ("gif", "P"), ("tiff", "CMYK"), ("webp", "RGB"))
NUM_PER_CLASS = 24


def picture(name: str, seed: int, mode: str = "RGB") -> Image.Image:
    """Noise around the class's colour, of any size."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(9, 60, size=2)
    pixels = np.clip(np.array(COLOURS[name]) + rng.integers(-25, 26, size=(height, width, 3)), 0, 255)
    return Image.fromarray(pixels.astype(np.uint8)).convert(mode)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    root = tmp_path / "places"
    for number, name in enumerate(COLOURS):
        (root / name).mkdir(parents=True)
        for index in range(NUM_PER_CLASS):
            suffix, mode = FORMATS[index % len(FORMATS)]
            picture(name, 100 * number + index, mode).save(root / name / f"{index}.{suffix}")
    (root / "sea" / "empty.jpg").write_bytes(b"")
    whole = (root / "grass" / "0.jpg").read_bytes()
    (root / "grass" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    return root


def test_own_images_become_served_predictions_with_one_command(own: Path, tmp_path: Path) -> None:
    form = ["--data", str(own), "--channels", "3", "--height", "16", "--width", "16"]
    with pytest.raises(AssertionError) as failed:
        train(tmp_path / "failed", *form)
    assert "2 images cannot be used" in str(failed.value)
    for name in ("sea/empty.jpg", "grass/cut.jpg"):
        assert name in str(failed.value)
    assert not list((tmp_path / "failed").rglob("*.mar"))

    trained = train(tmp_path / "trained", *form, "--broken", "skip")
    assert sorted(path.name for path in trained.store.glob("*.mar"))[0] == "places-1.0-int8-dynamic.mar"
    with gateway_of_workers(trained.store, TORCHGATE_WORKERS_PER_VERSION="1") as gateway:
        gateway.until_every_version_is_ready()
        for name in COLOURS:
            stream = io.BytesIO()
            picture(name, seed=9999).save(stream, "JPEG")
            headers = {"Content-Type": "image/jpeg"}
            answer = httpx.post(
                f"{gateway.url}/predict", content=stream.getvalue(), headers=headers, timeout=60, trust_env=False
            )
            assert answer.status_code == 200, answer.text
            assert answer.json()["predictions"][0]["label"] == name
