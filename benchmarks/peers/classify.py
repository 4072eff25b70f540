"""What every peer does with an image: Pillow, one batch through the graph, the five best classes as JSON's values.

The graph takes the forms that its contract names, made by the very function that the project's handler uses, so that
nobody here, raw forward passes included, has a better or a worse model than another.
"""

import base64
import io
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

from handlers.graph_forms import load_graph

Pixels = npt.NDArray[np.uint8]

TOP_K = 5
# TorchScript specialises during its first runs of a size. Sizes between these take the general code.
WARM_UP_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64)
WARM_UP_RUNS = 3
WARM_UP_SECONDS = 15.0


class Classifier:
    """One graph, on as many threads as OMP_NUM_THREADS says."""

    def __init__(self, folder: Path, warm_up_sizes: Sequence[int] = WARM_UP_SIZES) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self.contract: dict[str, Any] = json.loads((folder / "contract.json").read_text())
        size = self.contract["input"]
        self.size = (size["width"], size["height"])
        self.mode = "L" if size["channels"] == 1 else "RGB"
        self.top_k = min(TOP_K, len(self.contract["classes"]))
        cases = [self.decode(base64.b64decode(case["image_b64"])) for case in self.contract["self_check"]["cases"]]
        form = os.environ.get("TORCHGATE_GRAPH_FORM", "")
        self.graph = load_graph(folder / "model.pt", self.contract, form, torch.device("cpu"), cases)
        deadline = time.monotonic() + WARM_UP_SECONDS
        for num_items in warm_up_sizes:
            for _ in range(WARM_UP_RUNS):
                if time.monotonic() < deadline:
                    self.run([cases[0]] * num_items)

    def decode(self, content: bytes) -> Pixels:
        """Image file -> uint8 [C, H, W]."""
        image = Image.open(io.BytesIO(content)).convert(self.mode)
        if image.size != self.size:
            image = ImageOps.fit(image, self.size, method=Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
        return pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)

    def run(self, batch: Sequence[Pixels]) -> list[dict[str, Any]]:
        """Decoded images -> one answer each."""
        with torch.inference_mode():
            values, indices = self.graph(torch.from_numpy(self.graph.stack(batch))).topk(self.top_k, dim=1)
        classes = self.contract["classes"]
        return [
            {"top_k": [{"label": classes[i], "probability": p} for p, i in zip(each, where, strict=True)]}
            for each, where in zip(values.tolist(), indices.tolist(), strict=True)
        ]
