"""The sample digits are what their README says."""

from pathlib import Path

import numpy as np
from PIL import Image

from training.data.sources.digits import digits
from training.data.split import stratified_split

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


def test_samples_are_the_first_test_image_of_each_class() -> None:
    source = digits()
    test = stratified_split(source.labels, source.keys)["test"]
    for label in range(10):
        first = next(index for index in test if source.labels[index] == label)
        with Image.open(SAMPLES / f"digit-{label}.png") as sample:
            assert (sample.format, sample.mode, sample.size) == ("PNG", "L", (28, 28))
            assert (np.asarray(sample) == np.asarray(source.load(first))).all()
