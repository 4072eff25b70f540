"""The two kinds of files that hold a graph: TorchScript (.pt) and a package of AOTInductor (.pt2)."""

import warnings
from pathlib import Path
from typing import Any

import torch

from training.export.aoti import load_package

PACKAGE = ".pt2"


def load_compiled(path: Path) -> Any:
    """Return the file as a callable, on the CPU: uint8 [N, C, H, W] -> probabilities float32 [N, num_classes]."""
    if path.suffix == PACKAGE:
        return load_package(path)
    with warnings.catch_warnings():
        # torch says it once in each process; from inside a graph it would go past Python's filters, to stderr.
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.quint8)
    return torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-untyped-call]
