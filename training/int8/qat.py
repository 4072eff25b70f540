"""Quantization-aware training: the network is trained on with the rounding to int8 in every forward pass.

Jacob et al. 2018 (arXiv 1712.05877), section 3: gradients pass the rounding as if it were not there, batch norms are
folded into the convolutions before their weights are rounded, ranges are moving averages that stand still at the end.
"""

import copy
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace

import torch
from torch import nn
from torch.ao.nn.intrinsic.qat import freeze_bn_stats
from torch.ao.quantization import QConfig, QConfigMapping, disable_observer
from torch.ao.quantization.fake_quantize import (
    FusedMovingAvgObsFakeQuantize,
    default_fused_per_channel_wt_fake_quant,
)
from torch.ao.quantization.observer import MovingAverageMinMaxObserver
from torch.ao.quantization.quantize_fx import convert_fx, prepare_qat_fx

from training.artifacts import Run, sha256
from training.data.dataset import load_dataset
from training.engine.assembly import build_engine
from training.engine.checkpoint import seed_all
from training.engine.engine import num_steps
from training.engine.history import Follower, NoTrackers
from training.engine.training_loop import TrainingLoop
from training.errors import RunError, SettingError
from training.int8.fx_layers import (
    LARGEST_ACTIVATION,
    quantization_deprecations_ignored,
    with_layers,
    with_plain_scales,
)
from training.models.serving_graph import ServingGraph
from training.models.weights import QatCard, load_card, load_graph, load_qat_card, save_card, save_weights
from training.options.config import QuantizeConfig, TrainConfig, train_config_from
from training.options.execution import ExecutionOptions
from training.parallel.single import SingleProcess

# Of all steps; a network whose ranges still move is not yet the one that will be converted.
MOVING_FRACTION = 2 / 3
LEAST_STEPS = 3  # of fewer, none would be left for the last part
WARMUP = 0.05
# Of each epoch, what the sidecar keeps: equal trainings have equal ones.
FIGURES = ("epoch", "train_loss", "train_accuracy", "validation_loss", "validation_accuracy")


def train_qat(
    run: Run,
    config: QuantizeConfig,
    follower: Follower | None = None,
    *,
    begin: Callable[[], None] = lambda: None,
    resume: bool = False,
) -> None:
    """Leave the weights of the best epoch whose ranges stood still, and their sidecar, in the run.

    Seed, batches and all that is not an option of its own are those of the fp32 training. One thread count gives
    bit-equal weights. What an earlier call left is replaced at the end. `begin` is called once nothing was refused.
    Raises RunError if the run was not trained, SettingError for fewer steps than it takes, NonFiniteLossError when
    numbers become NaN or infinite, Interrupted after a signal.
    """
    card, graph, dataset = load_card(run), load_graph(run), load_dataset(run)
    recipe = qat_recipe(train_config_from(card.train), config)
    execution = ExecutionOptions()
    seed_all(recipe.seed)
    with ExitStack() as stack:
        strategy, network = SingleProcess(execution.torch_device()), fake_quantized(graph)
        engine = build_engine(run, dataset, recipe, execution, strategy, stack, network, option_prefix="qat-")
        steps_per_epoch = num_steps(engine.source, recipe.accumulation)
        _check_steps(recipe.epochs, steps_per_epoch)
        num_moving = math.ceil(MOVING_FRACTION * recipe.epochs * steps_per_epoch)
        engine.before_step = lambda num_taken: stand_still(network) if num_taken >= num_moving else None
        engine.validated = to_int8
        engine.first_kept_epoch = num_moving // steps_per_epoch + 1
        command = f"quantize --run {run.folder} --qat"
        best = TrainingLoop(run.qat, engine, execution, follower or NoTrackers(), command).train(begin, resume=resume)
    digest = save_weights(run.qat, engine.kept)
    save_card(
        run.qat,
        QatCard(
            of_weights_sha256=card.sha256,
            seed=card.seed,
            epoch=best.epoch,
            validation_accuracy=best.validation_accuracy,
            validation_loss=best.validation_loss,
            torch_version=torch.__version__,
            sha256=digest,
            quantize=asdict(config),
            epochs=[{name: getattr(each, name) for name in FIGURES} for each in engine.progress.history],
        ),
    )
    print(f"qat kept epoch {best.epoch}: validation accuracy of int8 {best.validation_accuracy:.4f}")


def qat_recipe(recipe: TrainConfig, config: QuantizeConfig) -> TrainConfig:
    """Return the fp32 training's options, changed to a short, gentle training in float32 on the CPU."""
    return replace(
        recipe,
        epochs=config.num_qat_epochs(),
        learning_rate=config.top_qat_learning_rate(),
        schedule="cosine",
        gamma=None,
        warmup=WARMUP,
        precision="fp32",
        channels_last=True,
        # The average of ranges that still move is no range, and the last part alone can be kept.
        ema_decay=None,
        patience=None,
        loader=replace(recipe.loader, pin_memory=False),
    )


def _check_steps(num_epochs: int, steps_per_epoch: int) -> None:
    if num_epochs * steps_per_epoch < LEAST_STEPS:
        raise SettingError(
            f"--qat-epochs is {num_epochs}, {num_epochs * steps_per_epoch} steps in all, and it takes {LEAST_STEPS}; "
            f"allowed is {math.ceil(LEAST_STEPS / steps_per_epoch)} or more"
        )


def stand_still(network: nn.Module) -> None:
    """Stop ranges and the statistics of batch norm where they are."""
    network.apply(disable_observer)
    network.apply(freeze_bn_stats)


def fake_quantized(graph: ServingGraph) -> nn.Module:
    """Return a copy of the graph's network, in training mode, that rounds weights and activations as int8 would.

    Activations have the 7 bits, and weights the scale for each output channel, of the static variant. What lies beyond
    127 is cut off here; the int8 network cuts off at 255.
    """
    activation = FusedMovingAvgObsFakeQuantize.with_args(  # type: ignore[no-untyped-call]
        observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=LARGEST_ACTIVATION, dtype=torch.quint8
    )
    network: nn.Module = copy.deepcopy(graph.network).train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    layers = QConfigMapping().set_global(QConfig(activation, default_fused_per_channel_wt_fake_quant))  # type: ignore[no-untyped-call]
    example = torch.zeros(1, graph.normalize.offset.shape[1], 1, 1)
    with quantization_deprecations_ignored():
        return with_layers(network, lambda part: prepare_qat_fx(part, layers, (example,)))


def to_int8(network: nn.Module) -> nn.Module:
    """Return the int8 network that a fake-quantized one stands for; that one is left as it is."""
    with quantization_deprecations_ignored():
        return with_layers(copy.deepcopy(network).eval(), lambda part: with_plain_scales(convert_fx(part)))  # type: ignore[arg-type]


def load_qat(run: Run) -> ServingGraph:
    """Return the int8 model that quantization-aware training found, in eager form and eval mode.

    Raises RunError if there was no such training, or its weights are not the ones that the sidecar describes.
    """
    card, graph = load_qat_card(run), load_graph(run)
    if not run.qat.weights.is_file() or sha256(run.qat.weights) != card.sha256:
        raise RunError(f"{run.qat.weights} is not the file that {run.qat.weights_card} describes; run quantize again")
    network = fake_quantized(graph)
    network.load_state_dict(torch.load(run.qat.weights, weights_only=True, map_location="cpu"))
    return ServingGraph(graph.normalize, to_int8(network)).eval()
