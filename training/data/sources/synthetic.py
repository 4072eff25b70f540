"""Made-up images that a model can learn in seconds: for tests."""

import numpy as np
from PIL import Image

from training.data.sources.labelled import LabelledImages

CLASSES = ["horizontal", "vertical", "square"]
NUM_PER_CLASS = 100
SIDE = 12


def synthetic() -> LabelledImages:
    """Return 300 noisy grey images of bars and squares, 12 x 12; the same ones each time."""
    labels = [index % len(CLASSES) for index in range(NUM_PER_CLASS * len(CLASSES))]

    def load(index: int) -> Image.Image:
        noise = np.random.default_rng(index)
        pixels = noise.integers(0, 60, size=(SIDE, SIDE))
        top, left = (int(corner) for corner in noise.integers(1, 5, size=2))
        match CLASSES[labels[index]]:
            case "horizontal":
                pixels[top + 1 : top + 4, 1:-1] += 180
            case "vertical":
                pixels[1:-1, left + 1 : left + 4] += 180
            case "square":
                pixels[top : top + 6, left : left + 6] += 180
        return Image.fromarray(pixels.astype(np.uint8))

    return LabelledImages(
        description="300 synthetic images of bars and squares",
        classes=CLASSES,
        labels=labels,
        keys=[str(index) for index in range(len(labels))],
        load=load,
    )
