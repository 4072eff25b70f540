"""The variants with smaller numbers inside, and the verb that measures them."""

import copy
import shutil
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.ao.quantization import QConfig, QConfigMapping, quantize_dynamic
from torch.ao.quantization.observer import HistogramObserver, default_per_channel_weight_observer
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

from training.artifacts import Run, Variant, read_json, write_json
from training.data.dataset import load_split
from training.engine.history import Follower
from training.evaluation.evaluate import evaluate_model, save_evaluation
from training.evaluation.threads import one_thread
from training.int8.fx_layers import (
    LARGEST_ACTIVATION,
    quantization_deprecations_ignored,
    with_layers,
    with_plain_scales,
)
from training.int8.qat import load_qat, train_qat
from training.lock import held
from training.models.serving_graph import ServingGraph
from training.models.weights import load_graph
from training.options.config import QuantizeConfig, config_from
from training.progress import progress

QUANTIZED: tuple[Variant, ...] = ("int8-dynamic", "int8-static")
# The scales of activations hardly move after the first hundred; all of them cost a resnet18 at 224 a few seconds.
NUM_CALIBRATION_IMAGES = 320
CALIBRATION_BATCH_SIZE = 32


def to_int8_dynamic(graph: nn.Module) -> nn.Module:
    """Return a copy whose linear layers hold int8 weights and scale their int8 inputs anew at each call.

    One scale serves the whole batch, so an image's answer depends a little on its batch-mates. Convolutions have no
    dynamic form in torch and stay float32; of a ResNet this quantizes the last layer alone.
    """
    with quantization_deprecations_ignored():
        return quantize_dynamic(graph, {nn.Linear}, dtype=torch.qint8)  # type: ignore[no-any-return,no-untyped-call]


def to_int8_static(graph: ServingGraph, images: Tensor) -> ServingGraph:
    """Return a copy whose network has int8 layers, their scales fixed by what uint8 `images` [N, C, H, W] make in it.

    Weights have a scale for each output channel; convolution, normalisation and ReLU become one layer, addition and
    ReLU another. Pixels are normalised and probabilities made in float32. The same images give the same bits.
    """
    activation = HistogramObserver.with_args(quant_min=0, quant_max=LARGEST_ACTIVATION)
    layers = QConfigMapping().set_global(QConfig(activation, default_per_channel_weight_observer))  # type: ignore[no-untyped-call]

    def calibrated(part: nn.Module) -> nn.Module:
        observed = prepare_fx(part, layers, (graph.normalize(images[:1]),))
        for batch in progress(torch.split(images, CALIBRATION_BATCH_SIZE), "calibrate", "batches"):
            observed(graph.normalize(batch))
        return with_plain_scales(convert_fx(observed))

    # One thread: with more, sums may be taken in another order and a scale differ in its last bit.
    with one_thread(), torch.no_grad(), quantization_deprecations_ignored():
        network = with_layers(copy.deepcopy(graph.network), calibrated)
    return ServingGraph(graph.normalize, network).eval()


def calibration_images(run: Run) -> Tensor:
    """Return some training images, uint8 [N, C, H, W], from all over the split; never validation or test images."""
    images, _ = load_split(run, "train")
    num_images = min(NUM_CALIBRATION_IMAGES, len(images))
    return images[torch.arange(num_images) * len(images) // num_images]


def load_variant(run: Run, variant: Variant) -> nn.Module:
    """Return the variant of the trained model, in eager form and eval mode; raises RunError if it was not trained."""
    graph = load_graph(run)
    match variant:
        case "fp32" | "aoti":
            return graph
        case "int8-dynamic":
            return to_int8_dynamic(graph)
        case "int8-static":
            return to_int8_static(graph, calibration_images(run))
        case "int8-qat":
            return load_qat(run)


def quantize(run: Run, config: QuantizeConfig, follower: Follower | None = None, *, resume: bool = False) -> None:
    """Leave figures and pictures of the quantized models in the run; with `config.qat`, train one of them first.

    The config is written into the run's once nothing was refused. The weights of the others are derived again,
    bit-equal, where they are needed: there is no second file of them.
    Raises NonFiniteLossError if that training diverged, SettingError if another process is at work in the run.
    """

    def begin() -> None:
        recorded = config_from(read_json(run.config, written_by="prepare"))
        write_json(run.config, replace(recorded, quantize=config))

    with held(run.folder, "--run"):
        if config.qat:
            train_qat(run, config, follower, begin=begin, resume=resume)
        else:
            begin()
        for variant in (*QUANTIZED, "int8-qat") if config.qat else QUANTIZED:
            evaluation = evaluate_model(load_variant(run, variant), run, variant)
            save_evaluation(run, variant, evaluation)
            found = evaluation.batch_dependence
            print(
                f"{variant}: alone or in a batch of {found.batch_size}, probabilities differ by up to "
                f"{found.max_abs_difference:.2g}; {found.num_class_changes} of {found.num_samples} classes change"
            )
        if not config.qat:
            # What an earlier call left would be taken for a part of this run.
            shutil.rmtree(run.qat.folder, ignore_errors=True)
