"""Quantization-aware training: the network is trained on with the rounding to int8 in every forward pass.

Jacob et al. 2018 (arXiv 1712.05877), section 3: gradients pass the rounding as if it were not there, batch norms are
folded into the convolutions before their weights are rounded, ranges are moving averages that stand still at the end.
"""

import copy
import math
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn
from torch.ao.nn.intrinsic.qat import freeze_bn_stats
from torch.ao.quantization import QConfig, QConfigMapping, disable_observer
from torch.ao.quantization.fake_quantize import (
    FusedMovingAvgObsFakeQuantize,
    default_fused_per_channel_wt_fake_quant,
)
from torch.ao.quantization.observer import MovingAverageMinMaxObserver
from torch.ao.quantization.quantize_fx import convert_fx, prepare_qat_fx
from torch.nn import functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm

from training.artifacts import Run, sha256
from training.data.dataset import load_dataset, load_split
from training.data.open_batches import open_batches
from training.engine.assembly import parameter_groups
from training.engine.history import best_of
from training.engine.schedule import warmup_then_cosine
from training.errors import NonFiniteLossError, RunError, SettingError
from training.evaluation.evaluate import predict
from training.evaluation.metrics import negative_log_likelihood
from training.int8.fx_layers import (
    LARGEST_ACTIVATION,
    quantization_deprecations_ignored,
    with_layers,
    with_plain_scales,
)
from training.models.serving_graph import ServingGraph
from training.models.weights import QatCard, load_card, load_graph, load_qat_card, save_qat_card, save_qat_weights
from training.options.config import QuantizeConfig, train_config_from

# Of all steps; a network whose ranges still move is not yet the one that will be converted.
MOVING_FRACTION = 2 / 3
LEAST_STEPS = 3  # of fewer, none would be left for the last part
WARMUP = 0.05


@dataclass(frozen=True)
class QatEpoch:
    """What one epoch did; the validation figures are of the int8 network that it would be converted to."""

    epoch: int
    train_loss: float
    train_accuracy: float
    validation_loss: float
    validation_accuracy: float


def train_qat(run: Run, config: QuantizeConfig) -> None:
    """Leave the weights of the best epoch whose ranges stood still, and their sidecar, in the run.

    Seed, batches, weight decay and momentum are those of the fp32 training. One thread count gives bit-equal weights.
    Raises RunError if the run was not trained, SettingError for fewer steps than it takes, NonFiniteLossError when the
    loss is not finite.
    """
    card, graph = load_card(run), load_graph(run)
    recipe = train_config_from(card.train)
    loader = replace(recipe.loader, pin_memory=False)  # which is for a GPU, and this is on the CPU
    source = open_batches(run, load_dataset(run), replace(recipe, loader=loader), device=torch.device("cpu"))
    num_batches = source.num_batches()
    num_steps = config.num_qat_epochs() * num_batches
    if num_steps < LEAST_STEPS:
        raise SettingError(
            f"--qat-epochs is {config.num_qat_epochs()}, {num_steps} steps in all, and it takes {LEAST_STEPS}; "
            f"allowed is {math.ceil(LEAST_STEPS / num_batches)} or more"
        )
    validation = load_split(run, "validation")
    network = fake_quantized(graph)
    optimizer = SGD(
        parameter_groups(network, recipe.weight_decay),
        lr=config.top_qat_learning_rate(),
        momentum=recipe.momentum,
        nesterov=True,
    )
    schedule = LambdaLR(optimizer, warmup_then_cosine(num_steps, WARMUP))
    standing_still = math.ceil(MOVING_FRACTION * num_steps)

    digest = ""
    history: list[QatEpoch] = []
    settled: list[QatEpoch] = []
    for epoch in range(1, config.num_qat_epochs() + 1):
        title = f"qat epoch {epoch}/{config.num_qat_epochs()}"
        network.train()
        num_images, total_loss, num_correct = 0, 0.0, 0
        for batch in tqdm(source, total=num_batches, desc=title, disable=None, leave=False):
            if schedule.last_epoch == standing_still:
                network.apply(disable_observer)
                network.apply(freeze_bn_stats)
            loss, num_right = _step(network, graph.normalize(batch.images), batch.labels, optimizer)
            schedule.step()
            if not math.isfinite(loss):
                raise NonFiniteLossError(
                    f"the loss of quantization-aware training became {loss} in epoch {epoch}; "
                    f"a smaller --qat-learning-rate than {config.top_qat_learning_rate()} may help"
                )
            num_images += batch.num_images
            total_loss += loss * batch.num_images
            num_correct += num_right
        loss, accuracy = _validate(ServingGraph(graph.normalize, to_int8(network)), *validation)
        if not math.isfinite(loss):
            raise NonFiniteLossError(f"the validation loss of int8 became {loss} after epoch {epoch}")
        found = QatEpoch(epoch, total_loss / num_images, num_correct / num_images, loss, accuracy)
        history.append(found)
        if schedule.last_epoch > standing_still:
            settled.append(found)
        if found is best_of(settled):
            digest = save_qat_weights(run, {name: value.contiguous() for name, value in network.state_dict().items()})
        print(
            f"{title}: loss {found.train_loss:.4f}, accuracy {found.train_accuracy:.4f}; "
            f"validation of int8: loss {loss:.4f}, accuracy {accuracy:.4f}",
            flush=True,
        )
    best = best_of(settled)
    assert best is not None, "the last epoch ends after the ranges have stopped"
    save_qat_card(
        run,
        QatCard(
            of_weights_sha256=card.sha256,
            seed=card.seed,
            epoch=best.epoch,
            validation_accuracy=best.validation_accuracy,
            validation_loss=best.validation_loss,
            torch_version=torch.__version__,
            sha256=digest,
            quantize=asdict(config),
            epochs=[asdict(each) for each in history],
        ),
    )
    print(f"qat kept epoch {best.epoch}: validation accuracy of int8 {best.validation_accuracy:.4f}")


def _step(network: nn.Module, pixels: Tensor, labels: Tensor, optimizer: SGD) -> tuple[float, int]:
    """Take one step; return the mean loss over normalised pixels [N, C, H, W] and the number of right answers."""
    logits = network(pixels.contiguous(memory_format=torch.channels_last))
    loss = F.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach()), int((logits.argmax(dim=1) == labels).sum())


def _validate(model: ServingGraph, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return negative log-likelihood and accuracy on uint8 [N, C, H, W] and int64 [N]."""
    probabilities, expected = predict(model.eval(), images), labels.numpy()
    return negative_log_likelihood(probabilities, expected), float((probabilities.argmax(axis=1) == expected).mean())


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
    if not run.qat_weights.is_file() or sha256(run.qat_weights) != card.sha256:
        raise RunError(f"{run.qat_weights} is not the file that {run.qat_weights_card} describes; run quantize again")
    network = fake_quantized(graph)
    network.load_state_dict(torch.load(run.qat_weights, weights_only=True, map_location="cpu"))
    return ServingGraph(graph.normalize, to_int8(network)).eval()
