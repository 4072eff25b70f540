"""What every peer does with an image: Pillow, one batch through the graph, the five best classes as JSON's values."""

import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

from benchmarks.graph import chosen_form, load, warm_up

TOP_K = 5


class Classifier:
    """One graph on one thread."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self.contract: dict[str, Any] = json.loads((folder / "contract.json").read_text())
        size = self.contract["input"]
        self.size = (size["width"], size["height"])
        self.mode = "L" if size["channels"] == 1 else "RGB"
        self.top_k = min(TOP_K, len(self.contract["classes"]))
        self.forward = load(folder, chosen_form(folder))
        warm_up(self.forward, size)

    def decode(self, content: bytes) -> npt.NDArray[np.uint8]:
        """Image file -> uint8 [C, H, W]."""
        image = Image.open(io.BytesIO(content)).convert(self.mode)
        if image.size != self.size:
            image = ImageOps.fit(image, self.size, method=Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
        return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    def run(self, batch: Sequence[npt.NDArray[np.uint8]]) -> list[dict[str, Any]]:
        """Decoded images -> one answer each."""
        with torch.inference_mode():
            values, indices = self.forward(torch.from_numpy(np.stack(batch))).topk(self.top_k, dim=1)
        classes = self.contract["classes"]
        return [
            {"top_k": [{"label": classes[i], "probability": p} for p, i in zip(each, where, strict=True)]}
            for each, where in zip(values.tolist(), indices.tolist(), strict=True)
        ]
