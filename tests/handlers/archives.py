"""Toy archives: a small traced model with a contract, packed by torch-model-archiver."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests import images

HANDLER = Path(__file__).resolve().parents[2] / "handlers" / "image_classifier.py"
NAMES = ("image_decoding", "image_limits", "graph_forms", "batch_profile", "packed_request", "ranking")
MODULES = [HANDLER.with_name(f"{name}.py") for name in NAMES]


class Toy(nn.Module):
    """uint8 [N, C, H, W] -> probabilities [N, num_classes], as an exported graph: normalisation and softmax inside."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, 8, 3, padding=1)
        self.linear = nn.Linear(8 * 4 * 4, num_classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.convolution(pixels.float().div(255).sub(0.5)))
        pooled = nn.functional.adaptive_avg_pool2d(features, 4).flatten(1)
        return torch.softmax(self.linear(pooled) * 8, dim=1)


def toy_graph(channels: int = 3, size: int = 32, num_classes: int = 7) -> torch.jit.ScriptModule:
    """A traced toy with fixed weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Toy(channels, num_classes).eval()
    example = torch.zeros(2, channels, size, size, dtype=torch.uint8)
    with torch.inference_mode(False), torch.no_grad():
        traced: torch.jit.ScriptModule = torch.jit.trace(model, example)  # type: ignore[no-untyped-call]
    return traced


def toy_contract(
    channels: int = 3, size: int = 32, num_classes: int = 7, version: str = "1.0", **changes: Any
) -> dict[str, Any]:
    """The toy's contract, without self-check cases."""
    contract: dict[str, Any] = {
        "schema_version": 1,
        "model": "toy",
        "release": "1.0",
        "variant": "fp32",
        "version": version,
        "precision": "fp32",
        "compile": "trace",
        "architecture": "toy",
        "input": {"channels": channels, "height": size, "width": size},
        "preprocessing": {"fit": "crop", "resample": "bilinear", "background": [0, 0, 0]},
        "classes": [f"class-{number}" for number in range(num_classes)],
        "self_check": {"tolerance": 1e-4, "cases": []},
    }
    return {**contract, **changes}


def self_check_case(image: bytes, probabilities: list[float]) -> dict[str, Any]:
    """One case of a contract's self-check."""
    return {"image_b64": base64.b64encode(image).decode(), "probabilities": probabilities}


def write_model_folder(
    folder: Path, contract: dict[str, Any] | None = None, graph: torch.jit.ScriptModule | None = None
) -> Path:
    """What TorchServe unpacks from an archive, as far as the handler reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "contract.json").write_text(json.dumps(contract or toy_contract()))
    (graph or toy_graph()).save(str(folder / "model.pt"))
    return folder


def make_archive(
    store: Path,
    folder: Path,
    contract: dict[str, Any] | None = None,
    graph: torch.jit.ScriptModule | None = None,
    handler: Path = HANDLER,
) -> Path:
    """Pack a toy into store/<model>-<version>.mar; `folder` is scratch space of the caller."""
    contract = contract or checked_contract()
    write_model_folder(folder / "model", contract, graph)
    temporary = folder / "tmp"  # the archiver stages under a name made of the model's
    temporary.mkdir(exist_ok=True)
    extra = [folder / "model" / "contract.json", *MODULES]
    command = [
        *(str(Path(sys.executable).with_name("torch-model-archiver")), "--model-name", contract["model"]),
        *("--version", contract["version"], "--serialized-file", str(folder / "model" / "model.pt")),
        *("--handler", str(handler), "--extra-files", ",".join(map(str, extra))),
        *("--export-path", str(folder)),
    ]
    subprocess.run(command, check=True, timeout=60, capture_output=True, env={**os.environ, "TMPDIR": str(temporary)})
    packed = folder / f"{contract['model']}.mar"
    return packed.rename(store / f"{contract['model']}-{contract['version']}.mar")


def checked_contract(version: str = "1.0") -> dict[str, Any]:
    """The toy's contract with one self-check case, computed from the graph alone."""
    pixels = torch.from_numpy(images.pattern()).permute(2, 0, 1)[None]
    with torch.inference_mode():
        probabilities = toy_graph()(pixels)[0].tolist()
    contract = toy_contract(version=version)
    contract["self_check"]["cases"] = [self_check_case(images.rgb_png(), probabilities)]
    return contract
