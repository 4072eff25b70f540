"""Weights and their sidecar: what train leaves, and all that the later stages need to rebuild the model."""

import io
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.artifacts import Run, Variant, read_json, sha256, write_bytes, write_json
from training.errors import RunError
from training.models.resnet import build_model
from training.models.serving_graph import Normalize, ServingGraph, as_convolutions
from training.options.config import Architecture


@dataclass(frozen=True)
class WeightsCard:
    """The sidecar of the weights."""

    architecture: Architecture
    num_parameters: int
    classes: list[str]
    channels: int
    height: int
    width: int
    mean: list[float]
    std: list[float]
    dataset: str
    seed: int
    epoch: int
    validation_accuracy: float
    validation_loss: float
    torch_version: str
    sha256: str
    train: dict[str, Any]


@dataclass(frozen=True)
class QatCard:
    """The sidecar of the weights that quantization-aware training found; losses are those of the int8 network.

    `of_weights_sha256` names the fp32 weights that it began with, `epochs` has an entry for each of its epochs.
    """

    of_weights_sha256: str
    seed: int
    epoch: int
    validation_accuracy: float
    validation_loss: float
    torch_version: str
    sha256: str
    quantize: dict[str, Any]
    epochs: list[dict[str, Any]]


def save_weights(run: Run, state: dict[str, Tensor]) -> str:
    """Write the state dict atomically and return its SHA-256 sum; equal weights give equal bytes."""
    buffer = io.BytesIO()
    torch.save({name: value.contiguous() for name, value in state.items()}, buffer)
    write_bytes(run.weights, buffer.getvalue())
    return sha256(run.weights)


def save_card(run: Run, card: WeightsCard | QatCard) -> None:
    """Write the sidecar, after the weights that it describes."""
    write_json(run.weights_card, card)


def load_card(run: Run) -> WeightsCard:
    """Return the sidecar; raises RunError if the run was not trained."""
    return WeightsCard(**read_json(run.weights_card, written_by="train"))


def load_qat_card(run: Run) -> QatCard:
    """Return the sidecar of quantization-aware training.

    Raises RunError if there was none, or it began with other weights than the run has now.
    """
    card = QatCard(**read_json(run.qat.weights_card, written_by="quantize --qat"))
    if card.of_weights_sha256 != load_card(run).sha256:
        raise RunError(f"{run.qat.weights} was trained on from other weights; run the stage quantize again")
    return card


def weights_sha256(run: Run, variant: Variant) -> str:
    """Return the sum of the weights that a variant is made of; raises RunError if they are not there."""
    return load_qat_card(run).sha256 if variant == "int8-qat" else load_card(run).sha256


def load_graph(run: Run) -> ServingGraph:
    """Return the trained fp32 model, normalisation and softmax included, in eval mode.

    Raises RunError if the run was not trained, or its weights are not the ones that the sidecar describes.
    """
    card = load_card(run)
    if not run.weights.is_file() or sha256(run.weights) != card.sha256:
        raise RunError(f"{run.weights} is not the file that {run.weights_card} describes; run the stage train again")
    network = build_model(card.architecture, num_classes=len(card.classes), channels=card.channels)
    network.load_state_dict(torch.load(run.weights, weights_only=True, map_location="cpu"))
    return ServingGraph(Normalize(card.mean, card.std), as_convolutions(network)).eval()
